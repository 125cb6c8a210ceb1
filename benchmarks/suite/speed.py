"""CPU time: of scoring alone, of builds, of records in and out, and of our River detector beside other detectors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import orjson

from fomo_stream import Detector, DetectorConfig
from fomo_stream.detector.generation import Generation
from fomo_stream.detector.results import Results, Scores, Status
from fomo_stream.model.scoring import encode_rows, logits_of
from fomo_stream.records.json_codec import decode, encode
from fomo_stream.records.result import results_of
from fomo_stream.records.schema import Schema

from .contenders import (
    NO_PYSAD,
    PAPER,
    Float,
    batches,
    full_pass,
    many,
    models,
    neighbours,
    one_by_one,
    records,
    repeated,
    river_detectors,
    sensor_rows,
    streaming_peers,
)
from .load import bodies, names
from .report import Absent, Measurement, Sizes
from .scale import Scale
from .timing import Work, cost_of, costs

SCORED = 512  # rows
NO_PAPER = Absent(PAPER, "it takes at most 100 features")
P = ParamSpec("P")
R = TypeVar("R")
CHUNK = 256  # records that a variant processes before the next has its turn
SPAN = 4  # contexts' worth of records; the builds of the second half count
MICRO_BATCH = 64  # records
SOURCE = ("sensors", 3, 123_456, 1_731_412_345_678)
RIVER_FEATURES, STREAMED = 10, 8192  # columns, rows


def scoring(scale: Scale) -> Iterator[Measurement | Absent]:
    """Ours, the paper's way and the other detectors, at every size."""
    for n in scale.contexts:
        for d in scale.features:
            yield from _at(n, d, scale)


def _at(n: int, d: int, scale: Scale) -> Iterator[Measurement | Absent]:
    context, queries = sensor_rows(n, d), sensor_rows(SCORED, d, seed=1)
    variants = {(name, batch): work for batch in scale.batches for name, work in _batched(context, queries, batch)}
    variants |= {(name, 1): work for name, work in streaming_peers(context, queries)}
    if "PySAD LODA" not in {name for name, _ in variants}:
        yield NO_PYSAD
    paper = full_pass(context, queries)
    if paper is None:
        yield NO_PAPER
    else:
        variants[f"{PAPER}, full pass", 1] = paper
    found = costs({f"{name}|{batch}": work for (name, batch), work in variants.items()}, scale.repeats, scale.seconds)
    for (name, batch), cost in zip(variants, found.values(), strict=True):
        parameters: Sizes = {"variant": name, "batch": batch, "context": n, "features": d}
        yield Measurement("scoring", parameters, 1e6 * cost.median, "us/record", 1e6 * cost.spread)


def _batched(context: Float, queries: Float, batch: int) -> Iterator[tuple[str, Work]]:
    """The variants that score a batch in one call."""
    for name, model in models():
        yield name, _ours(partial(logits_of, model, encode_rows(model, context)), queries, batch)
    yield "kNN brute", neighbours(context, queries, "brute", batch)
    yield "kNN kd-tree", neighbours(context, queries, "kd_tree", batch)


def _ours(score: partial[Float], queries: Float, batch: int) -> Work:
    parts = batches(queries, batch)

    def work() -> int:
        score(next(parts))
        return batch

    return work


