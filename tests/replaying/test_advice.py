"""`replay --suggest`: the configuration that it writes can be used as it is, and says what the records show."""

from __future__ import annotations

import csv
import re
import shlex
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from blocks import block, spec_of
from memory_source import cheap_checkpoint

from fomo_stream.cli.main import main
from fomo_stream.cli.parser import parse
from fomo_stream.replaying.advice import RANGE_SHARES, PartitionAlerts, Suggestions, advise, alerts_in, proposals
from fomo_stream.settings.replay import ReplaySettings

N = 2000
pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two machines, with a counter, a state, a constant, and spikes of different sizes."""
    folder, rng = tmp_path_factory.mktemp("advice"), np.random.default_rng(0)
    cheap_checkpoint(folder)
    begin, energy = datetime(2026, 9, 1), {"m1": 0.0, "m2": 500.0}
    flow, temp = rng.normal(10, 1, N), rng.normal(50, 5, N)
    flow[300::103] += 20.0 * 1.5 ** np.arange(len(flow[300::103]))  # each higher than all before
    with (folder / "month.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["at", "machine", "flow", "temp", "energy", "state", "site", "noise"])
        for i in range(N):
            machine, state = ("m1", "m2")[i % 2], str(rng.choice(["on", "off", "idle"]))
            energy[machine] += float(rng.uniform(1, 3))
            at = (begin + timedelta(minutes=3 * i)).isoformat()
            rows.writerow([at, machine, f"{flow[i]:.3f}", f"{temp[i]:.3f}", f"{energy[machine]:.3f}", state, 7, ""])
    return folder


def inputs(folder: Path) -> list[str]:
    model = str(folder / "cheap.safetensors")
    flags = ["--file", str(folder / "month.csv"), "--model", model, "--report", "none", "--views", "fast"]
    return [*flags, "--context-size", "50", "--min-context", "50"]


def run(folder: Path, *more: str) -> int:
    return main(["replay", *inputs(folder), *more])


def test_the_file_says_what_the_records_show_and_can_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, window = folder / "plant.yaml", folder / "window.yaml"
    window.write_text("maintenance:\n  - name: cleaning\n    from: 2026-09-02T00:00\n    to: 2026-09-02T02:00\n")
    assert run(folder, "--config", str(window), "--suggest", str(path), "--incidents-per-day", "3") == 0
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    content = yaml.safe_load(text)
    expected = {"time": "at", "key": "machine", "counters": "energy", "categorical": "state", "exclude": "site"}
    assert content.items() >= expected.items()
    assert content["maintenance"][0]["name"] == "cleaning"
    assert "views" in content  # as it was given
    assert "site is always 7" in text
    assert {rule["features"] for rule in content.get("rules", [])} <= {"flow", "temp", "energy"}
    scored = str(folder / "scored.csv")
    assert main(["score", str(folder / "month.csv"), "--config", str(path), "--output", scored]) == 0
    assert "maintenance=40" in capsys.readouterr().err


def test_what_is_written_is_not_what_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--suggest", str(folder / "month.csv")) != 0
    assert "--suggest" in capsys.readouterr().err
    assert run(folder, "--suggest", str(folder / "x.yaml"), "--explain", "none") != 0
    assert "--explain none" in capsys.readouterr().err


# --- what leaves fewer incidents

SETTINGS = ReplaySettings(file=Path("month.csv"), incident_quiet=50)
DAY = 86_400_000


def part(deviations: list[float], features: str = "a", labels: Any = None, every_ms: int = DAY) -> PartitionAlerts:
    """Alerts a hundred records apart, each of one of these features with a usual range of 10."""
    n = 100 * len(deviations)
    outputs: list[dict[str, Any]] = [{} for _ in range(n)]
    for i, deviation in enumerate(deviations):
        feature = {"a": "a*"}.get(features[i % len(features)], features[i % len(features)])
        reason = {"feature": feature, "cause": "value", "share": 1.0, "value": deviation, "expected": 0.0}
        outputs[100 * i] = {"reasons": [{**reason, "range": [0, 10]}], "severity": "warning", "incident": str(i)}
        outputs[100 * i] |= {"score": 0.99, "p_value": 0.0015 if i % 2 else 0.004}
    times = np.arange(n) * every_ms // 100
    made = block(np.zeros(n), labels, times=times, alerts=np.arange(n) % 100 == 0, outputs=outputs)
    rows = np.zeros(n, spec_of([made]).row)
    rows["offset"], rows["time"], rows["label"] = made.offsets, made.times, made.labels
    rows["alert"][:, 0] = made.results.outlier
    return PartitionAlerts(rows, alerts_in(made, 0))


def test_the_smallest_share_that_leaves_few_incidents_is_taken() -> None:
    given = [0.4 + share * 10 for share in RANGE_SHARES for _ in range(20)]  # each share leaves out 20 more
    made = [part(given[::2]), part(given[1::2])]  # of two partitions
    for most in (2.0, 1.5, 0.85, 0.1):
        advice = advise(made, SETTINGS.model_copy(update={"incidents_per_day": most}), 100)
        left = [sum(one > share * 10 for one in given) / 100 for share in (0.0, *RANGE_SHARES)]
        fits = [share for share, rate in zip((0.0, *RANGE_SHARES), left, strict=True) if rate <= most]
        assert advice.share == (fits[0] if fits else 0.0)  # rules that are not enough would only lose faults
        assert advice.before["incidents"] == len(given)
        assert advice.a_day == pytest.approx(left[(0.0, *RANGE_SHARES).index(advice.share)])
        assert {rule.features for rule in advice.rules} == ({("a[*]",)} if advice.share else set())


def test_neither_rules_nor_lower_rates_lose_faults() -> None:
    deviations, labels = [3.0] * 10 + [1.2] + [0.4] * 9, np.zeros(2000, np.int8)
    labels[1000] = 1  # by the small deviation
    made = [part(deviations, labels=labels)]
    settings = SETTINGS.model_copy(update={"incidents_per_day": 0.11})
    assert advise(made, settings, 100, has_labels=True).share == 0.05
    settings = SETTINGS.model_copy(update={"incidents_per_day": 0.05})
    assert advise(made, settings, 100, has_labels=True).share == 0.0
    assert advise([part(deviations)], settings, 100).share == 0.3
    settings = SETTINGS.model_copy(update={"incidents_per_day": 1.0})
    lower = [advise([part([9.0] * n)], settings, 1).lower for n in (9, 60)]
    assert lower == [None, (0.002, {"incidents": 30})]  # a lower rate that would switch alerts off is not proposed
    assert proposals(SETTINGS, Suggestions(), advise([part([9.0])], SETTINGS, 100), False) == []  # few are left


def test_the_feature_behind_most_incidents_is_named_first_and_a_lower_rate_last() -> None:
    labels = np.zeros(6000, np.int8)
    labels[::500] = 1  # in each fifth incident, all of which are about c
    every_hour = DAY // 24 + 1000  # so that those of b, two of five, are not all at the same hour
    made = [part([9.0] * 60, "cabba", labels=labels, every_ms=every_hour)]
    settings = SETTINGS.model_copy(update={"time": "at", "exclude": ("x",), "alert_rate": 0.01})
    words = proposals(settings, Suggestions(rising={"b"}), advise(made, settings, 2.5, has_labels=True), True)
    assert words[:2] == [
        "24.0 incidents a day are left, and 1.25 were asked for.",
        "Of 48 incidents without a labelled fault, 24 are about a* first.",
    ]
    assert "exclude x,a*" in " ".join(words).replace("'", "")
    assert "counters" not in " ".join(words)
    assert "at 0.002 about 30 of 60 incidents are left, 6 of 12 labelled faults are found" in " ".join(words)
    assert words[-1].endswith("--alert-rate 0.002")


def test_a_feature_that_is_odd_in_the_same_hour_of_each_day_gets_a_window_that_the_program_reads(
    tmp_path: Path,
) -> None:
    settings = SETTINGS.model_copy(update={"time": "at", "timezone": "Europe/Berlin", "incidents_per_day": 0.5})
    words = proposals(settings, Suggestions(rising={"a*"}), advise([part([9.0] * 20)], settings, 20), False)
    begin = words.index("  maintenance:")
    (tmp_path / "found.yaml").write_text("\n".join(line[2:] for line in words[begin : begin + 6]))
    read = parse(ReplaySettings, ["--file", "month.csv", "--config", str(tmp_path / "found.yaml")])
    (window,) = read.maintenance
    assert (window.from_.hour, window.length, window.repeat) == (1, timedelta(hours=1), "FREQ=DAILY")  # 0 in UTC
    assert any("--counters 'a*'" in line for line in words)


def test_every_command_that_is_printed_runs_and_keeps_the_flags(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--exclude", "temp", "--key", "machine", "--time", "at", "--incidents-per-day", "0.1"]
    given += ["--suggest", str(folder / "found file.yaml"), "--grid", "alert_rate=0.02", "--no-scores-only"]
    assert run(folder, *given) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  fomo-stream ")]
    assert [re.findall("--exclude temp,[a-z]+|--alert-rate [0-9.]+", line) for line in lines] == [
        ["--exclude temp,flow"],
        ["--alert-rate 0.002"],
    ]
    assert all(f"# {line}" in (folder / "found file.yaml").read_text() for line in lines)
    before = parse(ReplaySettings, [*inputs(folder), *given]).model_dump()
    for line in lines:
        _, command, *argv = shlex.split(line)
        again = parse(ReplaySettings, argv).model_dump()
        assert {name for name in before if again[name] != before[name]} <= {"exclude", "alert_rate"}
    assert main([command, *argv]) == 0
