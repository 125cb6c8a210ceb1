"""The results of scoring rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.calibration import AlertThreshold, is_calibrated

Float = NDArray[np.float64]


class Status(StrEnum):
    """How far a record's score can be trusted."""

    WARMING_UP = "warming_up"  # too few rows for a context: no score
    CALIBRATING = "calibrating"  # a score, but too few scores before it for a p-value as small as the alert rate
    OK = "ok"


class Severity(IntEnum):
    """How rare a record is, by its p-value and the alert threshold."""

    NONE = 0
    INFO = 1  # at most INFO times the threshold: unusual, but no outlier
    WARNING = 2  # at most the threshold: an outlier
    CRITICAL = 3  # at most CRITICAL times the threshold


INFO, CRITICAL = 3.0, 0.1


@dataclass(frozen=True)
class Results:
    """Results for n rows, in row order."""

    score: Float  # (n,) in [0, 1], higher = more anomalous; NaN while warming up
    logit: Float  # (n,) the score before it saturates, for ranking; NaN while warming up
    p_value: Float  # (n,) NaN while warming up
    outlier: NDArray[np.bool_]  # (n,) False while warming up or calibrating
    generation: NDArray[np.int64]  # (n,) 0 while warming up
    regime: NDArray[np.int64]  # (n,) counts the lasting shifts that became the new normal, from 1; 0 while warming up
    severity: NDArray[np.int8]  # (n,) a `Severity`
    status: list[Status]

    def __len__(self) -> int:
        return len(self.status)

    @classmethod
    def concatenate(cls, parts: list[Results]) -> Results:
        """The rows of all parts, in order."""
        if not parts:
            return cls.nothing(0)
        names = [f.name for f in fields(cls) if f.name != "status"]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**joined, status=[status for part in parts for status in part.status])

    @classmethod
    def nothing(cls, n: int) -> Results:
        """Results of n rows without a score."""
        unknown = np.full(n, np.nan)
        no = np.zeros(n, dtype=bool)
        zero = np.zeros(n, np.int64)
        return cls(unknown, unknown, unknown, no, zero, zero, zero.astype(np.int8), [Status.WARMING_UP] * n)

    @classmethod
    def of(
        cls,
        logit: Float,
        p_value: Float,
        generation: NDArray[np.int64],
        regime: int,
        n_reference: int,
        threshold: AlertThreshold,
    ) -> Results:
        """Results from logits (n,) and p-values (n,) against n_reference scores."""
        n = len(logit)
        calibrated = is_calibrated(n_reference, threshold.alert_rate)
        severity = np.zeros(n, dtype=np.int8)
        if calibrated:
            for factor in (INFO, 1.0, CRITICAL):
                severity += p_value <= threshold.value * factor
        return cls(
            score=sigmoid(logit),
            logit=logit,
            p_value=p_value,
            outlier=severity >= Severity.WARNING,
            generation=generation,
            regime=np.full(n, regime),
            severity=severity,
            status=[Status.OK if calibrated else Status.CALIBRATING] * n,
        )


def sigmoid(logit: Float) -> Float:
    """1 / (1 + exp(-logit)), without overflow."""
    # one by one, because NumPy's last digits depend on the processor
    return np.array([0.5 * (1.0 + math.tanh(0.5 * x)) for x in logit.tolist()])
