"""Restore partitions: read their learned state back, in a thread, so that the main loop does not wait for the broker.

The state topic has the state of each input partition in the compacted partition of the same number. A commit writes the
entries that changed since the last one, in the same transaction as the scores. A partition is read in this order:

1. the group's committed offset, which the broker returns only when no open transaction can change it,
2. the end of the committed records in the state partition,
3. the entries up to that end.

In this order, a partition never reads an entry of a failed transaction, and never misses one of a committed
transaction. `decide_resume` then decides the offset at which it resumes, usually that of the group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import BrokerError, DamagedStateError, LostOffsetError, StateError
from fomo_stream.kafka.background import BackgroundExecutor
from fomo_stream.kafka.broker.clients import session_timeout_ms
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.kafka.delivery.base import Output
from fomo_stream.kafka.topics.watch import TopicWatch
from fomo_stream.kafka.warm_start import NO_WARM_START, WarmStart
from fomo_stream.logs import Throttle, kv
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.position import POSITION, InputOffsets, Restored, SavedPosition, decide_resume
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

KEY_PREFIX = b"state/"
VERSION = b"\x01"  # first byte of every value
ASK_S = 0.3  # the wait for one committed offset; then the next partition is tried
ANSWER_S = 5.0
STALLED_S = 5.0  # the wait for the next record of the state topic
HANGING_S = 15.0  # after the session timeout; the broker should have ended an open transaction earlier
RETRY_S = 0.1
TOPICS_AGE_S = 1.0  # the answer about topics names all their partitions: to ask for each partition costs their square
IDLE_S = 60.0  # after the last restore the client is closed: it has threads and connections to all brokers
STOP_S = 2.0  # the wait for the thread; a thread that still waits for the broker is abandoned
BEHIND_S = 10.0  # a state that stays older than the group's offset for so long shows that somebody changed the offset


class NotYetError(Exception):
    """A partition cannot be restored yet; the text has the reason."""


def to_output(topic: str, number: int, name: str, value: bytes | None) -> Output:
    """Return the record that writes an entry of a partition, or deletes it (None)."""
    return Output(topic, KEY_PREFIX + name.encode(), value if value is None else VERSION + value, [], number)


def unusable_state_error(topic: str, number: int, error: StateError) -> StateError:
    """Return `error` about a partition's state, with the partition and a remedy."""
    choices = "choose another --group, or forget what was learned with --reset-state"
    remedy = choices if isinstance(error, DamagedStateError) else f"go back to that, {choices}"
    return StateError(f"{topic}[{number}]: {error}; {remedy}")


