"""Streams with labels, the shipped detector run over them as they would come, and how well it ranks their outliers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from drift_inliers import Bool, Float
from drifting import Stream
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from fomo_stream import Detector

BATCH = 64  # records in a micro-batch
LONG = 26_000  # records beyond which every other one is left out ...
WHOLE = {"smtp"}  # ... but not of these


@dataclass(frozen=True)
class Run:
    """What a detector made of the n records of a stream, with a look at its context after every micro-batch."""

    score: Float  # (n,) remembered logits, each before its record was learned; 0 while warming up
    alert: Bool  # (n,)
    position: NDArray[np.int64]  # (n_batches,) records processed so far
    contamination: Float  # (n_batches,) share of true outliers among the rows of the context; NaN while warming up
    announced: NDArray[np.int64]  # (k,) first records of a regime that the detector adapted to
    cpu_s: float


def load_streams(folder: Path, inliers_only: bool = False) -> list[Stream]:
    """The streams of a folder of .npz files, by name."""
    return [load_stream(path, inliers_only) for path in sorted(folder.glob("*.npz"))]


def load_stream(path: Path, inliers_only: bool = False) -> Stream:
    """The stream in an .npz file with X (n, d) and y (n,), 1 = outlier; its name is the file's.

    A stream of more than 26,000 records keeps every other one. inliers_only: without its outliers.
    """
    with np.load(path) as arrays:
        rows, outlier = arrays["X"].astype(np.float32).astype(np.float64), arrays["y"].astype(bool)
    if len(outlier) > LONG and path.stem not in WHOLE:
        rows, outlier = rows[::2], outlier[::2]
    if inliers_only:
        rows, outlier = rows[~outlier], np.zeros(int((~outlier).sum()), dtype=bool)
    return Stream(path.stem, rows, outlier)


def run(detector: Detector, stream: Stream, feedback_delay: int | None = None) -> Run:
    """Give a fresh detector the stream in micro-batches, and the true labels feedback_delay records after each."""
    n, contamination, cpu_s = len(stream.rows), [], 0.0
    starts = range(0, n, BATCH)
    score, alert, regime, told = np.zeros(n), np.zeros(n, dtype=bool), np.zeros(n, dtype=np.int64), 0
    for start in starts:
        part = slice(start, start + BATCH)
        began = time.process_time()
        scored = detector.process(stream.rows[part])
        if feedback_delay is not None:
            due = min(n, max(0, (start - feedback_delay) // BATCH + 1) * BATCH)  # whole micro-batches
            detector.feedback(np.arange(told, due), stream.outlier[told:due])
            told = due
        cpu_s += time.process_time() - began
        score[part], alert[part] = np.nan_to_num(scored.remembered_logit, nan=0.0), scored.outlier
        regime[part] = scored.regime
        context = detector.context_numbers
        contamination.append(float(stream.outlier[context].mean()) if len(context) else np.nan)
    announced = np.flatnonzero((np.diff(regime) > 0) & (regime[:-1] > 0)) + 1  # the first regime is no news
    position = np.minimum(np.arange(len(starts)) * BATCH + BATCH, n)
    return Run(score, alert, position, np.array(contamination), announced, cpu_s)


def ranking(stream: Stream, score: Float) -> tuple[float, float]:
    """AUROC and average precision of scores (n,), less the first max(500, 10 %) records; NaN without outliers."""
    first = max(500, len(score) // 10)
    outlier = stream.outlier[first:]
    if not outlier.any():
        return np.nan, np.nan
    return float(roc_auc_score(outlier, score[first:])), float(average_precision_score(outlier, score[first:]))
