"""The detector of one partition: scores every record, then learns it. A pure state machine.

Every record belongs to a *series*, by its key, and is followed there (`series`). It is scored, judged and learned by a
*scope*: that of the partition, or, for the busiest keys, one of their own (`scope`, `key_scopes`). A scope scores in
several *views*, each by its *generation*: an immutable context and its encoding. A new generation takes effect a fixed
number of records after the record that triggered it. Every `STEP` records a scope updates its reservoir, and what
scores and alerts refer to. So a result depends only on earlier records and feedback: not on time, not on how records
are split over calls, and not on how long an encoding took.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, SingleEntry, StoredEntries
from fomo_stream.detector.config import MIN_CONTEXT_ROWS, STEP, DetectorConfig
from fomo_stream.detector.format_12 import changes_since
from fomo_stream.detector.key_scopes import DECISION_RECORDS, NO_OWNERS, NOT_LEARNED, KeyScopes, Routes, key_reasons
from fomo_stream.detector.keys import UNKEYED, Digests, Key
from fomo_stream.detector.reference import ENTRY, Reference, ReferenceJudgement, chosen_rows, reference_reasons
from fomo_stream.detector.results import DetectorSummary, Reason, Results, Scores, Severity, Status
from fomo_stream.detector.row_spec import RowSpec
from fomo_stream.detector.scope import Inspection, Scope, fitting_views
from fomo_stream.detector.seasons import Cycle
from fomo_stream.detector.series import MOVEMENT_VECTORS, Series
from fomo_stream.detector.step.follow import Batch
from fomo_stream.detector.step.judge import ODD_LOGIT, judge_visits
from fomo_stream.detector.step.route import route
from fomo_stream.detector.step.view_columns import combine, fill_view_columns
from fomo_stream.detector.step.work import OK, VisitResults, Visits, VisitScores, Work
from fomo_stream.detector.view_inputs import Known, score_view_inputs
from fomo_stream.detector.views import LeftOut, View
from fomo_stream.errors import DamagedStateError, SchemaError, StateError
from fomo_stream.model.architecture import Model
from fomo_stream.model.scoring import score_in_views

Float = NDArray[np.float64]
Int = NDArray[np.int64]

# records that the shared contexts have not learned, shared records at the last decision, and keys that ever had
# contexts of their own
COUNTERS = struct.Struct("<qqq")
OWN_PREFIX = "own/"  # begins the names of entries about contexts of their own
ALL_VISITS: Int = np.zeros(0, np.int64)  # visits
MIN_WORK_RECORDS, MAX_WORK_RECORDS = 64, 4096  # records that there is memory for, at least, and when it is kept
STATUS_BY_CODE = (Status.WARMING_UP, Status.CALIBRATING, Status.OK)  # by the number that the compiled step writes


class Detector:
    """Scores and learns the rows of one partition.

    model: from `load_model`; n_features: d; executor: runs the encoding of generations in the background (None: in
    the calling thread, when first needed). If an encoding is late, `process` waits for it. categorical: columns that
    hold category codes; counters: columns of fields that only grow; their growth counts. Raises SchemaError when
    no view fits rows of n_features; `left_out` has those that do not.

    >>> import numpy as np
    >>> from fomo_stream import Detector, DetectorConfig, load_model
    >>> rng = np.random.default_rng(0)
    >>> detector = Detector(load_model(), n_features=3, config=DetectorConfig(min_context=100))
    >>> scored = detector.process(np.vstack([rng.normal(size=(500, 3)), [[9, -9, 9]]]))
    >>> scored.status[0].value, scored.status[-1].value, bool(scored.outlier[-1])
    ('warming_up', 'ok', True)
    """

    def __init__(
        self,
        model: Model,
        n_features: int,
        config: DetectorConfig | None = None,
        executor: Executor | None = None,
        categorical: tuple[int, ...] = (),
        counters: tuple[int, ...] = (),
    ) -> None:
        self.model, self.config = model, config or DetectorConfig()
        self._spec = RowSpec(n_features, categorical, counters, len(self.config.cycles))
        self._series = _new_series(model, self._spec, self.config)
        self._shared = Scope(model, self._spec, self.config, executor, self._series)
        self._key_scopes = KeyScopes(self._shared, model, self._spec, self.config, executor)
        self._routes: Routes | None = None  # None: no key ever had contexts of its own
        self._learned_by_keys = 0  # records that were learned by scopes of keys alone
        self._decided = 0  # shared records at the last decision
        self._shifts = 0  # lasting shifts that were announced for keys with contexts of their own
        self._reference: Reference | None = None
        self._reference_log = SingleEntry()  # without one, of the state before
        self._works: list[Work] = []  # memory that no call works in
        self._known: Known | None = None  # logits of the next records, see `_look_ahead`
        self._converted: Entries = {}  # what the log has in the format before

    @property
    def n_features(self) -> int:
        """Columns of rows."""
        return self._spec.n_features

    @property
    def categorical(self) -> tuple[int, ...]:
        """Columns that hold category codes."""
        return self._spec.categorical

    @property
    def views(self) -> tuple[View, ...]:
        """The views in use."""
        return self._shared.views

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The views that rows are too wide for."""
        return self._shared.left_out

    @property
    def context_rows(self) -> int:
        """Rows in the shared reservoir now; verdicts given since the last record may still change that."""
        return self._shared.context_rows

    @property
    def context_numbers(self) -> Int:
        """Numbers (n,) of the shared records in the present context of the first view; empty while warming up."""
        current = self._shared.view_set.view_contexts[0].current
        return np.zeros(0, dtype=np.int64) if current is None else current.result().numbers

    @property
    def summary(self) -> DetectorSummary:
        """The state of the detector in a few numbers. Safe from any thread."""
        shared, view_set, keys = self._shared, self._shared.view_set, self._series.keys
        age = view_set.generation_age(shared.records)
        counts = self.records, shared.context_rows, view_set.trimmed_rows, view_set.generation, age
        return DetectorSummary(*counts, shared.drift, len(keys), keys.forgotten, len(self._key_scopes))

    def inspect(self) -> Inspection:
        """Return what the detector is made of; waits for generations that are being built. Nothing changes."""
        return self._shared.inspect()._replace(own={own.digest: own.is_ready for own in self._key_scopes})

    @property
    def records(self) -> int:
        """Records processed: the number of the next one."""
        return self._shared.records + self._learned_by_keys

    @property
    def generation(self) -> int:
        """Counts the shared contexts that took effect so far, from 1; 0 while warming up."""
        return self._shared.generation

    @property
    def shifts(self) -> int:
        """Lasting shifts that were announced since it began or recovered."""
        return self._shared.shifts + self._shifts

    @property
    def room(self) -> int:
        """Return how many of the next records can be scored before any is learned, if they share contexts; at least
        1."""
        return self._shared.room

    @property
    def reference(self) -> Reference | None:
        """The rows that are called good, if there are any. Another one counts from the next record on."""
        return self._reference

    @reference.setter
    def reference(self, reference: Reference) -> None:
        self._reference = copy(reference)

    def n_ready(self, keys: Sequence[Key]) -> int:
        """Return how many of the next records, which have these keys (n,), can be processed without waiting for a
        generation; not more than are known to be.

        With large tiles it is a tile or nothing: to wait in `process` costs less than tiles that are not full.
        """
        tile, scopes = self._large_tile, self._key_scopes.scopes
        keys = keys[: max(self._shared.ahead, tile) if tile else DECISION_RECORDS]
        n, of_shared = len(keys), self._shared.n_ready(tile)
        if len(scopes) == 1:
            n = min(n, of_shared)
        elif n:
            call = self._visited(np.empty((n, 0)), Digests.of(keys), learn=True, is_bounded=False)
            at, visits = call.visits.at, call.visits
            # the first visits that may have to wait; the view of keys of the partition scores records of all keys
            waiting = [at[visits.shared >= self._shared.records + of_shared][:1]]
            limits = ((s, scopes[s].n_ready(tile)) for s, _ in call.scopes if s)
            waiting += [at[visits.scope == s][limit : limit + 1] for s, limit in limits]
            n = int(min((first[0] for first in waiting if len(first)), default=n))
            self.release(call)
        return n if n == len(keys) or not tile else 0

    # -- scoring and learning ------------------------------------------------------------------------------------

    def process(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score each of rows (n, d), raw units, NaN = missing, then learn it, in order.

        Further columns may have the places of each row in the cycles, and, if there are counters, its time in seconds.

        keys: (n,) the series that each row belongs to (bytes, text, or None for that of the whole partition); None: all
        belong to that one. The result is the same however the rows of a partition are split over calls.
        Raises SchemaError when the rows have another number of features than the detector.
        """
        _check_lengths(rows, keys)
        of_keys = None if keys is None else Digests.of(keys)
        return Results.concatenate([call.results() for call in self._process(self._spec.checked(rows), of_keys, None)])

    def score_rows(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score rows (n, d) as the next n records without learning them.

        All are compared with the records before the first of them. So from the next step on results differ a little
        from those of `process`. This changes no later result: verdicts that come before these rows are learned still
        take effect together.
        """
        return self._done(self.peek(rows, keys))

    def peek(self, rows: Float, keys: Sequence[Key] | None = None) -> DetectorCall:
        """Score rows (n, d) as `score_rows` does. The call has their results; end it with `learn` or `release`."""
        _check_lengths(rows, keys)
        call = self._peek(rows, keys)
        self._score_and_judge(call, None, learn=False)
        return call

    def learn(self, call: DetectorCall) -> None:
        """Learn the records of `peek`; the same as `process`, without scoring most of them again.

        No record may have been learned since; feedback may have come.
        """
        left = DECISION_RECORDS - self.records % DECISION_RECORDS
        if call.n > min(self._shared.room, left) or len(self._key_scopes):
            for _ in self._process(call.values, call.keys, call.results().scores):
                pass
        else:  # the visits of records that are learned are those that scored them
            self._learn(call, None)
        self.release(call)

    def score_independent(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score rows (n, d) that are not a stream, each against the shared contexts alone, without learning them.

        The outliers are those with a p-value of at most the alert rate. Nothing remembers the records before.
        """
        _check_lengths(rows, keys)
        call, shared = self._peek(rows, keys, owners=NO_OWNERS), self._shared
        self._key_scopes.prepare(0, call.k)
        self._score_visits(call, None)
        scores, is_scored = call.results().scores, shared.has_contexts
        results = shared.next_alerts.judge_independent(scores, shared.history) if is_scored else Results.nothing(scores)
        call.judged.status[:], call.judged.outlier[:] = is_scored, results.outlier
        self._explain(call, 0, call.k)
        return replace(results, reasons=self._done(call).reasons)

    def explain(self, rows: Float, keys: Sequence[Key] | None = None) -> list[tuple[Reason, ...]]:
        """The reasons (n,) of rows (n, d) as the next n records, whatever `explain` is; () while warming up.

        Nothing changes. Raises SchemaError as `process`.
        """
        call = self.peek(rows, keys)
        reasons = self.reasons(call)
        self.release(call)
        return reasons

    def reasons(self, call: DetectorCall) -> list[tuple[Reason, ...]]:
        """The reasons (n,) of the records of `peek`, as `explain` does."""
        return [self._reasons(call, i, call.scores_of(i)) for i in range(call.n)]

    def skip(self, rows: Float, keys: Sequence[Key]) -> None:
        """Skip rows (n, d), as in maintenance: nothing is learned from them, except that counters continue from their
        totals."""
        _check_lengths(rows, keys)
        self._series.skip(self._spec.checked(rows), keys)

    def seed_context(self, rows: Float, keys: Sequence[Key] | None = None) -> None:
        """Start warm from trusted rows (n, d), n >= 4: they count as the first n records, confirmed by feedback.

        Must come before the first record. Raises SchemaError for fewer rows; StateError when records were processed.
        """
        _check_lengths(rows, keys)
        rows = self._spec.checked(rows)
        if self.records:
            raise StateError("a context can be seeded only before the first record")
        if len(rows) < MIN_CONTEXT_ROWS:
            raise SchemaError(f"a seed context needs at least {MIN_CONTEXT_ROWS} rows, got {len(rows)}")
        self._shared.seed(self._series.follow(rows, keys))
        self._decided = self.records // DECISION_RECORDS * DECISION_RECORDS

    def set_reference(self, rows: Float, keys: Sequence[Key] | None = None) -> Reference:
        """Make rows (n, d), in the order of time, the reference from the next record on; see `Reference`.

        Whether a record is an outlier then follows from them alone. Raises SchemaError if they are too few.
        """
        _check_lengths(rows, keys)
        values, series = self._spec.checked(rows), _new_series(self.model, self._spec, self.config)
        digests = np.zeros((len(values), 2), np.uint64) if keys is None else Digests.of(keys).digests
        parts = [slice(at, at + MAX_WORK_RECORDS) for at in range(0, len(values), MAX_WORK_RECORDS)]
        moves = [0, *range(series.n_vectors - MOVEMENT_VECTORS * series.movement, series.n_vectors)]
        chosen, is_kept = chosen_rows(self.config, self.n_features, digests), np.zeros(len(values), bool)
        for _, at in chosen.values():
            is_kept[at] = True
        vectors = [np.zeros((0, len(moves), self.n_features))]
        for part in parts:
            batch = series.follow(values[part], None if keys is None else keys[part])
            vectors.append(batch.vectors[is_kept[part]][:, moves])
        all_kept, places = np.concatenate(vectors), np.cumsum(is_kept) - 1
        kept = {digest: (given, all_kept[places[at]]) for digest, (given, at) in chosen.items()}
        self._reference = Reference(self.model, self._spec, self.config, kept)
        return self._reference

    def unpack_reference(self, data: bytes) -> Reference:
        """Use a reference that was packed; see `set_reference`."""
        self._reference = Reference.unpacked(self.model, self._spec, self.config, data)
        return self._reference

    def flush_warm_up(self) -> None:
        """Let scores begin now, with fewer than min_context rows. Raises SchemaError with fewer than 4 rows."""
        self._shared.flush_warm_up()

    def cross_scored(self) -> Results:
        """Scores of the warm-up rows, each against the half that does not contain it.

        Only directly after the warm-up; otherwise empty.
        """
        return self._shared.cross_scored()

    # -- a call --------------------------------------------------------------------------------------------------

    def _process(self, values: Float, keys: Digests | None, known_scores: Scores | None) -> Iterator[DetectorCall]:
        """Score and learn the next records, checked rows (n, ...), part by part: each has to be read before the next.

        known_scores: theirs, if no record was learned since.
        """
        start, n, basis = 0, len(values), self._basis
        seen, basis_seen, self._known = 0, basis, None
        while True:
            looks_ahead = self._large_tile > 0 and known_scores is None and n - start > self._shared.ahead
            if looks_ahead and (start >= seen or self._basis != basis_seen):
                seen, basis_seen = start + self._large_tile, self._basis
                self._look_ahead(values, keys, slice(start, seen))
            stop = min(n, start + DECISION_RECORDS - self.records % DECISION_RECORDS)
            part = slice(start, stop)
            call = self._visited(values[part], None if keys is None else keys.part(part), learn=True)
            is_good = start == 0 or (self._basis == basis and not len(self._key_scopes))
            part = slice(start, start + call.n)
            part_scores = known_scores if known_scores is None or call.n == n else known_scores[part]
            self._learn(call, part_scores if is_good else None)
            yield call
            self.release(call)
            start += call.n
            if start == n:
                self._known = None
                return

    def _learn(self, call: DetectorCall, known_scores: Scores | None) -> None:
        """Learn the records of a call, as far as there is room, and decide about keys where that is due."""
        self._follow(call, learn=True)
        self._score_and_learn(call, known_scores)
        if call.n and self.records % DECISION_RECORDS == 0:
            self._decide()

    @property
    def _large_tile(self) -> int:
        """Rows of a tile of the model's device, if they are more than can be scored before any is learned; else 0."""
        return self.model.tile if self.model.tile > STEP + self.config.lag else 0

    def _look_ahead(self, values: Float, keys: Digests | None, part: slice) -> None:
        """Find logits of a part of the next records all at once, as far as they can be known before any is learned.

        A logit depends, to the last bit, on the row and the context alone. So it does not matter whether a record gets
        another row or context when it is its turn: then its logit is found again.
        """
        self._known = {} if self._known is None else self._known
        call = self._peek_values(values[part], None if keys is None else keys.part(part))
        self._score_visits(call, None)
        self.release(call)

    @property
    def _basis(self) -> tuple[Any, ...]:
        """The state that scores of later records follow from: while it is the same, known scores stay valid."""
        shared = self._shared
        builders = [(contexts.current, contexts.next) for contexts in shared.view_set.view_contexts]
        return builders, self._series.keys.forgotten, shared.scaled

    def _peek(self, rows: Float, keys: Sequence[Key] | None, owners: Int | None = None) -> DetectorCall:
        """Find the visits of rows (n, d) as the next n records; nothing changes. owners: as of `KeyScopes.owners`."""
        return self._peek_values(self._spec.checked(rows), None if keys is None else Digests.of(keys), owners)

    def _peek_values(self, values: Float, keys: Digests | None, owners: Int | None = None) -> DetectorCall:
        call = self._visited(values, keys, learn=False, owners=owners)
        self._follow(call, learn=False)
        return call

    def _follow(self, call: DetectorCall, learn: bool) -> None:
        """Follow the records of a call in their series: this fills its batch."""
        bulk = self._shared.view_set.bulk(self._shared.records)
        self._series.note(call.values, call.keys, bulk, learn, call.work.address)

    def _visited(
        self, values: Float, keys: Digests | None, learn: bool, is_bounded: bool = True, owners: Int | None = None
    ) -> DetectorCall:
        """Find the visits of the next records, checked rows (n, ...), or, if they are to be learned, of as many as
        there is room for.

        is_bounded: whether room counts.
        """
        n, scopes, k = len(values), self._key_scopes, -1
        work, addresses, bounded = self._work_for(n), scopes.tallies, learn and is_bounded
        if owners is None:
            owners = NO_OWNERS if keys is None else scopes.owners(keys.digests)
        while k < 0:
            visited = np.zeros((2, len(addresses)), np.int64)
            k, done = route(work.address, n, owners, addresses, scopes.are_ready, scopes.prior, learn, bounded, visited)
            if k < 0:
                scopes.scopes[-1 - k].find_room()
        if done < n:
            values, keys = values[:done], None if keys is None else keys.part(slice(0, done))
        return DetectorCall(work, done, k, values, keys, visited)

    def _work_for(self, n: int) -> Work:
        """Take memory for n records that no other call, also of another thread, works in."""
        try:
            work: Work | None = self._works.pop()
        except IndexError:
            work = None
        if work is not None and work.size >= n:
            return work
        view_set = self._shared.view_set
        shape = self.n_features, self._series.n_vectors, self._shared.context.n_shared, view_set.column_ranges
        return Work(max(n, MIN_WORK_RECORDS), *shape)

    def release(self, call: DetectorCall) -> None:
        """End a call, which must not be used then: its memory is kept for another call, unless it is large."""
        if call.work.size <= MAX_WORK_RECORDS:
            self._works.append(call.work)

    def _done(self, call: DetectorCall) -> Results:
        """Return the results of a call, and end it."""
        results = call.results()
        self.release(call)
        return results

    def _score_and_learn(self, call: DetectorCall, known_scores: Scores | None) -> None:
        """Score and learn records that there is room for. known_scores: see `_process`."""
        first, key_scopes, visited = self.records, self._key_scopes, call.scopes
        for s, _ in visited:
            if key_scopes.scopes[s].context.has_new_verdicts:
                key_scopes.scopes[s].apply_verdicts()
                call.visited[1, s] = s > 0  # its addresses have changed
        self._score_and_judge(call, known_scores, learn=True)
        for s, _ in visited:
            if not key_scopes.scopes[s].has_contexts:
                key_scopes.scopes[s].admit_first()
            if s:
                key_scopes.touch(s)
        if self._routes is not None:
            self._learned_by_keys += call.n - int(call.visited[0, 0])
            self._routes.note(first, call.visits, key_scopes.numbers)

    def _score_and_judge(self, call: DetectorCall, known_scores: Scores | None, learn: bool) -> None:
        """Score and judge records, and keep them if `learn`. known_scores: (n,) theirs."""
        key_scopes, done = self._key_scopes, 0
        if call.k:  # it knows the usual values of keys, also if only scopes of keys are visited
            key_scopes.prepare(0, self._of_shared(call))
        for s in call.unprepared:
            key_scopes.prepare(s, int(call.visited[0, s]))
        if not call.is_scored:
            self._score_visits(call, known_scores)
        if self._reference is not None:
            call.by_reference = self._reference.judge(call.batch, call.digests, learn)
        while done < call.k:
            start, done = done, judge_visits(call.work.address, call.n, call.k, done, key_scopes.scope_addresses, learn)
            self._refer(call, start, done)
            self._explain(call, start, done)
            scope = key_scopes.scopes[last := int(call.work.visits.scope[done - 1])]
            if learn and scope.records == scope.bound:  # before the next visit there is more to do
                before = scope.shifts
                scope.arrive()
                self._shifts += (scope.shifts - before) * bool(key_scopes.are_ready[last])
                if visits := int((call.visits.scope[done:] == last).sum()):
                    key_scopes.prepare(last, visits)

    def _of_shared(self, call: DetectorCall) -> int:
        """Return up to how many of its next records the shared scope scores in a call."""
        return int(call.work.visits.shared[call.k - 1]) + 1 - self._shared.records if call.k else 0

    def _score_visits(self, call: DetectorCall, known_scores: Scores | None) -> None:
        """Find the scores of all visits. known_scores: see `_score_and_judge`."""
        at, scores, call.is_scored = ALL_VISITS, call.work.scores, True
        if known_scores is not None:
            of_known: Int | slice = slice(0, call.n)
            if call.k > call.n:  # some are learned by a scope that has not scored them
                of_known, at = np.flatnonzero(call.visits.is_result), np.flatnonzero(~call.visits.is_result)
            for name in ("logit", "by_view", "by_key", "confidence", "generation"):
                getattr(scores, name)[of_known] = getattr(known_scores, name)
            if at is ALL_VISITS:
                return
        if self._score_vectors(call, at, call.work.batch.vectors[: call.n]) and self._series.pooled is not None:
            self._spare_usual(call, at if len(at) else np.arange(call.k))

    def _score_vectors(self, call: DetectorCall, at: Int, vectors: Float) -> int:
        """Score vectors of some visits, at (q,), or of ALL_VISITS; return how many of the partition's scope are odd.

        vectors: of the records, or others instead.
        """
        model, view_set, key_scopes, work, k = self.model, self._shared.view_set, self._key_scopes, call.work, call.k
        if model.kernel == "numba" and not self.categorical:
            fill_view_columns(work.address, call.n, k, at, vectors, self._spec.numeric, key_scopes.plans)
            q, ranges = len(at) or k, view_set.column_ranges
            contexts = work.contexts[: len(ranges) * q].reshape(len(ranges), q)
            logits_and_votes = score_in_views(model, work.rows[:q], work.without[:q], ranges, contexts)
            return int(combine(work.address, k, at, logits_and_votes))
        of_keys, visits, at = view_set.views[-1].is_of_keys, call.visits, at if len(at) else np.arange(k)
        parts, scopes = [], []
        for s in np.unique(visits.scope[at]).tolist():
            mine = at[visits.scope[at] == s]
            asked = call.batch, vectors, visits.at[mine], visits.number[mine], visits.shared[mine]
            inputs = key_scopes.scopes[s].view_set.inputs(*asked)
            work.scores.generation[mine] = key_scopes.scopes[s].view_set.generations(inputs)
            parts.append(mine)
            scopes.append(inputs + (view_set.inputs(*asked)[-1:] if s and of_keys else []))
        scored = score_view_inputs(model, scopes, self._known)
        return sum(int(combine(work.address, k, *each)) for each in zip(parts, scored, strict=True))

    def _spare_usual(self, call: DetectorCall, at: Int) -> None:
        """Lower the logits of visits, at (q,), that are odd among all keys, but usual for their own key.

        Without it, in a file sorted by device, or where a device uploads once a day, each new device is an outlier
        until the contexts have enough of its records, and these hide real outliers.
        """
        pooled, batch, scores, visits = self._series.pooled, call.batch, call.work.scores, call.visits
        is_odd = (visits.scope[at] == 0) & (scores.logit[at] > ODD_LOGIT) & (batch.slots[visits.at[at]] > UNKEYED)
        i = visits.at[at := at[is_odd]]
        if pooled is None or not len(at):
            return
        moves = MOVEMENT_VECTORS if self._series.movement else 0
        vectors = pooled.typical(batch.vectors[i], moves, batch.usual[i], self._series.is_numeric)
        changed = (vectors != batch.vectors[i]).any(axis=(1, 2))
        if changed.any():
            at, typical, before = (
                at[changed],
                batch.vectors.copy(),
                VisitScores._make(array[at[changed]] for array in scores),
            )
            typical[i[changed]] = vectors[changed]
            self._score_vectors(call, at, typical)
            like = scores.logit[at]
            for now, values in zip(scores, before, strict=True):
                now[at] = values
            scores.logit[at] = np.minimum(before.logit, like)

    def _refer(self, call: DetectorCall, start: int, stop: int) -> None:
        """Replace the results of some visits by those of the reference, if there is one."""
        if (judgement := call.by_reference) is None:
            return
        has_judgement = call.visits.is_result[start:stop] & ~np.isnan(judgement.logit[call.visits.at[start:stop]])
        e, judged = start + np.flatnonzero(has_judgement), call.judged
        i = call.visits.at[e]
        still = (call.batch.still[i] > 0).any(axis=1) & (self.config.stuck_values == "alert")
        judged.outlier[e] = judgement.outlier[i] | still
        judged.severity[e] = np.maximum(judgement.severity[i], still * np.int8(Severity.WARNING))
        judged.score[e], judged.p_value[e], judged.status[e] = judgement.score[i], judgement.p[i], OK

    def _explain(self, call: DetectorCall, start: int, stop: int) -> None:
        """Find the reasons of those visits, from `start` to before `stop`, that get any."""
        part, judged, explains_all = slice(start, stop), call.work.judged, self.config.explain == "all"
        if self.config.explain == "none" or not (explains_all or judged.outlier[part].any()):
            return  # mostly
        is_wanted = call.work.visits.is_result[part] & (judged.status[part] > 0)
        if not explains_all:
            is_wanted &= judged.outlier[part]
        for e in (start + np.flatnonzero(is_wanted)).tolist():
            call.reasons[e] = self._reasons(call, e, call.scores_of(e))

    def _reasons(self, call: DetectorCall, e: int, scores: Scores) -> tuple[Reason, ...]:
        """Return the reasons of visit e, with these scores (1,)."""
        visits = call.work.visits
        s, i = int(visits.scope[e]), int(visits.at[e])
        if call.by_reference is not None and not np.isnan(call.by_reference.logit[i]):
            single, builders = call.by_reference.compared(call.batch, i)
            return reference_reasons(self._shared.explainer.reasons(single, 0, scores, lambda _: builders, None))
        reasons = self._key_scopes.scopes[s].reasons(call.batch, int(visits.at[e]), scores, int(visits.number[e]))
        return key_reasons(reasons) if s else reasons

    def _decide(self) -> None:
        """Decide, every `DECISION_RECORDS` records, which keys have scopes of their own."""
        slots, _ = self._shared.history.series(self._decided, self._shared.records)
        self._decided = self._shared.records
        self._key_scopes.decide(slots, self.records)
        if self._key_scopes.entered and self._routes is None:
            self._routes = self._new_routes()
            self._routes.begin(self.records)

    def _new_routes(self) -> Routes:
        return Routes(self.config.history_rows)

    # -- feedback ------------------------------------------------------------------------------------------------

    def feedback(self, numbers: Int, outlier: NDArray[np.bool_]) -> int:
        """Take verdicts on records, by their numbers (k,) in this partition: is each an outlier?

        An outlier leaves the last records that others are compared with, at once. Before the next record is learned it
        leaves the reservoir and the counts that scores refer to. The contexts change with the next generation. All
        verdicts before the next record take effect together: neither their order nor how they are split over calls
        matters, but of several verdicts on one record the last counts. Repeating them changes nothing. Records that the
        history no longer has are ignored.
        Returns how many verdicts changed something.
        """
        numbers, outlier = np.asarray(numbers, dtype=np.int64), np.asarray(outlier, dtype=bool)
        if self._routes is None:
            return self._shared.feedback(numbers, outlier)
        there = (numbers >= self.records - self._routes.size) & (numbers < self.records)
        numbers, outlier = numbers[there], outlier[there]
        shared, of_own, own_numbers = self._routes.find(numbers)
        is_shared = shared != NOT_LEARNED
        changed = self._shared.feedback(shared[is_shared], outlier[is_shared])
        for s, own in enumerate(self._key_scopes, start=1):
            at = of_own == own.number
            if at.any():
                own.scope.feedback(own_numbers[at & is_shared], outlier[at & is_shared])
                changed += own.scope.feedback(own_numbers[at & ~is_shared], outlier[at & ~is_shared])
                self._key_scopes.touch(s)
        return changed

    def numbers_of(self, rows: Float) -> list[Int]:
        """Return for each of rows (n, d) the numbers of the known records equal to it."""
        rows = self._spec.checked(rows)
        shared_numbers = self._shared.numbers_of(rows)
        if self._routes is None:
            return shared_numbers
        routes, records = self._routes, self.records
        all_found = [[routes.numbers(records, 0, numbers)] for numbers in shared_numbers]
        for own in self._key_scopes:
            for numbers, of_own in zip(all_found, own.scope.numbers_of(rows), strict=True):
                numbers.append(routes.numbers(records, own.number, of_own))
        return [np.unique(np.concatenate(numbers)) for numbers in all_found]

    def has_verdict(self, numbers: Int) -> NDArray[np.bool_]:
        """Return whether there is feedback on known records, by number (k,)."""
        if self._routes is None:
            return self._shared.has_verdict(numbers)
        shared, of_own, own_numbers = self._routes.find(numbers)
        is_judged: NDArray[np.bool_] = self._shared.has_verdict(shared) & (shared != NOT_LEARNED)
        for own in self._key_scopes:
            at = (of_own == own.number) & (shared == NOT_LEARNED)
            is_judged[at] = own.scope.has_verdict(own_numbers[at])
        return is_judged

    # -- state ---------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries changed since the last call; the first call of a new detector returns its whole state.

        The entries of one call have to be in the log before the next call; if they get lost, go back with `recover`.
        """
        entries, self._converted = self._converted | self._shared.changes(), {}
        if self._routes is not None and entries | (own := self._key_scopes.changes()):
            own |= self._routes.changes("routes")
            own["counters"] = COUNTERS.pack(self._learned_by_keys, self._decided, self._key_scopes.entered)
            entries |= {OWN_PREFIX + name: value for name, value in own.items()}
        if entries or self._reference is not None:
            entries |= self._reference_log.changes(ENTRY, b"" if self._reference is None else self._reference.encode())
        return entries

    def recover(self, entries: StoredEntries, reusable: Detector | None = None) -> None:
        """Take the state from the entries: the same records then get the same results, bit for bit on one device.

        reusable: a detector of the same partition, which may be this one; its generations need not be encoded again.
        Raises StateError when the entries are of another detector (all differences, joined by "; ") or of another
        version of fomo-stream, incomplete or damaged. This detector must not be used then.
        """
        self._converted = changes_since(entries)
        entries = {name: value for name, value in {**entries, **self._converted}.items() if value is not None}
        self._shared.recover(entries, None if reusable is None else reusable._shared)
        own = {name[len(OWN_PREFIX) :]: value for name, value in entries.items() if name.startswith(OWN_PREFIX)}
        self._routes, self._learned_by_keys, self._shifts, entered = None, 0, 0, 0
        self._decided = self.records // DECISION_RECORDS * DECISION_RECORDS
        if own:
            try:
                self._learned_by_keys, self._decided, entered = COUNTERS.unpack(own.get("counters", b""))
            except struct.error as error:
                what = f"the state is damaged: {OWN_PREFIX}counters is not readable ({error})"
                raise DamagedStateError(what) from None
            self._routes = self._new_routes()
            self._routes.recover(own, "routes")
        self._key_scopes.recover(own, entered, None if reusable is None else reusable._key_scopes)
        reference_entry = self._reference_log.recover(entries, ENTRY)
        if self._reference is not None:
            self._reference.decode(reference_entry)

    def copy(self) -> Detector:
        """Return an independent detector in the same state; encoded contexts, which are immutable, are shared."""
        twin = copy(self)
        twin._converted, twin._works = {}, []
        twin._series = self._series.copy()
        twin._shared = self._shared.copy(twin._series)
        twin._key_scopes = self._key_scopes.copy(twin._shared)
        twin._routes = None if self._routes is None else self._routes.copy()
        twin._reference, twin._reference_log = copy(self._reference), SingleEntry()
        return twin

    def staggered(self, number: int) -> Detector:
        """Return a copy, before the first record, for the partition of this number.

        Its steps and the renewals of its views come a part of their period earlier than those of partition 0. So
        partitions whose records come at the same rate do not build their contexts all at the same moment.
        """
        twin = self.copy()
        twin._shared.stagger(number)
        return twin


@dataclass
class DetectorCall:
    """A call of the detector: n records and their k visits, in working memory."""

    work: Work
    n: int
    k: int
    values: Float  # (n, ...) see `RowSpec.checked`
    keys: Digests | None
    visited: Int  # (2, scopes) see `route`
    is_scored: bool = False
    reasons: dict[int, tuple[Reason, ...]] = field(default_factory=dict)  # of some visits
    by_reference: ReferenceJudgement | None = None

    @property
    def scopes(self) -> list[tuple[int, int]]:
        """The scopes that are visited, and how often."""
        if self.visited.shape[1] == 1:
            return [(0, self.k)] if self.k else []
        counts = self.visited[0].tolist()
        return [(s, count) for s, count in enumerate(counts) if count]

    @property
    def unprepared(self) -> list[int]:
        """The scopes of keys that are visited, and have to be prepared before."""
        return np.flatnonzero(self.visited[1]).tolist() if self.visited.shape[1] > 1 else []

    @property
    def digests(self) -> NDArray[np.uint64] | None:
        """The digests (n, 2) of the keys."""
        return None if self.keys is None else self.keys.digests

    @cached_property
    def batch(self) -> Batch:
        return self.work.batch.part(slice(0, self.n))

    @cached_property
    def visits(self) -> Visits:
        return Visits._make(array[: self.k] for array in self.work.visits)

    @cached_property
    def judged(self) -> VisitResults:
        return VisitResults._make(array[: self.k] for array in self.work.judged)

    def scores_of(self, e: int) -> Scores:
        """Return the scores (1,) of a visit."""
        at, scores = slice(e, e + 1), self.work.scores
        return Scores(
            scores.logit[at], scores.by_view[at], scores.by_key[at], scores.generation[at], scores.confidence[at]
        )

    def results(self) -> Results:
        """Return the results of the records."""
        at = slice(0, self.n) if self.k == self.n else np.flatnonzero(self.visits.is_result)
        scores, judged = self.work.copies(at)
        reasons: list[tuple[Reason, ...] | None] = [None] * self.n
        if self.reasons:
            reasons = [self.reasons.get(e) for e in np.arange(self.k)[at].tolist()]
        by_reference = np.full(self.n, np.nan) if self.by_reference is None else self.by_reference.logit
        status = [STATUS_BY_CODE[code] for code in judged.status.tolist()]
        return Results(
            judged.score,
            judged.remembered,
            scores.logit,
            scores.by_view,
            scores.by_key,
            judged.p_value,
            judged.outlier,
            scores.generation,
            judged.severity,
            scores.confidence,
            judged.series,
            judged.begins,
            status,
            reasons,
            by_reference,
        )


def _check_lengths(rows: Float, keys: Sequence[Key] | None) -> None:
    if keys is not None and len(keys) != len(rows):
        raise SchemaError(f"{len(rows)} rows with {len(keys)} keys; give one for each row")


def _new_series(model: Model, spec: RowSpec, config: DetectorConfig) -> Series:
    views, _ = fitting_views(model, spec, config)
    movement, relative = any(view.input == "movement" for view in views), any(view.is_of_keys for view in views)
    cycles = tuple(Cycle(*cycle) for cycle in config.cycles)
    shape = spec.n_features, config.lags, movement, config.keys, relative
    return Series(*shape, spec.categorical, spec.counters, cycles)
