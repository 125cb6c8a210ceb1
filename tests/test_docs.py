"""The documentation: its snippets run, its links and names exist, and its tables are complete."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import helm_python
import numpy as np
import pytest
from documents import FLAGS, README, ROOT, Block, Document, helm_values, not_run, table_rows
from flag_tables import SETTINGS, with_tables

import fomo_stream.kafka.outputs as letters
from fomo_stream.cli.main import main
from fomo_stream.cli.parser import build_parser, parse, parse_flags
from fomo_stream.detector.results import Cause, Reason, Results, Scores, Status
from fomo_stream.errors import REASONS
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.partition.rules import Rules
from fomo_stream.records.explanation import reasons_of
from fomo_stream.records.result import results_of
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.topic_flags import OutputFlags
from fomo_stream.settings.topic_selection import TopicCatalog
from pretrain import __main__ as pretrain

sys.path.append(str(ROOT / "benchmarks"))

from suite import command as benchmarks

PAGES = [README, *map(Document.read, sorted((ROOT / "docs").glob("*.md")))]
GUIDES = [
    Document.read(ROOT / name)
    for name in (
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "benchmarks/README.md",
        "deploy/README.md",
        "deploy/runbooks.md",
    )
]
EVERY = [*PAGES, *GUIDES]
LANGUAGES = {"python", "sh", "json", "mermaid", "text", "toml", "yaml"}
TUTORIAL = "docs/tutorial.md"  # tests/integration/test_tutorial.py runs it from the first command to the last


def blocks(language: str, pages: list[Document] = PAGES) -> list[Block]:
    return [block for page in pages for block in page.blocks if block.language == language]


def by_name(pages: list[Document], slow: Sequence[str] = ()) -> pytest.MarkDecorator:
    """A test of each page; slow: names of those whose tests are."""
    marks = [[pytest.mark.slow] if page.name in slow else [] for page in pages]
    return pytest.mark.parametrize(
        "page", [pytest.param(page, id=page.name, marks=some) for page, some in zip(pages, marks, strict=True)]
    )


def with_code(language: str, pages: list[Document]) -> list[Document]:
    """Those with a block of this language, but the tutorial, whose test runs all of it."""
    return [page for page in pages if page.name != TUTORIAL and any(b.language == language for b in page.blocks)]


# --- snippets


@by_name(with_code("python", PAGES), slow=["docs/python.md"])
def test_python_snippets_run_each_by_itself(page: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in page.blocks:
        if block.language == "python" and "bootstrap.servers" not in block.code:  # these run against a real broker
            exec(compile(block.code, str(block), "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_configuration_files_are_read_without_a_warning(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "plant.yaml"
    path.write_text(block.code)
    catalog = TopicCatalog(ServiceSettings, {"config": str(path)})
    catalog.check()
    settings = catalog.settings(catalog.selection.names[0])
    rules = Rules.of(settings)
    features = ("flow", "pressure", "rpm", "A_temp")
    assert len(rules.rules) == (4 if "rules:" in block.code else 0)
    assert list(rules.warnings(Schema(features), has_keys=True)) == []


@by_name(EVERY)
def test_every_block_is_of_a_kind_that_is_checked_and_json_is_json(page: Document) -> None:
    assert {block.language for block in page.blocks} <= LANGUAGES
    for block in blocks("json", [page]):
        assert isinstance(json.loads(block.code), dict), block
    assert page.text.count("\n```") == 2 * len(page.blocks), "a fence that does not end"


# Commands of pretrain run for real, with these flags added where they would take minutes. Of the longest commands, only
# the flags are parsed.
SHORTER = {
    "train": "--steps 1 --batch 1 --context-min 20 --context-max 50 --queries 16 --device cpu",
    "evaluate": "--seeds 1 --datasets-per-row 1 --context 50 --device cpu",
}
LONGEST = ("ablate", "--stress", "smoke")
LONG_PAGES = ("docs/pretraining.md", "docs/evaluation.md")  # commands of pretrain, all of which run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small versions of the files that snippets name, and the program that they call."""
    folder = tmp_path
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(260, 3))
    for name in ("readings.csv", "today.csv", "last-week.csv", "month.csv"):
        np.savetxt(folder / name, rows, delimiter=",", header="flow,pressure,rpm", comments="")
    of_pumps = "".join(f"{1_790_812_800 + 2000 * i},p{i % 3},{row[0]},{row[1]}\n" for i, row in enumerate(rows))
    for name, times in (("pumps.csv", 1), ("good-week.csv", 2)):
        (folder / name).write_text("time,pump,flow,pressure\n" + times * of_pumps)
    of_week = "".join(f"p{i % 3},{row[0]},{row[1]},{row[2]},{row[0]}\n" for i, row in enumerate(rows))
    (folder / "week.csv").write_text("pump,flow,pressure,temperature,vibration\n" + of_week)
    lines = [json.dumps(dict(zip(("flow", "pressure", "rpm"), row, strict=True))) for row in rows.tolist()]
    (folder / "readings.jsonl").write_text("\n".join(lines) + "\n")
    for page in PAGES:  # a configuration file is the one of its page
        for block in page.blocks:
            if block.language == "yaml" and "rules:" in block.code:
                (folder / "plant.yaml").write_text(block.code)
    (folder / "fomo.toml").write_text(blocks("toml", GUIDES)[0].code)
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (folder / "tables").mkdir()
    for table in ("table", *(f"tables/{name}" for name in "abcde")):
        np.savez(folder / table, X=rows[:100], y=(np.arange(100) >= 80).astype(int))
    (folder / "bin").mkdir()
    program = folder / "bin" / "fomo-stream"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fomo_stream.cli "$@"\n')
    program.chmod(0o755)
    return folder


