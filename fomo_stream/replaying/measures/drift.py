"""Drift of each feature: the distribution of the last records of a partition against that of its first ones.

The population stability index (PSI) compares the shares p and q of records in the same bins: the sum of
(p - q) ln(p / q), which is the Jeffreys divergence. The bins are the deciles of the reference, the outer ones without
bounds, and one for missing values; a frequent value has a bin of its own. Usual reading: below 0.1 little has changed,
up to 0.25 something, above it much (Lewis 1994, An Introduction to Credit Scoring). Without any drift, the index of n
records against m is on average (bins - 1)(1/n + 1/m) (Yurdakul & Naranjo 2020); this expectation is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Values = NDArray[np.float32]

REFERENCE_RECORDS = 5000  # records at the beginning and at the end of a partition
MEASURES = ("psi", "first_median", "last_median", "first_missing", "last_missing")


def drift_report(partitions: Sequence[Values], features: tuple[str, ...]) -> dict[str, Any]:
    """Return the MEASURES of each feature, the largest index first: means over partitions, weighted by their records.

    partitions: the feature values (n, d) of each; partitions with fewer than 2 REFERENCE_RECORDS records do not count.
    """
    long = [values for values in partitions if len(values) >= 2 * REFERENCE_RECORDS]
    weight = np.array([len(values) for values in long], np.float64)
    measured = np.full((len(long), len(MEASURES), len(features)), np.nan)
    for partition_measures, values in zip(measured, long, strict=True):
        for f, ends in enumerate(zip(values[:REFERENCE_RECORDS].T, values[-REFERENCE_RECORDS:].T, strict=True)):
            edges = _edges(ends[0])
            reference, last = (_counts(column, edges) for column in ends)
            known_values = [column[~np.isnan(column)].astype(np.float64) for column in ends]
            medians = [np.median(values) if len(values) else np.nan for values in known_values]
            missing = [1 - len(values) / REFERENCE_RECORDS for values in known_values]
            partition_measures[:, f] = _psi(last, reference), *medians, *missing
    with np.errstate(invalid="ignore"):
        total = np.where(np.isnan(measured), 0.0, weight[:, None, None])
        means = np.nansum(total * np.nan_to_num(measured), axis=0) / total.sum(axis=0)
    order = np.argsort(-np.nan_to_num(means[0], nan=-1.0), kind="stable")
    columns = {name: list(row[order]) for name, row in zip(MEASURES, means, strict=True)}
    return {"features": [features[f] for f in order], **columns, "reference_records": REFERENCE_RECORDS}


def _edges(first: Values) -> Values:
    """Return the edges of the bins of a feature: the deciles of its values (m,) in the reference.

    A decile that occurs more than once as a value gets another edge right after it, so that it is counted separately.
    """
    values, times = np.unique(first[np.isfinite(first)], return_counts=True)
    if not len(values):
        return values
    deciles = np.quantile(np.repeat(values, times).astype(np.float64), np.linspace(0.1, 0.9, 9)).astype(np.float32)
    frequent = np.intersect1d(deciles, values[times > 1])
    return np.union1d(deciles, np.nextafter(frequent, np.float32(np.inf)))


def _counts(column: Values, edges: Values) -> Float:
    """Return the numbers of values (n,) between the edges, and of missing ones."""
    values = column[~np.isnan(column)]
    between = np.bincount(np.searchsorted(edges, values, "right"), minlength=len(edges) + 1)
    return np.append(between, len(column) - len(values)).astype(np.float64)


def _psi(counts: Float, reference: Float) -> float:
    """Return the index of counts (bins,) against a reference (bins,), less its mean without drift; at least 0."""
    used = (counts > 0) | (reference > 0)
    n_bins = np.count_nonzero(used)
    # add half a record to each bin, so that no share is zero
    p, q = ((part[used] + 0.5) / (part.sum() + n_bins / 2) for part in (counts, reference))
    by_chance = (n_bins - 1) * (1 / counts.sum() + 1 / reference.sum())
    return max(0.0, float(((p - q) * np.log(p / q)).sum() - by_chance))
