"""The records of a source as rows for the detectors, in blocks of equally many, with times that never descend."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fomo_stream.detector.series import Key
from fomo_stream.records.rows import RowReader
from fomo_stream.replaying.blocks import BLOCK, Float, Int, Sample

MOST_SKIPPED = 64 * BLOCK  # records without a score in a row after which a block of none is handed on
AROUND = 32  # records that say whether the time of one of them is right
MINUTE_MS = 60_000
LATEST = 2**62  # milliseconds; times can be subtracted up to here

IsStopped = Callable[[], bool]


class Lookahead(Iterator[Sample]):
    """The records of a source, and those that come next."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self._samples = samples
        self._next: deque[Sample] = deque()

    def __next__(self) -> Sample:
        return self._next.popleft() if self._next else next(self._samples)

    def upcoming(self, n: int) -> list[Sample]:
        """The next n records, or fewer at the end; they stay the next ones."""
        self._next.extend(islice(self._samples, max(0, n - len(self._next))))
        return list(islice(self._next, n))


class Gathered(NamedTuple):
    """The records of the next block, which nothing has scored yet."""

    samples: list[Sample]  # (n,) those that can be scored
    rows: Float  # (n, d)
    keys: list[Key]  # (n,)
    missing: Int  # (n,) how many features have no value
    skipped: Counter[str]  # the other records, by reason
    position: int  # offset of the next record
    is_last: bool  # the source has no more
    later: list[int | None]  # timestamps of the AROUND - 1 records after these, or fewer at the end


def gather(samples: Lookahead, reader: RowReader, position: int, is_stopped: IsStopped, size: int = BLOCK) -> Gathered:
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
        [sample.timestamp for sample in samples.upcoming(AROUND - 1)],
    )


@dataclass
class Clock:
    """Times of records, made never to descend.

    A time counts if it is after 1970, from `begin` to `now`, and not after most of the times of the next 31 records: a
    clock that jumps ahead is believed only if it stays there. A record whose time does not count, or is before that of
    an earlier record, gets the time of the record before. The first records get the first time that counts; there, a
    few times long before all others do not count, because clocks often start in 1970. The last time of all has only
    those before it to be compared with. Otherwise times do not depend on where blocks end.

    >>> clock = Clock(now=100)
    >>> times, n_odd = clock.times([None, 7, 5, 90, 8, 1000], later=[9, 10])
    >>> times.tolist(), n_odd
    ([7, 7, 7, 7, 8, 8], 1)
    """

    now: int  # milliseconds since 1970
    begin: int = 0  # of the range, where it is known
    last: int | None = None  # time of the last record

    def times(self, stamps: Sequence[int | None], later: Sequence[int | None] = ()) -> tuple[Int, int]:
        """Times (n,) of the next records from their timestamps, and how many had none or differ by over a minute.

        later: timestamps of the next 31 records after them, or fewer if there are no more.
        """
        n = len(stamps)
        if not n:
            return np.zeros(0, dtype=np.int64), 0
        given = np.array(
            [-1 if one is None else min(max(one, -1), LATEST) for one in (*stamps, *later)], dtype=np.int64
        )
        places = np.flatnonzero((given >= max(1, self.begin)) & (given <= self.now))
        values = given[places]
        counts = _stays(values)
        if self.last is None:
            counts &= values >= _lowest(values[counts][:AROUND], AROUND // 2)
        if not later:
            counts[-1:] &= values[-1:] <= -_lowest(-values[counts][-AROUND:], 1)
        known = np.full(len(given), -1, dtype=np.int64)
        known[places[counts]] = values[counts]
        start = next((time for time in known.tolist() if time > 0), self.begin) if self.last is None else self.last
        times: Int = np.maximum.accumulate(np.maximum(known[:n], start))
        self.last = int(times[-1])
        return times, int(((given[:n] < 0) | (np.abs(times - given[:n]) > MINUTE_MS)).sum())


def _stays(times: Int) -> NDArray[np.bool_]:
    """Whether at least half of the next 31 times are not before each of the times (n,); the last one has none."""
    after = np.arange(len(times))[::-1]  # how many times come after each
    padded = np.append(times, np.full(AROUND, -1))
    following = sliding_window_view(padded[1:], AROUND - 1)[: len(times)]
    not_before = (following >= times[:, None]).sum(axis=1)
    return np.asarray(2 * not_before >= np.minimum(after, AROUND - 1))


def _lowest(times: Int, most: int) -> int:
    """The lowest time, without those that are farther below the others than the others are from each other.

    At most `most` are left out, and only if there are AROUND // 2 others.
    """
    ordered = np.sort(times)
    n = min(most, len(ordered) - AROUND // 2)
    if n <= 0:
        return int(ordered[0]) if len(ordered) else 0
    gaps, spans = np.diff(ordered)[:n], ordered[-1] - ordered[1 : n + 1]
    far = np.flatnonzero(gaps > np.maximum(spans, MINUTE_MS))
    return int(ordered[far[-1] + 1 if len(far) else 0])
