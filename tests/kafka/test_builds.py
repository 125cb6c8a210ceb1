"""The thread that builds generations."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.kafka.builds import TOGETHER, BuildThread


class Task:
    """As a `Build`."""

    def __init__(self, make: Callable[[], object], needed_at: int) -> None:
        self.make, self.needed_at = make, needed_at

    def __call__(self) -> object:
        return self.make()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), max_size=20))
def test_the_task_that_is_needed_first_runs_first(numbers: list[int]) -> None:
    done: list[tuple[int, int]] = []
    with BuildThread() as thread:
        begin = threading.Event()
        thread.submit(begin.wait)
        for i, number in enumerate(numbers):
            thread.submit(Task(partial(done.append, (number, i)), number))
        begin.set()
    assert done == sorted((number, i) for i, number in enumerate(numbers))


@settings(max_examples=10)
@given(st.lists(st.integers(0, 5), min_size=TOGETHER, max_size=4 * TOGETHER))
def test_a_task_is_not_overtaken_for_ever(numbers: list[int]) -> None:
    done: list[int] = []
    with BuildThread() as thread:
        begin = threading.Event()
        thread.submit(begin.wait)
        for i, number in enumerate(numbers):
            thread.submit(Task(partial(done.append, i), number))
        begin.set()
    assert sorted(done) == list(range(len(numbers)))
    assert all(place < i + TOGETHER for place, i in enumerate(done))


def test_an_error_reaches_the_one_who_asks() -> None:
    with BuildThread() as thread:
        failed, done = thread.submit(int, "x"), thread.submit(int, "7")
        with pytest.raises(ValueError, match="invalid literal"):
            failed.result()
        assert done.result() == 7


def test_after_a_shutdown_nothing_runs() -> None:
    thread, begin, has_begun = BuildThread(), threading.Event(), threading.Event()

    def run() -> bool:
        has_begun.set()
        return begin.wait()

    running = thread.submit(run)
    has_begun.wait()
    waiting, cancelled = thread.submit(Task(lambda: 1, 9)), thread.submit(Task(lambda: 1, 8))
    cancelled.cancel()
    thread.shutdown(wait=False, cancel_futures=True)
    begin.set()
    assert running.result()
    thread.shutdown()
    assert not waiting.done()
    with pytest.raises(CancelledError):
        cancelled.result()
    with pytest.raises(RuntimeError, match="shut down"):
        thread.submit(int)


def test_a_thread_that_waits_keeps_nothing_of_its_last_task() -> None:
    class Generation: ...

    with BuildThread() as thread:
        kept = weakref.ref(thread.submit(Generation).result())
        ended = threading.Event()
        weakref.finalize(thread.submit(Generation).result(), ended.set)
        assert ended.wait(60)
    assert kept() is None
