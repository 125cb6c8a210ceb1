"""Reasons in words: as JSON-ready objects with the names and values of a record, and as one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fomo_stream.detector.reasons import Cause, Reason
from fomo_stream.records.schema import Schema, look_up

DIGITS = 6  # of numbers in reasons


def reasons_of(reasons: Sequence[Reason], schema: Schema, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The reasons of a record, for JSON. A category is the record's own text."""
    return [_reason(reason, schema, record) for reason in reasons]


def _reason(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> dict[str, Any]:
    name = schema.features[reason.feature]
    made: dict[str, Any] = {"feature": name, "cause": str(reason.cause), "share": round(reason.share, 3)}
    if reason.cause is Cause.CATEGORY:
        made |= {"value": look_up(record, name), "frequency": _number(reason.frequency)}
    else:
        made |= {
            "value": _number(reason.value),
            "usual": _number(reason.median),
            "range": [_number(reason.low), _number(reason.high)],
        }
    if reason.partner >= 0:
        made["with"] = schema.features[reason.partner]
    return made


def sentence(reasons: Sequence[Mapping[str, Any]]) -> str:
    """One sentence from the reasons of a record; empty without any."""
    return "; ".join(f"{one['feature']} is {one['value']}, usually {one.get('usual')}" for one in reasons)


def _number(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
