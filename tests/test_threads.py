"""Threads: as many as requested, at most one per processor, and results do not depend on their number."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fomo_stream import Detector, DetectorConfig, FoMoDetector, ZeroShotDetector, load_model, threads
from fomo_stream.threads import cpu_quota, limited_threads, usable_processors

# As on a machine with three processors. Idle threads must not spin: that takes a minute while other tests run.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"}


def python(code: str, *arguments: str) -> str:
    """The output of a program that runs in its own Python process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- how many threads may run


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": ""}, math.inf),
        ({"proc/self/cgroup": "nonsense\n0::/\n", "sys/fs/cgroup/cpu.max": "lots of it\n"}, math.inf),
        # version 2: a container that sees its own group as the top, a service, and a group within a limited one
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/other/cpu.max": "1000 100000\n",
            },
            3.0,
        ),
        # version 1, in a container
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/0123\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "70000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "20000\n",
            },
            3.5,
        ),
    ],
)
def test_the_quota_is_the_least_of_all_groups_that_hold_the_process(
    tmp_path: Path, files: dict[str, str], quota: float
) -> None:
    write(tmp_path, files)
    assert cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(("share", "usable"), [("150000 100000", 2), ("1000 100000", 1), ("99900000 100000", 4)])
def test_processors_are_as_many_as_the_quota_keeps_busy_of_those_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str, usable: int
) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": share})
    monkeypatch.setattr(threads, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert usable_processors() == usable


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
    print(compute(), beside.result(), torch.get_num_interop_threads(), len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list threads")
def test_one_thread_scores_one_builds_and_no_other_is_there() -> None:
    assert python(COMPUTE).split() == ["1", "1", "1", "2"]


def test_commands_compute_with_one_thread_by_default(tmp_path: Path) -> None:
    file = tmp_path / "empty.csv"
    file.write_text("a\n")
    code = (
        "import sys, torch; from fomo_stream.cli.main import main\n"
        "for command in (['run', '--topic', 't'], ['demo'], ['score', sys.argv[1]]):\n"
        "    for more in ([], ['--threads', '2']):\n"
        "        assert main([*command, '--model', 'none', *more]) == 4\n"  # threads are limited before it is loaded
        "        print(torch.get_num_threads())"
    )
    output = [line for line in python(code, str(file)).splitlines() if line.isdigit()]
    assert output == ["1", str(min(2, usable_processors()))] * 3


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
