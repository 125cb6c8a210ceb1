"""Which features have values, record after record: fields that go away, become text or come back, and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.limits import MAX_FEATURES
from fomo_stream.records.inference import leaves_of

GONE = 100.0  # values in a row that were to be expected; of a feature that half of the records have: 200 records
LEAST = 0.05  # share of records with a value that is expected of a feature that has had none yet
MEMORY = 10_000  # records over which that share is taken
NEW = 100  # records that have a new field when it is told
MOST_KNOWN = 10 * MAX_FEATURES  # names


class Presence:
    """Follows the records of an instance. Its memory is bounded, and its work is that of one record a micro-batch."""

    def __init__(self) -> None:
        one = np.zeros(1)  # (n_features,) from the first records on
        self._values, self._records, self._lacking = one, one, one  # lacking: records since the last value
        self.gone: NDArray[np.bool_] = np.zeros(1, bool)  # (n_features,)
        self._known: set[str] = set()
        self._seen: Counter[str] = Counter()

    def follow(self, rows: NDArray[np.float64], n_empty: int) -> NDArray[np.intp]:
        """The features that have no values any more, or have some again, as `gone` says now.

        rows: (n, n_features) of the next records, NaN = missing; n_empty: how many more have no feature at all.
        """
        values, n = np.count_nonzero(~np.isnan(rows), axis=0), len(rows) + n_empty
        gap = np.where(self.gone, 0.0, self._lacking)  # one that was told says nothing of the share
        self._records = np.where(values > 0, self._records + gap + n, self._records)
        self._lacking = np.where(values > 0, 0.0, self._lacking + n)
        fade = np.where(self._records > MEMORY, 0.5, 1.0)
        self._records, self._values = fade * self._records, fade * (self._values + values)
        share = np.where(self._values > 0, self._values / np.maximum(self._records, 1.0), LEAST)
        before, self.gone = self.gone, self._lacking * share >= GONE
        return np.flatnonzero(before != self.gone)

    def learn(self, records: Iterable[Mapping[str, Any]]) -> None:
        """The fields of these records are not new."""
        paths = (path for record in records for path, _ in leaves_of(record))
        self._known |= set(islice(paths, MOST_KNOWN * 10))

    def new_fields(self, record: Mapping[str, Any], n: int) -> list[str]:
        """Fields with numbers that records have for some time, but those of `learn` had not; each is told once.

        record: one of the next n.
        """
        for path, value in islice(leaves_of(record), MAX_FEATURES):
            if type(value) in (int, float) and path not in self._known:
                self._seen[path] += n
        found = [path for path, count in self._seen.items() if count >= NEW] if len(self._known) < MOST_KNOWN else []
        self._known.update(found)
        for path in found:
            del self._seen[path]
        if len(self._seen) > MAX_FEATURES:
            self._seen.clear()
        return found
