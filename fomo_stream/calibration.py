"""From scores to p-values to alerts (split conformal prediction)."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def p_values(logits: Float, reference: Float) -> Float:
    """Share of reference scores at least as high, counting the new one: (1 + #{r >= s}) / (n + 1).

    logits: (n,), any scale; reference: (m,), ascending, scores of earlier records, each taken before it was learned.
    Where new records resemble the reference, P(p <= a) <= a. With an empty reference everything is 1.

    >>> p_values(np.array([0.0, 5.0, 9.0]), np.array([1.0, 2.0, 5.0]))
    array([1.  , 0.5 , 0.25])
    """
    at_least = len(reference) - np.searchsorted(reference, logits, side="left")
    return np.asarray((1.0 + at_least) / (len(reference) + 1.0), dtype=np.float64)


def is_calibrated(n_reference: int, alert_rate: float) -> bool:
    """Whether a p-value can be as small as alert_rate at all.

    >>> is_calibrated(98, 0.01), is_calibrated(99, 0.01)
    (False, True)
    """
    return alert_rate * (n_reference + 1) >= 1.0 - 1e-9


class ScoreWindow:
    """The last `size` scores, admitted or not: what new scores are compared with; and the rows of the last `rows`.

    Every record's score belongs in, outliers too: a window of admitted rows alone has its tail cut off by the gate.
    The rows are kept because a score means little under another context: a new generation scores them afresh.
    """

    def __init__(self, size: int, rows: int) -> None:
        if not 1 <= rows <= size:
            raise ValueError(f"a score window of {size} scores holds 1 to {size} rows, not {rows}")
        self._scores: deque[float] = deque(maxlen=size)
        self._rows: deque[Float] = deque(maxlen=rows)

    def __len__(self) -> int:
        return len(self._scores)

    def update(self, logits: Float, rows: Float) -> None:
        """Take scores (n,) and the rows (n, d) they are of, in order."""
        self._scores.extend(logits.tolist())
        self._rows.extend(rows.copy())

    @property
    def recent(self) -> Float:
        """The rows kept (m, d), oldest first; d = 0 where there are none."""
        return np.array(self._rows) if self._rows else np.zeros((0, 0))

    @property
    def older(self) -> Float:
        """The scores whose rows are not kept any more, oldest first."""
        return self._all()[: len(self._scores) - len(self._rows)]

    def _all(self) -> Float:
        return np.fromiter(self._scores, dtype=np.float64, count=len(self._scores))

    def snapshot(self) -> dict[str, Float]:
        """The state, as arrays that `restore` takes back."""
        return {"scores": self._all(), "rows": self.recent}

    def restore(self, state: dict[str, Float]) -> None:
        """Become what `snapshot` saw."""
        self._scores.clear()
        self._rows.clear()
        self._scores.extend(state["scores"].tolist())
        self._rows.extend(state["rows"].copy())
