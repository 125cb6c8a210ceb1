"""Records in all views at once: one call of compiled code, or one after the other by torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.generation import Generation
from fomo_stream.model.architecture import Model
from fomo_stream.model.scoring import score_in_views

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


class ViewInput(NamedTuple):
    """What a view looks at: rows of q records, and the generations that score them."""

    rows: Float  # (q, d), NaN = missing; values may stand in for missing ones
    gaps: Bool | None  # (q, d) where they do; None: nowhere
    parts: list[tuple[Int, Generation]]  # some of the records, and what scores them
    skips: bool  # whether it says nothing of records without any value

    def encoded(self, rows: Float) -> Float:
        """Rows as the generations encode them."""
        if not self.parts or not self.parts[0][1].frequencies.changes_rows:
            return rows
        if not len(rows):
            return self.parts[0][1].frequencies.encode(rows)
        encoded = [generation.frequencies.encode(rows[part]) for part, generation in self.parts]
        out = np.full((len(rows), encoded[0].shape[1]), np.nan)
        for (part, _), its in zip(self.parts, encoded, strict=True):
            out[part] = its
        return out


def score_view_inputs(model: Model, looks: list[ViewInput]) -> tuple[Float, Float]:
    """Logits and votes, (v, q) each, of q records in v views; NaN where there is no generation."""
    if model.kernel == "numba":
        return _score_by_kernel(model, looks)
    logits, votes = np.full((2, len(looks), len(looks[0].rows)), np.nan)
    for at, (rows, gaps, parts, skips) in enumerate(looks):
        for part, generation in parts:
            known = ~(skips & np.isnan(rows[part]).all(axis=1))
            its_gaps = None if gaps is None else gaps[part][known]
            logits[at, part[known]] = found = generation.logits(model, rows[part][known], its_gaps)
            votes[at, part[known]] = generation.vote(found)
    return logits, votes


def _score_by_kernel(model: Model, looks: list[ViewInput]) -> tuple[Float, Float]:
    rows, without = side_by_side(looks)
    contexts, end, columns = np.zeros((len(looks), len(rows)), np.int64), 0, []
    for at, one in enumerate(looks):
        for part, generation in one.parts:
            contexts[at, part] = generation.handle.address
        start, end = end, end + one.encoded(one.rows[:0]).shape[1]
        columns.append((start, end, int(one.skips)))
    logits, votes = score_in_views(model, rows, without, np.array(columns), contexts)
    return logits, votes


def side_by_side(looks: list[ViewInput]) -> tuple[Float, Float]:
    """Rows (q, all columns) in all views as generations encode them: with what stands in for gaps, and without it."""
    whole = [one.encoded(one.rows) for one in looks]
    bare = [
        its if one.gaps is None else one.encoded(np.where(one.gaps, np.nan, one.rows))
        for one, its in zip(looks, whole, strict=True)
    ]
    return np.concatenate(whole, axis=1), np.concatenate(bare, axis=1)
