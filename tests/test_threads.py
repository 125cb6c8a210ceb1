"""Threads: as many as requested, at most one per processor, and results do not depend on their number."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fomo_stream import threads
from fomo_stream.threads import cpu_quota, usable_processors

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
        # version 1: the same, under one of its two names; and a container in which the path is the one outside
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n1:memory:/m\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/m/cpu.cfs_quota_us": "1\n",
                "sys/fs/cgroup/memory/m/cpu.cfs_period_us": "1000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/0123\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "70000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "20000\n",
            },
            3.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
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


def test_more_threads_than_processors_are_a_line_in_the_log() -> None:
    code = (
        "import logging, sys; logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "from fomo_stream.threads import limit_threads, usable_processors\n"
        "assert limit_threads(1000) == usable_processors()\n"
        "assert limit_threads(1) == 1"
    )
    lines = python(code).splitlines()
    assert len(lines) == 1
    assert f"threads_limited wanted=1000 threads={usable_processors()}" in lines[0]


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


@pytest.mark.parametrize("arguments", [("run", "--topic", "t"), ("demo",), ("score",)], ids=lambda words: words[0])
def test_commands_compute_with_one_thread_by_default(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "empty.csv"
    file.write_text("a\n")
    code = (
        "import sys; from fomo_stream.cli.main import main\n"
        "assert main(sys.argv[1:]) == 4\n"  # there is no such model, but threads are limited before it is loaded
        "import torch; print(torch.get_num_threads())"
    )
    more = [str(file)] if arguments == ("score",) else []
    assert python(code, *arguments, "--model", "none", *more).split()[-1] == "1"
    if usable_processors() > 1:
        assert python(code, *arguments, "--model", "none", "--threads", "2", *more).split()[-1] == "2"


def test_as_a_library_the_package_leaves_threads_alone() -> None:
    code = (
        "import numpy as np, torch; torch.set_num_threads(3)\n"
        "from fomo_stream import FoMoDetector, ZeroShotDetector\n"
        "rows = np.random.default_rng(0).normal(size=(60, 3))\n"
        "ZeroShotDetector().fit(rows).predict(rows)\n"
        "detector = FoMoDetector(context_size=50, min_context=20)\n"
        "detector.learn_many(rows); detector.score_many(rows)\n"
        "print(torch.get_num_threads())"
    )
    assert python(code) == "3"


# --- results


def test_scores_are_the_same_to_the_last_bit_with_one_thread_and_two(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 10)) @ rng.normal(size=(10, 10))
    rows[rng.random(3000) < 0.02] *= 5
    file = tmp_path / "rows.csv"
    np.savetxt(file, rows, delimiter=",", header=",".join(f"c{i}" for i in range(10)), comments="")
    command = [sys.executable, "-m", "fomo_stream.cli", "score", str(file), "--context-size", "1000", "--threads"]
    one, two = (subprocess.run([*command, count], capture_output=True, check=True).stdout for count in "12")
    assert one.count(b"\n") == 3001
    assert one == two
