"""Records the rows of a replay in files: workers write them for each partition, and they are read at the end."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fomo_stream.records.explanation import key_in_sentence
from fomo_stream.records.result import Result
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, UNREADABLE, Block
from fomo_stream.replaying.measures.top_alerts import MAX_COUNTED_KEYS, TopAlerts
from fomo_stream.replaying.report_files import written_to

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

MAX_WINDOWS = 128  # bins of time whose records are measured together
MAX_VALUE = 3e38  # larger values are cut to this one, which fits into float32
MAX_WORST = 20  # incidents that the report lists
MAX_SILENCE_NOTICES = 100  # of a partition, that the report lists


@dataclass(frozen=True)
class MeasureSpec:
    """The description of what is measured. `detectors`: the names of all, first the detector itself."""

    detectors: tuple[str, ...]
    features: tuple[str, ...]
    alert_rate: float
    has_labels: bool  # False: all labels are unknown
    axis: Literal["time", "record"] = "time"  # of `Block.times`
    categorical: frozenset[str] = frozenset()  # features that are categories
    counters: frozenset[str] = frozenset()  # features that are counters
    quiet: tuple[int, int] = (10, 1000)  # records that end an incident, see `Incidents`

    @property
    def row(self) -> np.dtype[Any]:
        """The type of a row in the file: a record with score and alert of every detector."""
        n = (len(self.detectors),)
        record = [("offset", "i8"), ("time", "i8"), ("label", "i1"), ("series", "i8"), ("begins", "?")]
        return np.dtype([*record, ("score", "f8", n), ("alert", "?", n)])


def worst_incidents(incidents: Iterable[Result]) -> list[Result]:
    """Return the MAX_WORST most surprising incidents of a partition, the worst first."""
    return sorted(incidents, key=lambda incident: (-incident["surprise"], incident["from"]["offset"]))[:MAX_WORST]


@dataclass
class Recorded:
    """The notes of a recorder about one partition: two files with rows, and counts."""

    partition: int
    file: Path
    spec: MeasureSpec
    alerts: TopAlerts
    skipped: Counter[str] = field(default_factory=Counter)  # records without a score, by reason
    suppressed: Counter[str] = field(default_factory=Counter)  # by rule, or window of maintenance
    unreadable_labels: int = 0
    odd_times: int = 0
    keys_of_outliers: dict[int, str] = field(default_factory=dict)  # by offset, of the first MOST_KEYS labelled ones
    ended_incidents: array[int] = field(default_factory=lambda: array("q"))  # number of alerts of each
    worst_incidents: list[Result] = field(default_factory=list)  # of the ended ones
    open_incidents: Sequence[Result] = ()
    silence: Counter[tuple[str, str]] = field(default_factory=Counter)  # notices by level and status
    silence_notices: list[Result] = field(default_factory=list)  # the first ones

    @property
    def values_file(self) -> Path:
        return self.file.with_suffix(".values")

    @cached_property
    def rows(self) -> NDArray[Any]:
        """The records (n,) as `MeasureSpec.row`, in their order; memory-mapped."""
        return _mapped(self.file, self.spec.row, (-1,))

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The feature values (n, d); memory-mapped."""
        return _mapped(self.values_file, np.dtype(np.float32), (len(self.rows), len(self.spec.features)))


