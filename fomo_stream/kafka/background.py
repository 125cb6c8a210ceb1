"""Work in the background: neither the main loop nor the end of the process waits for it."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from fomo_stream.logs import make_thread

MAX_REORDERED_TASKS = 64  # consecutive tasks that are ordered; fewer than that overtake a task


class BackgroundExecutor(Executor):
    """Run one task at a time in a thread: those with the highest `needed_at` (see `detector.view_set`) first.

    It is the number of the record that needs the task's context, among those of the same partition or key. Where more
    records have come, the next ones come sooner: so the contexts of a partition come before those of its keys. Tasks of
    any other kind run first. Only MAX_REORDERED_TASKS consecutive tasks are ordered, so that none waits for long.
    done: called in the thread after each task, with its seconds.

    >>> with BackgroundExecutor("sums") as thread:
    ...     thread.submit(sum, [1, 2]).result()
    3
    """

    def __init__(self, name: str, done: Callable[[float], None] = lambda seconds: None) -> None:
        self._done = done
        self._queue: queue.PriorityQueue[tuple[float, float, int, Callable[[], None]]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._is_over = False
        self._thread = make_thread(self._run, name)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` in the thread. Raises RuntimeError after `shutdown`."""
        if self._is_over:
            raise RuntimeError("the thread was shut down")
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                began = time.perf_counter()
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # for the caller of `result`
                    future.set_exception(error)
                self._done(time.perf_counter() - began)

        number = next(self._count)
        self._queue.put((number // MAX_REORDERED_TASKS, -getattr(fn, "needed_at", float("inf")), number, work))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further tasks. Those that wait are run, or forgotten with cancel_futures."""
        self._is_over = True
        self._queue.put((-1 if cancel_futures else float("inf"), 0, next(self._count), self._stop))
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while True:
            *_, work = self._queue.get()
            if work == self._stop:
                return
            work()
            del work  # so that its result can be freed while the thread waits

    def _stop(self) -> None: ...
