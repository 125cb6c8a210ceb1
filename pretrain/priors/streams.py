"""The stream prior: rows of a table in an order of time, and outliers that come as faults do.

The law of single rows is that of a table prior. A latent course (random walk, seasons, regimes) picks which row comes
when; sensors lag, the system is more or less active, levels move, and several devices may take turns. Faults are single
records, runs, or bursts of one kind: other rows, shifts, slow faults, noise, values that stand still, rows from another
time, a cluster or a regime that was never there.

A stream gives a dataset for each of `VIEWS`: a context as a detector has it at one moment, so with the outliers that
came before, and queries from the records that follow it. The defaults come from a comparison with real streams: how
well each view and each channel does, how logits are correlated in time, and how far views disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtri

from pretrain.priors.checks import Range, check_least, check_range
from pretrain.priors.datasets import Batch, Tables

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Rng = np.random.Generator

VIEWS = ("all", "trimmed", "recent", "movement")  # what contexts are made of, as in `fomo_stream.detector.views`
TRIMMED = 0.2  # share of the rows that the trimmed view leaves out
HALF_LIFE = 3.0  # records, of the level and the spread that are the movement
HORIZON = 256  # records after a context from which its queries come
AGE = 256  # records that a recent context is old, at most
CANDIDATES = 96  # rows of the table, of which the nearest to the latent course is next
FEW_VALUES = 50  # a column with fewer is discrete: it is not shifted


@dataclass(frozen=True)
class StreamConfig:
    """Settings of the streams. Each draws one value from a range, log-uniformly."""

    records: Range = (2500, 9000)
    share: Range = (0.003, 0.25)  # of outliers
    length: Range = (2, 300)  # mean records of a fault, where they are not single
    size: Range = (1, 16)  # of shifts and the like, in spreads of the feature
    half_life: Range = (3, 2000)  # of the latent course, in records
    drift: Range = (0.3, 8)  # of levels in normal operation, in spreads
    rows: int = 4000  # of the table, whose law the records have

    def __post_init__(self) -> None:
        for name in ("records", "length", "size", "half_life", "drift"):
            check_range(f"streams.{name}", getattr(self, name), 1e-9)
        check_least(self, {"rows": 100})
        check_range("streams.share", self.share, 1e-9, 0.5)


class Stream(NamedTuple):
    """Records (T, d) in order, raw units, and which of them are outliers (T,)."""

    rows: Float
    outlier: Bool


def stream_datasets(
    config: StreamConfig, seed: int, tables: Callable[[int, int], Tables], context: int, queries: int
) -> Batch:
    """The datasets of one stream, one for each of VIEWS. tables: draws one table of so many inliers and outliers."""
    rng = np.random.default_rng(seed)
    made = tables(config.rows, config.rows // 5)
    d = int(made.n_features[0])
    inliers, outliers = (part[0, :, :d].double().cpu().numpy() for part in (made.inliers, made.outliers))
    first = 2 * context
    while True:
        stream = draw_stream(config, rng, inliers, outliers, least=first + 2 * HORIZON)
        late = np.flatnonzero(stream.outlier[first:])
        at = first + max(0, int(rng.choice(late)) - int(rng.integers(HORIZON))) if late.size else first
        asked = stream.outlier[at : at + HORIZON]
        if asked.any() and not asked.all():
            break
    picked = at + _queries(rng, asked, queries)
    parts = [_seen(rng, stream.rows, view, at, context, picked) for view in VIEWS]
    width = max(part.shape[1] for part, _ in parts)
    padded = [[np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in pair] for pair in parts]
    contexts, rows = (torch.from_numpy(np.stack(part)).float() for part in zip(*padded, strict=True))
    labels = torch.from_numpy(stream.outlier[picked]).float().expand(len(VIEWS), -1)
    return Batch(contexts, rows, labels.contiguous(), torch.tensor([part.shape[1] for part, _ in parts]))


def _queries(rng: Rng, outlier: Bool, queries: int) -> NDArray[np.int64]:
    """Places (queries,) of records, half of them outliers, in random order; of few, some are chosen again."""
    halves = [np.flatnonzero(which) for which in (~outlier, outlier)]
    chosen = [rng.choice(half, queries // 2, replace=len(half) < queries // 2) for half in halves]
    return rng.permutation(np.concatenate(chosen))


def _seen(rng: Rng, rows: Float, view: str, at: int, n: int, picked: NDArray[np.int64]) -> tuple[Float, Float]:
    """Context (n, width) of a view before record `at`, and the records `picked` as the view sees them."""
    if view == "movement":
        rows = _movement(rows)
    if view == "recent":
        stop = at - int(rng.integers(min(AGE, at - n) + 1))
        return rows[stop - n : stop], rows[picked]
    if view != "trimmed":
        return rows[rng.choice(at, n, replace=False)], rows[picked]
    sample = rows[rng.choice(at, min(at, int(n / (1 - TRIMMED))), replace=False)]
    return sample[np.argsort(_lengths(sample), kind="stable")[:n]], rows[picked]


def _lengths(rows: Float) -> Float:
    """Lengths (n,) of whitened rows (n, d)."""
    z = (rows - rows.mean(0)) / (rows.std(0) + 1e-12)
    values, vectors = np.linalg.eigh(z.T @ z / len(z) + 1e-3 * np.eye(z.shape[1]))
    return np.asarray(np.linalg.norm(z @ vectors / np.sqrt(values), axis=1))


def _movement(rows: Float) -> Float:
    """Level and logarithm of the spread of each feature (T, 2 d): see `fomo_stream.detector.series`."""
    level = _smoothed(rows, HALF_LIFE)
    changes = rows - np.concatenate([rows[:1], level[:-1]])
    spread = np.sqrt(_smoothed(changes**2, HALF_LIFE))
    return np.hstack([level, np.log(np.maximum(spread, 1e-6 * np.abs(level) + 1e-12))])


def draw_stream(config: StreamConfig, rng: Rng, inliers: Float, outliers: Float, least: int = 0) -> Stream:
    """A stream whose normal records are from the law of inliers (n, d); least: its records, at least."""
    kept = inliers.std(0) > 1e-12
    inliers, outliers = (inliers[:, kept], outliers[:, kept]) if kept.any() else (inliers, outliers)
    n = max(least, int(_log_uniform(rng, config.records)))
    plant = _Plant.of(config, rng, inliers, n)
    faults = _Faults(config, rng, plant, inliers, outliers)
    rows, outlier = faults.applied()
    rows = rows + plant.drift
    if rng.random() < 0.4:  # normal records that are odd in one feature
        for i in rng.integers(0, n, max(1, int(n * _log_uniform(rng, (5e-4, 1e-2))))):
            j = rng.integers(rows.shape[1])
            rows[i, j] = (
                rows[rng.integers(n), j] if plant.discrete[j] else rows[i, j] + 6 * rng.normal() * plant.spread[j]
            )
    if rng.random() < 0.3:  # sensors that round
        for j in np.flatnonzero(~plant.discrete & (rng.random(rows.shape[1]) < 0.5)):
            step = plant.spread[j] * _log_uniform(rng, (0.02, 0.5)) + 1e-12
            rows[:, j] = np.round(rows[:, j] / step) * step
    return Stream(rows, outlier)


@dataclass
class _Plant:
    """Normal operation: what the records are without faults, and the parts that faults need."""

    rows: Float  # (T, d) without the drift of levels
    drift: Float  # (T, d)
    course: Float  # (T, k) latent
    places: Float  # (n, k) of the table's rows on it
    spread: Float  # (d,) of each feature
    discrete: Bool  # (d,)

    @classmethod
    def of(cls, config: StreamConfig, rng: Rng, inliers: Float, n: int) -> _Plant:
        d = inliers.shape[1]
        discrete = np.array([len(np.unique(column)) < FEW_VALUES for column in inliers.T])
        z = np.clip((inliers - inliers.mean(0)) / (inliers.std(0) + 1e-12), -5, 5)
        k = int(rng.integers(1, min(d, 3) + 1) if rng.random() < 0.6 else rng.integers(1, d + 1))
        on = z[:, rng.choice(d, k, replace=False)] if rng.random() < 0.5 else z @ rng.normal(size=(d, k))
        places = ndtri((on.argsort(0).argsort(0) + 0.5) / len(z))
        course = _course(config, rng, n, k)
        rows = inliers[_nearest(rng, places, course)]
        low, high = np.quantile(inliers, [0.25, 0.75], axis=0)
        spread = np.minimum(inliers.std(0), np.where(high > low, 1.5 * (high - low), np.inf)) + 1e-12
        if rng.random() < 0.5:  # sensors lag
            for j in np.flatnonzero(_some(rng, d, (0.4, 0.8, 1.0)) & ~discrete):
                rows[:, j] = _smoothed(rows[:, [j]], _log_uniform(rng, (0.5, 60)))[:, 0]
        if rng.random() < 0.5:  # the system is more or less active, or idle for a while
            which = _some(rng, d, (0.4, 0.8, 1.0)) & ~discrete
            level = _walks(rng, n, np.array([_log_uniform(rng, (10, 2000))]))[:, 0] * _log_uniform(rng, (0.3, 1.5))
            if rng.random() < 0.35:
                level = np.where(level > np.quantile(level, rng.uniform(0.4, 0.9)), 0.0, -rng.uniform(1.5, 4.5))
            rest = np.quantile(rows, 0.5 if rng.random() < 0.5 else rng.choice([0.02, 0.98]), axis=0)
            rows[:, which] = (rest + (rows - rest) * np.exp(np.minimum(level, 2.5))[:, None])[:, which]
        spread = np.where(discrete, spread, np.minimum(spread, rows.std(0) + 1e-12))
        drift = _drift(config, rng, n, spread * ~discrete)
        if rng.random() < 0.15:  # devices take turns, each with its own level
            own = rng.normal(size=(int(_log_uniform(rng, (2, 50))), d)) * spread * ~discrete
            drift += _log_uniform(rng, (0.1, 3)) * own[rng.integers(len(own), size=n)]
        return cls(rows, drift, course, places, spread, discrete)


def _course(config: StreamConfig, rng: Rng, n: int, k: int) -> Float:
    """The latent course of normal operation (n, k), of mean 0 and variance 1."""
    style = rng.choice(["none", "walk", "seasons", "regimes", "mixed"], p=[0.12, 0.28, 0.13, 0.2, 0.27])
    u, t = np.zeros((n, k)), np.arange(n)[:, None]
    if style == "walk" or (style == "mixed" and rng.random() < 0.8):
        half_lives = np.array([_log_uniform(rng, config.half_life) for _ in range(k)])
        u += _log_uniform(rng, (0.4, 1)) * _walks(rng, n, half_lives)
    if style == "seasons" or (style == "mixed" and rng.random() < 0.5):
        for _ in range(rng.integers(1, 3)):
            wave = np.sin(2 * math.pi * (t / _log_uniform(rng, (8, n / 3)) + rng.random(k)))
            if rng.random() < 0.4:
                wave = np.sign(wave) * np.abs(wave) ** _log_uniform(rng, (0.2, 3))
            u += _log_uniform(rng, (0.4, 1.5)) * wave
    if style == "regimes" or (style == "mixed" and rng.random() < 0.6):
        count = int(rng.integers(2, 8))
        centers = rng.normal(size=(count, k))[_regimes(rng, n, count)]
        lag = _log_uniform(rng, (1, 30))
        u += _log_uniform(rng, (0.5, 2)) * (_smoothed(centers, lag) if rng.random() < 0.4 else centers)
    u += (1.0 if style == "none" else _log_uniform(rng, (0.03, 0.8))) * rng.normal(size=(n, k))
    return np.asarray((u - u.mean(0)) / (u.std(0) + 1e-9))


def _regimes(rng: Rng, n: int, count: int) -> NDArray[np.int64]:
    """The regime of each record (n,), of so many; in half of the streams they come one after another."""
    late, seen, t = rng.random() < 0.5, 1, 0
    hold, regime = _log_uniform(rng, (30, n / 2)), np.zeros(n, dtype=np.int64)
    while t < n:
        stop = t + 1 + int(rng.gamma(2, hold / 2))
        is_new = late and seen < count and rng.random() < 0.4
        regime[t:stop] = seen if is_new else rng.integers(seen if late else count)
        seen, t = seen + is_new, stop
    return regime


def _nearest(rng: Rng, places: Float, course: Float) -> NDArray[np.int64]:
    """For each record the row of the table that is nearest to the course, of CANDIDATES random ones."""
    found = np.empty(len(course), dtype=np.int64)
    for start in range(0, len(course), 2048):
        part = course[start : start + 2048]
        candidates = rng.integers(0, len(places), (len(part), CANDIDATES))
        nearest = ((places[candidates] - part[:, None]) ** 2).sum(-1).argmin(1)
        found[start : start + 2048] = candidates[np.arange(len(part)), nearest]
    return found


def _drift(config: StreamConfig, rng: Rng, n: int, spread: Float) -> Float:
    """How levels move in normal operation (n, d)."""
    out, t, d = np.zeros((n, len(spread))), np.arange(n)[:, None] / n, len(spread)
    if rng.random() < 0.3:
        return out
    for kind in rng.choice(["walk", "walk", "steps", "ramp", "season"], rng.integers(1, 4)):
        if kind == "walk":
            course = np.cumsum(rng.normal(size=(n, 1 if rng.random() < 0.5 else d)), axis=0) / math.sqrt(n)
        elif kind == "steps":
            steps = np.zeros((n, 1))
            steps[rng.integers(0, n, rng.integers(1, 6))] = rng.normal()
            course = np.cumsum(steps, axis=0)
        elif kind == "ramp":
            first, last = np.sort(rng.random(2))
            course = np.clip((t - first) / (last - first + 1e-3), 0, 1)
        else:
            course = np.sin(2 * math.pi * (t * n / _log_uniform(rng, (20, n)) + rng.random()))
        size = _log_uniform(rng, config.drift) * np.exp(rng.uniform(-0.7, 0.7, d)) * rng.choice([-1, 1], d)
        out += course * size * spread * _some(rng, d, (0.15, 0.4, 1.0))
    return out


class _Fault(NamedTuple):
    """A kind of fault of one stream, which may come again."""

    kind: str
    size: float  # spreads
    which: Bool  # (d,) features
    sign: Float  # (d,)
    seed: int  # of where it leads


KINDS = ("rows", "shift", "slow", "noise", "still", "elsewhere", "mixed", "spikes", "cluster", "regime")
WEIGHTS = np.array([2, 3, 2, 3, 1, 1, 1, 3, 3, 2]) / 21  # of KINDS


class _Faults:
    """Puts faults into normal operation."""

    def __init__(self, config: StreamConfig, rng: Rng, plant: _Plant, inliers: Float, outliers: Float) -> None:
        self.config, self.rng, self.plant, self.inliers, self.outliers = config, rng, plant, inliers, outliers
        self.far = np.clip((outliers - inliers.mean(0)) / (inliers.std(0) + 1e-12), -20, 20)

    def applied(self) -> tuple[Float, Bool]:
        """Records (T, d) without the drift of levels, and which are outliers (T,)."""
        rng, (n, d) = self.rng, self.plant.rows.shape
        rows, outlier = self.plant.rows.copy(), np.zeros(n, dtype=bool)
        share, single = _log_uniform(rng, self.config.share), rng.random() < 0.3
        mean = 1.0 if single else _log_uniform(rng, self.config.length)
        faults = [self._kind(d) for _ in range(1 if rng.random() < 0.5 else rng.integers(2, 4))]
        unseen, sloppy = 0.25 * rng.random() ** 2, rng.random() < 0.3
        first = min(300, n // 4)
        for _ in range(max(1, round(share * n / mean))):
            length = 1 if single else max(1, int(rng.gamma(2, mean / 2)))
            start = int(rng.integers(first, max(first + 1, n - length)))
            stop = min(n, start + length)
            if outlier[start - 1 : stop + 1].any():
                continue
            outlier[start:stop] = True
            if sloppy:  # labels begin too early or end too late
                more = int(0.5 * rng.random() * length)
                early = rng.random() < 0.5
                outlier[max(first, start - more) if early else start : stop if early else stop + more] = True
            if rng.random() >= unseen:  # else it leaves no trace
                rows[start:stop] = self._changed(faults[rng.integers(len(faults))], start, stop)
        return rows, outlier

    def _kind(self, d: int) -> _Fault:
        rng = self.rng
        which = _some(rng, d, (0.1, 0.3, 0.6, 1.0))
        which[rng.integers(d)] |= not which.any()
        size, seed = _log_uniform(rng, self.config.size), int(rng.integers(1 << 30))
        return _Fault(str(rng.choice(KINDS, p=WEIGHTS)), size, which, rng.choice([-1.0, 1.0], d), seed)

    def _changed(self, fault: _Fault, start: int, stop: int) -> Float:
        """Records start to stop (m, d) with a fault."""
        rng, plant, n, m = self.rng, self.plant, len(self.plant.rows), stop - start
        rows, which = plant.rows[start:stop].copy(), fault.which
        if rng.random() < 0.3:  # the same in other features
            which = np.roll(which, rng.integers(len(which)))
        moved = which & ~plant.discrete
        size = fault.size * np.exp(rng.uniform(-0.5, 0.5)) * plant.spread * moved
        kind = fault.kind if moved.any() or fault.kind not in ("shift", "slow", "noise", "spikes") else "rows"
        own = np.random.default_rng(fault.seed)
        if kind == "rows":
            return self._rows(own if rng.random() < 0.6 else rng, m)
        if kind == "shift":
            return np.asarray(rows + fault.sign * size)
        if kind == "slow":
            way = (np.arange(m) + 1) / m if rng.random() < 0.5 else np.sin(math.pi * (np.arange(m) + 1) / (m + 1))
            return np.asarray(rows + 1.5 * way[:, None] * fault.sign * size)
        if kind == "noise":
            if rng.random() < 0.75:
                return np.asarray(rows + 0.5 * size * rng.normal(size=rows.shape))
            return np.where(moved, rows.mean(0) + (rows - rows.mean(0)) / (1 + fault.size), rows)
        if kind == "still":
            return np.where(which, rows[0], rows)
        if kind == "elsewhere":
            other = int(rng.integers(0, n - m + 1))
            return np.where(which, plant.rows[other : other + m], rows)
        if kind == "mixed":
            return np.where(which, plant.rows[rng.integers(0, n, rows.shape), np.arange(rows.shape[1])], rows)
        if kind == "spikes":
            heights = rng.choice([-1, 1], rows.shape) * rng.uniform(0.5, 1.5, rows.shape)
            return np.asarray(rows + size * heights * (rng.random(rows.shape) < 0.5))
        if kind == "cluster":
            center = self.inliers[own.integers(len(self.inliers))] + size * own.normal(size=rows.shape[1])
            return np.asarray(center + 0.1 * plant.spread * ~plant.discrete * rng.normal(size=rows.shape))
        course = plant.course[start:stop] + own.normal(size=plant.course.shape[1]) * (0.5 + fault.size / 2)
        return np.asarray(self.inliers[_nearest(rng, plant.places, course)])

    def _rows(self, choice: Rng, m: int) -> Float:
        """Outliers of the table (m, d), mostly such as are like each other."""
        if m == 1 or self.rng.random() < 0.3:
            return np.asarray(self.outliers[self.rng.integers(0, len(self.outliers), m)])
        away = ((self.far - self.far[choice.integers(len(self.far))]) ** 2).sum(1)
        alike = away.argsort()[: min(max(3, m), 40)]
        return np.asarray(self.outliers[self.rng.choice(alike, m)])


def _log_uniform(rng: Rng, within: Range) -> float:
    return math.exp(rng.uniform(math.log(within[0]), math.log(within[1])))


def _some(rng: Rng, d: int, shares: tuple[float, ...]) -> Bool:
    """Some of d features: a share of them, one of these."""
    return np.asarray(rng.random(d) < rng.choice(shares))


def _walks(rng: Rng, n: int, half_lives: Float) -> Float:
    """Stationary random walks back to zero (n, k) of variance 1 with these half-lives (k,), in records."""
    keep = 0.5 ** (1 / half_lives)
    steps = rng.normal(size=(n, len(keep))) * np.sqrt(1 - keep**2)
    steps[0] = rng.normal(size=len(keep))
    return np.stack([lfilter([1], [1, -a], step) for a, step in zip(keep, steps.T, strict=True)], axis=1)


def _smoothed(rows: Float, half_life: float) -> Float:
    """The weighted mean of each row (n, d) and those before it; a row half_life records older weighs half."""
    keep = 0.5 ** (1 / half_life)
    return np.asarray(lfilter([1 - keep], [1, -keep], rows - rows[0], axis=0) + rows[0])
