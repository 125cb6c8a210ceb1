"""Regimes: lasting shifts of a stream, announced when the recent records are normal among themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bool = NDArray[np.bool_]

SUSTAINED = 0.9  # share of the steps of a lasting shift that look shifted


class Regimes:
    """Counts regimes: a new one is announced when recent records call normal what the history calls odd, for long.

    A step looks shifted when most of its records are odd in the history and most are normal among recent records. A
    step that does not counts as much as nine that do, so a share of SUSTAINED of the steps has to look shifted. The
    next shift can be announced after the history has called the records normal again.
    """

    def __init__(self, adapt_after: int) -> None:
        self.number = 0  # counts the regimes; 0 while warming up
        self._adapt_after = adapt_after
        self._shifted = 0  # records that look shifted, less the others by their weight
        self._is_announced = False  # whether this shift was

    @property
    def drift(self) -> float:
        """How much of what announces a new regime was seen, from 0 to 1."""
        return min(1.0, self._shifted / self._adapt_after) if self._adapt_after else 0.0

    def begin(self) -> None:
        """The first regime begins with the next record."""
        self.number = 1

    def watch(self, odd: Bool, normal: Bool) -> None:
        """Learn of the records (n,) of one more step, and perhaps announce a regime.

        odd: which of them the history calls odd; normal: which of them recent records call normal.
        """
        n = len(odd)
        if 2 * int(odd.sum()) > n and 2 * int(normal.sum()) > n:
            self._shifted = min(self._shifted + n, self._adapt_after)
        else:
            self._shifted = max(0, self._shifted - round(n * SUSTAINED / (1 - SUSTAINED)))
        is_lasting = 0 < self._adapt_after <= self._shifted
        self.number += is_lasting and not self._is_announced
        self._is_announced = is_lasting or (self._is_announced and self._shifted > 0)

    def counters(self) -> dict[str, Any]:
        """The state, as plain numbers."""
        return {"regime": self.number, "shifted": self._shifted, "announced": self._is_announced}

    def recover(self, counters: dict[str, Any]) -> None:
        """Take the state from the counters."""
        self.number, self._shifted = counters["regime"], counters["shifted"]
        self._is_announced = counters["announced"]
