"""The files of a run: stopping and resuming, the log, kept weights and their average."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training_runs import DATA_FLAGS, TINY, assert_same, weights, without_times

from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.model.checkpoint import read_metadata
from pretrain.__main__ import main
from pretrain.training.run_files import RunFiles, mean_loss, read_log
from pretrain.training.state import State
from pretrain.training.train import Observer, train

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.mark.parametrize(
    ("model", "period", "number", "moments"),
    [
        ("tiny", 0, signal.SIGINT, "bf16"),
        ("fusion", 3, signal.SIGTERM, "fp32"),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, model: str, period: int, number: signal.Signals, moments: str
) -> None:
    """And another seed gives others."""
    config = replace(TINY, model=model, period=period, min_auc=0.55, moments=moments)
    whole = train(config, tmp_path / "whole", "cpu")
    train(config, tmp_path / "parts", "cpu", observer=Stop(4, number))
    assert not list((tmp_path / "parts").glob("*.tmp"))
    assert read_log(tmp_path / "parts" / "log.jsonl")[-1]["step"] == 4
    parts = train(config, tmp_path / "parts", "cpu")
    assert_same(weights(whole), weights(parts))
    assert without_times(tmp_path / "whole" / "log.jsonl") == without_times(tmp_path / "parts" / "log.jsonl")
    one, two = (load_file(tmp_path / d / "state.safetensors") for d in ("whole", "parts"))
    assert_same(one, two)
    other = weights(train(replace(config, seed=1, steps=2), tmp_path / "other", "cpu"))
    assert any(not torch.equal(value, other[name]) for name, value in weights(whole).items())


def test_runs_of_some_minutes_join_to_one(tmp_path: Path) -> None:
    """With the paper's settings: the parts together give the files of a run without a stop."""
    paper = {"preset": "paper-20", "layers": 2, "routers": 4, "max_features": 5, "precision": "fp32", "steps": 8}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in paper.items()]
    flags += ["--set=width=16", "--set=feed_forward=16", "--set=raw_features=5", "--set=log_every=1"]
    flags += ["--set=best_every=4", "--set=warmup=2", "--set=period=0", *DATA_FLAGS]
    assert main(["train", *flags, "--out", str(tmp_path / "whole")]) == 0
    calls, pieces = 0, RunFiles(tmp_path / "pieces")
    while not calls or pieces.weights()[1] < 8:
        assert main(["train", *flags, "--stop-after", str(0.0001 * 2**calls), "--out", str(tmp_path / "pieces")]) == 0
        calls += 1
    assert calls > 1
    assert without_times(tmp_path / "whole" / "log.jsonl") == without_times(pieces.log)
    for name in ("state.safetensors", "best.safetensors"):
        one, two = (load_file(tmp_path / run / name) for run in ("whole", "pieces"))
        assert_same(one, two)


def test_a_run_of_the_paper_fits_in_64_mib(tmp_path: Path) -> None:
    """All files of a run with the best weights, at the size of the paper's model."""
    small = ["--set=data.reuse.unique=1", "--set=log_every=1", "--set=best_every=1", "--batch=1", "--queries=16"]
    small += ["--context-min=20", "--context-max=40", "--device=cpu", "--steps=2"]
    assert main(["train", "--preset", "paper-100", *small, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "best.safetensors").exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 60 * 2**20


def test_minutes_end_a_run_and_no_step_goes_unlogged_between_two_log_lines(tmp_path: Path) -> None:
    config = replace(TINY, steps=10**9, minutes=0.003, log_every=10**6)
    train(config, tmp_path, "cpu")
    lines = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [RunFiles(tmp_path).weights()[1]]
    assert 0 < lines[0]["step"] < 10**9
    train(replace(TINY, steps=5), tmp_path / "short", "cpu")
    assert [line["step"] for line in read_log(tmp_path / "short" / "log.jsonl")] == [2, 4, 5]


def test_a_run_directory_is_not_taken_over_by_other_settings(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu")
    with pytest.raises(ConfigError, match="another lr"):
        train(replace(TINY, lr=0.5), tmp_path, "cpu")
    longer = replace(TINY, steps=10)  # going on for longer is fine
    train(longer, tmp_path, "cpu")
    assert RunFiles(tmp_path).weights()[1] == 10


def test_log_lines_after_the_saved_state_are_removed_on_resuming(tmp_path: Path) -> None:
    """As after a crash between two saves: the steps are done and logged again."""
    train(replace(TINY, steps=4), tmp_path, "cpu")
    line = read_log(tmp_path / "log.jsonl")[-1]
    RunFiles(tmp_path).append_log({**line, "step": 6})
    train(TINY, tmp_path, "cpu")
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [2, 4, 6, 8]


def test_a_damaged_checkpoint_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu")
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot read"):
        train(TINY, tmp_path, "cpu")


def test_a_log_line_cut_short_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    assert read_log(log) == [{"step": 1, "loss": 0.5}]
    assert read_log(tmp_path / "none.jsonl") == []


def test_lowest_loss_is_that_of_the_log(tmp_path: Path) -> None:
    """The best weights are those at the end of the interval with the lowest mean loss."""
    config = replace(TINY, model="fusion", lr=0.3, steps=20, best_every=4, schedule="constant", ema=0.5)
    train(config, tmp_path, "cpu")
    log = read_log(tmp_path / "log.jsonl")
    means = {end: sum(line["loss"] for line in log if end - 4 < line["step"] <= end) / 2 for end in range(4, 21, 4)}
    best = min(means, key=lambda end: means[end])
    assert 4 < best < 20, "an example that tells nothing"
    found, step = RunFiles(tmp_path).lowest_loss()
    assert step == best
    assert_same(found, weights(train(replace(config, steps=best), tmp_path / "shorter", "cpu")))
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


def test_moving_average_follows_the_weights() -> None:
    model: Any = nn.Linear(1, 1, bias=False)
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


class Stop(Observer):
    """Sends a signal when a step is logged, like Ctrl-C."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number = step, number

    def logged(self, line: Mapping[str, float]) -> None:
        if line["step"] == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """After SIGKILL the files are complete, and the resumed run ends with the same weights as one without a stop."""
    flags = ["--preset", "tiny", "--steps", "20", *DATA_FLAGS, "--out", str(tmp_path / "killed"), "--set", "warmup=2"]
    flags += ["--set", "save_every=0.001", "--set", "log_every=2", "--set", "lr=0.001"]
    command, root = [sys.executable, "-m", "pretrain", "train", *flags], Path(__file__).parents[3]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("step="))
        process.kill()
    assert 1 <= RunFiles(tmp_path / "killed").weights()[1] < 20
    assert main(["train", *flags]) == 0
    whole = train(replace(TINY, steps=20), tmp_path / "whole", "cpu")
    found, step = RunFiles(tmp_path / "killed").weights()
    assert step == 20
    assert_same(found, weights(whole))
