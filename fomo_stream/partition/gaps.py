"""The usual gap between the records of a series, and after how long a gap it counts as silent. Pure.

A gap shorter than `floor` is none: such records belong together, as a burst. Of the others a histogram is kept, with
two buckets for each factor of two. The usual gap is its 99th percentile. All counts are halved from time to time, so
that old gaps are forgotten. One long outage among a hundred gaps changes nothing.

Few gaps say little about the longest one. If gaps have no memory (Poisson arrivals, mean unknown), the next one is
longer than `m * (CHANCE ** (-1 / m) - 1)` times the mean of m gaps with the chance CHANCE. How much that is more than
for many gaps is the factor for a young series. Where keys are alike, the others of the partition count as gaps, too:
their number is one over the variance of the logarithm of their usual gaps. But they count only if nearly all keys have
had many gaps: else it is not known yet how slow the slow ones are.
"""

from __future__ import annotations

import math
import struct
from array import array

BUCKETS = 64  # so the longest gap is 2**31 floors
QUANTILE_OUTSIDE = 100  # one gap of so many may be longer than the usual one
MOST_GAPS = 250  # then all counts are halved
LEAST_GAPS = 3  # fewer tell nothing
GROWN_UP = 20  # gaps after which a series tells what is usual in its partition; also the most that others count
NEARLY_ALL = 0.95
RENEWED_UNTIL, RENEWED_EVERY = 50, 16  # gaps: the limit is renewed with each until here, then with each 16th
CHANCE = 1e-9
NEVER = 2**62  # milliseconds
_ROW = struct.Struct("<Hq")


def young(m: float) -> float:
    """By how much the limit of a series with m gaps is longer than with many.

    >>> [round(young(m), 1) for m in (3, 10, 30, 1000)]
    [144.6, 3.4, 1.4, 1.0]
    """
    return m * math.expm1(-math.log(CHANCE) / m) / -math.log(CHANCE)


class Others:
    """Mean and variance of the logarithm of the usual gaps of series that have GROWN_UP."""

    def __init__(self, n: int = 0, mean: float = 0.0, squares: float = 0.0) -> None:
        self.n, self.mean, self.squares = n, mean, squares

    def add(self, gap: float) -> None:
        """Another series has this usual gap."""
        self.n += 1
        before = math.log(gap) - self.mean
        self.mean += before / self.n
        self.squares += before * (math.log(gap) - self.mean)

    def weight(self, n_series: int) -> float:
        """The gaps of a young series that they count as, if there are so many series in all."""
        if self.n < max(GROWN_UP, NEARLY_ALL * n_series):
            return 0.0
        return min(float(GROWN_UP), self.n / max(self.squares, 1e-9))

    def plain(self) -> list[float]:
        """For JSON."""
        return [self.n, self.mean, self.squares]


class Gaps:
    """The gaps of many series, by their numbers. Times are milliseconds.

    factor: times the usual gap is silent; least: and at least so long. apart: the first so many series are no keys.

    >>> gaps = Gaps(factor=5.0, least=60_000)
    >>> gaps.grow(1)
    >>> for _ in range(100): gaps.add(0, 30_000)
    >>> 30_000 <= gaps.usual(0) <= 42_427, gaps.limit[0] > 150_000
    (True, True)
    """

    def __init__(self, factor: float, least: int, apart: int = 0) -> None:
        self.factor, self.least, self._apart = factor, least, apart
        self.floor = least / factor
        self.others = Others()
        self.limit = array("q")  # milliseconds without a record after which a series is silent; NEVER: not known yet
        self._seen = array("H")  # gaps, at most MOST_GAPS
        self._totals = array("H")  # gaps in the histogram
        self._counts = bytearray()  # BUCKETS for each series

    def __len__(self) -> int:
        return len(self.limit)

    def grow(self, n: int) -> None:
        """Room for n series."""
        more = n - len(self)
        self.limit.extend([NEVER] * more)
        self._seen.extend([0] * more)
        self._totals.extend([0] * more)
        self._counts.extend(bytes(BUCKETS * more))

    def forget(self, number: int) -> None:
        """The number is of a new series."""
        self.limit[number], self._seen[number], self._totals[number] = NEVER, 0, 0
        self._counts[number * BUCKETS : (number + 1) * BUCKETS] = bytes(BUCKETS)

    def add(self, number: int, gap: float, is_one_of_many: bool = True) -> None:
        """Another gap of at least `floor`.

        is_one_of_many: whether it can be compared with the other series.
        """
        bucket = 0 if gap <= self.floor else min(BUCKETS - 1, math.ceil(2 * math.log2(gap / self.floor)))
        self._counts[number * BUCKETS + bucket] += 1
        self._totals[number] += 1
        if self._totals[number] >= MOST_GAPS:
            self._halve(number)
        seen = self._seen[number] = min(self._seen[number] + 1, MOST_GAPS)
        if is_one_of_many and seen == GROWN_UP:
            self.others.add(self.usual(number))
        if seen <= RENEWED_UNTIL or self._totals[number] % RENEWED_EVERY == 0:
            self._renew(number, is_one_of_many)

    def usual(self, number: int) -> float:
        """The usual gap: all but one of a hundred are at most so long. Zero if none is known."""
        allowed = self._totals[number] // QUANTILE_OUTSIDE
        counts = self._counts[number * BUCKETS : (number + 1) * BUCKETS].rstrip(b"\0")
        for bucket in range(len(counts) - 1, -1, -1):
            allowed -= counts[bucket]
            if allowed < 0:
                return self.floor * math.sqrt(2.0**bucket)
        return 0.0

    def _renew(self, number: int, is_one_of_many: bool) -> None:
        n, own = self._seen[number], self.usual(number)
        if n < LEAST_GAPS:
            return
        more = self.others.weight(len(self) - self._apart) if is_one_of_many else 0.0
        usual = max(own, (n * own + more * math.exp(self.others.mean)) / (n + more)) if more else own
        self.limit[number] = max(self.least, round(self.factor * young(n + more) * usual))

    def _halve(self, number: int) -> None:
        at = slice(number * BUCKETS, (number + 1) * BUCKETS)
        self._counts[at] = bytes(count >> 1 for count in self._counts[at])
        self._totals[number] = sum(self._counts[at])

    def encode(self, number: int) -> bytes:
        """What is known of a series."""
        counts = self._counts[number * BUCKETS : (number + 1) * BUCKETS].rstrip(b"\0")
        return _ROW.pack(self._seen[number], self.limit[number]) + counts

    def decode(self, number: int, data: bytes) -> None:
        """The reverse of `encode`. Raises ValueError."""
        counts = data[_ROW.size :]
        if len(data) < _ROW.size or len(counts) > BUCKETS or sum(counts) >= MOST_GAPS:
            raise ValueError("the gaps of a series do not fit")
        self._seen[number], self.limit[number] = _ROW.unpack(data[: _ROW.size])
        self._counts[number * BUCKETS : (number + 1) * BUCKETS] = counts.ljust(BUCKETS, b"\0")
        self._totals[number] = sum(counts)
