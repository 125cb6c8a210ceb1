"""Stopping and resuming runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from training_runs import DATA_FLAGS, TINY, assert_same, weights, without_times

from fomo_stream.errors import CheckpointError, ConfigError
from pretrain.__main__ import main
from pretrain.training.run_files import RunFiles, read_log
from pretrain.training.train import Observer, train

pytestmark = pytest.mark.usefixtures("no_pictures")


class CtrlC(Observer):
    """Sends the signal of Ctrl-C when a step is logged."""

    def __init__(self, step: int) -> None:
        self.step = step

    def logged(self, line: Mapping[str, float]) -> None:
        if line["step"] == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("model", ["tiny", "fusion", "fusion-router"])
@pytest.mark.parametrize("period", [0, 3])
def test_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, model: str, period: int) -> None:
    config = replace(TINY, model=model, period=period, min_auc=0.55)
    whole = train(config, tmp_path / "whole", "cpu")
    train(config, tmp_path / "parts", "cpu", observer=CtrlC(4))
    assert read_log(tmp_path / "parts" / "log.jsonl")[-1]["step"] == 4
    parts = train(config, tmp_path / "parts", "cpu")
    assert_same(weights(whole), weights(parts))
    assert without_times(tmp_path / "whole" / "log.jsonl") == without_times(tmp_path / "parts" / "log.jsonl")
    one, two = (load_file(tmp_path / d / "state.safetensors") for d in ("whole", "parts"))
    assert_same(one, two)


def training_under_way(flags: list[str]) -> subprocess.Popen[str]:
    """A training run in another process, which has logged its first steps."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pretrain", "train", *flags],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step="):
            break
    return process


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """After SIGKILL the files are complete, and the resumed run ends with the same weights as one without a stop."""
    config = replace(TINY, steps=20)
    flags = ["--preset", "tiny", "--steps", "20", *DATA_FLAGS, "--out", str(tmp_path / "killed"), "--set", "warmup=2"]
    flags += ["--set", "save_every=0.001", "--set", "log_every=2", "--set", "lr=0.001"]
    process = training_under_way(flags)
    assert process.stderr is not None
    process.kill()
    process.wait()
    process.stderr.close()
    assert 1 <= RunFiles(tmp_path / "killed").weights()[1] < 20
    assert main(["train", *flags]) == 0
    whole = train(config, tmp_path / "whole", "cpu")
    found, step = RunFiles(tmp_path / "killed").weights()
    assert step == 20
    assert_same(found, weights(whole))


def test_sigterm_saves_and_ends_cleanly(tmp_path: Path) -> None:
    process = training_under_way(
        ["--preset", "tiny", "--steps", "1000000", *DATA_FLAGS, "--out", str(tmp_path), "--set", "log_every=1"]
    )
    assert process.stderr is not None
    process.terminate()
    process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    _, step = RunFiles(tmp_path).weights()
    assert step == read_log(tmp_path / "log.jsonl")[-1]["step"] >= 1
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def test_a_call_may_stop_before_the_run_is_over(tmp_path: Path) -> None:
    """The learning rate does not change: the parts together give the weights of a run without a stop."""
    config = replace(TINY, steps=16, save_every=1e9)
    whole = train(config, tmp_path / "whole", "cpu")
    calls = 0
    while not calls or RunFiles(tmp_path / "pieces").weights()[1] < 16:
        pieces = train(config, tmp_path / "pieces", "cpu", stop_after=0.003)
        calls += 1
    assert calls > 1
    assert_same(weights(whole), weights(pieces))


def test_minutes_end_a_run(tmp_path: Path) -> None:
    config = replace(TINY, steps=10**9, minutes=0.005)
    began = time.monotonic()
    train(config, tmp_path, "cpu")
    assert time.monotonic() - began < 30
    assert 0 < RunFiles(tmp_path).weights()[1] < 10**9


def test_no_step_goes_unlogged_though_a_run_ends_between_two_log_lines(tmp_path: Path) -> None:
    config = replace(TINY, steps=10**9, minutes=0.003, log_every=10**6)
    train(config, tmp_path, "cpu")
    lines = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [RunFiles(tmp_path).weights()[1]]
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
