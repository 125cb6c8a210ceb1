"""Rows of numbers from records, each with the rows before it of its series: what a detector takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.past_values import Key, PastValues
from fomo_stream.records.schema import Schema

Float = NDArray[np.float64]


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
        """Rows of the next records; keys: the series of each. A record without any value is no part of its series.

        learn: whether the records become part of their series.
        """
        values = self.schema.rows(records)
        missing = np.isnan(values).sum(axis=1)
        usable = missing < len(self.schema.features)
        known = [key for key, is_usable in zip(keys, usable, strict=True) if is_usable]
        with_past = self.past.rows if learn else self.past.peek
        return Rows(with_past(values[usable], known), usable, missing)
