"""Restores partitions in a thread of its own, so that the service's loop does not wait for the broker."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.errors import BrokerError, DamagedStateError
from fomo_stream.kafka.state.position import Restored, unusable_state_error
from fomo_stream.kafka.state.reader import NotYetError, StateReader
from fomo_stream.kafka.topics.watch import TopicWatch
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

RETRY_S = 0.1
STOP_S = 2.0  # to wait for the thread; if it still waits for the broker, it is abandoned


class Restorer:
    """Restores partitions one after the other.

    wanted: whether the task is still assigned. check: called before the first restore, until it succeeds; a BrokerError
    is tried again, any other FomoError is raised.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        watch: TopicWatch,
        wanted: Callable[[Any], bool],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._check: Callable[[], None] | None = check
        self.waits: dict[int, str] = {}  # by partition: why it could not be restored yet
        self.retries = 0  # attempts that have to be repeated
        self._state = StateReader(settings, watch, lambda: self._stopped)
        self._queue: deque[tuple[Any, float]] = deque()  # requested tasks, and the earliest time for each
        self._results: SimpleQueue[tuple[Any, Restored | Exception]] = SimpleQueue()
        self._changed = threading.Condition()
        self._stopped = False
        self._throttle = Throttle()
        self._thread = threading.Thread(target=self._run, name="fomo-restore", daemon=True)
        self._thread.start()

    def request(self, task: Any, delay: float = 0.0) -> None:
        """Ask for the state of the partition `task.number`, after `delay` seconds."""
        with self._changed:
            self._queue.append((task, time.monotonic() + delay))
            self._changed.notify()

    def take_results(self) -> list[tuple[Any, Restored]]:
        """The tasks that were restored since the last call. Raises the error of a task that cannot be restored."""
        results: list[tuple[Any, Restored]] = []
        while True:
            try:
                task, restored = self._results.get_nowait()
            except Empty:
                return results
            if not self._wanted(task):
                continue
            if isinstance(restored, Exception):
                raise restored
            results.append((task, restored))

    def stop(self) -> None:
        """End the thread, which closes its client."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            if not self._wanted(task):
                continue
            try:
                restored: Restored | Exception = self._restore(task)
            except NotYetError as reason:
                self._retry(task, str(reason))
                continue
            except KafkaException as error:
                self._retry(task, error.args[0].str())
                if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                    self._state.refresh()
                continue
            except DamagedStateError as error:
                restored = unusable_state_error(self._settings.state_topic, task.number, error)
            except Exception as error:  # the service must see it: without this thread nothing is restored
                restored = error
            self.waits.pop(task.number, None)
            self._results.put((task, restored))
        self._state.close()

    def _restore(self, task: Any) -> Restored:
        """Raises NotYetError, KafkaException, and what `check` raises except BrokerError."""
        if self._check is not None:
            try:
                self._check()
            except BrokerError as error:
                raise NotYetError(str(error)) from None
            self._check = None
        return self._state.read(task)

    def _retry(self, task: Any, reason: str) -> None:
        """Try again later, and log why."""
        self.waits[task.number] = reason
        self.retries += 1
        if self._throttle.allow(f"{task.number} {reason}") is not None:
            log.info(kv("not_restored_yet", topic=self._settings.topic, partition=task.number, reason=reason))
        if self._wanted(task):
            self.request(task, RETRY_S)

    def _next(self) -> Any:
        """The first task that is due; None: the thread must end."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                for i, (task, due) in enumerate(self._queue):
                    if due <= now:
                        del self._queue[i]
                        return task
                self._changed.wait(min((due - now for _, due in self._queue), default=None))
        return None
