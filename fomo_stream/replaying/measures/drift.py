"""Drift of each feature: the distribution of the last records of a partition against that of its first ones.

The population stability index (PSI) compares the shares p and q of records in the same bins: the sum of
(p - q) ln(p / q), which is the Jeffreys divergence. The bins are the ten tenths of the reference, its outer ones open
to all values beyond, and one for missing values; a value that occurs often has a bin of its own. Usual reading: below
0.1 little has changed, up to 0.25 something, above it much (Lewis 1994, An Introduction to Credit Scoring). Without any
drift, the index of n records against m is on average (bins - 1)(1/n + 1/m) (Yurdakul & Naranjo 2020); this much is
taken off.
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
    """The MEASURES of each feature, the largest index first; means over the partitions by their records.

    partitions: the values of the features (n, d) of each; those with fewer than twice REFERENCE records do not count.
    """
    long = [values for values in partitions if len(values) >= 2 * REFERENCE_RECORDS]
    weight = np.array([len(values) for values in long], np.float64)
    measured = np.full((len(long), len(MEASURES), len(features)), np.nan)
    for found, values in zip(measured, long, strict=True):
        for f, ends in enumerate(zip(values[:REFERENCE_RECORDS].T, values[-REFERENCE_RECORDS:].T, strict=True)):
            edges = _edges(ends[0])
            reference, last = (_counts(column, edges) for column in ends)
            known = [column[~np.isnan(column)].astype(np.float64) for column in ends]
            medians = [np.median(one) if len(one) else np.nan for one in known]
            found[:, f] = _psi(last, reference), *medians, *(1 - len(one) / REFERENCE_RECORDS for one in known)
    with np.errstate(invalid="ignore"):
        total = np.where(np.isnan(measured), 0.0, weight[:, None, None])
        means = np.nansum(total * np.nan_to_num(measured), axis=0) / total.sum(axis=0)
    order = np.argsort(-np.nan_to_num(means[0], nan=-1.0), kind="stable")
    columns = {name: list(row[order]) for name, row in zip(MEASURES, means, strict=True)}
    return {"features": [features[f] for f in order], **columns, "reference_records": REFERENCE_RECORDS}


def _edges(first: Values) -> Values:
    """The edges of the bins of a feature, of which the reference has these values (m,): its tenths.

    A tenth that occurs more than once has another edge right after it, so that it is counted apart.
    """
    values, times = np.unique(first[np.isfinite(first)], return_counts=True)
    if not len(values):
        return values
    tenths = np.quantile(np.repeat(values, times).astype(np.float64), np.linspace(0.1, 0.9, 9)).astype(np.float32)
    often = np.intersect1d(tenths, values[times > 1])
    return np.union1d(tenths, np.nextafter(often, np.float32(np.inf)))


def _counts(column: Values, edges: Values) -> Float:
    """Numbers of values (n,) between the edges, and of missing ones."""
    known = column[~np.isnan(column)]
    between = np.bincount(np.searchsorted(edges, known, "right"), minlength=len(edges) + 1)
    return np.append(between, len(column) - len(known)).astype(np.float64)


def _psi(counts: Float, reference: Float) -> float:
    """The index of counts (bins,) against a reference (bins,), less what chance adds; at least 0."""
    used = (counts > 0) | (reference > 0)
    n_bins = np.count_nonzero(used)
    # half a record more in each bin, so that no share is zero
    p, q = ((part[used] + 0.5) / (part.sum() + n_bins / 2) for part in (counts, reference))
    by_chance = (n_bins - 1) * (1 / counts.sum() + 1 / reference.sum())
    return max(0.0, float(((p - q) * np.log(p / q)).sum() - by_chance))
