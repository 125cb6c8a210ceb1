"""One member of the consumer group: its main loop, rebalances and shutdown.

One thread does everything, and only this module decides in which order things happen. It hands the records that are
there to the `Pipeline`. Every few milliseconds it takes a *turn*: score the micro-batches that are due, take the next
step of the commit (`Commits`), activate the partitions that were restored, and react to events from the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message

from fomo_stream.errors import BrokerError, FencedError
from fomo_stream.kafka.assignment import STALLED_S, Assignment
from fomo_stream.kafka.broker.topic_reader import to_record
from fomo_stream.kafka.commits import Commits, Membership
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.group.agreed_schema import GroupSchema
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.pipeline import MIN_SAMPLE_RECORDS, Pipeline
from fomo_stream.kafka.restore import Restorer
from fomo_stream.kafka.settings_file import SettingsFile
from fomo_stream.kafka.topics.watch import InputEnd, TopicReport, TopicWatch
from fomo_stream.limits import INFER_RECORDS
from fomo_stream.logs import Throttle, kv
from fomo_stream.partition.partition import Partition, Waiting
from fomo_stream.partition.running import Running
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

TURN_SHARE = 1 / 20  # of the requested latency: more turns would only take time from the scoring of all topics
# Between two times that all waiting records are scored, in times of the first one. With exactly-once, readers see
# scores only after the commit.
REST = {"at-least-once": 2.0, "exactly-once": 4.0}
POLL_S = 0.05  # to take the records of one poll
TURN_S = 0.01  # the shortest time between two turns; scoring and commits have their own times
IDLE_POLL_S = 0.1  # at most the commit interval, as the offsets of labels are committed without outputs
MIN_POLL_S, MIN_IDLE_POLL_S = 0.001, 0.01  # the client does not wait at all for less than a millisecond
RELEASE_S = 10.0  # a rebalance or shutdown waits this long for a commit
MAX_AHEAD_RECORDS = 1024  # a partition whose next generation is not built yet is read about this far ahead
MAX_AHEAD_BYTES = 32 << 20  # or this far, of all partitions together
MAX_MESSAGES = 256  # in one call: a call for each record would cost more than handling them
STALL_CHECK_S = 1.0
MEMBERSHIP_S = 0.25  # between two checks: each asks the client's own thread twice, and all other threads wait for it
OFFSETS_S = 0.1  # between two looks at the offsets that other threads see
MAX_DIFFERENCE_S = 5.0  # between owned and served partitions: they differ between two callbacks of a rebalance
SCHEMA_RETRY_S = 5.0  # to the next attempt to agree on the schema
OTHER_PROGRAM = "the group has members of another program, or with another --kafka.group.protocol: name a --group"
SAMPLE_WAIT_S = 5.0  # for INFER_RECORDS records: so long after the 20th, or 6 times as long after the first


class ConsumerErrors:
    """The consumer's error events. The client recovers by itself, except from fatal errors."""

    def __init__(self) -> None:
        self._fatal: KafkaError | None = None
        self._throttle = Throttle()

    def __call__(self, error: KafkaError) -> None:
        # librdkafka also reports a fatal error in a message. Its error has the code _FATAL, but is not marked as fatal.
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._fatal = error
        if self._throttle.allow(error.name()) is not None:
            hint = {"hint": OTHER_PROGRAM} if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL else {}
            log.warning(kv("consumer_error", name=error.name(), reason=error.str(), **hint))

    def check(self) -> None:
        """Raise FencedError after a fatal error."""
        if self._fatal is not None:
            raise FencedError(
                "another instance has the same --instance-id, or the broker has removed this one from the group "
                f"({self._fatal.str()}); nothing is lost; restart this instance, with an --instance-id of its own"
            )


