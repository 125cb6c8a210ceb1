"""Bounds of a range of records, as a user writes them: `--from`, `--to` and `--last`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fomo_stream.errors import ConfigError
from fomo_stream.records.moments import moment_ms
from fomo_stream.wording import DURATIONS, SECONDS

EXAMPLES = "a time (2026-10-01, 2026-10-01T12:00Z), an offset (812), or an offset for each partition (0:812,1:790)"
MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True)
class Bound:
    """One bound of a range. At most one of its values is set; without any, it does not exclude records."""

    text: str = ""  # as in messages: `--from 812`; empty: all records
    time_ms: int | None = None  # milliseconds since 1970
    offset: int | None = None  # of all partitions
    offsets: dict[int, int] = field(default_factory=dict)  # by partition

    def offset_of(self, partition: int) -> int | None:
        """Return the offset of a partition; None if the bound is a time, or does not name this partition."""
        return self.offsets.get(partition, self.offset)


@dataclass(frozen=True)
class Range:
    """The offsets `start` to `end` - 1 of one partition; if they are equal, the range is empty."""

    partition: int
    start: int
    end: int
    first: int = 0  # first offset that the topic retains
    topic_id: str = ""  # of the topic when the range was found; empty: the broker has no ids

    @property
    def records(self) -> int:
        """Return the most records that it can have; offsets without a record count, too."""
        return self.end - self.start


def parse_bounds(from_: str, to: str, last: str, now_ms: int) -> tuple[Bound, Bound]:
    """Return both bounds of a range. Raises ConfigError if a text is not understood or the bounds are swapped.

    A time without a zone is in UTC. `last` counts back from `now_ms`, the present in milliseconds since 1970.
    """
    begin = _parse_last(last, now_ms) if last.strip() else _parse("--from", from_)
    end = _parse("--to", to)
    pairs = [(begin.time_ms, end.time_ms), (begin.offset, end.offset)]
    pairs += [(begin.offset_of(number), end.offset_of(number)) for number in {*begin.offsets, *end.offsets}]
    if any(first is not None and stop is not None and first > stop for first, stop in pairs):
        raise ConfigError(f"{begin.text} is after {end.text}; swap them, or leave one out")
    return begin, end


def gap_notes(topic: str, offsets: int, records: int) -> list[str]:
    """Return a sentence about offsets without a record, if there are any. records: number of records read."""
    if records >= offsets:
        return []
    return [
        f"{topic}: {offsets - records:,} of {offsets:,} offsets have no record to replay: they were removed by "
        "compaction, belong to aborted transactions, or mark the ends of transactions."
    ]


def _parse(flag: str, text: str) -> Bound:
    word = text.strip()
    name = f"{flag} {word}"
    if not word:
        return Bound()
    if re.fullmatch(r"\d+", word, re.ASCII):
        return Bound(name, offset=_offset(name, word))
    if re.fullmatch(r"\d+:\d+(,\s*\d+:\d+)*", word, re.ASCII):
        pairs = [pair.split(":") for pair in word.split(",")]
        offsets = {int(number): _offset(name, offset) for number, offset in pairs}
        if len(offsets) < len(pairs):
            raise ConfigError(f"{name}: a partition is named twice")
        return Bound(name, offsets=offsets)
    try:
        return Bound(name, time_ms=moment_ms(word))
    except ValueError:
        raise ConfigError(f"{name}: not understood; write {EXAMPLES}") from None


def _parse_last(text: str, now_ms: int) -> Bound:
    name = f"--last {text.strip()}"
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip(), re.ASCII)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{name}: not understood", DURATIONS)
    return Bound(name, time_ms=max(0, now_ms - round(float(match[1]) * SECONDS[match[2]] * 1000)))


def _offset(name: str, text: str) -> int:
    if (offset := int(text)) > MAX_OFFSET:
        raise ConfigError(f"{name}: {offset} is not an offset; write {EXAMPLES}")
    return offset
