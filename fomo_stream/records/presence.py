"""Which features have values, record after record: fields that go away, become text or come back, and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.limits import MAX_FEATURES
from fomo_stream.records.inference import COUNTER, FEW, NO_VALUE, TEXTS, leaves_of
from fomo_stream.records.missing_values import Marks, marks_of

GONE = 100.0  # values in a row that were to be expected; of a feature that half of the records have: 200 records
LEAST = 0.05  # share of records with a value that is expected of a feature that has had none yet
MEMORY = 10_000  # records over which that share is taken
NEW = 100  # records that have a new field when it is told
MOST_KNOWN = 10 * MAX_FEATURES  # names
LEAST_TOLD = 20  # records with numbers in a field that is not used
FALLS = 0.2  # share of its steps by which a counter that is none falls


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


class Unused:
    """Follows the fields of a file that are no features, but have become what could be one.

    features; left_out: the other fields of the first records, with the reason of each; marks: as in a `Schema`.
    """

    def __init__(self, features: Iterable[str], left_out: Mapping[str, str], marks: Marks | None = None) -> None:
        self._marks = marks or {}
        late = (NO_VALUE, *TEXTS)
        self._quiet = {*features, *(path for path, why in left_out.items() if why not in late and FEW not in why)}
        self._late: dict[str, list[int]] = {}  # by field: the first line with a number, and how many there are
        # By field that counted at first: its last value, its steps, those against its direction, the line of the first.
        self._counters: dict[str, list[float]] = {
            path: [np.nan, 0, 0, 0] for path, why in left_out.items() if why == COUNTER
        }

    def follow(self, records: Iterable[tuple[int, Mapping[str, Any]]], are_first: bool) -> None:
        """Look at records with the numbers of their lines. are_first: whether features were chosen by them."""
        for line, record in records:
            for name in () if are_first else record.keys() - self._quiet:
                for path, value in leaves_of({name: record[name]}):
                    is_number = type(value) in (int, float) and value == value
                    is_number &= not (self._marks and is_number and value in marks_of(path, self._marks))
                    if is_number and path not in self._quiet and len(self._late) < MOST_KNOWN:
                        self._late.setdefault(path, [line, 0])[1] += 1
            for path, seen in self._counters.items():
                value = record.get(path)
                if isinstance(value, (int, float)):
                    if value < seen[0] and not are_first:
                        seen[2:] = seen[2] + 1, seen[3] or line
                    seen[:2] = value, seen[1] + (not are_first)

    def notes(self) -> Iterator[str]:
        """A sentence for each such field."""
        for path, (line, n) in self._late.items():
            if n >= LEAST_TOLD:
                yield (
                    f"{path} has numbers from line {line} on ({n:,} of them), but is not used, as the first records "
                    "had none; name the features with --features"
                )
        for path, (_, steps, falls, first) in self._counters.items():
            if falls >= LEAST_TOLD and FALLS * steps < falls < (1 - FALLS) * steps:
                yield (
                    f"{path} no longer counts from line {first:.0f} on, but is not used, as the first records looked "
                    "like a counter; name the features with --features"
                )
