"""Partitions in processes of their own: the same outcomes, an end by Ctrl-C, and errors in one sentence."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.synchronize import SemLock
from pathlib import Path

import orjson
import pytest
from memory_source import (
    CtrlC,
    MemorySource,
    cheap_checkpoint,
    make_plan,
    outcomes_of,
    quick_settings,
    report_of,
)

from fomo_stream.errors import FomoError, TopicError
from fomo_stream.replaying.blocks import Sample
from fomo_stream.replaying.plan import Plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    settings = quick_settings(model=cheap_checkpoint(tmp_path), scores_file=tmp_path / "scores.jsonl")
    return make_plan(settings, MemorySource(150, (0, 1)))


@pytest.fixture(autouse=True)
def _no_processes_are_left() -> Iterator[None]:
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


@dataclass(frozen=True)
class Failing(MemorySource):
    """Partition 1 cannot be read."""

    error: Exception | None = None  # None: its process is killed

    def read(self, partition: int, is_stopped: Callable[[], bool]) -> Iterator[Sample]:
        if partition == 1 and self.error is not None:
            raise self.error
        if partition == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(partition, is_stopped)


def test_processes_give_the_same_as_one_process(plan: Plan) -> None:
    found = []
    for n_workers in (1, 2):
        outcomes = outcomes_of(plan, n_workers=n_workers)
        assert [one.partition for one in outcomes] == [0, 1]
        report = report_of(plan, outcomes)
        assert plan.settings.scores_file is not None
        found.append((orjson.dumps(report), plan.settings.scores_file.read_bytes()))
    assert found[0] == found[1]


@pytest.mark.slow
def test_ctrl_c_gives_the_report_so_far(plan: Plan) -> None:
    endless = replace(plan, source=MemorySource(10**9, (0, 1)))
    report = report_of(endless, outcomes_of(endless, CtrlC(2), n_workers=2))
    assert not report["source"]["is_complete"]
    assert report["source"]["records"] > 0


@pytest.mark.slow
def test_a_second_ctrl_c_ends_everything_at_once(plan: Plan) -> None:
    endless = replace(plan, source=MemorySource(10**9, (0, 1)))

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        outcomes_of(endless, CtrlC(1, twice), n_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (TopicError("there is no topic t"), TopicError, "^there is no topic t$"),
        (None, FomoError, "^a process that replayed a partition has ended by itself, .*; use fewer --jobs"),
        (ValueError("4711"), FomoError, r"^partition 1: ValueError at test_workers\.py:\d+; --log-level debug shows"),
    ],
)
def test_a_failing_worker_ends_the_replay_with_one_sentence(
    plan: Plan, error: Exception | None, kind: type[FomoError], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    failing = replace(plan, source=Failing(10**9, (0, 1), error=error))
    gc.collect()
    with pytest.raises(kind, match=text) as caught:
        outcomes_of(failing, n_workers=2)
    assert caught.value.exit_code == kind.exit_code
    del caught
    left = [one for one in gc.get_objects() if isinstance(one, SemLock)]
    assert not left, "the end of the program would tell of them"
    assert {"Traceback", "4711"} & set(capfd.readouterr().err.split()) == set()
