"""Numbers that mean "missing", such as -9999, by the feature that has them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError

Float = NDArray[np.float64]
EVERY = "*"  # all features


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


def without_marks(
    rows: Float, names: Sequence[Hashable], marks: Mapping[Hashable, tuple[float, ...]], codes: Collection[int] = ()
) -> Float:
    """Rows (n, d) of these features (d,) with NaN for the values that mean "missing". codes: columns of category codes.

    >>> without_marks(np.array([[1.0, -9.0]]), ["a", "b"], {"b": (-9.0,)})
    array([[ 1., nan]])
    """
    if not marks:
        return rows
    rows = rows.copy()
    for at, (column, name) in enumerate(zip(rows.T, names, strict=True)):
        if at not in codes and (wanted := (*marks.get(name, ()), *marks.get(EVERY, ()))):
            column[np.isin(column, wanted)] = np.nan
    return rows
