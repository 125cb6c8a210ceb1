"""A detector with one set of contexts: of a partition, or of a busy key of it. A pure state machine.

See `detector` for what a result depends on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.alerts import Alerts, Shifts
from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.detector.config import LEAST_CONTEXT, STEP, DetectorConfig, check_entries, fingerprint_of
from fomo_stream.detector.context import Context
from fomo_stream.detector.explaining import Explainer
from fomo_stream.detector.generation import Generation
from fomo_stream.detector.history import History
from fomo_stream.detector.keys import WHOLE, Key, Keys
from fomo_stream.detector.panel import Build, Panel
from fomo_stream.detector.rarity import is_calibrated
from fomo_stream.detector.results import DetectorSummary, Reason, Results, Scores
from fomo_stream.detector.seasons import Cycle
from fomo_stream.detector.series import MEMORY, MOVEMENT, Series
from fomo_stream.detector.step.follow import Batch
from fomo_stream.detector.step.judge import ODD, UNKNOWN
from fomo_stream.detector.views import LeftOut, View, fitting
from fomo_stream.errors import SchemaError, StateError
from fomo_stream.model.bulk import Bulk
from fomo_stream.model.config import VALUE_LIMIT, Model

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

LASTING = 500  # records that an encoding has scored before it is written: in a young stream most are replaced sooner


class Inspection(NamedTuple):
    """What a detector is made of at one moment."""

    pool: Int  # ascending numbers of the records that may become context of the history
    generations: dict[str, Generation]  # by view: the one that scores the next record; none while warming up
    following: tuple[str, ...]  # views that have a next generation, too
    own: Mapping[bytes, bool]  # by digest of each key with contexts of its own: whether they score it already


class SingleDetector:
    """Scores and learns rows, with the same contexts for all of them. Arguments and results: see `Detector`."""

    def __init__(
        self,
        model: Model,
        n_features: int,
        config: DetectorConfig | None = None,
        executor: Executor | None = None,
        categorical: tuple[int, ...] = (),
        counters: tuple[int, ...] = (),
        keeps_encodings: bool = True,
        prior: float = 0.0,
    ) -> None:
        """keeps_encodings: whether those that have lasted are written to the log, so that they are not made again.

        prior: if all rows are of one key: records that what is usual for it, as another detector says, counts as.
        """
        self.model = model
        self.n_features = n_features
        self.categorical, self.counters = categorical, counters
        self.config = config = config or DetectorConfig()
        self.views, self.left_out = _fitting(model, n_features, config, categorical)
        self._explainer = Explainer(model, config, categorical)
        movement = any(view.sees == "movement" for view in self.views)
        relative = any(view.is_of_keys for view in self.views)
        if prior:  # another detector follows it
            self._series = Series(0, 0, movement=False, max_keys=1, relative=False)
        else:
            self._series = Series(
                n_features,
                config.lags,
                movement,
                config.keys,
                relative,
                categorical,
                counters,
                tuple(Cycle(*cycle) for cycle in config.cycles),
            )
        # what is usual at a time stays as it is, however many records the key has
        weighed = 0.0 if config.cycles else prior
        self._context = Context(n_features, self.views, movement, config, categorical, weighed)
        numeric = ~np.isin(np.arange(n_features), categorical)
        self._panel = Panel(self.views, model, executor, config.lags, numeric)
        self._alerts = Alerts(config, self._series.keys)
        self._shifts = Shifts(config.adapt_after)
        self._ahead = 0.0  # see `for_partition`
        self._keeps_encodings = keeps_encodings
        self._scaled = 0  # records when what is usual for all keys was learned; see `_learn_scale`
        self._has_noted_first = False  # the scores that the records of the warm-up get afterwards
        self._begin_log()

    @property
    def context_rows(self) -> int:
        """Rows in the reservoir now; verdicts given since the last record may still change that."""
        return len(self._context.pool)

    @property
    def context_numbers(self) -> Int:
        """Numbers (n,) of the records in the present context of the first view; empty while warming up."""
        current = self._panel.timelines[0].current
        return np.zeros(0, dtype=np.int64) if current is None else current.result().numbers

    @property
    def summary(self) -> DetectorSummary:
        """How it is doing. Safe from any thread."""
        panel = self._panel
        age = panel.generation_age(self.records)
        generation = panel.generation
        rows, trimmed, keys = self.context_rows, panel.trimmed_rows, self._series.keys
        counts = self.records, rows, trimmed, generation, age
        return DetectorSummary(*counts, self._shifts.drift, len(keys), keys.forgotten)

    def inspect(self) -> Inspection:
        """A look inside, which changes nothing; it waits for generations that are being built."""
        timelines = self._panel.timelines
        generations = {each.view.name: each.current.result() for each in timelines if each.current is not None}
        following = tuple(each.view.name for each in timelines if each.next is not None)
        return Inspection(self._context.pool.numbers, generations, following, {})

    @property
    def records(self) -> int:
        """Records processed: the number of the next one."""
        return self.history.records

    @property
    def history(self) -> History:
        """Its last records."""
        return self._context.history

    @property
    def keys(self) -> Keys:
        """What is kept of the series."""
        return self._series.keys

    @property
    def _has_contexts(self) -> bool:
        """Whether the warm-up is over."""
        return self._panel.timelines[0].current is not None

    @property
    def shifts(self) -> int:
        """See `Detector.shifts`."""
        return self._shifts.number

    @property
    def is_calibrated(self) -> bool:
        """Whether it has seen enough records to call one an outlier."""
        return self.generation > 0 and is_calibrated(self.records, self.config.alert_rate)

    @property
    def generation(self) -> int:
        """Counts the contexts that took effect so far, from 1; 0 while warming up."""
        return self._panel.generation

    @property
    def room(self) -> int:
        """How many of the next records can be scored before any of them is learned; at least 1."""
        if not self._has_contexts:
            return max(1, self.config.min_context - self._context.max_rows)
        stepped = self._alerts.stepped
        until_next = self._panel.until_next(self.records)
        unplanned = stepped + STEP + self.config.lag - self.records  # the next step may add a generation
        if self._series.max_keys - len(self._series.keys) < unplanned:
            unplanned = stepped + STEP - self.records  # ... or forget keys, of which records are followed already
        scaled = stepped + max(1, -(-(2 * self._scaled - stepped) // STEP)) * STEP - self.records
        return min(unplanned, scaled) if until_next is None else min(until_next, unplanned, scaled)

    def is_ready(self, n: int) -> bool:
        """Whether the next n records can be processed without waiting for a generation that is being built."""
        return all(build.done for build in self._panel.needed(self.records + n))

    # -- scoring and learning ------------------------------------------------------------------------------------

    def process(
        self,
        rows: Float,
        keys: Sequence[Key] | None,
        known: Scores | None = None,
        chosen: Bool | None = None,
        judged: Bool | None = None,
    ) -> tuple[Results, Float, Batch]:
        """Follow the series of rows (n, d), in order; score and learn all, or the m chosen ones (n,).

        judged: (m,) which of these have results, and are among those that later ones are compared with; None: all.
        known: scores (m,) of `score`, if no record was learned since. Returns the results; of all rows the logit (n,)
        of what is usual for their keys; and all rows with the past of their series.
        """
        rows = self._checked(rows)
        if chosen is None and 0 < len(rows) <= self.room:  # as usual
            batch = self._series.follow(rows, keys, self._panel.bulk(self.records))
            results, by_key = self._learn_next(batch, known if self._has_contexts else None, None, judged)
            return results, by_key, batch
        at = np.arange(len(rows)) if chosen is None else np.flatnonzero(chosen)
        by_key = np.full(len(rows), np.nan)
        parts, batches, start, done = list[Results](), list[Batch](), 0, 0
        while start < len(rows) or not batches:
            n = min(self.room, len(at) - done)
            # up to the last one of them: what is learned then counts for those that follow
            stop = int(at[done + n - 1]) + 1 if n else len(rows)
            of_part = None if keys is None else keys[start:stop]
            batch = self._series.follow(rows[start:stop], of_part, self._panel.bulk(self.records))
            batches.append(batch)
            if n < stop - start:
                mine = np.zeros(stop - start, bool)
                mine[at[done : done + n] - start] = True
                by_key[start:stop][~mine] = self.by_key(batch.part(np.flatnonzero(~mine)))
                batch = batch.part(np.flatnonzero(mine))
            if n:
                part = slice(done, done + n)
                its = None if known is None or done or not self._has_contexts else known[part]
                results, by_key[at[part]] = self._learn_next(batch, its, None, None if judged is None else judged[part])
                parts.append(results)
            start, done = stop, done + n
        nothing = [] if parts else [Results.nothing(Scores.unknown(0, self._context.n_shared))]
        return Results.concatenate(parts or nothing), by_key, Batch.concatenate(batches)

    def learn(self, batch: Batch, known: Scores | None, by_key: Float) -> Results:
        """Score records (n,), at least one, of one series that another detector follows, and learn them.

        known: as in `process`; by_key: (n,) what the other says of what is usual for the key.
        """
        parts, start, n = [], 0, len(batch.vectors)
        while start < n:
            part = slice(start, min(n, start + self.room))
            its = None if known is None or start or not self._has_contexts else known[part]
            parts.append(self._learn_next(batch.part(part), its, by_key[part], None)[0])
            start = part.stop
        return Results.concatenate(parts)

    def _learn_next(
        self, batch: Batch, known: Scores | None, by_key: Float | None, judged: Bool | None
    ) -> tuple[Results, Float]:
        """Learn records (n,) that there is room for; returns their results and the logit of what is usual for them."""
        if self._context.has_new_verdicts:
            self._apply_verdicts()
        weights = None if known is None else self.history.key_weights(self.records + np.arange(len(known)))
        scores = self._scores(batch, by_key) if known is None else replace(known, weight=weights)
        return self._learn(batch, scores, judged), scores.by_key

    def peek(self, rows: Float, keys: Sequence[Key] | None) -> Batch:
        """Rows (n, d) as the next n records, with the past of their series."""
        return self._series.peek(self._checked(rows), keys, self._panel.bulk(self.records))

    def pass_over(self, rows: Float, keys: Sequence[Key]) -> None:
        """Rows (n, d) that nothing is learned of but the totals of counters."""
        self._series.pass_over(self._checked(rows), keys)

    def borrow(self, other: SingleDetector) -> None:
        """Let scores refer to the records of another detector, too."""
        self._alerts.borrow(other._alerts)

    def score(self, batch: Batch, by_key: Float | None = None) -> Results:
        """Score records as the next ones without learning them. by_key: see `learn`."""
        return self._judge(batch, self._scores(batch, by_key), learn=False)

    def score_apart(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score rows (n, d) that are no stream."""
        batch = self.peek(rows, keys)
        scores = self._scores(batch)
        if not self._has_contexts:
            return Results.nothing(scores)
        self._note_first()
        results = self._asked.judge_apart(scores, self._context.history)
        return self._explainer.explained(results, batch, self._builds_from(self.records), self._series.pooled)

    def explain(self, batch: Batch, scores: Scores) -> list[tuple[Reason, ...]]:
        """The reasons (n,) of records with these scores, as some of the next ones."""
        builds, pooled = self._builds_from(self.records), self._series.pooled
        return [self._explainer.reasons(batch, i, scores, builds, pooled) for i in range(len(scores))]

    def seed_context(self, rows: Float, keys: Sequence[Key] | None = None) -> None:
        """Start warm from trusted rows (n, d)."""
        rows = self._checked(rows)
        if self.records:
            raise StateError("a context can be seeded only before the first record")
        if len(rows) < LEAST_CONTEXT:
            raise SchemaError(f"a seed context needs at least {LEAST_CONTEXT} rows, got {len(rows)}")
        self._context.take_first(self._series.follow(rows, keys), confirmed=True)
        self._begin()

    def flush_warm_up(self) -> None:
        """Let scores begin now, with fewer than min_context rows. Raises SchemaError with fewer than 4 rows."""
        if not self._has_contexts:
            self._context.end_warm_up()
            self._begin()

    def cross_scored(self) -> Results:
        """See `Detector.cross_scored`."""
        numbers, first = self._panel.first_scores(self.records)
        known = np.flatnonzero(numbers >= self.history.oldest_scored)  # of a seed context perhaps not all
        numbers, first = numbers[known], first[known]
        if not len(first):
            return Results.nothing(first)
        history = self._context.history
        slots, begins = self._series_of(numbers)
        alerts, far = self._alerts.copy(Keys(0, MEMORY)), history.far(numbers)  # as if nothing were remembered yet
        if not self._has_noted_first:
            alerts.note(numbers, alerts.memory.remember(first, slots, begins, learn=False, far=far))
        results = alerts.judge_first(first, slots, begins, far)
        batch = history.batch(numbers, slots, begins)
        return self._explainer.explained(results, batch, self._explainer.halves(self._panel, numbers), None)

    def _scores(self, batch: Batch, by_key: Float | None = None) -> Scores:
        """Scores of the next records. by_key: (n,) what is usual for the key, if another detector knows it."""
        scores = self._panel.scores(batch, self.records)
        if by_key is None:
            return self._without_usual(batch, scores)
        weights = self.history.key_weights(self.records + np.arange(len(by_key)))
        return Scores.of(scores.by_view, scores.generation, scores.confidence, by_key, weights)

    def _without_usual(self, batch: Batch, scores: Scores) -> Scores:
        """These scores, less what makes records odd among all although it is usual for their keys, or not known."""
        pooled = self._series.pooled
        odd = np.flatnonzero((scores.logit > ODD) & (batch.slots > WHOLE))
        if pooled is None or not len(odd):
            return scores
        part, moves = batch.part(odd), MOVEMENT if self._series.movement else 0
        vectors = pooled.typical(part.vectors, moves, part.usual, self._series.is_numeric)
        changed = np.flatnonzero((vectors != part.vectors).any(axis=(1, 2)))
        if not len(changed):
            return scores
        odd, part = odd[changed], part._replace(vectors=vectors).part(changed)
        like = self._panel.scores(part, self.records, odd)
        logit = scores.logit.copy()
        logit[odd] = np.minimum(logit[odd], like.logit)
        return replace(scores, logit=logit)

    def by_key(self, batch: Batch) -> Float:
        """Logits (n,) of records of known keys in the view of what is usual for them."""
        return self._panel.by_key(self._context.view_columns(self.views[-1], batch.relative), self.records)

    def _judge(self, batch: Batch, scores: Scores, learn: bool) -> Results:
        """Results of the next records from their scores. learn: whether the following records remember them."""
        if not self._has_contexts:
            return Results.nothing(scores, batch.slots, batch.begins)
        self._note_first()
        alerts, history = self._alerts if learn else self._asked, self._context.history
        results = alerts.judge(scores, batch, history, learn)
        if self.config.still == "alert" and batch.still.any() and self.is_calibrated:
            results = results.with_alerts(np.flatnonzero(batch.still.any(axis=1)).tolist())
        return self._explainer.explained(results, batch, self._builds_from(self.records), self._series.pooled)

    def _builds_from(self, first: int) -> Callable[[int], list[tuple[View, Build]]]:
        return lambda i: self._panel.builds(first + i)

    def _learn(self, batch: Batch, scores: Scores, judged: Bool | None) -> Results:
        """Judge some of the next records, with these scores, and learn all: the results of those that are judged."""
        if not self._has_contexts:
            self._context.take_first(batch, scores)
            if self.context_rows >= self.config.min_context:
                self._begin()
            return Results.nothing(scores, batch.slots, batch.begins)
        parts, start = [], 0
        while start < len(scores):  # up to the next step or the next generation, whichever comes first
            until_step = STEP - (self.records - self._alerts.stepped)
            until_next = self._panel.until_next(self.records)
            stop = start + (until_step if until_next is None else min(until_step, until_next))
            part = slice(start, min(stop, len(scores)))
            its, its_scores = (batch, scores) if part.stop - start == len(scores) else (batch.part(part), scores[part])
            if judged is None or judged[part].all():
                results = self._judge(its, its_scores, learn=True)
                remembered, outlier = results.remembered_logit, results.outlier
            else:
                at, remembered = np.flatnonzero(judged[part]), np.full(len(its_scores), np.nan)
                results, outlier = (
                    self._judge(its.part(at), its_scores[at], learn=True),
                    np.zeros(len(its_scores), bool),
                )
                remembered[at], outlier[at] = results.remembered_logit, results.outlier
            self.history.append(its, its_scores, remembered, outlier)
            is_step = self.records - self._alerts.stepped == STEP
            if is_step:
                self._watch()
            self._panel.advance(self.records)
            if is_step:
                self._step()
            parts.append(results)
            start = part.stop
        return Results.concatenate(parts)

    def _begin(self) -> None:
        """End the warm-up: the first generations take effect at once."""
        self._alerts.begin(max(0, self.records - int(self._ahead * STEP)))
        self._series.forget()
        self._look_for_far()
        self._learn_scale()
        self._panel.begin(self._context)
        self._context.bring_forward(self._ahead)

    def _look_for_far(self) -> None:
        """After the warm-up: from now on far values of its records do not count in what is said of later ones."""
        history = self._context.history
        numbers = np.arange(history.oldest, self.records)
        values = history.vectors(numbers)[:, 0]
        bulk = Bulk.of_rows(values).without(self.categorical)
        if self._series.n_features and (far := np.asarray(bulk.far(values).any(axis=1))).any():
            values = np.where(history.gaps(numbers), np.nan, values)
            moves = self._series.learn_moves(values, history.series(history.oldest, self.records)[0], bulk)
            self._context.note_far(numbers, far, moves)

    def _learn_scale(self) -> None:
        """Learn what is usual for all keys together: after the warm-up, and when there are twice as many records.

        It takes effect at once, so `room` ends there.
        """
        self._scaled = self.records
        if not self._series.relative or not (len(self._series.keys) or self._series.seasons):
            return
        is_first, history = self._series.pooled is None, self._context.history
        sample = self._context.pool.quantiles
        self._series.learn_scale(sample)
        if is_first:
            numbers = np.arange(history.oldest, self.records)
            values = np.where(history.gaps(numbers), np.nan, history.vectors(numbers)[:, 0])
            values = Bulk.of_rows(values).without(self.categorical).limited(values)
            relative = self._series.learn_usual(values, history.series(history.oldest, self.records)[0])
            self._context.note_relative(numbers, relative)
            self._series.learn_scale(sample)

    def _note_first(self) -> None:
        """Once after the warm-up: let its records be among those that later ones are compared with."""
        if self._has_noted_first:
            return
        numbers, first = self._panel.first_scores(self.records)
        if (weights := self.history.key_weights(numbers)) is not None:
            by_key = self.history.by_key(numbers)
            first = Scores.of(first.by_view, first.generation, first.confidence, by_key, weights)
        remembered, known = np.full(len(numbers), np.nan), np.flatnonzero(numbers >= self.history.oldest_scored)
        slots, begins = self._series_of(numbers[known])
        far = self.history.far(numbers[known])
        remembered[known] = self._alerts.memory.remember(first[known], slots, begins, far=far)
        outlier = self._alerts.first_outliers(first, remembered)
        self._context.note_first(numbers, first.by_view, remembered, outlier)
        self._alerts.note(numbers, remembered)
        self._has_noted_first = True

    def _series_of(self, numbers: Int) -> tuple[Int, NDArray[np.bool_]]:
        """Series (n,) of records of the history, and whether each is the first of it."""
        first = int(numbers[0]) if len(numbers) else self.records
        slots, begins = self._context.history.series(first, self.records)
        return slots[numbers - first], begins[numbers - first]

    def _apply_verdicts(self) -> None:
        """Let the verdicts since the last record take effect, before the next one is learned."""
        if self._has_contexts:
            self._note_first()
            self._told(self._alerts)
        self._context.apply_verdicts()

    def _told(self, alerts: Alerts) -> Alerts:
        """Alerts after the verdicts since the last record have been told to them."""
        history = self._context.history
        for numbers, sign in zip(self._context.new_verdicts, (-1.0, 1.0), strict=True):
            alerts.note(numbers, history.remembered(numbers), sign)
        return alerts

    @property
    def _asked(self) -> Alerts:
        """The alerts as they will be when the next record is learned."""
        return self._told(self._alerts.copy()) if self._context.has_new_verdicts else self._alerts

    def _watch(self) -> None:
        """Every `STEP` records: look for a lasting shift, by the generations that scored these records."""
        if (odd := self._panel.is_odd(self._context.history.logits(self.records - STEP, self.records))) is not None:
            self._shifts.watch(odd[0], ~odd[1])

    def _step(self) -> None:
        """Every `STEP` records: learn, and trigger a new generation of one view if it is due."""
        self._alerts.step(self._context.history)
        self._context.step(STEP)
        self._series.forget()
        if self.records >= 2 * self._scaled:
            self._learn_scale()
        self._panel.renew(self._context, self.records + self.config.lag)

    # -- feedback ------------------------------------------------------------------------------------------------

    def feedback(self, numbers: Int, outlier: NDArray[np.bool_]) -> int:
        """See `Detector.feedback`."""
        new = self._context.feedback(dict(zip(map(int, numbers), map(bool, outlier), strict=True)))
        self._alerts.refresh()
        return new

    def numbers_of(self, rows: Float) -> list[Int]:
        """For each of rows (n, d), the numbers of the known records equal to it."""
        compared = np.setdiff1d(np.arange(self.n_features), self.counters)  # of counters their growth is kept
        return [self._context.history.find(row[: self.n_features], compared) for row in self._checked(rows)]

    def has_verdict(self, numbers: Int) -> NDArray[np.bool_]:
        """Whether there is feedback on known records, by number (k,)."""
        known: NDArray[np.bool_] = self._context.history.verdict(numbers) != UNKNOWN
        return known

    # -- state ---------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """See `Detector.changes`."""
        counters = list(self._counters().values())  # without their names, as they are written at every commit
        return {
            **self._fingerprint_log.changes("fingerprint", self._fingerprint_bytes),
            **self._counters_log.changes("counters", json.dumps(counters, separators=(",", ":")).encode()),
            **self._panel.changes(self.records - min(LASTING, self.config.context_size // 2), self._keeps_encodings),
            **self._context.changes(),
            **self._alerts.changes(),
            **{f"follow/{name}": value for name, value in self._series.changes().items()},
        }

    def recover(self, entries: StoredEntries, known: SingleDetector | None = None) -> None:
        """See `Detector.recover`."""
        self._begin_log()
        check_entries(self._fingerprint_log, entries, self._fingerprint)
        values = json.loads(self._counters_log.recover(entries, "counters"))
        counters = dict(zip(self._counters(), values, strict=True))
        self._context.recover(entries, "", *(counters[name] for name in self._context.scalars))
        panel = known._panel if known is not None and known.model is self.model else None
        self._panel.recover(entries, counters["views"], self._context, panel)
        self._alerts.recover(entries, "", *(counters[name] for name in self._alerts.scalars))
        self._shifts = Shifts(self.config.adapt_after)
        self._panel.steps, self._has_noted_first = counters["steps"], counters["noted"]
        self._scaled = counters["scaled"]
        self._series.recover({name[7:]: value for name, value in entries.items() if name.startswith("follow/")})

    def copy(self) -> SingleDetector:
        """An independent detector in the same state; encoded contexts, which are immutable, are shared."""
        twin = copy(self)
        twin._series = self._series.copy()
        twin._alerts = self._alerts.copy(twin._series.keys)
        twin._context, twin._panel, twin._shifts = self._context.copy(), self._panel.copy(), copy(self._shifts)
        twin._begin_log()
        return twin

    def for_partition(self, number: int) -> SingleDetector:
        """See `Detector.for_partition`."""
        twin, below = self.copy(), 1.0
        twin._ahead = 0.0
        while number:  # van der Corput's sequence: 1/2, 1/4, 3/4, 1/8, ...
            below /= 2.0
            twin._ahead += below * (number % 2)
            number //= 2
        if twin.generation:  # it has a seed context
            twin._alerts.begin(max(0, self.records - int(twin._ahead * STEP)))
            twin._context.bring_forward(twin._ahead)
        return twin

    def _checked(self, rows: Float) -> Float:
        """Rows (n, d + cycles) within the model's limits, NaN where they are not finite; rows (n, d) have no times.

        With counters there is one more column, the times, which may be missing.
        """
        rows, d = np.asarray(rows, dtype=np.float64), self.n_features
        if rows.ndim != 2 or not d + len(self.config.cycles) * (rows.shape[1] > d) <= rows.shape[1] <= self._widest:
            raise SchemaError(f"the detector takes rows of {d} features, got an array of shape {rows.shape}")
        if rows.shape[1] == self._widest and rows.flags.carray and not (np.abs(rows) > VALUE_LIMIT).any():
            return rows
        rows = np.where(np.isfinite(rows), np.clip(rows, -VALUE_LIMIT, VALUE_LIMIT), np.nan)
        return np.pad(rows, ((0, 0), (0, self._widest - rows.shape[1])), constant_values=np.nan)

    @property
    def _widest(self) -> int:
        """Columns of rows with places in cycles, and with counters also times."""
        return self.n_features + len(self.config.cycles) + bool(self.counters)

    def _counters(self) -> dict[str, Any]:
        """The part of the state that is plain numbers, always in the same order."""
        own = {"steps": self._panel.steps, "noted": self._has_noted_first, "views": self._panel.plain()}
        own["scaled"] = self._scaled
        return self._context.plain() | self._alerts.plain() | own

    def _begin_log(self) -> None:
        """Start with an empty log."""
        self._fingerprint = fingerprint_of(
            self.model, self.n_features, self.views, self.categorical, self.counters, self.config
        )
        self._fingerprint_bytes = json.dumps(self._fingerprint).encode()
        self._fingerprint_log, self._counters_log = Document(), Document()


def _fitting(
    model: Model, n_features: int, config: DetectorConfig, categorical: tuple[int, ...]
) -> tuple[tuple[View, ...], tuple[LeftOut, ...]]:
    """The views that rows of n_features fit, and those that they do not fit. Raises SchemaError if they fit none."""
    limit = model.config.raw_features
    limit -= limit > 1 and len(categorical) > 1  # pairs of categories take a column
    views, left_out = fitting(config.wanted_views, n_features, config.lags, limit)
    if not views:
        first = left_out[0]
        raise SchemaError(
            f"model {model.name} takes up to {first.limit} features in the view {first.view}, the rows have "
            f"{first.columns}",
            "name the features to use",
        )
    return views, left_out
