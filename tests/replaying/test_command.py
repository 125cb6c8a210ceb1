"""`fomo-stream replay` of a file and `replay()` in Python: same bytes twice, an end by Ctrl-C, whole files."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from memory_source import CtrlC, cheap_checkpoint

from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.replaying import command
from fomo_stream.replaying.api import replay
from fomo_stream.replaying.assembly import make_report
from fomo_stream.replaying.command import replay_settings, run_replay
from fomo_stream.replaying.progress import Progress
from fomo_stream.replaying.replay_result import ReplayResult
from fomo_stream.replaying.report_files import check_outputs, write_whole
from fomo_stream.replaying.tables import InMemory
from fomo_stream.settings.replay import ReplaySettings

RECORDS = 1300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("command"), random.Random(0)
    with (folder / "rows.jsonl").open("w") as file:
        for _ in range(RECORDS):
            print(json.dumps({"x": rng.gauss(0, 1), "y": rng.gauss(5, 2), "bad": rng.random() < 0.02}), file=file)
    cheap_checkpoint(folder)
    return folder


def settings_of(folder: Path, **changes: Any) -> ReplaySettings:
    flags = {"min_context": 50, "context_size": 50, "views": "fast", "label": "bad", "report": "none"}
    inputs = {"file": folder / "rows.jsonl", "model": str(folder / "cheap.safetensors")}
    return ReplaySettings(**{**inputs, **flags, **changes})


def timeless(path: Path) -> bytes:
    report = json.loads(path.read_bytes())
    assert report.pop("timing")["seconds"] > 0
    return json.dumps(report).encode()


def test_a_replay_gives_the_same_bytes_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = folder / "first.json", folder / "again.json"
    assert run_replay(settings_of(folder, json_=first, report=str(folder / "report.html"))) == 0
    assert run_replay(settings_of(folder, json_=again)) == 0
    assert timeless(first) == timeless(again)
    assert "report.html" in capsys.readouterr().out
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("n", [40, 700])
def test_alerts_of_a_valid_range_need_no_score(
    folder: Path, tmp_path: Path, n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first records have none; in a short file no record has one."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()[:n]]
    for at in (5, 20, 35, *range(400, n, 100)):
        rows[at]["y"] = 99.0
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {name: tmp_path / name for name in ("report.json", "report.html", "found.yaml")}
    outputs = dict(zip(("json_", "report", "suggest"), map(str, made.values()), strict=True))
    changes = {"file": tmp_path / "rows.jsonl", "valid": ("y=-50:50",), "incidents_per_day": 0.1}
    assert run_replay(settings_of(folder, **changes, **outputs)) == 0
    assert all(path.stat().st_size for path in made.values())
    alerts = json.loads(made["report.json"].read_text())["alerts"]
    scores = [alert["score"] or 0.0 for alert in alerts]
    assert scores == sorted(scores, reverse=True)
    assert {alert["offset"] for alert in alerts if alert["score"] is None} == {5, 20, 35}
    said = " ".join(capsys.readouterr().out.split())
    assert ("none of them got a score. 3 alerts were given by a valid range." in said) == (n == 40)


def test_a_file_is_replayed_without_a_kafka_client(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['confluent_kafka'] = None; "  # importing it would fail
        "from fomo_stream.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    file, scores = tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    file.write_text("".join((folder / "rows.jsonl").read_text().splitlines(keepends=True)[:60]))
    flags = ["--file", str(file), "--model", str(folder / "cheap.safetensors"), "--views", "fast"]
    output = ["--report", str(tmp_path / "report.html"), "--scores-file", str(scores)]
    done = subprocess.run([sys.executable, "-c", program, "replay", *flags, *output], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(scores.read_text().splitlines()) == 60
    assert "Report: " in done.stdout


def test_a_range_of_the_records_is_a_reference_as_a_file_with_them(folder: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    rows = [{"day": f"2026-10-{1 + i // 100:02}", **row} for i, row in enumerate(rows)]
    for row in rows[:300]:
        row["day"] = "2026-11-01"  # the earliest record is a later one
    good, scores = tmp_path / "good.jsonl", tmp_path / "scores.jsonl"
    good.write_text("".join(json.dumps(row) + "\n" for row in rows[300:900]))
    pd.DataFrame(rows).to_parquet(tmp_path / "all.parquet")
    contents = []
    for reference in (good, "2026-10-04/2026-10-10", "first:6d"):
        file = tmp_path / "all.parquet"
        settings = settings_of(folder, file=file, time="day", reference=reference, scores_file=scores)
        assert run_replay(settings) == 0
        contents.append([json.loads(line)["fomo"] for line in scores.read_text().splitlines()])
    assert "reference_logit" in contents[0][0]
    assert contents[0] == contents[1] == contents[2]
    assert run_replay(settings.model_copy(update={"suggest": tmp_path / "found.yaml"})) == 0
    assert "\nreference: first:6d\n" in (tmp_path / "found.yaml").read_text()


def test_ctrl_c_gives_the_report_so_far(folder: Path) -> None:
    so_far: Any = replay_settings(settings_of(folder), CtrlC(1)).report
    assert not so_far["source"]["is_complete"]
    assert 0 < so_far["source"]["records"] < RECORDS
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_the_report_is_made_does_not_lose_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return make_report(*arguments)

    monkeypatch.setattr(command, "make_report", interrupted)
    report = tmp_path / "report.json"
    assert run_replay(settings_of(folder, json_=report)) == 0
    assert ReplayResult.load(report).is_complete


def test_names_that_have_no_bytes_are_reported(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"rows\xff.jsonl")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()[:300]]
    file.write_text("".join(json.dumps({"x": row["x"], "b\ud800": row["y"], "bad": row["bad"]}) + "\n" for row in rows))
    report, html = tmp_path / os.fsdecode(b"report\xff.json"), tmp_path / "report.html"
    assert run_replay(settings_of(folder, file=file, json_=report, report=str(html))) == 0
    loaded: Any = ReplayResult.load(report).report
    assert loaded["source"]["features"] == ["b\ud800", "x"]
    assert loaded["source"]["name"] == file.name
    assert "b\\ud800" in html.read_text()


# --- replay() ------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings and the data that a call asks the engine to replay; the engine has tests of its own."""
    found: dict[str, Any] = {}

    def note(settings: ReplaySettings, progress: Progress | None, data: InMemory | None) -> None:
        found.update(settings=settings, data=data, progress=progress)

    monkeypatch.setattr(command, "replay_settings", note, raising=False)
    return found


