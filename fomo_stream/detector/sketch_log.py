"""The quantile sketch of a partition, with a log that does not hold its rows a second time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Document, Entries, StoredEntries, Table
from fomo_stream.detector.config import STEP
from fomo_stream.detector.history import History
from fomo_stream.detector.quantile_sketch import QuantileSketch

Float = NDArray[np.float64]
Int = NDArray[np.int64]

NUMBER_BLOCK = 16  # record numbers to an entry of the log


class LoggedSketch:
    """A sketch of learned records, and its log.

    Each feature has a checkpoint: its points at an earlier turn. The log has the checkpoints, and the numbers of the
    records learned since then. Their rows are in the history, which has a log of its own; `recover` learns them again.
    So points are written rarely: before the history forgets a row that came after the checkpoint.
    history_rows: records whose rows the history keeps, at least 2 * STEP.
    """

    def __init__(self, sketch: QuantileSketch, history_rows: int) -> None:
        self.sketch = sketch
        self._history_rows = history_rows
        # the lower bits of a record's number; of row i in slot i % size
        self._numbers = Table(NUMBER_BLOCK, number=np.zeros(history_rows, dtype=np.uint32))
        self._points = [sketch.points(j) for j in range(sketch.n_features)]  # at the checkpoints
        self._saved = sketch.merged.copy()  # rows that had been learned at the checkpoints
        self._oldest = np.inf  # number of the oldest record learned after the earliest checkpoint
        self._logs = [Document() for _ in self._points]
        self._changed = set(range(sketch.n_features))  # features whose checkpoint the log does not have

    def update(self, numbers: Int, rows: Float) -> None:
        """Learn the rows (n, d) of records of the history, by number (n,), none of which was learned before.

        Call `settle` then at every step, and where the records are older than the last step.
        """
        if len(numbers):
            first = self.sketch.count
            slots = np.arange(first, first + len(numbers)) % self._numbers.size
            self._numbers.put(slots, number=numbers.astype(np.uint32))
            self._oldest = min(self._oldest, int(numbers.min()))
            self.sketch.update(rows)

    def settle(self, records: int) -> None:
        """Save checkpoints, so that no row is needed that the history forgets until the next step.

        records: number of the next record, at a step.
        """
        sketch, forgotten = self.sketch, records + STEP - self._history_rows
        # a feature that had its turn in this step, but perhaps not again in time: so features take turns here too
        soon = np.flatnonzero((sketch.merged > sketch.count - STEP) & (sketch.merged > self._saved))
        if len(soon):
            self._save(soon[self._number_of(self._saved[soon], records) < forgotten + sketch.chunk])
        if self._oldest < forgotten:
            since = int(self._saved.min())
            numbers = self._number_of(np.arange(since, sketch.count), records)
            leaving = since + np.flatnonzero(numbers < forgotten)
            if len(leaving):
                late = np.flatnonzero(self._saved <= leaving[-1])
                sketch.merge(late[sketch.merged[late] <= leaving[-1]])
                self._save(late)
            self._look_back(records)

    def restart(self, sketch: QuantileSketch, rows: Float) -> None:
        """Become an empty sketch that learns rows (n, d) which the history perhaps does not have."""
        self.sketch = sketch
        sketch.update(rows)
        everything = np.arange(sketch.n_features)
        sketch.merge(everything)
        self._save(everything)
        self._oldest = np.inf

    def _save(self, features: Int) -> None:
        for j in features.tolist():
            self._points[j] = self.sketch.points(j)
        self._saved[features] = self.sketch.merged[features]
        self._changed.update(features.tolist())

    def _number_of(self, rows: Int, records: int) -> Int:
        """Numbers (n,) of the records of learned rows (n,); all are among the last 2 ** 32 before number `records`."""
        ages = np.uint32(records % 2**32) - self._numbers["number"][rows % self._numbers.size]
        return records - ages.astype(np.int64)

    def _look_back(self, records: int) -> None:
        numbers = self._number_of(np.arange(int(self._saved.min()), self.sketch.count), records)
        self._oldest = int(numbers.min()) if len(numbers) else np.inf

    def copy(self, more: int = 0) -> LoggedSketch:
        """An independent sketch in the same state, with `more` further features that no row has."""
        d = self.sketch.n_features
        twin = LoggedSketch(self.sketch.copy(more), self._history_rows)
        twin._points[:d], twin._saved[:d] = self._points, self._saved
        at = np.arange(min(self.sketch.count, self._numbers.size))
        twin._numbers.put(at, number=self._numbers["number"][at])
        twin._oldest = self._oldest
        return twin

    def changes(self, name: str) -> Entries:
        """Entries of all changes since the last call, at first of everything; without the number of learned rows."""
        entries = self._numbers.changes(f"{name}/numbers")
        for j in sorted(self._changed):
            entries |= self._logs[j].changes(f"{name}/points/{j}", self._points[j])
        self._changed.clear()
        return entries

    def recover(self, entries: StoredEntries, name: str, count: int, history: History) -> None:
        """Take the state after `count` rows from the entries and the history. Raises StateError if they do not fit."""
        self._numbers.recover(entries, f"{name}/numbers")
        self._points = [log.recover(entries, f"{name}/points/{j}") for j, log in enumerate(self._logs)]
        self._changed.clear()
        self.sketch.take_points(self._points)
        self._saved = self.sketch.merged.copy()
        self.sketch.update(history.rows(self._number_of(np.arange(self.sketch.count, count), history.records)))
        self._look_back(history.records)
