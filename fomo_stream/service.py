"""The service: the loop, rebalances and shutdown. It is the only place that orders effects.

One thread does everything: it polls a record, hands it to the `Pipeline`, and once every few milliseconds
takes a *turn*: scores what is due, serves acknowledgements, commits, and adapts to what the broker reports.

Delivery is at least once. An offset is committed only when the broker has acknowledged the output (score or
dead letter) of every record below it. An output that cannot be delivered is produced again from memory until
it can; its partition's offset does not pass it meanwhile, and reading pauses when too much waits. After a
crash the records since the last commit are read, and their outputs written, once more.

Labels from the feedback topic are applied between micro-batches. A label's offset is committed with the input's, when
it has taken effect, the broker has the record of where, and the outputs of the records before that.

Detector state is in memory. A partition that moves to another instance, or a restart, warms up again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.assignment import Assignment
from fomo_stream.broker import make_consumer, make_producer, to_record
from fomo_stream.errors import BrokerError
from fomo_stream.feedback import LabelQueue
from fomo_stream.group_schema import GroupSchema
from fomo_stream.health import HealthServer
from fomo_stream.logs import Throttle, kv
from fomo_stream.outbox import Outbox
from fomo_stream.pipeline import Observation, PartitionTask, Pipeline, Progress
from fomo_stream.schema import Schema
from fomo_stream.schema_search import SchemaSearch
from fomo_stream.settings import ServiceSettings
from fomo_stream.topics import TopicsSeen, TopicWatch, pin_latest

if TYPE_CHECKING:
    from fomo_stream.model import ZeroShotModel

__all__ = ["Observation", "Service"]

log = logging.getLogger(__name__)

TURN_S = 0.005  # acknowledgements, batch ages and the rest are looked at this often
IDLE_POLL_S = 0.1
FLUSH_S = 10.0  # a rebalance or shutdown waits this long for acknowledgements
PROGRESS_S = 10.0
STALLED_AFTER_S = 120.0
LATE_RECORDS = 1024  # a partition whose next generation is not built yet is read about this far ahead


class Service:
    """Scores one topic as a member of a consumer group, until it is stopped.

    model: a loaded checkpoint; None loads the one that the settings name.
    observer: called after each micro-batch, from the service's thread.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: ZeroShotModel | None = None,
        observer: Callable[[Observation], None] | None = None,
    ) -> None:
        self._settings = settings
        self._model = model
        self._observer = observer
        self._stopping = threading.Event()
        self._throttle = Throttle()
        self._state = "starting"
        self._fatal: KafkaError | None = None
        self._joined = False
        self._is_full = False
        self._commit_at = 0.0
        self._progress_at = 0.0
        self._turned_at = time.monotonic()
        self._seen = TopicsSeen({}, {})

    # --- from other threads -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask `run` to drain, commit and leave the group. Safe from any thread and from a signal handler."""
        self._stopping.set()

    @property
    def ready(self) -> bool:
        """Whether records that arrive now are scored."""
        return not self.not_ready()

    def not_ready(self) -> list[str]:
        """Why records are not being scored; empty when they are."""
        if self._state != "running":
            return [f"the service is {self._state}"]
        reasons = [] if self._joined else ["not yet a member of the group"]
        if self._seen.trouble:
            reasons.append(f"the broker does not answer: {self._seen.trouble}")
        else:
            needed = (self._settings.topic, self._settings.out, self._settings.dead_letters)
            gone = [topic for topic in needed if topic not in self._seen.partitions]
            reasons += [f"topic {topic} does not exist any more" for topic in gone]
        reasons += [reason for reason in (self._search.trouble, self._outbox.trouble) if reason]
        return reasons

    def not_live(self) -> list[str]:
        """Why the process should be restarted; empty while the loop turns."""
        stalled = time.monotonic() - self._turned_at
        return [f"the loop has not turned for {stalled:.0f} s"] if stalled > STALLED_AFTER_S else []

    # --- start, loop, end ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Score records until `stop`. Raises FomoError when it cannot start, or has to give up."""
        settings = self._settings
        with ExitStack() as stack:
            if settings.health_port is not None:
                stack.enter_context(HealthServer(settings.health_port, self.not_live, self.not_ready))
            stack.callback(setattr, self, "_state", "stopped")
            self._start(stack)
            try:
                self._loop()
            except BaseException:
                self._state = "failed"
                raise
            self._state = "stopping"
            self._release(list(self._pipeline.tasks))

    def _loop(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(self._patience())
            now = time.monotonic()
            if message is not None:
                if message.error() is not None:
                    self._on_error(message.error())
                elif message.topic() == self._settings.feedback:
                    self._pipeline.receive_label(to_record(message), self._assignment.exists)
                else:
                    self._pipeline.receive(to_record(message), now)
            if now >= self._turned_at + TURN_S:
                self._turn(now)

    def _start(self, stack: ExitStack) -> None:
        """Check everything that can be wrong, agree on the schema where it is known, and join the group."""
        settings = self._settings
        self._warn_of_settings()
        if self._model is None:
            from fomo_stream.checkpoint import load_model

            self._model = load_model(settings.model, settings.device)
        self._watch = TopicWatch(settings)
        stack.callback(self._watch.stop)
        self._watch.start()
        self._seen = self._watch.seen
        self._outbox = Outbox(partial(make_producer, settings), settings.max_in_flight)
        stack.callback(self._outbox.close)
        executor = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="fomo-generation"))
        self._pipeline = Pipeline(
            settings, self._model, self._outbox, executor, lambda: self._seen.partitions, self._observer
        )
        group_schema = GroupSchema(settings)
        self._search = SchemaSearch(settings, group_schema, self._pipeline)
        if settings.features is not None:
            # Before the group is bound to them.
            self._pipeline.check(Schema.of(settings.features, settings.categorical))
            self._pipeline.begin(group_schema.agree_on_flags(settings.features))
        elif (schema := group_schema.stored()) is not None:
            self._pipeline.check(schema)
            self._pipeline.begin(schema)
        self._consumer = make_consumer(settings, error_cb=self._on_error, on_commit=self._on_commit)
        stack.callback(self._consumer.close)
        self._assignment = Assignment(self._consumer, settings.topic, settings.feedback)
        if settings.start == "latest":
            for topic in filter(None, (settings.topic, settings.feedback)):
                pin_latest(self._consumer, topic, self._seen.partitions[topic])
        self._consumer.subscribe(
            [settings.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._state = "running"
        log.info(kv("started", topic=settings.topic, out=settings.out, group=settings.group))

    def _warn_of_settings(self) -> None:
        """Say which settings are of no use as they are."""
        settings = self._settings
        if settings.admit == "feedback" and settings.feedback is None and settings.seed_context is None:
            hint = "--admit feedback without --feedback or --seed-context: nothing is learned after the warm-up"
            log.warning(kv("check_settings", hint=hint))
        if settings.feedback is not None and settings.feedback_memory == 0:
            log.warning(kv("check_settings", hint="--feedback-memory 0: every label comes too late"))

    def _patience(self) -> float:
        """Seconds that a poll may wait for a record before there is something else to do."""
        busy = self._outbox.outstanding or any(len(task.batch) for task in self._pipeline.tasks.values())
        return TURN_S if busy else IDLE_POLL_S

    def _turn(self, now: float) -> None:
        """Everything that is not reading a record."""
        self._turned_at = now
        if self._pipeline.schema is None:
            self._search.look(now)
        self._pipeline.score_due(now)
        self._outbox.poll()
        if now >= self._commit_at:
            self._commit_at = now + self._settings.commit_interval_ms / 1000
            self._commit(self._pipeline.tasks, wait=False)
            self._joined = bool(self._consumer.memberid())
        self._control_flow()
        self._look_at_topics()
        if now >= self._progress_at:
            self._log_progress(now)
        if self._fatal is not None:
            raise BrokerError(f"the broker has put this instance out of the group: {self._fatal.str()}")

    # --- offsets and rebalances ---------------------------------------------------------------------------

    def _commit(self, numbers: Iterable[int], wait: bool) -> None:
        """Commit what is acknowledged; a failure leaves it to the next time."""
        tasks = [self._pipeline.tasks[number] for number in numbers if number in self._pipeline.tasks]
        offsets = [offset for task in tasks for offset in self._uncommitted(task)]
        if not offsets:
            return
        try:
            wait = wait and not self._seen.trouble  # a broker that is gone would keep us here
            done = self._consumer.commit(offsets=offsets, asynchronous=not wait)
            self._on_commit(None, done or [])
        except KafkaException as error:
            self._on_commit(error.args[0], [])

    def _uncommitted(self, task: PartitionTask) -> list[TopicPartition]:
        """What is finished and not committed yet, of a partition and of its labels."""
        done = task.tracker.committable
        offsets = [(self._settings.topic, done, task.committed)]
        if self._settings.feedback is not None:
            offsets.append((self._settings.feedback, task.labels.settle(done), task.labels.committed))
        return [
            TopicPartition(topic, task.number, offset)
            for topic, offset, committed in offsets
            if offset is not None and offset != committed and topic in self._seen.partitions
        ]

    def _on_commit(self, error: KafkaError | None, offsets: Iterable[Any]) -> None:
        for offset in offsets:
            error = error or offset.error
            task = self._pipeline.tasks.get(offset.partition)
            if offset.error is None and task is not None:
                committed = task.labels if offset.topic == self._settings.feedback else task
                committed.committed = offset.offset
        if error is not None and self._throttle.allow("commit") is not None:
            log.warning(kv("commit_failed", topic=self._settings.topic, reason=error.str()))

    def _on_assign(self, _consumer: Any, partitions: list[Any]) -> None:
        self._joined = True
        self._assignment.take(partition.partition for partition in partitions)
        for partition in partitions:
            self._pipeline.add(partition.partition)
            log.info(kv("assigned", topic=partition.topic, partition=partition.partition))

    def _on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        self._release([partition.partition for partition in partitions])
        self._assignment.give_up(partition.partition for partition in partitions)

    def _on_lost(self, _consumer: Any, partitions: list[Any]) -> None:
        """Another instance may have them already: nothing may be committed."""
        for partition in partitions:
            self._drop(partition.partition)
            log.warning(kv("lost", topic=partition.topic, partition=partition.partition))
        self._assignment.give_up(partition.partition for partition in partitions)

    def _release(self, numbers: list[int]) -> None:
        """Finish what was read of these partitions, commit it, and give them up."""
        if not any(number in self._pipeline.tasks for number in numbers):
            return
        if self._state != "failed":  # after an error in scoring, scoring again would only fail again
            self._pipeline.finish(numbers)
        if not self._outbox.flush(1.0 if self._seen.trouble else FLUSH_S):
            log.warning(kv("not_flushed", outstanding=self._outbox.outstanding, effect="read again by the next owner"))
        self._commit(numbers, wait=True)
        for number in numbers:
            task = self._pipeline.tasks.get(number)
            self._drop(number)
            if task is not None:
                log.info(kv("released", topic=self._settings.topic, partition=number, offset=task.committed))

    def _drop(self, number: int) -> None:
        self._pipeline.drop(number)
        self._assignment.resume(number)

    # --- what the broker reports --------------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        """An error event of the consumer: the client goes on by itself, unless it is fatal."""
        if error.fatal():
            self._fatal = error
        if self._throttle.allow(error.name()) is not None:
            log.warning(kv("consumer_error", name=error.name(), reason=error.str()))

    def _control_flow(self) -> None:
        """Stop reading while too much waits: for acknowledgements, for the schema, or for a generation."""
        tasks = self._pipeline.tasks
        self._is_full = self._outbox.is_full or (self._is_full and not self._outbox.has_room)
        if self._pipeline.schema is None:
            enough = sum(len(task.batch) for task in tasks.values()) >= self._settings.infer_records
            wanted = set(tasks) if self._is_full or enough else set()
        else:
            most = max(LATE_RECORDS, self._settings.batch_size)
            wanted = {number for number, task in tasks.items() if self._is_full or len(task.batch) > most}
        places = {(self._settings.topic, number) for number in wanted}
        if self._settings.feedback is not None:
            full = {number for number, task in tasks.items() if self._is_full or task.labels.is_full}
            places |= {(self._settings.feedback, number) for number in full}
        self._assignment.pause(places)

    def _look_at_topics(self) -> None:
        """Compare what the broker says about the topics with what it said before."""
        before, self._seen = self._seen, self._watch.seen.remembering(self._seen)
        if before == self._seen:
            return
        topic = self._settings.topic
        if self._seen.trouble != before.trouble:
            if self._seen.trouble:
                log.warning(kv("broker_unreachable", reason=self._seen.trouble, effect="retrying"))
            else:
                log.info(kv("broker_reachable"))
        for gone in before.partitions.keys() - self._seen.partitions.keys():
            log.warning(kv("topic_missing", topic=gone, effect="waiting until it is created again"))
        if self._seen.has_new(topic, before):
            self._restart_topic()
        if self._settings.feedback is not None and self._seen.has_new(self._settings.feedback, before):
            self._restart_feedback()

    def _restart_topic(self) -> None:
        """The topic was created anew: its old offsets mean nothing, so go on from its beginning."""
        log.warning(kv("topic_created_anew", topic=self._settings.topic, effect="reading from its beginning"))
        self._pipeline.finish(list(self._pipeline.tasks))  # what was read of the old one gets its output
        for number in list(self._pipeline.tasks):
            self._pipeline.add(number)
        self._assignment.rewind(self._settings.topic, self._pipeline.tasks)

    def _restart_feedback(self) -> None:
        """The same with the feedback topic; labels of the old one that wait for their record are forgotten."""
        assert self._settings.feedback is not None
        log.warning(kv("topic_created_anew", topic=self._settings.feedback, effect="reading from its beginning"))
        for task in self._pipeline.tasks.values():
            task.labels = LabelQueue()
        self._assignment.rewind(self._settings.feedback, self._pipeline.tasks)

    def _log_progress(self, now: float) -> None:
        done, self._pipeline.progress = self._pipeline.progress, Progress()
        elapsed = now - self._progress_at + PROGRESS_S
        self._progress_at = now + PROGRESS_S
        if done.records or done.dead_letters or done.labels:
            latencies = sorted(done.seconds)
            p99 = latencies[int(0.99 * len(latencies))] * 1000 if latencies else None
            log.info(
                kv(
                    "progress",
                    records=done.records,
                    per_second=round(done.records / elapsed, 1),
                    outliers=done.outliers,
                    missing=done.missing,
                    dead_letters=done.dead_letters,
                    labels=done.labels,
                    regimes=done.regimes,
                    in_flight=self._outbox.outstanding,
                    poll_to_acknowledged_p99_ms=p99,
                )
            )
