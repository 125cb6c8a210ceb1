"""The warm start of a group: it begins earlier in its topic, and learns without outputs up to its start.

The group's first instance notes in the group log the offset where each partition begins, and its end at that moment. So
every later owner of a partition knows both, also after restarts and rebalances. State and offsets of the warm-up are
committed as always; only outputs of records before the noted end are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition

from fomo_stream.kafka.broker.clients import START_TIMEOUT_S, broker_error, range_now
from fomo_stream.kafka.broker.topic_reader import TopicReader, raise_partition_error
from fomo_stream.kafka.group.group_log import GroupLog
from fomo_stream.kafka.topics.watch import TopicsAnswer
from fomo_stream.logs import kv
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

KIND = b"warm/"


@dataclass(frozen=True)
class WarmStart:
    """The offsets of the warm-up of each partition of a topic. topic_id: empty if the broker has no ids."""

    topic_id: str = ""
    spans: Mapping[int, range] = field(default_factory=dict)

    def of(self, number: int, topic_id: str) -> range:
        """Return the offsets of a partition whose records are learned without outputs; empty without a warm-up."""
        is_same = not self.topic_id or not topic_id or self.topic_id == topic_id
        return self.spans.get(number, range(0)) if is_same else range(0)


NO_WARM_START = WarmStart()


def agree_on_warm_start(settings: ServiceSettings, group_log: GroupLog, answer: TopicsAnswer, now_ms: int) -> WarmStart:
    """Return the group's warm start, the first one in its log. With --warm, a group without offsets gets one.

    Called before joining. now_ms: milliseconds since 1970. Raises BrokerError.
    """
    entries, topic = group_log.entries(KIND), settings.topic
    if settings.warm is not None:
        places = [TopicPartition(topic, number) for number in range(answer.partitions[topic])]
        try:
            with TopicReader(settings) as reader:
                if any(committed.offset != OFFSET_INVALID for committed in reader.committed(places, START_TIMEOUT_S)):
                    reason = "the group has offsets, and goes on from there"
                    log.info(kv("warm_start_without_effect", reason=reason))
                elif not entries:
                    spans = _spans(reader.client, places, settings.warm_s, now_ms)
                    bounds = {str(number): [span.start, span.stop] for number, span in spans.items()}
                    group_log.append(KIND, {"topic_id": answer.topic_ids.get(topic, ""), "partitions": bounds})
                    entries = group_log.entries(KIND)
                    log.info(kv("warm_start", topic=topic, offsets=sum(map(len, spans.values()))))
        except KafkaException as error:
            what = f"the offsets for --warm {settings.warm} could not be found"
            raise broker_error(error, what, "nothing is lost; restart the instance") from None
    if not entries:
        return NO_WARM_START
    with group_log.understanding():
        content = entries[0].content
        spans = {int(number): range(int(begin), int(end)) for number, (begin, end) in content["partitions"].items()}
        return WarmStart(str(content["topic_id"]), spans)


def _spans(consumer: Any, places: list[TopicPartition], seconds: float | None, now_ms: int) -> dict[int, range]:
    """Return by partition the offsets from the first record of the last `seconds` (None: of all) to the present end."""
    ends = {place.partition: range_now(consumer, place, START_TIMEOUT_S) for place in places}
    begins = {number: low for number, (low, _) in ends.items()}
    if seconds is not None:
        since_ms = max(0, now_ms - round(1000 * seconds))
        requests = [TopicPartition(place.topic, place.partition, since_ms) for place in places]
        firsts = consumer.offsets_for_times(requests, timeout=START_TIMEOUT_S)
        raise_partition_error(firsts)
        begins = {first.partition: first.offset if first.offset >= 0 else ends[first.partition][1] for first in firsts}
    return {number: range(min(begins[number], high), high) for number, (_, high) in ends.items()}