def test_keywords_are_the_flags(asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a\n1\n")
    grid = {"alert_rate": [0.01, 0.001], "views": ["fast", ("trimmed", "recent")]}
    replay(str(path), label="y", compare=["knn"], grid=grid, context_size=500, progress=True)
    made = asked["settings"]
    assert (made.file, made.label, made.compare, made.context_size) == (path, "y", ("knn",), 500)
    assert made.grid == ("alert_rate=0.01,0.001", "views=fast,trimmed+recent")
    assert made.report == "none"
    assert made.is_given("context_size")
    assert (asked["data"], type(asked["progress"])) == (None, Progress)
    monkeypatch.setenv("FOMO_TOPIC", "sensors")  # is not replayed where data is given
    replay([{"a": 1, "at": 5, "y": 1}], time="at", label="y")
    made = asked["settings"]
    assert (made.topic, made.time, made.label, asked["data"].table.count) == ("", "at", "y", 1)
    rates, names = np.array([0.01, 0.02]), pd.DataFrame(columns=["a", "b"]).columns
    end = np.datetime64("2026-01-02", "ns")
    replay(
        topic="t", from_=pd.Timestamp(2026, 1, 1), to=end, features=names, grid={"alert_rate": rates}, lags=np.int64(2)
    )
    made = asked["settings"]
    assert (made.from_, made.features, made.grid) == ("2026-01-01T00:00:00", ("a", "b"), ("alert_rate=0.01,0.02",))
    assert (made.to, made.lags) == ("2026-01-02T00:00:00.000", 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": "t", "contex_size": 5}, "replay() takes no contex_size; did you mean context_size?"),
        ({"topic": "t", "report": "x.html"}, "save() and save_report() of the result write it"),
        ({}, "name what to replay"),
        ({"data": np.zeros((2, 1)), "from_": "0"}, "--from needs --topic"),
        ({"data": "sensors"}, "there is no file sensors; to replay a topic, write topic='sensors'"),
        ({"data": np.zeros((2, 1)), "labels": [0, 1], "label": "column_1"}, "label= and labels= name different labels"),
        ({"data": __file__, "labels": [0, 1]}, "for a file use label= or labels_file="),
        ({"topic": "t", "labels": [0, 1]}, "labels= goes with data in memory"),
        ({"topic": "t", "reference": pd.DataFrame({"a": [1]})}, "reference= takes no table; write it to a file"),
    ],
)
def test_mistakes_are_explained_in_one_sentence(asked: dict[str, Any], arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(FomoError, match=rf"^[^\n]*{re.escape(words)}[^\n]*$"):
        replay(**arguments)
    assert not asked


def test_a_frame_gives_the_report_that_its_file_gives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 2)), columns=["a", "b"])
    frame.index = pd.date_range("2026-10-01", periods=len(frame), freq="s", name="at")
    outlier = rng.random(len(frame)) < 0.05
    frame[outlier] += rng.uniform(4.0, 40.0, size=(int(outlier.sum()), 1))
    path = tmp_path / "rows.csv"
    frame.assign(y=outlier.astype(int)).to_csv(path, date_format="%Y-%m-%dT%H:%M:%S")
    small: dict[str, Any] = {"context_size": 100, "min_context": 20, "views": "fast", "compare": "knn"}
    small |= {"alert_rate": 0.05, "grid": {"context_size": [50]}}
    of_frame, of_file = replay(frame, labels=outlier, **small), replay(path, time="at", label="y", **small)
    assert of_frame.metrics.index.tolist() == ["fomo-stream", "context_size=50", "knn"]
    assert of_frame.metrics["auroc"].min() > 0.8
    in_memory, in_file = cast(list[dict[str, Any]], [one.report for one in (of_frame, of_file)])
    for name in ("detectors", "windows", "timeline", "segments", "drift"):
        assert in_memory[name] == in_file[name]
    assert [one["source"]["kind"] for one in (in_memory, in_file)] == ["memory", "file"]
    timing = in_file["timing"]
    assert timing["seconds_per_record"] == {  # of all records, also those before a detector has a score
        name: pytest.approx(seconds / len(frame), rel=1e-4) for name, seconds in timing["detectors"].items()
    }
    assert of_file.metrics["seconds_per_record"].to_dict() == timing["seconds_per_record"]
    assert of_frame.alerts["offset"].tolist() == of_file.alerts["offset"].tolist()


