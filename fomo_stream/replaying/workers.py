"""Replays all partitions: several at the same time in worker processes, or one after the other in this process.

Ctrl-C reaches this process only, which then asks the workers to stop after their present block.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any

from fomo_stream.errors import FomoError, RecordError
from fomo_stream.logs import configure_logging, kv, raised_at
from fomo_stream.replaying.blocks import IsStopped
from fomo_stream.replaying.partition_run import Job, PartitionOutcome, PlanDetectors, replay_partition
from fomo_stream.replaying.progress import Progress
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.threads import limit_threads, limited_threads

log = logging.getLogger(__name__)

STOP_POLL_S = 0.2  # between two checks whether the replay has to stop


def replay_partitions(
    jobs: Sequence[Job], settings: ReplaySettings, n_workers: int, is_stopped: IsStopped, progress: Progress
) -> list[PartitionOutcome]:
    """Return the outcome of each job, in their order, with at most n_workers processes. Raises FomoError.

    settings: of the plan. Each process uses `settings.threads` threads, because results may depend on their number.
    """
    if min(n_workers, len(jobs)) > 1:
        return _in_processes(jobs, settings, min(n_workers, len(jobs)), is_stopped, progress)
    with limited_threads(settings.threads):
        detectors = PlanDetectors(jobs[0].plan)
        return [replay_partition(job, detectors, is_stopped, progress.advance) for job in jobs]


@contextmanager
def stopped_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Give a function that returns True after the first Ctrl-C within the context; the second one ends everything."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event.is_set
        return

    def stop(_number: int, _frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield event.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _in_processes(
    jobs: Sequence[Job], settings: ReplaySettings, count: int, is_stopped: IsStopped, progress: Progress
) -> list[PartitionOutcome]:
    spawned = multiprocessing.get_context("spawn")
    stop, done = spawned.Event(), spawned.SimpleQueue()
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, spawned, _begin_worker, (settings.log_level, settings.threads, stop, done))
    workers: set[Any] = set()
    try:
        with _without_ctrl_c():
            futures = [pool.submit(_replay_job, job) for job in jobs]
            workers = set(multiprocessing.active_children()) - others
        waiting = set(futures)
        while waiting:
            finished, waiting = wait(waiting, STOP_POLL_S)
            if is_stopped():
                stop.set()
            while not done.empty():
                progress.advance(done.get())
            list(map(Future.result, finished))  # raises the error of a job
            if any(worker.exitcode is not None for worker in workers):
                # The pool itself may not notice the end of a worker that it has just started.
                raise BrokenProcessPool("a worker has ended")
        pool.shutdown()
        return [future.result() for future in futures]
    except BaseException as error:
        for worker in workers:
            worker.kill()  # its result is not needed
        pool.shutdown(cancel_futures=True)
        futures, waiting, finished = [], set(), set()  # else the error has this frame, and this frame the error
        if isinstance(error, BrokenProcessPool):
            raise FomoError(
                "a process that replayed a partition has ended by itself, possibly because memory ran out",
                'use fewer --jobs; a script of your own needs `if __name__ == "__main__":`',
            ) from None
        raise


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Start processes that never get Ctrl-C within the context; this process gets it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """The state that a worker process keeps from one job to the next."""

    stop: Any  # an event
    done: Any  # a queue of numbers of records
    detectors: PlanDetectors | None = None


def _begin_worker(log_level: str, threads: int, stop: Any, done: Any) -> None:
    """Prepare a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    configure_logging(log_level)
    limit_threads(threads)
    _Worker.stop, _Worker.done = stop, done


def _end_with_parent() -> None:
    """End this process when the process that has started it ends."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _replay_job(job: Job) -> PartitionOutcome:
    """Replay a partition in a worker process. Raises FomoError, in one sentence."""
    try:
        _Worker.detectors = _Worker.detectors or PlanDetectors(job.plan)
        return replay_partition(job, _Worker.detectors, _Worker.stop.is_set, _Worker.done.put)
    except RecordError as error:
        raise FomoError(str(error)) from None
    except FomoError:
        raise
    except Exception as error:  # a defect of this program
        log.debug(kv("replay_failed", partition=job.partition), exc_info=True)  # it may hold contents of a record
        where = f"{type(error).__name__} at {raised_at(error)}"
        raise FomoError(f"partition {job.partition}: {where}; --log-level debug shows more") from None
