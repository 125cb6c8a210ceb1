"""The time that micro-batches took."""

from __future__ import annotations

import numpy as np

from fomo_stream.replaying.tally.spec import Arrays, Float, Int

_EDGES = np.geomspace(1e-6, 1e3, 721)  # seconds; steps of 3 %


class Batches:
    """Counts of seconds between two edges, and the largest."""

    def __init__(self) -> None:
        self.counts: Int = np.zeros(len(_EDGES) + 1, np.int64)
        self.largest = 0.0

    def add(self, seconds: tuple[float, ...]) -> None:
        if seconds:
            np.add.at(self.counts, np.searchsorted(_EDGES, seconds), 1)
            self.largest = max(self.largest, *seconds)

    def merge(self, other: Batches) -> None:
        self.counts = self.counts + other.counts
        self.largest = max(self.largest, other.largest)

    def milliseconds(self) -> dict[str, float | None]:
        """Quantiles, within 3 %, and the largest."""
        until: Float = np.cumsum(self.counts) / max(1, self.counts.sum())
        if not self.counts.any():
            return {"p50": None, "p90": None, "p99": None, "max": None}
        upper = np.append(_EDGES, np.inf)
        values = {f"p{q}": float(min(upper[np.argmax(until >= q / 100)], self.largest)) for q in (50, 90, 99)}
        return {name: 1000 * value for name, value in {**values, "max": self.largest}.items()}

    def arrays(self) -> Arrays:
        return {"counts": self.counts, "largest": np.array(self.largest)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Batches:
        result = cls()
        result.counts, result.largest = arrays["counts"].copy(), float(arrays["largest"])
        return result
