"""Contexts of rows that do not change, and the views of training data that are averaged."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.attribution import Background, Column, Comparison
from fomo_stream.detector.categories import Frequencies
from fomo_stream.detector.results import Cause
from fomo_stream.model.scoring import EncodedContext, cross_scores, encode_rows, logits_of, row_keys
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class View(NamedTuple):
    """A member's view of the training data: columns (d',) and the context's rows (n', d')."""

    columns: Int
    kept: Int  # which of the training rows
    rows: Float  # raw units; category codes
    codes: tuple[int, ...]  # of these columns, those that hold category codes
    width: int  # d, columns of the training data

    def half(self, which: NDArray[np.bool_]) -> View:
        """The same view of some of its rows (n',)."""
        return self._replace(kept=self.kept[which], rows=self.rows[which])


class Context:
    """A view, encoded."""

    def __init__(self, model: ZeroShotModel, view: View) -> None:
        self.model, self.view = model, view
        self.frequencies = Frequencies.fit(view.rows, view.codes)
        self.encoded = self.frequencies.encode(view.rows)
        self.cache: EncodedContext = encode_rows(model, self.encoded)

    def logits(self, rows: Float) -> Float:
        """Logits (q,) of new rows (q, d') of the view."""
        return logits_of(self.model, self.cache, self.frequencies.encode(rows))

    @cached_property
    def comparison(self) -> Comparison:
        """The context as explanations need it."""
        codes = set(self.view.codes)
        columns = [Column(c, Cause.VALUE, i in codes) for i, c in enumerate(self.view.columns.tolist())]
        return Comparison(Background(self.view.rows, columns, n_features=self.view.width), (self.logits,))


class Member:
    """A view, ready to score. A row of its context is scored by the half that does not contain it."""

    def __init__(self, model: ZeroShotModel, view: View) -> None:
        self.context = Context(model, view)
        keys = row_keys(view.rows)
        self._place = {key: i for i, key in reversed(list(enumerate(keys)))}  # of the first of equal rows
        self._own = _means(keys, cross_scores(model, self.context.encoded))

    def logits(self, rows: Float) -> Float:
        """Logits (q,) of rows (q, d) of the training data or others."""
        rows = rows[:, self.context.view.columns]
        keys = row_keys(rows)
        found = np.array([self._own.get(key, np.nan) for key in keys])
        new = np.array([key not in self._own for key in keys], dtype=bool)
        if new.any():
            found[new] = self.context.logits(rows[new])
        return found

    def comparison(self, row: Float) -> Comparison:
        """The context that a row (d,) is scored by."""
        place = self._place.get(row_keys(row[None, self.context.view.columns])[0])
        if place is None or len(self.context.view.rows) < 4:  # see `cross_scores`
            return self.context.comparison
        return self._halves[int(place < self._middle)].comparison

    @property
    def _middle(self) -> int:
        return len(self.context.view.rows) // 2

    @cached_property
    def _halves(self) -> tuple[Context, Context]:
        """The first and the second half of the context."""
        first = np.arange(len(self.context.view.rows)) < self._middle
        model, view = self.context.model, self.context.view
        return Context(model, view.half(first)), Context(model, view.half(~first))


def _means(keys: list[bytes], values: Float) -> dict[bytes, float]:
    """The mean value of each key."""
    found: dict[bytes, list[float]] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        found.setdefault(key, []).append(value)
    return {key: sum(several) / len(several) for key, several in found.items()}
