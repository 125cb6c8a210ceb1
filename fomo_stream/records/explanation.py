"""The reasons why a record is odd: as JSON-ready objects with its names and values, and as one sentence.

No content of a record makes this fail, and every result can be written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fomo_stream.detector.results import Cause, Reason
from fomo_stream.records.missing_values import missing_hint
from fomo_stream.records.schema import Schema, look_up, number_of
from fomo_stream.wording import clean, counted

REASON_DIGITS = 6  # least digits: of a reason's numbers that are not the record's own, of its own in a sentence
MAX_DIGITS = 15  # 64 bits resolve no more
MAX_CATEGORY_LENGTH = 200  # characters of a category in a reason
MAX_REASONS = 3  # in a sentence
MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 60, 30  # characters of a name and of a category in a sentence
MIN_USUAL_SHARE = 0.02  # share of the context that a category needs to be usual: the two tails of the central 98 %
# If the remembered logit of an outlier exceeds its own by this, its score comes mostly from the records before it.
# Records after a fault have 0.7 to 1.2; those that are odd themselves have less than 0.
MIN_EARLIER_EXCESS = 0.5
ROUNDING_ERROR = 1e-4  # more than the error of 32 bits in a remembered logit
NO_OUTLIER = "no outlier"
FOLLOWS_ODD_RECORDS = "the records before it were odd, which raises its score"
NO_REASON = "no feature stands out"
SENTENCE_DIGITS = 4  # of a number in a sentence that is not the record's own
MOVING_CAUSES = (Cause.LEVEL, Cause.SPREAD)  # about several records, so not about one value


def reasons_of(reasons: Sequence[Reason], schema: Schema, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasons of a record, for JSON; null where a number is not known.

    A category is the record's own text, cut at MAX_CATEGORY_LENGTH characters.
    """
    return [_json_reason(reason, schema, record) for reason in reasons]


