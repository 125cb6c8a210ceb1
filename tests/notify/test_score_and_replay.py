"""The same messages about files: `score --notify`, and `replay --notify --dry-run`, which sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from receivers import Receiver, Reply, receiving

from fomo_stream.cli.main import main

FAULT = 400
QUICK = ["--min-context=50", "--device=cpu", "--time=time"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(600, 3))
    rows[FAULT : FAULT + 3] += 30.0
    path = tmp_path / "plant.csv"
    lines = [f"{1_760_000_000 + 10 * n},{','.join(map(str, row))}" for n, row in enumerate(rows.tolist())]
    path.write_text("\n".join(["time,flow,pressure,rpm", *lines]))
    return path


def titles(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("CRITICAL: outlier", "ENDED: outlier"))]


def test_score_prints_the_messages_on_standard_error_or_sends_them(
    file: Path,
    receiver: Receiver,
    model_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    restored_logging: None,
) -> None:
    command = ["score", str(file), f"--model={model_path}", "-o", str(tmp_path / "out.csv"), *QUICK]
    assert main([*command, "--notify", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert titles(printed.err)[-2:] == [f"CRITICAL: outlier in {file}", f"ENDED: outlier in {file}"]
    scores = (tmp_path / "out.csv").read_bytes()

    receiver.replies.append(Reply(503))
    assert main([*command, "--notify", "--webhook", receiver.url]) == 0
    messages = [request.json for request in receiver.requests[1:]]
    assert [one["title"] for one in messages if "CRITICAL" in one["title"] or "ENDED" in one["title"]][-2:] == titles(
        printed.err
    )[-2:]
    fault = next(one for one in messages if one["incident"] == str(FAULT + 2))
    assert (fault["kind"], fault["time"]) == ("opened", "2025-10-09T10:00:00Z")
    assert (tmp_path / "out.csv").read_bytes() == scores


def test_replay_prints_the_messages_of_the_past(
    file: Path,
    model_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    restored_logging: None,
) -> None:
    command = ["replay", "--file", str(file), f"--model={model_path}", "--report=none", *QUICK]
    assert main(command) == 0
    without = capsys.readouterr().out
    assert main([*command, "--notify", "--dry-run", "--template", "short"]) == 0
    printed = capsys.readouterr().out
    assert f"critical: {file.name}" in printed or f"critical: {file}" in printed
    assert titles(without) == []
    assert printed.index("ended: ") < printed.index("The file is replayed"), "before the summary"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["score", "FILE", "--notify"], "--notify needs a target"),
        (["score", "FILE", "--webhook", "http://host"], "add --notify"),
        (["score", "FILE", "--notify", "--dry-run", "--template", "shorn"], "did you mean short?"),
        (["replay", "--file", "FILE", "--notify"], "add --dry-run"),
        (["replay", "--file", "FILE", "--dry-run"], "add --notify"),
        (["replay", "--file", "FILE", "--notify", "--dry-run", "--template", "shorn"], "did you mean short?"),
    ],
)
def test_mistakes_are_named(
    command: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[str], restored_logging: None
) -> None:
    assert main([str(file) if word == "FILE" else word for word in command]) == 2
    assert words in capsys.readouterr().err


def test_targets_in_the_environment_are_for_those_that_tell(
    file: Path,
    model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    restored_logging: None,
) -> None:
    monkeypatch.setenv("FOMO_WEBHOOK", "http://127.0.0.1:1/nobody")
    assert main(["score", str(file), f"--model={model_path}", "-o", str(tmp_path / "out.csv"), *QUICK]) == 0
