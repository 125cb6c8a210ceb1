"""Which fields of a record are scored, and in which order.

A *feature* is a numeric or boolean leaf of a record, named by its dotted path (``motor.temperature``).
What is no finite number - null, text, NaN, Infinity, an integer beyond the floats - is missing: NaN in a row.
Of a *categorical* feature any scalar is a value; a row holds its code (see `categories`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.categories import category_code
from fomo_stream.errors import SchemaError
from fomo_stream.lags import Key, Shingler

Float = NDArray[np.float64]
_PLAIN = frozenset({int, float, bool, type(None)})


class TooManyFeaturesError(SchemaError):
    """Records have more numbers than anybody measures."""


@dataclass(frozen=True)
class Schema:
    """The features of a stream, as dotted paths, in the order of the columns of its rows.

    categorical: which of them are categories, in any order.
    """

    features: tuple[str, ...]
    categorical: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.features:
            raise SchemaError("no features are named; name at least one with --features")
        twice = sorted({name for name in self.features if self.features.count(name) > 1})
        if twice:
            raise SchemaError(f"feature {twice[0]!r} is named twice; name each one once in --features")
        strange = sorted(self.categorical - set(self.features))
        if strange:
            raise SchemaError(f"categorical field {strange[0]!r} is no feature; name it in --categorical")

    @classmethod
    def of(cls, features: Sequence[str], categorical: Sequence[str] = ()) -> Schema:
        """These features in this order, then the categorical fields that are not among them."""
        return cls((*features, *(name for name in categorical if name not in features)), frozenset(categorical))

    @property
    def categorical_columns(self) -> tuple[int, ...]:
        """The columns of rows that hold category codes."""
        return tuple(i for i, name in enumerate(self.features) if name in self.categorical)

    def rows(self, records: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """(n_records, n_features) float64 in the records' own units; booleans are 0 and 1, NaN is missing.

        Columns of categorical features hold `category_code`s.

        >>> Schema(("a", "b.c")).rows([{"a": True, "b": {"c": 2}}, {"a": "high"}])
        array([[ 1.,  2.],
               [nan, nan]])
        """
        categorical = self.categorical_columns
        # Only a name with a dot needs more than one dictionary look-up.
        dotted = [i for i, name in enumerate(self.features) if "." in name]
        values = []
        for record in records:
            row = list(map(record.get, self.features))
            for i in dotted:
                if row[i] is None or isinstance(row[i], dict):
                    row[i] = look_up(record, self.features[i])
            for i in categorical:
                row[i] = category_code(row[i])
            values.append(row)
        return _numbers(values, len(self.features))


class Rows(NamedTuple):
    """What a detector gets of n records, and what it does not."""

    rows: Float  # (n_usable, width) of the records that have a value of any feature
    usable: NDArray[np.bool_]  # (n,) which these are
    missing: NDArray[np.int64]  # (n,) how many features each record has no value of


class RowReader:
    """Makes rows of a stream's records, each with the `lags` rows before it of its key: what a detector takes.

    Raises SchemaError when such rows have more columns than can be taken.
    """

    def __init__(self, schema: Schema, lags: int) -> None:
        self.schema = schema
        self.past = Shingler(lags, len(schema.features))

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.past.width

    @property
    def categorical(self) -> tuple[int, ...]:
        """The columns that hold category codes."""
        return self.past.columns(self.schema.categorical_columns)

    def read(self, records: Sequence[Mapping[str, Any]], keys: Sequence[Key], learn: bool = True) -> Rows:
        """Rows of the next records; keys: the series of each. A record without any value is no part of its series.

        learn: whether the records become part of their series.
        """
        values = self.schema.rows(records)
        missing = np.isnan(values).sum(axis=1)
        usable = missing < len(self.schema.features)
        known = [key for key, is_usable in zip(keys, usable, strict=True) if is_usable]
        with_past = self.past.rows if learn else self.past.peek
        return Rows(with_past(values[usable], known), usable, missing)


def look_up(node: Mapping[str, Any], path: str) -> Any:
    """The leaf at `path`, or None. A key that itself contains dots is preferred to nested ones."""
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


def _numbers(values: list[list[Any]], width: int) -> np.ndarray:
    kinds: set[type] = set()
    for row in values:
        kinds.update(map(type, row))
    try:
        if kinds <= _PLAIN:  # NumPy would also parse strings, so only known types may take this way
            numbers = np.array(values, dtype=np.float64).reshape(len(values), width)
        else:
            raise OverflowError
    except OverflowError:  # text and other strangers, or an integer beyond the largest float
        cells = [_number(value) for row in values for value in row]
        numbers = np.array(cells, dtype=np.float64).reshape(len(values), width)
    numbers[np.isinf(numbers)] = np.nan
    return numbers


def _number(value: Any) -> float:
    if isinstance(value, (Real, np.bool_)):
        try:
            return float(value)
        except OverflowError:
            return np.nan
    return np.nan


def _leaves(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if len(prefix) + len(key) > LONGEST_NAME:
            continue
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


# --- inference

# Endings of names, consulted only together with how the values behave.
_TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "epoch", "at", "created", "updated"}
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "key", "pk", "hash", "serial"}
_COUNT_WORDS = {"seq", "sequence", "counter", "index", "idx", "offset", "row", "rownum", "line"}
_YEAR_2000, _YEAR_2100 = 946_684_800.0, 4_102_444_800.0  # seconds since 1970
_ENOUGH = 10  # records: with fewer, values rise in order by chance
LONGEST_NAME = 1000  # characters of a path: what is longer is passed over, to look it up would take too long
MOST_FEATURES = 1000  # that are inferred; more are no measurements but keys that data ended up in
_RARE = 0.05  # share of records below which a leaf has no context to be compared with


def infer_schema(
    records: Iterable[Mapping[str, Any]],
    result_field: str = "fomo",
    categorical: Sequence[str] = (),
    key: str | None = None,
) -> tuple[Schema, dict[str, str]]:
    """Choose the features of a stream from its first records, taken in order.

    Returns the schema - numeric and boolean leaves, sorted by path - and the leaves left out, with the reason
    for each: text, lists, timestamps, counters, near-unique identifiers, and what an earlier run left under
    `result_field`. Paths of more than 1,000 characters are passed over. When in doubt a leaf stays. Constant features
    stay: it matters when they change. `categorical` fields are features whatever they hold; the field `key`, which
    tells series apart, is none.
    Raises SchemaError when no feature is left, TooManyFeaturesError when more than 1,000 are.

    >>> orders = [{"order_id": 7919 * i % 1000, "price": i % 7, "shop": "x"} for i in range(50)]
    >>> schema, left_out = infer_schema(orders)
    >>> schema.features, left_out
    (('price',), {'order_id': 'near-unique identifier', 'shop': 'text'})
    """
    sample = list(records)
    leaves: dict[str, list[Any]] = {}
    for record in sample:
        for path, value in _leaves(record):
            leaves.setdefault(path, []).append(value)
    left_out: dict[str, str] = {}
    features = list(categorical)
    for path in sorted(leaves.keys() - set(categorical)):
        if path == result_field or path.startswith(result_field + "."):
            left_out[path] = "result of an earlier run"
        elif path == key:
            left_out[path] = "key of the series"
        elif reason := _why_not(path, leaves[path], len(sample)):
            left_out[path] = reason
        elif len(features) < MOST_FEATURES:
            features.append(path)
        else:
            raise TooManyFeaturesError(
                f"the first {len(sample)} records have more than {MOST_FEATURES} features "
                f"({shown(features, 5)}); name the ones to use with --features"
            )
    if not features:
        named = ", ".join(f"{path[:60]} ({reason})" for path, reason in list(left_out.items())[:10])
        raise SchemaError(
            f"no numeric field to score in the first {len(sample)} records; left out: {named or 'nothing'}; "
            "name the ones to use with --features, or categories with --categorical"
        )
    return Schema(tuple(sorted(features)), frozenset(categorical)), left_out


def shown(names: Sequence[str], most: int = 50) -> str:
    """Some names for a log line or a message: not all of a thousand, and no endless one."""
    return ",".join(name[:60] for name in names[:most]) + (",..." if len(names) > most else "")


def _why_not(path: str, values: list[Any], n_records: int) -> str | None:
    """Why the leaf at `path` is no feature, or None when it is one. values: its values in stream order."""
    present = [value for value in values if value is not None]
    x = _numbers([[value] for value in present], 1)[:, 0]
    numeric = np.array([isinstance(value, Real) for value in present], dtype=bool)
    if not present or (numeric.all() and np.isnan(x).all()):
        return "always missing"
    if numeric.mean() < 0.5:
        return "a list" if isinstance(present[int(np.argmin(numeric))], list) else "text"
    x = np.clip(x[~np.isnan(x)], -1e300, 1e300)  # differences must not overflow
    if len(x) < _RARE * n_records:
        return f"present in only {len(x)} of {n_records} records"
    if all(isinstance(value, bool) for value in present):
        return None
    words = _words(path)
    if _is_timestamp(x, words):
        return "timestamp"
    if _is_counter(x, words):
        return "monotone counter"
    if _is_identifier(x, words):
        return "near-unique identifier"
    return None


def _words(path: str) -> set[str]:
    """The last two words of the leaf's own name: 'order.createdAt' -> created, at."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", path.rpartition(".")[2])
    return set(re.findall(r"[a-z]+", name.lower())[-2:])


