"""What the records of a topic of alerts say of incidents.

Anybody may write to the topic, so nothing here trusts a record: what is not of the expected type is as if it were not
there, and texts are cut and made printable.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import orjson

from fomo_stream.errors import RecordError
from fomo_stream.wording import clean

Kind = Literal["alert", "silent", "rate", "closed"]
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
FACTS = ("explanation", "of", "records", *NUMBERS)
REASON = ("feature", "cause", "share", "value", "expected", "usual", "low", "high", "scope", "with")


class Event(NamedTuple):
    """One record about an incident. kind: an alert; the opening of a silence or of an unusual rate; or an end."""

    kind: Kind
    about: About
    incident: str
    topic: str
    partition: int | None
    offset: int | None  # in the input: of the alert; else of the first record, at an end of the last one
    timestamp: int | None  # of that record, milliseconds since 1970
    began: int | None  # the first record's time, likewise, where it is known
    key: str | None
    severity: str
    is_first: bool  # whether it opens its incident
    detail: bytes  # the rest as JSON, compressed because thousands of incidents can be open

    @property
    def identity(self) -> str:
        """The name of the incident among those of all topics."""
        return f"{self.topic}:{self.incident}"

    def facts(self) -> dict[str, Any]:
        """What `detail` holds; None where the record does not say it."""
        found: dict[str, Any] = orjson.loads(zlib.decompress(self.detail))
        reasons = [dict(zip(REASON, values, strict=True)) for values in found.get("reasons", ())]
        return {**dict.fromkeys(FACTS), **found, "reasons": reasons}


def read_event(fields: Mapping[str, Any], field: str, key: str | None) -> Event:
    """What a decoded record says. field: of its result; key: of the record, as text.

    Raises RecordError, whose reason is NO_RESULT, UNKNOWN_STATUS or INCOMPLETE.
    """
    result = fields.get(field)
    if not isinstance(result, Mapping):
        raise RecordError(NO_RESULT, f"the record has no result in the field {field}")
    status = result.get("status")
    kind: Kind
    if status in ("closed", "silent", "rate"):
        kind = status
    elif result.get("outlier") is True:
        kind = "alert"
    else:
        raise RecordError(UNKNOWN_STATUS, "the result is neither of an alert nor of an incident")
    incident = _text(result.get("incident"), NAME)
    if not incident:
        raise RecordError(INCOMPLETE, "the result names no incident")
    partition, offset = _integer(result.get("partition")), _integer(result.get("offset"))
    timestamp = _time(result.get("timestamp"))
    first, last, worst = (_mapping(result.get(name)) for name in ("from", "to", "worst"))
    began = _time(first.get("timestamp"))
    if kind == "alert":
        is_first = incident in (f"{partition}-{offset}", str(offset))
        began = timestamp if is_first else None
    else:
        is_first = kind != "closed"
        place = last if kind == "closed" and last else first
        offset, timestamp = _integer(place.get("offset")), _time(place.get("timestamp"))
    severity = result.get("severity") or worst.get("severity")
    own_key = _text(result.get("key"), NAME)
    return Event(
        kind,
        _about(kind, incident),
        incident,
        sys.intern(_text(result.get("topic"), NAME) or ""),
        partition,
        offset,
        timestamp,
        began,
        own_key if own_key is not None else key,
        severity if severity in SEVERITIES else "warning",
        is_first,
        zlib.compress(orjson.dumps(_detail(result, worst)), 1),
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
    """A time in UTC, as 2026-10-01T06:30:00Z; None if there is none, or none that a calendar has."""
    try:
        moment = None if timestamp is None else _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return None
    return None if moment is None else moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def _about(kind: Kind, incident: str) -> About:
    """The end of a silence or of a rate is told from that of alerts by its name."""
    if kind == "silent" or (kind == "closed" and incident.endswith("-silent")):
        return "silence"
    if kind == "rate" or (kind == "closed" and incident.endswith("-rate")):
        return "rate"
    return "outlier"


def _detail(result: Mapping[str, Any], worst: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("explanation", "of"):
        if text := _text(result.get(name), TEXT):
            found[name] = text
    for name in NUMBERS:
        number = _number(result.get(name))
        found |= {} if number is None else {name: number}
    if "score" not in found and (score := _number(worst.get("score"))) is not None:
        found["score"] = score
    if (records := _integer(result.get("records"))) is not None:
        found["records"] = records
    reasons = result.get("reasons")
    if isinstance(reasons, list):
        found["reasons"] = [_reason(one) for one in reasons[:MOST_REASONS] if isinstance(one, Mapping)]
    return found


def _reason(given: Mapping[str, Any]) -> list[Any]:
    """The values of REASON; with a schema, text and the ends of the range have fields of their own."""
    value, limits = given.get("value"), given.get("range")
    if value is None:
        value = given.get("text")
    plain = value if isinstance(value, bool) else _number(value)
    low, high = limits if isinstance(limits, list) and len(limits) == 2 else (given.get("low"), given.get("high"))
    found = {
        **{name: _text(given.get(name), NAME) for name in ("cause", "scope", "with")},
        **{name: _number(given.get(name)) for name in ("share", "expected", "usual")},
        "feature": _text(given.get("feature"), NAME) or "",
        "value": _text(value, NAME) if plain is None else plain,
        "low": _number(low),
        "high": _number(high),
    }
    return [found[name] for name in REASON]


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
