"""The features that have values, record after record: fields that go away, become text or come back, and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.limits import MAX_FEATURES
from fomo_stream.records.inference import COUNTER_REASON, NO_VALUE, RARE_REASON, TEXT_REASONS, leaves_of
from fomo_stream.records.missing_values import Marks, marks_of

MIN_LOST_VALUES = 100.0  # expected values in a row; of a feature that half of the records have: 200 records
MIN_EXPECTED_SHARE = 0.05  # share of records with a value, expected of a feature that has had no value yet
SHARE_RECORDS = 10_000  # records over which that share is computed
MIN_NEW_FIELD_RECORDS = 100  # records that have a new field when it is reported
MAX_KNOWN_NAMES = 10 * MAX_FEATURES  # names
MIN_NOTED_RECORDS = 20  # records with numbers in an unused field when it is reported
NONE = np.zeros(0, np.intp)
MAX_FALL_SHARE = 0.2  # falling steps: a field with a larger share is not a counter


class Presence:
    """Follow the records of an instance, in bounded memory, with the work of one record per micro-batch."""

    def __init__(self) -> None:
        zeros = np.zeros(1)  # (n_features,) from the first records on
        self._values, self._records, self._lacking = zeros, zeros, zeros  # lacking: records since the last value
        self._is_whole = False  # whether the last records had values of all features
        self.gone: NDArray[np.bool_] = np.zeros(1, bool)  # (n_features,)
        self._known: set[str] = set()
        self._counts: Counter[str] = Counter()

    def follow(self, rows: NDArray[np.float64], n_empty: int) -> NDArray[np.intp]:
        """Return the features that have lost their values, or have some again; see `gone`.

        rows: (n, n_features) of the next records, NaN = missing; n_empty: how many more have no feature at all.
        """
        is_missing, n = np.isnan(rows), len(rows) + n_empty
        if self._is_whole and not n_empty and not is_missing.any() and self._records[0] + n <= SHARE_RECORDS:
            self._records += n  # all else would stay as it is
            self._values += n
            return NONE
        values = np.count_nonzero(~is_missing, axis=0)
        gap = np.where(self.gone, 0.0, self._lacking)  # the share does not count the records after a loss was reported
        self._records = np.where(values > 0, self._records + gap + n, self._records)
        self._lacking = np.where(values > 0, 0.0, self._lacking + n)
        fade = np.where(self._records > SHARE_RECORDS, 0.5, 1.0)
        self._records, self._values = fade * self._records, fade * (self._values + values)
        share = np.where(self._values > 0, self._values / np.maximum(self._records, 1.0), MIN_EXPECTED_SHARE)
        before, self.gone = self.gone, self._lacking * share >= MIN_LOST_VALUES
        self._is_whole = not self._lacking.any() and np.ptp(self._records) == 0
        return np.flatnonzero(before != self.gone)

    def learn(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Note the fields of these records as not new."""
        paths = (path for record in records for path, _ in leaves_of(record))
        self._known |= set(islice(paths, MAX_KNOWN_NAMES * 10))

    def new_fields(self, record: Mapping[str, Any], n: int) -> list[str]:
        """Return fields with numbers that records have for some time, but those of `learn` had not, each once.

        record: one of the next n.
        """
        for path, value in islice(leaves_of(record), MAX_FEATURES):
            if type(value) in (int, float) and path not in self._known:
                self._counts[path] += n
        has_room = len(self._known) < MAX_KNOWN_NAMES
        new_paths = [path for path, n in self._counts.items() if has_room and n >= MIN_NEW_FIELD_RECORDS]
        self._known.update(new_paths)
        for path in new_paths:
            del self._counts[path]
        if len(self._counts) > MAX_FEATURES:
            self._counts.clear()
        return new_paths


class UnusedFields:
    """Follow the fields of a file that are not features, but could be now.

    features; left_out: the other fields of the first records, with the reason of each; marks: as in a `Schema`.
    """

    def __init__(self, features: Iterable[str], left_out: Mapping[str, str], marks: Marks | None = None) -> None:
        self._marks = marks or {}
        late = (NO_VALUE, *TEXT_REASONS)
        never = (path for path, why in left_out.items() if why not in late and RARE_REASON not in why)
        self._quiet = {*features, *never}
        self._late: dict[str, list[int]] = {}  # by field: the first line with a number, and how many there are
        # By field that counted at first: its last value, its steps, its falls, the line of the first fall.
        self._counters: dict[str, list[float]] = {
            path: [np.nan, 0, 0, 0] for path, why in left_out.items() if why == COUNTER_REASON
        }

    def follow(self, records: Iterable[tuple[int, Mapping[str, Any]]], are_first: bool) -> None:
        """Follow records with the numbers of their lines. are_first: the features were chosen by these records."""
        for line, record in records:
            for name in () if are_first else record.keys() - self._quiet:
                for path, value in leaves_of({name: record[name]}):
                    is_number = type(value) in (int, float) and value == value
                    is_number &= not (self._marks and is_number and value in marks_of(path, self._marks))
                    if is_number and path not in self._quiet and len(self._late) < MAX_KNOWN_NAMES:
                        self._late.setdefault(path, [line, 0])[1] += 1
            for path, counter in self._counters.items():
                value = record.get(path)
                if isinstance(value, (int, float)):
                    if value < counter[0] and not are_first:
                        counter[2:] = counter[2] + 1, counter[3] or line
                    counter[:2] = value, counter[1] + (not are_first)

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each such field."""
        for path, (line, n) in self._late.items():
            if n >= MIN_NOTED_RECORDS:
                yield (
                    f"{path} has numbers from line {line} on ({n:,} of them), but is not used, as the first records "
                    "had none; name the features with --features"
                )
        for path, (_, steps, falls, first) in self._counters.items():
            if falls >= MIN_NOTED_RECORDS and MAX_FALL_SHARE * steps < falls < (1 - MAX_FALL_SHARE) * steps:
                yield (
                    f"{path} no longer counts from line {first:.0f} on, but is not used, as the first records looked "
                    "like a counter; name the features with --features"
                )
