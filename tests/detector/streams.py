"""Streams and detectors that tests share: small ones of the default model, others of a model that costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import torch

from fomo_stream.detector.changelog import Entries
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.detector.series import Series
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.preprocessing import Knots, fit_imputation
from fomo_stream.model.zero_shot import ContextCache, ZeroShotModel

FEATURES = 2
CONFIG = DetectorConfig(
    context_size=24,
    min_context=8,
    lags=1,
    lag=40,
    calibration_size=60,
    feedback_memory=90,
    least_history=0,
    adapt_after=64,
    refresh=0.3,
    recent_every=64,
    alert_rate=0.1,
    keys=4,  # so few that some are forgotten
    own_contexts=2,  # ... and that some keys lose theirs, see KEYS
)


class Distance:
    """A model that costs nothing: how far a row is from the middle of the context."""

    name = "distance"
    kernel, tile = "torch", 64
    config = ModelConfig(fusion=False, evidence=False, layers=1, attention="kernel")
    device = torch.device("cpu")

    def encode_context(self, rows: torch.Tensor, knots: Knots | None = None) -> ContextCache:
        imputation, filled = fit_imputation(rows), rows.nan_to_num()
        center, scale = filled.mean(-2, keepdim=True), 1 + filled.std(-2, keepdim=True)
        n, d = rows.shape[-2:]
        made_of = Knots(center, torch.zeros(1), scale)
        return ContextCache(n, d, torch.tensor([d]), imputation, made_of, evidence=None, own=None, layers=())

    def score_queries(self, cache: ContextCache, queries: torch.Tensor) -> torch.Tensor:
        return ((queries.nan_to_num() - cache.knots.values).abs() / cache.knots.scale).amax(-1)

    def __call__(self, context: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        return self.score_queries(self.encode_context(context), queries)


MODEL = cast(ZeroShotModel, Distance())


def shifting(n: int) -> np.ndarray:
    """Rows of two features: now and then one far off, values missing, and every 300 records a lasting shift."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, FEATURES)) * np.where(rng.random((n, 1)) < 0.05, 9, 1)
    rows += 12 * (np.arange(n) // 300 % 2)[:, None]
    rows[rng.random((n, FEATURES)) < 0.05] = np.nan
    return rows


ROWS = shifting(3000)
NUMBERS = np.random.default_rng(1).integers(0, 8, 3000)
NUMBERS[700:] = np.where(NUMBERS[700:] < 5, 6, NUMBERS[700:])  # one key becomes the busiest
KEYS: list[Key] = [None if key == 7 else str(key) for key in NUMBERS]


def new(config: DetectorConfig = CONFIG, seeded: int = 0) -> Detector:
    """The detector of a partition; seeded: rows of its seed context."""
    one = Detector(MODEL, FEATURES, config)
    if seeded:
        one.seed_context(np.random.default_rng(2).normal(size=(seeded, FEATURES)), KEYS[:seeded])
    return one


def process(one: Detector, first: int, stop: int) -> Results:
    """Process these records of the stream."""
    return one.process(ROWS[first:stop], KEYS[first:stop])


def process_until_next(one: Detector) -> None:
    """One record after the other until a new generation is triggered."""
    while not one.inspect().following:
        process(one, one.records, one.records + 1)


def recovered(log: Mapping[str, bytes], known: Detector | None = None, config: DetectorConfig = CONFIG) -> Detector:
    """The detector of a partition from its log."""
    one = Detector(MODEL, FEATURES, config)
    one.recover(log, known)
    return one


def state_of(one: Detector | Series) -> Entries:
    """Everything that the results of the next records depend on, without disturbing the log."""
    return {key: value for key, value in one.copy().changes().items() if "/encoded/" not in key}


def compacted(history: list[tuple[str, bytes | None]], keep: Callable[[], bool] = lambda: False) -> dict[str, bytes]:
    """What a reader has who reads a log of which compaction has left the last entry of each key and those of `keep`."""
    last = {key: at for at, (key, _) in enumerate(history)}
    found: dict[str, bytes] = {}
    for at, (key, value) in enumerate(history):
        if at == last[key] or keep():
            found.pop(key, None)
            if value is not None:
                found[key] = value
    return found


def assert_same_results(one: Results, other: Results) -> None:
    """Every field, bit for bit."""
    for name, values in vars(one).items():
        np.testing.assert_array_equal(values, getattr(other, name), err_msg=name)


# --- of the default model

SMALL = DetectorConfig(
    context_size=60,
    min_context=20,
    lag=8,
    calibration_size=100,
    feedback_memory=80,
    adapt_after=100,
    recent_every=96,
    alert_rate=0.05,
)


def detector(config: DetectorConfig = SMALL, n_features: int = 3) -> Detector:
    return Detector(shared_model(), n_features, config)


def stream(n: int, seed: int = 0, d: int = 3) -> np.ndarray:
    """Normal rows, one in twenty far off, some values missing; a lasting shift after 200."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * np.where(rng.random((n, 1)) < 0.05, 8, 1)
    rows[200:] += 9
    rows[rng.random((n, d)) < 0.02] = np.nan
    return rows


def keys_of(n: int, seed: int = 0) -> list[str | None]:
    """Keys that come again, and records without one."""
    return [None if key == 4 else str(key) for key in np.random.default_rng(seed).integers(0, 5, n)]
