"""A file as a source: one partition, with the numbers of its records as offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fomo_stream.errors import RecordError
from fomo_stream.records.inference import key_of
from fomo_stream.records.schema import look_up
from fomo_stream.replaying.blocks import UNKNOWN, Sample
from fomo_stream.replaying.labels import NO_LABELS, Labels, verdict_of
from fomo_stream.replaying.sources.base import IsStopped
from fomo_stream.replaying.sources.tables import FileFormat, Table, open_table
from fomo_stream.replaying.sources.times import to_milliseconds


@dataclass(frozen=True)
class FileSource:
    """The records of a file, numbered from 0; a line that cannot be read has a number, too.

    key, time, label: fields with the series, the time and the label of a record. text: columns of CSV that stay text.
    unit: milliseconds of 1 where times are numbers. records: how many it has at most.
    """

    path: Path
    format: FileFormat
    text: frozenset[str] = frozenset()
    key: str | None = None
    time: str | None = None
    label: str | None = None
    unit: float = 1.0
    records: int | None = None
    labels: Labels = NO_LABELS
    partitions: tuple[int, ...] = (0,)
    decimal: str = "auto"  # mark of the numbers of CSV
    in_memory: Table | None = None  # the records, where they are no file

    @property
    def name(self) -> str:
        return self.path.name

    def start(self, partition: int) -> int:
        return 0

    def total(self, partition: int) -> int | None:
        return self.records

    def part(self, partition: int) -> FileSource:
        return self

    def table(self) -> Table:
        """The file, opened. Raises ConfigError or SchemaError."""
        if self.in_memory is not None:
            return self.in_memory
        extra = [field for field in (self.key, self.time, self.label) if field is not None]
        return open_table(self.path, self.format, self.text, extra, self.decimal)

    def with_times_in(self, unit: float) -> FileSource:
        return replace(self, unit=unit)

    def read(self, partition: int, start: int, is_stopped: IsStopped) -> Iterator[Sample]:
        for chunk in self.table().chunks(start):
            if is_stopped():
                return
            samples = [self._sample(offset, row) for offset, row in enumerate(chunk, start)]
            start += len(chunk)
            yield from self.labels.applied(samples)

    def _sample(self, offset: int, row: dict[str, object] | RecordError) -> Sample:
        if isinstance(row, RecordError):
            return Sample(offset, None, None, {}, row)
        return Sample(
            offset,
            None if self.time is None else to_milliseconds(look_up(row, self.time), self.unit),
            None if self.key is None else key_of(row, self.key),
            row,
            None,
            UNKNOWN if self.label is None else verdict_of(look_up(row, self.label)),
        )
