"""What scoring a row gives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fomo_stream.calibration import is_calibrated

Float = NDArray[np.float64]


class Status(StrEnum):
    """What a record's score is worth."""

    WARMING_UP = "warming_up"  # too few rows for a context: no score
    CALIBRATING = "calibrating"  # scored, but too few scores for a p-value as small as the alert rate
    OK = "ok"


@dataclass(frozen=True)
class Scored:
    """Results for n rows, in row order."""

    score: Float  # (n,) in [0, 1], higher = more anomalous; NaN while warming up
    logit: Float  # (n,) what the score saturates from, for ranking; NaN while warming up
    p_value: Float  # (n,) NaN while warming up
    outlier: NDArray[np.bool_]  # (n,) False while warming up or calibrating
    generation: NDArray[np.int64]  # (n,) 0 while warming up
    status: list[Status]

    def __len__(self) -> int:
        return len(self.status)

    @classmethod
    def concatenate(cls, parts: list[Scored]) -> Scored:
        """The rows of all parts, in order."""
        if not parts:
            return cls.nothing(0)
        names = [f.name for f in fields(cls) if f.name != "status"]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**joined, status=[status for part in parts for status in part.status])

    @classmethod
    def nothing(cls, n: int) -> Scored:
        """n rows without a score."""
        unknown = np.full(n, np.nan)
        no = np.zeros(n, dtype=bool)
        return cls(unknown, unknown, unknown, no, np.zeros(n, np.int64), [Status.WARMING_UP] * n)

    @classmethod
    def of(cls, logit: Float, p_value: Float, generation: int, n_reference: int, alert_rate: float) -> Scored:
        """Scores with their alerts, from logits (n,) and p-values (n,) against n_reference scores."""
        n = len(logit)
        calibrated = is_calibrated(n_reference, alert_rate)
        return cls(
            score=sigmoid(logit),
            logit=logit,
            p_value=p_value,
            outlier=(p_value <= alert_rate) & calibrated,
            generation=np.full(n, generation),
            status=[Status.OK if calibrated else Status.CALIBRATING] * n,
        )


def sigmoid(logit: Float) -> Float:
    """1 / (1 + exp(-logit)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * logit))
