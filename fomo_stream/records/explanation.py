"""Why a record is odd: its reasons as JSON-ready objects with its names and values, and in words: one sentence.

Nothing here fails because of what a record contains, and all of it can be written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fomo_stream.detector.results import Cause, Reason
from fomo_stream.records.missing_values import hint
from fomo_stream.records.schema import Schema, look_up, number_of
from fomo_stream.wording import clean, counted

DIGITS = 6  # of numbers in reasons that are not the record's own, and of the record's own in a sentence, at least
MOST_DIGITS = 15  # that 64 bits resolve
KEPT = 200  # characters of a category in a reason
NAMED = 3  # reasons in a sentence, at most
NAME, TEXT = 60, 30  # characters of a name and of a category in a sentence
USUAL = 0.02  # share of the context that a category needs to be usual: the two tails of the central 98 %
# By which the remembered logit of an outlier exceeds its own where the score is mostly that of the records before it.
# Records after a fault have 0.7 to 1.2; those that are odd themselves have less than 0.
EARLIER = 0.5
ROUNDING = 1e-4  # more than the error of 32 bits in a remembered logit
NO_OUTLIER = "no outlier"
FOLLOWS = "the records before it were odd, which raises its score"
NO_REASON = "no feature stands out"
FEW_DIGITS = 4  # of a number in a sentence that is not the record's own
MOVING = (Cause.LEVEL, Cause.SPREAD)  # of several records, so not of one value


def reasons_of(reasons: Sequence[Reason], schema: Schema, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The reasons of a record, for JSON; null where a number is not known.

    A category is the record's own text, cut at KEPT characters.
    """
    return [_reason(reason, schema, record) for reason in reasons]


