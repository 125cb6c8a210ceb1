"""Detectors as benchmark programs like to call them: `fit(X)` then `score(X)`, or `score_many(X)` and `learn_many(X)`.

Name one as `benchmarks.detectors:shipped`. FOMO_MODEL names the model or checkpoint of `shipped` and `stream`.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from fomo_stream import FoMoDetector, ZeroShotDetector
from fomo_stream.model.architecture import PRESETS
from fomo_stream.model.checkpoint import save_model
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
MODEL = os.environ.get("FOMO_MODEL", "default")


class Batch:
    """A fixed context of inliers; scores are higher for outliers. Wider data than a raw model takes: members vote."""

    def __init__(self, model: str = MODEL, n_members: int = 1) -> None:
        self._detector = ZeroShotDetector(model=model, n_members=n_members, random_state=0)

    def fit(self, X: Float) -> Batch:
        self._detector.fit(X)
        return self

    def score(self, X: Float) -> Float:
        return -self._detector.score_samples(X)


def shipped() -> Batch:
    """The model that FOMO_MODEL names."""
    return Batch()


def channels_averaged() -> Batch:
    """Evidence channels with equal weights: the fusion before any training."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/averaged.safetensors"
        save_model(ZeroShotModel(PRESETS["fusion"]), path)
        detector = Batch(path)
        detector.fit(np.zeros((4, 1)))  # loads the weights, which stay with the process
        return detector


def stream() -> FoMoDetector:
    """The River adapter as it comes."""
    return FoMoDetector(model=MODEL)
