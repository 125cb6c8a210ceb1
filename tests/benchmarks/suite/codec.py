"""Records in and out: JSON to rows, and results to JSON. `reading` and `writing` are all that know our functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from fomo_stream.detector.results import Results, Scores, Status
from fomo_stream.records.json_codec import decode, encode
from fomo_stream.records.result import results_of
from fomo_stream.records.schema import Schema

from .contenders import Float, sensor_rows
from .load import bodies
from .report import Measurement
from .scale import Scale
from .timing import Work, costs

BATCH = 64
SOURCE = ("sensors", 3, 123_456, 1_731_412_345_678)


def measure(scale: Scale) -> Iterator[Measurement]:
    """Ours, orjson alone and the standard library alone."""
    for d in scale.codec_features:
        values = list(bodies(sensor_rows(BATCH, d)))
        parsed = [orjson.loads(value) for value in values]
        variants = {
            "decode": {"fomo-stream": reading(values, d)} | _libraries("loads", values),
            "encode": {"fomo-stream": writing(values, d)} | _libraries("dumps", parsed),
        }
        for name, works in variants.items():
            for variant, cost in costs(works, scale.repeats, scale.seconds).items():
                parameters: dict[str, str | int] = {"variant": variant, "features": d, "batch": BATCH}
                yield Measurement(name, parameters, 1e6 * cost.median, "us/record", 1e6 * cost.spread)


def reading(values: list[bytes], features: int) -> Work:
    """From the bytes of records to rows."""
    schema = _schema(features)

    def work() -> int:
        schema.rows([decode(value) for value in values])
        return len(values)

    return work


def _schema(features: int) -> Schema:
    return Schema(tuple(f"sensor{i}" for i in range(features)))


def writing(values: list[bytes], features: int) -> Work:
    """From the results of a batch to the bytes of outputs."""
    records, scored = [decode(value) for value in values], _results(np.linspace(-3, 3, len(values)))
    missing, sources = [0] * len(values), [SOURCE] * len(values)
    schema = _schema(features)

    def work() -> int:
        results = results_of(scored, "fusion-router@f81b1064", schema, records, missing, sources)
        for value, record, result in zip(values, records, results, strict=True):
            encode(record, result, raw=value)
        return len(records)

    return work


def _results(logit: Float) -> Results:
    scores = Scores.of(logit[:, None], np.ones(len(logit), dtype=np.int64), np.ones(len(logit)))
    p = np.linspace(0.001, 1, len(logit))
    return Results.of(scores, logit, 1 - p, p, 1, (p <= 0.01).astype(np.int8) * 2, Status.OK)


def _libraries(function: str, items: Sequence[Any]) -> dict[str, Work]:
    """A function of the JSON libraries on each item, by library."""

    def worker(call: Callable[[Any], object]) -> Work:
        def work() -> int:
            for item in items:
                call(item)
            return len(items)

        return work

    return {library.__name__: worker(getattr(library, function)) for library in (orjson, json)}
