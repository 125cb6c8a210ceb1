"""Commits outputs, state and offsets together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from fomo_stream.kafka.delivery.base import CommitOutcome, Delivery
from fomo_stream.kafka.delivery.transactions import SLICE_S
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.topics.watch import TopicReport
from fomo_stream.logs import kv
from fomo_stream.partition.partition import Waiting

log = logging.getLogger(__name__)

POSTPONE_S = 2.0  # less than the shortest session timeout
RETRY_S = 0.25  # between a commit that failed and the next try, times the number of failures squared
MAX_RETRY_S = 10.0
BEHIND_S = 0.5  # between commits while records have piled up: a commit costs as much as many records


class Membership:
    """The confirmed membership of a consumer, under which an instance commits.

    The broker accepts a commit of every member of the group's present generation, also for partitions of other members.
    And the client may renew its membership before it reports lost partitions: if the group has removed an instance
    that was suspended for long, `rd_kafka_cgrp_handle_JoinGroup` of librdkafka joins again under another member id, and
    keeps its former partitions until the group's leader has assigned all again. Therefore a commit carries the
    membership of the last callback that confirmed the owned partitions, never a fresh one.

    is_by_broker: the broker assigns (`group.protocol=consumer`, KIP-848). Then the epoch of a member also rises without
    a callback. This is safe: a removed member gets another epoch only after its callback for lost partitions.
    """

    def __init__(self, consumer: Any, is_by_broker: bool = False) -> None:
        self._consumer, self._is_by_broker = consumer, is_by_broker
        self._confirmed: Any = None
        self._refused: Any = None
        self._id = ""  # the member id that owns partitions
        self.was_removed = False  # the group removed this instance, and the client did not report it

    def confirm(self, owns: bool) -> bool:
        """Confirm, in a callback, that the remaining partitions are owned under the present membership.

        owns: there were partitions before. Return False if they were lost in between; see `was_removed`.
        """
        membership = self._consumer.consumer_group_metadata()
        member_id = self._consumer.memberid()
        if not member_id or (owns and member_id != self._id):
            self._confirmed, self.was_removed = None, True
            return False
        self._confirmed, self._id = membership, member_id
        return True

    def now(self) -> Any:
        """Return the membership to commit with; None while it is not certain which partitions are owned."""
        if not self._id:
            return None
        fresh = self._consumer.consumer_group_metadata()
        if fresh == self._confirmed:
            return fresh
        member_id = self._consumer.memberid()
        if member_id and member_id != self._id:
            self.was_removed = True
        elif member_id and self._is_by_broker and fresh != self._refused:
            self._confirmed = fresh
            return fresh
        return None

    def refuse(self, membership: Any = None) -> None:
        """Note that the broker refuses this membership (None: the present one). Only a callback confirms another."""
        if membership is None or membership == self._confirmed:
            self._confirmed, self._refused = None, membership

    def lose(self) -> None:
        """Note that all partitions are lost."""
        self._confirmed, self._id, self.was_removed = None, "", False


class Commits:
    """The commits of one instance, as a state machine. Each step is taken in a `turn` of the main loop.

    1. **Open.** Scores and dead letters are sent as records are scored. With exactly-once,
       readers of committed records do not see them yet.
    2. **Stage.** When a commit is due or the delivery is full, every partition sends the changes of its state, and its
       offsets are noted (`Pipeline.stage`). While the service is behind, its records are late anyway: commits are then
       rare, so that it catches up sooner.
    3. **Commit.** The delivery commits outputs, state and offsets: with exactly-once in one transaction, with
       at-least-once the offsets last. The broker may take many turns to answer; outputs sent meanwhile belong to the
       next commit.
    4. **Committed.** The pipeline notes the committed offsets. Back to 1.
    5. **Abort**, if the commit has failed, or if something happened after which it must not succeed (`must_abort`):
       partitions were lost, a topic was created again, the next record is no longer retained, a record raised an error
       that nobody expected. The delivery aborts everything since the last commit; with at-least-once, outputs that were
       sent stay. While the broker does not answer, this step is repeated.
    6. **Restore.** The pipeline forgets its partitions, and each is restored from the last commit before more of it
       is read. The first time at once; if commits keep failing, after longer and longer delays. Back to 1.

    So state is never kept if its records may be scored again.

    interval_s: shortest time between the beginnings of two commits, seconds. restore: called with the partitions to
    restore and a delay in seconds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        delivery: Delivery,
        consumer: Any,
        membership: Membership,
        topics: TopicReport,
        interval_s: float,
        restore: Callable[[list[Waiting], float], None],
    ) -> None:
        self._pipeline, self._delivery = pipeline, delivery
        self._consumer, self._membership, self._topics = consumer, membership, topics
        self._interval_s, self._restore = interval_s, restore
        self._member: Any = None  # membership of the last commit that began
        self._postponed_since: float | None = None  # seconds, monotonic: since then the membership is not certain
        self.must_abort = False
        self.due = 0.0  # when the next commit begins, seconds, monotonic
        self._staged: list[TopicPartition] = []  # offsets in the commit under way
        self._began = 0.0  # when it began, seconds, monotonic
        self._failures = 0  # commits that failed one after the other

    @property
    def is_under_way(self) -> bool:
        """Return whether a commit has begun whose outcome is not known."""
        return self._delivery.is_committing

    @property
    def must_pause(self) -> bool:
        """Return whether reading must pause until the commit, or the abort, is done."""
        return self._delivery.is_full or self.must_abort

    def is_due(self, now: float, is_behind: bool = False) -> bool:
        """Return whether the next `turn` begins a commit.

        is_behind: since a commit was due, there were always more records than were read.
        """
        if self._delivery.is_committing or self.must_abort or self._delivery.has_failed:
            return False
        return self._delivery.is_full or (now >= self.due and not (is_behind and now < self._began + BEHIND_S))

    def turn(self, now: float, is_behind: bool = False) -> bool:
        """Take the next step, if its time has come. Returns whether a commit was due."""
        if self._delivery.is_committing:
            self._conclude(self._delivery.proceed())
        elif self.must_abort:
            self._abort()
        elif self._delivery.has_failed:
            self._conclude(CommitOutcome.FAILED)
        elif self.is_due(now, is_behind):
            self.due = now + (self._interval_s if self.begin() else 0)
            return True
        return False

    def begin(self) -> bool:
        """Take steps 2 and 3. Return False if it must not commit now, as it is not certain which partitions it owns."""
        if self._pipeline.guard.has_failed:
            self.must_abort = True
            return False
        self._began = time.monotonic()
        member = self._membership.now()
        if member is None:
            self._postpone(self._began)
            return False
        self._postponed_since = None
        if member != self._member and self._committed_by_others():
            self.must_abort = True
            return False
        self._member = member
        self._staged = self._pipeline.stage(self._topics.answer)
        if self._staged or self._delivery.sent:
            self._conclude(self._delivery.commit(self._staged, self._consumer, member))
        return True

    def _committed_by_others(self) -> bool:
        """Return whether another instance has committed partitions since this one did. Called for a new membership.

        This is a second check, in case the group or the client is wrong. If the broker does not answer, the commit
        itself will wait for it.
        """
        own = self._pipeline.committed_offsets()
        try:
            committed = self._consumer.committed(list(own), timeout=SLICE_S) if own else []
        except KafkaException as error:
            log.debug(kv("offsets_unknown", reason=error.args[0].str()))
            return False
        others = [partition.partition for partition in committed if partition.offset > own[partition]]
        if others:
            log.warning(kv("committed_by_another", partitions=others, effect="back to the last commit"))
        return bool(others)

    def _postpone(self, now: float) -> None:
        """Wait for the membership, but not for long. Most rebalances take milliseconds, and then the commit is still
        possible. But later the transaction would time out, and another instance may have the partitions.
        """
        self._postponed_since = self._postponed_since or now
        if now - self._postponed_since > POSTPONE_S and self._delivery.sent:
            self._membership.refuse()
            self.must_abort = True

    def wait(self, deadline: float) -> None:
        """Continue a commit that is under way until its outcome is known. deadline: seconds, monotonic."""
        while self._delivery.is_committing and time.monotonic() < deadline:
            self._conclude(self._delivery.proceed(SLICE_S))

    def lose(self) -> None:
        """Note that another instance owns a partition: commit nothing of it."""
        self.must_abort = self.must_abort or bool(self._delivery.sent) or self._delivery.is_committing

    def _conclude(self, outcome: CommitOutcome) -> None:
        if outcome is CommitOutcome.COMMITTED:
            self._failures = 0
            self._pipeline.committed(self._staged, self._began, time.monotonic(), time.time())
        elif outcome is not CommitOutcome.PENDING:
            if outcome is CommitOutcome.REFUSED:
                self._membership.refuse(self._member)
            self.must_abort = True
            self._abort()

    def _abort(self) -> None:
        """Take steps 5 and 6."""
        # With a faulty record known, or searched for, the next attempt makes progress: do not delay it.
        is_progress = self._delivery.refusals.has_found or self._pipeline.guard.has_failed
        if not self._delivery.abort():
            return
        self.must_abort = False
        # The first failure is often a rebalance: retry at once.
        delay = 0.0 if is_progress else min(RETRY_S * self._failures**2, MAX_RETRY_S)
        self._failures += 1
        partitions = self._pipeline.aborted(self._topics.answer.topic_ids)
        log.info(kv("aborted", partitions=len(partitions), effect="back to the last commit", retry_in_s=delay))
        self._restore(partitions, delay)
