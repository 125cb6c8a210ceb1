"""The score over time: bins that keep peaks."""

from __future__ import annotations

from typing import Any

import numpy as np

from fomo_stream.replaying.tally.axis import Axis
from fomo_stream.replaying.tally.spec import Arrays, Columns, Float, Int

BINS = 4096  # at most; half as many at least, if the range has as many different times
RECORDS, SCORED, ALERTS, OUTLIERS = range(4)  # columns of `counts`


class Timeline:
    """Scores of the first detector by bin.

    counts: (BINS, 4); sums: (BINS,) of the scores; peaks: (BINS,) highest score, or NaN; generations: (BINS,) the last.
    """

    def __init__(self) -> None:
        self.axis = Axis(BINS)
        self.counts: Int = np.zeros((BINS, 4), np.int64)
        self.sums: Float = np.zeros(BINS)
        self.peaks: Float = np.full(BINS, np.nan)
        self.generations: Int = np.zeros(BINS, np.int64)

    def add(self, columns: Columns, generation: Int) -> None:
        """Take the records of a block, which has some."""
        self._hold(self.axis.holding(int(columns.times[0]), int(columns.times[-1])))
        places = self.axis.places(columns.times)
        first = np.flatnonzero(np.diff(places, prepend=-1))  # times never descend
        bins = places[first]
        score, is_scored = columns.scores[0], columns.is_scored[0]
        counts = np.stack([np.ones_like(is_scored), is_scored, columns.alerts[0], columns.is_outlier], axis=1)
        self.counts[bins] += np.add.reduceat(counts, first, dtype=np.int64)
        self.sums[bins] += np.add.reduceat(np.where(is_scored, score, 0.0), first)
        self.peaks[bins] = np.fmax(self.peaks[bins], np.fmax.reduceat(score, first))
        self.generations[bins] = np.maximum(self.generations[bins], np.maximum.reduceat(generation, first))

    def merge(self, other: Timeline) -> None:
        """Add the bins of another partition."""
        joined = self.axis.joined(other.axis)
        self._hold(joined)
        other._hold(joined)
        self.counts = self.counts + other.counts
        self.sums = self.sums + other.sums
        self.peaks = np.fmax(self.peaks, other.peaks)
        self.generations = np.maximum(self.generations, other.generations)

    def report(self, has_labels: bool) -> dict[str, Any]:
        """Bins with records."""
        used = np.flatnonzero(self.counts[: self.axis.bins, RECORDS])
        counts = self.counts[used]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self.sums[used] / counts[:, SCORED]
        return {
            "width": self.axis.width,
            "start": self.axis.starts()[used],
            "records": counts[:, RECORDS],
            "max": self.peaks[used],
            "mean": mean,
            "alerts": counts[:, ALERTS],
            "outliers": counts[:, OUTLIERS] if has_labels else None,
            "generation": self.generations[used],
        }

    def _hold(self, axis: Axis) -> None:
        """Go over to an axis that holds this one."""
        self.counts = self.axis.folded(self.counts, axis)
        self.sums = self.axis.folded(self.sums, axis)
        self.peaks = self.axis.folded(self.peaks, axis, by=np.fmax, empty=np.nan)
        self.generations = self.axis.folded(self.generations, axis, by=np.maximum)
        self.axis = axis

    def arrays(self) -> Arrays:
        """The bins, to be stored."""
        values = (self.counts, self.sums, self.peaks, self.generations)
        named = dict(zip(("counts", "sums", "peaks", "generations"), values, strict=True))
        return {"axis": np.array([self.axis.first, self.axis.last]), **named}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Timeline:
        """As `arrays` gave them."""
        result = cls()
        result.axis = Axis(BINS, *arrays["axis"].tolist())
        for name in ("counts", "sums", "peaks", "generations"):
            setattr(result, name, arrays[name].copy())
        return result
