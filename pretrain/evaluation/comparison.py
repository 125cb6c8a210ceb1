"""Comparison of methods over datasets, as in the paper: ranks and one-sided Wilcoxon tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluation.runs import Run
from pretrain.evaluation.tables import Float

FEWEST_FOR_A_TEST = 5  # datasets; with fewer even a baseline that always wins has p >= 0.05
PROFILE_END = 3.0  # largest ratio of a performance profile
DECIMALS = 2  # of a percentage, as in the paper; values that are equal after rounding tie in ranks and tests


@dataclass(frozen=True)
class Scoreboard:
    """One metric in percent, of every method on every dataset without failures.

    datasets: m names; methods: k names; mean, spread: (m, k), over the seeds (spread: standard deviation, 0 for a
    single seed); features: (m,) numbers of columns.
    """

    datasets: list[str]
    methods: list[str]
    mean: Float
    spread: Float
    features: Float

    def of(self, rows: NDArray[np.bool_]) -> Scoreboard:
        """Some of the datasets."""
        names = [name for name, kept in zip(self.datasets, rows, strict=True) if kept]
        return Scoreboard(names, self.methods, self.mean[rows], self.spread[rows], self.features[rows])

    def sorted(self) -> Scoreboard:
        """The best mean rank first."""
        order = np.argsort(self.ranks().mean(0), kind="stable")
        methods = [self.methods[j] for j in order]
        return replace(self, methods=methods, mean=self.mean[:, order], spread=self.spread[:, order])

    def ranks(self) -> Float:
        """(m, k): 1 is the best on a dataset; ties share the mean of their ranks."""
        return average_ranks(self.mean)


def scoreboard(
    runs: Sequence[Run], metric: str, names: Mapping[str, str] = MappingProxyType({})
) -> tuple[Scoreboard, list[str]]:
    """Means over seeds, and the datasets that are left out because some method failed.

    names: other names for datasets. Those with the same one count as one dataset, the mean of its parts (as in the
    paper for the categories of MVTec-AD).
    """
    methods = list(dict.fromkeys(run.method for run in runs))
    failed = {run.dataset for run in runs if run.error}
    values: dict[str, dict[str, dict[str, list[float]]]] = {}  # group -> dataset -> method -> one value per seed
    features: dict[str, list[int]] = {}
    for run in runs:
        if run.dataset not in failed:
            group = names.get(run.dataset, run.dataset)
            by_method = values.setdefault(group, {}).setdefault(run.dataset, {})
            by_method.setdefault(run.method, []).append(getattr(run, metric))
            features.setdefault(group, []).append(run.n_features)
    found = list(values)
    shape = (len(found), len(methods))
    mean, spread = np.zeros(shape), np.zeros(shape)
    for i, name in enumerate(found):
        for j, method in enumerate(methods):
            parts = [np.asarray(part[method]) for part in values[name].values()]
            mean[i, j] = np.mean([part.mean() for part in parts])
            spread[i, j] = np.mean([part.std(ddof=1) if len(part) > 1 else 0.0 for part in parts])
    width = np.asarray([float(np.mean(features[name])) for name in found])
    return Scoreboard(found, methods, mean.round(DECIMALS), spread, width), sorted(failed)


def performance_profiles(values: Float) -> tuple[Float, Float]:
    """Of values (m, k), larger is better: sorted ratios (m, k) of the best value on a dataset to that of the method,
    and the areas (k,), 0 to 1, below the share of datasets with a ratio of at most tau, tau from 1 to PROFILE_END."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.sort(np.nan_to_num(values.max(1, keepdims=True) / values, nan=1.0, posinf=np.inf), axis=0)
    return ratios, (PROFILE_END - np.clip(ratios, 1, PROFILE_END)).mean(0) / (PROFILE_END - 1)


def average_ranks(values: Float) -> Float:
    """Ranks (m, k) along the last axis, the largest value first; ties share the mean of their ranks."""
    from scipy.stats import rankdata

    ranks: Float = rankdata(-values, axis=1)
    return ranks


def one_sided_p(baseline: Float, ours: Float) -> float:
    """p of the one-sided Wilcoxon signed rank test over datasets, alternative "baseline minus ours is above zero".

    Below 0.05 the baseline is better, above 0.95 ours is (paper, section "Metrics and Hypothesis Testing").
    NaN if the two differ on fewer than FEWEST_FOR_A_TEST datasets, which is too few for a test.
    """
    from scipy.stats import wilcoxon

    if np.sum(baseline != ours) < FEWEST_FOR_A_TEST:
        return float("nan")
    return float(wilcoxon(baseline, ours, alternative="greater").pvalue)


def wilcoxon_p_values(board: Scoreboard, ours: str) -> Mapping[str, float]:
    """`one_sided_p` of every other method against `ours`."""
    own = board.mean[:, board.methods.index(ours)]
    others = [(j, method) for j, method in enumerate(board.methods) if method != ours]
    return {method: one_sided_p(board.mean[:, j], own) for j, method in others}
