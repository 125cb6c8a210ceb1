"""The service: the loop, rebalances and shutdown. It is the only place that orders effects.

One thread does everything: it polls a record, hands it to the `Pipeline`, and once every few milliseconds takes a
*turn*: scores what is due, commits, takes up partitions that were restored, and adapts to what the broker reports.

What is sent between two commits - scores, dead letters, what partitions have learned - and how far each partition was
read take effect together (`delivery`). When a commit fails, every partition goes back to the last one that did not:
its state is read from the store again, and its records from where that ends. The same happens when a partition comes
from another instance. So nothing that was learned from records that may be scored again is ever kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, TopicPartition

from fomo_stream.errors import FencedError
from fomo_stream.kafka.agreement import Agreement
from fomo_stream.kafka.assignment import Assignment
from fomo_stream.kafka.clients import START_TIMEOUT_S, make_consumer, make_producer, to_record
from fomo_stream.kafka.delivery.at_least_once import AtLeastOnce
from fomo_stream.kafka.delivery.base import SLICE_S, Call, Delivery, Outcome
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.kafka.group_log import GroupLog
from fomo_stream.kafka.group_schema import GroupSchema
from fomo_stream.kafka.observer import Observation
from fomo_stream.kafka.pipeline import Pipeline, check_schema
from fomo_stream.kafka.restore import Restorer
from fomo_stream.kafka.schema_search import SchemaSearch
from fomo_stream.kafka.topic_report import TopicReport
from fomo_stream.kafka.topic_setup import TopicSetup, start_at_latest
from fomo_stream.kafka.topic_watch import TopicWatch
from fomo_stream.logs import Throttle, kv
from fomo_stream.ops.health import HealthServer
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.model.zero_shot import ZeroShotModel

log = logging.getLogger(__name__)

TURN_S = 0.005  # delivery reports, batch ages and the rest are looked at this often
IDLE_POLL_S = 0.1
RELEASE_S = 10.0  # a rebalance or shutdown waits this long for a commit
CLOSE_S = 5.0  # and then this long to leave the group
RETRY_S = 0.25  # between a commit that failed and the next try, times the number of failures squared
LONGEST_RETRY_S = 10.0
PROGRESS_S = 10.0
STALLED_AFTER_S = 120.0
LATE_RECORDS = 1024  # a partition whose next generation is not built yet is read about this far ahead
LATE_BYTES = 32 << 20  # or this far, of all partitions together


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
        self._commit_at = 0.0
        self._staged: list[TopicPartition] = []  # offsets in the commit under way
        self._must_abort = False
        self._failures = 0  # commits that failed one after the other
        self._progress_at = 0.0
        self._turned_at = time.monotonic()
        self._topics = TopicReport(settings)

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
        reasons += self._topics.reasons()
        reasons += [reason for reason in (self._search.trouble, self._delivery.trouble) if reason]
        for task in list(self._pipeline.tasks.values()):
            if not task.is_active:
                why = self._restorer.waits.get(task.number, "its turn has not come yet")
                reasons.append(f"{self._settings.topic}[{task.number}] waits to be restored: {why}")
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
            if self._delivery.sent:
                log.warning(kv("not_committed", outputs=self._delivery.sent, effect="read again by the next owner"))

    def _loop(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(self._patience())
            now = time.monotonic()
            if message is not None:
                if message.error() is not None:
                    self._on_error(message.error())
                    if message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                        # What is to be read next is not kept any more: restoring decides what is to be done.
                        self._assignment.lose(message.topic(), message.partition())
                        self._must_abort = True
                elif message.topic() == self._settings.feedback:
                    self._pipeline.receive_label(to_record(message), self._assignment.exists)
                else:
                    self._pipeline.receive(to_record(message), now)
            if now >= self._turned_at + TURN_S:
                self._turn(now)

    def _start(self, stack: ExitStack) -> None:
        """Check everything that can be wrong, agree with the group, and join it."""
        settings = self._settings
        self._warn_of_settings()
        if self._model is None:
            from fomo_stream.model.checkpoint import load_model

            self._model = load_model(settings.model, settings.device)
        self._watch = TopicWatch(settings)
        stack.callback(self._watch.stop)
        setup = TopicSetup(settings, self._watch)
        setup.begin()
        if settings.features is not None:  # before the group is bound to anything
            check_schema(settings, self._model, Schema.of(settings.features, settings.categorical))
        group_log = GroupLog(settings)
        agreement = Agreement(settings, self._model.name, group_log)
        self._settings = settings = agreement.join()
        group_schema = GroupSchema(settings, group_log)
        schema = self._agree_on_schema(group_schema, self._model)
        setup.finish(is_known=not agreement.is_new)
        self._topics.begin(self._watch.seen)
        self._watch.start()
        # Only now may an instance be refused no more: this ends another one of the same name.
        self._delivery = self._open_delivery(setup.limits)
        stack.callback(self._delivery.close)
        executor = ThreadPoolExecutor(1, thread_name_prefix="fomo-generation")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        self._pipeline = Pipeline(
            settings, self._model, self._delivery, executor, lambda: self._topics.seen.partitions, self._observer
        )
        self._search = SchemaSearch(settings, group_schema, self._pipeline)
        if schema is not None:
            self._pipeline.begin(schema)
        self._restorer = Restorer(
            settings, self._watch, lambda task: self._pipeline.tasks.get(task.number) is task, agreement.check
        )
        stack.callback(self._restorer.stop)
        answers = {"on_commit": self._delivery.offsets_committed} if isinstance(self._delivery, AtLeastOnce) else {}
        self._consumer = make_consumer(settings, error_cb=self._on_error, **answers)
        stack.callback(self._leave)
        self._assignment = Assignment(self._consumer, settings.topic, settings.feedback)
        if settings.start == "latest":
            for topic in filter(None, (settings.topic, settings.feedback)):
                start_at_latest(self._consumer, topic, self._topics.seen.partitions[topic])
        self._consumer.subscribe(
            [settings.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._state = "running"
        log.info(kv("started", topic=settings.topic, out=settings.out, group=settings.group))

    def _agree_on_schema(self, group: GroupSchema, model: ZeroShotModel) -> Schema | None:
        """The group's schema; None: it has to be inferred from records."""
        flags = self._settings.features
        schema = group.stored() if flags is None else group.agree_on_flags(flags)
        if schema is not None:
            check_schema(self._settings, model, schema)
        return schema

    def _open_delivery(self, limits: Mapping[str, int]) -> Delivery:
        """limits: bytes that a record may have, of the topics where the broker tells."""
        settings = self._settings
        # What a batch may hold depends on how far it is compressed: then only the broker can tell.
        codecs = (settings.kafka.get(key, "none") for key in ("compression.type", "compression.codec"))
        is_compressed = any(codec != "none" for codec in codecs)
        more = {"batch.size": min([1_000_000, *limits.values()])}
        limits = {} if is_compressed else limits
        most = settings.commit_records
        if settings.delivery == "at-least-once":
            return AtLeastOnce(partial(make_producer, settings, None, **more), limits, most)
        delivery = ExactlyOnce(partial(make_producer, settings, settings.transactional_id, **more), limits, most)
        delivery.start(START_TIMEOUT_S)
        return delivery

    def _leave(self) -> None:
        """Leave the group. The client waits for the brokers for as long as it takes; the process must not."""
        if not Call(self._consumer.close).wait(CLOSE_S):
            effect = "its partitions go to others when its session times out"
            log.warning(kv("group_not_left", reason="the broker does not answer", effect=effect))

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
        busy = self._delivery.sent or any(
            len(task.batch) or not task.is_active for task in self._pipeline.tasks.values()
        )
        return TURN_S if busy else IDLE_POLL_S

    def _turn(self, now: float) -> None:
        """Everything that is not reading a record."""
        self._turned_at = now
        if self._pipeline.schema is None:
            self._search.look(now)
        self._pipeline.score_due(now)
        self._commit_or_abort(now)
        self._activate()
        self._control_flow()
        self._look_at_topics()
        if now >= self._progress_at:
            self._log_progress(now)
        if self._fatal is not None:
            raise FencedError(
                f"the broker has put this instance out of the group ({self._fatal.str()}); nothing is lost: start it "
                "again, with an --instance-id of its own if it has one"
            )

    # --- commits --------------------------------------------------------------------------------------------

    def _commit_or_abort(self, now: float) -> None:
        """Go on with what is under way; else commit when it is time, and go back when that failed."""
        if self._delivery.is_committing:
            self._conclude(self._delivery.proceed())
        elif self._must_abort:
            self._abort()
        elif self._delivery.has_failed:
            self._conclude(Outcome.FAILED)
        elif now >= self._commit_at or self._delivery.is_full:
            self._commit_at = now + self._settings.commit_interval_ms / 1000
            self._joined = bool(self._consumer.memberid())
            self._commit()

    def _commit(self) -> None:
        """Commit what was sent, what was learned, and how far each partition was read, all together."""
        self._staged = self._pipeline.stage(self._topics.seen)
        if self._staged or self._delivery.sent:
            self._conclude(self._delivery.commit(self._staged, self._consumer))

    def _conclude(self, outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            self._failures = 0
            self._pipeline.committed(self._staged, time.monotonic())
        elif outcome is Outcome.FAILED:
            self._must_abort = True
            self._abort()

    def _abort(self) -> None:
        """Undo what is not committed, and have every partition restored; if the broker does not answer, later."""
        is_progress = self._delivery.has_refusal  # next time that output is a dead letter
        if not self._delivery.abort():
            return
        self._must_abort = False
        # The first time at once: it may have been a rebalance. Then less and less often.
        delay = 0.0 if is_progress else min(RETRY_S * self._failures**2, LONGEST_RETRY_S)
        self._failures += 1
        tasks = self._pipeline.aborted(self._topics.seen.topic_ids)
        log.warning(kv("aborted", partitions=len(tasks), effect="back to the last commit", retry_in_s=delay))
        self._assignment.hold(task.number for task in tasks)
        for task in tasks:
            self._restorer.request(task, delay)

    def _activate(self) -> None:
        """Take up the partitions that were restored."""
        for task, restored in self._restorer.take_results():
            self._pipeline.activate(task, restored)
            self._assignment.start(self._settings.topic, task.number, restored.start)
            if self._settings.feedback is not None:
                self._assignment.start(self._settings.feedback, task.number, restored.feedback_start)

    # --- rebalances -----------------------------------------------------------------------------------------

    def _on_assign(self, _consumer: Any, partitions: list[Any]) -> None:
        self._joined = True
        self._topics.shared_out()
        numbers = [partition.partition for partition in partitions]
        self._assignment.take(numbers)
        for number in numbers:
            self._add(number)
            log.info(kv("assigned", topic=self._settings.topic, partition=number))

    def _add(self, number: int) -> None:
        """Begin a partition, or begin it again, as soon as it is restored."""
        self._restorer.request(self._pipeline.add(number, self._topics.seen.topic_ids))

    def _on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        numbers = [partition.partition for partition in partitions]
        self._release(numbers)
        self._assignment.give_up(numbers)

    def _on_lost(self, _consumer: Any, partitions: list[Any]) -> None:
        """Another instance may have them already: nothing may be committed."""
        for partition in partitions:
            if partition.partition in self._pipeline.tasks:
                self._must_abort = self._must_abort or bool(self._delivery.sent) or self._delivery.is_committing
            self._pipeline.drop(partition.partition)
            log.warning(kv("lost", topic=partition.topic, partition=partition.partition))
        self._assignment.give_up(partition.partition for partition in partitions)

    def _release(self, numbers: list[int]) -> None:
        """Finish what was read of these partitions, commit it, and give them up."""
        if not any(number in self._pipeline.tasks for number in numbers):
            return
        deadline = time.monotonic() + RELEASE_S
        self._await_commit(deadline)
        if self._delivery.is_committing:
            self._must_abort = True  # what was sent since, of partitions that others have by the next commit
        elif not self._must_abort and self._state != "failed":  # scoring again would only fail again
            self._pipeline.finish(numbers)
            self._commit()
            self._await_commit(deadline)
        for number in numbers:
            task = self._pipeline.tasks.get(number)
            self._pipeline.drop(number)
            if task is not None:
                log.info(kv("released", topic=self._settings.topic, partition=number, offset=task.committed))

    def _await_commit(self, deadline: float) -> None:
        """Go on with a commit that is under way until its outcome is known, or the time is up."""
        while self._delivery.is_committing and time.monotonic() < deadline:
            self._turned_at = time.monotonic()
            self._conclude(self._delivery.proceed(SLICE_S))

    # --- what the broker reports --------------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        """An error event of the consumer: the client goes on by itself, unless it is fatal."""
        if error.fatal():
            self._fatal = error
        if self._throttle.allow(error.name()) is not None:
            log.warning(kv("consumer_error", name=error.name(), reason=error.str()))

    def _control_flow(self) -> None:
        """Stop reading while too much waits: for a commit, for the schema, or for a generation."""
        tasks = self._pipeline.tasks
        size = sum(item.size() for task in tasks.values() for item in task.batch.items)
        is_full = self._delivery.is_full or self._must_abort or size > LATE_BYTES
        if self._pipeline.schema is None:
            enough = sum(len(task.batch) for task in tasks.values()) >= self._settings.infer_records
            wanted = set(tasks) if is_full or enough else set()
        else:
            most = max(LATE_RECORDS, self._settings.batch_size)
            wanted = {number for number, task in tasks.items() if is_full or len(task.batch) > most}
        places = {(self._settings.topic, number) for number in wanted}
        if self._settings.feedback is not None:
            full = {number for number, task in tasks.items() if is_full or task.labels.is_full}
            places |= {(self._settings.feedback, number) for number in full}
        self._assignment.pause(places)

    def _look_at_topics(self) -> None:
        """Act on what the broker says about the topics."""
        changes = self._topics.look(self._watch.seen)
        self._must_abort = self._must_abort or changes.created  # restoring will find out what is of use
        for topic in changes.resized:
            self._delivery.learn_partitions(topic)

    def _log_progress(self, now: float) -> None:
        line = self._pipeline.progress.take_line(now - self._progress_at + PROGRESS_S)
        self._progress_at = now + PROGRESS_S
        if line:
            log.info(line)
