"""How many incidents the alerts of the detector itself make, and how many alerts each has."""

from __future__ import annotations

from typing import Any

import numpy as np

from fomo_stream.replaying.blocks import Block
from fomo_stream.replaying.tally.spec import Arrays, Int

MOST = 1000  # alerts of an incident that are counted exactly; for the median, longer ones count as this long


class IncidentSizes:
    """Counts of the incidents that have ended, by their number of alerts, and the sizes of those that are open.

    At most one incident is open for each series, so the size does not depend on the number of records.
    """

    def __init__(self) -> None:
        self.counts: Int = np.zeros(MOST + 1, np.int64)
        self.longest = 0
        self.open: Int = np.zeros(0, np.int64)  # (k,) number of alerts of each that is open now

    def add(self, block: Block) -> None:
        """Count the incidents of the next block of a partition."""
        self._count(np.array(block.ended_incidents, np.int64))
        self.open = np.array(block.open_incidents, np.int64)

    def merge(self, other: IncidentSizes) -> None:
        """Take the incidents of another partition."""
        self.counts = self.counts + other.counts
        self.longest = max(self.longest, other.longest)
        self.open = np.concatenate([self.open, other.open])

    def report(self) -> dict[str, Any]:
        """How many there are, also of those that are still open; None: there is no incident to tell it of."""
        every = IncidentSizes()
        every.merge(self)
        every._count(self.open)
        n = int(every.counts.sum())
        return {
            "count": n,
            "open": len(self.open),
            "median_records": int(np.argmax(2 * every.counts.cumsum() >= n)) if n else None,
            "most_records": every.longest if n else None,
        }

    def arrays(self) -> Arrays:
        """The counts, to be stored."""
        return {"counts": self.counts, "longest": np.array(self.longest), "open": self.open}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> IncidentSizes:
        """As `arrays` gave them."""
        result = cls()
        result.counts, result.longest, result.open = arrays["counts"].copy(), int(arrays["longest"]), arrays["open"]
        return result

    def _count(self, sizes: Int) -> None:
        np.add.at(self.counts, np.minimum(sizes, MOST), 1)
        self.longest = max([self.longest, *sizes.tolist()])
