"""Rows of numbers from records, each with the past values of its series: the input of a detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.past_values import Key, PastValues
from fomo_stream.records.schema import Schema

Float = NDArray[np.float64]


class Rows(NamedTuple):
    """The rows of n records for a detector, and which records and values are missing."""

    rows: Float  # (n_usable, width) of the records with a value of at least one feature
    usable: NDArray[np.bool_]  # (n,) which records these are
    missing: NDArray[np.int64]  # (n,) how many features have no value in each record


def with_past_values(past: PastValues, values: Float, keys: Sequence[Key] | None = None, learn: bool = True) -> Rows:
    """Rows of the next records from their values (n, d), NaN = missing.

    keys: the series of each record; None: one series for all. A record without any value does not belong to its series.
    learn: whether the other records are added to their series.
    """
    missing = np.isnan(values).sum(axis=1)
    usable = missing < values.shape[1]
    if keys is not None and not usable.all():
        keys = [key for key, is_usable in zip(keys, usable, strict=True) if is_usable]
    return Rows((past.rows if learn else past.peek)(values[usable], keys), usable, missing)


class RowReader:
    """Makes rows of a stream's records, each with the `lags` rows before it of its key.

    Raises SchemaError when such rows have more columns than can be taken.
    """

    def __init__(self, schema: Schema, lags: int) -> None:
        self.schema = schema
        self.past = PastValues(lags, len(schema.features))

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.past.width

    @property
    def categorical(self) -> tuple[int, ...]:
        """The columns that hold category codes."""
        return self.past.columns(self.schema.categorical_columns)

    def read(self, records: Sequence[Mapping[str, Any]], keys: Sequence[Key], learn: bool = True) -> Rows:
        """Rows of the next records. See `with_past_values`."""
        return with_past_values(self.past, self.schema.rows(records), keys, learn)
