"""The display of a training run: lines, a progress bar, and the loss curve."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from training_runs import DATA_FLAGS, TINY

from pretrain.commands.progress import RunDisplay
from pretrain.training.run_files import read_log
from pretrain.training.train import train


def on_a_terminal(*flags: str) -> tuple[int, str]:
    """Exit code and output of `train` with a terminal as its stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pretrain", "train", *flags],
        stderr=theirs, cwd=Path(__file__).parents[3], env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # Linux reports the end of a terminal as an error
        pass
    os.close(ours)
    return process.wait(), seen.decode()


@pytest.mark.usefixtures("no_pictures")
def test_without_a_terminal_every_log_line_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(TINY, tmp_path, "cpu", observer=RunDisplay())
    lines, log = capsys.readouterr().err.splitlines(), read_log(tmp_path / "log.jsonl")
    assert [line.split()[:2] for line in lines] == [[f"step={x['step']}", f"loss={x['loss']:.4f}"] for x in log]


def test_a_terminal_gets_a_bar_that_ends_with_the_last_step_and_the_last_loss(tmp_path: Path) -> None:
    flags = ["--preset", "tiny", "--steps", "6", *DATA_FLAGS, "--set", "log_every=2", "--out", str(tmp_path)]
    code, seen = on_a_terminal(*flags)
    assert code == 0
    last = read_log(tmp_path / "log.jsonl")[-1]
    assert "step 6/6" in seen
    assert f"loss {last['loss']:.4f}  AUROC {last['auroc']:.4f}" in seen
    assert "step=" not in seen


def test_the_loss_curve_is_drawn_again_after_a_resumed_run(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu", observer=RunDisplay())
    first = (tmp_path / "loss.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    train(replace(TINY, steps=12), tmp_path, "cpu", observer=RunDisplay())
    assert (tmp_path / "loss.png").read_bytes() != first
