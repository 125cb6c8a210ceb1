"""The display of a training run: lines, and the loss curve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from training_runs import TINY

from pretrain.commands.train import RunDisplay
from pretrain.training.run_files import read_log
from pretrain.training.train import train


@pytest.mark.usefixtures("no_pictures")
def test_every_log_line_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(TINY, tmp_path, "cpu", observer=RunDisplay())
    lines, log = capsys.readouterr().err.splitlines(), read_log(tmp_path / "log.jsonl")
    assert [line.split()[:2] for line in lines] == [
        [f"step={x['step']}/{TINY.steps}", f"loss={x['loss']:.4f}"] for x in log
    ]


def test_the_loss_curve_is_drawn_again_after_a_resumed_run(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu", observer=RunDisplay())
    first = (tmp_path / "loss.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    train(replace(TINY, steps=12), tmp_path, "cpu", observer=RunDisplay())
    assert (tmp_path / "loss.png").read_bytes() != first
