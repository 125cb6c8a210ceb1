"""Synthetic ranking problems and detectors, for several test modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pretrain.evaluation.detectors import Method
from pretrain.evaluation.runs import Run
from pretrain.evaluation.tables import Float, Task


def quiet(_: str) -> None:
    """Ignores lines of progress."""


class Oracle:
    """Scores rows by a function of themselves."""

    def __init__(self, score: Callable[[Float], Float]) -> None:
        self.score = score

    def fit(self, rows: Float) -> object:
        return self


def method(score: Callable[[Float], Float]) -> Method:
    """The same detector for every seed."""
    return lambda seed: Oracle(score)


def task(name: str = "made", seed: int = 0, rows: int = 60, features: int = 3) -> Task:
    """Inliers around 0 and outliers further out, 1 in 5; the first feature says which is which."""
    rng = np.random.default_rng([seed, len(name)])
    labels = (np.arange(rows) % 5 == 0).astype(np.int64)
    queries = rng.normal(size=(rows, features)) * np.where(labels == 1, 3.0, 1.0)[:, None]
    queries[:, 0] = labels
    return Task(name, seed, rng.normal(size=(rows, features)), queries, labels, 2.0, 0.5)


def without_times(runs: list[Run]) -> list[dict[str, Any]]:
    return [asdict(replace(run, fit_seconds=0.0, score_seconds=0.0)) for run in runs]
