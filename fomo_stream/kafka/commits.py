"""Commits outputs, state and offsets together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import TopicPartition

from fomo_stream.kafka.delivery.base import Delivery, Outcome
from fomo_stream.kafka.delivery.call import SLICE_S
from fomo_stream.kafka.partition import PartitionTask
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.topics.report import TopicReport
from fomo_stream.logs import kv

log = logging.getLogger(__name__)

RETRY_S = 0.25  # between a commit that failed and the next try, times the number of failures squared
LONGEST_RETRY_S = 10.0


class Commits:
    """The commits of one instance, as a state machine. Each step is taken in a `turn` of the main loop.

    1. **Open.** Scores, dead letters and the effects of labels are sent as records are scored. With exactly-once,
       readers of committed records do not see them yet.
    2. **Stage.** When the commit interval is over or the delivery is full, every partition sends the changes of
       its state, and its offsets are noted (`Pipeline.stage`).
    3. **Commit.** The delivery commits outputs, state and offsets: with exactly-once in one transaction, with
       at-least-once the offsets last. The broker may take many turns to answer; outputs sent meanwhile belong to the
       next commit.
    4. **Committed.** The pipeline notes the committed offsets. Back to 1.
    5. **Abort**, if the commit has failed, or if something happened after which it must not succeed (`must_abort`):
       partitions were lost, a topic was created again, the next record is no longer retained. The delivery aborts
       everything since the last commit; with at-least-once, outputs that were sent stay. While the broker does not
       answer, this step is repeated.
    6. **Restore.** The pipeline forgets its partitions, and each is restored from the last commit before more of it
       is read. The first time at once; if commits keep failing, after longer and longer delays. Back to 1.

    So state is never kept if its records may be scored again.

    interval_s: seconds between commits. restore: called with the partitions to restore and a delay in seconds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        delivery: Delivery,
        consumer: Any,
        topics: TopicReport,
        interval_s: float,
        restore: Callable[[list[PartitionTask], float], None],
    ) -> None:
        self._pipeline = pipeline
        self._delivery = delivery
        self._consumer = consumer
        self._topics = topics
        self._interval_s = interval_s
        self._restore = restore
        self.must_abort = False
        self._due = 0.0  # when the next commit begins, seconds, monotonic
        self._staged: list[TopicPartition] = []  # offsets in the commit under way
        self._began = 0.0  # when it began, seconds, monotonic
        self._failures = 0  # commits that failed one after the other

    @property
    def is_under_way(self) -> bool:
        """Whether a commit has begun whose outcome is not known."""
        return self._delivery.is_committing

    @property
    def must_pause(self) -> bool:
        """Whether nothing more may be read until the commit, or the abort, is done."""
        return self._delivery.is_full or self.must_abort

    def turn(self, now: float) -> bool:
        """Take the next step, if its time has come. Returns whether a commit was due."""
        if self._delivery.is_committing:
            self._conclude(self._delivery.proceed())
        elif self.must_abort:
            self._abort()
        elif self._delivery.has_failed:
            self._conclude(Outcome.FAILED)
        elif now >= self._due or self._delivery.is_full:
            self._due = now + self._interval_s
            self.begin()
            return True
        return False

    def begin(self) -> None:
        """Steps 2 and 3."""
        self._began = time.monotonic()
        self._staged = self._pipeline.stage(self._topics.seen)
        if self._staged or self._delivery.sent:
            self._conclude(self._delivery.commit(self._staged, self._consumer))

    def wait(self, deadline: float) -> None:
        """Continue a commit that is under way until its outcome is known. deadline: seconds, monotonic."""
        while self._delivery.is_committing and time.monotonic() < deadline:
            self._conclude(self._delivery.proceed(SLICE_S))

    def lose(self) -> None:
        """A partition now belongs to another instance: commit nothing of it."""
        self.must_abort = self.must_abort or bool(self._delivery.sent) or self._delivery.is_committing

    def _conclude(self, outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            self._failures = 0
            self._pipeline.committed(self._staged, self._began, time.monotonic(), time.time())
        elif outcome is Outcome.FAILED:
            self.must_abort = True
            self._abort()

    def _abort(self) -> None:
        """Steps 5 and 6."""
        is_progress = self._delivery.has_refusal  # the next try sends a dead letter in place of the refused output
        if not self._delivery.abort():
            return
        self.must_abort = False
        # The first failure is often a rebalance: retry at once.
        delay = 0.0 if is_progress else min(RETRY_S * self._failures**2, LONGEST_RETRY_S)
        self._failures += 1
        tasks = self._pipeline.aborted(self._topics.seen.topic_ids)
        log.warning(kv("aborted", partitions=len(tasks), effect="back to the last commit", retry_in_s=delay))
        self._restore(tasks, delay)