class Recorder:
    """Notes the records of one partition in files of a folder. Raises FomoError if they cannot be written."""

    def __init__(self, folder: Path, spec: MeasureSpec, partition: int) -> None:
        self._spec = spec
        self._recorded = Recorded(partition, folder / f"{partition}.rows", spec, TopAlerts())
        with written_to(folder):
            self._files = [path.open("wb") for path in (self._recorded.file, self._recorded.values_file)]

    def add(self, block: Block) -> None:
        """Note the next block of the partition."""
        recorded = self._recorded
        recorded.skipped.update(block.skipped)
        recorded.suppressed.update(block.suppressed)
        recorded.odd_times += block.odd_times
        recorded.ended_incidents.extend(incident["records"] for incident in block.ended_incidents)
        recorded.worst_incidents = worst_incidents([*recorded.worst_incidents, *block.ended_incidents])
        recorded.open_incidents = block.open_incidents
        silence = [notice.summary for notice in block.notices if "of" in notice.summary]
        recorded.silence.update((summary["of"], summary["status"]) for summary in silence)
        recorded.silence_notices += silence[: MAX_SILENCE_NOTICES - len(recorded.silence_notices)]
        if not len(block):
            return
        recorded.alerts.add(block)
        if self._spec.has_labels:
            recorded.unreadable_labels += int(np.count_nonzero(block.labels == UNREADABLE))
            for i in np.flatnonzero(block.labels == OUTLIER).tolist() if block.keys else ():
                if (key := block.keys[i]) is not None and len(recorded.keys_of_outliers) < MAX_COUNTED_KEYS:
                    recorded.keys_of_outliers[int(block.offsets[i])] = key_in_sentence(key)
        values = np.clip(block.rows, -MAX_VALUE, MAX_VALUE).astype(np.float32)
        with written_to(recorded.file.parent):
            self._files[0].write(self._rows(block).tobytes())
            self._files[1].write(values.tobytes())

    def close(self) -> Recorded:
        """Close the files; return the notes."""
        with written_to(self._recorded.file.parent):
            for file in self._files:
                file.close()
        return self._recorded

    def _rows(self, block: Block) -> NDArray[Any]:
        rows = np.empty(len(block), self._spec.row)
        rows["offset"], rows["time"] = block.offsets, block.times
        rows["label"] = np.maximum(block.labels, UNKNOWN) if self._spec.has_labels else UNKNOWN
        rows["series"], rows["begins"] = block.results.series, block.results.begins
        for d, name in enumerate(self._spec.detectors):
            rows["score"][:, d], rows["alert"][:, d] = block.judgements[name].score, block.judgements[name].alert
        return rows


@dataclass(frozen=True)
class Axis:
    """Bins of equal width for all times from `first` to `last`; no bins if last < first.

    There are at most `size` bins, and at least half as many if there are as many different times. The width is a power
    of two and a bin begins at a multiple of it, so that replays of nearly the same range have the same bins.

    >>> axis = Axis(100, 130, size=4)
    >>> axis.width, axis.starts.tolist(), axis.places(np.array([100, 115, 130])).tolist()
    (16, [96, 112, 128], [0, 1, 2])
    """

    first: int
    last: int
    size: int

    @property
    def width(self) -> int:
        """The width of a bin, in units of the times."""
        width = 1
        while self.last // width - self.first // width >= self.size:
            width *= 2
        return width

    @property
    def starts(self) -> Int:
        """The time (bins,) at which each bin begins."""
        width = self.width
        if self.last < self.first:
            return np.zeros(0, np.int64)
        return np.arange(self.first // width, self.last // width + 1, dtype=np.int64) * width

    def places(self, times: Int) -> Int:
        """Return the bin (n,) of each time (n,)."""
        return np.asarray(times // self.width - self.first // self.width, dtype=np.int64)


class Records:
    """The n records of all partitions as columns: partition by partition, and in their order within each."""

    def __init__(self, recorded: Sequence[Recorded], spec: MeasureSpec) -> None:
        self.parts = [part.rows for part in recorded]
        ends = np.cumsum([0, *map(len, self.parts)]).tolist()
        self.slices = [slice(begin, end) for begin, end in pairwise(ends)]  # of each partition
        self.times: Int = self.column("time")
        label = self.column("label")
        self.is_outlier: Bool = label == OUTLIER
        self.is_labelled: Bool = self.is_outlier | (label == INLIER)
        self.axis = self.axis_of(MAX_WINDOWS)
        self.window: Int = self.axis.places(self.times)
        # Only records that have a label and a score of every detector can be compared.
        self.is_ranked: Bool = self.is_labelled.copy()
        for d in range(len(spec.detectors)):
            self.is_ranked &= ~np.isnan(self.of("score", d))

    def __len__(self) -> int:
        return len(self.times)

    def axis_of(self, size: int) -> Axis:
        """Return the axis with at most `size` bins for all times."""
        return Axis(int(self.times.min()), int(self.times.max()), size) if len(self) else Axis(0, -1, size)

    def of(self, name: Literal["score", "alert"], d: int) -> NDArray[Any]:
        """Return a column (n,) of detector d."""
        return np.concatenate([part[name][:, d] for part in self.parts])

    def column(self, name: str) -> NDArray[Any]:
        """Return a column (n,) of the records."""
        return np.concatenate([part[name] for part in self.parts])


def _mapped(path: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the array in a file, memory-mapped; an empty file cannot be mapped."""
    if not path.stat().st_size:
        return np.zeros(tuple(max(0, n) for n in shape), kind)
    return np.asarray(np.memmap(path, kind, "r")).reshape(shape)