def _json_reason(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> dict[str, Any]:
    name, cause = schema.features[reason.feature], reason.cause
    value = _rounded(reason.value) if cause in MOVING_CAUSES else reason_value(reason, schema, record)
    content = {"feature": name, "cause": str(cause), "share": _rounded(reason.share, 3), "value": value}
    if cause is Cause.CATEGORY:
        content["frequency"] = _rounded(reason.frequency)
    else:
        median, low, high, expected = (_rounded(x, _digits(reason, x, REASON_DIGITS)) for x in _context(reason))
        content |= {"usual": median, "range": None if low is None or high is None else [low, high]}
        if cause is Cause.VALUE:
            content["expected"] = expected
    content["scope"] = reason.scope
    return content | ({"with": schema.features[reason.partner]} if reason.partner >= 0 else {})


def reason_value(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> Any:
    """Return the value that a reason is about: the record's own, or else a number; of a counter, its growth."""
    name, own = schema.features[reason.feature], None
    if math.isnan(reason.value):  # also where the record's own value means "missing"
        return None
    if reason.cause not in MOVING_CAUSES and name not in schema.counters:
        is_category = name in schema.categorical or reason.cause is Cause.CATEGORY
        own = record_value(record, name, is_category)
        if is_category:
            return own
    return float(reason.value) if own is None and math.isfinite(reason.value) else own


def record_value(record: Mapping[str, Any], name: str, is_category: bool) -> str | bool | int | float | None:
    """Return the record's own value of a feature, as any JSON reader can hold it; None if it is missing."""
    raw = look_up(record, name)
    own = raw.item() if isinstance(raw, np.generic) else raw
    is_int = isinstance(own, int)
    if own.bit_length() <= 63 if is_int else isinstance(own, float) and math.isfinite(own):
        return own  # type: ignore[no-any-return]  # an int or a float
    if not is_category:
        number = number_of(raw)  # also an integer of more than 64 bits
        return number if math.isfinite(number) else None
    if own is None or isinstance(own, (float, list, tuple, dict)):
        return None
    is_huge = is_int and own.bit_length() > 8 * MAX_CATEGORY_LENGTH  # Python refuses thousands of decimals
    text = hex(own) if is_huge else str(own)
    return text if len(text) <= MAX_CATEGORY_LENGTH else text[: MAX_CATEGORY_LENGTH - 1] + "…"


def _context(reason: Reason) -> tuple[float, float, float, float]:
    return reason.median, reason.low, reason.high, reason.expected


def _digits(reason: Reason, number: float, min_digits: int) -> int:
    """Return the significant digits of a number next to the value, so that the two show their distance.

    Two digits of the distance are shown: 4.2871 is usually 4.2869, not 4.287.
    """
    distance = abs(reason.value - reason.median) or reason.high - reason.low
    if not (math.isfinite(distance) and distance > 0.0 and math.isfinite(number) and number):
        return min_digits
    return min(MAX_DIGITS, max(min_digits, math.floor(math.log10(abs(number))) - math.floor(math.log10(distance)) + 2))


def _rounded(value: float, digits: int = REASON_DIGITS) -> float | None:
    """Round to so many significant digits, but keep all before the decimal point; None for NaN and infinities."""
    if not math.isfinite(value):
        return None
    return float(round(value) if 10**digits <= abs(value) < 1e15 else f"{value:.{digits}g}") + 0.0  # no -0


# --- in words ------------------------------------------------------------------------------------------------


def explanation_of(
    reasons: Sequence[Reason],
    schema: Schema,
    record: Mapping[str, Any],
    earlier: float = 0.0,
    is_outlier: bool = True,
    key: bytes | str | None = None,
) -> str:
    """Return the most important reasons of a record, or that it has no reasons, as one sentence of plain text.

    is_outlier: if False, the sentence begins with NO_OUTLIER. earlier: how far the remembered logit of the record
    exceeds its own. From MIN_EARLIER_EXCESS on, and without reasons from ROUNDING_ERROR on, the sentence of an outlier
    says first that the records before it were odd. In both cases the reasons mean little, and only facts follow. key:
    of the record, named where its values are unusual for it.
    """
    follows = is_outlier and (earlier >= MIN_EARLIER_EXCESS or (earlier > ROUNDING_ERROR and not reasons))
    beginning = FOLLOWS_ODD_RECORDS if follows else "" if is_outlier else NO_OUTLIER
    statements: list[str] = []
    pairs: set[tuple[int, int]] = set()
    for reason in reasons[:MAX_REASONS]:
        if (reason.partner, reason.feature) not in pairs:  # else the same two features
            pairs.add((reason.feature, reason.partner))
            is_own = reason.cause is Cause.VALUE and schema.features[reason.feature] not in schema.counters
            addition = "" if beginning else _conflict_text(reason, schema, record)
            if is_own and (own := reason_value(reason, schema, record)) is not None:  # the detector limits large values
                addition += missing_hint(own, reason.median, reason.low, reason.high)
            statements.append(_statement(reason, schema, record, key) + addition)
    text = "; ".join(statements) or NO_REASON
    return f"{beginning}; {'most unusual: ' if statements else ''}{text}" if beginning else text


def _statement(reason: Reason, schema: Schema, record: Mapping[str, Any], key: bytes | str | None) -> str:
    """Return the value, and what is usual."""
    name, value = name_text(schema.features[reason.feature]), reason_value(reason, schema, record)
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
        still = value_text(value, REASON_DIGITS)
        return f"{name} has been {still} for {reason.before + 1} records, and nearly always changes"
    by, digits = "", SENTENCE_DIGITS if is_growth or reason.cause is Cause.LEVEL else REASON_DIGITS
    if not isinstance(value, str):
        digits = _digits(reason, float(value), digits)
    what = f"grows by {value_text(value, digits)} a record" if is_growth else f"is {value_text(value, digits)}"
    if reason.cause is Cause.LEVEL:
        what += " on average over its last values"
    if reason.cause is Cause.SPREAD:
        by, what = "by ", f"changes by {value_text(value)} at a time over its last values"
    if not math.isfinite(reason.median):
        return f"{name} {what}"
    usual, low, high = (_written_like(value, number, reason) for number in (reason.median, reason.low, reason.high))
    whose = {"key": f"for {key_in_sentence(key)} ", "time": "at this time ", "reference": "in the reference "}.get(
        reason.scope, ""
    )
    return f"{name} {what}, {whose}usually {by}{usual}" + (f" ({low} to {high})" if low != high else "")


def _conflict_text(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> str:
    """Return what the value does not go with, to follow the statement; empty if it is unusual by itself."""
    if reason.cause is Cause.STILL:
        return ""
    value = reason_value(reason, schema, record)
    is_in_range = reason.low <= reason.value <= reason.high  # False for NaN
    is_common = reason.frequency >= MIN_USUAL_SHARE if reason.cause is Cause.CATEGORY else is_in_range
    is_usual = value is not None and is_common
    others = [f"the {counted(reason.before, 'value')} before it"] if reason.cause is Cause.PAST else []
    if reason.partner >= 0:
        name = schema.features[reason.partner]
        other = None if name in schema.counters else record_value(record, name, name in schema.categorical)
        is_shown = reason.cause not in MOVING_CAUSES and other is not None
        others.append(name_text(name) + (f" {value_text(other)}" if is_shown else ""))
    if not others and (value is None or (is_usual and len(schema.features) > 1)):
        others = ["the other values"]
    if not others:
        return ""
    is_near = abs(reason.expected - reason.value) <= (reason.high - reason.low) / 20  # False for NaN
    would_fit = "" if is_near else _written_like(value, reason.expected, reason)
    fits = f" (about {would_fit} would fit)" if would_fit else ""
    but = ", which" if value is None else ": usual alone, but it" if is_usual else ", and"
    return f"{but} does not go with {' and '.join(others)}{fits}"


def _written_like(value: Any, number: float, reason: Reason) -> str:
    """Return a number of the context in the form of the value of the record."""
    if not math.isfinite(number):
        return ""
    if isinstance(value, bool) and number in (0, 1):
        return value_text(bool(number))
    return value_text(number, _digits(reason, number, SENTENCE_DIGITS))


def value_text(value: str | bool | int | float | None, digits: int = SENTENCE_DIGITS) -> str:
    """Return a value of a record in a sentence.

    >>> value_text("idle"), value_text(True), value_text(1234.5678)
    ('"idle"', 'true', '1235')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{clean(value if len(value) <= MAX_TEXT_LENGTH else value[: MAX_TEXT_LENGTH - 1] + "…")}"'
    return "missing" if value is None else number_text(float(value), digits)


def key_in_sentence(key: bytes | str | None) -> str:
    """Return a key in a sentence.

    >>> key_in_sentence(b"u1086"), key_in_sentence("pump 7; hall"), key_in_sentence(None)
    ('u1086', '"pump 7; hall"', 'its key')
    """
    if key is None:
        return "its key"
    return name_text(key[: 4 * MAX_NAME_LENGTH].decode("utf-8", "replace") if isinstance(key, bytes) else key)


def name_text(name: str) -> str:
    """Return a name, without its middle if it is long, in quotes if it could be read as a part of the sentence.

    >>> name_text("plant.north.hall.line.station.motor.bearing.temperature.inner.ring")
    'plant.north.hall.li…ion.motor.bearing.temperature.inner.ring'
    >>> name_text("flow; return"), name_text("")
    ('"flow; return"', '""')
    """
    tail = 2 * MAX_NAME_LENGTH // 3
    short = clean(name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1 - tail] + "…" + name[-tail:])
    return f'"{short}"' if short != short.strip() or not short or set(short) & set(";,") else short


def number_text(value: float, digits: int = SENTENCE_DIGITS) -> str:
    """Return a finite number with so many significant digits; below 1e15, with all before the decimal point.

    >>> [number_text(x) for x in (-0.0, 3.14159, 0.00012346, 1e6, -12345.67, 3.2e-9, 5e18)]
    ['0', '3.142', '0.0001235', '1000000', '-12346', '3.2e-09', '5e+18']
    """
    text = f"{value:.{digits}g}" if value else "0"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text
