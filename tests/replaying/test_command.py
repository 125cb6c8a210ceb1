"""`fomo-stream replay` of a file: the same bytes twice, files that can be written, an end by Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from memory_source import CtrlC, cheap_checkpoint

from fomo_stream.errors import ConfigError
from fomo_stream.replaying import command, results
from fomo_stream.replaying.command import replay_settings, run_replay
from fomo_stream.replaying.results import ReplayResult
from fomo_stream.settings.replay import ReplaySettings

RECORDS = 3000


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


def test_a_file_is_replayed_without_a_kafka_client(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['confluent_kafka'] = None; "  # importing it would fail
        "from fomo_stream.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    flags = ["--file", str(folder / "rows.jsonl"), "--model", str(folder / "cheap.safetensors"), "--views", "fast"]
    output = ["--report", str(tmp_path / "report.html"), "--scores-file", str(tmp_path / "scores.jsonl")]
    done = subprocess.run([sys.executable, "-c", program, "replay", *flags, *output], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == RECORDS
    assert "Report: " in done.stdout


def test_ctrl_c_gives_the_report_so_far(folder: Path) -> None:
    so_far = replay_settings(settings_of(folder), CtrlC(1)).report
    assert not so_far["source"]["is_complete"]
    assert 0 < so_far["source"]["records"] < RECORDS


@pytest.mark.parametrize("flag", ["report", "json_", "scores_file"])
def test_a_file_that_cannot_be_written_is_named_before_the_replay(folder: Path, flag: str) -> None:
    option = flag.strip("_").replace("_", "-")
    with pytest.raises(ConfigError, match=f"--{option} .* there is no folder"):
        run_replay(settings_of(folder, **{flag: str(folder / "nowhere" / "file")}))
    with pytest.raises(ConfigError, match=f"--{option} .* is a folder"):
        run_replay(settings_of(folder, **{flag: str(folder)}))


@pytest.mark.parametrize("flag", ["report", "json_", "scores_file"])
def test_inputs_are_not_overwritten(folder: Path, tmp_path: Path, flag: str) -> None:
    before = (folder / "rows.jsonl").read_bytes()
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"offset": 0, "outlier": 1}')
    model, own = folder / "cheap.safetensors", {"label": None, "labels_file": labels}
    for path in (folder / "rows.jsonl", labels, model):
        with pytest.raises(ConfigError, match=f"--{flag.strip('_').replace('_', '-')} .* would overwrite"):
            run_replay(settings_of(folder, **own, **{flag: str(path)}))
    assert (folder / "rows.jsonl").read_bytes() == before


@pytest.mark.parametrize(("where", "name"), [(command, "make_report"), (results, "write_whole")])
def test_ctrl_c_while_the_report_is_made_does_not_lose_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    does = getattr(where, name)

    def interrupted(*arguments: Any) -> Any:
        if not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return does(*arguments)

    pressed: list[bool] = []
    monkeypatch.setattr(where, name, interrupted)
    report, html = tmp_path / "report.json", tmp_path / "report.html"
    assert run_replay(settings_of(folder, json_=report, report=str(html))) == 0
    assert pressed
    assert ReplayResult.load(report).report["source"]["is_complete"]
    assert html.stat().st_size > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_names_that_have_no_bytes_are_reported(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"rows\xff.jsonl")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()[:300]]
    file.write_text("".join(json.dumps({"x": row["x"], "b\ud800": row["y"], "bad": row["bad"]}) + "\n" for row in rows))
    report, html = tmp_path / os.fsdecode(b"report\xff.json"), tmp_path / "report.html"
    assert run_replay(settings_of(folder, file=file, json_=report, report=str(html))) == 0
    loaded = ReplayResult.load(report).report
    assert loaded["source"]["features"] == ["b\ud800", "x"]
    assert loaded["source"]["name"] == file.name
    assert "b\\ud800" in html.read_text()
