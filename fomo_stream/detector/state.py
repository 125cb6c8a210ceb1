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
from fomo_stream.detector.calibration import own_p_values, scores_among
from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.context import Context
from fomo_stream.detector.explaining import explain
from fomo_stream.detector.fingerprint import check_entries
from fomo_stream.detector.memory import Memory
from fomo_stream.detector.panel import Panel
from fomo_stream.detector.reasons import Explain, Reason
from fomo_stream.detector.regimes import Regimes
from fomo_stream.detector.results import Results, Scores
from fomo_stream.detector.series import Seen, Series
from fomo_stream.detector.standing import Standing, generation_age, trimmed_rows
from fomo_stream.detector.views import View
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class DetectorState:
    """Everything that the results of the next records depend on.

    views: those in use; fingerprint: of the detector; a saved state with another one is refused. See `Detector` for the
    other parameters.
    """

    def __init__(
        self,
        model: ZeroShotModel,
        n_features: int,
        views: tuple[View, ...],
        config: DetectorConfig,
        executor: Executor | None,
        categorical: tuple[int, ...],
        fingerprint: Mapping[str, Any],
    ) -> None:
        self.config = config
        self._model = model
        movement = any(view.sees == "movement" for view in views)
        self.series = Series(n_features, config.lags, movement)
        self.context = Context(n_features, views, movement, config, categorical)
        self.panel = Panel(views, model, executor)
        self.memory = Memory(config.memory)
        self.alerts = Alerts(config)
        self.regimes = Regimes(config.adapt_after)
        self._steps = 0  # since the warm-up
        self._begin_log(fingerprint)

    @property
    def records(self) -> int:
        """Number of the next record."""
        return self.context.history.records

    @property
    def standing(self) -> Standing:
        """See `Detector.standing`."""
        panel, records = self.panel, self.records
        rows, trimmed = len(self.context.pool), trimmed_rows(panel)
        age = generation_age(panel, records)
        return Standing(records, rows, trimmed, panel.generation, age, self.regimes.number, self.regimes.drift)

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
        return self._explained(results.of_series(seen.slots, seen.begins), seen)

    def explain(self, planes: Float, number: int) -> tuple[Reason, ...]:
        """The reasons of the record of this number, which is not learned yet, from its planes (planes, d)."""
        config, categorical = self.config, self.context.categorical
        return explain(self._model, self.panel.lenses(number), planes, config.lags, categorical, config.reasons)

    def _explained(self, results: Results, seen: Seen) -> Results:
        """The results of the next records, with reasons where they are wanted."""
        n, planes, which = len(results), seen.planes, Explain(self.config.explain)
        if which is Explain.NONE:
            return results
        wanted = set(range(n)) if which is Explain.ALL else set(np.flatnonzero(results.outlier).tolist())
        if not wanted:
            return results
        return results.explained([self.explain(planes[i], self.records + i) if i in wanted else () for i in range(n)])

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
        p, score = own_p_values(remembered), scores_among(remembered, np.sort(remembered))
        found = Results.of(first, remembered, score, p, self.regimes.number, len(first), self.alerts.threshold)
        return found.of_series(slots[at], begins[at])

    def begin(self) -> None:
        """End the warm-up: the first generations take effect at once."""
        self.alerts.begin(self.records)
        self.regimes.begin()
        for at in range(len(self.panel.views)):
            self.panel.add(at, self.context.blueprint(at, 1, self.records))

    def _rescore(self) -> None:
        """Let new generations score earlier records again, so that all scores of a view are of one generation."""
        history, first = self.context.history, self.records
        for at, (numbers, logits) in self.panel.rescored():
            first = min(first, history.rescore(at, numbers, logits))
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
        for turn in range(len(self.panel.views)):
            at = (self._steps + turn) % len(self.panel.views)
            timeline = self.panel.timelines[at]
            if timeline.next is None and self.context.is_due(at):
                takes_effect = self.records + self.config.lag
                self.panel.add(at, self.context.blueprint(at, timeline.number + 1, takes_effect))
                break  # one at a step, so that no two take effect together
        self._steps += 1

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
        self._steps = counters["steps"]
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
        own = {"steps": self._steps, "views": self.panel.counters()}
        return self.context.counters() | self.alerts.counters() | self.regimes.counters() | own

    def _begin_log(self, fingerprint: Mapping[str, Any]) -> None:
        """Start with an empty log."""
        self._fingerprint = fingerprint
        self._fingerprint_log, self._counters_log = Document(), Document()