def _is_timestamp(x: np.ndarray, words: set[str]) -> bool:
    rising = len(x) >= _ENOUGH and float(np.mean(np.diff(x) >= 0)) >= 0.9 and x[-1] > x[0]
    named = bool(words & _TIME_WORDS)
    is_epoch = any(_YEAR_2000 * unit <= x.min() and x.max() <= _YEAR_2100 * unit for unit in (1, 1e3, 1e6, 1e9))
    # A memory gauge of 2 GB has the size of an epoch but neither its name nor its direction. A latency may be
    # called a time, but does not only rise.
    return (is_epoch and (named or rising)) or (named and rising and bool((np.diff(x) >= 0).all()))


def _is_counter(x: np.ndarray, words: set[str]) -> bool:
    steps = np.diff(x)
    in_order = len(x) >= _ENOUGH and bool((steps > 0).all() or (steps < 0).all())
    # One partition after the other: a counter falls back where the next one begins.
    mostly = len(x) >= _ENOUGH and max(float(np.mean(steps > 0)), float(np.mean(steps < 0))) >= 0.9
    if mostly and words & _COUNT_WORDS and (x == np.round(x)).all():
        return True
    # A sensor may rise for long, but not by the same amount each time: noise and rounding see to that. Records of
    # several partitions come in turns, so order is not asked of a long sample.
    if not in_order and len(x) < 5 * _ENOUGH:
        return False
    ordered = np.sort(x)
    size = np.abs(ordered)
    # Rounding errors go with the size of the values beside a step: one 1e308 must not make all others look equal.
    tolerance = 4 * np.finfo(np.float64).eps * np.maximum(np.maximum(size[1:], size[:-1]), np.median(size))
    steps = np.diff(ordered)
    same = np.abs(steps - np.median(steps)) <= tolerance
    return bool((steps > 0).all()) and float(same.mean()) >= 0.9


def _is_identifier(x: np.ndarray, words: set[str]) -> bool:
    if len(x) < 3 or not (x == np.round(x)).all():
        return False
    distinct = len(np.unique(x)) / len(x)
    # Nothing is measured to 16 digits, so such integers are random or composed keys whatever their name.
    return (distinct >= 0.5 and bool(words & _ID_WORDS)) or (
        distinct >= 0.99 and len(x) >= _ENOUGH and float(np.median(np.abs(x))) >= 2.0**53
    )
