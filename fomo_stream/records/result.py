"""The result of one record, as the JSON-ready object that outputs carry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fomo_stream.detector.results import Results, Severity

_SEVERITIES = [None, *(severity.name.lower() for severity in Severity if severity)]


def result_of(scored: Results, i: int, model: str, source: Mapping[str, Any] | None, missing: int) -> dict[str, Any]:
    """Row `i` of `scored` as the result object of its output record; NaN becomes None.

    source: topic, partition, offset and timestamp (milliseconds since 1970, or None) of the record; None if the
    record does not come from a topic. missing: the number of features without a value.
    """
    return {
        **(source or {}),
        "score": _or_none(float(scored.score[i])),
        "logit": _or_none(float(scored.logit[i])),
        "p_value": _or_none(float(scored.p_value[i])),
        "outlier": bool(scored.outlier[i]),
        "severity": _SEVERITIES[scored.severity[i]],
        "missing": missing,
        "model": model,
        "generation": int(scored.generation[i]),
        "regime": int(scored.regime[i]),
        "status": str(scored.status[i]),
    }


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None
