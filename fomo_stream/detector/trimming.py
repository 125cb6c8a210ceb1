"""Trimming leaves the most outlying rows out of a context; a consistency check confirms a new regime."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.calibration import p_values
from fomo_stream.detector.categories import Frequencies
from fomo_stream.model.scoring import committee_logits, cross_scores, encode_rows, logits_of
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]

COMMITTEES = 8
COMMITTEE_ROWS = 32
HALF = 500  # maximum number of rows that represent each half of a new regime
# a row with a smaller p-value is unusual; this share of the rows must not be unusual
UNUSUAL, AGREEING = 0.05, 0.8


def committee_means(model: ZeroShotModel, rows: Float, seed: tuple[int, ...]) -> Float:
    """How outlying each of rows (n, d) is among small random samples of the others: mean logits (n,).

    In leave-one-out scores the members of a cluster of outliers look normal, because each has near neighbours. A sample
    of 32 rows has few of them or none. (Subsampling against masking, as in isolation forests and iNNE.)
    """
    n = len(rows)
    rng = np.random.default_rng(seed)
    size = min(COMMITTEE_ROWS, n // 2)
    members = np.stack([rng.choice(n, size, replace=False) for _ in range(COMMITTEES)])
    logits = committee_logits(model, rows, members)
    own = np.zeros((COMMITTEES, n), dtype=bool)
    np.put_along_axis(own, members, True, axis=1)
    mean: Float = np.where(own, 0.0, logits).sum(0) / np.maximum((~own).sum(0), 1)
    return mean


def trimmed(
    model: ZeroShotModel, rows: Float, doubtful: NDArray[np.bool_], share: float, seed: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Which of rows (n, d) stay (n,): all but the most outlying `share` of the doubtful ones."""
    keep = np.ones(len(rows), dtype=bool)
    leaving = int(share * doubtful.sum())
    if leaving and len(rows) >= 8:
        logits = np.where(doubtful, committee_means(model, rows, seed), -np.inf)
        keep[np.argsort(-logits, kind="stable")[:leaving]] = False
    return keep


def is_consistent(model: ZeroShotModel, rows: Float, categorical: tuple[int, ...]) -> bool:
    """Whether the later half of rows (n, d), in their order, looks normal in the context of the earlier half.

    This holds for a stream that has settled; not while it is still changing, and not for bursts among other records.
    """
    half = len(rows) // 2
    if half < 4:
        return False
    at = np.unique(np.linspace(0, half - 1, min(half, HALF)).astype(np.int64))
    frequencies = Frequencies.fit(rows[at], categorical)
    earlier, later = frequencies.encode_own(rows[at]), frequencies.encode(rows[half + at])
    p = p_values(logits_of(model, encode_rows(model, earlier), later), np.sort(cross_scores(model, earlier)))
    return bool(np.mean(p > UNUSUAL) >= AGREEING)