def commands(block: Block) -> list[str]:
    """The commands of a block: lines, continued ones joined, and those with a text below them."""
    found = re.findall(r"^[^\n]*<<'END'\n.*?^END$|^[^\n]+$", block.code.replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    return [line for line in found if not line.startswith("#")]


def in_shell(line: str, folder: Path) -> None:
    """Run a line in `folder` for real, as bash does."""
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-euo", "pipefail", "-c", line]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_fomo_stream(line: str, words: list[str], folder: Path) -> None:
    command = words[1] if len(words) > 1 and words[1] in SETTINGS else "run"
    if command == "score" and ">" in words:
        in_shell(line, folder)
    elif command == "score":
        assert main(words[1:]) == 0
    elif command != "demo":  # a topic is needed: only flags are checked
        given = [word for word in words[1:] if word != command]
        cls = SETTINGS[command]
        if issubclass(cls, OutputFlags):  # they take several topics
            TopicCatalog(cls, parse_flags(cls, given)).check()
        else:
            parse(cls, given)


def check_python(_line: str, words: list[str], _folder: Path) -> None:
    arguments = words[3:]
    if words[:3] == ["python", "-m", "benchmarks"]:
        benchmarks.parser().parse_args(arguments)
    elif words[1].startswith(("tests/", "benchmarks/")):  # too long: only that it is there, and has these flags
        source = (ROOT / words[1]).read_text()
        assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--"))
    elif set(LONGEST) & set(arguments):
        pretrain.parser().parse_args(arguments)
    else:
        assert pretrain.main(arguments + SHORTER.get(arguments[0], "").split()) == 0


def check_make(_line: str, words: list[str], _folder: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for word in words[1:] if "=" not in word} <= targets


def check_pip(_line: str, words: list[str], _folder: Path) -> None:
    """Nothing is installed; tests of the wheel do."""
    if "--index-url" in words:  # of PyTorch: an index that the image's build takes
        assert words[1:5] == ["install", "-c", "constraints.txt", "torch"]
        assert words[6] in (ROOT / "deploy" / "Dockerfile").read_text()
        return
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[1:-1] in (["install", "-c", "constraints.txt"], ["install"])
    found = re.fullmatch(r"(\.|fomo-stream)(?:\[([\w,]+)\])?", words[-1])
    assert found is not None
    assert found[1] == ("." if "-c" in words else "fomo-stream")
    assert set((found[2] or "").split(",")) <= {"", *extras}


def check_helm(line: str, _words: list[str], folder: Path) -> None:
    """Makes the objects of `helm install` and `upgrade`, as Helm does, and lets it look for faults."""
    kept = folder / "helm.json"  # the values of the last command
    values = helm_values(line, json.loads(kept.read_text()) if kept.exists() else {}, lambda name: folder / name)
    kept.write_text(json.dumps(values))
    assert helm_python.lint(folder / "deploy/chart", values, strict=True)["errors"] == []
    assert helm_python.Chart.load(folder / "deploy/chart").render(values, name="fomo", namespace="scoring")


@functools.cache
def help_of_kubectl(*words: str) -> str:
    kubectl = Path(sys.executable).parent / "kubectl"
    return subprocess.run([kubectl, *words], capture_output=True, text=True, check=True).stdout


def check_kubectl(_line: str, words: list[str], _folder: Path) -> None:
    """Command and flags of kubectl exist, and so does what it runs in a pod."""
    end = next((i for i, word in enumerate(words) if word in ("|", ">", "&")), len(words))
    inside = words.index("--") if "--" in words else end
    own = words[1:inside]
    command = next(word for i, word in enumerate(own) if not word.startswith("-") and own[i - 1] != "--namespace")
    known = help_of_kubectl(command, "--help") + help_of_kubectl("options")
    for word in own:
        if word.startswith("--"):
            assert re.search(rf"(^|\s){re.escape(word.partition('=')[0])}=", known), word
    if inside < end:
        program, name, *flags = words[inside + 1 : end]
        assert program == "fomo-stream"
        assert set(flags) <= flags_of(build_parser(SETTINGS[name]))


def check_pipe(line: str, words: list[str], folder: Path) -> None:
    """`cat FILE | fomo-stream score - ...` without another process: a test of the command has a real pipe."""
    if words[2:6] == ["|", "fomo-stream", "score", "-"]:
        assert main(["score", str(folder / words[1]), *words[6:]]) == 0
    else:
        in_shell(line, folder)


CHECKS: dict[str, Callable[[str, list[str], Path], None]] = {
    "fomo-stream": check_fomo_stream,
    "python": check_python,
    "make": check_make,
    "pip": check_pip,
    "tar": lambda line, _words, folder: in_shell(line, folder),
    "cat": check_pipe,
    "helm": check_helm,
    "kubectl": check_kubectl,
}


@by_name(with_code("sh", EVERY), slow=LONG_PAGES)
@pytest.mark.usefixtures("restored_logging")
def test_shell_snippets_of_a_page_work_in_order(page: Document, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("fomo_stream.cli.score.load_ready", shared_model)  # to load takes longer than to score
    for line in (line for block in page.blocks if block.language == "sh" for line in commands(block)):
        if not not_run(line):
            words = shlex.split(line.replace("$(hostname)", "host").replace("/etc/fomo", str(folder)), comments=True)
            CHECKS[words[0]](line, words, folder)


def test_the_helm_commands_of_the_tutorial_make_a_chart_without_a_fault(folder: Path) -> None:
    for line in (line for block in blocks("sh", [Document.read(ROOT / TUTORIAL)]) for line in commands(block)):
        if line.startswith("cat >"):
            in_shell(line, folder)
        elif line.startswith("helm ") and not not_run(line):
            check_helm(line, shlex.split(line), folder)


# --- links and names


@by_name(EVERY)
def test_links_and_paths_in_backticks_lead_to_files_and_headings(page: Document) -> None:
    known = {(ROOT / other.name).resolve(): other for other in EVERY}
    for link in page.links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page.name).parent / path).resolve() if path else (ROOT / page.name).resolve()
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in known[target].anchors, f"{page.name}: {link}"
    for span in page.spans:
        is_path = re.fullmatch(r"(fomo_stream|pretrain|tests|benchmarks|deploy|docs|\.ci)/[\w./-]+", span)
        if is_path and "NAME" not in span:
            assert (ROOT / span).exists(), f"{page.name}: {span}"


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings}


