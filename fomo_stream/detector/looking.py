"""Records in all views at once: one call of compiled code, or one after the other by torch."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.generation import Generation
from fomo_stream.model.config import Model
from fomo_stream.model.scoring import score_in_views

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Look(NamedTuple):
    """What a view looks at: rows of q records, and the generations that score them."""

    rows: Float  # (q, d), NaN = missing; values may stand in for missing ones
    gaps: Bool | None  # (q, d) where they do; None: nowhere
    parts: list[tuple[slice, Generation]]  # some of the records, and what scores them
    skips: bool  # whether it says nothing of records without any value

    def encoded(self, rows: Float) -> Float:
        """Rows as the generations encode them."""
        if not self.parts or not self.parts[0][1].frequencies.changes_rows:
            return rows
        encoded = [generation.frequencies.encode(rows[part]) for part, generation in self.parts]
        out = np.full((len(rows), encoded[0].shape[1]), np.nan)
        for (part, _), its in zip(self.parts, encoded, strict=True):
            out[part] = its
        return out


def look(model: Model, looks: list[Look]) -> tuple[Float, Float]:
    """Logits and votes, (v, q) each, of q records in v views; NaN where there is no generation."""
    if model.kernel == "numba":
        return _together(model, looks)
    logits, votes = np.full((2, len(looks), len(looks[0].rows)), np.nan)
    for at, (rows, gaps, parts, skips) in enumerate(looks):
        for part, generation in parts:
            known = ~(skips & np.isnan(rows[part]).all(axis=1))
            its_gaps = None if gaps is None else gaps[part][known]
            logits[at, part][known] = found = generation.logits(model, rows[part][known], its_gaps)
            votes[at, part][known] = generation.vote(found)
    return logits, votes


def _together(model: Model, looks: list[Look]) -> tuple[Float, Float]:
    contexts = np.zeros((len(looks), len(looks[0].rows)), np.int64)
    for at, one in enumerate(looks):
        for part, generation in one.parts:
            contexts[at, part] = generation.handle.address
    whole = [one.encoded(one.rows) for one in looks]
    rows = without = np.concatenate(whole, axis=1)
    if any(one.gaps is not None for one in looks):
        bare = [
            its if one.gaps is None else one.encoded(np.where(one.gaps, np.nan, one.rows))
            for one, its in zip(looks, whole, strict=True)
        ]
        without = np.concatenate(bare, axis=1)
    views = _columns(tuple([(its.shape[1], one.skips) for its, one in zip(whole, looks, strict=True)]))
    logits, votes = score_in_views(model, rows, without, views, contexts)
    return logits, votes


@lru_cache(maxsize=64)
def _columns(views: tuple[tuple[int, bool], ...]) -> NDArray[np.int64]:
    """The columns of views of these widths side by side, and whether they skip rows, as `score_in_views` takes them."""
    ends = np.cumsum([width for width, _ in views])
    return np.array([(end - width, end, skips) for end, (width, skips) in zip(ends, views, strict=True)], np.int64)
