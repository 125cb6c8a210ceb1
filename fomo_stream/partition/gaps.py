"""The gaps between the records of a series: the usual gap, and the limit after which a series is silent. Pure.

Records with a gap shorter than `floor` belong together, as a burst. The other gaps go into a histogram with two buckets
for each factor of two. The usual gap is its 99th percentile, so one long outage among a hundred gaps does not change
it. All counts are halved from time to time, so that old gaps are forgotten.

A few gaps say little about the longest one. If gaps have no memory (Poisson arrivals, mean unknown), the next gap is
longer than `m * (CHANCE ** (-1 / m) - 1)` times the mean of m gaps with the probability CHANCE. This, divided by its
value for many gaps, is the factor for a young series. If keys are alike, the other keys of the partition count as gaps,
too: their number is one over the variance of the logarithm of their usual gaps. But they count only if nearly all keys
have had many gaps: before that, the slow keys are missing from the mean.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

BUCKETS = 64  # so the longest gap is 2**31 floors
GAPS_PER_LONGER_ONE = 100  # one of so many gaps may be longer than the usual one
MAX_GAPS = 250  # in the histogram; then all counts are halved
MIN_GAPS = 3  # fewer say nothing about the usual gap
MIN_MATURE_GAPS = 20  # of a series that counts for young ones; also the most gaps that all of them count as
MIN_MATURE_SHARE = 0.95  # of the keys of a partition, before they count for young ones
RENEWED_UNTIL, RENEWED_EVERY = 50, 16  # gaps: the limit is computed with each of the first, then with each 16th
CHANCE = 1e-9
NO_LIMIT_MS = 2**62
KEY, PARTITION, TOPIC = LEVELS = ("key", "partition", "topic")
FIRST_KEY = 2  # numbers of series: 0 is the partition, 1 the topic
_ROW, _GAPS = struct.Struct("<qqqqBH"), struct.Struct("<Hq")  # before and after the name; the counts follow


class SilenceConfig(NamedTuple):
    """The settings of silence. factor: of the usual gap; None: nothing is watched."""

    factor: float | None
    min_ms: int = 60_000  # the shortest silence
    levels: tuple[str, ...] = LEVELS
    max_keys: int = 100_000

    @property
    def floor(self) -> float:
        """Return the shortest gap that counts, in milliseconds."""
        return self.min_ms / (self.factor or 1.0)


def young_factor(m: float) -> float:
    """Return the factor by which the limit of a series with m gaps is longer than with many gaps.

    >>> [round(young_factor(m), 1) for m in (3, 10, 30, 1000)]
    [144.6, 3.4, 1.4, 1.0]
    """
    return m * math.expm1(-math.log(CHANCE) / m) / -math.log(CHANCE)


class PeerGaps:
    """Number, mean and sum of squares of the log of the usual gaps of series with MIN_MATURE_GAPS (Welford)."""

    def __init__(self, n: int = 0, mean: float = 0.0, squares: float = 0.0) -> None:
        self.n, self.mean, self.squares = n, mean, squares

    def add(self, gap: float) -> None:
        """Add the usual gap of another series."""
        self.n += 1
        deviation = math.log(gap) - self.mean
        self.mean += deviation / self.n
        self.squares += deviation * (math.log(gap) - self.mean)

    def weight(self, n_series: int) -> float:
        """Return the number of gaps that they count as for a young series, among so many series in all."""
        if self.n < max(MIN_MATURE_GAPS, MIN_MATURE_SHARE * n_series):
            return 0.0
        return min(float(MIN_MATURE_GAPS), self.n / max(self.squares, 1e-9))


class GapSeries:
    """The record times of a key, a partition or a topic, in milliseconds.

    Each has its own clock, which runs only while the level above it has records.

    >>> series, config = GapSeries(0), SilenceConfig(factor=5.0, min_ms=60_000)
    >>> for _ in range(100): series.add(30_000, config)
    >>> 30_000 <= series.usual(config.floor) <= 42_427, series.limit > 150_000
    (True, True)
    """

    __slots__ = ("counts", "due", "last", "limit", "mark", "n_gaps", "name", "number", "offset", "time")

    def __init__(self, number: int, name: bytes | None = None, now: int = 0) -> None:
        self.number, self.name = number, name
        self.last = self.mark = now  # its last record, and the last one that ended a gap or a burst
        self.offset = self.time = 0  # of its last record: the offset, and the arrival since 1970
        self.due = NO_LIMIT_MS  # the next check of a key
        self.limit = NO_LIMIT_MS  # it is silent after a longer time without a record; NO_LIMIT_MS: not known yet
        self.n_gaps = 0  # gaps, at most MAX_GAPS
        self.counts = bytearray()  # the histogram, without zeros at its end

    def add(self, gap: float, config: SilenceConfig, others: PeerGaps | None = None, n_keys: int = 0) -> None:
        """Add a gap of at least the floor. others: of its partition with n_keys; None: for partitions and topics."""
        floor = config.floor
        bucket = 0 if gap <= floor else min(BUCKETS - 1, math.ceil(2 * math.log2(gap / floor)))
        self.counts.extend(bytes(max(0, bucket + 1 - len(self.counts))))
        self.counts[bucket] += 1
        if sum(self.counts) >= MAX_GAPS:
            self.counts = bytearray(count >> 1 for count in self.counts)
        n = self.n_gaps = min(self.n_gaps + 1, MAX_GAPS)
        if others is not None and n == MIN_MATURE_GAPS:
            others.add(self.usual(floor))
        if n < MIN_GAPS or (n > RENEWED_UNTIL and sum(self.counts) % RENEWED_EVERY):
            return
        usual, peer_gaps = self.usual(floor), 0.0
        if others is not None and (peer_gaps := others.weight(n_keys)):
            usual = max(usual, (n * usual + peer_gaps * math.exp(others.mean)) / (n + peer_gaps))
        self.limit = max(config.min_ms, round((config.factor or 1.0) * young_factor(n + peer_gaps) * usual))

    @property
    def level(self) -> str:
        """Return the level: key, partition or topic."""
        return (PARTITION, TOPIC, KEY)[min(self.number, FIRST_KEY)]

    def usual(self, floor: float) -> float:
        """Return the usual gap: all but one of a hundred gaps are at most so long. 0: not known."""
        allowed = sum(self.counts) // GAPS_PER_LONGER_ONE
        for bucket in range(len(self.counts) - 1, -1, -1):
            allowed -= self.counts[bucket]
            if allowed < 0:
                return floor * math.sqrt(2.0**bucket)
        return 0.0

    def encode(self, flag: int) -> bytes:
        """Return everything but its number, as bytes. flag: a byte."""
        name = self.name or b""
        head = _ROW.pack(self.last, self.mark, self.offset, self.time, flag, len(name))
        return head + name + _GAPS.pack(self.n_gaps, self.limit) + self.counts.rstrip(b"\0")

    def decode(self, data: bytes) -> int:
        """Reverse `encode`, and return the flag. Raises ValueError and struct.error."""
        self.last, self.mark, self.offset, self.time, flag, length = _ROW.unpack_from(data)
        name_end = _ROW.size + length
        self.name = data[_ROW.size : name_end] if self.number >= FIRST_KEY else None
        self.n_gaps, self.limit = _GAPS.unpack_from(data, name_end)
        self.counts = bytearray(data[name_end + _GAPS.size :])
        if len(self.counts) > BUCKETS or sum(self.counts) >= MAX_GAPS:
            raise ValueError("the gaps of a series do not fit")
        return int(flag)
