"""Score records in all views: by one call of compiled code, or view by view with torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.generation import Generation, KnownLogits
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


Known = dict[int, tuple[Generation, KnownLogits]]  # logits that are known already, by the id of their generation


def score_view_inputs(model: Model, scopes: Sequence[list[ViewInput]], known: Known | None = None) -> list[Float]:
    """Return logits and votes (2, v, q) of the q records of each scope in its v views; NaN without a generation.

    known: of a call before; with torch, logits in it are not computed again, and new ones are added.
    """
    if model.kernel == "numba":
        return [_score_by_kernel(model, inputs) for inputs in scopes]
    scored = [np.full((2, len(inputs), len(inputs[0].rows)), np.nan) for inputs in scopes]
    asked: dict[int, list[tuple[Generation, Float, Int, Float, Bool]]] = {}
    for out, inputs in zip(scored, scopes, strict=True):
        for at, (rows, gaps, parts, skips) in enumerate(inputs):
            for part, generation in parts:
                part = part[~(skips & np.isnan(rows[part]).all(axis=1))]
                its_gaps = np.zeros((len(part), rows.shape[1]), bool) if gaps is None else gaps[part]
                asked.setdefault(id(generation), []).append((generation, out[:, at], part, rows[part], its_gaps))
    # a generation is asked once, so that tiles of the device are full: the view `key` is the same in many scopes
    for number, requests in asked.items():
        generation, end = requests[0][0], 0
        before = None if known is None else known.setdefault(number, (generation, {}))[1]
        all_rows, all_gaps = (np.concatenate([request[i] for request in requests]) for i in (3, 4))
        logits = generation.logits(model, all_rows, all_gaps, before)
        votes = generation.vote(logits)
        for _, out, part, *_ in requests:
            start, end = end, end + len(part)
            out[:, part] = logits[start:end], votes[start:end]
    return scored


def _score_by_kernel(model: Model, inputs: list[ViewInput]) -> Float:
    rows, without = side_by_side(inputs)
    contexts, end, columns = np.zeros((len(inputs), len(rows)), np.int64), 0, []
    for at, view_input in enumerate(inputs):
        for part, generation in view_input.parts:
            contexts[at, part] = generation.handle.address
        start, end = end, end + view_input.encoded(view_input.rows[:0]).shape[1]
        columns.append((start, end, int(view_input.skips)))
    return score_in_views(model, rows, without, np.array(columns), contexts)


def side_by_side(inputs: list[ViewInput]) -> tuple[Float, Float]:
    """Rows (q, all columns) in all views as generations encode them: with what stands in for gaps, and without it."""
    whole = [view_input.encoded(view_input.rows) for view_input in inputs]
    bare = [
        encoded if view_input.gaps is None else view_input.encoded(np.where(view_input.gaps, np.nan, view_input.rows))
        for view_input, encoded in zip(inputs, whole, strict=True)
    ]
    return np.concatenate(whole, axis=1), np.concatenate(bare, axis=1)