def _reason(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> dict[str, Any]:
    name, cause = schema.features[reason.feature], reason.cause
    value = _number(reason.value) if cause in MOVING else value_of(reason, schema, record)
    made = {"feature": name, "cause": str(cause), "share": _number(reason.share, 3), "value": value}
    if cause is Cause.CATEGORY:
        made["frequency"] = _number(reason.frequency)
    else:
        median, low, high, expected = (_number(one, _digits(reason, one, DIGITS)) for one in _context(reason))
        made |= {"usual": median, "range": None if low is None or high is None else [low, high]}
        if cause is Cause.VALUE:
            made["expected"] = expected
    made["scope"] = reason.scope
    return made | ({"with": schema.features[reason.partner]} if reason.partner >= 0 else {})


def value_of(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> Any:
    """The value that a reason is about: the record's own where it has one, else a number; of a counter, its growth."""
    name, own = schema.features[reason.feature], None
    if math.isnan(reason.value):  # also where the record's own value means "missing"
        return None
    if reason.cause not in MOVING and name not in schema.counters:
        is_category = name in schema.categorical or reason.cause is Cause.CATEGORY
        own = known(record, name, is_category)
        if is_category:
            return own
    return float(reason.value) if own is None and math.isfinite(reason.value) else own


def known(record: Mapping[str, Any], name: str, is_category: bool) -> str | bool | int | float | None:
    """The record's own value of a feature, as JSON can hold it everywhere; None if it is missing."""
    given = look_up(record, name)
    own = given.item() if isinstance(given, np.generic) else given
    is_int = isinstance(own, int)
    if own.bit_length() <= 63 if is_int else isinstance(own, float) and math.isfinite(own):
        return own  # type: ignore[no-any-return]  # an int or a float
    if not is_category:
        number = number_of(given)  # an integer of more than 64 bits; not of texts
        return number if math.isfinite(number) else None
    if own is None or isinstance(own, (float, list, tuple, dict)):
        return None
    text = hex(own) if is_int and own.bit_length() > 8 * KEPT else str(own)  # thousands of digits are refused
    return text if len(text) <= KEPT else text[: KEPT - 1] + "…"


def _context(reason: Reason) -> tuple[float, float, float, float]:
    return reason.median, reason.low, reason.high, reason.expected


def _digits(reason: Reason, number: float, least: int) -> int:
    """Significant digits of a number beside the value, so that the two show how far that is from what is usual.

    Two digits of the distance are shown: 4.2871 is usually 4.2869, not 4.287.
    """
    distance = abs(reason.value - reason.median) or reason.high - reason.low
    if not (math.isfinite(distance) and distance > 0.0 and math.isfinite(number) and number):
        return least
    return min(MOST_DIGITS, max(least, math.floor(math.log10(abs(number))) - math.floor(math.log10(distance)) + 2))


def _number(value: float, digits: int = DIGITS) -> float | None:
    """With so many significant digits, and with all before the decimal point; None for NaN and infinities."""
    if not math.isfinite(value):
        return None
    return float(round(value) if 10**digits <= abs(value) < 1e15 else f"{value:.{digits}g}") + 0.0  # no -0


# --- in words ------------------------------------------------------------------------------------------------


def sentence(
    reasons: Sequence[Reason],
    schema: Schema,
    record: Mapping[str, Any],
    earlier: float = 0.0,
    is_outlier: bool = True,
    key: bytes | str | None = None,
) -> str:
    """The most important reasons of a record, or that there are none, in one sentence of plain text.

    is_outlier: of any other record the sentence says first that it is none. earlier: how far the remembered logit of
    the record exceeds its own. From EARLIER on, and without reasons from ROUNDING on, the sentence of an outlier says
    first that the records before it were odd. In both cases the reasons mean little, and only facts follow. key: of the
    record, which is named where its values are unusual for it.
    """
    follows = is_outlier and (earlier >= EARLIER or (earlier > ROUNDING and not reasons))
    first = FOLLOWS if follows else "" if is_outlier else NO_OUTLIER
    said: list[str] = []
    pairs: set[tuple[int, int]] = set()
    for reason in reasons[:NAMED]:
        if (reason.partner, reason.feature) not in pairs:  # else the same two features
            pairs.add((reason.feature, reason.partner))
            is_own = reason.cause is Cause.VALUE and schema.features[reason.feature] not in schema.counters
            more = "" if first else _conflict(reason, schema, record)
            more += hint(reason.value, reason.median, reason.low, reason.high) if is_own else ""
            said.append(_statement(reason, schema, record, key) + more)
    text = "; ".join(said) or NO_REASON
    return f"{first}; {'most unusual: ' if said else ''}{text}" if first else text


def _statement(reason: Reason, schema: Schema, record: Mapping[str, Any], key: bytes | str | None) -> str:
    """The value, and what is usual."""
    name, value = name_text(schema.features[reason.feature]), value_of(reason, schema, record)
    if value is None:
        return f"{name} is missing"
    if reason.cause is Cause.CATEGORY:
        share = f"{number_text(100 * reason.frequency, 2)} % of the known records have"
        often = "" if math.isnan(reason.frequency) else share if reason.frequency > 0 else "no known record has"
        return f"{name} is {value_text(value)}" + (f", which {often}" if often else "")
    is_growth = schema.features[reason.feature] in schema.counters
    if is_growth and reason.cause in (Cause.STILL, Cause.SPREAD):
        name = f"the growth of {name}"
    if reason.cause is Cause.STILL:
        return f"{name} has been {value_text(value, DIGITS)} for {reason.before + 1} records, and nearly always changes"
    by, digits = "", FEW_DIGITS if is_growth or reason.cause is Cause.LEVEL else DIGITS
    if not isinstance(value, str):
        digits = _digits(reason, float(value), digits)
    what = f"grows by {value_text(value, digits)} a record" if is_growth else f"is {value_text(value, digits)}"
    if reason.cause is Cause.LEVEL:
        what += " on average over its last values"
    if reason.cause is Cause.SPREAD:
        by, what = "by ", f"changes by {value_text(value)} at a time over its last values"
    if not math.isfinite(reason.median):
        return f"{name} {what}"
    usual, low, high = (_like(value, number, reason) for number in (reason.median, reason.low, reason.high))
    whose = {"key": f"for {key_text(key)} ", "time": "at this time ", "reference": "in the reference "}.get(
        reason.scope, ""
    )
    return f"{name} {what}, {whose}usually {by}{usual}" + (f" ({low} to {high})" if low != high else "")


def _conflict(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> str:
    """What the value does not go with, after the statement; empty where it is unusual by itself."""
    if reason.cause is Cause.STILL:
        return ""
    value = value_of(reason, schema, record)
    is_known = reason.low <= reason.value <= reason.high  # never of NaN
    is_usual = value is not None and (reason.frequency >= USUAL if reason.cause is Cause.CATEGORY else is_known)
    others = [f"the {counted(reason.before, 'value')} before it"] if reason.cause is Cause.PAST else []
    if reason.partner >= 0:
        name = schema.features[reason.partner]
        other = None if name in schema.counters else known(record, name, name in schema.categorical)
        others.append(name_text(name) + ("" if reason.cause in MOVING or other is None else f" {value_text(other)}"))
    if not others and (value is None or (is_usual and len(schema.features) > 1)):
        others = ["the other values"]
    if not others:
        return ""
    is_near = abs(reason.expected - reason.value) <= (reason.high - reason.low) / 20  # never of NaN
    would_fit = "" if is_near else _like(value, reason.expected, reason)
    fits = f" (about {would_fit} would fit)" if would_fit else ""
    but = ", which" if value is None else ": usual alone, but it" if is_usual else ", and"
    return f"{but} does not go with {' and '.join(others)}{fits}"


def _like(value: Any, number: float, reason: Reason) -> str:
    """A number of the context as the value of the record is written."""
    if not math.isfinite(number):
        return ""
    if isinstance(value, bool) and number in (0, 1):
        return value_text(bool(number))
    return value_text(number, _digits(reason, number, FEW_DIGITS))


def value_text(value: str | bool | int | float | None, digits: int = FEW_DIGITS) -> str:
    """A value of a record.

    >>> value_text("idle"), value_text(True), value_text(1234.5678)
    ('"idle"', 'true', '1235')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{clean(value if len(value) <= TEXT else value[: TEXT - 1] + "…")}"'
    return "missing" if value is None else number_text(float(value), digits)


def key_text(key: bytes | str | None) -> str:
    """A key in a sentence.

    >>> key_text(b"u1086"), key_text("pump 7; hall"), key_text(None)
    ('u1086', '"pump 7; hall"', 'its key')
    """
    if key is None:
        return "its key"
    return name_text(key[: 4 * NAME].decode("utf-8", "replace") if isinstance(key, bytes) else key)


def name_text(name: str) -> str:
    """A name without its middle if it is long, between quotes if it could be taken for a part of the sentence.

    >>> name_text("plant.north.hall.line.station.motor.bearing.temperature.inner.ring")
    'plant.north.hall.li…ion.motor.bearing.temperature.inner.ring'
    >>> name_text("flow; return"), name_text("")
    ('"flow; return"', '""')
    """
    tail = 2 * NAME // 3
    short = clean(name if len(name) <= NAME else name[: NAME - 1 - tail] + "…" + name[-tail:])
    return f'"{short}"' if short != short.strip() or not short or set(short) & set(";,") else short


def number_text(value: float, digits: int = FEW_DIGITS) -> str:
    """A finite number with so many significant digits, and below 1e15 with all before the decimal point.

    >>> [number_text(x) for x in (-0.0, 3.14159, 0.00012346, 1e6, -12345.67, 3.2e-9, 5e18)]
    ['0', '3.142', '0.0001235', '1000000', '-12346', '3.2e-09', '5e+18']
    """
    text = f"{value:.{digits}g}" if value else "0"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text
