"""Inliers that drift: twelve kinds of courses, standardised or in units of their own, in time order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Rng = np.random.Generator

DWELL = 1500  # records that a recurring regime lasts: longer than the longest burst
DAY = 1440  # records of a daily cycle


@dataclass
class Course:
    """The inliers of a stream."""

    rows: Float  # (n, d)
    discrete: Bool  # (d,) columns of whole numbers
    changes: tuple[int, ...] = ()


def signs(d: int, rng: Rng) -> Float:
    """d times 1 or -1."""
    return np.asarray(rng.choice([-1.0, 1.0], size=d))


def standardised(rows: Float, discrete: Bool) -> Float:
    """rows (n, d) with continuous columns at median 0 and standard deviation 1 (of the central 98 %)."""
    low, high = np.quantile(rows, [0.01, 0.99], axis=0)
    scale = np.where(discrete, 1.0, np.maximum(np.clip(rows, low, high).std(0), 1e-9))
    return (rows - np.where(discrete, 0.0, np.median(rows, 0))) / scale


def sensors(n: int, d: int, rng: Rng, memory: float = 0.5, cycle: float = 0.0) -> Course:
    """d sensors that see a few hidden causes, some through a saturation; some read in coarse steps.

    memory: autocorrelation of the causes from one record to the next; cycle: amplitude of their daily cycle.
    """
    n_causes = max(1, d // 4)
    shocks = rng.normal(size=(n, n_causes)) * np.sqrt(1 - memory**2)
    causes = np.zeros((n, n_causes))
    state = rng.normal(size=n_causes)
    for i in range(n):
        causes[i] = state = memory * state + shocks[i]
    clock = 2 * np.pi * (np.arange(n)[:, None] / DAY + rng.random(n_causes))
    causes += cycle * (np.sin(clock) + 0.4 * np.sin(2 * clock + 1.0))
    seen = causes @ rng.normal(size=(n_causes, d))
    seen /= seen.std(0)
    saturating = rng.random(d) < 0.3
    seen = np.where(saturating, np.tanh(seen), seen)
    rows = seen + rng.normal(size=(n, d)) * rng.uniform(0.1, 0.6, d)
    coarse = rng.random(d) < 0.15
    rows = np.where(coarse, np.round(rows * 4) / 4, rows)
    discrete = np.zeros(d, dtype=bool)
    return Course(standardised(rows, discrete), discrete)


def mixture(n: int, d: int, rng: Rng, tail: float = np.inf) -> Course:
    """Two to five clusters of differing shapes and sizes, in no order; tail: degrees of freedom of their t laws."""
    m = int(rng.integers(2, 6))
    which = rng.choice(m, size=n, p=rng.dirichlet(np.full(m, 3.0)))
    centres = rng.normal(size=(m, d)) * 2.5
    shapes = [_shape(d, rng) * rng.uniform(0.4, 1.2) for _ in range(m)]
    noise = rng.normal(size=(n, d))
    if np.isfinite(tail):
        noise /= np.sqrt(rng.chisquare(tail, size=(n, 1)) / tail)
    rows = centres[which] + np.stack([noise[i] @ shapes[k] for i, k in enumerate(which)])
    discrete = np.zeros(d, dtype=bool)
    return Course(standardised(rows, discrete), discrete)


def _shape(d: int, rng: Rng) -> Float:
    """A matrix (d, d) that gives normal noise correlated columns: its axes fade, as those of real data do."""
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return np.asarray(axes * np.geomspace(1.0, 0.2, d)[:, None] @ np.linalg.qr(rng.normal(size=(d, d)))[0])


def causal_net(n: int, d: int, rng: Rng) -> Course:
    """Columns that follow from up to three earlier ones; a fifth is skewed, a fifth counts, a tenth is yes or no."""
    rows = np.zeros((n, d))
    hidden = np.zeros((n, d))
    kinds = rng.choice(["plain", "skewed", "count", "flag"], size=d, p=[0.5, 0.2, 0.2, 0.1])
    kinds[0] = "plain"
    for j in range(d):
        causes = rng.choice(j, size=min(j, int(rng.integers(1, 4))), replace=False)
        effect = np.zeros(n)
        for k in causes:
            bend = (lambda x: x, np.tanh, np.abs, lambda x: np.maximum(x, 0.0))[int(rng.integers(4))]
            effect = effect + rng.choice([-1, 1]) * rng.uniform(0.5, 1.5) * bend(hidden[:, k])
        value = effect + rng.normal(size=n) * (rng.uniform(0.2, 0.6) if j else 1.0)
        hidden[:, j] = z = (value - value.mean()) / value.std()
        rows[:, j] = {
            "plain": z,
            "skewed": np.exp(rng.uniform(0.4, 0.9) * z),
            "count": np.floor(np.exp(1.2 + 0.6 * z)),
            "flag": (z > rng.uniform(0.5, 1.5)).astype(float),
        }[kinds[j]]
    discrete = np.isin(kinds, ["count", "flag"])
    return Course(standardised(rows, discrete), discrete)


# -- drifts -------------------------------------------------------------------------------------------------------


def _in_units(course: Course, rng: Rng) -> Course:
    """The course in the units of its columns, which differ by orders of magnitude; whole numbers stay."""
    d = len(course.discrete)
    scale = np.where(course.discrete, 1.0, np.exp(rng.normal(size=d) * 1.5))
    offset = np.where(course.discrete, 0.0, rng.normal(size=d) * 5 * scale)
    course.rows = course.rows * scale + offset
    return course


def _shift(discrete: Bool, rng: Rng, low: float = 3.0, high: float = 8.0) -> Float:
    """A step (d,) of low to high standard deviations in every column; of whole numbers in discrete ones."""
    step = rng.uniform(low, high, len(discrete)) * signs(len(discrete), rng)
    return np.where(discrete, np.round(step), step)


def _after(n: int, start: int) -> Float:
    """(n, 1): 0 before start, 1 from there."""
    return (np.arange(n) >= start).astype(float)[:, None]


def stationary(n: int, rng: Rng) -> Course:
    return _in_units(causal_net(n, 12, rng), rng)


def mean_drift(n: int, rng: Rng) -> Course:
    """Two thirds of the columns move by 3 to 6 standard deviations from the first record to the last."""
    course = sensors(n, 8, rng)
    course.rows += np.linspace(0, 1, n)[:, None] * rng.uniform(3, 6, 8) * signs(8, rng) * (rng.random(8) < 2 / 3)
    return _in_units(course, rng)


def variance_growth(n: int, rng: Rng) -> Course:
    """Everything spreads out to 2.5 to 4 times its size."""
    course = mixture(n, 5, rng)
    course.rows *= 1 + np.linspace(0, 1, n)[:, None] * rng.uniform(1.5, 3, 5)
    return _in_units(course, rng)


def rotation(n: int, rng: Rng) -> Course:
    """Columns turn into one another, pair by pair, by 90 to 180 degrees."""
    course = sensors(n, 10, rng)
    left, right = rng.permutation(10).reshape(2, 5)
    angle = np.linspace(0, 1, n)[:, None] * rng.uniform(np.pi / 2, np.pi, 5)
    a, b = course.rows[:, left], course.rows[:, right]
    course.rows[:, left], course.rows[:, right] = (
        np.cos(angle) * a - np.sin(angle) * b,
        np.sin(angle) * a + np.cos(angle) * b,
    )
    return _in_units(course, rng)


def sudden_change(n: int, rng: Rng) -> Course:
    """Half-way every column's mean moves, for ever."""
    course = causal_net(n, 20, rng)
    course.rows += _after(n, n // 2) * _shift(course.discrete, rng)
    course.changes = (n // 2,)
    return _in_units(course, rng)


def several_changes(n: int, rng: Rng) -> Course:
    """Four mixtures that have nothing in common, one after the other."""
    changes = tuple(int(c) for c in np.array([0.28, 0.47, 0.75]) * n)
    parts = [mixture(n, 6, rng).rows + _shift(np.zeros(6, bool), rng, 0.0, 4.0) for _ in range(4)]
    regime = np.searchsorted(changes, np.arange(n), side="right")
    rows = np.stack(parts)[regime, np.arange(n)]
    return _in_units(Course(rows, np.zeros(6, bool), changes), rng)


def recurring(n: int, rng: Rng) -> Course:
    """Two states of one machine that take turns, 1,500 records each."""
    first, second = sensors(n, 16, rng), sensors(n, 16, rng)
    second.rows = second.rows * rng.uniform(0.5, 1.5, 16) + _shift(second.discrete, rng, 0.5, 4.0)
    turn = (np.arange(n) // DWELL) % 2 == 1
    rows = np.where(turn[:, None], second.rows, first.rows)
    return _in_units(Course(rows, first.discrete, tuple(range(DWELL, n, DWELL))), rng)


def new_cluster(n: int, rng: Rng) -> Course:
    """From two fifths on, 30 % of the records come from a cluster that was not there, beside the old ones."""
    course, start = mixture(n, 2, rng), int(0.4 * n)
    way = rng.normal(size=2)
    centre = way / np.linalg.norm(way) * (np.abs(course.rows @ way / np.linalg.norm(way)).max() + 1.0)
    fresh = centre + 0.4 * rng.normal(size=(n, 2)) @ _shape(2, rng)
    newcomer = (np.arange(n) >= start) & (rng.random(n) < 0.3)
    course.rows = np.where(newcomer[:, None], fresh, course.rows)
    course.changes = (start,)
    return _in_units(course, rng)


def seasonal(n: int, rng: Rng) -> Course:
    """A daily cycle of 1,440 records under slowly varying causes."""
    return _in_units(sensors(n, 24, rng, memory=0.97, cycle=1.5), rng)


def recalibration(n: int, rng: Rng) -> Course:
    """One column is adjusted: from then on it reads 4 to 7 standard deviations off, and with another gain."""
    course, start = causal_net(n, 9, rng), int(0.45 * n)
    j = int(rng.choice(np.flatnonzero(~course.discrete)))
    off = rng.uniform(4, 7) * rng.choice([-1, 1])
    course.rows[start:, j] = course.rows[start:, j] * rng.uniform(0.7, 1.4) + off
    course.changes = (start,)
    return _in_units(course, rng)


def wandering(n: int, rng: Rng) -> Course:
    """Every column does a random walk, about one standard deviation in 1,000 records, apart from its own noise."""
    course = sensors(n, 3, rng)
    course.rows += np.cumsum(rng.normal(size=(n, 3)), axis=0) * 0.03
    return _in_units(course, rng)


def heavy_tails(n: int, rng: Rng) -> Course:
    """Clusters with tails of three degrees of freedom, in no order."""
    return _in_units(mixture(n, 40, rng, tail=3.0), rng)


KINDS: dict[str, Callable[[int, Rng], Course]] = {
    make.__name__: make
    for make in (
        stationary,
        mean_drift,
        variance_growth,
        rotation,
        sudden_change,
        several_changes,
        recurring,
        new_cluster,
        seasonal,
        recalibration,
        wandering,
        heavy_tails,
    )
}
