"""Generations: an immutable context, the scores that p-values refer to (`Blueprint`), and its encoding (`Build`)."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model import ContextCache, ZeroShotModel, encode_rows
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
    reference: Float  # scores, ascending

    def to_arrays(self, prefix: str) -> Snapshot:
        """Named arrays, for a snapshot."""
        return {
            f"{prefix}.numbers": np.array([self.number, self.takes_effect]),
            f"{prefix}.rows": self.rows,
            f"{prefix}.reference": self.reference,
            **{f"{prefix}.sketch.{name}": array for name, array in self.sketch.snapshot().items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Snapshot, prefix: str, like: QuantileSketch) -> Blueprint:
        """What `to_arrays` wrote; `like` has the settings of the sketch."""
        found = under(arrays, prefix)
        number, takes_effect = (int(v) for v in found["numbers"])
        sketch = QuantileSketch(like.n_features, like.half_life, like.size, like.chunk)
        sketch.restore(under(found, "sketch"))
        return cls(number, takes_effect, np.array(found["rows"]), sketch, np.array(found["reference"]))


class Build:
    """The encoded context of a blueprint: made in an executor at once, or in the thread that first asks for it."""

    def __init__(self, model: ZeroShotModel, blueprint: Blueprint, executor: Executor | None) -> None:
        self.blueprint = blueprint
        self._encode = partial(encode, model, blueprint)
        self._cache: ContextCache | None = None
        self._future: Future[ContextCache] | None = executor.submit(self._encode) if executor is not None else None

    @property
    def done(self) -> bool:
        """Whether `result` returns without waiting for another thread."""
        return self._future is None or self._future.done()

    def result(self) -> ContextCache:
        """The encoded context; waits if need be."""
        if self._cache is None:
            self._cache = self._encode() if self._future is None else self._future.result()
        return self._cache


def encode(model: ZeroShotModel, blueprint: Blueprint) -> ContextCache:
    """The one expensive step of learning."""
    return encode_rows(model, blueprint.rows, blueprint.sketch.knots())


def under(arrays: Snapshot, prefix: str) -> Snapshot:
    """The arrays whose names begin with `prefix.`, without it."""
    return {k.removeprefix(prefix + "."): v for k, v in arrays.items() if k.startswith(prefix + ".")}