# --- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "inputs", "complaint"),
    [
        ({"--json": "folder/a", "--report": "b"}, {"--file": "a"}, ""),
        ({"--json": "/dev/null", "--report": "/dev/null"}, {"--file": "/dev/null"}, ""),
        ({"--json": "link"}, {"--file": "a"}, "would overwrite --file"),
        ({"--json": "a", "--report": "a"}, {}, "would overwrite --report"),
        ({"--json": "folder"}, {}, "is a folder"),
        ({"--json": "absent/a"}, {}, "there is no folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, outputs: dict[str, str], inputs: dict[str, str], complaint: str
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder").mkdir()
    written, read = ({flag: tmp_path / name for flag, name in names.items()} for names in (outputs, inputs))
    with pytest.raises(ConfigError, match=f"^--json .*{complaint}") if complaint else nullcontext():
        check_outputs(written, read)


def test_no_input_is_overwritten(folder: Path) -> None:
    for flag in ("report", "json_", "scores_file"):
        with pytest.raises(ConfigError, match="would overwrite --file"):
            run_replay(settings_of(folder, **{flag: str(folder / "rows.jsonl")}))


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"

    def fails(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(ConfigError, match="No space left on device"):
        write_whole(path, b"newer")
    assert path.read_bytes() == b"new"
