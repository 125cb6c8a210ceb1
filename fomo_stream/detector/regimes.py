"""Regimes: shifts of a stream that last, and become the new normal."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.admission import is_lasting_shift
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.deferred import Deferred
from fomo_stream.detector.history import History
from fomo_stream.detector.trimming import is_consistent
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]

# a shift must last this many times the number of learned records, for a detector that has learned few
YOUNG = 5


class Trial(Deferred[bool]):
    """Tests whether records `first` to `stop` - 1 form one regime; the result is needed at record `due`."""

    def __init__(
        self,
        span: tuple[int, int, int],
        model: ZeroShotModel,
        rows: Float,
        categorical: tuple[int, ...],
        executor: Executor | None,
    ) -> None:
        self.first, self.stop, self.due = self.span = span
        super().__init__(partial(is_consistent, model, rows, categorical), executor, self.due)


class Regimes:
    """Watches for lasting shifts.

    A shift becomes a new regime if its later half looks normal in the context of its earlier half.
    """

    def __init__(
        self, model: ZeroShotModel, config: DetectorConfig, executor: Executor | None, categorical: tuple[int, ...]
    ) -> None:
        self.number = 0  # counts the regimes; 0 while warming up
        self.trial: Trial | None = None
        self._began = 0  # number of records when the regime began
        self._not_before = 0  # number of records before which no other trial begins
        self._config, self._model, self._executor, self._categorical = config, model, executor, categorical

    def begin(self, records: int) -> None:
        """Another regime begins with the next record, of number `records`."""
        self.number += 1
        self._began = records

    def is_ready(self, stop: int) -> bool:
        """Whether the records before number `stop` can be learned without waiting for a trial."""
        return self.trial is None or stop < self.trial.due or self.trial.done

    def watch(self, history: History, decided: int, learned: int) -> int | None:
        """First record of a new regime, if one is certain now: all its records before `decided` belong to it.

        decided: number of the first record that may still become context; learned: how many did so far.
        """
        if not self._adapts:
            return None
        if self.trial is not None:
            if history.records < self.trial.due:
                return None
            trial, self.trial = self.trial, None
            # in the meantime feedback may have called the shift a lasting incident
            if trial.result() and self._is_lasting(history, trial.first, decided):
                return trial.first
            self._not_before = history.records + (trial.stop - trial.first) // 4
        # a detector that has learned few records waits for fewer
        first = decided - min(self._config.adapt_after, YOUNG * learned)
        if first < self._began or history.records < self._not_before:
            return None
        if self._is_lasting(history, first, decided):
            self._try((first, decided, history.records + self._config.lag), history)
        return None

    @property
    def _adapts(self) -> bool:
        """Whether a lasting shift becomes the new normal."""
        return self._config.policy.adapts and self._config.adapt_after > 0

    @staticmethod
    def _is_lasting(history: History, first: int, decided: int) -> bool:
        return is_lasting_shift(*history.rejected(first, decided))

    def _try(self, span: tuple[int, int, int], history: History) -> None:
        rows = history.rows(np.arange(*span[:2]))
        self.trial = Trial(span, self._model, rows, self._categorical, self._executor)

    def counters(self) -> dict[str, Any]:
        """The state, as plain numbers."""
        trial = None if self.trial is None else self.trial.span
        return {"regime": self.number, "began": self._began, "not_before": self._not_before, "trial": trial}

    def recover(self, counters: Mapping[str, Any], history: History) -> None:
        """Take the state from the counters and a history in the same state."""
        self.number, self._began, self._not_before = (counters[name] for name in ("regime", "began", "not_before"))
        self.trial = None
        if counters["trial"] is not None and self._adapts:
            first, stop, due = counters["trial"]
            self._try((first, stop, due), history)

    def copy(self, history: History | None = None) -> Regimes:
        """Independent regimes in the same state; history: one with further features, to restart a trial from."""
        twin = copy(self)
        if self.trial is not None and history is not None:
            twin._try(self.trial.span, history)
        return twin
