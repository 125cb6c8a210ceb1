"""The store: what each partition knows, in the partition of the same number of a compacted topic.

A commit writes the entries that changed since the one before, in the same transaction as the scores. A partition that
comes to this instance is restored in this order: the group's committed offset, which waits for any transaction that may
change it; then how far the store's partition is committed; then everything up to there. So nothing of a transaction
that failed is ever read, and nothing of one that succeeded is missed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import BrokerError, DamagedStateError, StateError
from fomo_stream.kafka.clients import make_reader, session_timeout_ms
from fomo_stream.kafka.delivery.delivery import Output
from fomo_stream.kafka.feedback.effects import Effect
from fomo_stream.kafka.position import POSITION, Input, Position, Restored, unusable, where_to_go_on
from fomo_stream.kafka.topic_watch import TopicWatch
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

KEY_PREFIX = b"state/"
VERSION = b"\x01"  # first byte of every value
ASK_S = 0.3  # for one partition's committed offset, before the next partition has its turn
ANSWER_S = 5.0
STALLED_S = 5.0  # without a record of the store
HANGING_S = 15.0  # beyond the session timeout, after which the broker ends ours: a transaction that nobody will end
BEHIND_S = 10.0  # a state that is older than the group's offset for so long is so because somebody has set the offset
RETRY_S = 0.1
STOP_S = 2.0  # for the thread to end; a call that waits for the broker is left behind


def to_output(topic: str, number: int, name: str, value: bytes | None) -> Output:
    """The record that writes an entry of a partition, or with None deletes it."""
    return Output(topic, KEY_PREFIX + name.encode(), value if value is None else VERSION + value, [], number)


class Restorer:
    """Restores partitions one after the other, in a thread.

    wanted: whether one that was asked for still is; check: raises a FomoError if nothing may be restored at all, asked
    until it has once raised none.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        watch: TopicWatch,
        wanted: Callable[[Any], bool],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._wanted = wanted
        self._check: Callable[[], None] | None = check
        self.waits: dict[int, str] = {}  # by partition: why it could not be restored yet
        self._reader: Consumer = make_reader(settings)
        self._queue: deque[tuple[Any, float]] = deque()  # what was asked for, and not before when
        self._results: SimpleQueue[tuple[Any, Restored | Exception]] = SimpleQueue()
        self._changed = threading.Condition()
        self._stopped = False
        # by task: when its state was first found to be behind the group
        self._behind_since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._may_hold_labels = settings.delivery == "exactly-once" and settings.feedback is not None
        self._throttle = Throttle()
        self._thread = threading.Thread(target=self._run, name="fomo-restore", daemon=True)
        self._thread.start()

    def request(self, task: Any, delay: float = 0.0) -> None:
        """Ask for the state of the partition `task.number`, after `delay` seconds."""
        with self._changed:
            self._queue.append((task, time.monotonic() + delay))
            self._changed.notify()

    def take(self) -> list[tuple[Any, Restored]]:
        """What was restored since the last time. Raises what went wrong for good."""
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
            try:
                restored: Restored | Exception | None = self._restore(task) if self._wanted(task) else None
            except DamagedStateError as error:
                restored = unusable(self._settings.state_topic, task.number, error)
            except KafkaException as error:
                restored = None
                self._wait(task, error.args[0].str())
                if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                    self._refresh()
            except Exception as error:  # else nobody would hear of it, and nothing be restored any more
                restored = error
            if restored is not None:
                self.waits.pop(task.number, None)
                self._results.put((task, restored))
            elif self._wanted(task):
                self.request(task, RETRY_S)
        self._reader.close()

    def _wait(self, task: Any, reason: str) -> None:
        """Say why a partition cannot be restored yet."""
        self.waits[task.number] = reason
        if self._throttle.allow(f"{task.number} {reason}") is not None:
            log.info(kv("not_restored_yet", topic=self._settings.topic, partition=task.number, reason=reason))

    def _refresh(self) -> None:
        """Have the client learn of partitions that were added since it asked last."""
        for topic in (self._settings.topic, self._settings.state_topic, self._settings.feedback):
            try:
                if topic is not None:
                    self._reader.list_topics(topic, timeout=ANSWER_S)
            except KafkaException as error:
                log.debug(kv("partitions_unknown", topic=topic, reason=error.args[0].str()))

    def _next(self) -> Any:
        """The first of the queue that is due; None: it is time to end."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                for i, (task, due) in enumerate(self._queue):
                    if due <= now:
                        del self._queue[i]
                        return task
                self._changed.wait(min((due - now for _, due in self._queue), default=None))
        return None

    def _restore(self, task: Any) -> Restored | None:
        """Where and with what the partition goes on; None: that cannot be known yet."""
        began = time.monotonic()
        settings, number = self._settings, task.number
        if self._check is not None and not self._has_passed(task, self._check):
            return None
        seen = self._watch.look()  # the input may have been created again since the last look
        if settings.topic not in seen.partitions:
            self._wait(task, f"topic {settings.topic} does not exist")
            return None
        if number >= seen.partitions.get(settings.state_topic, 0):
            self._wait(task, f"topic {settings.state_topic} has no partition {number} yet")
            return None  # it grows with the input
        source, store = TopicPartition(settings.topic, number), TopicPartition(settings.state_topic, number)
        committed = self._committed([source])[0]
        low, high = self._reader.get_watermark_offsets(source, timeout=ANSWER_S)
        if self._may_hold_labels and self._watch.has_open_transaction(store):
            self._has_waited(task, store)
            return None  # a transaction with nothing but labels does not show in the input's offset
        entries, effects = self._read(store)
        if self._is_behind(entries, committed) and not self._has_waited(task, store):
            return None  # the last transaction may be committed, but not yet marked so in this partition
        found = Input(low, high, committed, seen.topic_ids.get(settings.topic, ""))
        where = f"{settings.topic}[{number}]"
        restored, notes = where_to_go_on(found, entries, settings, where)
        for note in notes:
            log.warning(note)
        feedback_start = self._feedback_start(number)
        elapsed = time.monotonic() - began
        labels = {} if settings.feedback is None else {"feedback_offset": feedback_start}
        done = kv(
            "restored",
            topic=settings.topic,
            partition=number,
            offset=restored.start,
            **labels,
            entries=len(restored.entries),
            bytes=sum(map(len, restored.entries.values())),
            elapsed_s=elapsed,
        )
        log.info(done)
        if entries and not restored.entries:  # they are about an input topic that is gone
            effects = [effect._replace(input_offset=-1) for effect in effects]
        return replace(restored, feedback_start=feedback_start, effects=tuple(effects), topic_id=found.topic_id)

    def _has_passed(self, task: Any, check: Callable[[], None]) -> bool:
        """Whether restoring is permitted; False: the broker does not answer. Raises what `check` raises else."""
        try:
            check()
        except BrokerError as error:
            self._wait(task, str(error))
            return False
        self._check = None
        return True

    def _is_behind(self, entries: Mapping[str, bytes], committed: int | None) -> bool:
        """Whether the entries are older than what the group has committed: they are written together."""
        if self._settings.delivery != "exactly-once" or committed is None:
            return False
        return POSITION not in entries or Position.decode(entries[POSITION]).offset < committed

    def _has_waited(self, task: Any, store: TopicPartition) -> bool:
        """Whether what is committed would be marked so by now, even by a broker that has just come back."""
        waited = time.monotonic() - self._behind_since.setdefault(task, time.monotonic())
        self._wait(task, f"a transaction in {store.topic} has not ended yet")
        if waited <= BEHIND_S:
            return False
        if self._watch.has_open_transaction(store):
            longest = session_timeout_ms(self._settings) / 1000 + HANGING_S
            if waited > longest and self._throttle.allow(f"hanging {store.partition}") is not None:
                place = {"topic": store.topic, "partition": store.partition, "waited_s": waited}
                log.warning(kv("open_transaction", **place, hint="end it: kafka-transactions.sh find-hanging, abort"))
            return False
        del self._behind_since[task]
        return True

    def _committed(self, partitions: list[TopicPartition]) -> list[int | None]:
        found = self._reader.committed(partitions, timeout=ASK_S)
        for partition in found:
            if partition.error is not None:
                raise KafkaException(partition.error)
        return [partition.offset if partition.offset >= 0 else None for partition in found]

    def _feedback_start(self, number: int) -> int:
        """Where to go on in the feedback partition: as committed if that is kept, else from its beginning."""
        feedback = self._settings.feedback
        if feedback is None or number >= self._watch.seen.partitions.get(feedback, 0):
            return int(OFFSET_BEGINNING)
        partition = TopicPartition(feedback, number)
        committed = self._committed([partition])[0]
        low, high = self._reader.get_watermark_offsets(partition, timeout=ANSWER_S)
        if committed is None or not low <= committed <= high:
            return int(low)
        return int(committed)

    def _read(self, store: TopicPartition) -> tuple[dict[str, bytes], list[Effect]]:
        """The entries of a partition of the store, and when labels took effect, as of what is committed now."""
        low, end = self._reader.get_watermark_offsets(store, timeout=ANSWER_S)
        entries: dict[str, bytes] = {}
        effects: dict[bytes, Effect] = {}
        if low >= end:
            return entries, []
        self._reader.assign([TopicPartition(store.topic, store.partition, low)])
        deadline = time.monotonic() + STALLED_S
        try:
            while time.monotonic() < deadline and not self._stopped:
                message = self._reader.poll(0.5)
                if message is None:
                    continue
                deadline = time.monotonic() + STALLED_S
                error = message.error()
                if error is None:
                    _take(message, entries, effects)
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if message.offset() >= (end if error is not None else end - 1):
                    return entries, list(effects.values())
        finally:
            self._reader.unassign()
        # A client that outlived its broker may wait for long for answers that do not come; a new one asks again.
        self._reader.close()
        self._reader = make_reader(self._settings)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{store.topic} could not be read to its end"))


def _take(message: Any, entries: dict[str, bytes], effects: dict[bytes, Effect]) -> None:
    """Apply one record of the store. Raises StateError when a later version has written it."""
    key, value = message.key() or b"", message.value()
    if (effect := Effect.parse(key)) is not None:
        effects.pop(key, None)
        if value is not None:
            effects[key] = effect
    if not key.startswith(KEY_PREFIX):
        return
    name = key[len(KEY_PREFIX) :].decode(errors="replace")
    if value is None:
        entries.pop(name, None)
    elif value[:1] == VERSION:
        entries[name] = value[1:]
    else:
        raise StateError(
            f"entry `{name}` of {message.topic()}[{message.partition()}]@{message.offset()} has format "
            f"{value[:1].hex() or 'none'}, this version of fomo-stream reads {VERSION.hex()}; "
            "use the version that wrote it, or forget what was learned with --reset-state"
        )
