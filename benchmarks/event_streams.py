"""Event streams with labels: generated ones that drift and those of files, and the detector run over them.

Twelve kinds of drift, each with three modes of outliers: isolated points, short bursts (5 to 100 records that resemble
each other) and long ones (300 to 800). Outliers are made from the inliers around their own position, are judged against
the regime of their own moment, and replace the records there. Except for bursts, nothing that drifts lasts for less
than 1,500 records. So long bursts and new regimes differ only in how long they last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from fomo_stream import Detector
from fomo_stream.replaying.measures.quality import INLIERS_PER_RATE
from fomo_stream.replaying.measures.segments import NOT_DETECTED, first_alerts

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Rng = np.random.Generator

DWELL = 1500  # records that a recurring regime lasts: longer than the longest burst
DAY = 1440  # records of a daily cycle
APART = 50  # records from an alert to the next one of another incident, at least


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


BATCH = 64  # records in a micro-batch
LONG = 26_000  # records beyond which every other one is left out ...
WHOLE = {"smtp"}  # ... but not of these


@dataclass(frozen=True)
class Run:
    """What a detector made of the n records of a stream, with a look at its context after every micro-batch."""

    score: Float  # (n,) in (0, 1), each made before its record was learned; 0 while warming up
    alert: Bool  # (n,)
    contamination: Float  # (n_batches,) share of true outliers among the rows of the context; NaN while warming up
    announced: NDArray[np.int64]  # (k,) records with which a lasting shift was known
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
    score, alert, announced, told = np.zeros(n), np.zeros(n, dtype=bool), list[int](), 0
    for start in starts:
        part = slice(start, start + BATCH)
        began = time.process_time()
        shifts, scored = detector.shifts, detector.process(stream.rows[part])
        if feedback_delay is not None:
            due = min(n, max(0, (start - feedback_delay) // BATCH + 1) * BATCH)  # whole micro-batches
            detector.feedback(np.arange(told, due), stream.outlier[told:due])
            told = due
        cpu_s += time.process_time() - began
        score[part], alert[part] = np.nan_to_num(scored.score, nan=0.0), scored.outlier
        announced += [min(part.stop, n - 1)] * (detector.shifts - shifts)
        context = detector.context_numbers
        contamination.append(float(stream.outlier[context].mean()) if len(context) else np.nan)
    return Run(score, alert, np.array(contamination), np.array(announced, np.int64), cpu_s)


SAME = {"nslkdd": "kdd", "http": "kdd", "kdd99": "kdd", "ecg": "mitbih"}  # different names, the same source of data


def family_of(stream: str) -> str:
    """The source of data that a stream of this name is from; of a generated one, its kind.

    >>> family_of("ecg__mba_805"), family_of("skab_valve"), family_of("mean_drift.short")
    ('mitbih', 'skab', 'mean_drift')
    """
    if "." in stream:
        return stream.split(".")[0]
    first = stream.split("__" if "__" in stream else "_")[0]
    return SAME.get(first, first)


def settled(n: int) -> int:
    """The first of n records that counts in the figures of a stream."""
    return max(500, n // 10)


def ranking(stream: Stream, score: Float) -> tuple[float, float]:
    """AUROC and average precision of scores (n,) of settled records; NaN without outliers."""
    first = settled(len(score))
    outlier = stream.outlier[first:]
    if not outlier.any():
        return np.nan, np.nan
    return float(roc_auc_score(outlier, score[first:])), float(average_precision_score(outlier, score[first:]))


def alerting(stream: Stream, alert: Bool) -> dict[str, float]:
    """Figures of alerts (n,) on settled records; NaN where the stream lacks what they are the share of.

    An event is a run of outliers, and is found if one of its records is an alert. delay: records from its beginning to
    the first alert in it, median of the events that are found. false_incidents: in 10,000 inliers, those of alerts
    fewer than APART records from each other, without an outlier between. Without any alert the precision is 0.
    """
    first = settled(len(alert))
    alert, outlier = alert[first:], stream.outlier[first:]
    edges = np.flatnonzero(np.diff(outlier, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]
    found = first_alerts(alert, begins, ends - 1)
    delays = (found - begins)[found != NOT_DETECTED]
    n_true, n_outliers = (alert & outlier).sum(), outlier.sum()
    places, seen = np.flatnonzero(alert), np.append(0, np.cumsum(outlier))
    starts = np.flatnonzero(np.diff(places, prepend=-APART) >= APART)
    lasts = np.append(starts[1:], len(places))[: len(starts)] - 1
    n_false = int((seen[places[lasts] + 1] == seen[places[starts]]).sum())
    return {
        "alert_rate": float(alert.mean()),
        "precision": float(n_true / max(1, alert.sum())) if n_outliers else np.nan,
        "recall": float(n_true / n_outliers) if n_outliers else np.nan,
        "event_recall": len(delays) / len(begins) if n_outliers else np.nan,
        "false_incidents": INLIERS_PER_RATE * n_false / int((~outlier).sum()),
        "delay": float(np.median(delays)) if len(delays) else np.nan,
    }
