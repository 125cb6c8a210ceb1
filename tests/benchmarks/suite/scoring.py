"""Scoring alone on one core: CPU time of a record against a context that is ready."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fomo_stream.model.scoring import encode_rows, logits_of

from . import machine
from .contenders import (
    NO_PYSAD,
    PAPER,
    Float,
    batches,
    full_pass,
    models,
    neighbours,
    sensor_rows,
    streaming_peers,
)
from .report import Absent, Measurement
from .scale import Scale
from .timing import Work, costs

QUERIES = 512
NO_PAPER = Absent(PAPER, "it takes at most 100 features")


def measure(scale: Scale) -> Iterator[Measurement | Absent]:
    """Ours, the paper's way, the other detectors and the floor, at every size."""
    yield from machine.measure(scale.contexts, scale.features)
    for n in scale.contexts:
        for d in scale.features:
            yield from _at(n, d, scale)


def _at(n: int, d: int, scale: Scale) -> Iterator[Measurement | Absent]:
    context, queries = sensor_rows(n, d), sensor_rows(QUERIES, d, seed=1)
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
        yield _measurement(name, batch, n, d, cost.median, cost.spread)
    for batch in scale.batches:
        yield _measurement("floor", batch, n, d, machine.floor(n, d, batch), None)


def _measurement(name: str, batch: int, n: int, d: int, seconds: float, spread: float | None) -> Measurement:
    parameters: dict[str, str | int] = {"variant": name, "batch": batch, "context": n, "features": d}
    return Measurement("scoring", parameters, 1e6 * seconds, "us/record", None if spread is None else 1e6 * spread)


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
