"""Drift of each feature: its distribution by window against that of the first records of the partition.

The population stability index (PSI) compares the shares p and q of records in the same bins: the sum of
(p - q) ln(p / q), which is the Jeffreys divergence. The bins are the ten tenths of the reference, its outer ones open
to all values beyond, and one for missing values; a value that occurs often has a bin of its own. Usual reading: below
0.1 little has changed, up to 0.25 something, above it much (Lewis 1994, An Introduction to Credit Scoring). Without any
drift, the index of n records against m is on average (bins - 1)(1/n + 1/m) (Yurdakul & Naranjo 2020), which is large
for few records; this much is taken off, and windows with few records have none.

A feature that moves up and down, as most do, is far from the first records in some short windows. It has drifted if it
stays there: the lasting index is that of the last records, as many as the reference has.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.replaying.measures.recorder import Axis

Float = NDArray[np.float64]
Values = NDArray[np.float32]
Int = NDArray[np.int64]

REFERENCE = 5000  # first records of a partition
FEWEST = 50  # records of a window that has an index
TENTHS = np.linspace(0.1, 0.9, 9)
MEASURES = ("psi", "missing", "median")


def drift_report(partitions: Sequence[tuple[Int, Values]], features: tuple[str, ...], axis: Axis) -> dict[str, Any]:
    """The drift of each feature by window of the axis, the largest first; means over the partitions by their records.

    partitions: of each the times (n,), ascending, and the values of the features (n, d).
    """
    total, weight = np.zeros((2, len(MEASURES), len(features), len(axis.starts)))
    lasting, lasting_weight = np.zeros((2, len(features)))
    for times, values in partitions:
        first = values[:REFERENCE].T
        edges = [_edges(column) for column in first]
        reference = [_counts(column, its) for column, its in zip(first, edges, strict=True)]
        if len(values) >= 2 * REFERENCE:
            for f, column in enumerate(np.ascontiguousarray(values[-REFERENCE:].T)):
                lasting[f] += len(values) * _psi(_counts(column, edges[f]), reference[f])
                lasting_weight[f] += len(values)
        ends = np.searchsorted(axis.places(times), np.arange(len(axis.starts) + 1)).tolist()
        for w, (begin, end) in enumerate(pairwise(ends)):
            for f, column in enumerate(np.ascontiguousarray(values[begin:end].T)):
                psi = _psi(_counts(column, edges[f]), reference[f])
                measured = np.array([psi, *_missing_and_median(column)])
                is_known = ~np.isnan(measured)
                total[is_known, f, w] += (end - begin) * measured[is_known]
                weight[is_known, f, w] += end - begin
    with np.errstate(invalid="ignore", divide="ignore"):
        by_window = total / weight
        at_end = lasting / lasting_weight
    largest = np.fmax.reduce(by_window[0], axis=1, initial=np.nan)
    order = np.argsort(-np.nan_to_num(largest, nan=-1.0), kind="stable")
    return {
        "features": [features[f] for f in order],
        "windows": "as windows",
        **{name: list(part[order]) for name, part in zip(MEASURES, by_window, strict=True)},
        "largest_psi": largest[order],
        "lasting_psi": at_end[order],
        "reference_records": max((len(times[:REFERENCE]) for times, _ in partitions), default=0),
    }


def _edges(first: Values) -> Values:
    """The edges of the bins of a feature, of which the reference has these values (m,): its tenths.

    A tenth that occurs more than once has another edge right after it, so that it is counted apart.
    """
    values, times = np.unique(first[np.isfinite(first)], return_counts=True)
    if not len(values):
        return values
    tenths = np.quantile(np.repeat(values, times).astype(np.float64), TENTHS).astype(np.float32)
    often = np.intersect1d(tenths, values[times > 1])
    return np.union1d(tenths, np.nextafter(often, np.float32(np.inf)))


def _counts(column: Values, edges: Values) -> Float:
    """Numbers of values (n,) between the edges, and of missing ones."""
    known = column[~np.isnan(column)]
    between = np.bincount(np.searchsorted(edges, known, "right"), minlength=len(edges) + 1)
    return np.append(between, len(column) - len(known)).astype(np.float64)


def _psi(counts: Float, reference: Float) -> float:
    """The index of counts (bins,) against a reference (bins,), less what chance adds; at least 0."""
    n, m = counts.sum(), reference.sum()
    if n < FEWEST:
        return np.nan
    used = (counts > 0) | (reference > 0)
    n_bins = np.count_nonzero(used)
    # half a record more in each bin, so that no share is zero
    p, q = ((part[used] + 0.5) / (part.sum() + n_bins / 2) for part in (counts, reference))
    by_chance = (n_bins - 1) * (1 / n + 1 / m)
    return max(0.0, float(((p - q) * np.log(p / q)).sum() - by_chance))


def _missing_and_median(column: Values) -> tuple[float, float]:
    """Share of missing values (n,), and the median of the others; NaN where there is none."""
    known = column[~np.isnan(column)].astype(np.float64)
    missing = 1 - len(known) / len(column) if len(column) else np.nan
    return missing, float(np.median(known)) if len(known) else np.nan
