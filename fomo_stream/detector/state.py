"""The state of a detector, and the steps that change it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Executor
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.alerts import Alerts
from fomo_stream.detector.calibration import own_p_values, p_values
from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.context import Context
from fomo_stream.detector.fingerprint import check_entries
from fomo_stream.detector.results import Results
from fomo_stream.detector.timeline import Timeline
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class DetectorState:
    """Everything that the results of the next records depend on: context, generations and alerts.

    fingerprint: of the detector; a saved state with another one is refused. See `Detector` for the other parameters.
    """

    def __init__(
        self,
        model: ZeroShotModel,
        n_features: int,
        config: DetectorConfig,
        executor: Executor | None,
        categorical: tuple[int, ...],
        fingerprint: Mapping[str, Any],
    ) -> None:
        self.config = config
        self.context = Context(model, n_features, config, executor, categorical)
        self.timeline = Timeline(model, executor)
        self.alerts = Alerts(config)
        self._begin_log(fingerprint)

    @property
    def records(self) -> int:
        """Number of the next record."""
        return self.context.history.records

    @property
    def room(self) -> int:
        """How many of the next records can be scored before any of them is learned; at least 1."""
        if self.timeline.current is None:
            return max(1, self.config.min_context - self.context.max_rows)
        until_next = self.timeline.until_next(self.records)
        return self.config.lag if until_next is None else until_next

    def is_ready(self, stop: int) -> bool:
        """Whether the records before number `stop` can be processed without waiting."""
        builds = self.timeline.needed(stop)
        return self.context.regimes.is_ready(stop) and all(build.done for build in builds)

    def logits(self, rows: Float) -> tuple[Float, Int]:
        """Logits (n,), NaN while warming up, and generations (n,) of rows (n, d) as the next n records."""
        return self.timeline.logits(rows, self.records)

    def judge(self, logit: Float, generation: Int) -> Results:
        """Results of the next records from their logits (n,) and generations (n,)."""
        if self.timeline.current is None:
            return Results.nothing(len(logit))
        if (rescored := self.timeline.rescored()) is not None:  # so that all scores are of one generation
            self.context.history.rescore(*rescored)
            self.alerts.refresh()
        return self.alerts.judge(logit, generation, self.context.regimes.number, self.context.history)

    def learn(self, rows: Float, logit: Float, generation: Int) -> Results:
        """Judge the next records, rows (n, d) with these logits and generations, and learn them: their results."""
        if self.timeline.current is None:
            self.context.take_first(rows)
            if len(self.context.pool) >= self.config.min_context:
                self.begin()
            return Results.nothing(len(rows))
        parts = []
        while len(rows):  # up to the next step or the next generation, whichever comes first
            until_step = STEP - (self.records - self.alerts.stepped)
            until_next = self.timeline.until_next(self.records)
            n = until_step if until_next is None else min(until_step, until_next)
            parts.append(self.judge(logit[:n], generation[:n]))
            gate_p = p_values(logit[:n], self.timeline.current.result().sample_logits)
            self.context.history.append(rows[:n], logit[:n], gate_p)
            self.alerts.count(parts[-1])
            self.timeline.advance(self.records)
            if self.records - self.alerts.stepped == STEP:
                self._step()
            rows, logit, generation = rows[n:], logit[n:], generation[n:]
        return Results.concatenate(parts)

    def cross_scored(self) -> Results:
        """See `Detector.cross_scored`."""
        first = self.timeline.current
        if first is None or self.timeline.number > 1 or self.records > first.blueprint.takes_effect:
            return Results.nothing(0)
        logit = first.result().recent_logits
        ones = np.ones(len(logit), np.int64)
        regime, threshold = self.context.regimes.number, self.alerts.threshold
        return Results.of(logit, own_p_values(logit), ones, regime, len(logit), threshold)

    def begin(self) -> None:
        """End the warm-up: the first generation takes effect at once."""
        self.alerts.begin(self.records)
        self.context.end_warm_up()
        self.timeline.add(self.context.blueprint(1, self.records))

    def _step(self) -> None:
        """Every `STEP` records: learn, and trigger a new generation if enough has changed."""
        self.alerts.step(self.records)
        self.context.step(STEP)
        if self.timeline.next is None and self.context.is_due:
            self.timeline.add(self.context.blueprint(self.timeline.number + 1, self.records + self.config.lag))

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """See `Detector.changes`."""
        counters = list(self._counters().values())  # without their names, as they are written at every commit
        return {
            **self._fingerprint_log.changes("fingerprint", json.dumps(self._fingerprint).encode()),
            **self._counters_log.changes("counters", json.dumps(counters, separators=(",", ":")).encode()),
            **self.timeline.changes(),
            **self.context.changes(),
        }

    def recover(self, entries: StoredEntries, known: DetectorState | None) -> None:
        """See `Detector.recover`. known: a state of the same model."""
        self._begin_log(self._fingerprint)
        check_entries(self._fingerprint_log, entries, self._fingerprint)
        found = json.loads(self._counters_log.recover(entries, "counters"))
        counters = dict(zip(self._counters(), found, strict=True))
        self.context.recover(entries, counters)
        at_hand = None if known is None else known.timeline
        self.timeline.recover(entries, counters, self.context.quantiles.sketch, at_hand)
        self.alerts.recover(counters)

    def copy(self, fingerprint: Mapping[str, Any], more: int = 0) -> DetectorState:
        """An independent state, with `more` further features that no row has. Encoded contexts are shared."""
        twin = copy(self)
        twin.context, twin.timeline, twin.alerts = self.context.copy(more), self.timeline.copy(more), self.alerts.copy()
        twin._begin_log(fingerprint)
        return twin

    def _counters(self) -> dict[str, Any]:
        """The part of the state that is plain numbers, always in the same order."""
        return self.context.counters() | self.timeline.counters() | self.alerts.counters()

    def _begin_log(self, fingerprint: Mapping[str, Any]) -> None:
        """Start with an empty log."""
        self._fingerprint = fingerprint
        self._fingerprint_log, self._counters_log = Document(), Document()
