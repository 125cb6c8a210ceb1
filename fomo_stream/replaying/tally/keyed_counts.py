"""Counts by value, exact for few distinct values and rounded for many, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Keys = NDArray[np.uint64]

_SIGN = np.uint64(1 << 63)
_LARGEST = 1e300  # larger values count as this one


def keys_of(values: Float) -> Keys:
    """Integers in the same order as the values (n,), which are not NaN.

    The bits of floats of one sign are in the order of the floats.
    """
    bits = (np.clip(values, -_LARGEST, _LARGEST) + 0.0).view(np.uint64)  # + 0.0: -0 is 0
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def values_of(keys: Keys) -> Float:
    """The values of keys."""
    return np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64)


class KeyedCounts:
    """Counts of values, by classes, with at most `limit` distinct values.

    Beyond that, the last bits of all values are cut off, as few as suffice. So the rounding is fine where values are
    dense, and it depends on the values alone, not on their order: counts can be merged in any order.

    keys: (k,) ascending, the keys of the values without the last `shift` bits; counts: (k, *shape), by class.
    """

    def __init__(self, limit: int, shape: tuple[int, ...]) -> None:
        self.limit, self.shape = limit, shape
        self.shift = 0
        self.keys: Keys = np.empty(0, np.uint64)
        self.counts: Int = np.zeros((0, *shape), np.int64)

    def add(self, values: Float, *classes: Int) -> None:
        """Count values (n,), none of them NaN, each in its class: one array (n,) for each axis of the shape."""
        if not len(values):
            return
        keys = keys_of(values)
        self._hold(keys)
        place = np.searchsorted(self.keys, keys >> np.uint64(self.shift))
        flat = np.ravel_multi_index((place, *classes), self.counts.shape)
        np.add.at(self.counts.reshape(-1), flat, 1)

    def merge(self, other: KeyedCounts) -> None:
        """Add the counts of another one of the same shape."""
        if not len(other.keys):
            return
        self._cut(max(0, other.shift - self.shift))
        self._hold(other.keys << np.uint64(other.shift))
        keys = other.keys >> np.uint64(self.shift - other.shift)
        first = np.flatnonzero(np.diff(keys, prepend=~keys[0]))
        self.counts[np.searchsorted(self.keys, keys[first])] += np.add.reduceat(other.counts, first)

    def cells(self) -> tuple[Float, Float]:
        """The smallest and the largest value (k,) that each key stands for."""
        shift = np.uint64(self.shift)
        low = self.keys << shift
        high = low | ((np.uint64(1) << shift) - np.uint64(1))
        first, last = keys_of(np.array([-_LARGEST, _LARGEST]))
        return values_of(np.maximum(low, first)), values_of(np.minimum(high, last))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The counts, to be stored."""
        return {"shift": np.array(self.shift), "keys": self.keys, "counts": self.counts}

    @classmethod
    def from_arrays(cls, limit: int, arrays: dict[str, NDArray[Any]]) -> KeyedCounts:
        """As `arrays` gave them."""
        result = cls(limit, arrays["counts"].shape[1:])
        result.shift, result.keys, result.counts = int(arrays["shift"]), arrays["keys"].copy(), arrays["counts"].copy()
        return result

    def _hold(self, keys: Keys) -> None:
        """Make sure that keys, with all their bits, have counts."""
        short = keys >> np.uint64(self.shift)
        if len(self.keys):
            near = self.keys[np.minimum(np.searchsorted(self.keys, short), len(self.keys) - 1)]
            short = short[near != short]
        if not len(short):
            return
        all_keys = np.union1d(self.keys, short)
        bits = _bits_too_many(all_keys, self.limit)
        if bits:
            self._cut(bits)
            all_keys = np.unique(all_keys >> np.uint64(bits))
        counts = np.zeros((len(all_keys), *self.shape), np.int64)
        counts[np.searchsorted(all_keys, self.keys)] = self.counts
        self.keys, self.counts = all_keys, counts

    def _cut(self, bits: int) -> None:
        """Cut off bits of all keys."""
        self.shift += bits
        if not bits or not len(self.keys):
            return
        keys = self.keys >> np.uint64(bits)
        first = np.flatnonzero(np.diff(keys, prepend=~keys[0]))
        self.keys, self.counts = keys[first], np.add.reduceat(self.counts, first)


def _bits_too_many(keys: Keys, limit: int) -> int:
    """The fewest last bits to cut off of ascending keys so that at most `limit` are distinct."""
    if len(keys) <= limit:
        return 0
    differing = keys[1:] ^ keys[:-1]
    few, enough = 0, 64  # bits that do not suffice; bits that do
    while enough - few > 1:
        bits = (few + enough) // 2
        if np.count_nonzero(differing >> np.uint64(bits)) < limit:
            enough = bits
        else:
            few = bits
    return enough
