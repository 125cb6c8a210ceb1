"""Threads: as many as requested, at most one per processor, and results do not depend on their number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fomo_stream import Detector, DetectorConfig, FoMoDetector, ZeroShotDetector, load_model, threads
from fomo_stream.cli.main import main
from fomo_stream.errors import ConfigError
from fomo_stream.threads import limited_threads, usable_processors

# As on a machine with three processors. Idle threads must not spin: that takes a minute while other tests run.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"}


# --- how many threads may run


@pytest.mark.parametrize("texts", [["50000 100000\n"], ["50000\n", "100000\n"]])
def test_a_quota_of_the_cgroup_limits_the_processors(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = usable_processors()
    names = [str(tmp_path / str(i)) for i in range(len(texts))]
    monkeypatch.setattr(threads, "CGROUPS", (("/nowhere",), tuple(names)))
    for name, text in zip(names, texts, strict=True):
        Path(name).write_text(text)
    assert usable_processors() == 1
    Path(names[0]).write_text(texts[0].replace("50000", "max" if len(texts) == 1 else "-1"))
    assert usable_processors() >= without


def test_more_threads_than_processors_are_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for wanted in (1000, 1):
        with limited_threads(wanted):
            assert torch.get_num_threads() == min(wanted, usable_processors())
    (line,) = caplog.messages
    assert f"threads_limited wanted=1000 threads={usable_processors()}" in line


# --- how many threads run

COMPUTE = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from fomo_stream.threads import limit_threads
limit_threads(1)
import numpy as np
import scipy.linalg
import torch
from fomo_stream.model.checkpoint import load_model
from fomo_stream.model.scoring import encode_rows, logits_of
rows = np.random.default_rng(0).normal(size=(1500, 60))
model = load_model("default", "cpu")
def compute():  # as in the service: a second thread builds contexts
    logits_of(model, encode_rows(model, rows), rows)
    scipy.linalg.solve(rows[:60] @ rows.T @ rows @ rows[:60].T, rows[:60])
    return torch.get_num_threads()
with ThreadPoolExecutor(1) as executor:
    beside = executor.submit(compute)
    print(compute(), beside.result(), len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list threads")
def test_one_thread_scores_one_builds_and_no_other_is_there() -> None:
    command = [sys.executable, "-c", COMPUTE]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.stdout.split() == ["1", "1", "2"], done.stderr


@pytest.mark.usefixtures("restored_logging")
def test_commands_compute_with_one_thread_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And limit the threads before anything else is done."""
    asked = []

    def limit(requested: int) -> None:
        asked.append(requested)
        raise ConfigError("the end of this test")

    monkeypatch.setattr("fomo_stream.cli.main.limit_threads", limit)
    for command in (["run", "--topic", "t"], ["demo"], ["score", str(tmp_path / "nowhere.csv")]):
        for more in ([], ["--threads", "2"]):
            assert main([*command, *more]) == ConfigError.exit_code
    assert asked == [1, 2] * 3


def test_as_a_library_the_package_leaves_threads_alone() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        rows = np.random.default_rng(0).normal(size=(60, 3))
        ZeroShotDetector().fit(rows).predict(rows)
        detector = FoMoDetector(context_size=50, min_context=20)
        detector.learn_many(rows)
        detector.score_many(rows)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- results


def test_scores_are_the_same_to_the_last_bit_with_one_thread_and_two() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 10)) @ rng.normal(size=(10, 10))
    rows[rng.random(1000) < 0.02] *= 5
    found = []
    for wanted in (1, 2):
        with limited_threads(wanted):
            found.append(Detector(load_model("default", "cpu"), 10, DetectorConfig(context_size=500)).process(rows))
    np.testing.assert_array_equal(found[0].logit, found[1].logit)
    assert np.isfinite(found[0].logit[-500:]).all()
