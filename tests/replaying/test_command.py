"""`fomo-stream replay` of a file: the same bytes twice, files that can be written, and another replay's folder."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from replays import CtrlC, cheap_checkpoint

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.command import replay_settings, run_replay
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
    return ReplaySettings(file=folder / "rows.jsonl", model=str(folder / "cheap.safetensors"), **{**flags, **changes})


def timeless(path: Path) -> bytes:
    report = json.loads(path.read_bytes())
    assert report.pop("timing")["seconds"] > 0
    return json.dumps(report).encode()


@pytest.mark.parametrize("stop_after", [None, 1])
def test_a_replay_gives_the_same_bytes_again(
    folder: Path, stop_after: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = folder / "first.json", folder / f"again-{stop_after}.json"
    resume = folder / f"resumed-{stop_after}"
    assert run_replay(settings_of(folder, json=first, report=str(folder / "report.html"))) == 0
    if stop_after is not None:
        so_far = replay_settings(settings_of(folder, resume=resume), CtrlC(stop_after)).report
        assert not so_far["source"]["is_complete"]
        assert 0 < so_far["source"]["records"] < RECORDS
    assert run_replay(settings_of(folder, json=again, resume=resume)) == 0
    assert timeless(first) == timeless(again)
    assert "report.html" in capsys.readouterr().out
    assert not list(folder.glob("*.partial"))


def test_the_folder_of_another_replay_is_refused(folder: Path, tmp_path: Path) -> None:
    replay_settings(settings_of(folder, resume=tmp_path), CtrlC(1))
    with pytest.raises(ConfigError, match=r"alert_rate 0\.01, now it is 0\.1"):
        replay_settings(settings_of(folder, resume=tmp_path, alert_rate=0.1))
    with pytest.raises(ConfigError, match="scores_file not given, now it is"):
        replay_settings(settings_of(folder, resume=tmp_path, scores_file=tmp_path / "scores.jsonl"))


@pytest.mark.parametrize("flag", ["report", "json", "scores_file"])
def test_a_file_that_cannot_be_written_is_named_before_the_replay(folder: Path, flag: str) -> None:
    option = flag.replace("_", "-")
    with pytest.raises(ConfigError, match=f"--{option} .* there is no folder"):
        run_replay(settings_of(folder, **{flag: str(folder / "nowhere" / "file")}))
    with pytest.raises(ConfigError, match=f"--{option} .* is a folder"):
        run_replay(settings_of(folder, **{flag: str(folder)}))
