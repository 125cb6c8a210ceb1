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
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from fomo_stream.broker import make_reader, session_timeout_ms
from fomo_stream.delivery import Output
from fomo_stream.errors import DamagedStateError, LostOffsetError, StateError
from fomo_stream.feedback import EFFECT_PREFIX, Effect
from fomo_stream.logs import Throttle, kv
from fomo_stream.settings import ServiceSettings
from fomo_stream.topics import TopicWatch

log = logging.getLogger(__name__)

KEY_PREFIX = b"state/"
VERSION = b"\x01"  # first byte of every value
POSITION = "position"  # the entry that every commit of a partition writes
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


def unusable(topic: str, number: int, error: StateError) -> StateError:
    """The error of a partition's state, with where it is and what to do."""
    choices = "choose another --group, or forget what was learned with --reset-state"
    remedy = choices if isinstance(error, DamagedStateError) else f"set that back, {choices}"
    return StateError(f"{topic}[{number}]: {error}; {remedy}")


@dataclass(frozen=True)
class Position:
    """How far a partition had come when its entries were written: the next offset to read, of the topic of that id."""

    offset: int
    topic_id: str = ""  # empty: the broker has none

    def encode(self) -> bytes:
        """As the value of an entry."""
        return orjson.dumps({"offset": self.offset, "topic_id": self.topic_id})

    @classmethod
    def decode(cls, value: bytes) -> Position:
        """What `encode` wrote. Raises StateError."""
        try:
            found = orjson.loads(value)
            return cls(int(found["offset"]), str(found["topic_id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"the entry `{POSITION}` is not readable ({error})") from None


@dataclass(frozen=True)
class Input:
    """What the broker says of an input partition: offsets kept, committed by the group, and the topic's id."""

    low: int
    high: int
    committed: int | None
    topic_id: str = ""


@dataclass(frozen=True)
class Restored:
    """Where and with what a partition goes on."""

    start: int  # offset of the first record to read
    entries: Mapping[str, bytes] = field(default_factory=dict)  # what it knows
    stale: frozenset[str] = frozenset()  # entries that are of no use any more, and are to be deleted
    learned_until: int = 0  # records before this offset have been learned already
    feedback_start: int = OFFSET_BEGINNING
    effects: tuple[Effect, ...] = ()  # entries that say when labels took effect


def where_to_go_on(
    found: Input, entries: Mapping[str, bytes], settings: ServiceSettings, where: str
) -> tuple[Restored, list[str]]:
    """Decide where a partition goes on and what of its entries counts; with lines for the log about what is unusual.

    The entries say themselves how far they go. If that is not what the group has committed, then somebody has set the
    group's offsets, or delivery is at least once: what is read again is scored but not learned again.
    Raises LostOffsetError when the offset to go on from is not kept any more and --on-lost-offset is fail.
    """
    position = Position.decode(entries[POSITION]) if POSITION in entries else None
    known = position is not None
    notes = []
    if position is not None and (
        (position.topic_id and found.topic_id and position.topic_id != found.topic_id)
        or (not found.topic_id and found.committed is None and position.offset > found.high)
    ):
        notes.append(kv("topic_created_anew", partition=where, effect="nothing of the old one counts"))
        return Restored(found.low, {}, frozenset(entries)), notes
    learned_until = min(position.offset, found.high) if position is not None else 0
    start = found.committed
    if start is None:
        # A group's offsets expire. Entries written together with scores know better; others may have come alone.
        start = learned_until if known and settings.delivery == "exactly-once" else found.low
    if known and start != learned_until:
        effect = "what is read again is scored, not learned again" if start < learned_until else "some is never learned"
        notes.append(kv("offset_differs_from_state", partition=where, state=learned_until, group=start, effect=effect))
    if not found.low <= start <= found.high:
        if settings.on_lost_offset == "fail":
            raise LostOffsetError(
                f"the next record to read of {where} has offset {start}, but the broker keeps {found.low} to "
                f"{found.high}; choose where to go on with --on-lost-offset earliest or latest"
            )
        lost, start = start, found.low if settings.on_lost_offset == "earliest" else found.high
        notes.append(kv("offset_lost", partition=where, offset=lost, goes_on_at=start))
    return Restored(start, dict(entries), frozenset(), learned_until), notes


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
        if self._check is not None:
            self._check()
            self._check = None
        if number >= self._watch.seen.partitions.get(settings.state_topic, 0):
            self._wait(task, f"topic {settings.state_topic} has no partition {number} yet")
            self._watch.look()
            self._watch.grow()
            return None
        source, store = TopicPartition(settings.topic, number), TopicPartition(settings.state_topic, number)
        committed = self._committed([source])[0]
        low, high = self._reader.get_watermark_offsets(source, timeout=ANSWER_S)
        if self._may_hold_labels and self._watch.has_open_transaction(store):
            self._has_waited(task, store)
            return None  # a transaction with nothing but labels does not show in the input's offset
        entries, effects = self._read(store)
        if self._is_behind(entries, committed) and not self._has_waited(task, store):
            return None  # the last transaction may be committed, but not yet marked so in this partition
        found = Input(low, high, committed, self._watch.seen.topic_ids.get(settings.topic, ""))
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
        return replace(restored, feedback_start=feedback_start, effects=tuple(effects))

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
    if key.startswith(EFFECT_PREFIX):
        effects.pop(key, None)
        if value is not None:
            effects[key] = Effect.decode(key, value)
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
