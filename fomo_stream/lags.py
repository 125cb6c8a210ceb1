"""Temporal context: each row together with the rows before it of the same series (shingling)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import SchemaError, StateError

Float = NDArray[np.float64]
Key = bytes | str | None  # None: the series of all that has no key

MOST_LAGS = 100
MOST_COLUMNS = 1000  # of a row with its past
DIGEST_BYTES = 16


class Shingler:
    """Puts the `lags` previous rows of its series beside every row, as Random Cut Forest's shingles do.

    Series are told apart by key. The `max_keys` that were seen last are remembered: one that comes back later begins
    anew. What a row gets depends on the rows before it alone, not on how they come in batches. With 0 lags rows stay
    as they are and nothing is remembered.

    Raises SchemaError when a row with its past has more than 1,000 columns.

    >>> shingler = Shingler(lags=2, n_features=1)
    >>> shingler.rows(np.array([[1.0], [2.0], [3.0], [40.0]]), ["a", "a", "a", "b"])
    array([[ 1., nan, nan],
           [ 2.,  1., nan],
           [ 3.,  2.,  1.],
           [40., nan, nan]])
    """

    def __init__(self, lags: int, n_features: int, max_keys: int = 10_000) -> None:
        if not 0 <= lags <= MOST_LAGS:
            raise ValueError(f"lags must be between 0 and {MOST_LAGS}, not {lags}")
        self.lags = lags
        self.n_features = n_features
        self.max_keys = max_keys
        self._series: OrderedDict[bytes, Float] = OrderedDict()  # last rows (lags, d), oldest first; NaN: none yet
        if lags and self.width > MOST_COLUMNS:
            raise SchemaError(
                f"{n_features} features with {lags} earlier values of each make {self.width} columns, at most "
                f"{MOST_COLUMNS} are taken; name fewer with --features, or lower --lags"
            )

    @property
    def width(self) -> int:
        """Columns of a row with its past."""
        return self.n_features * (self.lags + 1)

    def columns(self, features: Iterable[int]) -> tuple[int, ...]:
        """Where these features, and their earlier values, stand in a row with its past."""
        wanted = tuple(features)
        return tuple(lag * self.n_features + feature for lag in range(self.lags + 1) for feature in wanted)

    def check(self, limit: int, model: str) -> None:
        """Raise SchemaError when `model`, which takes up to `limit` columns (0: any number), cannot take the rows."""
        if limit and self.width > limit:
            parts = f" ({self.n_features} and {self.lags} earlier values of each)" if self.lags else ""
            remedy = ", or lower --lags" if self.lags else ""
            raise SchemaError(
                f"model {model} takes up to {limit} features, the rows have {self.width}{parts}; "
                f"name the ones to use with --features{remedy}"
            )

    def rows(self, values: Float, keys: Sequence[Key] | None = None) -> Float:
        """The next rows (n, d) with their past: (n, d * (lags + 1)), newest first, NaN where there is none yet.

        keys: (n,) the series of each row; None: all are of one.
        """
        if not self.lags:
            return values
        shingles = np.empty((len(values), self.lags + 1, self.n_features))
        start = 0
        for key, run in groupby(keys if keys is not None else [None] * len(values)):
            stop = start + sum(1 for _ in run)
            history = np.concatenate([self._take(key), values[start:stop]])
            newest = np.arange(self.lags, len(history))
            shingles[start:stop] = history[newest[:, None] - np.arange(self.lags + 1)]
            self._put(key, history[len(history) - self.lags :].copy())
            start = stop
        return shingles.reshape(len(values), self.width)

    def peek(self, values: Float, keys: Sequence[Key] | None = None) -> Float:
        """What `rows` would return, without remembering the rows."""
        twin = copy(self)
        twin._series = self._series.copy()
        return twin.rows(values, keys)

    def widen(self, n_features: int) -> None:
        """From now on rows have further features at their end, which no row so far had."""
        more = n_features - self.n_features
        self._series = OrderedDict(
            (key, np.pad(rows, ((0, 0), (0, more)), constant_values=np.nan)) for key, rows in self._series.items()
        )
        self.n_features = n_features

    def _take(self, key: Key) -> Float:
        history = self._series.pop(_digest(key), None)
        return np.full((self.lags, self.n_features), np.nan) if history is None else history

    def _put(self, key: Key, history: Float) -> None:
        self._series[_digest(key)] = history
        if len(self._series) > self.max_keys:
            self._series.popitem(last=False)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The state, as arrays that `restore` takes back: series in the order in which they were last seen."""
        shape = (len(self._series), self.lags, self.n_features)
        return {
            "keys": np.frombuffer(b"".join(self._series), dtype=np.uint8).reshape(-1, DIGEST_BYTES),
            "histories": np.array(list(self._series.values())).reshape(shape),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become what `snapshot` saw. Raises StateError when that had other lags or features."""
        keys, histories = state["keys"], state["histories"]
        if histories.shape[1:] != (self.lags, self.n_features):
            raise StateError(
                f"the snapshot is of rows with {histories.shape[1]} lags and {histories.shape[2]} features, "
                f"not of {self.lags} and {self.n_features}"
            )
        self._series = OrderedDict((key.tobytes(), np.array(rows)) for key, rows in zip(keys, histories, strict=True))


def _digest(key: Key) -> bytes:
    """A key of any length in 16 bytes, so that memory is bounded."""
    if key is None:
        return bytes(DIGEST_BYTES)
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