class Timed(Executor):
    """Runs tasks at once, and notes the CPU time of those that build a generation."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        began = time.process_time()
        result = fn(*args, **kwargs)
        spent = time.process_time() - began
        if isinstance(result, Generation):
            self.seconds.append(spent)
        future.set_result(result)
        return future


def build(scale: Scale) -> Iterator[Measurement]:
    """A build of a generation in a stream that does not change, once the reservoirs are full, and a kd-tree."""
    for n, d in scale.builds:
        rows = sensor_rows(SPAN * n, d)
        found = {name: cost_of([(spent, 1) for spent in seconds]) for name, seconds in builds(rows, n).items()}
        found |= costs({"kNN kd-tree": _tree(rows[:n])}, scale.repeats, scale.seconds)
        for name, cost in found.items():
            parameters: Sizes = {"variant": name, "context": n, "features": d}
            yield Measurement("build", parameters, 1000 * cost.median, "ms", 1000 * cost.spread)


def builds(rows: Float, context: int) -> dict[str, list[float]]:
    """By variant, CPU seconds of the builds that the later half of the rows makes."""
    config = DetectorConfig(context_size=context, min_context=context)
    made = {}
    for name, model in models():
        executor = Timed()
        made[name] = Detector(model, rows.shape[1], config, executor=executor), executor
    for start in range(0, len(rows), CHUNK):
        for detector, executor in made.values():
            detector.process(rows[start : start + CHUNK])
            if detector.records <= len(rows) // 2:
                executor.seconds.clear()
    return {name: executor.seconds for name, (_, executor) in made.items()}


def _tree(rows: Float) -> Callable[[], int]:
    from sklearn.neighbors import KDTree

    def work() -> int:
        KDTree(rows)
        return 1

    return work


def codec(scale: Scale) -> Iterator[Measurement]:
    """Ours, orjson alone and the standard library alone."""
    for d in scale.codec_features:
        values = list(bodies(sensor_rows(MICRO_BATCH, d)))
        parsed = [orjson.loads(value) for value in values]
        variants = {
            "decode": {"fomo-stream": reading(values, d)} | _libraries("loads", values),
            "encode": {"fomo-stream": writing(values, d)} | _libraries("dumps", parsed),
        }
        for name, works in variants.items():
            for variant, cost in costs(works, scale.repeats, scale.seconds).items():
                parameters: Sizes = {"variant": variant, "features": d, "batch": MICRO_BATCH}
                yield Measurement(name, parameters, 1e6 * cost.median, "us/record", 1e6 * cost.spread)


def reading(values: list[bytes], features: int) -> Work:
    """From the bytes of records to rows."""
    schema = Schema(names(features))

    def work() -> int:
        schema.rows([decode(value) for value in values])
        return len(values)

    return work


def writing(values: list[bytes], features: int) -> Work:
    """From the results of a batch to the bytes of outputs."""
    records, scored = [decode(value) for value in values], _results(np.linspace(-3, 3, len(values)))
    missing, sources = [0] * len(values), [SOURCE] * len(values)
    schema = Schema(names(features))

    def work() -> int:
        results = results_of(scored, "streams@82ed4a6c", schema, records, missing, sources)
        for value, record, result in zip(values, records, results, strict=True):
            encode(record, result, raw=value)
        return len(records)

    return work


def _results(logit: Float) -> Results:
    scores = Scores.of(logit[:, None], np.ones(len(logit), dtype=np.int64), np.ones(len(logit)))
    p = np.linspace(0.001, 1, len(logit))
    return Results.of(scores, logit, 1 - p, p, p <= 0.01, (p <= 0.01).astype(np.int8) * 2, Status.OK)


def _libraries(function: str, items: Sequence[Any]) -> dict[str, Work]:
    """A function of the JSON libraries on each item, by library."""

    def worker(call: Callable[[Any], object]) -> Work:
        def work() -> int:
            for item in items:
                call(item)
            return len(items)

        return work

    return {library.__name__: worker(getattr(library, function)) for library in (orjson, json)}


def river(scale: Scale) -> Iterator[Measurement | Absent]:
    """Records that are scored and learned in a CPU second, in batches of 64 and one by one: the mean over all records,
    because learning now and then builds a generation."""
    before = sensor_rows(scale.river_learned * scale.river_context, RIVER_FEATURES)
    queries = sensor_rows(STREAMED, RIVER_FEATURES, seed=1)
    variants: dict[tuple[str, int], Work] = {}
    for batch in (MICRO_BATCH, 1):
        for name, detector in river_detectors(scale.river_context):
            detector.learn_many(before)
            work = many(detector, queries, batch) if batch > 1 else one_by_one(detector, records(queries))
            variants[name, batch] = repeated(work, scale.river_records // batch)
    for name, work in streaming_peers(before, queries):
        variants[name, 1] = repeated(work, scale.river_records)
    if ("PySAD LODA", 1) not in variants:
        yield NO_PYSAD
    found = costs({f"{name}|{batch}": work for (name, batch), work in variants.items()}, scale.repeats, 0.0)
    for (name, batch), cost in zip(variants, found.values(), strict=True):
        sizes: Sizes = {"batch": batch, "context": scale.river_context, "features": RIVER_FEATURES}
        yield Measurement(
            "river", {"variant": name, **sizes}, 1 / cost.mean, "records/CPU-s", cost.spread / cost.mean**2
        )
