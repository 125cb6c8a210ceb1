"""Past values: each row together with the rows before it of the same series."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.detector.fingerprint import check_same
from fomo_stream.detector.widening import with_missing_features
from fomo_stream.errors import DamagedStateError, SchemaError, StateError
from fomo_stream.limits import MAX_FEATURES, MAX_LAGS

Float = NDArray[np.float64]
Key = bytes | str | None  # None: the series of all that has no key

DIGEST_BYTES = 16
SERIES = "series/"  # before a digest: the key of an entry of the log
ORDER = struct.Struct("<q")  # at the start of its value: places the series' last use among the others'


class PastValues:
    """Appends to every row the `lags` rows before it of its series (shingling, as in Random Cut Forest).

    A series is known by its key. The `max_keys` series that were used last are kept; a series that comes back later
    starts again without a past. The past values of a row depend only on the rows before it, not on how rows are split
    over calls. With 0 lags rows do not change and nothing is kept.

    Raises SchemaError when a row with its past values has more than MAX_FEATURES columns.

    >>> past = PastValues(lags=2, n_features=1)
    >>> past.rows(np.array([[1.0], [2.0], [3.0], [40.0]]), ["a", "a", "a", "b"])
    array([[ 1., nan, nan],
           [ 2.,  1., nan],
           [ 3.,  2.,  1.],
           [40., nan, nan]])
    """

    def __init__(self, lags: int, n_features: int, max_keys: int = 10_000) -> None:
        if not 0 <= lags <= MAX_LAGS:
            raise ValueError(f"lags must be between 0 and {MAX_LAGS}, not {lags}")
        self.lags = lags
        self.n_features = n_features
        self.max_keys = max_keys
        self._series: OrderedDict[bytes, _Series] = OrderedDict()  # by digest of the key, the last used one last
        self._uses = 0  # rows so far
        self._begin_log()
        if lags and self.width > MAX_FEATURES:
            raise SchemaError(
                f"{n_features} features with {lags} earlier values of each make {self.width} columns, at most "
                f"{MAX_FEATURES} are taken; name fewer with --features, or lower --lags"
            )

    @property
    def width(self) -> int:
        """Columns of a row with its past values."""
        return self.n_features * (self.lags + 1)

    def columns(self, features: Iterable[int]) -> tuple[int, ...]:
        """The columns of these features and their past values in a row."""
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
        """The next rows (n, d) with their past values: (n, d * (lags + 1)), newest first, NaN where there is none yet.

        keys: (n,) the series of each row; None: all are of one.
        """
        if not self.lags:
            return values
        rows = np.empty((len(values), self.lags + 1, self.n_features))
        start = 0
        for key, run in groupby(keys if keys is not None else [None] * len(values)):
            stop = start + sum(1 for _ in run)
            series = np.concatenate([self._take(key), values[start:stop]])
            newest = np.arange(self.lags, len(series))
            rows[start:stop] = series[newest[:, None] - np.arange(self.lags + 1)]
            self._put(key, series[len(series) - self.lags :].copy(), stop - start)
            start = stop
        return rows.reshape(len(values), self.width)

    def peek(self, values: Float, keys: Sequence[Key] | None = None) -> Float:
        """The same rows as from `rows`, but nothing changes."""
        return self.copy().rows(values, keys)

    def copy(self) -> PastValues:
        """Independent past values, the same now."""
        twin = copy(self)
        twin._series = self._series.copy()
        twin._begin_log()
        return twin

    def widen(self, n_features: int) -> None:
        """From now on rows have further features at their end; so far they are missing."""
        more = n_features - self.n_features
        self._series = OrderedDict(
            (digest, _Series(past.used, with_missing_features(past.rows, more)))
            for digest, past in self._series.items()
        )
        self._changed.update(self._series)
        self.n_features = n_features

    def _take(self, key: Key) -> Float:
        past = self._series.pop(_digest(key), None)
        return np.full((self.lags, self.n_features), np.nan) if past is None else past.rows

    def _put(self, key: Key, rows: Float, n: int) -> None:
        digest = _digest(key)
        self._uses += n
        self._series[digest] = _Series(self._uses, rows)
        self._changed.add(digest)
        self._forget()

    def _forget(self) -> None:
        """Keep the `max_keys` series that were used last."""
        while len(self._series) > self.max_keys:
            digest, _ = self._series.popitem(last=False)
            # only entries that the log has need to be deleted there; so memory is bounded, however many come and go
            (self._changed.add if digest in self._logged else self._changed.discard)(digest)

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries of the series that were used or forgotten since the last call; at first of all."""
        entries = self._fingerprint_log.changes("fingerprint", json.dumps(self._shape).encode())
        for digest in self._changed:
            past = self._series.get(digest)
            entries[SERIES + digest.hex()] = None if past is None else ORDER.pack(past.used) + past.rows.tobytes()
            (self._logged.discard if past is None else self._logged.add)(digest)
        self._changed.clear()
        return entries

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries, in place of the present state.

        Raises StateError when they are of other lags or features, or damaged; the object must not be used then.
        """
        self._begin_log()
        check_same(json.loads(self._fingerprint_log.recover(entries, "fingerprint")), self._shape, self._shape)
        series = {}
        for key, value in entries.items():
            if key.startswith(SERIES):
                series[_digest_in(key)] = self._read(key, value)
        self._series = OrderedDict(sorted(series.items(), key=lambda item: item[1].used))
        self._uses = max((past.used for past in series.values()), default=0)
        self._changed.clear()
        self._logged.update(series)
        self._forget()

    @property
    def _shape(self) -> dict[str, int]:
        return {"lags": self.lags, "features": self.n_features}

    def _begin_log(self) -> None:
        """Start with an empty log."""
        self._fingerprint_log = Document()
        self._changed: set[bytes] = set(self._series)  # digests whose entries are out of date
        self._logged: set[bytes] = set()  # digests that have entries

    def _read(self, key: str, value: bytes) -> _Series:
        n = self.lags * self.n_features
        if len(value) != ORDER.size + 8 * n:
            raise StateError(f"the state does not fit: {key} has {len(value)} bytes, not {ORDER.size + 8 * n}")
        rows = np.frombuffer(value, np.float64, offset=ORDER.size).reshape(self.lags, self.n_features)
        return _Series(ORDER.unpack_from(value)[0], rows)


class _Series(NamedTuple):
    """The last rows of a series."""

    used: int  # the higher, the later
    rows: Float  # (lags, d), the last ones, oldest first; NaN: none yet


def _digest_in(key: str) -> bytes:
    try:
        digest = bytes.fromhex(key.removeprefix(SERIES))
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise DamagedStateError(f"the state is damaged: {key} is the key of no series")
    return digest


def _digest(key: Key) -> bytes:
    """16 bytes for a key of any length, so that memory is bounded."""
    if key is None:
        return bytes(DIGEST_BYTES)
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
