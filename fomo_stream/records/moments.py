"""Dates and times in ISO 8601, spans between two of them, and first spans, as users write them in settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fomo_stream.wording import seconds_of

FIRST = "first:"  # before a duration: the first records, for so long
MAX_FIRST_S = 3650 * 86_400
EPOCH, MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)  # floats would lose milliseconds


def moment_ms(text: str) -> int:
    """Return a date or time in ISO 8601 as milliseconds since 1970; without a zone in UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    return max(0, ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MILLISECOND)


def time_span(text: str) -> range | None:
    """Return the milliseconds of FROM/TO, without TO; None if these are not dates or times. Raises ValueError if empty.

    Those of `first:5d` count from the first record on.

    >>> time_span("2025-10-01/2025-10-01T00:00:01"), time_span("good/week.csv"), time_span("first:90s")
    (range(1759276800000, 1759276801000), None, range(0, 90000))
    """
    if text.startswith(FIRST):
        if not 1 <= (seconds := seconds_of(text.removeprefix(FIRST))) <= MAX_FIRST_S:
            raise ValueError("the first records are those of at least 1s and at most 3650d")
        return range(round(1000 * seconds))
    begin, _, end = text.partition("/")
    try:
        span = range(moment_ms(begin), moment_ms(end))
    except ValueError:
        return None
    if not span:
        raise ValueError(f"{end} is not after {begin}; the end is the first moment after the range")
    return span


def span_text(span: range) -> str:
    """Return FROM/TO, without zones, of milliseconds since 1970.

    >>> span_text(range(1759276800000, 1759276800500))
    '2025-10-01T00:00:00/2025-10-01T00:00:00.500000'
    """
    return "/".join((EPOCH + ms * MILLISECOND).replace(tzinfo=None).isoformat() for ms in (span.start, span.stop))
