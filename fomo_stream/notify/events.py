"""Reads events about incidents from the records of an alert topic.

Anybody may write to the topic, so nothing here trusts a record: a field of another type counts as missing, and texts
are cut and made printable.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from fomo_stream.errors import RecordError
from fomo_stream.wording import clean, in_time

# reasons to skip a record; UNEXPECTED is a defect of this program
NO_RESULT, UNKNOWN_STATUS, INCOMPLETE, UNEXPECTED = "no_result", "unknown_status", "incomplete", "unexpected"
SEVERITIES = ("info", "warning", "critical")
MAX_NAME, MAX_TEXT = 200, 2000  # characters of a name and of a sentence
MAX_EVENT_REASONS = 20
MAX_INTEGER = (1 << 63) - 1  # JSON cannot be written with larger ones
TIMES_MS = (0, 7_258_118_400_000)  # since 1970; times before, or after 2200, are mistakes, or stand for no time
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = ("surprise", "score", "quiet_s", "usual_gap_s")


class Event(NamedTuple):
    """A record about an incident: an alert, the beginning of a silence, or the end of either.

    facts: what webhooks get; None for unknown values. Their partition, offset and time are those of the alert in the
    input, of the first record of a silence, or of the last record of an incident that has ended.
    """

    identity: str  # the name of the incident, unique over all topics
    is_first: bool  # it opens its incident
    is_end: bool
    timestamp: int | None  # milliseconds since 1970
    began: int | None  # time of the first record, milliseconds since 1970, where it is known
    facts: dict[str, Any]


def read_event(fields: Mapping[str, Any], field: str, key: str | None) -> Event:
    """Return the event of a decoded record. field: name of the field with the result; key: of the record, as text.

    Raises RecordError, whose reason is NO_RESULT, UNKNOWN_STATUS or INCOMPLETE.
    """
    result = fields.get(field)
    if not isinstance(result, Mapping):
        raise RecordError(NO_RESULT, f"the record has no result in the field {field}")
    status = result.get("status")
    is_end, is_alert = status == "closed", status not in ("closed", "silent")
    if is_alert and result.get("outlier") is not True:
        raise RecordError(UNKNOWN_STATUS, "the result is about neither an alert nor an incident")
    if not (incident := _clean_text(result.get("incident"), MAX_NAME)):
        raise RecordError(INCOMPLETE, "the result names no incident")
    first, last, worst = (_mapping(result.get(name)) for name in ("from", "to", "worst"))
    position = result if is_alert else last if is_end and last else first
    partition, offset = _integer(result.get("partition")), _integer(position.get("offset"))
    timestamp = _integer(position.get("timestamp"), *TIMES_MS)
    is_first = incident in (f"{partition}-{offset}", str(offset)) if is_alert else not is_end
    began = _integer(first.get("timestamp"), *TIMES_MS) if not is_alert else timestamp if is_first else None
    topic, key_of_result = (_clean_text(result.get(name), MAX_NAME) for name in ("topic", "key"))
    topic = topic or ""
    severity, reasons = result.get("severity") or worst.get("severity"), result.get("reasons")
    reasons = reasons if isinstance(reasons, list) else []
    numbers = {name: _finite_number(result.get(name)) for name in NUMBERS}
    if numbers["score"] is None:
        numbers["score"] = _finite_number(worst.get("score"))
    duration = None
    if numbers["quiet_s"] is not None:
        duration = in_time(numbers["quiet_s"])
    elif began is not None and timestamp is not None and timestamp >= began:
        duration = in_time((timestamp - began) / 1000.0)
    facts: dict[str, Any] = {
        "about": "silence" if status == "silent" or (is_end and incident.endswith("-silent")) else "outlier",
        "incident": incident,
        "severity": severity if severity in SEVERITIES else "warning",
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "key": key if key_of_result is None else key_of_result,
        "alerts": _integer(result.get("records")) or 1,
        "place": f"{topic}{'' if partition is None else f'[{partition}]'}@{offset}",
        "time": iso_text(timestamp),
        "began": iso_text(began),
        "lasted": duration,
        **numbers,
        **{name: _clean_text(result.get(name), MAX_TEXT) or None for name in ("explanation", "of")},
        "reasons": [_reason_facts(reason) for reason in reasons[:MAX_EVENT_REASONS] if isinstance(reason, Mapping)],
    }
    return Event(f"{topic}:{incident}", is_first, is_end, timestamp, began, facts)


def printable_key(key: bytes | str | int | float | None) -> str | None:
    text = key.decode("utf-8", "replace") if isinstance(key, bytes) else None if key is None else str(key)
    return _clean_text(text, MAX_NAME)


def key_of_field(fields: Mapping[str, Any], path: str) -> str | None:
    """Return the value of a field, by its dotted path, as the key of a record; None if the record has none.

    >>> [key_of_field({"pump": value}, "pump") for value in (7, 7.0, 7.5)]  # as the service names them
    ['7', '7', '7.5']
    """
    value: Any = fields
    for name in (path,) if path in fields else path.split("."):
        value = _mapping(value).get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return printable_key(value) if isinstance(value, str | int | float) else None


def iso_text(timestamp: int | None) -> str | None:
    """Return a time in UTC, as 2026-10-01T06:30:00Z; None for None."""
    if timestamp is None:
        return None
    return (_EPOCH + timedelta(milliseconds=timestamp)).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def _reason_facts(reason: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a reason. In formats with a schema, text and the ends of the range have separate fields."""
    value, limits = reason.get("text") if reason.get("value") is None else reason["value"], reason.get("range")
    scalar = value if isinstance(value, bool) else _finite_number(value)
    low, high = limits if isinstance(limits, list) and len(limits) == 2 else (reason.get("low"), reason.get("high"))
    names = "feature", "cause", "scope", "with"
    facts: dict[str, Any] = {name: _clean_text(reason.get(name), MAX_NAME) for name in names}
    numbers = {**reason, "low": low, "high": high}
    facts |= {name: _finite_number(numbers.get(name)) for name in ("share", "expected", "usual", "low", "high")}
    return facts | {"value": _clean_text(value, MAX_NAME) if scalar is None else scalar}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _clean_text(value: Any, limit: int) -> str | None:
    """Return a printable text without lone surrogates, which could not be sent."""
    if not isinstance(value, str):
        return None
    return clean(value if len(value) <= limit else value[: limit - 1] + "…")


def _integer(value: Any, low: int = -MAX_INTEGER, high: int = MAX_INTEGER) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None


def _finite_number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) <= MAX_INTEGER:
        return value
    return float(value) if -1e300 < value < 1e300 else None  # also for NaN
