"""Counts by window of time: scores, alerts and anomalous segments of every detector."""

from __future__ import annotations

import numpy as np

from fomo_stream.replaying.tally.axis import Axis
from fomo_stream.replaying.tally.keyed_counts import KeyedCounts
from fomo_stream.replaying.tally.segments import Closed
from fomo_stream.replaying.tally.spec import Arrays, Columns, Float, Int, TallySpec, part, whole

WINDOWS = 128  # at most; half as many at least, if the range has as many different times
RANKED_SCORES, WINDOW_SCORES, DELAYS = 2**17, 1024, 512  # at most so many distinct values
PENDING = 32 * 1024  # records whose scores are counted at once, which is faster
OTHER = 2  # class of scores that are not ranked, beside INLIER and OUTLIER

RECORDS, LABELLED, OUTLIERS, SEGMENTS = range(4)  # columns of `totals`
SCORED, ALERTS, LABELLED_ALERTS, TRUE_ALERTS, DETECTED = range(5)  # columns of `by_detector`


class DetectorCounts:
    """Scores and delays of one detector.

    ranked: (k, 2) of ranked records, by class, finely; scores: (k, window, 3) of all scored records, by window and
    class (INLIER, OUTLIER, OTHER), more coarsely; delay_records, delay_ms: (k, window) of segments that it detected.
    """

    def __init__(self) -> None:
        self.ranked = KeyedCounts(RANKED_SCORES, (2,))
        self.scores = KeyedCounts(WINDOW_SCORES, (WINDOWS, 3))
        self.delay_records = KeyedCounts(DELAYS, (WINDOWS,))
        self.delay_ms = KeyedCounts(DELAYS, (WINDOWS,))

    @property
    def windowed(self) -> tuple[KeyedCounts, ...]:
        """Those with a window as the second axis."""
        return self.scores, self.delay_records, self.delay_ms

    def merge(self, other: DetectorCounts) -> None:
        """Add counts by the same windows."""
        self.ranked.merge(other.ranked)
        for mine, others in zip(self.windowed, other.windowed, strict=True):
            mine.merge(others)

    def arrays(self) -> Arrays:
        return whole(**{name: counts.arrays() for name, counts in vars(self).items()})

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> DetectorCounts:
        result = cls()
        for name, counts in vars(result).items():
            setattr(result, name, KeyedCounts.from_arrays(counts.limit, part(arrays, name)))
        return result


class Windows:
    """Counts by window, D detectors.

    totals: (WINDOWS, 4) of all records; by_detector: (WINDOWS, D, 5) of the records that each scored.
    """

    def __init__(self, spec: TallySpec) -> None:
        self.axis = Axis(WINDOWS)
        n_detectors = len(spec.detectors)
        self.totals: Int = np.zeros((WINDOWS, 4), np.int64)
        self.by_detector: Int = np.zeros((WINDOWS, n_detectors, 5), np.int64)
        self.detectors = [DetectorCounts() for _ in range(n_detectors)]
        self._pending: list[tuple[Int, Float, Int]] = []  # times (n,), scores (D, n), classes (n,)
        self._n_pending = 0

    def add(self, columns: Columns) -> None:
        """Count the records of a block, which has some."""
        self._hold(self.axis.holding(int(columns.times[0]), int(columns.times[-1])))
        labelled, alerts = columns.is_outlier | columns.is_inlier, columns.alerts
        totals = np.stack([np.ones_like(labelled), labelled, columns.is_outlier], axis=1)
        by_detector = np.stack([columns.is_scored, alerts, alerts & labelled, alerts & columns.is_outlier], axis=2)
        places = self.axis.places(columns.times)
        first = np.flatnonzero(np.diff(places, prepend=-1))  # times never descend
        self.totals[places[first], :SEGMENTS] += np.add.reduceat(totals, first, dtype=np.int64)
        by_window = np.add.reduceat(by_detector, first, axis=1, dtype=np.int64)
        self.by_detector[places[first], :, :DETECTED] += by_window.swapaxes(0, 1)
        classes = np.where(columns.is_ranked, columns.labels.astype(np.int64), OTHER)
        self._pending.append((columns.times, columns.scores, classes))
        self._n_pending += len(columns)
        if self._n_pending >= PENDING:
            self.flush()

    def add_segments(self, closed: Closed) -> None:
        """Count segments that have ended, in the windows in which they began."""
        places = self.axis.places(closed.spans["start"])
        np.add.at(self.totals[:, SEGMENTS], places, 1)
        for d, detector in enumerate(self.detectors):
            found = closed.delay_records[:, d] >= 0
            np.add.at(self.by_detector[:, d, DETECTED], places[found], 1)
            detector.delay_records.add(closed.delay_records[found, d].astype(np.float64), places[found])
            detector.delay_ms.add(closed.delay_ms[found, d].astype(np.float64), places[found])

    def flush(self) -> None:
        """Count the scores that wait; must come before the scores are read."""
        if not self._pending:
            return
        times, scores, classes = (np.concatenate(column, axis=-1) for column in zip(*self._pending, strict=True))
        self._pending, self._n_pending = [], 0
        places, is_ranked = self.axis.places(times), classes != OTHER
        for detector, values in zip(self.detectors, scores, strict=True):
            known = ~np.isnan(values)
            detector.scores.add(values[known], places[known], classes[known])
            detector.ranked.add(values[is_ranked], classes[is_ranked])

    def merge(self, other: Windows) -> None:
        """Add the counts of another partition; both must be flushed."""
        joined = self.axis.joined(other.axis)
        self._hold(joined)
        other._hold(joined)
        self.totals = self.totals + other.totals
        self.by_detector = self.by_detector + other.by_detector
        for mine, others in zip(self.detectors, other.detectors, strict=True):
            mine.merge(others)

    def _hold(self, axis: Axis) -> None:
        """Go over to an axis that holds this one."""
        self.totals = self.axis.folded(self.totals, axis)
        self.by_detector = self.axis.folded(self.by_detector, axis)
        for detector in self.detectors:
            for counts in detector.windowed:
                counts.counts = self.axis.folded(counts.counts, axis, axis=1)
        self.axis = axis

    def arrays(self) -> Arrays:
        """The counts, to be stored."""
        self.flush()
        own = {
            "axis": np.array([self.axis.first, self.axis.last]),
            "totals": self.totals,
            "by_detector": self.by_detector,
        }
        return {**own, **whole(**{str(d): detector.arrays() for d, detector in enumerate(self.detectors)})}

    @classmethod
    def from_arrays(cls, spec: TallySpec, arrays: Arrays) -> Windows:
        """As `arrays` gave them."""
        result = cls(spec)
        result.axis = Axis(WINDOWS, *arrays["axis"].tolist())
        result.totals, result.by_detector = arrays["totals"].copy(), arrays["by_detector"].copy()
        result.detectors = [DetectorCounts.from_arrays(part(arrays, str(d))) for d in range(len(spec.detectors))]
        return result
