"""A topic as a source: a range of offsets of each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from fomo_stream.errors import RecordError
from fomo_stream.kafka.ranges import Range, read_range
from fomo_stream.partition.record import Record
from fomo_stream.records.json_codec import decode
from fomo_stream.records.schema import look_up
from fomo_stream.replaying.blocks import UNKNOWN, Sample
from fomo_stream.replaying.labels import NO_LABELS, Labels, verdict_of
from fomo_stream.replaying.sources.base import IsStopped
from fomo_stream.settings.replay import ReplaySettings

CHUNK = 64  # records whose labels are looked up at once


@dataclass(frozen=True)
class TopicSource:
    """The records of a range of `settings.topic`, read as the service reads them. labels: by partition."""

    settings: ReplaySettings
    ranges: Mapping[int, Range]
    labels: Mapping[int, Labels] = field(default_factory=dict)

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(self.ranges)

    @property
    def name(self) -> str:
        return self.settings.topic

    def start(self, partition: int) -> int:
        return self.ranges[partition].start

    def total(self, partition: int) -> int | None:
        return self.ranges[partition].records

    def part(self, partition: int) -> TopicSource:
        of_it = {partition: self.labels[partition]} if partition in self.labels else {}
        return replace(self, ranges={partition: self.ranges[partition]}, labels=of_it)

    def read(self, partition: int, start: int, is_stopped: IsStopped) -> Iterator[Sample]:
        records = read_range(self.settings, self.settings.topic, self.ranges[partition], start, is_stopped)
        samples = map(self._sample, records)
        labels = self.labels.get(partition, NO_LABELS)
        if not labels:
            yield from samples
            return
        while chunk := list(islice(samples, CHUNK)):
            yield from labels.applied(chunk)

    def _sample(self, record: Record) -> Sample:
        offset, timestamp, key = record.offset, record.timestamp, record.key
        try:
            fields = decode(record.value, self.settings.max_record_bytes)
        except RecordError as error:
            return Sample(offset, timestamp, key, {}, error)
        field = self.settings.label
        label = UNKNOWN if field is None else verdict_of(look_up(fields, field))
        return Sample(offset, timestamp, key, fields, None, label, record.value)
