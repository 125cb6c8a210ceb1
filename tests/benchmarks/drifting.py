"""Generated event streams that drift, with outliers that are judged against the regime of their own moment.

Twelve kinds of drift, each with three modes of outliers: isolated points, short bursts (5 to 100 records that resemble
each other) and long ones (300 to 800). Outliers are made from the inliers around their own position and replace the
records there. Except for bursts, nothing that drifts lasts for less than 1,500 records. So long bursts and new regimes
differ only in how long they last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from drift_inliers import KINDS, Bool, Float
from drift_outliers import with_outliers

MODES = ("isolated", "short", "long")


@dataclass(frozen=True)
class Stream:
    """One stream in the order of its records."""

    name: str  # kind.mode, or the kind alone without outliers
    rows: Float  # (n, d), raw units
    outlier: Bool  # (n,)
    changes: tuple[int, ...] = ()  # positions where another regime begins


def drifting_streams(
    n: int = 12_000, seed: int = 0, inliers_only: bool = False, modes: tuple[str, ...] = MODES
) -> list[Stream]:
    """Every kind of drift in every mode of outliers, n >= 6,000 records each; a function of n and seed.

    inliers_only: one stream a kind, the same drift without outliers.  The modes of a kind share their inliers.
    """
    streams = []
    for number, (kind, make) in enumerate(KINDS.items()):
        course = make(n, np.random.default_rng([seed, number]))
        if inliers_only:
            streams.append(Stream(kind, course.rows, np.zeros(n, dtype=bool), course.changes))
            continue
        for mode in modes:
            rng = np.random.default_rng([seed, number, 1 + MODES.index(mode)])
            rows, outlier = with_outliers(course, mode, rng)
            streams.append(Stream(f"{kind}.{mode}", rows, outlier, course.changes))
    return streams
