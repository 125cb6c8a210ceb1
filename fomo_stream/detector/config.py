"""The settings of a detector: how it keeps its context and calibrates its scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fomo_stream.detector.admission import RADIUS, Policy
from fomo_stream.errors import ConfigError
from fomo_stream.limits import MAX_CONTEXT

LEAST_CONTEXT = 4  # two halves of two rows can score each other
STEP = 32  # records between decisions


@dataclass(frozen=True)
class DetectorConfig:
    """The settings of a detector. All counts are records or rows."""

    context_size: int = 1000  # capacity of the reservoir
    min_context: int = 200  # rows before scores begin
    alert_rate: float = 0.01  # share of normal records that may be called outliers
    admit: str = "auto"  # admission policy: auto, feedback or all
    calibration_size: int = 2000  # recent records whose scores p-values refer to; more where the alert rate needs more
    feedback_memory: int = 5000  # last records, at least, that feedback can still be about
    adapt_after: int = 10_000  # records after which a lasting shift becomes the new normal; 0: never
    refresh: float = 0.2  # share of the reservoirs' rows that changed when a new generation is triggered
    lag: int = 256  # records between a trigger and its generation taking effect
    seed: int = 0

    def __post_init__(self) -> None:
        def check(name: str, low: float, high: float) -> None:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} must be between {low} and {high}, not {value}")

        check("context_size", LEAST_CONTEXT, MAX_CONTEXT)
        check("min_context", LEAST_CONTEXT, self.context_size)
        check("alert_rate", 1e-5, 0.5)
        check("calibration_size", 1, 1_000_000)
        check("feedback_memory", 0, 1_000_000)
        check("refresh", 0.01, 1.0)
        check("lag", 1, 1_000_000)
        check("seed", 0, 2**63 - 1)
        check("adapt_after", 0, 1_000_000)
        if self.admit not in list(Policy):
            raise ConfigError(f"admit must be one of {', '.join(Policy)}, not {self.admit!r}")

    @property
    def policy(self) -> Policy:
        """The admission policy."""
        return Policy(self.admit)

    @property
    def window_size(self) -> int:
        """Scores that p-values refer to: enough for p-values down to half the alert rate."""
        return max(self.calibration_size, int(np.ceil(2 / self.alert_rate)))

    @property
    def history_rows(self) -> int:
        """Records whose rows the history keeps: for feedback, for rescoring, and for the trial of a regime."""
        return max(self.calibration_size, self.feedback_memory, self.adapt_after + self.lag + RADIUS + 2 * STEP)

    @property
    def history_scores(self) -> int:
        """Records whose scores the history keeps."""
        return max(self.history_rows, self.window_size + STEP, self.context_size)
