"""The fields of a record that are scored, and their order.

A *feature* is a numeric or boolean leaf of a record, named by its dotted path (``motor.temperature``).
Text that is a decimal number counts as that number (see `is_number_text`). Every other value (null, other text, NaN,
Infinity, an integer too large for a float) is missing: NaN in a row.
In a *categorical* feature every scalar is a value; a row holds its code (see `categories`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from math import isfinite
from numbers import Real
from operator import itemgetter
from typing import Any

import numpy as np

from fomo_stream.errors import SchemaError
from fomo_stream.records.category_codes import category_code
from fomo_stream.records.missing_values import Marks, table_of_marks, without_marks
from fomo_stream.wording import clean

_SAFE_TYPES = frozenset({int, float, bool, type(None)})
# No other form: 007 is a name, +49 begins a telephone number, 1,5 may have a decimal comma.
_NUMBER = re.compile(r"\s*-?(?:(?:0|[1-9]\d*)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)


@dataclass(frozen=True)
class Schema:
    """The features of a stream, as dotted paths, in the order of the columns of its rows.

    categorical: the features that are categories; counters: those that only grow, whose growth is scored; in any order.
    marks: the numbers that mean "missing", by feature. untaken: see `at_most`.
    """

    features: tuple[str, ...]
    categorical: frozenset[str] = frozenset()
    counters: frozenset[str] = frozenset()
    marks: Marks = field(default_factory=dict, hash=False)
    untaken: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.features:
            raise SchemaError("no features are named", "name at least one")
        twice = sorted({name for name in self.features if self.features.count(name) > 1})
        if twice:
            raise SchemaError(f"feature {twice[0]!r} is named twice", "name each one once")
        for kind, names in (("categorical field", self.categorical), ("counter", self.counters)):
            if strange := sorted(names - set(self.features)):
                raise SchemaError(f"{kind} {strange[0]!r} is not a feature", "name it as one, too")
        if both := sorted(self.categorical & self.counters):
            raise SchemaError(f"{both[0]!r} is both a category and a counter", "name it as one of them")

    @classmethod
    def of(cls, features: Sequence[str], categorical: Sequence[str], counters: Sequence[str] = ()) -> Schema:
        """Make a schema of these features in this order, then the other categorical fields and counters."""
        names = dict.fromkeys((*categorical, *counters))
        all_names = (*features, *(name for name in names if name not in features))
        return cls(all_names, frozenset(categorical), frozenset(counters))

    def at_most(self, max_features: int) -> Schema:
        """Return the schema for a model that takes so many features, see `random_columns`; the others are `untaken`."""
        kept = tuple(self.features[column] for column in random_columns(self.features, max_features))
        untaken = tuple(name for name in self.features if name not in set(kept))
        if not untaken:
            return self
        groups = self.categorical.intersection(kept), self.counters.intersection(kept)
        return replace(self, features=kept, categorical=groups[0], counters=groups[1], untaken=untaken)

    @property
    def categorical_columns(self) -> tuple[int, ...]:
        """Return the columns of rows that hold category codes."""
        return tuple(i for i, name in enumerate(self.features) if name in self.categorical)

    @property
    def counter_columns(self) -> tuple[int, ...]:
        """Return the columns of rows that hold totals of counters."""
        return tuple(i for i, name in enumerate(self.features) if name in self.counters)

    def rows(self, records: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """(n_records, n_features) float64 in the records' own units; booleans are 0 and 1, NaN is missing.

        Columns of categorical features hold `category_code`s. Values that are `marks` are missing.

        >>> Schema(("a", "b.c")).rows([{"a": True, "b": {"c": 2}}, {"a": "high"}])
        array([[ 1.,  2.],
               [nan, nan]])
        """
        return without_marks(self._rows(records), self._table_of_marks)

    @cached_property
    def _table_of_marks(self) -> np.ndarray:
        return table_of_marks(self.features, self.marks, self.categorical_columns)

    def _rows(self, records: Sequence[Mapping[str, Any]]) -> np.ndarray:
        categorical = self.categorical_columns
        # Only names with a dot need more than one dictionary look-up.
        dotted = [i for i, name in enumerate(self.features) if "." in name]
        if not categorical and not dotted:
            return numbers(_field_values(records, self.features)).reshape(len(records), len(self.features))
        values: list[Any] = []
        for record in records:
            row = list(map(record.get, self.features))
            for i in dotted:
                if row[i] is None or isinstance(row[i], dict):
                    row[i] = look_up(record, self.features[i])
            for i in categorical:
                row[i] = category_code(row[i])
            values += row
        return numbers(values).reshape(len(records), len(self.features))


def random_columns(names: Collection[Any], max_names: int) -> list[int]:
    """Return the positions, in order, of at most so many of these names; 0: of all.

    Which ones is random, but the same in every process and in any order of the names: those with the lowest hashes.
    """
    if not 0 < max_names < len(names):
        return list(range(len(names)))
    hashes = [blake2b(str(name).encode(errors="surrogatepass")).digest() for name in names]
    return sorted(sorted(range(len(names)), key=hashes.__getitem__)[:max_names])


def _field_values(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Any]:
    """Return the values of these fields, record by record; None where a record lacks one."""
    try:
        if len(names) > 1:  # of one name it would return the bare value
            return list(chain.from_iterable(map(itemgetter(*names), records)))
    except KeyError:
        pass
    return [record.get(name) for record in records for name in names]


def look_up(node: Mapping[str, Any], path: str) -> Any:
    """Return the leaf at `path`, or None. A key that contains dots itself is preferred to nested keys."""
    value = node.get(path)
    if value is not None and not isinstance(value, dict):
        return value
    dot = path.find(".")
    while dot >= 0:
        child = node.get(path[:dot])
        if isinstance(child, dict):
            value = look_up(child, path[dot + 1 :])
            if value is not None:
                return value
        dot = path.find(".", dot + 1)
    return None


def numbers(values: Sequence[Any]) -> np.ndarray:
    """Return numbers (n,), float64; NaN where a value is not a finite number, or its text (see `is_number_text`)."""
    try:
        if not set(map(type, values)) <= _SAFE_TYPES:  # NumPy would also parse strings, so only these types are safe
            raise OverflowError
        numbers = np.array(values, dtype=np.float64)
    except OverflowError:  # text and other types, or an integer beyond the largest float
        numbers = np.array([number_of(value) for value in values], dtype=np.float64)
    numbers[np.isinf(numbers)] = np.nan
    return numbers


def is_number_text(value: Any) -> bool:
    """Return whether a value is the text of a finite decimal number, as money often is in JSON.

    >>> [text for text in ("0.42", "-3", "1e-7", "007", "+49", "1,5", "1_000", "NaN", "1e999") if is_number_text(text)]
    ['0.42', '-3', '1e-7']
    """
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None and isfinite(float(value))


def number_of(value: Any) -> float:
    """Return a value, or its text, as a number, which may be infinite; NaN if it is not a number."""
    if is_number_text(value):
        return float(value)
    if isinstance(value, (Real, Decimal, np.bool_)):
        try:
            return float(value)
        except (OverflowError, ValueError):  # beyond the largest float, a signalling NaN
            return np.nan
    return np.nan


def shown_names(names: Sequence[str], limit: int = 50) -> str:
    """Return the first `limit` names, each cut to 60 characters, for a log line or a message."""
    return ",".join(clean(name[:60]) for name in names[:limit]) + (",..." if len(names) > limit else "")
