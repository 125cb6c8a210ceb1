"""Generations: an immutable context, its encoding, and the scores that p-values refer to."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model import ContextCache, ZeroShotModel, cross_scores, encode_rows, logits_of, row_keys
from fomo_stream.quantiles import QuantileSketch

Float = NDArray[np.float64]
Snapshot = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Blueprint:
    """All that a generation is made of; with the model, it determines the generation."""

    number: int
    takes_effect: int  # number of the first record that it scores
    rows: Float  # (n, d)
    sketch: QuantileSketch  # a copy that nothing updates
    recent: Float  # (m, d) rows of the last records, which the generation scores for reference
    older: (
        Float  # scores of records before those, for reference as they were; first generation: cross-scores of `recent`
    )

    def to_arrays(self, prefix: str) -> Snapshot:
        """Named arrays, for a snapshot."""
        return {
            f"{prefix}.numbers": np.array([self.number, self.takes_effect]),
            f"{prefix}.rows": self.rows,
            f"{prefix}.recent": self.recent,
            f"{prefix}.older": self.older,
            **{f"{prefix}.sketch.{name}": array for name, array in self.sketch.snapshot().items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Snapshot, prefix: str, like: QuantileSketch) -> Blueprint:
        """What `to_arrays` wrote; `like` has the settings of the sketch."""
        found = under(arrays, prefix)
        number, takes_effect = (int(v) for v in found["numbers"])
        sketch = QuantileSketch(like.n_features, like.half_life, like.size, like.chunk)
        sketch.restore(under(found, "sketch"))
        rows, recent, older = (np.array(found[name]) for name in ("rows", "recent", "older"))
        return cls(number, takes_effect, rows, sketch, recent, older)


@dataclass(frozen=True)
class Generation:
    """A blueprint carried out."""

    number: int
    cache: ContextCache
    reference: Float  # what p-values refer to, ascending

    @classmethod
    def build(cls, model: ZeroShotModel, blueprint: Blueprint) -> Generation:
        """Encode the context and score the recent rows with it: the one expensive step of learning."""
        cache = encode_rows(model, blueprint.rows, blueprint.sketch.knots())
        recent = held_out_logits(model, cache, blueprint.rows, blueprint.recent)
        if blueprint.number == 1:  # the same rows in both: cross-scored, and leave-one-out; the stricter counts
            return cls(1, cache, np.sort(np.maximum(blueprint.older, recent)))
        return cls(blueprint.number, cache, np.sort(np.concatenate([blueprint.older, recent])))


def held_out_logits(model: ZeroShotModel, cache: ContextCache, context: Float, rows: Float) -> Float:
    """Logits of rows (m, d), each as if it were not in the context (n, d) that the cache encodes: (m,).

    A row that is in the context once gets its leave-one-out logit. One that is there several times is scored as any new
    record equal to it would be, so that equal records stay tied.
    """
    own = cross_scores(model, context) if cache.own is None else cache.own[0].cpu().numpy().astype(np.float64)
    keys = row_keys(context)
    copies = Counter(keys)
    known = {key: logit for key, logit in zip(keys, own.tolist(), strict=True) if copies[key] == 1}
    wanted = dict(zip(row_keys(rows), rows, strict=True))
    fresh = [key for key in wanted if key not in known]
    if fresh:
        scored = logits_of(model, cache, np.array([wanted[key] for key in fresh]))
        known.update(zip(fresh, scored.tolist(), strict=True))
    return np.array([known[key] for key in row_keys(rows)])


class Build:
    """A generation in the making: in an executor at once, or in the thread that first asks for it."""

    def __init__(self, model: ZeroShotModel, blueprint: Blueprint, executor: Executor | None) -> None:
        self.blueprint = blueprint
        self._make = partial(Generation.build, model, blueprint)
        self._made: Generation | None = None
        self._future: Future[Generation] | None = executor.submit(self._make) if executor is not None else None

    @property
    def done(self) -> bool:
        """Whether `result` returns without waiting for another thread."""
        return self._future is None or self._future.done()

    def result(self) -> Generation:
        """The generation; waits if need be."""
        if self._made is None:
            self._made = self._make() if self._future is None else self._future.result()
        return self._made


def under(arrays: Snapshot, prefix: str) -> Snapshot:
    """The arrays whose names begin with `prefix.`, without it."""
    return {k.removeprefix(prefix + "."): v for k, v in arrays.items() if k.startswith(prefix + ".")}
