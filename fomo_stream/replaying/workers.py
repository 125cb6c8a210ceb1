"""Replays all partitions: several at the same time in processes of their own, or one after the other in this one.

A worker is a fresh interpreter that gets its jobs through a socket and answers through it. It ends when the socket
closes, so that nothing is left behind if this process is killed. Ctrl-C reaches this process only, which then asks the
workers to stop.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING

from fomo_stream.errors import FomoError, RecordError
from fomo_stream.logs import configure_logging, kv, place_of
from fomo_stream.threads import limit_threads, limited_threads

if TYPE_CHECKING:
    from fomo_stream.replaying.one_partition import Job, Outcome
    from fomo_stream.replaying.progress import Progress
    from fomo_stream.replaying.sources.base import IsStopped
    from fomo_stream.settings.replay import ReplaySettings

log = logging.getLogger(__name__)

LOOK_S = 0.2  # between two looks at whether the replay is to stop
END_S = 5.0  # for a worker to end
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from fomo_stream.replaying.workers import work; work(int(sys.argv[1]))"
)


@dataclass(frozen=True)
class _Setup:
    """What a worker has to know before its first job."""

    log_level: str
    threads: int


@dataclass(frozen=True)
class _Failure:
    """The job failed."""

    kind: type[FomoError]
    message: str


_STOP, _READY = "stop", "ready"


def replay_partitions(
    jobs: Sequence[Job], settings: ReplaySettings, n_workers: int, is_stopped: IsStopped, progress: Progress
) -> list[Outcome]:
    """The outcome of each job, in their order, with at most n_workers processes. Raises FomoError.

    settings: of the plan. Each process computes with `settings.threads` threads, as results may depend on that.
    """
    if min(n_workers, len(jobs)) > 1:
        with _Workers(min(n_workers, len(jobs)), settings) as workers:
            found = workers.replay(jobs, is_stopped, progress)
    else:
        from fomo_stream.replaying.one_partition import Detectors, replay_one

        with limited_threads(settings.threads):
            detectors = Detectors(jobs[0].plan) if jobs else None
            found = [replay_one(job, detectors, is_stopped, progress.advance) for job in jobs if detectors is not None]
    order = {job.partition: at for at, job in enumerate(jobs)}
    return sorted(found, key=lambda outcome: order[outcome.partition])


@contextmanager
def stopped_by_ctrl_c(progress: Progress) -> Iterator[Callable[[], bool]]:
    """Within it, the first Ctrl-C only makes the function that it gives return True; the second ends everything."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event.is_set
        return

    def stop(_number: int, _frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()
        progress.stopping()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield event.is_set
    finally:
        signal.signal(signal.SIGINT, before)


# -- the processes -------------------------------------------------------------------------------------------------


class _Worker:
    """A process that replays one partition at a time."""

    def __init__(self, settings: ReplaySettings) -> None:
        self.job: Job | None = None
        self.connection, other = Pipe()
        with closing(other):
            number = other.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(number), json.dumps(sys.path)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
            )
        self.send(_Setup(settings.log_level, settings.threads))

    def send(self, message: object) -> None:
        """Send a message; if the process has ended, reading its answer will say so."""
        with suppress(OSError):
            self.connection.send(message)

    def end(self) -> int:
        """Wait until it has ended, or kill it; returns its exit code."""
        self.connection.close()  # then it ends by itself
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self.connection.close()

    def died(self) -> FomoError:
        """The error that it has ended by itself."""
        code = self.end()
        where = "a worker process" if self.job is None else f"the process that replayed partition {self.job.partition}"
        if code < 0:
            name = signal.Signals(-code).name
            return FomoError(f"{where} was ended by {name}, perhaps for want of memory; use fewer --jobs")
        return FomoError(f"{where} has ended with exit code {code}")


class _Workers:
    """Several workers; at the end of the block all have ended."""

    def __init__(self, count: int, settings: ReplaySettings) -> None:
        self._workers: list[_Worker] = []
        self._count, self._settings = count, settings

    def __enter__(self) -> _Workers:
        try:
            for _ in range(self._count):
                self._workers.append(_Worker(self._settings))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    def replay(self, jobs: Sequence[Job], is_stopped: IsStopped, progress: Progress) -> list[Outcome]:
        """The outcomes, as they come."""
        waiting, is_told = deque(jobs), False
        outcomes: list[Outcome] = []
        of = {worker.connection: worker for worker in self._workers}
        while len(outcomes) < len(jobs):
            if is_stopped() and not is_told:
                is_told = True
                for worker in self._workers:
                    worker.send(_STOP)
            for connection in wait(list(of), LOOK_S):
                assert isinstance(connection, Connection)
                worker = of[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    raise worker.died() from None
                if isinstance(message, _Failure):
                    raise message.kind(message.message)
                if isinstance(message, int):  # so many more records are done
                    progress.advance(message)
                else:
                    outcomes += [message] if message != _READY else []
                    worker.job = waiting.popleft() if waiting else None
                    if worker.job is not None:
                        worker.send(worker.job)
        return outcomes


def work(descriptor: int) -> None:
    """The main function of a worker. descriptor: of its socket."""
    connection = Connection(descriptor)
    setup = connection.recv()
    configure_logging(setup.log_level)
    limit_threads(setup.threads)
    from fomo_stream.replaying.one_partition import Detectors, replay_one

    jobs: SimpleQueue[Job] = SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(connection, jobs, stop), daemon=True).start()
    connection.send(_READY)
    detectors: Detectors | None = None
    while True:
        job = jobs.get()
        try:
            detectors = detectors or Detectors(job.plan)
            answer: object = replay_one(job, detectors, stop.is_set, connection.send)
        except FomoError as error:
            answer = _failure(error)
        except Exception as error:  # a defect of this program
            log.debug(kv("replay_failed", partition=job.partition), exc_info=True)  # it may hold contents of a record
            where = f"{type(error).__name__} at {place_of(error)}"
            answer = _Failure(FomoError, f"partition {job.partition}: {where}; --log-level debug shows more")
        connection.send(answer)


def _failure(error: FomoError) -> _Failure:
    """The error to raise in the other process, with the same message and exit code."""
    return _Failure(FomoError if isinstance(error, RecordError) else type(error), str(error))


def _listen(connection: Connection, jobs: SimpleQueue[Job], stop: threading.Event) -> None:
    """Take messages, until the process that sends them is gone."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if message == _STOP:
            stop.set()
        else:
            jobs.put(message)
