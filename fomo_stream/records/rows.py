"""Rows of numbers from records: the input of a detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.series import Key
from fomo_stream.records.schema import Schema

Float = NDArray[np.float64]


class Rows(NamedTuple):
    """The rows of n records for a detector, and which records and values are missing."""

    rows: Float  # (n_usable, d) of the records with a value of at least one feature
    keys: list[Key]  # (n_usable,) the series of each of these rows
    usable: NDArray[np.bool_]  # (n,) which records these are
    missing: NDArray[np.int64]  # (n,) how many features have no value in each record


class RowReader:
    """Makes rows of a stream's records."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @property
    def width(self) -> int:
        """Columns of a row."""
        return len(self.schema.features)

    @property
    def categorical(self) -> tuple[int, ...]:
        """The columns that hold category codes."""
        return self.schema.categorical_columns

    def read(self, records: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Rows:
        """Rows of records, each with the key of its series. A record without any value does not belong to it."""
        values = self.schema.rows(records)
        missing = np.isnan(values).sum(axis=1)
        usable = missing < values.shape[1]
        return Rows(values[usable], list(compress(keys, usable.tolist())), usable, missing)
