"""Numbers that mean "missing", such as -9999: those that a user names, and those that look like it."""

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
EVERY = "*"  # all features that are numbers
OFTEN = 3  # times that a far value occurs if it could be a mark
NEAR = 5.0  # ranges of the other values that are between them and a usual mark; of other marks GAP
MOST_COUNTED, MOST_TOLD = 1000, 20  # far values; marks in a note
LIMITS = {2**15, 2**15 - 1, 2**16 - 1, 2**31, 2**31 - 1, 2**32 - 1}  # of integers


def missing_values(given: Any) -> dict[Hashable, tuple[float, ...]]:
    """What a user gives as marks of missing values: a number or several for each feature; EVERY: for all.

    Raises ConfigError for anything else.

    >>> missing_values({"temp": -9999, "*": [65535, -1]})
    {'temp': (-9999.0,), '*': (65535.0, -1.0)}
    """
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"missing_values gives numbers by feature, such as {{'temp': -9999, '*': 65535}}, not {given!r}"
        )
    found = {}
    for name, marks in given.items():
        several = tuple(marks) if isinstance(marks, Iterable) and not isinstance(marks, str) else (marks,)
        if wrong := [one for one in several if not isinstance(one, Real) or isinstance(one, bool)]:
            raise ConfigError(f"missing_values of {name!r} are numbers, not {wrong[0]!r}")
        found[name] = tuple(map(float, several))
    return found


def marks_of(name: Hashable, marks: Marks, is_category: bool = False) -> set[float]:
    """The values of a feature that mean "missing", also as 32 bits have them; of a category the codes of its own."""
    own = marks.get(name, ())
    if is_category:
        return set(map(category_code, own))
    with np.errstate(over="ignore"):
        found = np.array([*own, *marks.get(EVERY, ())])
        return {*found.tolist(), *found.astype(np.float32).tolist()}


def table_of_marks(names: Sequence[Hashable], marks: Marks, codes: Collection[int] = ()) -> Float:
    """(k, d): of each of these features the values that mean "missing"; NaN: no more. codes: columns of categories."""
    found = [marks_of(name, marks, at in codes) for at, name in enumerate(names)] if marks else []
    table = np.full((max(map(len, found), default=0), len(names)), np.nan)
    for column, values in zip(table.T, found, strict=False):
        column[: len(values)] = sorted(values)
    return table


def without_marks(rows: Float, table: Float) -> Float:
    """Rows (n, d) with NaN for the values that mean "missing". table: see `table_of_marks`."""
    return np.where((rows == table[:, None, :]).any(axis=0), np.nan, rows) if len(table) else rows


def is_usual(value: float) -> bool:
    """Whether many devices and programs write this number for a missing value: -9999, 999.9, 65535, 1e20."""
    digits = exact(abs(value)).replace(".", "")
    return (len(digits) >= 3 and set(digits) == {"9"}) or abs(value) in LIMITS or abs(value) >= 1e20


def hint(value: float, median: float, low: float, high: float) -> str:
    """What to say of a value that is far from what is usual, and may mean "missing"; else empty."""
    spread = 2 * min(high - median, median - low) if low <= value <= high else high - low  # it widens its range
    is_far = abs(value - median) > NEAR * spread
    return f"; if {exact(value)} means missing, name it in missing-values" if is_far and is_usual(value) else ""


class Suspects:
    """Counts values of records that look as if they meant "missing": one exact value, far from all others, often.

    names: of the features (d,); first: rows (n, d) by which values are far; codes: columns of categories.
    """

    def __init__(self, names: Sequence[str], first: Float, codes: Collection[int] = ()) -> None:
        self._names, self._n = names, 0
        self._told: dict[tuple[int, float], int] = {}
        # Each value once: so a mark in a third of the records is far, too.
        columns = [np.unique(column[~np.isnan(column)]) for column in first.T]
        self._bulk = Bulk.of(columns, NEAR).without(tuple(codes))
        self._counts: Counter[tuple[int, float]] = Counter()
        self.follow(first)

    def follow(self, rows: Float) -> None:
        """Count the far values of the next records, rows (n, d)."""
        self._n += len(rows)
        places, columns = np.nonzero(self._bulk.far(rows))
        for one in zip(columns.tolist(), rows[places, columns].tolist(), strict=True):
            if one in self._counts or len(self._counts) < MOST_COUNTED:
                self._counts[one] += 1

    def found(self) -> dict[tuple[int, float], int]:
        """How many values there are of each that may be a mark, by column and value."""
        found, far = {}, Counter[tuple[int, bool]]()  # far: by column and side
        for (at, value), n in self._counts.items():
            far[at, value > self._bulk.high[at]] += n
        for (at, value), n in sorted(self._counts.items()):
            low, high = float(self._bulk.low[at]), float(self._bulk.high[at])  # whose differences may overflow
            is_far = is_usual(value) or max(low - value, value - high) > GAP * (high - low)
            if value and is_far and OFTEN <= n < self._n / 2 and 2 * n > far[at, value > high]:
                found[at, value] = n
        return found

    def notes(self, which: str = "") -> Iterator[str]:
        """One sentence about those of `found` that are more than at the last call. which: of the records."""
        told, self._told = self._told, self.found()
        new = [(*one, n) for one, n in self._told.items() if told.get(one) != n][:MOST_TOLD]
        if new:
            said = "; ".join(
                f"{self._names[at][:60]} is {exact(value)} in {n:,} of {which}{self._n:,} records, far from all others "
                f"({self._bulk.low[at]:.4g} to {self._bulk.high[at]:.4g})"
                for at, value, n in new
            )
            pairs = [f"{self._names[at]}={exact(value)}" for at, value, _ in new]
            flag = shlex.quote(",".join(f'"{pair}"' if "," in pair else pair for pair in pairs))
            yield f"numbers that may mean missing: {said}; if they do, use --missing-values {flag}"
