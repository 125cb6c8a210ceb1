"""The last records of a partition: their rows, what they scored, and what became of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]

UNKNOWN, OUTLIER, INLIER = 0, 1, 2  # verdicts of feedback


class Memory:
    """Rows of the last `rows` records and scores of the last `scores`, by record number.

    Every record's score is kept, learned or not: a window of admitted records alone has its tail cut off by the gate.
    Rows are kept because a score means little under another context (a new generation scores them afresh), because
    whether a row becomes context is decided only once its successors are known, and because feedback may come late.
    """

    def __init__(self, n_features: int, rows: int, scores: int) -> None:
        if not 1 <= rows <= scores:
            raise ValueError(f"a memory of {scores} scores holds 1 to {scores} rows, not {rows}")
        self.records = 0  # remembered or forgotten; the next record has this number
        self._rows: Float = np.full((rows, n_features), np.nan)
        self._logit: Float = np.full(scores, np.nan)
        self._gate_p: Float = np.full(rows, np.nan)
        self._verdict = np.zeros(scores, dtype=np.int8)
        self._learned = np.zeros(rows, dtype=bool)

    @property
    def oldest(self) -> int:
        """Number of the oldest record whose row is still known."""
        return max(0, self.records - len(self._rows))

    def append(self, rows: Float, logit: Float, gate_p: Float) -> None:
        """Take the next records: rows (n, d), logits (n,), p-values of the gate (n,); NaN while warming up."""
        keep = min(len(rows), len(self._rows))  # of more, the first would be forgotten at once
        self.records += len(rows)
        at = np.arange(self.records - keep, self.records) % len(self._rows)
        self._rows[at], self._gate_p[at] = rows[len(rows) - keep :], gate_p[len(rows) - keep :]
        self._learned[at] = False
        keep = min(len(rows), len(self._logit))
        at = np.arange(self.records - keep, self.records) % len(self._logit)
        self._logit[at], self._verdict[at] = logit[len(rows) - keep :], UNKNOWN

    def known(self, numbers: Int) -> NDArray[np.bool_]:
        """Which of these records' rows are here."""
        return (numbers >= self.oldest) & (numbers < self.records)

    def rows(self, numbers: Int) -> Float:
        """Rows of known records."""
        return self._rows[numbers % len(self._rows)]

    def gate_p(self, numbers: Int) -> Float:
        """The gate's p-values of known records."""
        return self._gate_p[numbers % len(self._gate_p)]

    def verdict(self, numbers: Int) -> NDArray[np.int8]:
        """What feedback said of known records."""
        return self._verdict[numbers % len(self._verdict)]

    def learned(self, numbers: Int) -> NDArray[np.bool_]:
        """Whether known records were offered to the context."""
        return self._learned[numbers % len(self._learned)]

    def judge(self, numbers: Int, verdict: NDArray[np.int8]) -> None:
        """Note verdicts (n,) on known records."""
        self._verdict[numbers % len(self._verdict)] = verdict

    def learn(self, numbers: Int) -> None:
        """Note that known records were offered to the context."""
        self._learned[numbers % len(self._learned)] = True

    def find(self, values: Float, columns: Int) -> Int:
        """Numbers of the known records whose rows have exactly these values (k,) in these columns; NaN equals NaN."""
        numbers = np.arange(self.oldest, self.records)
        rows = self.rows(numbers)[:, columns]
        same: NDArray[np.bool_] = ((rows == values) | (np.isnan(rows) & np.isnan(values))).all(1)
        return numbers[same]

    def window(self, size: int, before: int) -> Float:
        """Scores of the last `size` records before the one of number `before`, less outliers by feedback; ascending."""
        numbers = np.arange(max(0, before - size), before)
        scores = self._logit[numbers % len(self._logit)]
        return np.sort(scores[~np.isnan(scores) & (self.verdict(numbers) != OUTLIER)])

    def rescore(self, numbers: Int, logit: Float) -> None:
        """Replace the scores of these records, where they are still kept."""
        kept = numbers >= self.records - len(self._logit)
        self._logit[numbers[kept] % len(self._logit)] = logit[kept]

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The state, as arrays that `restore` takes back."""
        return {
            "records": np.array(self.records),
            "rows": self._rows.copy(),
            "logit": self._logit.copy(),
            "gate_p": self._gate_p.copy(),
            "verdict": self._verdict.copy(),
            "learned": self._learned.copy(),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become what `snapshot` saw."""
        self.records = int(state["records"])
        self._rows, self._logit, self._gate_p = (state[name].copy() for name in ("rows", "logit", "gate_p"))
        self._verdict, self._learned = state["verdict"].copy(), state["learned"].copy()
