"""Numbers that mean "missing", such as -9999: those that a user names, and candidates for them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError
from fomo_stream.model.bulk import GAP, Bulk
from fomo_stream.records.category_codes import category_code
from fomo_stream.wording import exact

Float = NDArray[np.float64]
Marks = Mapping[Hashable, tuple[float, ...]]  # by the feature that has them
ALL_FEATURES = "*"  # all features that are numbers
MIN_REPEATS = 3  # times that a far value occurs, to be a candidate
USUAL_MARK_DISTANCE = 5.0  # from the other values to a usual mark, in ranges of these; to other marks GAP
MAX_COUNTED_VALUES, MAX_NOTED_MARKS = 1000, 20  # far values; marks in a note
INTEGER_LIMITS = {2**15, 2**15 - 1, 2**16 - 1, 2**31, 2**31 - 1, 2**32 - 1}  # of integers


def parse_marks(by_feature: Any) -> dict[Hashable, tuple[float, ...]]:
    """Return the marks of missing values that a user names: one number or several by feature, or by ALL_FEATURES.

    Raises ConfigError for anything else.

    >>> parse_marks({"temp": -9999, "*": [65535, -1]})
    {'temp': (-9999.0,), '*': (65535.0, -1.0)}
    """
    if not isinstance(by_feature, Mapping):
        raise ConfigError(
            f"missing_values gives numbers by feature, such as {{'temp': -9999, '*': 65535}}, not {by_feature!r}"
        )
    marks_by_name = {}
    for name, marks in by_feature.items():
        values = tuple(marks) if isinstance(marks, Iterable) and not isinstance(marks, str) else (marks,)
        if wrong := [value for value in values if not isinstance(value, Real) or isinstance(value, bool)]:
            raise ConfigError(f"missing_values of {name!r} are numbers, not {wrong[0]!r}")
        marks_by_name[name] = tuple(map(float, values))
    return marks_by_name


def marks_of(name: Hashable, marks: Marks, is_category: bool = False) -> set[float]:
    """Return the values of a feature that mean "missing", also rounded to 32 bits; of a category, its codes."""
    own = marks.get(name, ())
    if is_category:
        return set(map(category_code, own))
    with np.errstate(over="ignore"):
        values = np.array([*own, *marks.get(ALL_FEATURES, ())])
        return {*values.tolist(), *values.astype(np.float32).tolist()}


def table_of_marks(names: Sequence[Hashable], marks: Marks, codes: Collection[int] = ()) -> Float:
    """Return the values that mean "missing", (k, d), each column filled with NaN. codes: columns of categories."""
    marked = [marks_of(name, marks, i in codes) for i, name in enumerate(names)] if marks else []
    table = np.full((max(map(len, marked), default=0), len(names)), np.nan)
    for column, values in zip(table.T, marked, strict=False):
        column[: len(values)] = sorted(values)
    return table


def without_marks(rows: Float, table: Float) -> Float:
    """Return rows (n, d) with NaN for the values that mean "missing". table: see `table_of_marks`."""
    return np.where((rows == table[:, None, :]).any(axis=0), np.nan, rows) if len(table) else rows


def is_usual_mark(value: float) -> bool:
    """Return whether many devices write this number for a missing value: -9999, 999.9, 65535, 1e20."""
    digits = exact(abs(value)).replace(".", "")
    return (len(digits) >= 3 and set(digits) == {"9"}) or abs(value) in INTEGER_LIMITS or abs(value) >= 1e20


def missing_hint(value: float, median: float, low: float, high: float) -> str:
    """Return a hint about a value that is far from the usual ones, and may mean "missing"; else empty."""
    # Inside of the range, the value itself has widened it.
    spread = 2 * min(high - median, median - low) if low <= value <= high else high - low
    is_far = abs(value - median) > USUAL_MARK_DISTANCE * spread
    return f"; if {exact(value)} means missing, name it in missing-values" if is_far and is_usual_mark(value) else ""


class MarkCandidates:
    """Count values of records that may mean "missing": one exact value, far from all others, often.

    names: of the features (d,); first: rows (n, d) by which values are far; codes: columns of categories.
    """

    def __init__(self, names: Sequence[str], first: Float, codes: Collection[int] = ()) -> None:
        self._names, self._n = names, 0
        self._noted: dict[tuple[int, float], int] = {}
        # Each value counts once, so that a mark in a third of the records is also far.
        columns = [np.unique(column[~np.isnan(column)]) for column in first.T]
        self._bulk = Bulk.of(columns, USUAL_MARK_DISTANCE).without(tuple(codes))
        self._counts: Counter[tuple[int, float]] = Counter()
        self.follow(first)

    def follow(self, rows: Float) -> None:
        """Count the far values of the next records, rows (n, d)."""
        self._n += len(rows)
        places, columns = np.nonzero(self._bulk.far(rows))
        for place in zip(columns.tolist(), rows[places, columns].tolist(), strict=True):
            if place in self._counts or len(self._counts) < MAX_COUNTED_VALUES:
                self._counts[place] += 1

    def candidates(self) -> dict[tuple[int, float], int]:
        """Return how often each candidate occurs, by column and value."""
        counts, far = {}, Counter[tuple[int, bool]]()  # far: by column and side
        for (column, value), n in self._counts.items():
            far[column, value > self._bulk.high[column]] += n
        for (column, value), n in sorted(self._counts.items()):
            low, high = float(self._bulk.low[column]), float(self._bulk.high[column])  # whose differences may overflow
            is_far = is_usual_mark(value) or max(low - value, value - high) > GAP * (high - low)
            if value and is_far and MIN_REPEATS <= n < self._n / 2 and 2 * n > far[column, value > high]:
                counts[column, value] = n
        return counts

    def notes(self, prefix: str = "") -> Iterator[str]:
        """Yield one sentence about candidates whose count changed since the last call. prefix: of their number."""
        earlier, self._noted = self._noted, self.candidates()
        new = [(*place, n) for place, n in self._noted.items() if earlier.get(place) != n][:MAX_NOTED_MARKS]
        if new:
            listed = "; ".join(
                f"{self._names[i][:60]} is {exact(value)} in {n:,} of {prefix}{self._n:,} records, far from all others "
                f"({self._bulk.low[i]:.4g} to {self._bulk.high[i]:.4g})"
                for i, value, n in new
            )
            pairs = [f"{self._names[i]}={exact(value)}" for i, value, _ in new]
            flag = shlex.quote(",".join(f'"{pair}"' if "," in pair else pair for pair in pairs))
            yield f"numbers that may mean missing: {listed}; if they do, use --missing-values {flag}"
