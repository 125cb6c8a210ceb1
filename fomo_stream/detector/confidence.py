"""Confidence: how clearly the views, and small samples of a context, agree on whether a record is odd."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.calibration import p_values
from fomo_stream.model.cache_arrays import Arrays, unflatten
from fomo_stream.model.scoring import EncodedContext, context_type, encode_sample, sample_logits
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]

ODD = 0.05  # p-value at which a vote is undecided
FEW = 100  # rows of a context whose vote counts half
SAMPLE_ROWS = 32  # more would cost more: it is as many as a kernel takes at once


def vote(p: Float) -> Float:
    """What a context says of records with these p-values (n,) among its own rows: from -1, normal, to 1, odd."""
    return (ODD - p) / (ODD + p)


DOUBTFUL = -1 / 3  # vote above which a record is compared with the samples, too: that of a p-value of 2 * ODD


def weight(rows: int) -> float:
    """The weight, in (0, 1), of the vote of a context with so many rows."""
    return rows / (rows + FEW)


def votes_of(logits: Float, own: Float) -> Float:
    """What a context says of records with these logits (q,); own (n,), ascending: the logits of its own rows."""
    return _vote_by_rank(len(own))[own.searchsorted(logits)]


@lru_cache(maxsize=64)
def _vote_by_rank(n: int) -> Float:
    """(n + 1,) what a context of n rows says of a record by how many of them have a smaller logit."""
    p = p_values(np.arange(n + 1.0), np.arange(0.5, n))
    return weight(n) * vote(p)


def confidence(votes: list[Float]) -> Float:
    """Confidence (n,) in [0, 1] from votes (n,) each: 1 if all say the same and are sure, 0 if they cancel out."""
    total = votes[0].copy()
    for one in votes[1:]:
        total += one
    return np.asarray(np.abs(total / len(votes)), dtype=np.float64)


class Samples(NamedTuple):
    """Two small contexts, encoded: SAMPLE_ROWS rows of the older half of a context, and as many of the newer half."""

    contexts: tuple[EncodedContext, ...]
    own: Float  # (2, m) ascending: logits of the context's rows that are not in the sample

    @classmethod
    def of(cls, model: ZeroShotModel, rows: Float, seed: tuple[int, ...]) -> Samples | None:
        """Samples of rows (n, d) in the order of their records; None if n < 4, or where they would cost too much."""
        rng, half = np.random.default_rng(seed), len(rows) // 2
        if half < 2:
            return None
        size = min(SAMPLE_ROWS, half)
        contexts, own = [], []
        for first, stop in ((0, half), (half, len(rows))):
            members = first + rng.choice(stop - first, size, replace=False)
            context = encode_sample(model, rows[members])
            if context is None:
                return None
            contexts.append(context)
            own.append(np.sort(sample_logits(model, context, np.delete(rows, members, axis=0))))
        return cls(tuple(contexts), np.array(own))

    def vote(self, model: ZeroShotModel, rows: Float) -> Float:
        """The mean (n,) of the votes of both on rows (n, d)."""
        logits = (sample_logits(model, context, rows) for context in self.contexts)
        old, new = (vote(p_values(*pair)) for pair in zip(logits, self.own, strict=True))
        return (old + new) / 2.0

    @classmethod
    def from_arrays(cls, arrays: Arrays, model: ZeroShotModel) -> Samples | None:
        """The samples from the arrays of `flatten`; None if there are none."""
        if "samples.own" not in arrays:
            return None
        kind, names = context_type(model), ("samples.contexts.0", "samples.contexts.1")
        contexts = tuple(unflatten(kind, arrays, name, model.device) for name in names)
        return cls(contexts, np.array(arrays["samples.own"]))
