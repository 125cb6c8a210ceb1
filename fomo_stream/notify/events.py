"""What the records of a topic of alerts say of incidents.

Anybody may write to the topic, so nothing here trusts a record: what is not of the expected type is as if it were not
there, and texts are cut and made printable.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from fomo_stream.errors import RecordError
from fomo_stream.wording import clean

About = Literal["outlier", "silence", "rate"]

NO_RESULT, UNKNOWN_STATUS, INCOMPLETE = "no_result", "unknown_status", "incomplete"  # why a record is skipped
UNEXPECTED = "unexpected"  # likewise, by a defect of this program
SEVERITIES = ("info", "warning", "critical")
NAME, TEXT = 200, 2000  # characters of a name and of a sentence, at most
MOST_REASONS = 20
MOST = (1 << 63) - 1  # of a whole number: JSON with more is not written
YEAR_2200 = 7_258_118_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = ("surprise", "score", "quiet_s", "usual_gap_s", "records_per_minute", "usual_per_minute")


class Event(NamedTuple):
    """One record about an incident: an alert; the opening of a silence or of an unusual rate; or an end."""

    about: About
    is_first: bool  # it opens its incident
    is_end: bool
    incident: str
    topic: str
    partition: int | None
    offset: int | None  # in the input: of the alert; else of the first record, at an end of the last one
    timestamp: int | None  # of that record, milliseconds since 1970
    began: int | None  # the first record's time, likewise, where it is known
    key: str | None
    severity: str
    alerts: int  # so far, where the record says so
    facts: Mapping[str, Any]  # NUMBERS, explanation, of and reasons; None where the record does not say it

    @property
    def identity(self) -> str:
        """The name of the incident among those of all topics."""
        return f"{self.topic}:{self.incident}"


def read_event(fields: Mapping[str, Any], field: str, key: str | None) -> Event:
    """What a decoded record says. field: of its result; key: of the record, as text.

    Raises RecordError, whose reason is NO_RESULT, UNKNOWN_STATUS or INCOMPLETE.
    """
    result = fields.get(field)
    if not isinstance(result, Mapping):
        raise RecordError(NO_RESULT, f"the record has no result in the field {field}")
    status = result.get("status")
    is_alert = status not in ("closed", "silent", "rate")
    if is_alert and result.get("outlier") is not True:
        raise RecordError(UNKNOWN_STATUS, "the result is neither of an alert nor of an incident")
    incident = _text(result.get("incident"), NAME)
    if not incident:
        raise RecordError(INCOMPLETE, "the result names no incident")
    partition, offset = _integer(result.get("partition")), _integer(result.get("offset"))
    timestamp = _time(result.get("timestamp"))
    first, last, worst = (_mapping(result.get(name)) for name in ("from", "to", "worst"))
    is_first, is_end = not is_alert and status != "closed", status == "closed"
    if is_alert:
        is_first = incident in (f"{partition}-{offset}", str(offset))
    else:
        place = last if is_end and last else first
        offset, timestamp = _integer(place.get("offset")), _time(place.get("timestamp"))
    # the end of a silence or of a rate is told from that of alerts by its name
    about: About = "outlier"
    if status == "silent" or (is_end and incident.endswith("-silent")):
        about = "silence"
    elif status == "rate" or (is_end and incident.endswith("-rate")):
        about = "rate"
    severity = result.get("severity") or worst.get("severity")
    own_key, reasons = _text(result.get("key"), NAME), result.get("reasons")
    reasons = reasons[:MOST_REASONS] if isinstance(reasons, list) else []
    facts: dict[str, Any] = {name: _number(result.get(name)) for name in NUMBERS}
    facts["score"] = _number(worst.get("score")) if facts["score"] is None else facts["score"]
    facts |= {name: _text(result.get(name), TEXT) or None for name in ("explanation", "of")}
    return Event(
        about=about,
        is_first=is_first,
        is_end=is_end,
        incident=incident,
        topic=_text(result.get("topic"), NAME) or "",
        partition=partition,
        offset=offset,
        timestamp=timestamp,
        began=_time(first.get("timestamp")) if not is_alert else timestamp if is_first else None,
        key=key if own_key is None else own_key,
        severity=severity if severity in SEVERITIES else "warning",
        alerts=_integer(result.get("records")) or 1,
        facts=facts | {"reasons": [_reason(one) for one in reasons if isinstance(one, Mapping)]},
    )


def key_text(key: bytes | str | int | float | None) -> str | None:
    """A key as printable text."""
    return _text(key.decode("utf-8", "replace") if isinstance(key, bytes) else None if key is None else str(key), NAME)


def key_of_field(fields: Mapping[str, Any], path: str) -> str | None:
    """The value of a field, by its dotted path, as the key of a record; None if it has none."""
    found: Any = fields.get(path)
    if found is None:
        found = fields
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    return key_text(found) if isinstance(found, str | int | float) else None


def iso(timestamp: int | None) -> str | None:
    """A time in UTC, as 2026-10-01T06:30:00Z; None if there is none."""
    if timestamp is None:
        return None
    return (_EPOCH + timedelta(milliseconds=timestamp)).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def _reason(given: Mapping[str, Any]) -> dict[str, Any]:
    """With a schema, text and the ends of the range have fields of their own."""
    value, limits = given.get("value"), given.get("range")
    if value is None:
        value = given.get("text")
    plain = value if isinstance(value, bool) else _number(value)
    low, high = limits if isinstance(limits, list) and len(limits) == 2 else (given.get("low"), given.get("high"))
    found: dict[str, Any] = {name: _text(given.get(name), NAME) for name in ("feature", "cause", "scope", "with")}
    numbers = {**given, "low": low, "high": high}
    found |= {name: _number(numbers.get(name)) for name in ("share", "expected", "usual", "low", "high")}
    return found | {"value": _text(value, NAME) if plain is None else plain}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any, most: int) -> str | None:
    """Printable, and without lone surrogates, which could not be sent."""
    if not isinstance(value, str):
        return None
    return clean(value if len(value) <= most else value[: most - 1] + "…")


def _integer(value: Any, least: int = -MOST, most: int = MOST) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def _time(value: Any) -> int | None:
    """Milliseconds since 1970; a time before 1970 or after 2200 is a mistake, or stands for none."""
    return _integer(value, 0, YEAR_2200)


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) <= MOST:
        return value
    return float(value) if -1e300 < value < 1e300 else None  # never of NaN
