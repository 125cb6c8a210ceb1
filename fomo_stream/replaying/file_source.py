"""A table of records as a source, and the times in it: numbers since 1970, or ISO 8601 text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Real
from statistics import median
from typing import Any, Literal

from fomo_stream.errors import RecordError
from fomo_stream.records.inference import key_of
from fomo_stream.records.schema import look_up
from fomo_stream.replaying.blocks import UNKNOWN, IsStopped, Sample
from fomo_stream.replaying.labels import NO_LABELS, Labels, verdict_of
from fomo_stream.replaying.tables import Table

# Seconds of the year 5138 are milliseconds of 1973; the same holds between the other units.
_UNITS = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (math.inf, 1e-6))  # largest number, milliseconds of 1
_MOST_MS = 2**62
_LARGEST = 1e300


@dataclass(frozen=True)
class FileSource:
    """The records of a file or of data in memory, numbered from 0; a line that cannot be read has a number, too.

    key, time, label: fields with the series, the time and the label of a record. unit: milliseconds of 1 where times
    are numbers.
    """

    name: str
    table: Table
    key: str | None = None
    time: str | None = None
    label: str | None = None
    unit: float = 1.0
    labels: Labels = NO_LABELS
    partitions: tuple[int, ...] = (0,)
    kind: Literal["file", "memory"] = "file"

    def start(self, partition: int) -> int:
        return 0

    def total(self, partition: int) -> int | None:
        return self.table.count

    def part(self, partition: int) -> FileSource:
        return self

    def read(self, partition: int, is_stopped: IsStopped) -> Iterator[Sample]:
        start = 0
        for chunk in self.table.chunks():
            if is_stopped():
                return
            yield from self.labels.applied([self._sample(offset, row) for offset, row in enumerate(chunk, start)])
            start += len(chunk)

    def _sample(self, offset: int, row: dict[str, Any] | RecordError) -> Sample:
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


def milliseconds_of_one(values: Iterable[Any]) -> float:
    """The unit of the numbers in a file, in milliseconds, by the magnitude of the first ones.

    >>> milliseconds_of_one([1759276800, None]), milliseconds_of_one([1759276800000.0]), milliseconds_of_one([])
    (1000.0, 1.0, 1.0)
    """
    numbers = [abs(float(value)) for value in values if _is_number(value)]
    return next(unit for largest, unit in _UNITS if median(numbers) < largest) if numbers else 1.0


def to_milliseconds(value: Any, unit: float) -> int | None:
    """A time as milliseconds since 1970, None if it is no time. unit: of numbers; text without a zone is UTC.

    >>> to_milliseconds(1759276800.25, 1000.0), to_milliseconds("2025-10-01T02:00+02:00", 1.0)
    (1759276800250, 1759276800000)
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not _is_number(value):
        return None
    milliseconds = value * unit
    return round(milliseconds) if abs(milliseconds) < _MOST_MS else None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return -_LARGEST < value < _LARGEST  # type: ignore[operator]
