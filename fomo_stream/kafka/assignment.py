"""The partitions that this instance reads: its input partitions, each with the feedback partition of the same number.

The group's consumer subscribes to the input topic only, so the group assigns input partitions. The feedback partition
of the same number is added and removed with it, in the same rebalance callback. One consumer reads both and commits
both at once. So instances with and without a feedback topic can be members of one group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from fomo_stream.kafka.broker.cluster import PartitionId
from fomo_stream.logs import kv

log = logging.getLogger(__name__)

STALLED_S = 60.0  # a partition that does not move for so long is reported
WATERMARK_TIMEOUT_S = 1.0


class Assignment:
    """The partitions of a consumer that has subscribed to `topic`.

    feedback: the topic whose partitions are read together with the input's; None: without. An assigned partition is
    read only after `start` has set its first offset.
    """

    def __init__(self, consumer: Consumer, topic: str, feedback: str | None) -> None:
        self._consumer = consumer
        self._topics = (topic,) if feedback is None else (topic, feedback)
        self._held: set[PartitionId] = set()  # must not be read yet
        self._starts: dict[PartitionId, int] = {}  # first offsets that the client does not have yet
        self._lost: set[PartitionId] = set()  # the client has stopped reading these
        self.paused: set[PartitionId] = set()

    def take(self, numbers: Iterable[int]) -> None:
        """Add these partitions and their feedback, paused. Called in the assignment callback.

        A feedback partition that does not exist yet is read as soon as it exists.
        """
        places = self._places(numbers)
        partitions = [TopicPartition(*place, OFFSET_BEGINNING) for place in places]
        self._consumer.incremental_assign(partitions)
        self._consumer.pause(partitions)
        self.paused |= places
        self._held |= places

    def give_up(self, numbers: Iterable[int]) -> None:
        """Stop reading these partitions and their feedback. Called in the revocation callback."""
        places = self._places(numbers)
        self.hold(numbers)
        self._held -= places
        self._lost -= places
        self.pause({place for place in self.paused if place not in places})  # else they would come back paused
        self._consumer.incremental_unassign([TopicPartition(*place) for place in places])

    def hold(self, numbers: Iterable[int]) -> None:
        """Stop reading these input partitions and their feedback until `start` sets their offsets again."""
        places = self._places(numbers)
        self._held |= places
        for place in places:
            self._starts.pop(place, None)

    def start(self, topic: str, number: int, offset: int) -> None:
        """Read a partition from this offset on."""
        self._starts[topic, number] = offset

    def lose(self, topic: str, number: int) -> None:
        """Note that the client has stopped reading a partition, as the broker no longer retains the next record."""
        self._lost.add((topic, number))

    def pause(self, to_pause: set[PartitionId]) -> None:
        """Pause these partitions and those without a first offset; read all others."""
        self._seek()
        to_pause = to_pause | self._held
        if places := to_pause - self.paused:
            self._consumer.pause([TopicPartition(*place) for place in places])
        if places := self.paused - to_pause:
            self._consumer.resume([TopicPartition(*place) for place in places])
        self.paused = to_pause

    def _seek(self) -> None:
        for place, offset in list(self._starts.items()):
            partition = TopicPartition(*place, offset)
            try:
                self._consumer.seek(partition)
            except KafkaException as error:
                log.debug(kv("seek_failed", topic=place[0], partition=place[1], reason=error.args[0].str()))
                if place not in self._lost:  # the client has not begun to read it: try again later
                    continue
                # The client has stopped reading it, and cannot seek there: assign it again, with the offset.
                self._consumer.incremental_unassign([partition])
                self._consumer.incremental_assign([partition])
            self._lost.discard(place)
            del self._starts[place]
            self._held.discard(place)

    def owned(self) -> set[int]:
        """Return the input partitions that the client owns, as far as it knows; does not ask the broker."""
        return {owned.partition for owned in self._consumer.assignment() if owned.topic == self._topics[0]}

    def exists(self, number: int, offset: int) -> bool:
        """Return whether an input partition ends after an offset; True if the broker does not answer."""
        if offset < (self.known_end(number) or 0):  # nearly always the end as of the last fetch is enough
            return True
        end = self.known_end(number, is_cached=False)
        return end is None or offset < end

    def known_end(self, number: int, is_cached: bool = True) -> int | None:
        """Return the end of an input partition, or None. is_cached: as of the last fetch."""
        place = TopicPartition(self._topics[0], number)
        try:
            marks = self._consumer.get_watermark_offsets(place, timeout=WATERMARK_TIMEOUT_S, cached=is_cached)
        except (KafkaException, RuntimeError):  # RuntimeError: the consumer is closed
            return None
        return marks[1] if marks is not None and marks[1] >= 0 else None

    def read_until(self, number: int) -> int | None:
        """Return the offset up to which a partition was read, with markers of transactions."""
        try:
            (position,) = self._consumer.position([TopicPartition(self._topics[0], number)])
        except (KafkaException, RuntimeError):  # RuntimeError: the consumer is closed
            return None
        return position.offset if position.offset >= 0 else None

    def _places(self, numbers: Iterable[int]) -> set[PartitionId]:
        return {(topic, number) for number in numbers for topic in self._topics}