@by_name(EVERY)
def test_flags_in_the_text_exist(page: Document) -> None:
    """Flags of other programs are in code blocks only."""
    known = {"--kafka", "--no"}.union(*(flags_of(build_parser(cls)) for cls in SETTINGS.values()))
    subparsers: Any = next(action for action in pretrain.parser()._actions if action.dest == "command")
    known = known.union(*map(flags_of, subparsers.choices.values()), flags_of(benchmarks.parser()))
    for span in page.spans:
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", span)
        assert set(named) <= known, f"{page.name}: {span}"


# --- complete


def test_the_tables_of_flags_are_those_of_the_settings() -> None:
    assert with_tables(FLAGS.text) == FLAGS.text, "run python tests/flag_tables.py"
    assert set(re.findall(r"flags of (\w+)", FLAGS.text)) == set(SETTINGS)


def test_the_table_of_rooms_is_the_one_that_is_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"\w+\.(\w+)", layer) for layer in contracts[0]["layers"] if layer != "pretrain"]
    page = Document.read(ROOT / "docs" / "architecture.md")
    rooms = table_rows(page.section("Rooms").prose)
    assert [re.findall(r"`(\w+)`", cells[0]) for cells in rooms] == layers
    inside = ", ".join(f"`{room}`" for room in contracts[1]["layers"])
    assert inside in page.text
    everything = {path.stem for path in (ROOT / "fomo_stream").iterdir() if path.suffix == ".py" or path.is_dir()}
    checked = {room for layer in layers for room in layer}
    assert checked == everything - {"__init__", "__pycache__", "weights"}
    for contract, excepted in ((contracts[3], {"admin", "kafka", "notify", "demo"}), (contracts[4], {"settings"})):
        assert {name.split(".")[-1] for name in contract["source_modules"]} == checked - excepted | {"pretrain"}


