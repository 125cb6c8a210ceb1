"""The last records of a partition: their rows, their scores, the verdicts on them, and whether they were learned."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries, Table
from fomo_stream.detector.widening import with_missing_features

Float = NDArray[np.float64]
Int = NDArray[np.int64]

UNKNOWN, OUTLIER, INLIER = 0, 1, 2  # verdicts of feedback
# a commit may be of a few records, and each entry that they touch is written as a whole
ROW_BYTES = 400  # of rows to an entry of the log, about
SCORE_BLOCK = 8  # scores to an entry


class History:
    """Rows of the last `rows` records and scores of the last `scores`, by record number.

    Every record's score is kept, learned or not: a window of admitted records alone would lack the tail, which the gate
    rejects. Rows are kept for three reasons: a new generation scores them again, because scores of different contexts
    cannot be compared; whether a row becomes context depends on the records after it; and feedback may come late.
    """

    def __init__(self, n_features: int, rows: int, scores: int) -> None:
        if not 1 <= rows <= scores:
            raise ValueError(f"a history of {scores} scores holds 1 to {scores} rows, not {rows}")
        self.records = 0  # so far; the next record has this number
        # ring buffers; values that may still change are beside the scores, so that a row is written to the log once
        block = max(1, ROW_BYTES // (8 * n_features + 8))
        self._rows = Table(block, rows=np.full((rows, n_features), np.nan), gate_p=np.full(rows, np.nan))
        self._scores = Table(
            SCORE_BLOCK,
            logit=np.full(scores, np.nan),
            verdict=np.full(scores, UNKNOWN, dtype=np.int8),
            learned=np.zeros(scores, dtype=bool),
        )

    @property
    def oldest(self) -> int:
        """Number of the oldest record whose row is kept."""
        return max(0, self.records - self._rows.size)

    def append(self, rows: Float, logit: Float, gate_p: Float) -> None:
        """Append the next records: rows (n, d), logits (n,), p-values of the gate (n,); NaN while warming up."""
        self.records += len(rows)
        keep = min(len(rows), self._rows.size)  # the first of more rows would be overwritten at once
        at = np.arange(self.records - keep, self.records) % self._rows.size
        self._rows.put(at, rows=rows[len(rows) - keep :], gate_p=gate_p[len(rows) - keep :])
        keep = min(len(rows), self._scores.size)
        at = np.arange(self.records - keep, self.records) % self._scores.size
        self._scores.put(at, logit=logit[len(rows) - keep :], verdict=UNKNOWN, learned=False)

    def rows(self, numbers: Int) -> Float:
        """Rows of known records."""
        return self._rows["rows"][numbers % self._rows.size]

    def gate_p(self, numbers: Int) -> Float:
        """The gate's p-values of known records."""
        return self._rows["gate_p"][numbers % self._rows.size]

    def verdict(self, numbers: Int) -> NDArray[np.int8]:
        """The verdicts of feedback on known records."""
        return self._scores["verdict"][numbers % self._scores.size]

    def learned(self, numbers: Int) -> NDArray[np.bool_]:
        """Whether known records were offered to the context."""
        return self._scores["learned"][numbers % self._scores.size]

    def judge(self, numbers: Int, verdict: NDArray[np.int8]) -> None:
        """Note verdicts (n,) on known records."""
        self._scores.put(numbers % self._scores.size, verdict=verdict)

    def learn(self, numbers: Int) -> None:
        """Note that known records were offered to the context."""
        self._scores.put(numbers % self._scores.size, learned=True)

    def find(self, values: Float, columns: Int) -> Int:
        """Numbers of the known records whose rows have exactly these values (k,) in these columns; NaN equals NaN."""
        numbers = np.arange(self.oldest, self.records)
        rows = self.rows(numbers)[:, columns]
        same: NDArray[np.bool_] = ((rows == values) | (np.isnan(rows) & np.isnan(values))).all(1)
        return numbers[same]

    def window(self, size: int, before: int) -> Float:
        """Scores, ascending, of the last `size` records before number `before`, without outliers by feedback."""
        first = max(0, before - size)
        scores, outlier = self._between("logit", first, before), self._between("verdict", first, before) == OUTLIER
        left_out = np.isnan(scores) | outlier
        return np.sort(scores[~left_out] if left_out.any() else scores)

    def not_outliers(self, first: int, stop: int) -> Int:
        """Numbers (n,) of the records from `first` to before `stop` that feedback does not call outliers."""
        numbers: Int = np.arange(first, stop)
        outlier = self._between("verdict", first, stop) == OUTLIER
        return numbers[~outlier] if outlier.any() else numbers

    def rejected(self, first: int, stop: int) -> tuple[int, int]:
        """Of the records that `not_outliers` returns, how many were not offered to the context; and their number."""
        normal = self._between("verdict", first, stop) != OUTLIER
        n = int(np.count_nonzero(normal))
        return n - int(np.count_nonzero(normal & self._between("learned", first, stop))), n

    def _between(self, column: str, first: int, stop: int) -> NDArray[Any]:
        """Values of the scores' table of the known records from `first` to before `stop`, in order."""
        values, size = self._scores[column], self._scores.size
        start, end = first % size, first % size + max(0, stop - first)
        return values[start:end] if end <= size else np.concatenate([values[start:], values[: end - size]])

    def rescore(self, numbers: Int, logit: Float) -> None:
        """Replace the scores of these records, where they are still kept."""
        kept = numbers >= self.records - self._scores.size
        self._scores.put(numbers[kept] % self._scores.size, logit=logit[kept])

    def copy(self, more: int = 0) -> History:
        """An independent history of the same records, with `more` further features that none of them has."""
        n_rows, n_scores = self._rows.size, self._scores.size
        twin = History(self._rows["rows"].shape[1] + more, n_rows, n_scores)
        twin.records = self.records
        at = np.arange(min(self.records, n_rows))
        twin._rows.put(at, rows=with_missing_features(self._rows["rows"][at], more), gate_p=self._rows["gate_p"][at])
        at = np.arange(min(self.records, n_scores))
        twin._scores.put(at, **{name: self._scores[name][at] for name in ("logit", "verdict", "learned")})
        return twin

    def changes(self, name: str) -> Entries:
        """Entries of all changes since the last call, at first of everything; without the number of records."""
        return {**self._rows.changes(f"{name}/rows"), **self._scores.changes(f"{name}/scores")}

    def recover(self, entries: StoredEntries, name: str, records: int) -> None:
        """Take the state after `records` records from the entries. Raises StateError when they do not fit."""
        self.records = records
        self._rows.recover(entries, f"{name}/rows")
        self._scores.recover(entries, f"{name}/scores")
