"""Anomalous segments: consecutive outliers of one partition, and how soon each detector saw them.

A segment begins with an outlier and ends with its last one: before the next inlier, or before more than GAP unlabelled
records in a row. (Where only outliers have labels, one segment would never end otherwise.) A detector has detected a
segment when one of its alerts is within it; the delay is counted from the first record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.replaying.tally.spec import Arrays, Bool, Columns, Float, Int, TallySpec, part, whole

GAP = 10  # unlabelled records in a row that do not end a segment
LISTED = 1000  # segments that the report lists
NEVER = -1
_FIELDS = ("partition", "from", "to", "start", "end", "records")


@dataclass
class Closed:
    """m segments in the order of their beginnings.

    spans: for each of "partition", "from", "to" (offsets), "start", "end" (times) and "records" (its outliers), (m,);
    delay_records, delay_ms: (m, D), NEVER if not detected; peaks: (m,) highest score of its outliers by the first
    detector, or NaN.
    """

    spans: dict[str, Int]
    delay_records: Int
    delay_ms: Int
    peaks: Float

    @classmethod
    def none(cls, n_detectors: int) -> Closed:
        nothing = np.zeros((0, n_detectors), np.int64)
        return cls({name: np.zeros(0, np.int64) for name in _FIELDS}, nothing, nothing, np.zeros(0))

    def __len__(self) -> int:
        return len(self.peaks)

    def __getitem__(self, rows: slice | Int) -> Closed:
        spans = {name: values[rows] for name, values in self.spans.items()}
        return Closed(spans, self.delay_records[rows], self.delay_ms[rows], self.peaks[rows])

    def joined(self, other: Closed) -> Closed:
        """These segments, then the others."""
        spans = {name: np.concatenate([self.spans[name], other.spans[name]]) for name in _FIELDS}
        delays = (
            np.concatenate([self.delay_records, other.delay_records]),
            np.concatenate([self.delay_ms, other.delay_ms]),
        )
        return Closed(spans, *delays, np.concatenate([self.peaks, other.peaks]))

    def arrays(self) -> Arrays:
        return {
            **self.spans,
            "delay_records": self.delay_records,
            "delay_ms": self.delay_ms,
            "peaks": self.peaks,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Closed:
        spans = {name: arrays[name] for name in _FIELDS}
        return cls(spans, arrays["delay_records"], arrays["delay_ms"], arrays["peaks"])


class Segments:
    """Finds the segments of one partition, and keeps the first LISTED of them."""

    def __init__(self, spec: TallySpec) -> None:
        n_detectors = len(spec.detectors)
        self.listed = Closed.none(n_detectors)
        self._open = Closed.none(n_detectors)  # none or one: the last segment, while another outlier would extend it
        self._place = 0  # number of the next record in the partition
        self._last = 0  # number of the last outlier
        self._begin = 0  # number of the first record of the open segment
        # the first alert of each detector after the last outlier; it counts if the segment goes on
        self._waiting = np.full((2, n_detectors), NEVER)  # delay in records and in milliseconds

    def add(self, columns: Columns) -> Closed:
        """Take the records of a block; returns the segments that ended."""
        places = np.flatnonzero(columns.is_outlier)
        inliers = np.cumsum(columns.is_inlier)
        n = len(columns)
        if not len(places):
            closed = self._take_open() if inliers[-1] or self._place + n - self._last > GAP + 1 else self._open[:0]
            self._wait(columns, 0)
        else:
            closed = self._add_outliers(columns, places, inliers)
        self._place += n
        return self._list(closed)

    def finish(self) -> Closed:
        """The segment that is open at the end of the partition."""
        return self._list(self._take_open())

    def _list(self, closed: Closed) -> Closed:
        self.listed = self.listed.joined(closed[: LISTED - len(self.listed)])
        return closed

    def _take_open(self) -> Closed:
        taken, self._open = self._open, self._open[:0]
        return taken

    def _add_outliers(self, columns: Columns, places: Int, inliers: NDArray[Any]) -> Closed:
        breaks = (np.diff(inliers[places]) > 0) | (np.diff(places) > GAP + 1)
        begins = np.append(0, np.flatnonzero(breaks) + 1)  # of each segment, in `places`
        goes_on = len(self._open) > 0 and not inliers[places[0]] and self._place + places[0] - self._last <= GAP + 1
        ended = self._open[:0] if goes_on else self._take_open()
        found = self._found(columns, places, begins, goes_on)
        if goes_on:
            self._extend(found)
        last = int(places[-1])
        self._last, self._begin = self._place + last, self._begin_of(places[begins[-1]], goes_on and len(begins) == 1)
        stays_open = inliers[last] == inliers[-1] and len(columns) - last <= GAP + 1
        self._open = found[-1:] if stays_open else found[:0]
        self._waiting[:] = NEVER
        self._wait(columns, last + 1)
        return ended.joined(found[:-1] if stays_open else found)

    def _begin_of(self, place: int, is_open: bool) -> int:
        return self._begin if is_open else self._place + int(place)

    def _found(self, columns: Columns, places: Int, begins: Int, goes_on: bool) -> Closed:
        """The segments of a block by themselves; alerts of the first one count from the block's start if it goes on."""
        first, last = places[begins], places[np.append(begins[1:], len(places)) - 1]
        spans = {
            "partition": np.full(len(first), columns.partition),
            "from": columns.offsets[first],
            "to": columns.offsets[last],
            "start": columns.times[first],
            "end": columns.times[last],
            "records": np.diff(np.append(begins, len(places))),
        }
        start_places, start_times = first.copy(), spans["start"].copy()
        if goes_on:
            start_places[0], start_times[0] = self._begin - self._place, self._open.spans["start"][0]
        alert = _first_alerts(columns.alerts, np.maximum(start_places, 0), last)
        is_found = alert >= 0
        delay_records = np.where(is_found, alert - start_places[:, None], NEVER)
        delay_ms = np.where(is_found, columns.times[alert] - start_times[:, None], NEVER)
        peaks = np.fmax.reduceat(columns.scores[0][places], begins)
        return Closed(spans, delay_records, delay_ms, peaks)

    def _extend(self, found: Closed) -> None:
        """Put the open segment before the first one that was found."""
        before, spans = self._open, found.spans
        spans["from"][0], spans["start"][0] = before.spans["from"][0], before.spans["start"][0]
        spans["records"][0] += before.spans["records"][0]
        found.peaks[0] = np.fmax(found.peaks[0], before.peaks[0])
        earlier = ((before.delay_records[0], before.delay_ms[0]), tuple(self._waiting))
        for records, ms in reversed(earlier):
            found.delay_records[0] = np.where(records >= 0, records, found.delay_records[0])
            found.delay_ms[0] = np.where(records >= 0, ms, found.delay_ms[0])

    def _wait(self, columns: Columns, place: int) -> None:
        """Note the first alerts from `place` on, which count if the open segment goes on."""
        if not len(self._open) or place == len(columns):
            return
        alert = _first_alerts(columns.alerts[:, place:], np.zeros(1, np.int64), np.array([len(columns) - place - 1]))[0]
        for d in np.flatnonzero((alert >= 0) & (self._waiting[0] < 0)):
            at = place + alert[d]
            self._waiting[:, d] = self._place + at - self._begin, columns.times[at] - self._open.spans["start"][0]

    def arrays(self) -> Arrays:
        """The state, to be stored."""
        own = {"places": np.array([self._place, self._last, self._begin]), "waiting": self._waiting}
        return {**own, **whole(listed=self.listed.arrays(), open=self._open.arrays())}

    @classmethod
    def from_arrays(cls, spec: TallySpec, arrays: Arrays) -> Segments:
        """As `arrays` gave them."""
        result = cls(spec)
        result._place, result._last, result._begin = arrays["places"].tolist()
        result._waiting = arrays["waiting"].copy()
        result.listed = Closed.from_arrays(part(arrays, "listed"))
        result._open = Closed.from_arrays(part(arrays, "open"))
        return result


def merged(first: Closed, second: Closed) -> Closed:
    """The first LISTED segments of two lists of different partitions, by their beginnings."""
    both = first.joined(second)
    order = np.lexsort((both.spans["from"], both.spans["partition"], both.spans["start"]))
    return both[order[:LISTED]]


def _first_alerts(alerts: Bool, first: Int, last: Int) -> Int:
    """The place (m, D) of the first alert (D, n) from first (m,) to last (m,); NEVER if there is none."""
    result = np.full((len(first), len(alerts)), NEVER)
    for d, row in enumerate(alerts):
        at = np.append(np.flatnonzero(row), np.iinfo(np.int64).max)
        nearest = at[np.searchsorted(at, first)]
        result[:, d] = np.where(nearest <= last, nearest, NEVER)
    return result