# --- what the service writes


def test_the_readme_shows_what_the_tutorial_prints() -> None:
    """Another test runs the tutorial and compares what it prints."""
    tutorial = Document.read(ROOT / TUTORIAL)
    shown = [block.code for block in README.blocks if block.language == "text"]
    assert len(shown) == 1
    assert shown[0] in [block.code for block in tutorial.blocks if block.language == "text"]
    assert README.text.count("\n") <= 120


def test_every_field_of_the_result_is_documented() -> None:
    scores = Scores.of(np.zeros((1, 1)), np.ones(1, np.int64), np.ones(1))
    scored = Results.of(
        scores, np.zeros(1), np.zeros(1), np.ones(1), np.zeros(1, bool), np.zeros(1, np.int8), Status.OK
    )
    explained = scored.explained([(Reason(0, Cause.VALUE, 1.0, 9.0, 3.0, 2.0, 4.0, np.nan),)])
    always, fields = (
        set(results_of(one, "model", Schema(("flow",)), [{}], [0], [("sensors", 0, 0, None)])[0])
        for one in (scored, explained)
    )
    section = FLAGS.section("The result")
    (example,) = (json.loads(block.code)["fomo"] for block in section.blocks if block.language == "json")
    assert set(example) == fields | {"incident", "surprise"}  # these are added to outliers that somebody is told of
    named = {name for cells in table_rows(section.prose) for name in re.findall(r"`(\w+)`", cells[0])}
    assert named == fields | {"incident", "surprise", "muted", "suppressed", "rule", "reference_logit"}
    assert [block.code for block in README.blocks if block.language == "json"] == [
        block.code for block in section.blocks if block.language == "json"
    ]
    assert fields - always == {"reasons", "explanation"}


def test_every_field_and_cause_of_a_reason_is_documented() -> None:
    record, schema = {"flow": 9, "state": "idle"}, Schema(("flow", "state"), frozenset({"state"}))
    flow = Reason(0, Cause.VALUE, 1.0, 9.0, 3.0, 2.0, 4.0, np.nan, 1)
    idle = flow._replace(feature=1, cause=Cause.CATEGORY, frequency=0.1)
    fields = {name for one in reasons_of([flow, idle], schema, record) for name in one}
    named = [name for cells in table_rows(FLAGS.section("Reasons").prose) for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(named) == sorted([*fields, *Cause])


def test_every_reason_and_header_of_dead_letters_is_documented() -> None:
    rows = [name for cells in table_rows(FLAGS.section("Dead letters").prose) for name in cells[0].split(", ")]
    headers = {name for name in rows if name.startswith("`fomo-")}
    assert [name for name in rows if name not in headers] == [f"`{reason}`" for reason in REASONS]
    assert headers == {f"`{name}`" for name in (*letters.ADDED, letters.TRUNCATED_FROM, letters.ATTEMPTS)}


def test_events_of_the_log_are_documented() -> None:
    """All events of level warning and above, and no event that does not exist."""
    source = "\n".join(path.read_text() for path in sorted((ROOT / "fomo_stream").rglob("*.py")))
    exist = set(re.findall(r'\b(?:kv\(|notes\.append\(\()\s*"(\w+)"', source))
    severe = set(re.findall(r'\blog\.(?:warning|error|exception)\(\s*kv\(\s*"(\w+)"', source))
    section = FLAGS.section("Health and logs")
    documented = {name for cells in table_rows(section.prose) for name in re.findall(r"`(\w+)`", cells[1])}
    assert severe <= documented <= exist
    assert len(severe) > 20
