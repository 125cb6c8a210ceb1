"""A scope: contexts, the records that they are made of, and those that alerts are compared with. A pure state machine.

A partition has one for all its records, and one for each of its busiest keys. `Detector` gives each record to those
that score and learn it. See there for what a result depends on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Executor
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.alerts import Alerts, Shifts
from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.detector.config import STEP, DetectorConfig, check_entries, fingerprint_of
from fomo_stream.detector.context import Context
from fomo_stream.detector.explaining import Explainer
from fomo_stream.detector.generation import Generation
from fomo_stream.detector.history import History
from fomo_stream.detector.keys import Keys
from fomo_stream.detector.rarity import is_calibrated
from fomo_stream.detector.results import Reason, Results, Scores
from fomo_stream.detector.row_spec import RowSpec
from fomo_stream.detector.series import MEMORY, Series
from fomo_stream.detector.step.follow import Batch
from fomo_stream.detector.step.judge import ADDRESSED_UNTIL, BOUND, EARLIER_LOGITS, FIXED, RECORDS, ROOM_END, UNKNOWN
from fomo_stream.detector.step.judge import MEMORY as MEMORY_OF_SERIES
from fomo_stream.detector.view_set import ViewSet
from fomo_stream.detector.views import LeftOut, View, fitting
from fomo_stream.errors import SchemaError
from fomo_stream.model.architecture import Model
from fomo_stream.model.bulk import Bulk
from fomo_stream.model.kernels.handles import Handle
from fomo_stream.model.quantile_map import SortedColumns

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

COMPACT_JSON = json.JSONEncoder(separators=(",", ":")).encode
MIN_SCORED_RECORDS = 500  # that an encoding has scored before it is written: in a young stream most do not last so long


class Inspection(NamedTuple):
    """The parts of a detector at one moment."""

    reservoir: Int  # ascending numbers of the records in the reservoir
    generations: dict[str, Generation]  # by view: the one that scores the next record; none while warming up
    following: tuple[str, ...]  # views that have a next generation, too
    own: Mapping[bytes, bool]  # by digest of each key with contexts of its own: whether they score it already


class Scope:
    """Contexts of all views, what they are drawn from, and what alerts are compared with, for all records given to it.

    series: of these records; keeps_encodings: whether encodings that have lasted are written to the log, so that they
    are not made again; prior: in the scope of a key: the weight, in records, of the key's view of the partition; 0 in
    the scope of the partition. Others: see `Detector`.
    """

    def __init__(
        self,
        model: Model,
        spec: RowSpec,
        config: DetectorConfig,
        executor: Executor | None,
        series: Series,
        keeps_encodings: bool = True,
        prior: float = 0.0,
    ) -> None:
        self.model, self.spec, self.config, self.series = model, spec, config, series
        self.views, self.left_out = fitting_views(model, spec, config)
        self.explainer = Explainer(model, config, spec.categorical)
        movement = any(view.input == "movement" for view in self.views)
        # what is usual at a time stays as it is, however many records the key has
        self.prior = 0.0 if config.cycles else prior
        of_rows = spec.n_features, self.views, movement, config, spec.categorical
        self.context = Context(*of_rows, self.prior, model.config.has_quantile_map)
        self.view_set = ViewSet(self.views, model, executor, config.lags, spec.numeric)
        self.alerts = Alerts(config, series.keys)
        self._shifts = Shifts(config.adapt_after)
        self._ahead = 0.0  # see `Detector.staggered`
        self._keeps_encodings = keeps_encodings
        self.scaled = 0  # records when what is usual for all keys was learned; see `_learn_scale`
        self._has_noted_first = False  # the scores that the records of the warm-up get afterwards
        self._admitted = 0  # records of the warm-up that are context
        self._next_alerts: Alerts | None = None  # see `next_alerts`; the compiled step has its address
        # see `changes`; None: since its last call, something else than the compiled step may have changed the state
        self._plain: dict[str, Any] | None = None
        self._fixed: Handle | None = None
        self._memory: tuple[Any, Handle] | None = None  # what is remembered of series: its columns, and their handle
        self._begin_log()

    @property
    def context_rows(self) -> int:
        """Rows in the reservoir now; verdicts given since the last record may still change that."""
        return len(self.context.reservoir)

    @property
    def records(self) -> int:
        """Records learned: the number of the next one."""
        return int(self.context.history.tally[RECORDS])

    @property
    def history(self) -> History:
        """Its last records."""
        return self.context.history

    @property
    def has_contexts(self) -> bool:
        """Return whether the warm-up is over."""
        return self.view_set.view_contexts[0].current is not None

    @property
    def shifts(self) -> int:
        """See `Detector.shifts`."""
        return self._shifts.number

    @property
    def drift(self) -> float:
        """See `DetectorSummary`."""
        return self._shifts.drift

    @property
    def is_calibrated(self) -> bool:
        """Return whether it has seen enough records to call one an outlier."""
        return self.generation > 0 and is_calibrated(self.records, self.config.alert_rate)

    @property
    def generation(self) -> int:
        """Counts the contexts that took effect so far, from 1; 0 while warming up."""
        return self.view_set.generation

    @property
    def room(self) -> int:
        """The number of next records that can be scored before any of them is learned; at least 1."""
        if self.records >= self.history.tally[ROOM_END]:
            self.find_room()
        return int(self.history.tally[ROOM_END]) - self.records

    def find_room(self) -> None:
        """Find again up to which record there is room."""
        self.history.tally[ROOM_END] = self.records + self._room()

    @property
    def ahead(self) -> int:
        """The number of next records whose generations are there or are being built; at least 1."""
        return self.alerts.stepped + STEP + self.config.lag - self.records if self.has_contexts else self.room

    def _room(self) -> int:
        if not self.has_contexts:
            return max(1, self.config.min_context - self.context.max_rows)
        stepped, keys = self.alerts.stepped, self.series.keys
        unplanned = stepped + STEP + self.config.lag - self.records  # the next step may add a generation
        if not self.series.n_features:  # the scope of a key: that of the partition follows its records
            return unplanned
        until_bulk = self.view_set.until_next_bulk(self.records)
        if self.series.max_keys - len(keys) < unplanned:
            unplanned = stepped + STEP - self.records  # ... or forget keys that have records among these
        scaled = stepped + max(1, -(-(2 * self.scaled - stepped) // STEP)) * STEP - self.records
        return min(unplanned, scaled) if until_bulk is None else min(until_bulk, unplanned, scaled)

    def drop_addresses(self) -> None:
        """Forget addresses and room: call it after a change of contexts, earlier logits or verdicts."""
        self.history.tally[[ROOM_END, ADDRESSED_UNTIL]], self._next_alerts = 0, None
        self._plain = None

    def inspect(self) -> Inspection:
        """See `Detector.inspect`."""
        view_contexts = self.view_set.view_contexts
        generations = {each.view.name: each.current.result() for each in view_contexts if each.current is not None}
        following = tuple(each.view.name for each in view_contexts if each.next is not None)
        return Inspection(self.context.reservoir.numbers, generations, following, {})

    def n_ready(self, least: int) -> int:
        """Return how many of the next records can be processed without waiting for a generation that is being built.

        Of later ones than `ahead`, or than `least`, that is not known.
        """
        known, end = max(self.ahead, least), self.view_set.until_wait(self.records)
        return known if end is None else min(known, end)

    # -- the compiled step ---------------------------------------------------------------------------------------

    def has_addresses(self, n: int) -> bool:
        """Return whether the addresses of `write_addresses` are still valid for the next n records."""
        # columns get new memory when there are more series
        has_memory = self._memory is not None and self._memory[0][0] is self.series.keys.columns["mean"]
        return has_memory and self.records + n <= int(self.history.tally[ADDRESSED_UNTIL])

    def write_addresses(self, addresses: Int, plan: Int, n: int) -> None:
        """Write into addresses (N_ADDRESSES,) and plan (views, PLAN_SIZE) where the compiled step finds its arrays."""
        self.view_set.plan(plan, self.records + n)
        if self.has_contexts:
            self.note_first()
        keys = self.series.keys.columns
        columns = keys["mean"], keys["logits"], keys["open"]
        if self._memory is None or self._memory[0][0] is not columns[0]:
            self._memory = columns, Handle(columns)
        if self._fixed is None:
            self._fixed = Handle(*self.history.rings, *self.alerts.kernel_arrays)
        addresses[FIXED], addresses[MEMORY_OF_SERIES] = self._fixed.address, self._memory[1].address
        addresses[EARLIER_LOGITS] = self.next_alerts.earlier_logits(self.history).address if self.has_contexts else 0
        self.history.tally[BOUND] = self._bound
        self.history.tally[ADDRESSED_UNTIL] = self.view_set.planned_until(self.records + n)

    @property
    def bound(self) -> int:
        """Number of records at which the compiled step stops."""
        return int(self.history.tally[BOUND])

    @property
    def _bound(self) -> int:
        """The number of records at which the compiled step has to stop, because there is more to do."""
        if not self.has_contexts:
            return self.records + self.room
        until_next = self.view_set.until_next(self.records)
        step = self.alerts.stepped + STEP
        return step if until_next is None else min(step, self.records + until_next)

    def arrive(self) -> None:
        """Do what the compiled step cannot do, after the records that it has learned."""
        self.drop_addresses()
        if not self.has_contexts:
            self.admit_first()
            return
        is_step = self.records - self.alerts.stepped == STEP
        if is_step:
            self._watch()
        self.view_set.advance(self.records)
        if is_step:
            self._step()

    def admit_first(self) -> None:
        """Make learned records of the warm-up context; the warm-up may end."""
        self._plain = None
        self.context.admit_first(np.arange(self._admitted, self.records))
        self._admitted = self.records
        if self.context_rows >= self.config.min_context:
            self.begin()

    # -- learning ------------------------------------------------------------------------------------------------

    def seed(self, batch: Batch) -> None:
        """Begin with the contexts of trusted records (n,), n >= 4, the first ones."""
        self.context.seed(batch)
        self.begin()

    def flush_warm_up(self) -> None:
        """Let scores begin now, with fewer than min_context rows. Raises SchemaError with fewer than 4 rows."""
        if not self.has_contexts:
            self.context.end_warm_up()
            self.begin()

    def start_from_shared(self, other: Scope) -> None:
        """Start scores from the records of the partition's scope."""
        self.alerts.start_from_shared(other.alerts)
        self.drop_addresses()

    def cross_scored(self) -> Results:
        """See `Detector.cross_scored`."""
        numbers, first = self.view_set.first_scores(self.records)
        kept = np.flatnonzero(numbers >= self.history.oldest_scored)  # a seed context may have more
        numbers, first = numbers[kept], first[kept]
        if not len(first):
            return Results.nothing(first)
        slots, begins = self._series_of(numbers)
        alerts, far = self.alerts.copy(Keys(0, MEMORY)), self.history.far(numbers)  # as if nothing were remembered yet
        if not self._has_noted_first:
            alerts.note(numbers, alerts.memory.remember(first, slots, begins, learn=False, far=far))
        results = alerts.judge_first(first, slots, begins, far)
        batch = self.history.batch(numbers, slots, begins)
        return self.explainer.explained(results, batch, self.explainer.halves(self.view_set, numbers), None)

    def reasons(self, batch: Batch, i: int, scores: Scores, number: int) -> tuple[Reason, ...]:
        """The reasons of the i-th record of a batch, which has this number here; scores: (1,) what this scope says."""
        single = batch.part(np.array([i]))
        return self.explainer.reasons(single, 0, scores, lambda _: self.view_set.builders(number), self.series.pooled)

    def begin(self) -> None:
        """End the warm-up: the first generations take effect at once."""
        self.alerts.begin(max(0, self.records - int(self._ahead * STEP)))
        self.series.forget()
        self._look_for_far()
        self._learn_scale()
        self.view_set.begin(self.context)
        self.context.renew_early(self._ahead)
        self.drop_addresses()

    def _look_for_far(self) -> None:
        """Find far values of the warm-up: they do not count in the results of later records."""
        history = self.history
        numbers = np.arange(history.oldest, self.records)
        values = history.vectors(numbers)[:, 0]
        bulk = Bulk.of_rows(values).without(self.spec.categorical)
        if self.series.n_features and (far := np.asarray(bulk.far(values).any(axis=1))).any():
            values = np.where(history.gaps(numbers), np.nan, values)
            moves = self.series.learn_moves(values, history.series(history.oldest, self.records)[0], bulk)
            self.context.note_far(numbers, far, moves)

    def _learn_scale(self) -> None:
        """Learn the usual values of all keys together: after the warm-up, and whenever the records have doubled.

        It takes effect at once, so `room` ends there.
        """
        self.scaled = self.records
        if not self.series.relative or not (len(self.series.keys) or self.series.seasons):
            return
        is_first, history = self.series.pooled is None, self.history
        sample = SortedColumns.of(self.context.reservoir.rows[:, : self.spec.n_features]).each()
        self.series.learn_scale(sample)
        if is_first:
            numbers = np.arange(history.oldest, self.records)
            values = np.where(history.gaps(numbers), np.nan, history.vectors(numbers)[:, 0])
            values = Bulk.of_rows(values).without(self.spec.categorical).limited(values)
            relative = self.series.learn_usual(values, history.series(history.oldest, self.records)[0])
            self.context.note_relative(numbers, relative)
            self.series.learn_scale(sample)

    def note_first(self) -> None:
        """Score the records of the warm-up, once after it: later records are compared with them, too."""
        if self._has_noted_first:
            return
        self._plain = None
        numbers, first = self.view_set.first_scores(self.records)
        if (weights := self.history.key_weights(numbers)) is not None:
            by_key = self.history.by_key(numbers)
            first = Scores.of(first.by_view, first.generation, first.confidence, by_key, weights)
        remembered, kept = np.full(len(numbers), np.nan), np.flatnonzero(numbers >= self.history.oldest_scored)
        slots, begins = self._series_of(numbers[kept])
        far = self.history.far(numbers[kept])
        remembered[kept] = self.alerts.memory.remember(first[kept], slots, begins, far=far)
        outlier = self.alerts.first_outliers(first, remembered)
        self.context.note_first(numbers, first.by_view, remembered, outlier)
        self.alerts.note(numbers, remembered)
        self._has_noted_first = True

    def _series_of(self, numbers: Int) -> tuple[Int, NDArray[np.bool_]]:
        """Series (n,) of records of the history, and whether each is the first of it."""
        first = int(numbers[0]) if len(numbers) else self.records
        slots, begins = self.history.series(first, self.records)
        return slots[numbers - first], begins[numbers - first]

    def apply_verdicts(self) -> None:
        """Let the verdicts since the last record take effect, before the next one is learned."""
        if self.has_contexts:
            self.note_first()
            self._with_verdicts(self.alerts)
        self.context.apply_verdicts()
        self.drop_addresses()

    def _with_verdicts(self, alerts: Alerts) -> Alerts:
        """Return alerts after the verdicts since the last record."""
        history = self.history
        for numbers, sign in zip(self.context.new_verdicts, (-1.0, 1.0), strict=True):
            alerts.note(numbers, history.remembered(numbers), sign)
        return alerts

    @property
    def next_alerts(self) -> Alerts:
        """The alerts as they will be when the next record is learned."""
        if self._next_alerts is None:
            is_changed = self.context.has_new_verdicts
            self._next_alerts = self._with_verdicts(self.alerts.copy()) if is_changed else self.alerts
        return self._next_alerts

    def _watch(self) -> None:
        """Every `STEP` records: look for a lasting shift, by the generations that scored these records."""
        if (odd := self.view_set.is_odd(self.history.logits(self.records - STEP, self.records))) is not None:
            self._shifts.watch(odd[0], ~odd[1])

    def _step(self) -> None:
        """Every `STEP` records: learn, and trigger a new generation of one view if it is due."""
        self.alerts.step(self.history)
        self.context.step(STEP)
        self.series.forget()
        if self.records >= 2 * self.scaled:
            self._learn_scale()
        self.view_set.renew(self.context, self.records + self.config.lag)

    # -- feedback ------------------------------------------------------------------------------------------------

    def feedback(self, numbers: Int, outlier: NDArray[np.bool_]) -> int:
        """See `Detector.feedback`."""
        new = self.context.feedback(dict(zip(map(int, numbers), map(bool, outlier), strict=True)))
        self.alerts.refresh()
        self.drop_addresses()
        return new

    def numbers_of(self, rows: Float) -> list[Int]:
        """Return for each of rows (n, at least d) the numbers of the known records equal to it."""
        d = self.spec.n_features
        compared = np.setdiff1d(np.arange(d), self.spec.counters)  # of counters their growth is kept
        return [self.history.find(row[:d], compared) for row in rows]

    def has_verdict(self, numbers: Int) -> NDArray[np.bool_]:
        """Return whether there is feedback on known records, by number (k,)."""
        is_judged: NDArray[np.bool_] = self.history.verdict(numbers) != UNKNOWN
        return is_judged

    # -- state ---------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """See `Detector.changes`."""
        scored, entries = min(MIN_SCORED_RECORDS, self.config.context_size // 2), self.series.changes("follow")
        if self._keeps_encodings or self._plain is None:  # generations are written some time after they were made
            entries |= self.view_set.changes(self.records - scored, self._keeps_encodings)
        if self._plain is None:
            self._plain = self._counters()
            entries |= self._fingerprint_log.changes("fingerprint", self._fingerprint_bytes)
            entries |= self.context.changes() | self.alerts.changes()
        else:  # mostly: the compiled step has only written the history, and counted records and outliers
            self._plain |= {"history.records": self.records, **self.alerts.plain()}
            entries |= self.history.changes("history")
        counters = list(self._plain.values())  # without their names, as they are written at every commit
        return entries | self._counters_log.changes("counters", COMPACT_JSON(counters).encode())

    def recover(self, entries: StoredEntries, reusable: Scope | None = None) -> None:
        """See `Detector.recover`."""
        self._begin_log()
        check_entries(self._fingerprint_log, entries, self._fingerprint)
        values = json.loads(self._counters_log.recover(entries, "counters"))
        counters = dict(zip(self._counters(), values, strict=True))
        self.context.recover(entries, "", *(counters[name] for name in self.context.scalars))
        view_set = reusable.view_set if reusable is not None and reusable.model is self.model else None
        self.view_set.recover(entries, counters["views"], self.context, view_set)
        self.alerts.recover(entries, "", *(counters[name] for name in self.alerts.scalars))
        self._shifts = Shifts(self.config.adapt_after)
        self.view_set.steps, self._has_noted_first = counters["steps"], counters["noted"]
        self.scaled, self._admitted = counters["scaled"], self.records
        self.drop_addresses()
        self.series.recover(entries, "follow")

    def copy(self, series: Series) -> Scope:
        """An independent scope in the same state, of a copy of its series; encoded contexts, immutable, are shared."""
        twin = copy(self)
        twin.series, twin.alerts = series, self.alerts.copy(series.keys)
        twin.context, twin.view_set, twin._shifts = self.context.copy(), self.view_set.copy(), copy(self._shifts)
        twin._fixed, twin._memory = None, None
        twin.drop_addresses()
        twin._begin_log()
        return twin

    def stagger(self, number: int) -> None:
        """Make steps and renewals a part of their period earlier, a different part for each number. See
        `Detector.staggered`."""
        below = 1.0
        self._ahead = 0.0
        while number:  # van der Corput's sequence: 1/2, 1/4, 3/4, 1/8, ...
            below /= 2.0
            self._ahead += below * (number % 2)
            number //= 2
        if self.generation:  # it has a seed context
            self.alerts.begin(max(0, self.records - int(self._ahead * STEP)))
            self.context.renew_early(self._ahead)
            self.drop_addresses()

    def _counters(self) -> dict[str, Any]:
        """The part of the state that is plain numbers, always in the same order."""
        own = {"steps": self.view_set.steps, "noted": self._has_noted_first, "views": self.view_set.plain()}
        own["scaled"] = self.scaled
        return self.context.plain() | self.alerts.plain() | own

    def _begin_log(self) -> None:
        """Start with an empty log."""
        self._fingerprint = fingerprint_of(
            self.model, self.spec.n_features, self.views, self.spec.categorical, self.spec.counters, self.config
        )
        self._fingerprint_bytes = json.dumps(self._fingerprint).encode()
        self._fingerprint_log, self._counters_log = Document(), Document()


def fitting_views(model: Model, spec: RowSpec, config: DetectorConfig) -> tuple[tuple[View, ...], tuple[LeftOut, ...]]:
    """The views that rows of n_features fit, and those that they do not fit. Raises SchemaError if they fit none."""
    limit = model.config.max_features(len(spec.categorical))
    views, left_out = fitting(config.wanted_views, spec.n_features, config.lags, limit)
    if not views:
        first = left_out[0]
        raise SchemaError(
            f"model {model.name} takes up to {first.limit} features in the view {first.view}, the rows have "
            f"{first.columns}",
            "name the features to use",
        )
    return views, left_out
