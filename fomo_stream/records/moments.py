"""Dates and times in ISO 8601, and spans between two of them, as users write them in settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH, MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)  # floats would lose milliseconds


def moment_ms(text: str) -> int:
    """Return a date or time in ISO 8601 as milliseconds since 1970; without a zone in UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    return max(0, ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MILLISECOND)


def time_span(text: str) -> range | None:
    """Return the milliseconds of FROM/TO, without TO; None if these are not dates or times. Raises ValueError if empty.

    >>> time_span("2025-10-01/2025-10-01T00:00:01"), time_span("good/week.csv")
    (range(1759276800000, 1759276801000), None)
    """
    begin, _, end = text.partition("/")
    try:
        span = range(moment_ms(begin), moment_ms(end))
    except ValueError:
        return None
    if not span:
        raise ValueError(f"{end} is not after {begin}; the end is the first moment after the range")
    return span