class StateReader:
    """Read the state of a partition, and the offset at which it resumes.

    is_stopped: returns whether to end a running read.
    """

    def __init__(
        self, settings: ServiceSettings, watch: TopicWatch, warm: WarmStart, is_stopped: Callable[[], bool]
    ) -> None:
        self._settings, self._warm, self._watch = settings, warm, watch
        self._reader = TopicReader(settings, is_stopped=is_stopped)
        # When the state of a partition was first seen to be older than the group's offset.
        self._behind_since: WeakKeyDictionary[Waiting, float] = WeakKeyDictionary()
        self._may_hold_labels = settings.delivery == "exactly-once" and settings.feedback is not None
        self._throttle = Throttle()

    def close(self) -> None:
        self._reader.close()

    def refresh(self) -> None:
        """Ask the broker for the topics again, so that the client knows partitions that were added."""
        for topic in (self._settings.topic, self._settings.state_topic, self._settings.feedback):
            try:
                if topic is not None:
                    self._reader.client.list_topics(topic, timeout=ANSWER_S)
            except KafkaException as error:
                log.debug(kv("partitions_unknown", topic=topic, reason=error.args[0].str()))

    def read(self, partition: Waiting) -> Restored:
        """Return the state of a partition, and the offset at which it resumes.

        Raises NotYetError if these are not known yet, KafkaException if the broker does not answer, StateError if the
        state is damaged or a later version has written it, LostOffsetError if --on-lost-offset is fail.
        """
        began = time.monotonic()
        settings, number = self._settings, partition.number
        answer = self._watch.answer
        if settings.topic in answer.partitions:  # else the watch will see when it exists
            answer = self._watch.recent(TOPICS_AGE_S)  # it may have been created again since the last poll
        if settings.topic not in answer.partitions:
            raise NotYetError(f"topic {settings.topic} does not exist")
        if number >= answer.partitions.get(settings.state_topic, 0):  # it grows with the input
            raise NotYetError(f"topic {settings.state_topic} has no partition {number} yet")
        committed = self._committed(settings.topic, number)
        low, high = self._reader.range_now(settings.topic, number, ANSWER_S)
        entries = self._read_state(partition, committed)
        topic_id = answer.topic_ids.get(settings.topic, "")
        input_offsets = InputOffsets(low, high, committed, topic_id, self._warm.of(number, topic_id))
        try:
            restored, notes = decide_resume(input_offsets, entries, settings, f"{settings.topic}[{number}]")
        except LostOffsetError as error:
            if self._watch.poll().topic_ids.get(settings.topic, "") != topic_id:
                raise NotYetError(f"topic {settings.topic} was created again") from None
            remedy = "resume at the earliest or the latest retained offset with --on-lost-offset earliest or latest"
            raise LostOffsetError(error.what, remedy) from None
        for event, about in notes:
            log.warning(kv(event, **about))
        feedback_start = self._feedback_start(number, entries)
        place = {"topic": settings.topic, "partition": number, "offset": restored.start}
        labels = {} if settings.feedback is None else {"feedback_offset": feedback_start}
        size, elapsed = sum(map(len, restored.entries.values())), time.monotonic() - began
        log.info(kv("restored", **place, **labels, entries=len(restored.entries), bytes=size, elapsed_s=elapsed))
        return replace(restored, feedback_start=feedback_start, topic_id=input_offsets.topic_id)

    def _read_state(self, partition: Waiting, committed: int | None) -> dict[str, bytes]:
        """The entries of a partition. Raises NotYetError."""
        state = TopicPartition(self._settings.state_topic, partition.number)
        waits = f"a transaction in {state.topic} has not ended yet"
        if self._may_hold_labels and self._watch.cluster.has_open_transaction(state):
            # A transaction of labels alone does not change the committed offset of the input. So
            # step 1 does not wait for it.
            self._has_waited(partition, state)
            raise NotYetError(waits)
        entries = self._read_entries(state)
        # A broker that has just come back may report an old end: the last transaction may be committed, but its marker
        # is not in this partition yet.
        if self._is_behind(entries, committed) and not self._has_waited(partition, state):
            raise NotYetError(waits)
        return entries

    def _is_behind(self, entries: Mapping[str, bytes], committed: int | None) -> bool:
        """Return whether the entries are older than the group's committed offset: both are written together."""
        if self._settings.delivery != "exactly-once" or committed is None:
            return False
        return POSITION not in entries or SavedPosition.decode(entries[POSITION]).offset < committed

    def _has_waited(self, partition: Waiting, state: TopicPartition) -> bool:
        """Return whether the broker had enough time to mark a committed transaction, even after an outage."""
        waited = time.monotonic() - self._behind_since.setdefault(partition, time.monotonic())
        if waited <= BEHIND_S:
            return False
        if self._watch.cluster.has_open_transaction(state):
            # A single broker that restarts can lose a marker (KAFKA-20734). Then only a person can end the transaction.
            longest = session_timeout_ms(self._settings) / 1000 + HANGING_S
            if waited > longest and self._throttle.allow(f"hanging {state.partition}") is not None:
                place = {"topic": state.topic, "partition": state.partition, "waited_s": waited}
                log.warning(kv("open_transaction", **place, hint="end it: kafka-transactions.sh find-hanging, abort"))
            return False
        del self._behind_since[partition]
        return True

    def _committed(self, topic: str, number: int) -> int | None:
        (answer,) = self._reader.committed([TopicPartition(topic, number)], ASK_S)
        return answer.offset if answer.offset >= 0 else None

    def _feedback_start(self, number: int, entries: Mapping[str, bytes]) -> int:
        """Return the start in the feedback partition: the committed offset if it is still valid, or the first one."""
        feedback = self._settings.feedback
        if feedback is None or number >= self._watch.answer.partitions.get(feedback, 0):
            return int(OFFSET_BEGINNING)
        committed = self._committed(feedback, number)
        low, high = self._reader.range_now(feedback, number, ANSWER_S)
        former = SavedPosition.decode(entries[POSITION]).feedback_id if POSITION in entries else ""
        is_other = former not in ("", self._watch.answer.topic_ids.get(feedback, former))
        return low if is_other or committed is None or not low <= committed <= high else committed

    def _read_entries(self, state: TopicPartition) -> dict[str, bytes]:
        entries: dict[str, bytes] = {}
        span = self._reader.range_now(state.topic, state.partition, ANSWER_S)
        try:
            for message in self._reader.read(state.topic, {state.partition: span}, STALLED_S):
                _apply(message, entries)
        except NoProgressError:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, f"{state.topic} could not be read to its end")
            ) from None
        return entries


