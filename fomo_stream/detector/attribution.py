"""Attribution: how much each feature of a record changes the model's logit when it is replaced by usual values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.reasons import Cause, Reason
from fomo_stream.detector.surroundings import Surroundings

Float = NDArray[np.float64]
Scorer = Callable[[Float], Float]  # rows (q, w), raw units, codes for categories -> their logits (q,)


@dataclass(frozen=True)
class Lens:
    """Columns of a record, the context rows that they are compared with, and the logits that count their mean."""

    surroundings: Surroundings
    scorers: tuple[Scorer, ...]

    def logits(self, rows: Float) -> Float:
        """The sum (q,) of the logits of rows (q, w)."""
        total = np.zeros(len(rows))
        for scorer in self.scorers:
            total += scorer(rows)
        return total


def attribute(lenses: Sequence[Lens], rows: Sequence[Float], most: int) -> tuple[Reason, ...]:
    """The reasons of one record, at most `most`, the one that counts most first; equal ones by their columns.

    rows: of each lens, the record's columns (w,), raw units, NaN = missing. The record's logit is the mean over the
    scorers of all lenses.
    """
    d = max(int(lens.surroundings.features.max()) for lens in lenses) + 1
    alone, without, excess = np.zeros(d), np.zeros(d), 0.0
    for lens, row in zip(lenses, rows, strict=True):
        near = lens.surroundings.nearby(row)
        features = np.unique(lens.surroundings.features)
        of = lens.surroundings.features == features[:, None]
        logits = lens.logits(np.vstack([row, near.base, np.where(of, near.instead, row), np.where(of, row, near.base)]))
        n = len(features)
        without[features] += logits[0] - logits[2 : 2 + n]
        alone[features] += logits[2 + n :] - logits[1]
        excess += logits[0] - logits[1]
    effect = np.maximum((without + alone) / 2, 0.0)
    total = max(float(effect.sum()), excess)
    order = [f for f in np.argsort(-effect, kind="stable")[:most].tolist() if effect[f] > 0]
    first = {f: i for i in reversed(range(len(lenses))) for f in lenses[i].surroundings.features.tolist()}
    return tuple(_reason(lenses[first[f]].surroundings, rows[first[f]], f, float(effect[f]) / total) for f in order)


def _reason(surroundings: Surroundings, row: Float, feature: int, share: float) -> Reason:
    column = int(np.flatnonzero(surroundings.features == feature)[0])
    low, median, high = surroundings.usual[:, column].tolist()
    is_code, value = surroundings.columns[column].is_code, float(row[column])
    cause = Cause.MISSING if np.isnan(value) else Cause.CATEGORY if is_code else Cause.VALUE
    frequency = surroundings.frequency(column, value) if is_code else np.nan
    return Reason(feature, cause, share, value, median, low, high, frequency)
