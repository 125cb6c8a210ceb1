"""The results of records, as the JSON-ready objects that outputs carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from fomo_stream.detector.results import Results, Severity

Result = dict[str, Any]
Source = tuple[str, int, int, int | None]  # topic, partition, offset, timestamp (milliseconds since 1970) of a record

_SEVERITIES = [None, *(severity.name.lower() for severity in Severity if severity)]


def results_of(
    scored: Results, model: str, missing: Sequence[int], sources: Sequence[Source] | None = None
) -> list[Result]:
    """Each row of `scored` as the result object of its output record; NaN becomes None.

    missing: (n,) how many features of each record have no value. sources: (n,) where the records come from; None if
    they do not come from a topic.
    """
    columns = (
        _or_none(scored.score),
        _or_none(scored.remembered_logit),
        _or_none(scored.logit),
        _or_none(scored.p_value),
        scored.outlier.tolist(),
        scored.severity.tolist(),
        missing,
        scored.generation.tolist(),
        scored.regime.tolist(),
        map(str, scored.status),
    )
    results: list[Result] = [
        {
            "score": score,
            "remembered_logit": remembered,
            "logit": logit,
            "p_value": p_value,
            "outlier": outlier,
            "severity": _SEVERITIES[severity],
            "missing": lacking,
            "model": model,
            "generation": generation,
            "regime": regime,
            "status": status,
        }
        for score, remembered, logit, p_value, outlier, severity, lacking, generation, regime, status in zip(
            *columns, strict=True
        )
    ]
    if sources is None:
        return results
    return [
        {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp, **result}
        for (topic, partition, offset, timestamp), result in zip(sources, results, strict=True)
    ]


def _or_none(numbers: NDArray[Any]) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in numbers.tolist()]
