"""An axis of times, cut into bins of equal width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


@dataclass(frozen=True)
class Axis:
    """At most `size` bins, two or more, that hold all times from `first` to `last`; nothing if last < first.

    The width is the smallest power of two that suffices, and a bin begins at a multiple of the width. So each bin of an
    axis lies in one bin of every axis that holds it: counts by bin can be added up, in any order.

    >>> axis = Axis(4).holding(100, 130)
    >>> axis.width, axis.starts().tolist(), axis.places(np.array([100, 115, 130])).tolist()
    (16, [96, 112, 128], [0, 1, 2])
    """

    size: int
    first: int = 0
    last: int = -1

    @cached_property
    def shift(self) -> int:
        """Log2 of the width."""
        shift = 0
        while (self.last >> shift) - (self.first >> shift) >= self.size:
            shift += 1
        return shift

    @cached_property
    def begin(self) -> int:
        """The number of the first bin, counted in widths from time 0."""
        return self.first >> self.shift

    @property
    def width(self) -> int:
        """Of a bin, in units of the times."""
        return 1 << self.shift

    @property
    def bins(self) -> int:
        """The number of bins from the first time to the last."""
        return max(0, (self.last >> self.shift) - self.begin + 1)

    def holding(self, first: int, last: int) -> Axis:
        """The axis that holds the times from first to last too."""
        if last < first or self.first <= first <= last <= self.last:
            return self
        if self.last < self.first:
            return Axis(self.size, first, last)
        return Axis(self.size, min(self.first, first), max(self.last, last))

    def joined(self, other: Axis) -> Axis:
        """The axis that holds the times of both."""
        return self.holding(other.first, other.last)

    def starts(self) -> Int:
        """The time (bins,) at which each bin begins."""
        return (np.arange(self.bins, dtype=np.int64) + self.begin) << self.shift

    def places(self, times: Int) -> Int:
        """The bin (n,) of each time (n,)."""
        return np.asarray((times >> self.shift) - self.begin, dtype=np.int64)

    def folded(
        self, array: NDArray[Any], into: Axis, axis: int = 0, by: np.ufunc = np.add, empty: float = 0
    ) -> NDArray[Any]:
        """Values by bin of this axis, `size` along `axis` of the array, as values by bin of an axis that holds it.

        Bins that become one are reduced by `by`; bins without values are `empty`, its neutral value.
        """
        if (self.shift, self.begin) == (into.shift, into.begin) or not self.bins:
            return array
        used = np.take(array, range(self.bins), axis=axis)
        places = into.places(self.starts())
        first = np.flatnonzero(np.diff(places, prepend=-1))
        result = np.full(array.shape, empty, array.dtype)
        np.moveaxis(result, axis, 0)[places[first]] = np.moveaxis(by.reduceat(used, first, axis=axis), axis, 0)
        return result
