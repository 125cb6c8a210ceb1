"""An axis of times, cut into bins of equal width."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


@dataclass(frozen=True)
class Axis:
    """Bins of equal width that hold all times from `first` to `last`; none if last < first.

    They are at most `size`, and half as many at least if there are as many different times. The width is a power of two
    and a bin begins at a multiple of it, so that replays of nearly the same range have the same bins.

    >>> axis = Axis(100, 130, size=4)
    >>> axis.width, axis.starts.tolist(), axis.places(np.array([100, 115, 130])).tolist()
    (16, [96, 112, 128], [0, 1, 2])
    """

    first: int
    last: int
    size: int

    @property
    def width(self) -> int:
        """Of a bin, in units of the times."""
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
        """The bin (n,) of each time (n,)."""
        return np.asarray(times // self.width - self.first // self.width, dtype=np.int64)
