"""The rows that are scored, our models, and the other detectors, all behind the same small interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream import FoMoDetector, load_model
from fomo_stream.model.architecture import Model
from fomo_stream.model.checkpoint import load_torch_model

from .report import Absent
from .timing import Work

Float = NDArray[np.float64]
BACKENDS = ("numba", "torch")
PAPER = "paper-100"
NO_PYSAD = Absent("PySAD LODA", "pysad is not installed; it is in the extra `bench`")


def sensor_rows(n: int, features: int, seed: int = 0) -> Float:
    """Rows (n, features) like those of sensors: correlated, some log-normal, rounded or binary, 3 % outliers."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(features).normal(size=(features, features)) / np.sqrt(features)
    rows: Float = rng.normal(size=(n, features)) @ mixing + rng.normal(size=(n, 1))
    rows[:, ::5] = np.exp(rows[:, ::5])
    rows[:, 1::5] = rows[:, 1::5].round(1)
    rows[:, 2::10] = rows[:, 2::10] > 0
    outliers = rng.random(n) < 0.03
    rows[outliers] += rng.normal(scale=4, size=(int(outliers.sum()), features))
    return rows


def models(name: str = "default") -> Iterator[tuple[str, Model]]:
    """A model on the CPU with each of its kernels, and the name of that variant."""
    for kernel in BACKENDS:
        yield f"fomo-stream {kernel}", load_model(name, "cpu", kernel)


def river_detectors(context: int) -> Iterator[tuple[str, FoMoDetector]]:
    """Our River detector with each of its kernels, and the name of that variant."""
    least = min(200, context)
    for kernel in BACKENDS:
        detector = FoMoDetector(device="cpu", context_size=context, min_context=least, backend=kernel)
        yield f"fomo-stream {kernel}", detector
    yield "fomo-stream fast", FoMoDetector(device="cpu", context_size=context, min_context=least, views="fast")


def full_pass(context: Float, queries: Float) -> Work | None:
    """The paper's way: a forward pass through context and record for every record. None: too many features."""
    model = load_torch_model(PAPER, "cpu")
    if context.shape[1] > model.config.raw_features:
        return None
    rows, at = torch.from_numpy(context)[None], _turns(len(queries))
    record = torch.from_numpy(queries)

    def work() -> int:
        with torch.inference_mode():
            model(rows, record[None, next(at)][None])
        return 1

    return work


def neighbours(context: Float, queries: Float, algorithm: str, batch: int) -> Work:
    """scikit-learn's five nearest neighbours in the context: the mean distance to them."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=5, algorithm=algorithm).fit(context)
    parts = batches(queries, batch)

    def work() -> int:
        distances, _ = index.kneighbors(next(parts))
        distances.mean(axis=1)
        return batch

    return work


def streaming_peers(context: Float, queries: Float) -> Iterator[tuple[str, Work]]:
    """Other streaming detectors that have learned the context: each record is scored, then learned.

    Rows are scaled beforehand to what each method expects, so that scaling costs them nothing.
    """
    from river.anomaly import HalfSpaceTrees, OneClassSVM

    low, high = context.min(axis=0), context.max(axis=0)
    unit = [np.clip((rows - low) / np.maximum(high - low, 1e-9), 0, 1) for rows in (context, queries)]
    scaled = [(rows - context.mean(axis=0)) / np.maximum(context.std(axis=0), 1e-9) for rows in (context, queries)]
    yield "River HalfSpaceTrees", _river(HalfSpaceTrees(seed=0), *unit)
    yield "River OneClassSVM", _river(OneClassSVM(), *scaled)
    if find_spec("pysad") is not None:
        yield "PySAD LODA", _loda(*scaled)


def _river(detector: Any, context: Float, queries: Float) -> Work:
    for record in records(context):
        detector.learn_one(record)
    return one_by_one(detector, records(queries))


def one_by_one(detector: Any, given: Sequence[dict[int, float]]) -> Work:
    """Score and learn a record, one at a time."""
    at = _turns(len(given))

    def work() -> int:
        record = given[next(at)]
        detector.score_one(record)
        detector.learn_one(record)
        return 1

    return work


def many(detector: FoMoDetector, queries: Float, batch: int) -> Work:
    """Score and learn batches."""
    parts = batches(queries, batch)

    def work() -> int:
        rows = next(parts)
        detector.score_many(rows)
        detector.learn_many(rows)
        return batch

    return work


def repeated(work: Work, times: int) -> Work:
    """The same work several times."""
    return lambda: sum(work() for _ in range(times))


def _loda(context: Float, queries: Float) -> Work:
    from pysad.models import LODA

    detector = LODA(random_state=0)
    for row in context:
        detector.fit_partial(row)
    at = _turns(len(queries))

    def work() -> int:
        detector.fit_score_partial(queries[next(at)])
        return 1

    return work


def records(rows: Float) -> list[dict[int, float]]:
    """Rows as River's records."""
    return [dict(enumerate(row)) for row in rows.tolist()]


def _turns(n: int) -> Iterator[int]:
    while True:
        yield from range(n)


def batches(rows: Float, batch: int) -> Iterator[Float]:
    """Batches of the rows, from the start again after the last."""
    starts = range(0, len(rows) - batch + 1, batch)
    while True:
        for start in starts:
            yield rows[start : start + batch]
