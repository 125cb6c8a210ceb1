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
    """The last `size` scores, admitted or not: what new scores are compared with.

    Every record's score belongs in, outliers too: a window of admitted rows alone has its tail cut off by the gate.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a score window holds at least 1 score, not {size}")
        self._scores: deque[float] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._scores)

    def update(self, logits: Float) -> None:
        """Take scores (n,) in order."""
        self._scores.extend(logits.tolist())

    def ordered(self) -> Float:
        """The scores, ascending, as `p_values` takes them."""
        return np.sort(np.fromiter(self._scores, dtype=np.float64, count=len(self._scores)))

    def snapshot(self) -> Float:
        """The scores, oldest first."""
        return np.fromiter(self._scores, dtype=np.float64, count=len(self._scores))

    def restore(self, scores: Float) -> None:
        """Become what `snapshot` saw."""
        self._scores.clear()
        self._scores.extend(scores.tolist())
