"""A small partition with a model that costs nothing, and its log: shared by the tests of a detector's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import pytest
import torch

from fomo_stream.detector.changelog import Entries
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.context import Context
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.past_values import PastValues
from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.detector.results import Results
from fomo_stream.model.imputation import fit_imputation
from fomo_stream.model.quantile_map import Knots
from fomo_stream.model.zero_shot import ContextCache, ModelConfig, ZeroShotModel

LAGS, FEATURES, SERIES = 1, 2, 4
CONFIG = DetectorConfig(
    context_size=24,
    min_context=8,
    lag=40,
    calibration_size=60,
    feedback_memory=90,
    adapt_after=64,
    refresh=0.3,
    alert_rate=0.1,
)


class Distance:
    """A model that costs nothing: how far a row is from the middle of the context, by its sketch if there is one."""

    name = "distance"
    kernel = "torch"
    config = ModelConfig(fusion=False, layers=1)
    device = torch.device("cpu")

    def encode_context(self, rows: torch.Tensor, knots: Knots | None = None) -> ContextCache:
        imputation, filled = fit_imputation(rows), rows.nan_to_num()
        center, scale = filled.mean(-2, keepdim=True), 1 + filled.std(-2, keepdim=True)
        if knots is not None:
            center, scale = center + knots.values.mean(-1), 1 + knots.scale
        n, d = rows.shape[-2:]
        made_of = Knots(center, torch.zeros(1), scale)
        return ContextCache(n, d, torch.tensor([d]), imputation, made_of, evidence=None, own=None, layers=())

    def score_queries(self, cache: ContextCache, queries: torch.Tensor) -> torch.Tensor:
        return ((queries.nan_to_num() - cache.knots.values).abs() / cache.knots.scale).amax(-1)

    def __call__(self, context: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        return self.score_queries(self.encode_context(context), queries)


MODEL = cast(ZeroShotModel, Distance())


def small_sketches_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches that merge often; with a short history, more rarely than it forgets."""

    def new_sketch(self: Context) -> QuantileSketch:
        chunk = 24 if self.config.history_rows > 100 else 300
        return QuantileSketch(self._n_features, 20.0, size=8, chunk=chunk)

    monkeypatch.setattr(Context, "_new_sketch", new_sketch)


def stream(n: int) -> np.ndarray:
    """Rows of two features: now and then one far off, values missing, and every 300 records a lasting shift."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, FEATURES)) * np.where(rng.random((n, 1)) < 0.05, 9, 1)
    rows += 12 * (np.arange(n) // 300 % 2)[:, None]
    rows[rng.random((n, FEATURES)) < 0.05] = np.nan
    return rows


ROWS = stream(3000)
KEYS = [str(key) for key in np.random.default_rng(1).integers(0, 7, 3000)]


class Partition:
    """A detector with its past values, as one state that a partition's log has to bring back."""

    def __init__(self, config: DetectorConfig = CONFIG, seeded: int = 0) -> None:
        self.past = PastValues(LAGS, FEATURES, max_keys=SERIES)
        self.detector = Detector(MODEL, self.past.width, config)
        if seeded:
            self.detector.seed_context(np.random.default_rng(2).normal(size=(seeded, self.past.width)))

    def process(self, first: int, stop: int) -> Results:
        return self.detector.process(self.past.rows(ROWS[first:stop], KEYS[first:stop]))

    def process_until_next(self) -> None:
        """One record after the other until a new generation is triggered."""
        while self.detector._state.timeline.next is None:
            first = self.detector.records
            self.process(first, first + 1)

    def changes(self) -> Entries:
        entries = {f"detector/{key}": value for key, value in self.detector.changes().items()}
        return entries | {f"lags/{key}": value for key, value in self.past.changes().items()}

    def recover(self, log: Mapping[str, bytes], known: Partition | None = None) -> Partition:
        self.detector.recover(under(log, "detector/"), None if known is None else known.detector)
        self.past.recover(under(log, "lags/"))
        return self


def state_of(part: Detector | PastValues) -> Entries:
    """Everything that the results of the next records depend on, without disturbing the log."""
    return {key: value for key, value in part.copy().changes().items() if "/encoded/" not in key}


def assert_same_state(one: Partition, other: Partition) -> None:
    assert state_of(one.detector) == state_of(other.detector)
    assert state_of(one.past) == state_of(other.past)


def under(log: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    return {key.removeprefix(prefix): value for key, value in log.items() if key.startswith(prefix)}


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
    for name in ("logit", "p_value", "outlier", "generation", "regime", "severity"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.status == other.status
