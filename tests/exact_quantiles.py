"""What a quantile sketch is compared with: exact ranks of weighted rows, and rows that are hard to summarise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr

from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.model.quantile_map import Knots, to_normal

Float = NDArray[np.float64]
Kind = Callable[[np.random.Generator, int], Float]

# one value of each of n rows, in the order they come
KINDS: dict[str, Kind] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "ascending": lambda rng, n: np.sort(rng.normal(size=n)),
    "descending": lambda rng, n: -np.sort(rng.normal(size=n)),
    "drifting": lambda rng, n: rng.normal(size=n) + np.arange(n) / 2000,
    "shrinking": lambda rng, n: rng.normal(size=n) * np.exp(-100 * np.arange(n) / n),
    "growing": lambda rng, n: rng.normal(size=n) * np.exp(100 * np.arange(n) / n),
    "random walk": lambda rng, n: np.cumsum(rng.normal(size=n)),
    "periodic": lambda rng, n: np.sin(np.arange(n) / 777) + 0.01 * rng.normal(size=n),
    "alternating": lambda rng, n: rng.normal(size=n) * np.where(np.arange(n) // 3000 % 2, 0.001, 1.0),
    "zooming in": lambda rng, n: rng.random(n) * np.exp2(-(np.arange(n) // 512 % 900)),  # a chunk in a gap of the last
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "lognormal": lambda rng, n: np.exp(3 * rng.normal(size=n)),
    "Pareto, no mean": lambda rng, n: rng.pareto(0.3, n),
    "two far scales": lambda rng, n: np.where(rng.random(n) < 0.5, 1e-6 * rng.normal(size=n), 1e6 + rng.normal(size=n)),
    "Cantor": lambda rng, n: rng.integers(0, 2, (n, 30)) @ (2 * 3.0 ** -np.arange(1, 31)),  # no density anywhere
    "lattice of 20": lambda rng, n: rng.integers(0, 20, n).astype(float),
    "lattice of 5000": lambda rng, n: rng.integers(0, 5000, n).astype(float),
    "counts": lambda rng, n: rng.poisson(300, n).astype(float),
    "rounded": lambda rng, n: rng.normal(size=n).round(2),
    "mostly zero": lambda rng, n: np.where(rng.random(n) < 0.7, 0.0, rng.exponential(size=n)),
    "half missing": lambda rng, n: np.where(rng.random(n) < 0.5, np.nan, rng.normal(size=n)),
}


def weights_of(n: int, half_life: float) -> Float:
    """Weights (n,) of n rows, the last of which has just come."""
    return np.asarray(np.exp2(-np.arange(n)[::-1] / half_life))


def exact_ranks(values: Float, weights: Float, at: Float) -> Float:
    """Share of the weight of values (n,), NaN = missing, below each of `at`, equal ones counted half."""
    known = ~np.isnan(values)
    order = np.argsort(values[known], kind="stable")
    ordered, total = values[known][order], np.append(0.0, np.cumsum(weights[known][order]))
    below, upto = (total[np.searchsorted(ordered, at, side=side)] for side in ("left", "right"))
    return np.asarray((below + upto) / (2 * total[-1]))


def ranks(knots: Knots, feature: int, at: Float) -> Float:
    """Ranks of values `at` (n,) of one feature by its knots."""
    of_feature = Knots(*(part[feature : feature + 1] for part in knots))
    return np.asarray(ndtr(to_normal(torch.from_numpy(at[:, None]), of_feature).numpy()[:, 0]))


def rank_errors(sketch: QuantileSketch, rows: Float, rng: np.random.Generator) -> Float:
    """Largest error of a rank of each feature, after exactly rows (n, n_features) have been learned.

    Asked are rows, drawn as they weigh, the middles between them, and the largest and the smallest of all.
    """
    knots, weights, errors = sketch.knots(), weights_of(len(rows), sketch.half_life), []
    for j, values in enumerate(rows.T):
        known = ~np.isnan(values)
        drawn = rng.choice(values[known], 2000, p=weights[known] / weights[known].sum())
        at = np.concatenate([drawn, (drawn[1:] + drawn[:-1]) / 2, [values[known].min(), values[known].max()]])
        errors.append(np.abs(ranks(knots, j, at) - exact_ranks(values, weights, at)).max())
    return np.array(errors)
