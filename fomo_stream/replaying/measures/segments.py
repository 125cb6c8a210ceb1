"""Finds anomalous segments: consecutive outliers of one series, and how soon each detector saw them.

A series is the records of one partition with the same key, or without one. A segment begins with an outlier and ends
with its last outlier before the next inlier, or before more than MAX_GAP unlabelled records in a row.
(Otherwise, if only outliers have labels, one segment would never end.) A detector has detected a segment when one of
its alerts is within it; the delay is counted from the first record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.replaying.blocks import INLIER, OUTLIER

Float = NDArray[np.float64]
Int = NDArray[np.int64]

MAX_GAP = 10  # unlabelled records in a row that do not end a segment
MAX_LISTED_SEGMENTS = 1000  # that the report lists
NOT_DETECTED = -1  # stands for a delay


@dataclass(frozen=True)
class Segments:
    """m segments in the order of their beginnings.

    spans: (m,) each for "partition", "from", "to" (offsets), "start", "end" (times) and "records" (number of outliers);
    peaks: (m,) highest score of the outliers by the first detector, or NaN; delay_records, delay_ms: (m, D), or
    NOT_DETECTED.
    """

    spans: dict[str, Int]
    peaks: Float
    delay_records: Int
    delay_ms: Int

    def report(self, has_times: bool, keys: Mapping[tuple[int, int], str]) -> list[dict[str, Any]]:
        """Return the first MAX_LISTED_SEGMENTS segments for the first detector. keys: by partition and offset."""
        listed = []
        for i, delay in enumerate(self.delay_records[:MAX_LISTED_SEGMENTS, 0].tolist()):
            is_detected = delay != NOT_DETECTED
            listed.append(
                {
                    **{name: int(values[i]) for name, values in self.spans.items()},
                    "key": keys.get((int(self.spans["partition"][i]), int(self.spans["from"][i]))),
                    "detected": is_detected,
                    "delay_records": delay if is_detected else None,
                    "delay_s": self.delay_ms[i, 0] / 1000 if is_detected and has_times else None,
                    "peak": self.peaks[i],
                }
            )
        return listed


def all_segments(partitions: Sequence[tuple[int, NDArray[Any]]]) -> Segments:
    """Return the segments of partitions. partitions: the number and the records (n,) of each, as `MeasureSpec.row`."""
    parts = [segments(number, rows) for number, rows in partitions]
    spans = {name: np.concatenate([part.spans[name] for part in parts]) for name in _SPANS}
    order = np.lexsort((spans["from"], spans["partition"], spans["start"]))
    names = ("peaks", "delay_records", "delay_ms")
    others = (np.concatenate([getattr(part, name) for part in parts])[order] for name in names)
    return Segments({name: values[order] for name, values in spans.items()}, *others)


_SPANS = ("partition", "from", "to", "start", "end", "records")


def segments(partition: int, rows: NDArray[Any]) -> Segments:
    """Return the segments of one partition with the records (n,)."""
    if rows["series"].any():  # sort the records by series
        rows = rows[np.argsort(rows["series"], kind="stable")]
    label, times = rows["label"], rows["time"]
    places = np.flatnonzero(label == OUTLIER)
    inliers = np.cumsum(label == INLIER)[places]
    is_first = (np.diff(inliers, prepend=-1) > 0) | (np.diff(places, prepend=-MAX_GAP - 2) > MAX_GAP + 1)
    is_first |= np.diff(rows["series"][places], prepend=-1) != 0
    begins = np.flatnonzero(is_first)
    ends = np.append(begins[1:], len(places))[: len(begins)]
    first, last = places[begins], places[ends - 1]
    spans = (np.full(len(first), partition), rows["offset"][first], rows["offset"][last], times[first], times[last])
    alert = np.stack([first_alerts(column, first, last) for column in rows["alert"].T], axis=1)
    is_detected = alert != NOT_DETECTED
    score = rows["score"][:, 0][places]
    return Segments(
        dict(zip(_SPANS, (*spans, ends - begins), strict=True)),
        np.fmax.reduceat(score, begins) if len(begins) else np.zeros(0),
        np.where(is_detected, alert - first[:, None], NOT_DETECTED),
        np.where(is_detected, times[alert] - times[first][:, None], NOT_DETECTED),
    )


def first_alerts(is_alert: NDArray[np.bool_], first: Int, last: Int) -> Int:
    """Return the position (m,) of the first alert (n,) from first (m,) to last (m,); NOT_DETECTED without one."""
    places = np.append(np.flatnonzero(is_alert), np.iinfo(np.int64).max)
    nearest = places[np.searchsorted(places, first)]
    return np.where(nearest <= last, nearest, NOT_DETECTED)
