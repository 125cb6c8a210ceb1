"""How large the state of partitions is. Only reading the state topic tells: its offsets count removed records, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException

from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.settings.service import ServiceSettings

STALLED_S = 5.0  # to wait for the next record


@dataclass(frozen=True)
class StateSize:
    """Size of one partition's state."""

    entries: int  # that are in use
    bytes: int  # of their keys and values
    log_records: int  # all that a restore reads: also those that compaction will remove
    log_bytes: int


def state_sizes(
    settings: ServiceSettings, spans: Mapping[int, tuple[int, int]], seconds: float
) -> tuple[dict[int, StateSize], str]:
    """Sizes by partition, of as many partitions as can be read in `seconds`; and why others are missing, if any are.

    spans: first offset and end of the committed records, by partition of the state topic.
    """
    deadline = time.monotonic() + seconds
    sizes: dict[int, StateSize] = {}
    late = f"they could not be read in {seconds:g} s; give more with --state-seconds"
    with TopicReader(settings, is_stopped=lambda: time.monotonic() >= deadline) as reader:
        for number, span in spans.items():
            if time.monotonic() >= deadline:
                return sizes, late
            try:
                sizes[number] = _size(reader, settings.state_topic, number, span, lambda: time.monotonic() >= deadline)
            except NoProgressError as error:
                return sizes, late if time.monotonic() >= deadline else f"{settings.state_topic}[{number}]: {error}"
            except KafkaException as error:
                return sizes, f"{settings.state_topic}[{number}]: {error.args[0].str()}"
    return sizes, ""


def _size(
    reader: TopicReader, topic: str, number: int, span: tuple[int, int], is_late: Callable[[], bool]
) -> StateSize:
    live: dict[bytes, int] = {}
    log_records = log_bytes = 0
    for message in reader.read(topic, {number: span}, STALLED_S):
        key, value = message.key() or b"", message.value()
        log_records += 1
        log_bytes += len(key) + len(value or b"")
        live.pop(key, None)
        if value is not None:
            live[key] = len(key) + len(value)
        if log_records % 1024 == 0 and is_late():
            raise NoProgressError("no time")
    return StateSize(len(live), sum(live.values()), log_records, log_bytes)
