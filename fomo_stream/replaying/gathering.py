"""The records of a source as rows for the detectors, in blocks of equally many, with times that never descend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import NamedTuple

import numpy as np

from fomo_stream.detector.series import Key
from fomo_stream.records.rows import RowReader
from fomo_stream.replaying.blocks import BLOCK, Float, Int, Sample

MOST_SKIPPED = 64 * BLOCK  # records without a score in a row after which a block of none is handed on

IsStopped = Callable[[], bool]


class Gathered(NamedTuple):
    """The records of the next block, which nothing has scored yet."""

    samples: list[Sample]  # (n,) those that can be scored
    rows: Float  # (n, d)
    keys: list[Key]  # (n,)
    missing: Int  # (n,) how many features have no value
    skipped: Counter[str]  # the other records, by reason
    position: int  # offset of the next record
    is_last: bool  # the source has no more


def gather(
    samples: Iterator[Sample], reader: RowReader, position: int, is_stopped: IsStopped, size: int = BLOCK
) -> Gathered:
    """Take records until `size` of them can be scored, or the source ends, or `is_stopped`.

    position: offset of the next record. As in the service, a record is not scored if it is malformed, or has no value
    of any feature.
    """
    found: list[Sample] = []
    parts = [reader.read([], [])]
    skipped: Counter[str] = Counter()
    is_last = False
    while len(found) < size and not is_last and not is_stopped():
        chunk = list(islice(samples, size - len(found)))
        is_last = not chunk
        position = chunk[-1].offset + 1 if chunk else position
        sound = [sample for sample in chunk if sample.error is None]
        if len(sound) < len(chunk):
            skipped.update(sample.error.reason for sample in chunk if sample.error is not None)
        if sound:
            parts.append(reader.read([sample.fields for sample in sound], [sample.key for sample in sound]))
            usable = list(compress(sound, parts[-1].usable.tolist()))
            found += usable
            if len(usable) < len(sound):
                skipped["no_features"] += len(sound) - len(usable)
        if not found and skipped.total() >= MOST_SKIPPED:
            break
    return Gathered(
        found,
        np.concatenate([part.rows for part in parts]),
        [key for part in parts for key in part.keys],
        np.concatenate([part.missing[part.usable] for part in parts]),
        skipped,
        position,
        is_last,
    )


@dataclass
class Clock:
    """Times of records, made never to descend.

    A time that is missing, after `now` or before the time of the record before becomes the time before; at the very
    start it becomes the first good one of the block.

    >>> clock = Clock(now=100)
    >>> times, n_odd = clock.times([None, 7, 5, 8, 1000])
    >>> times.tolist(), n_odd
    ([7, 7, 7, 8, 8], 3)
    """

    now: int  # milliseconds since 1970
    last: int | None = None  # time of the last record

    def times(self, stamps: Sequence[int | None]) -> tuple[Int, int]:
        """Times (n,) of the next records from their timestamps, and how many differ."""
        given = [-1 if stamp is None or not 0 <= stamp <= self.now else stamp for stamp in stamps]
        if not given:
            return np.zeros(0, dtype=np.int64), 0
        start = next((stamp for stamp in given if stamp >= 0), 0) if self.last is None else self.last
        times = np.maximum.accumulate(np.maximum(np.array(given, dtype=np.int64), start))
        self.last = int(times[-1])
        return times, int((times != given).sum())
