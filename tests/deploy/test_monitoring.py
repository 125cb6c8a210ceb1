"""Dashboard, alerts and runbooks: all names exist, every alert fires when it should, and says what to do."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import StrictLoader
from documents import ROOT, Document
from queries import PROCESS, TARGET, exposed, names, unknown
from tools import needed

from fomo_stream.cli.parser import build_parser
from fomo_stream.settings.service_settings import ServiceSettings

FOLDER = ROOT / "deploy/chart/monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = [
    rule for group in yaml.load((FOLDER / "rules.yaml").read_text(), StrictLoader)["groups"] for rule in group["rules"]
]
ALERTS = [rule["alert"] for rule in RULES]
TESTS: list[dict[str, Any]] = yaml.load((FOLDER / "rules_test.yaml").read_text(), StrictLoader)["tests"]
RUNBOOKS = Document.read(ROOT / "deploy/runbooks.md")
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
GIVEN = {"__rate_interval"}  # variables that Grafana has by itself


def promtool(*arguments: str | Path) -> tuple[int, str]:
    """Exit status and output."""
    command = [needed("promtool", "prometheus"), *map(str, arguments)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


# --- names


def dashboard_queries() -> list[str]:
    """The queries of the panels and of the variables, as Grafana sends them while all is chosen."""
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None, variable["name"]
            queries.append(f"count by ({found[2]}) ({found[1]})")
    filled = [query.replace("$__rate_interval", "5m") for query in queries]
    return [re.sub(r'"\$(namespace|job|pod)"', '".*"', query) for query in filled]


def test_queries_name_only_metrics_and_labels_that_exist() -> None:
    assert unknown(dashboard_queries()) == []
    assert unknown(rule["expr"] for rule in RULES) == []
    series = [(test["name"], one["series"]) for test in TESTS for one in test["input_series"]]
    assert [name for name, one in series if unknown([one])] == []


# --- the dashboard


def made_series(topics: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Series of everything that an instance exposes; topics: several ones that it scores."""
    for name, labels in exposed().items():
        choices = {"le": ("0.1", "1", "+Inf"), "severity": ("info", "warning"), "outcome": ("committed", "aborted")}
        varied = next((label for label in choices if label in labels), "instance")
        for value in choices.get(varied, ("a",)):
            given = dict.fromkeys(labels | TARGET, "0") | {varied: value}
            for topic in topics if name not in PROCESS else ("",):
                pairs = ", ".join(f'{label}="{value}"' for label, value in ({"topic": topic} | given).items())
                yield {"series": f"{name}{{{pairs}}}", "values": "1+60x30"}


@pytest.mark.parametrize("topics", [("",), ("a", "b")], ids=["one topic", "several"])
def test_every_query_of_the_dashboard_finds_something_where_all_metrics_are(
    topics: tuple[str, ...], tmp_path: Path
) -> None:
    found = [{"labels": "{}", "value": 1}]
    tests = [
        {"expr": f"count({query}) > bool 0", "eval_time": "20m", "exp_samples": found}
        for query in dict.fromkeys(dashboard_queries())
    ]
    made = {
        "interval": "1m",
        "input_series": [*{one["series"]: one for one in made_series(topics)}.values()],
        "promql_expr_test": tests,
    }
    (tmp_path / "queries.yaml").write_text(json.dumps({"evaluation_interval": "1m", "tests": [made]}))
    status, output = promtool("test", "rules", tmp_path / "queries.yaml")
    assert status == 0, output


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panels_explain_themselves(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert re.match(r"(.*[.] )?Good: .+[.] .+[.]$", panel["description"]), "what is good, and what to do"
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        assert set(re.findall(r"\$\{?(\w+)", target["expr"])) <= {*VARIABLES, *GIVEN}
        found = names(target["expr"].replace("[$__rate_interval]", "[5m]"))
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= found.grouped
        for metric, labels in found.selectors:
            assert {"namespace", "job", "pod"} <= labels, f"{metric} of all groups"


def test_flags_and_alerts_that_texts_name_exist() -> None:
    texts = [panel["description"] for panel in PANELS] + [
        text for rule in RULES for text in rule["annotations"].values()
    ]
    text = "\n".join(texts)
    flags = {name for action in build_parser(ServiceSettings)._actions for name in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z-]+", text)) <= flags
    assert set(re.findall(r"\bFomo\w+", text)) <= set(ALERTS)


# --- alerts


def test_promtool_accepts_the_rules() -> None:
    status, output = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
    assert status == 0, output
    assert f"{len(RULES)} rules found" in output


@pytest.mark.slow
def test_alerts_fire_in_their_cases_and_only_there() -> None:
    status, output = promtool("test", "rules", "rules_test.yaml")
    assert status == 0, output


def test_every_alert_has_a_case_and_is_quiet_in_good_health() -> None:
    checked = [(test["name"], one) for test in TESTS for one in test["alert_rule_test"]]
    assert sorted(ALERTS) == sorted({one["alertname"] for _, one in checked if one.get("exp_alerts")})
    health = {test["name"] for test in TESTS if "in good health" in test["name"]}
    assert len(health) == 2
    for name in health:
        quiet = [one["alertname"] for case, one in checked if case == name and not one.get("exp_alerts")]
        assert sorted({*quiet}) == sorted(ALERTS)


def test_alerts_say_how_bad_it_is_and_name_a_runbook_that_has_all_its_parts() -> None:
    for rule in RULES:
        assert rule["labels"] in [{"severity": level} for level in ("critical", "warning", "info")]
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        anchor = rule["alert"].lower()
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS.name}#{anchor}"
        assert anchor in RUNBOOKS.anchors
    titles = re.findall(r"^## (.+)$", RUNBOOKS.prose, re.MULTILINE)
    assert [title for title in titles if title.startswith("Fomo")] == ALERTS
    for alert in ALERTS:
        text = RUNBOOKS.section(alert).text
        assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == ["Meaning.", "Look.", "Do.", "Ignore it"]
