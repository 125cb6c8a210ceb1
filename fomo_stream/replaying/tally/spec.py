"""What a tally counts, and the columns of a block that its parts share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Block

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]  # the state of a part, to be stored; no objects


@dataclass(frozen=True)
class TallySpec:
    """What a tally counts. `detectors` are the names of all, first the detector itself."""

    detectors: tuple[str, ...]
    features: tuple[str, ...]
    alert_rate: float
    has_labels: bool  # whether labels were given; if not, all are unknown
    axis: Literal["time", "record"] = "time"  # of `Block.times`
    categorical: frozenset[str] = frozenset()  # the features that are categories


class Columns:
    """A block as arrays over its n records and D detectors, in the order of the spec."""

    def __init__(self, spec: TallySpec, block: Block) -> None:
        judgements = [block.judgements[name] for name in spec.detectors]
        self.partition = block.partition
        self.offsets, self.times = block.offsets, block.times
        self.labels: NDArray[np.int8] = (
            np.maximum(block.labels, UNKNOWN) if spec.has_labels else np.full(len(block), UNKNOWN, np.int8)
        )
        self.scores: Float = np.array([judgement.score for judgement in judgements])  # (D, n)
        self.p_values: Float = np.array([judgement.p_value for judgement in judgements])
        self.alerts: Bool = np.array([judgement.alert for judgement in judgements])
        self.is_scored: Bool = ~np.isnan(self.scores)
        self.is_outlier: Bool = self.labels == OUTLIER
        self.is_inlier: Bool = self.labels == INLIER

    def __len__(self) -> int:
        return len(self.offsets)

    @cached_property
    def is_ranked(self) -> Bool:
        """Whether each record (n,) has a label and a score of every detector: only these can be compared."""
        return np.asarray(self.is_scored.all(axis=0) & (self.labels != UNKNOWN))


def part(arrays: Arrays, name: str) -> Arrays:
    """The arrays of one part, of those that `whole` has put together."""
    return {key[len(name) + 1 :]: value for key, value in arrays.items() if key.startswith(f"{name}.")}


def whole(**parts: Arrays) -> Arrays:
    """The arrays of several parts, with the names of the parts before theirs."""
    return {f"{name}.{key}": value for name, arrays in parts.items() for key, value in arrays.items()}
