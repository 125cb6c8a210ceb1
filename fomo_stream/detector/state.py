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
from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.context import Context
from fomo_stream.detector.explaining import Explainer
from fomo_stream.detector.fingerprint import check_entries
from fomo_stream.detector.memory import Memory
from fomo_stream.detector.panel import Panel
from fomo_stream.detector.reasons import Reason
from fomo_stream.detector.regimes import Regimes
from fomo_stream.detector.results import Results, Scores
from fomo_stream.detector.series import Seen, Series
from fomo_stream.detector.standing import Standing, standing_of
from fomo_stream.detector.views import View

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class DetectorState:
    """Everything that the results of the next records depend on.

    views: those in use; fingerprint: of the detector; a saved state with another one is refused; explainer: it has the
    model. See `Detector` for the other parameters.
    """

    def __init__(
        self,
        n_features: int,
        views: tuple[View, ...],
        config: DetectorConfig,
        executor: Executor | None,
        categorical: tuple[int, ...],
        fingerprint: Mapping[str, Any],
        explainer: Explainer,
    ) -> None:
        self.config = config
        self._explainer = explainer
        movement = any(view.sees == "movement" for view in views)
        self.series = Series(n_features, config.lags, movement)
        self.context = Context(n_features, views, movement, config, categorical)
        self.panel = Panel(views, explainer.model, executor)
        self.memory = Memory(config.memory)
        self.alerts = Alerts(config)
        self.regimes = Regimes(config.adapt_after)
        self._begin_log(fingerprint)

    @property
    def records(self) -> int:
        """Number of the next record."""
        return self.context.history.records

    @property
    def standing(self) -> Standing:
        """See `Detector.standing`."""
        return standing_of(self.records, self.context, self.panel, self.regimes)

    @property
    def room(self) -> int:
        """How many of the next records can be scored before any of them is learned; at least 1."""
        if not self.panel.generation:
            return max(1, self.config.min_context - self.context.max_rows)
        until_next = self.panel.until_next(self.records)
        unplanned = self.alerts.stepped + STEP + self.config.lag - self.records  # the next step may add a generation
        return unplanned if until_next is None else min(until_next, unplanned)

    def is_ready(self, stop: int) -> bool:
        """Whether the records before number `stop` can be processed without waiting."""
        return all(build.done for build in self.panel.needed(stop))

    def scores(self, planes: Float) -> Scores:
        """Scores of planes (n, planes, d) as the next n records."""
        rows = [self.context.view_columns(view, planes) for view in self.panel.views]
        return self.panel.scores(rows, self.records)

    def judge(self, scores: Scores, seen: Seen, learn: bool) -> Results:
        """Results of the next records. learn: whether the following records remember them."""
        if not self.panel.generation:
            return Results.nothing(scores).of_series(seen.slots, seen.begins)
        self._rescore()
        remember = self.memory.remember if learn else self.memory.peek
        remembered = remember(scores.logit, seen.slots, seen.begins)
        results = self.alerts.judge(scores, remembered, self.regimes.number, self.context.history)
        results = results.of_series(seen.slots, seen.begins)
        return self._explainer.explained(results, seen.planes, self.panel, self.records)

    def explain(self, seen: Seen) -> list[tuple[Reason, ...]]:
        """The reasons of the next records."""
        return self._explainer.reasons_of_all(seen.planes, self.panel, self.records)

    def process(self, seen: Seen, known: Scores | None = None) -> Results:
        """Score and learn the next records. known: their scores, if no record was learned since."""
        parts, start = [Results.nothing(Scores.unknown(0, len(self.panel.views)))], 0
        while start < len(seen.planes):  # without records nothing changes: verdicts wait for the next one
            self.context.apply_verdicts()
            part = seen.part(slice(start, start + self.room))
            if known is None or start or not self.panel.generation:  # what was learned may have changed the scores
                scores = self.scores(part.planes)
            else:
                scores = known[: len(part.planes)]
            parts.append(self.learn(part, scores))
            start += len(part.planes)
        return Results.concatenate(parts)

    def learn(self, seen: Seen, scores: Scores) -> Results:
        """Judge the next records, with these scores, and learn them: their results."""
        if not self.panel.generation:
            self.context.take_first(seen)
            if len(self.context.pool) >= self.config.min_context:
                self.begin()
            return Results.nothing(scores).of_series(seen.slots, seen.begins)
        parts, start = [], 0
        while start < len(scores):  # up to the next step or the next generation, whichever comes first
            until_step = STEP - (self.records - self.alerts.stepped)
            until_next = self.panel.until_next(self.records)
            stop = start + (until_step if until_next is None else min(until_step, until_next))
            part = slice(start, min(stop, len(scores)))
            these, now = seen.part(part), scores[part]
            parts.append(self.judge(now, these, learn=True))
            self.context.history.append(these, now.by_view, parts[-1].remembered_logit)
            self.alerts.count(parts[-1])
            is_step = self.records - self.alerts.stepped == STEP
            if is_step:
                self._watch()
            self.panel.advance(self.records)
            if is_step:
                self._step()
            start = part.stop
        return Results.concatenate(parts)

    def cross_scored(self) -> Results:
        """See `Detector.cross_scored`."""
        numbers, first = self.panel.first_scores(self.records)
        if not len(first):
            return Results.nothing(first)
        slots, begins = self.context.history.series(int(numbers[0]), self.records)
        at = numbers - numbers[0]
        remembered = Memory(self.config.memory).remember(first.logit, slots[at], begins[at])
        found = self.alerts.judge_first(first, remembered, self.regimes.number).of_series(slots[at], begins[at])
        return self._explainer.cross_explained(found, self.context.history.planes(numbers), self.panel, numbers)

    def begin(self) -> None:
        """End the warm-up: the first generations take effect at once."""
        self.alerts.begin(self.records)
        self.regimes.begin()
        self.panel.begin(self.context)

    def _rescore(self) -> None:
        """Let new generations score earlier records again, so that all scores of a view are of one generation."""
        history = self.context.history
        first = min((history.rescore(at, *found) for at, found in self.panel.rescored()), default=self.records)
        if first < self.records:
            logits = Scores.mean(history.logits(first, self.records))
            history.remember(first, self.memory.replay(logits, *history.series(first, self.records)))
            self.alerts.refresh()

    def _watch(self) -> None:
        """Every `STEP` records: look for a new regime, by the generations that scored these records."""
        if (odd := self.panel.is_odd(self.context.history.logits(self.records - STEP, self.records))) is not None:
            self.regimes.watch(odd[0], ~odd[1])

    def _step(self) -> None:
        """Every `STEP` records: learn, and trigger a new generation of one view if it is due."""
        self.alerts.step(self.records)
        self.context.step(STEP)
        self.panel.renew(self.context, self.records + self.config.lag)

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """See `Detector.changes`."""
        counters = list(self._counters().values())  # without their names, as they are written at every commit
        return {
            **self._fingerprint_log.changes("fingerprint", json.dumps(self._fingerprint).encode()),
            **self._counters_log.changes("counters", json.dumps(counters, separators=(",", ":")).encode()),
            **self.panel.changes(),
            **self.context.changes(),
            **self.memory.changes(),
            **{f"follow/{name}": value for name, value in self.series.changes().items()},
        }

    def recover(self, entries: StoredEntries, known: DetectorState | None) -> None:
        """See `Detector.recover`. known: a state of the same model."""
        self._begin_log(self._fingerprint)
        check_entries(self._fingerprint_log, entries, self._fingerprint)
        found = json.loads(self._counters_log.recover(entries, "counters"))
        counters = dict(zip(self._counters(), found, strict=True))
        self.context.recover(entries, counters)
        self.panel.recover(entries, counters["views"], self.context, None if known is None else known.panel)
        self.alerts.recover(counters)
        self.regimes.recover(counters)
        self.panel.steps = counters["steps"]
        self.memory.recover(entries)
        self.series.recover({name[7:]: value for name, value in entries.items() if name.startswith("follow/")})

    def copy(self, views: tuple[View, ...], fingerprint: Mapping[str, Any], more: int = 0) -> DetectorState:
        """An independent state, with `more` further features that no row has. Encoded contexts are shared.

        views: those of its views that it keeps.
        """
        twin = copy(self)
        twin.series, twin.memory = self.series.copy(more), self.memory.copy()
        twin.context, twin.alerts, twin.regimes = self.context.copy(more, views), self.alerts.copy(), copy(self.regimes)
        twin.panel = self.panel.copy(views, self.config.lags, more)
        twin._begin_log(fingerprint)
        return twin

    def _counters(self) -> dict[str, Any]:
        """The part of the state that is plain numbers, always in the same order."""
        own = {"steps": self.panel.steps, "views": self.panel.counters()}
        return self.context.counters() | self.alerts.counters() | self.regimes.counters() | own

    def _begin_log(self, fingerprint: Mapping[str, Any]) -> None:
        """Start with an empty log."""
        self._fingerprint = fingerprint
        self._fingerprint_log, self._counters_log = Document(), Document()
