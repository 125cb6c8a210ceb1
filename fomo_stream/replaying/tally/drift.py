"""Drift of each feature: its distribution by window against that of the first records of the partition.

The population stability index (PSI) compares the shares p and q of records in the same bins: the sum of
(p - q) ln(p / q), which is the Jeffreys divergence. The bins are the ten tenths of the reference, its outer ones open
to all values beyond, and one for missing values; a value that occurs often has a bin of its own. Usual reading: below
0.1 little has changed, up to 0.25 something, above it much (Lewis 1994, An Introduction to Credit Scoring). Without any
drift, the index of n records against m is on average (bins - 1)(1/n + 1/m) (Yurdakul & Naranjo 2020), which is large
for few records; this much is taken off, and windows with few records have none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fomo_stream.replaying.tally.axis import Axis
from fomo_stream.replaying.tally.metrics import quantile
from fomo_stream.replaying.tally.spec import Arrays, Columns, Float, Int, TallySpec
from fomo_stream.replaying.tally.windows import WINDOWS

REFERENCE = 5000  # first records of a partition
FEWEST = 50  # records of a window that has an index
SHARES = np.linspace(0.0, 1.0, 21)  # quantiles of the reference that divide the cells; the even ones divide the bins
BEYOND = 2.0 ** np.arange(-2, 10)  # further divisions below and above, in units of the reference's range
LARGEST = 1e300  # values beyond count as this, so that the edges beyond them are finite
EDGES = len(SHARES) + 2 * len(BEYOND)
CELLS = 2 * EDGES + 2  # between edges and on edges, from the smallest value to the largest; the last one: missing


class Drift:
    """Counts the values of one partition by window, feature and cell.

    counts: (WINDOWS, d, CELLS); reference: (d, CELLS); edges: (d, EDGES), ascending.
    """

    def __init__(self, spec: TallySpec) -> None:
        n_features = len(spec.features)
        self.axis = Axis(WINDOWS)
        self.edges: Float | None = None  # None: the first records are not complete
        self.counts: Int = np.zeros((WINDOWS, n_features, CELLS), np.int64)
        self.reference: Int = np.zeros((n_features, CELLS), np.int64)
        self._waiting: list[tuple[Int, Float]] = []  # times and rows of the first records

    def add(self, columns: Columns, rows: Float) -> None:
        """Take the rows (n, d) of a block, which has some."""
        axis = self.axis.holding(int(columns.times[0]), int(columns.times[-1]))
        self.counts, self.axis = self.axis.folded(self.counts, axis), axis
        if self.edges is not None:
            self._count(columns.times, rows)
            return
        self._waiting.append((columns.times, rows.copy()))
        if sum(len(times) for times, _ in self._waiting) >= REFERENCE:
            self.finish()

    def finish(self) -> None:
        """Take the records so far as the reference, if it is not complete."""
        if self.edges is None and self._waiting:
            times, rows = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
            self._waiting = []
            self.edges = _edges(rows[:REFERENCE])
            np.add.at(self.reference, (np.arange(rows.shape[1]), _cells(rows[:REFERENCE], self.edges)), 1)
            self._count(times, rows)

    def _count(self, times: Int, rows: Float) -> None:
        assert self.edges is not None
        d = rows.shape[1]
        places = self.axis.places(times)
        cells = (places[:, None] * d + np.arange(d)) * CELLS + _cells(rows, self.edges)
        np.add.at(self.counts.reshape(-1), cells.reshape(-1), 1)

    def by_window(self, axis: Axis) -> tuple[Int, Float, Float, Float]:
        """Records (w,), and PSI, share missing and median (w, d), in the windows of an axis that holds this one."""
        counts = self.axis.folded(self.counts, axis)[: axis.bins]
        d = len(self.reference)
        records = counts[:, 0].sum(axis=-1) if d else np.zeros(axis.bins, np.int64)
        if self.edges is None:
            nothing = np.full((axis.bins, d), np.nan)
            return records, nothing, nothing, nothing
        low, high = _bounds(self.edges)
        psi, median = np.full(counts.shape[:2], np.nan), np.full(counts.shape[:2], np.nan)
        for f in range(d):
            bins = _bins(low[f], high[f], self.edges[f])
            psi[:, f] = _psi(_sums(counts[:, f], bins), _sums(self.reference[f], bins))
            median[:, f] = quantile(low[f], high[f], counts[:, f, :-1].T.astype(np.float64), 0.5)
        with np.errstate(invalid="ignore"):
            missing = counts[:, :, -1] / records[:, None]
        return records, psi, missing, median

    def arrays(self) -> Arrays:
        """The state, to be stored."""
        times = np.concatenate([times for times, _ in self._waiting] or [np.zeros(0, np.int64)])
        rows = np.concatenate([rows for _, rows in self._waiting] or [np.zeros((0, len(self.reference)))])
        return {
            "axis": np.array([self.axis.first, self.axis.last]),
            "edges": np.zeros((0, EDGES)) if self.edges is None else self.edges,
            "is_complete": np.array(self.edges is not None),
            "counts": self.counts,
            "reference": self.reference,
            "times": times,
            "rows": rows,
        }

    @classmethod
    def from_arrays(cls, spec: TallySpec, arrays: Arrays) -> Drift:
        """As `arrays` gave them."""
        result = cls(spec)
        result.axis = Axis(WINDOWS, *arrays["axis"].tolist())
        result.edges = arrays["edges"].copy() if arrays["is_complete"] else None
        result.counts, result.reference = arrays["counts"].copy(), arrays["reference"].copy()
        result._waiting = [(arrays["times"], arrays["rows"])] if len(arrays["times"]) else []
        return result


def report(drifts: list[Drift], features: tuple[str, ...], axis: Axis) -> dict[str, Any]:
    """The drift of each feature by window of the axis, the mean over the partitions by their records."""
    parts = [drift.by_window(axis) for drift in drifts]
    values = [_mean([(records, part[i]) for records, *part in parts], axis.bins, len(features)) for i in range(3)]
    psi = values[0]
    largest = np.fmax.reduce(np.vstack([np.full((1, len(features)), np.nan), psi]), axis=0)
    order = np.lexsort((np.arange(len(features)), -np.nan_to_num(largest, nan=-1.0)))
    by_feature = {name: list(value.T[order]) for name, value in zip(("psi", "missing", "median"), values, strict=True)}
    names = [features[f] for f in order]
    references = [int(drift.reference[0].sum()) if features else 0 for drift in drifts]
    return {
        "features": names,
        "windows": "as windows",
        **by_feature,
        "largest_psi": largest[order],
        "reference_records": max(references, default=0),
    }


def _mean(parts: list[tuple[Int, Float]], n_windows: int, d: int) -> Float:
    """The mean (w, d) of values (w, d) by the records (w,) of each partition, NaN left out."""
    total, weight = np.zeros((n_windows, d)), np.zeros((n_windows, d))
    for records, values in parts:
        known = ~np.isnan(values)
        total += np.where(known, values, 0.0) * records[:, None]
        weight += known * records[:, None]
    with np.errstate(invalid="ignore"):
        return total / weight


def _edges(rows: Float) -> Float:
    """Edges (d, EDGES) of the values of the reference (n, d): its quantiles, and further ones beyond its range."""
    edges = np.zeros((rows.shape[1], EDGES))
    for f, column in enumerate(rows.T):
        known = np.clip(column[np.isfinite(column)], -LARGEST, LARGEST)
        if not len(known):
            continue
        quantiles = np.quantile(known, SHARES)
        low, high = quantiles[0], quantiles[-1]
        unit = high - low if high > low else abs(high) or 1.0
        edges[f] = np.concatenate([(low - unit * BEYOND)[::-1], quantiles, high + unit * BEYOND])
    return np.maximum.accumulate(edges, axis=1)


def _cells(rows: Float, edges: Float) -> Int:
    """The cell (n, d) of each value: 2i between the edges i - 1 and i; odd, or further on, for a value on edges."""
    cells = np.empty(rows.shape, np.int64)
    for f, column in enumerate(np.ascontiguousarray(rows.T)):
        cells[:, f] = np.searchsorted(edges[f], column, "left") + np.searchsorted(edges[f], column, "right")
    cells[np.isnan(rows)] = CELLS - 1
    return cells


def _bounds(edges: Float) -> tuple[Float, Float]:
    """The smallest and the largest value (d, CELLS - 1) of each cell; the outer cells end at the outer edges."""
    between = np.concatenate([edges[:, :1], edges, edges[:, -1:]], axis=1)
    low, high = np.repeat(edges, 2, axis=1), np.repeat(edges, 2, axis=1)
    low = np.concatenate([between[:, :1], low], axis=1)
    high = np.concatenate([high, between[:, -1:]], axis=1)
    return low, high


def _bins(low: Float, high: Float, edges: Float) -> Int:
    """The bin (CELLS,) of each cell of one feature: between the tenths, on them, or missing."""
    tenths = edges[len(BEYOND) + 2 : len(BEYOND) + len(SHARES) - 2 : 2]
    middle = low / 2 + high / 2
    middle[0], middle[-1] = -np.inf, np.inf
    bins = np.searchsorted(tenths, middle, "left") + np.searchsorted(tenths, middle, "right")
    return np.append(bins, 2 * len(tenths) + 1)


def _sums(counts: Int, bins: Int) -> Float:
    """Counts (..., CELLS) by bin."""
    result = np.zeros((*counts.shape[:-1], int(bins[-1]) + 1))
    np.add.at(np.moveaxis(result, -1, 0), bins, np.moveaxis(counts, -1, 0))
    return result


def _psi(counts: Float, reference: Float) -> Float:
    """The index (w,) of counts (w, bins) against a reference (bins,), less what chance adds; at least 0."""
    n, m = counts.sum(axis=1), reference.sum()
    used = (counts > 0) | (reference > 0)
    n_bins = used.sum(axis=1)
    # half a record more in each bin, so that no share is zero
    p = np.where(used, (counts + 0.5) / (n + n_bins / 2)[:, None], 1.0)
    q = np.where(used, (reference + 0.5) / (m + n_bins / 2)[:, None], 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # of windows without records
        by_chance = (n_bins - 1) * (1 / n + 1 / m)
    index = np.maximum(0.0, ((p - q) * np.log(p / q)).sum(axis=1) - by_chance)
    return np.where(n >= FEWEST, index, np.nan)