class Restorer:
    """Restore partitions one after the other.

    is_assigned: returns whether a partition is still assigned. check: called before the first restore, until it
    succeeds; after a BrokerError it is repeated, any other FomoError is raised. warm: the group's warm start.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        watch: TopicWatch,
        is_assigned: Callable[[Waiting], bool],
        check: Callable[[], None] = lambda: None,
        warm: WarmStart = NO_WARM_START,
    ) -> None:
        self._settings, self._is_assigned = settings, is_assigned
        self._check: Callable[[], None] | None = check
        self.waits: dict[int, str] = {}  # by partition: why it could not be restored yet
        self.retries = 0  # attempts that have to be repeated
        self._stopped = threading.Event()
        self._state = StateReader(settings, watch, warm, self._stopped.is_set)
        self._requested: list[tuple[float, Waiting]] = []  # with the earliest time for each, seconds, monotonic
        self._begun: list[tuple[Waiting, Future[Restored]]] = []
        self._used_at: float | None = None  # the client, seconds, monotonic; None: it is closed
        self._thread = BackgroundExecutor("fomo-restore")
        self._throttle = Throttle()

    def request(self, partition: Waiting, delay: float = 0.0) -> None:
        """Ask for the state of a partition, after `delay` seconds."""
        self._requested.append((time.monotonic() + delay, partition))

    def take_results(self, may_begin: Callable[[], bool] = lambda: True) -> list[tuple[Waiting, Restored]]:
        """Return the partitions restored since the last call. Raises the error of one that cannot be restored.

        Also begins the requested ones, if `may_begin`.
        """
        results: list[tuple[Waiting, Restored]] = []
        done = [attempt for attempt in self._begun if attempt[1].done()]
        self._begun = [attempt for attempt in self._begun if attempt not in done]  # others may be done() by now
        for partition, attempt in done:
            if not self._is_assigned(partition):
                continue
            try:
                results.append((partition, attempt.result()))
                self.waits.pop(partition.number, None)
            except NotYetError as reason:
                self._retry(partition, str(reason))
            except KafkaException as error:
                self._retry(partition, error.args[0].str())
        now = time.monotonic()
        due_requests = [request for request in self._requested if request[0] <= now]
        if due_requests and may_begin():
            self._requested = [request for request in self._requested if request not in due_requests]
            assigned = [partition for _, partition in due_requests if self._is_assigned(partition)]
            self._begun += [(partition, self._thread.submit(self._restore, partition)) for partition in assigned]
        if self._begun or self._requested:
            self._used_at = now
        elif self._used_at is not None and now - self._used_at > IDLE_S:
            self._used_at = None
            self._thread.submit(self._state.close)
        return results

    def stop(self) -> None:
        """End the thread, which closes its client; a thread that still waits for the broker is abandoned."""
        if not self._stopped.is_set():
            self._stopped.set()
            for _, attempt in self._begun:
                attempt.cancel()
            closed = self._thread.submit(self._state.close)
            self._thread.shutdown(wait=False)
            wait([closed], STOP_S)

    def _restore(self, partition: Waiting) -> Restored:
        """Restore a partition. Raises NotYetError, and the errors of `check` and `StateReader.read`."""
        if not self._is_assigned(partition):
            raise NotYetError("it is no longer assigned")
        try:
            if self._check is not None:
                self._check()
                self._check = None
        except BrokerError as error:
            raise NotYetError(str(error)) from None
        try:
            return self._state.read(partition)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                self._state.refresh()
            raise
        except DamagedStateError as error:
            raise unusable_state_error(self._settings.state_topic, partition.number, error) from None

    def _retry(self, partition: Waiting, reason: str) -> None:
        """Try again later, and log the reason."""
        self.waits[partition.number] = reason
        self.retries += 1
        if self._throttle.allow(f"{partition.number} {reason}") is not None:
            log.info(kv("not_restored_yet", topic=self._settings.topic, partition=partition.number, reason=reason))
        self.request(partition, RETRY_S)


def _apply(message: Any, entries: dict[str, bytes]) -> None:
    """Apply one record of the state topic. Raises StateError when a later version has written it."""
    key, value = message.key() or b"", message.value()
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
