"""Outliers among inliers that drift, each judged against the regime of its own moment."""

from __future__ import annotations

import numpy as np
from drift_inliers import Bool, Course, Float, Rng, signs

QUIET = 500  # first records, free of bursts: a context that starts inside a burst cannot be right
AROUND = 400  # inliers around a position that its outliers are made from


def with_outliers(course: Course, mode: str, rng: Rng) -> tuple[Float, Bool]:
    """The rows of course (n, d) with outliers of one mode in some places, and where (n,)."""
    n = len(course.rows)
    rows, outlier = course.rows.copy(), np.zeros(n, dtype=bool)
    if mode == "isolated":
        for i in rng.choice(n, size=round(rng.uniform(0.01, 0.06) * n), replace=False).tolist():
            rows[i], outlier[i] = an_outlier(course, i, rng, novelty=0.7), True
        return rows, outlier
    for start, length in _bursts(n, course.changes, mode, rng):
        part = slice(start, start + length)
        spread = rng.uniform(0.02, 0.2) * _scale(_around(course, start))
        noise = np.where(course.discrete, 0.0, rng.normal(size=(length, rows.shape[1])) * spread)
        rows[part], outlier[part] = an_outlier(course, start, rng, novelty=0.9) + noise, True
    return rows, outlier


def _bursts(n: int, changes: tuple[int, ...], mode: str, rng: Rng) -> list[tuple[int, int]]:
    """(start, length) of bursts that neither overlap nor outlive their regime."""
    low, high, share = (5, 100, rng.uniform(0.01, 0.06)) if mode == "short" else (300, 800, rng.uniform(0.06, 0.10))
    free = np.ones(n, dtype=bool)
    free[:QUIET] = False
    bursts: list[tuple[int, int]] = []
    left = round(share * n)
    while left >= low:
        length = int(rng.integers(low, min(high, left) + 1))
        ends = (*changes, n)
        start = int(rng.integers(QUIET, n - length))
        regime_ends = ends[int(np.searchsorted(ends, start, side="right"))]
        if start + length <= regime_ends and free[start : start + length].all():
            free[max(0, start - 200) : start + length + 200] = False
            bursts.append((start, length))
            left -= length
    return sorted(bursts)


def _around(course: Course, position: int) -> Float:
    """The inliers around position that belong to its regime (m, d), m about 400."""
    edges = (0, *course.changes, len(course.rows))
    k = int(np.searchsorted(edges, position, side="right"))
    first, end = edges[k - 1], edges[k]
    start = int(np.clip(position - AROUND // 2, first, max(first, end - AROUND)))
    return course.rows[start : min(end, start + AROUND)]


def _scale(rows: Float) -> Float:
    """Spread (d,) of rows (m, d) that a few far values do not move; 1 where a column is constant."""
    low, high = np.quantile(rows, [0.05, 0.95], axis=0)
    spread = np.where(high > low, (high - low) / 3.29, rows.std(0))
    return np.where(spread > 0, spread, 1.0)


def an_outlier(course: Course, position: int, rng: Rng, novelty: float) -> Float:
    """One outlier (d,) for the regime at position, of a random kind.

    novelty: share of the inliers there that must be nearer to their nearest neighbour than it is; tried 20 times.
    """
    near = _around(course, position)
    scale = _scale(near)
    spaces = (np.diag(1 / scale), (1 / scale)[:, None] * _whitening(near / scale))
    row: Float = near[0]
    for _ in range(20):
        candidate = _candidate(near, scale, rng)
        row = np.where(course.discrete, np.round(candidate), candidate)
        sample = near[rng.permutation(len(near))[:80]]
        for space in spaces:
            own = np.sort(_distances((sample - row) @ space, (near - row) @ space), axis=1)[:, 1]
            if np.linalg.norm((near - row) @ space, axis=1).min() > np.quantile(own, novelty):
                return row
    return row


def _candidate(near: Float, scale: Float, rng: Rng) -> Float:
    """A row (d,) far from near (m, d), or just beside a group of it, or without its dependence, or odd in a column."""
    d, strength = near.shape[1], rng.uniform(0.5, 1.2)
    row: Float = near[rng.integers(len(near))].copy()
    kind = ("far", "local", "dependence", "coordinate")[int(rng.integers(4))]
    if kind == "far":
        which = rng.choice(d, size=max(1, round(d * rng.uniform(0.3, 1.0))), replace=False)
        row[which] += strength * rng.uniform(2, 4, len(which)) * signs(len(which), rng) * scale[which]
    elif kind == "local":
        neighbours = near[np.argsort(np.linalg.norm((near - row) / scale, axis=1))[:30]]
        row = neighbours.mean(0) + strength * rng.uniform(2, 4) * neighbours.std(0) * rng.normal(size=d)
    elif kind == "dependence":
        row = near[rng.integers(len(near), size=d), np.arange(d)]
    else:
        which = rng.choice(d, size=int(rng.integers(1, 1 + max(1, d // 8))), replace=False)
        row[which] += strength * rng.uniform(3, 7, len(which)) * signs(len(which), rng) * scale[which]
    return row


def _whitening(rows: Float) -> Float:
    """W (d, d) such that rows @ W, rows (m, d), are uncorrelated and of like spread; weak directions held back."""
    values, axes = np.linalg.eigh(np.cov(rows, rowvar=False))
    return np.asarray(axes / np.sqrt(values + 0.05 * values.mean()))


def _distances(rows: Float, others: Float) -> Float:
    """Euclidean distances (len(rows), len(others))."""
    square = (rows**2).sum(1)[:, None] + (others**2).sum(1) - 2 * rows @ others.T
    return np.asarray(np.sqrt(np.maximum(square, 0.0)))