class Poller:
    """Takes records from a consumer, as many at once as the caller handles in about `seconds`.

    So the loop goes on however slow the model or however large the records are, and a single record does not wait for
    others. Callbacks of the consumer run inside `poll`, also after some of its records were taken: a partition may be
    given up, and even come back, before its records are returned.
    """

    def __init__(self, consumer: Any, seconds: float) -> None:
        self._consumer, self._seconds = consumer, seconds
        self._most = 1
        self.is_behind: bool | None = None  # whether all calls since it was None gave as many as were asked for

    def poll(self, patience: float, collects_until: float = 0.0) -> list[Message]:
        """Wait up to `patience` seconds for a message; returns it and others that are there. Some may be errors.

        collects_until: wait for others until then, seconds, monotonic, as none is needed before.
        """
        first = self._consumer.poll(patience)
        if first is None:
            return []
        seconds = max(0.0, collects_until - time.monotonic())
        return [first, *self._consumer.consume(self._most - 1, seconds)] if self._most > 1 else [first]

    def handled(self, n: int, seconds: float) -> None:
        """The caller has handled the n messages of the last call in `seconds`."""
        if self.is_behind is not False:
            self.is_behind = n >= self._most
        if seconds > self._seconds:
            self._most = max(1, self._most // 2)
        elif n >= self._most:
            self._most = min(MAX_MESSAGES, 2 * self._most)


class SchemaSearch:
    """Wait for a sample of records (see SAMPLE_WAIT_S), infer a schema, and let the group agree on it."""

    def __init__(self, group: GroupSchema, pipeline: Pipeline) -> None:
        self._group, self._pipeline = group, pipeline
        self._deadline = float("inf")  # counts only while records wait
        self._retry_at = 0.0
        self.trouble = ""  # why the group cannot agree at the moment

    def proceed(self, now: float) -> None:
        """Begin scoring, if enough records wait or the first ones have waited long enough."""
        waiting = self._pipeline.n_waiting
        latest = now + SAMPLE_WAIT_S * (1 if waiting >= MIN_SAMPLE_RECORDS else 6)
        self._deadline = min(self._deadline, latest) if waiting else float("inf")
        if not (waiting >= INFER_RECORDS or now >= self._deadline) or now < self._retry_at:
            return
        try:
            schema = self._group.stored() or self._pipeline.infer()
            if schema is not None:
                self._pipeline.begin(self._group.agree(schema))
            self.trouble = ""
        except BrokerError as error:
            self._retry_at = now + SCHEMA_RETRY_S
            self.trouble = str(error)
            log.warning(kv("schema_not_agreed", reason=error, retry_in_s=SCHEMA_RETRY_S))


class GroupMember:
    """One instance in its group, from the first poll to the last commit. `start` makes one.

    consumer: a confluent_kafka Consumer. errors: its error callback.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        consumer: Any,
        errors: ConsumerErrors,
        pipeline: Pipeline,
        delivery: Delivery,
        restorer: Restorer,
        search: SchemaSearch,
        watch: TopicWatch,
        topics: TopicReport,
        settings_file: SettingsFile,
        observer: Observer | None = None,
    ) -> None:
        self.settings, self.pipeline, self.delivery = settings, pipeline, delivery
        self.restorer, self.search, self.watch, self.topics = restorer, search, watch, topics
        self.settings_file = settings_file
        self._consumer, self._errors, self._observer = consumer, errors, observer or Observer()
        self.assignment = Assignment(consumer, settings.topic, settings.feedback)
        self.turned_at = time.monotonic()
        self.membership = Membership(consumer, settings.kafka.get("group.protocol") == "consumer")
        self._interval_s = interval_s = settings.commit_interval_ms / 1000
        self.commits = Commits(pipeline, delivery, consumer, self.membership, topics, interval_s, self._restore_again)
        self._waits_since: dict[int, float] = {}  # by partition: when its restore was requested, seconds, monotonic
        self._turn_s = min(IDLE_POLL_S, TURN_SHARE * settings.max_latency_ms / 1000)
        self._idle_s = min(IDLE_POLL_S, max(2 * interval_s, MIN_IDLE_POLL_S))
        self._rested_at = 0.0  # seconds, monotonic: since then records need not wait for others
        self._poller = Poller(consumer, POLL_S)
        # By partition: the last answer about the ends of the input, and the answer whose end is not reached yet.
        self._newest: dict[int, InputEnd] = {}
        self._unread: dict[int, InputEnd] = {}
        self.has_joined = False
        self._has_failed = False
        self.stalls: dict[int, tuple[int | None, float]] = {}  # by partition: its offset, and seconds without a move
        self._membership_checked_at = 0.0  # seconds, monotonic
        self._stalls_checked_at = 0.0  # for stalls, seconds, monotonic
        # By partition: its known end, and `finished`, for other threads. A client does one call at a time: while
        # this loop polls, a call of another thread may wait without an end.
        self.offsets: dict[int, tuple[int | None, int | None]] = {}
        self._offsets_noted_at = 0.0  # seconds, monotonic
        self._throttle = Throttle(STALLED_S)
        self._is_leaving = False  # it leaves the group, to join it as a new member
        self._differs_since: float | None = None  # since then owned and served partitions differ, seconds, monotonic

    # --- the loop -------------------------------------------------------------------------------------------

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Join the group and score its records until `is_stopping`. Raises FomoError when it has to give up."""
        settings = self.settings
        self._subscribe()
        alerts = {} if settings.alerts is None else {"alerts": settings.alerts}
        log.info(kv("started", topic=settings.topic, out=settings.out, **alerts, group=settings.group))
        try:
            while not is_stopping():
                messages = self._poller.poll(self._patience(), self._collects_until())
                polled_at = time.monotonic()
                for message in messages:
                    self._receive(message, polled_at)
                now = time.monotonic()
                self._poller.handled(len(messages), now - polled_at)
                if messages:
                    self._observer.received(len(messages), now - polled_at)
                if now >= self.turned_at + max(self._turn_s, TURN_S):
                    self.turn(now)
                else:
                    self._score_and_commit(now)
        except BaseException:
            self._has_failed = True
            raise

    def finish(self) -> None:
        """Score the records that were read, commit, and give up all partitions."""
        self._release(list(self.pipeline.partitions))
        if self.delivery.sent:
            log.warning(kv("not_committed", outputs=self.delivery.sent, effect="read again by the next owner"))

    def turn(self, now: float) -> None:
        """Do everything except reading records. now: seconds, monotonic."""
        self.turned_at = now
        if (rules := self.settings_file.changed(now)) is not None:
            self.pipeline.set_rules(rules)
        self.pipeline.follow_reference(now)
        if self.pipeline.schema is None:
            self.search.proceed(now)
        self._score_and_commit(now)
        if now - self._membership_checked_at >= MEMBERSHIP_S:
            self._check_membership(now)
        self.activate()
        self.control_flow()
        self._compare_topics()
        self._follow_silence()
        if now - self._offsets_noted_at > OFFSETS_S:
            self._note_offsets(now)
        if now - self._stalls_checked_at > STALL_CHECK_S:
            self._measure_stalls(now)
        self._observer.turned(now)
        self._errors.check()

    def _score_and_commit(self, now: float) -> None:
        """Score the records that wait, if a commit is due or after a rest, and take the next step of the commit.

        The rest grows with the time that the last such turn took, up to the longest wait for a batch: where there is
        little to do, a record does not wait, and where there is much, records are scored together, which takes less
        time. With exactly-once, no reader sees a score before the next commit. So while one is under way the rest may
        be longer, and ends with it.
        """
        longest_s, is_behind = self.settings.batch_age_ms / 1000, bool(self._poller.is_behind)
        if self.commits.is_under_way:
            self.commits.turn(now)
        can_wait = self._waits_for_commit
        is_rested = now >= self._rested_at or self.commits.is_due(now, is_behind)
        if is_rested or not can_wait:
            self.pipeline.score_due(now + longest_s if is_rested else now)
        if not can_wait and self.commits.turn(now, is_behind):
            self._poller.is_behind = None
        if is_rested:
            ended = time.monotonic()
            rest_s = REST[self.settings.delivery] * (ended - now)
            self._rested_at = ended + (rest_s if self._waits_for_commit else min(rest_s, longest_s))

    @property
    def _waits_for_commit(self) -> bool:
        """Return whether the next outputs are seen only after the commit that follows the one under way."""
        return self.commits.is_under_way and self.settings.delivery == "exactly-once"

    def _follow_silence(self) -> None:
        """Pass each answer of the broker about the ends of the input on once: as soon as a partition was read up to the
        end, or when the next answer is there.
        """
        if (newest := self.watch.input_end) is None:
            return
        for number, partition in self.pipeline.partitions.items():
            position = partition.position
            if not isinstance(partition, Running) or position is None or position < partition.warm.stop:
                self._unread.pop(number, None)
                self._newest[number] = newest  # only answers from now on count
                continue
            answer = self._unread.get(number)
            if newest is not self._newest.get(number):
                if answer is not None:  # it lags
                    self.pipeline.follow_silence(partition, answer, False)
                self._newest[number] = self._unread[number] = answer = newest
            if answer is not None and (self.finished(partition) or 0) >= answer.readable.get(number, float("inf")):
                del self._unread[number]
                self.pipeline.follow_silence(partition, answer, True)

    def finished(self, partition: Partition) -> int | None:
        """Return the offset before which all records and transaction markers are finished; None: it is not restored."""
        if partition.position is None or self.pipeline.has_waiting(partition):
            return partition.position
        return max(partition.position, self.assignment.read_until(partition.number) or 0)

    def _note_offsets(self, now: float) -> None:
        self._offsets_noted_at = now
        self.offsets = {
            number: (self.assignment.known_end(number), self.finished(partition))
            for number, partition in self.pipeline.partitions.items()
        }

    def _measure_stalls(self, now: float) -> None:
        """Measure how long each partition has not moved although it has unread records; log it after a minute.

        The time during which this process was suspended does not count.
        """
        elapsed, self._stalls_checked_at = min(now - self._stalls_checked_at, 2 * STALL_CHECK_S), now
        stalls = {}
        for number, partition in self.pipeline.partitions.items():
            answer, offset = self.watch.ends.get((self.settings.topic, number)), self.finished(partition)
            last, seconds = self.stalls.get(number, (offset, 0.0))
            has_stood = offset == last and answer is not None and (offset is None or offset < answer.ends.readable)
            seconds = seconds + elapsed if has_stood else 0.0
            stalls[number] = offset, seconds
            if seconds > STALLED_S and self._throttle.allow(str(number)) is not None:
                place = {"topic": self.settings.topic, "partition": number, "offset": offset}
                log.warning(kv("stalled", **place, seconds=seconds, effect="its unread records wait"))
        self.stalls = stalls

    def _receive(self, message: Message, now: float) -> None:
        error = message.error()
        if error is not None:
            self._errors(error)
            if error.code() == KafkaError._AUTO_OFFSET_RESET:  # the broker no longer retains the next record
                self.assignment.lose(message.topic(), message.partition())
                self.commits.must_abort = True  # restoring then decides where to continue
        elif message.topic() == self.settings.feedback:
            self.pipeline.receive_label(to_record(message), self.assignment.exists)
        else:
            self.pipeline.receive(to_record(message), now)

    def _patience(self) -> float:
        """Return the seconds that a poll may wait for a record without delaying other work."""
        partitions = self.pipeline.partitions.values()
        soon_s = max(self._turn_s, MIN_POLL_S)
        if self.commits.is_under_way or any(len(own.waiting) or not own.is_active for own in partitions):
            return soon_s
        if self.delivery.sent or any(own.position != own.committed for own in partitions):
            return min(max(self.commits.due - time.monotonic(), soon_s), self._idle_s)
        return self._idle_s

    def _collects_until(self) -> float:
        """Return until when a poll may wait for further records, seconds, monotonic."""
        if self.commits.is_under_way:  # its end must not be noticed late
            return min(self._rested_at, time.monotonic() + self._interval_s)
        return self._rested_at

    # --- partitions -----------------------------------------------------------------------------------------

    def on_assign(self, _consumer: Any, partitions: list[Any]) -> None:
        """Restore the partitions that the group assigns to this instance, and then read them."""
        self.has_joined = True
        numbers = self._report_rebalance("assigned", partitions)
        self.assignment.take(numbers)
        if self._is_leaving or not self.membership.confirm(owns=bool(self.pipeline.partitions)):
            return
        for number in numbers:
            self._request(self.pipeline.add(number, self.topics.answer.topic_ids))
            log.info(kv("assigned", topic=self.settings.topic, partition=number))

    def on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        """Commit the records that were read of the revoked partitions, and then give them up."""
        numbers = self._report_rebalance("revoked", partitions)
        if self.pipeline.partitions and not self.membership.confirm(owns=True):
            self._drop(numbers)
        self._release(numbers)
        self.assignment.give_up(numbers)

    def on_lost(self, _consumer: Any, partitions: list[Any]) -> None:
        """Give up partitions without a commit, as another instance may have them already."""
        numbers = self._report_rebalance("lost", partitions)
        self._drop(numbers)
        self.membership.lose()
        self.assignment.give_up(numbers)

    def _report_rebalance(self, event: str, partitions: list[Any]) -> list[int]:
        self._observer.rebalanced(event, len(partitions))
        return [partition.partition for partition in partitions]

    def activate(self) -> None:
        """Read the restored partitions; restore others while it is certain that they are owned."""
        for partition, restored in self.restorer.take_results(lambda: self.membership.now() is not None):
            self.pipeline.activate(partition, restored)
            self._observer.restored(time.monotonic() - self._waits_since[partition.number])
            self.assignment.start(self.settings.topic, partition.number, restored.start)
            if self.settings.feedback is not None:
                self.assignment.start(self.settings.feedback, partition.number, restored.feedback_start)

    def _request(self, partition: Waiting, delay: float = 0.0) -> None:
        self._waits_since[partition.number] = time.monotonic()
        self.restorer.request(partition, delay)

    def control_flow(self) -> None:
        """Pause reading while too many records wait for a commit, the schema or a generation."""
        settings, partitions, decoder = self.settings, self.pipeline.partitions, self.pipeline.decoder
        size = sum(partition.waiting.bytes for partition in partitions.values())
        is_full = self.commits.must_pause or size + decoder.bytes > MAX_AHEAD_BYTES
        has_sample = self.pipeline.schema is None and self.pipeline.n_waiting >= INFER_RECORDS
        max_waiting = float("inf") if self.pipeline.schema is None else max(MAX_AHEAD_RECORDS, settings.batch_size)
        must_wait = is_full or has_sample
        behind = {number for number, own in partitions.items() if must_wait or len(own.waiting) > max_waiting}
        places = {(settings.topic, number) for number in behind | decoder.to_pause}
        if settings.feedback is not None:
            full = {number for number, partition in partitions.items() if is_full or partition.labels.is_full}
            places |= {(settings.feedback, number) for number in full}
        self.assignment.pause(places)

    def _release(self, numbers: list[int]) -> None:
        """Score the records that were read of these partitions, commit, and give the partitions up."""
        if not any(number in self.pipeline.partitions for number in numbers):
            return
        deadline = time.monotonic() + RELEASE_S
        self.turned_at = time.monotonic()  # a probe must not restart the process while it waits for a commit
        self.commits.wait(deadline)
        if self.commits.is_under_way:  # others will have these partitions before the next commit
            self.commits.must_abort = True
        elif not self.commits.must_abort and not self._has_failed:  # after a failure, scoring would only fail again
            self.pipeline.finish(numbers)
            if not self.commits.begin():
                self.commits.lose()
            self.commits.wait(deadline)
        for number in numbers:
            partition = self.pipeline.partitions.get(number)
            self.pipeline.drop(number)
            if partition is not None:
                log.info(kv("released", topic=self.settings.topic, partition=number, offset=partition.committed))

    def _drop(self, numbers: list[int]) -> None:
        """Forget partitions that others may have, and commit nothing of them."""
        for number in numbers:
            if number in self.pipeline.partitions:
                self.commits.lose()
            self.pipeline.drop(number)
            log.warning(kv("lost", topic=self.settings.topic, partition=number))

    def _subscribe(self) -> None:
        callbacks = {"on_assign": self.on_assign, "on_revoke": self.on_revoke, "on_lost": self.on_lost}
        self._consumer.subscribe([self.settings.topic], **callbacks)

    def _check_membership(self, now: float) -> None:
        """Serve exactly the partitions that the client owns; join the group again when it owns others.

        Callbacks report each change, so a lasting difference means that a callback was missing or misunderstood.
        """
        self._membership_checked_at = now
        self.has_joined = bool(self._consumer.memberid())
        if self._is_leaving:
            if not self.assignment.owned():
                self._is_leaving = False
                self._subscribe()
            return
        if self.membership.was_removed:
            log.warning(kv("removed_from_group", effect="joining it again", hint="was this process suspended?"))
            self._leave()
            return
        owned, served = self.assignment.owned(), self.pipeline.partitions.keys()
        self._differs_since = None if owned == served else self._differs_since or now
        if self._differs_since is not None and now - self._differs_since > MAX_DIFFERENCE_S:
            places = {"not_served": sorted(owned - served), "not_owned": sorted(served - owned)}
            log.warning(kv("assignment_differs", **places, effect="joining the group again"))
            self._leave()

    def _leave(self) -> None:
        """Leave the group, as the client would claim partitions that others may have, and then join as a new member.

        librdkafka does not leave before a running rebalance is over, and a new subscription before that would undo the
        leave: it would keep partitions and never report them again. Therefore `_check_membership` subscribes again only
        when the client does not own any partition.
        """
        self._drop(list(self.pipeline.partitions))
        self.membership.lose()
        self._consumer.unsubscribe()
        self._is_leaving, self._differs_since = True, None

    def _restore_again(self, partitions: list[Waiting], delay: float) -> None:
        self.assignment.hold(partition.number for partition in partitions)
        for partition in partitions:
            self._request(partition, delay)

    def _compare_topics(self) -> None:
        changes = self.topics.compare(self.watch.answer)
        if changes.created or changes.missing:  # restoring waits for the topic, and decides which state is still valid
            self.commits.must_abort = True
        for topic in changes.resized:
            self.delivery.learn_partitions(topic)
