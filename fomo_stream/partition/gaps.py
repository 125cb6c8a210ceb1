"""The gaps between the records of a series: which is usual, and after how long a gap it counts as silent. Pure.

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
from typing import NamedTuple

BUCKETS = 64  # so the longest gap is 2**31 floors
GAPS_PER_LONGER_ONE = 100  # one gap of so many may be longer than the usual one
MAX_GAPS = 250  # then all counts are halved
MIN_GAPS = 3  # fewer tell nothing
MIN_MATURE_GAPS = 20  # gaps after which a series tells what is usual in its partition; also the most that others count
MIN_MATURE_SHARE = 0.95
RENEWED_UNTIL, RENEWED_EVERY = 50, 16  # gaps: the limit is renewed with each until here, then with each 16th
CHANCE = 1e-9
NO_LIMIT_MS = 2**62  # milliseconds
KEY, PARTITION, TOPIC = LEVELS = ("key", "partition", "topic")
FIRST_KEY = 2  # numbers of series: 0 is the partition, 1 the topic
_ROW, _GAPS = struct.Struct("<qqqqBH"), struct.Struct("<Hq")  # around the name; the counts follow


class SilenceConfig(NamedTuple):
    """What is watched. factor: times the usual gap; None: nothing."""

    factor: float | None
    least_ms: int = 60_000  # the shortest silence
    levels: tuple[str, ...] = LEVELS
    max_keys: int = 100_000

    @property
    def floor(self) -> float:
        """Milliseconds; shorter gaps are none."""
        return self.least_ms / (self.factor or 1.0)


def young_factor(m: float) -> float:
    """By how much the limit of a series with m gaps is longer than with many.

    >>> [round(young(m), 1) for m in (3, 10, 30, 1000)]
    [144.6, 3.4, 1.4, 1.0]
    """
    return m * math.expm1(-math.log(CHANCE) / m) / -math.log(CHANCE)


class PeerGaps:
    """Number, mean and sum of squares of the logarithm of the usual gaps of series that have GROWN_UP."""

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
        if self.n < max(MIN_MATURE_GAPS, MIN_MATURE_SHARE * n_series):
            return 0.0
        return min(float(MIN_MATURE_GAPS), self.n / max(self.squares, 1e-9))


class GapSeries:
    """A key, a partition or a topic: when it had records, and how far apart. All times are milliseconds.

    Each has its own clock, on which only that time passes in which the level above it had records.

    >>> series, config = Series(0), SilenceConfig(factor=5.0, least_ms=60_000)
    >>> for _ in range(100): series.add(30_000, config)
    >>> 30_000 <= series.usual(config.floor) <= 42_427, series.limit > 150_000
    (True, True)
    """

    __slots__ = ("counts", "due", "last", "limit", "mark", "name", "number", "offset", "seen", "time")

    def __init__(self, number: int, name: bytes | None = None, now: int = 0) -> None:
        self.number, self.name = number, name
        self.last = self.mark = now  # its last record, and the last one that ended a gap or a burst
        self.offset = self.time = 0  # of its last record; when that arrived, since 1970
        self.due = NO_LIMIT_MS  # when a key is looked at next
        self.limit = NO_LIMIT_MS  # without a record for longer than this it is silent; NEVER: not known yet
        self.seen = 0  # gaps, at most MOST_GAPS
        self.counts = bytearray()  # the histogram, as far as it is not zero

    def add(self, gap: float, config: SilenceConfig, others: PeerGaps | None = None, n_keys: int = 0) -> None:
        """Another gap of at least the floor. others: of its partition, which has n_keys; None: it has none."""
        floor = config.floor
        bucket = 0 if gap <= floor else min(BUCKETS - 1, math.ceil(2 * math.log2(gap / floor)))
        self.counts.extend(bytes(max(0, bucket + 1 - len(self.counts))))
        self.counts[bucket] += 1
        if sum(self.counts) >= MAX_GAPS:
            self.counts = bytearray(count >> 1 for count in self.counts)
        n = self.seen = min(self.seen + 1, MAX_GAPS)
        if others is not None and n == MIN_MATURE_GAPS:
            others.add(self.usual(floor))
        if n < MIN_GAPS or (n > RENEWED_UNTIL and sum(self.counts) % RENEWED_EVERY):
            return
        usual, more = self.usual(floor), 0.0
        if others is not None and (more := others.weight(n_keys)):
            usual = max(usual, (n * usual + more * math.exp(others.mean)) / (n + more))
        self.limit = max(config.least_ms, round((config.factor or 1.0) * young_factor(n + more) * usual))

    @property
    def level(self) -> str:
        """Whose series it is."""
        return (PARTITION, TOPIC, KEY)[min(self.number, FIRST_KEY)]

    def usual(self, floor: float) -> float:
        """The usual gap: all but one of a hundred are at most so long. Zero if none is known."""
        allowed = sum(self.counts) // GAPS_PER_LONGER_ONE
        for bucket in range(len(self.counts) - 1, -1, -1):
            allowed -= self.counts[bucket]
            if allowed < 0:
                return floor * math.sqrt(2.0**bucket)
        return 0.0

    def encode(self, flag: int) -> bytes:
        """All but its number. flag: a byte."""
        name = self.name or b""
        head = _ROW.pack(self.last, self.mark, self.offset, self.time, flag, len(name))
        return head + name + _GAPS.pack(self.seen, self.limit) + self.counts.rstrip(b"\0")

    def decode(self, data: bytes) -> int:
        """The reverse of `encode`; returns the flag. Raises ValueError and struct.error."""
        self.last, self.mark, self.offset, self.time, flag, length = _ROW.unpack_from(data)
        at = _ROW.size + length
        self.name = data[_ROW.size : at] if self.number >= FIRST_KEY else None
        self.seen, self.limit = _GAPS.unpack_from(data, at)
        self.counts = bytearray(data[at + _GAPS.size :])
        if len(self.counts) > BUCKETS or sum(self.counts) >= MAX_GAPS:
            raise ValueError("the gaps of a series do not fit")
        return int(flag)
