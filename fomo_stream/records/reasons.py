"""Reasons as JSON-ready objects with the names and values of a record.

Nothing here fails because of what a record contains, and all of it can be written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fomo_stream.detector.results import Cause, Reason
from fomo_stream.records.schema import Schema, look_up, numbers

DIGITS = 6  # of numbers in reasons that are not the record's own
KEPT = 200  # characters of a category in a reason


def reasons_of(reasons: Sequence[Reason], schema: Schema, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The reasons of a record, for JSON; null where a number is not known.

    A category is the record's own text, cut at KEPT characters.
    """
    return [_reason(reason, schema, record) for reason in reasons]


def _reason(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> dict[str, Any]:
    name = schema.features[reason.feature]
    made: dict[str, Any] = {"feature": name, "cause": str(reason.cause), "share": _number(reason.share, 3)}
    made["value"] = value_of(reason, schema, record)
    if reason.cause in (Cause.LEVEL, Cause.SPREAD):
        made["value"] = _number(reason.value)
    if reason.cause is Cause.CATEGORY:
        made["frequency"] = _number(reason.frequency)
    else:
        has_range = math.isfinite(reason.low) and math.isfinite(reason.high)
        made["usual"] = _number(reason.median)
        made["range"] = [_number(reason.low), _number(reason.high)] if has_range else None
        if reason.cause in (Cause.VALUE, Cause.MISSING):
            made["expected"] = _number(reason.expected)
    if reason.partner >= 0:
        made["with"] = schema.features[reason.partner]
    return made


def value_of(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> Any:
    """The value that a reason is about: the record's own where it has one, else a number."""
    name, own = schema.features[reason.feature], None
    if reason.cause not in (Cause.LEVEL, Cause.SPREAD):
        is_category = name in schema.categorical or reason.cause is Cause.CATEGORY
        own = known(record, name, is_category)
        if is_category:
            return own
    return float(reason.value) if own is None and math.isfinite(reason.value) else own


def known(record: Mapping[str, Any], name: str, is_category: bool) -> str | bool | int | float | None:
    """The record's own value of a feature; None if it is missing."""
    given = look_up(record, name)
    own = _own(given)
    if is_category:
        return own if not isinstance(own, str) or len(own) <= KEPT else own[: KEPT - 1] + "…"
    if not isinstance(own, str):
        return own
    number = float(numbers([given])[0])  # an integer of more than 64 bits; not of texts
    return number if math.isfinite(number) else None


def _own(value: Any) -> str | bool | int | float | None:
    """A scalar of a record as JSON can hold it everywhere; None for all else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        if value.bit_length() <= 63:
            return value
        return hex(value) if value.bit_length() > 8 * KEPT else str(value)  # thousands of digits are refused
    return None if isinstance(value, (list, tuple, dict)) else str(value)


def _number(value: float, digits: int = DIGITS) -> float | None:
    """With so many significant digits, and with all before the decimal point; None for NaN and infinities."""
    if not math.isfinite(value):
        return None
    return float(round(value) if 10**digits <= abs(value) < 1e15 else f"{value:.{digits}g}") + 0.0  # no -0
