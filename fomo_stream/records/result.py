"""Results of records, as JSON-ready objects for outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results, Severity
from fomo_stream.records.explanation import explanation_of, reasons_of
from fomo_stream.records.schema import Schema

Result = dict[str, Any]
Source = tuple[str, int, int, int | None]  # topic, partition, offset, timestamp (milliseconds since 1970) of a record

_SEVERITIES = [None, *(severity.name.lower() for severity in Severity if severity)]


def results_of(
    scored: Results,
    model: str,
    schema: Schema,
    records: Sequence[Mapping[str, Any]],
    missing: Sequence[int],
    sources: Iterable[Source] | None = None,
    keys: Sequence[Key] | None = None,
) -> list[Result]:
    """Return the result object of each row of `scored`, for its output record; NaN becomes None.

    schema: of the rows; records: (n,) of the rows; missing: (n,) number of features without a value. sources: (n,) of
    the records; None if they do not come from a topic. keys: (n,) of the records. An explained record gets its
    reasons, an empty list if it has none, and an explanation in words.
    """
    columns = (
        repeat({}, len(scored)) if sources is None else [_place(*source) for source in sources],
        *(_finite_or_none(numbers) for numbers in (scored.score, scored.remembered_logit, scored.logit)),
        _finite_or_none(scored.p_value),
        scored.outlier.tolist(),
        scored.severity.tolist(),
        _finite_or_none(scored.confidence),
        missing,
        scored.generation.tolist(),
        [status._value_ for status in scored.status],  # `value` takes four times as long
    )
    results: list[Result] = [
        {
            **place,
            "score": score,
            "remembered_logit": remembered,
            "logit": logit,
            "p_value": None if p is None else _short_p_value(p),
            "outlier": outlier,
            "severity": _SEVERITIES[severity],
            "confidence": confidence,
            "missing": lacking,
            "model": model,
            "generation": generation,
            "status": status,
        }
        for place, score, remembered, logit, p, outlier, severity, confidence, lacking, generation, status in zip(
            *columns, strict=True
        )
    ]
    has_reference = np.isfinite(scored.by_reference)
    for index in np.flatnonzero(has_reference).tolist():
        results[index]["reference_logit"] = float(scored.by_reference[index])
    if scored.reasons.count(None) < len(results):
        earlier = np.where(has_reference, 0.0, scored.remembered_logit - scored.logit).tolist()
        of_record = results, scored.reasons, records, earlier, repeat(None, len(results)) if keys is None else keys
        for result, reasons, record, excess, key in zip(*of_record, strict=True):
            if reasons is not None:
                result["reasons"] = reasons_of(reasons, schema, record)
                result["explanation"] = explanation_of(reasons, schema, record, excess, result["outlier"], key)
    return results


def unscored_result(missing: int | None, model: str | None = None, source: Source | None = None) -> Result:
    """Return the result of a record that is not scored; the caller adds the status."""
    result: Result = {} if source is None else _place(*source)
    result |= dict.fromkeys(("score", "remembered_logit", "logit", "p_value"))
    result |= {"outlier": False, "severity": None, "confidence": None, "missing": missing}
    return result | ({} if model is None else {"model": model}) | {"generation": 0}


def _place(topic: str, partition: int, offset: int, timestamp: int | None) -> Result:
    return {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp}


@lru_cache(maxsize=2**14)
def _short_p_value(p: float) -> float:
    """Return a p-value with three digits. Those of a stream are few different ones: ranks among as many records."""
    return float(f"{p:.3g}")


def _finite_or_none(numbers: NDArray[Any]) -> list[float | None]:
    is_finite = np.isfinite(numbers)
    values: list[float | None] = numbers.tolist()
    if is_finite.all():
        return values
    return [value if finite else None for value, finite in zip(values, is_finite.tolist(), strict=True)]
