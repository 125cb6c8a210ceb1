"""Trimming leaves the most outlying rows out of a context."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.scoring import committee_logits
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]

STRETCHES = 8
COMMITTEE_ROWS = 32
LEAST_ROWS = 2 * STRETCHES  # a committee has at least two rows


def committee_means(model: ZeroShotModel, rows: Float, seed: tuple[int, ...]) -> Float:
    """How outlying each of rows (n, d), n >= LEAST_ROWS, is among small samples of the others: mean logits (n,).

    The rows are in the order of their records. Each of STRETCHES equal stretches of time gives a committee, a random
    sample of at most 32 of its rows, and a row is judged by the committees of the other stretches. In leave-one-out
    scores the members of a cluster of outliers look normal, because each has near neighbours (masking). A small sample
    has few of them (as in isolation forests and iNNE), and one of another time has none of a burst.
    """
    n = len(rows)
    rng = np.random.default_rng(seed)
    edges = np.arange(STRETCHES + 1) * n // STRETCHES
    size = min(COMMITTEE_ROWS, n // STRETCHES)
    members = np.stack([a + rng.choice(b - a, size, replace=False) for a, b in pairwise(edges)])
    logits = committee_logits(model, rows, members)
    own = np.searchsorted(edges, np.arange(n), side="right") - 1
    logits[own, np.arange(n)] = 0.0
    mean: Float = logits.sum(0) / (STRETCHES - 1)
    return mean


def trimmed(
    model: ZeroShotModel, rows: Float, doubtful: NDArray[np.bool_], share: float, seed: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Which of rows (n, d), in the order of their records, stay (n,): all but the most outlying `share` of the doubtful
    ones."""
    keep = np.ones(len(rows), dtype=bool)
    leaving = int(share * doubtful.sum())
    if leaving and len(rows) >= LEAST_ROWS:
        logits = np.where(doubtful, committee_means(model, rows, seed), -np.inf)
        keep[np.argsort(-logits, kind="stable")[:leaving]] = False
    return keep
