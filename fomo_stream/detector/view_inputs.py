"""Score records in all views: by one call of compiled code, or view by view with torch."""

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
    """The input of a view: rows of q records, and the generations that score them."""

    rows: Float  # (q, d), NaN = missing; values may stand in for missing ones
    gaps: Bool | None  # (q, d) where they do; None: nowhere
    parts: list[tuple[Int, Generation]]  # some of the records, and what scores them
    skips: bool  # whether records without any value get no logit

    def encoded(self, rows: Float) -> Float:
        """Rows as the generations encode them."""
        if not self.parts or not self.parts[0][1].frequencies.columns:
            return rows
        if not len(rows):
            return self.parts[0][1].frequencies.encode(rows)
        encoded = [generation.frequencies.encode(rows[part]) for part, generation in self.parts]
        out = np.full((len(rows), encoded[0].shape[1]), np.nan)
        for (part, _), rows_encoded in zip(self.parts, encoded, strict=True):
            out[part] = rows_encoded
        return out


def score_view_inputs(model: Model, inputs: list[ViewInput]) -> tuple[Float, Float]:
    """Return logits and votes, (v, q) each, of q records in v views; NaN without a generation."""
    if model.kernel == "numba":
        return _score_by_kernel(model, inputs)
    logits, votes = np.full((2, len(inputs), len(inputs[0].rows)), np.nan)
    for at, (rows, gaps, parts, skips) in enumerate(inputs):
        for part, generation in parts:
            has_value = ~(skips & np.isnan(rows[part]).all(axis=1))
            its_gaps = None if gaps is None else gaps[part][has_value]
            logits[at, part[has_value]] = scored = generation.logits(model, rows[part][has_value], its_gaps)
            votes[at, part[has_value]] = generation.vote(scored)
    return logits, votes


def _score_by_kernel(model: Model, inputs: list[ViewInput]) -> tuple[Float, Float]:
    rows, without = side_by_side(inputs)
    contexts, end, columns = np.zeros((len(inputs), len(rows)), np.int64), 0, []
    for at, view_input in enumerate(inputs):
        for part, generation in view_input.parts:
            contexts[at, part] = generation.handle.address
        start, end = end, end + view_input.encoded(view_input.rows[:0]).shape[1]
        columns.append((start, end, int(view_input.skips)))
    logits, votes = score_in_views(model, rows, without, np.array(columns), contexts)
    return logits, votes


def side_by_side(inputs: list[ViewInput]) -> tuple[Float, Float]:
    """Rows (q, all columns) in all views as generations encode them: with what stands in for gaps, and without it."""
    whole = [view_input.encoded(view_input.rows) for view_input in inputs]
    bare = [
        encoded if view_input.gaps is None else view_input.encoded(np.where(view_input.gaps, np.nan, view_input.rows))
        for view_input, encoded in zip(inputs, whole, strict=True)
    ]
    return np.concatenate(whole, axis=1), np.concatenate(bare, axis=1)
