"""The files of a run: log, kept weights, lowest loss; and the moving average of the weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn
from training_runs import TINY, assert_same

from fomo_stream.errors import CheckpointError
from fomo_stream.model.checkpoint import read_metadata
from pretrain.__main__ import main
from pretrain.training.run_files import RunFiles, mean_loss, read_log
from pretrain.training.state import State
from pretrain.training.train import train

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_config_file_is_readable_json(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu")
    assert json.loads((tmp_path / "config.json").read_text())["data"]["queries"] == 16


def test_a_log_line_cut_short_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    assert read_log(log) == [{"step": 1, "loss": 0.5}]
    assert read_log(tmp_path / "none.jsonl") == []


def test_lowest_loss_is_that_of_the_log(tmp_path: Path) -> None:
    """The best weights are those at the end of the interval with the lowest mean loss."""
    config = replace(TINY, model="fusion", lr=0.3, steps=20, best_every=4, keep_every=4, schedule="constant", ema=0.5)
    train(config, tmp_path, "cpu")
    log = read_log(tmp_path / "log.jsonl")
    means = {end: sum(line["loss"] for line in log if end - 4 < line["step"] <= end) / 2 for end in range(4, 21, 4)}
    best = min(means, key=lambda end: means[end])
    assert 4 < best < 20, "an example that tells nothing"
    found, step = RunFiles(tmp_path).lowest_loss()
    assert step == best
    assert_same(found, RunFiles(tmp_path).weights(best)[0])
    (tmp_path / "best.safetensors").unlink()  # then it is chosen among the kept ones
    found, step = RunFiles(tmp_path).lowest_loss()
    assert step == best
    target = tmp_path / "x.safetensors"
    assert main(["export", str(tmp_path), "--out", str(target), "--select", "lowest-loss"]) == 0
    assert read_metadata(target)["training"]["steps"] == best


def test_a_mean_loss_is_over_steps_however_a_run_was_cut() -> None:
    whole = [{"step": 10, "loss": 0.9}, {"step": 20, "loss": 0.5}, {"step": 30, "loss": float("nan")}]
    cut = [whole[0], {"step": 12, "loss": 0.1}, {"step": 20, "loss": 0.6}, whole[2]]
    for log in (whole, cut):
        assert mean_loss(log, 10, 30) == pytest.approx(0.5)
        assert mean_loss(log, 0, 20) == pytest.approx(0.7)
        assert mean_loss(log, 20, 30) is None


def test_without_kept_weights_there_is_no_lowest_loss(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu")
    with pytest.raises(CheckpointError, match="kept no weights"):
        RunFiles(tmp_path).lowest_loss()


def test_moving_average_follows_the_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    state = State.fresh(model)
    nn.init.ones_(model.weight)
    state.update_average(0.9)  # the first step: the initial weights must not dominate
    assert state.average["weight"].item() == pytest.approx(0.9)
    nn.init.zeros_(model.weight)
    state.update_average(0.0)
    nn.init.ones_(model.weight)
    state.step = 1000
    for _ in range(100):
        state.update_average(0.9)
    assert state.average["weight"].item() == pytest.approx(1 - 0.9**100)
    state.update_average(0.0)
    assert state.average["weight"].item() == 1.0
