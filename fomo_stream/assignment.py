"""What this instance reads: input partitions that the group deals it, each with the feedback partition of its number.

The group's consumer subscribes to the input alone, so that instances with and without a feedback topic can be members
of one group, and the assignor has no say in which feedback partition goes where: it rides along with the input's, added
and removed in the same rebalance callback. One consumer reads both, and commits both at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from fomo_stream.logs import kv

log = logging.getLogger(__name__)

WATERMARK_TIMEOUT_S = 1.0


class Assignment:
    """The partitions of a consumer that has subscribed to `topic`; feedback: the topic that rides along, if any."""

    def __init__(self, consumer: Consumer, topic: str, feedback: str | None) -> None:
        self._consumer = consumer
        self._topic = topic
        self._feedback = feedback
        self.paused: set[tuple[str, int]] = set()  # topic and partition

    def take(self, numbers: Iterable[int]) -> None:
        """In the callback that assigns these input partitions: read them, with their feedback, from where the group is.

        A feedback partition that does not exist yet is read once it does.
        """
        if self._feedback is not None:  # else the client does it
            self._consumer.incremental_assign(self._with_feedback(numbers))

    def give_up(self, numbers: Iterable[int]) -> None:
        """In the callback that revokes these input partitions: stop reading them and their feedback."""
        if self._feedback is not None:
            self._consumer.incremental_unassign(self._with_feedback(numbers))

    def pause(self, wanted: set[tuple[str, int]]) -> None:
        """Read everything but these partitions."""
        for change, places in (
            (self._consumer.pause, wanted - self.paused),
            (self._consumer.resume, self.paused - wanted),
        ):
            if places:
                change([TopicPartition(*place) for place in places])
        self.paused = wanted

    def resume(self, number: int) -> None:
        """Forget that an input partition and its feedback are paused: the client would remember if they came back."""
        self.pause({place for place in self.paused if place[1] != number})

    def rewind(self, topic: str, numbers: Iterable[int]) -> None:
        """Read these partitions from their beginning."""
        for number in numbers:
            try:
                self._consumer.seek(TopicPartition(topic, number, OFFSET_BEGINNING))
            except KafkaException as error:  # not ours any more; whoever gets it starts at the beginning
                log.debug(kv("seek_failed", topic=topic, partition=number, reason=error.args[0].str()))

    def exists(self, number: int, offset: int) -> bool:
        """Whether an input partition reaches beyond an offset; yes when the broker does not say."""
        for cached in (True, False):  # what the last fetch has told is enough for nearly all
            try:
                marks = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, number), timeout=WATERMARK_TIMEOUT_S, cached=cached
                )
            except KafkaException:
                marks = None
            if marks is not None and offset < marks[1]:
                return True
        return marks is None

    def _with_feedback(self, numbers: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in numbers for topic in (self._topic, self._feedback)]
