"""The detector of one partition: scores every record, then learns it. A pure state machine.

Records of the busiest keys are scored and learned by detectors of their own (`own`), all others by one that they share
(`single`). A record is scored in several *views*, each by its *generation*: an immutable context and its encoding. A
new generation takes effect a fixed number of records after the record that triggered it. Every `STEP` records a
detector updates its reservoir, and what scores and alerts refer to. So a result depends only on earlier records and
feedback: not on time, not on how records are split over calls, and not on how long an encoding took.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import Executor
from copy import copy

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.format_12 import changes_since
from fomo_stream.detector.keys import Key, digest_of
from fomo_stream.detector.own import DECIDE, NOWHERE, Own, Owns, Routes, own_reasons
from fomo_stream.detector.results import DetectorSummary, Reason, Results, Scores
from fomo_stream.detector.single import Inspection, SingleDetector
from fomo_stream.detector.views import LeftOut, View
from fomo_stream.errors import DamagedStateError, SchemaError
from fomo_stream.model.config import Model

Float = NDArray[np.float64]
Int = NDArray[np.int64]

# records that the shared contexts have not learned, shared records at the last decision, and keys that ever had
# contexts of their own
COUNTERS = struct.Struct("<qqq")
OWN = "own/"  # begins the names of entries about contexts of their own


class Detector:
    """Scores and learns the rows of one partition.

    model: from `load_model`; n_features: d; executor: runs the encoding of generations in the background (None: in
    the calling thread, when first needed). If an encoding is late, `process` waits for it. categorical: columns that
    hold category codes; counters: columns of fields that only grow, of which the growth counts. Raises SchemaError when
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
        config = config or DetectorConfig()
        self._shared = SingleDetector(model, n_features, config, executor, categorical, counters)
        self._owns = Owns(model, n_features, config, executor, categorical, counters)
        self._routes: Routes | None = None  # None: no key ever had contexts of its own
        self._apart = 0  # records that were learned by detectors of keys alone
        self._decided = 0  # shared records at the last decision
        self._shifts = 0  # lasting shifts that were announced for keys with contexts of their own
        self._converted: Entries = {}  # what the log has in the format before

    @property
    def model(self) -> Model:
        """The model."""
        return self._shared.model

    @property
    def n_features(self) -> int:
        """Columns of rows."""
        return self._shared.n_features

    @property
    def categorical(self) -> tuple[int, ...]:
        """Columns that hold category codes."""
        return self._shared.categorical

    @property
    def config(self) -> DetectorConfig:
        """The settings."""
        return self._shared.config

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
        return self._shared.context_numbers

    @property
    def summary(self) -> DetectorSummary:
        """How it is doing. Safe from any thread."""
        return self._shared.summary._replace(records=self.records, own_contexts=len(self._owns))

    def inspect(self) -> Inspection:
        """A look inside, which changes nothing; it waits for generations that are being built."""
        return self._shared.inspect()._replace(own={own.digest: own.is_ready for own in self._owns})

    @property
    def records(self) -> int:
        """Records processed: the number of the next one."""
        return self._shared.records + self._apart

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
        """How many of the next records can be scored before any is learned, if they share contexts; at least 1."""
        return self._shared.room

    def is_ready(self, keys: Sequence[Key]) -> bool:
        """Whether records with these keys (n,) can be processed next without waiting for a generation to be built."""
        _, owned = self._owned(keys, len(keys))
        apart = sum(len(at) - int(own.is_shared(len(at)).sum()) for own, at in owned)
        return self._shared.is_ready(len(keys) - apart) and all(own.detector.is_ready(len(at)) for own, at in owned)

    # -- scoring and learning ------------------------------------------------------------------------------------

    def process(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score each of rows (n, d), raw units, NaN = missing, then learn it, in order.

        Further columns may have the places of each row in the cycles, and, if there are counters, its time in seconds.

        keys: (n,) the series that each row belongs to (bytes, text, or None for that of the whole partition); None: all
        belong to that one. The result is the same however the rows of a partition are split over calls.
        Raises SchemaError when the rows have another number of features than the detector.
        """
        _check_lengths(rows, keys=keys)
        return self._process(rows, keys, None)

    def score_rows(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score rows (n, d) as the next n records without learning them.

        All are compared with the records before the first of them. So from the next step on results differ a little
        from those of `process`. This changes no later result: verdicts that come before these rows are learned still
        take effect together.
        """
        _check_lengths(rows, keys=keys)
        batch = self._shared.peek(rows, keys)
        is_own, owned = self._owned(keys, len(rows))
        if not owned:
            return self._shared.score(batch)
        shared_at = np.flatnonzero(~is_own)
        parts, places = [self._shared.score(batch.part(shared_at))], [shared_at]
        for own, at in owned:
            if own.is_ready:
                by_key = self._shared.by_key(batch.part(at))
                parts.append(own.results(own.detector.score(own.batch(batch, at), by_key)))
                places.append(at)
        return Results.merged(parts, places)

    def score_apart(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score rows (n, d) that are no stream, each against the shared contexts alone, without learning them.

        The outliers are those with a p-value of at most the alert rate. Nothing remembers the records before.
        """
        _check_lengths(rows, keys=keys)
        return self._shared.score_apart(rows, keys)

    def explain(
        self, rows: Float, keys: Sequence[Key] | None = None, scored: Results | None = None
    ) -> list[tuple[Reason, ...]]:
        """The reasons (n,) of rows (n, d) as the next n records, whatever `explain` is; () while warming up.

        scored: what `score_rows` has just said of them, if it is known. Nothing changes. Raises SchemaError as
        `process`.
        """
        _check_lengths(rows, keys=keys, results=scored)
        scored = self.score_rows(rows, keys) if scored is None else scored
        found: list[tuple[Reason, ...]] = [()] * len(rows)
        batch = self._shared.peek(rows, keys)
        is_own, owned = self._owned(keys, len(rows))
        shared_at = np.flatnonzero(~is_own)
        explained = [(shared_at, self._shared.explain(batch.part(shared_at), scored.scores[shared_at]))]
        for own, at in owned:
            if own.is_ready:
                reasons = own.detector.explain(own.batch(batch, at), scored.scores[at])
                explained.append((at, list(map(own_reasons, reasons))))
        for at, of_part in explained:
            for i, reasons_of in zip(at.tolist(), of_part, strict=True):
                found[i] = reasons_of
        return found

    def learn_rows(self, rows: Float, scored: Results, keys: Sequence[Key] | None = None) -> None:
        """Learn rows (n, d) as the next n records; the same as `process`, without scoring most of them again.

        scored: results of `score_rows` for exactly these rows, with no record learned since; feedback may have come.
        """
        _check_lengths(rows, keys=keys, results=scored)
        self._process(rows, keys, scored.scores)

    def pass_over(self, rows: Float, keys: Sequence[Key]) -> None:
        """Rows (n, d) that nothing is learned of, as in maintenance; but counters go on from their totals."""
        _check_lengths(rows, keys=keys)
        self._shared.pass_over(rows, keys)

    def seed_context(self, rows: Float, keys: Sequence[Key] | None = None) -> None:
        """Start warm from trusted rows (n, d), n >= 4: they count as the first n records, confirmed by feedback.

        Must come before the first record. Raises SchemaError for fewer rows; StateError when records were processed.
        """
        _check_lengths(rows, keys=keys)
        self._shared.seed_context(rows, keys)
        self._decided = self.records // DECIDE * DECIDE

    def flush_warm_up(self) -> None:
        """Let scores begin now, with fewer than min_context rows. Raises SchemaError with fewer than 4 rows."""
        self._shared.flush_warm_up()

    def cross_scored(self) -> Results:
        """Scores of the warm-up rows, each against the half that does not contain it.

        Only directly after the warm-up; otherwise empty.
        """
        return self._shared.cross_scored()

    def _process(self, rows: Float, keys: Sequence[Key] | None, known: Scores | None) -> Results:
        """Score and learn the next records (n, d). known: their scores, if no record was learned since."""
        parts: list[Results] = []
        start = 0
        while start < len(rows) or not parts:
            part = slice(start, start + DECIDE - self.records % DECIDE)
            of_part = None if keys is None else keys[part]
            parts.append(self._learn(rows[part], of_part, known if known is None or start else known[part]))
            start = part.stop
            known = None
            if len(rows) and self.records % DECIDE == 0:
                self._decide()
        return Results.concatenate(parts)

    def _learn(self, rows: Float, keys: Sequence[Key] | None, known: Scores | None) -> Results:
        """Score and learn records between two decisions."""
        if self._routes is None:
            return self._shared.process(rows, keys, known)[0]
        first, n = self.records, len(rows)
        is_own, owned = self._owned(keys, n)
        numbers, of_own = np.full((2, n), NOWHERE), np.zeros(n, np.int64)
        are_known_for_own = n <= self._shared.room  # else what is usual for a key may change among them
        is_shared = ~is_own
        for own, at in owned:
            is_shared[at] = own.is_shared(len(at))
        shared_at, judged_at = np.flatnonzero(is_shared), np.flatnonzero(~is_own)
        numbers[0, shared_at] = self._shared.records + np.arange(len(shared_at))
        self._apart += n - len(shared_at)
        judged = ~is_own[shared_at]
        of_shared = _at(known, shared_at) if judged.all() else None
        results, by_key, batch = self._shared.process(rows, keys, of_shared, is_shared, judged)
        parts, places = [results], [judged_at]
        for own, at in owned:
            first_own, before = own.detector.records, own.detector.shifts
            of_own[at], numbers[1, at] = own.number, first_own + np.arange(len(at))
            of_own_known = _at(known, at) if own.is_ready and are_known_for_own else None
            results = own.detector.learn(own.batch(batch, at), of_own_known, by_key[at])
            self._owns.touch(own)
            if own.is_ready:
                self._shifts += own.detector.shifts - before
                parts.append(own.results(results))
                places.append(at)
        self._routes.note(first, numbers[0], of_own, numbers[1])
        return Results.merged(parts, places)

    def _decide(self) -> None:
        """Every `DECIDE` records: which keys have contexts of their own."""
        shared = self._shared
        slots, _ = shared.history.series(self._decided, shared.records)
        self._decided = shared.records
        self._owns.decide(shared, slots, self.records)
        if self._owns.entered and self._routes is None:
            self._routes = self._new_routes()
            self._routes.begin(self.records)

    def _new_routes(self) -> Routes:
        return Routes(self.config.history_rows)

    def _owned(self, keys: Sequence[Key] | None, n: int) -> tuple[NDArray[np.bool_], list[tuple[Own, Int]]]:
        """Which of records with these keys (n,) are scored by contexts of their key alone (n,).

        And each key with contexts of its own, with the positions (m,) of its records, which these learn.
        """
        is_own, places = np.zeros(n, dtype=bool), dict[int, list[int]]()
        owns: dict[int, Own] = {}
        if len(self._owns) and keys is not None:
            for i, key in enumerate(keys):
                if key is not None and (own := self._owns.find(digest_of(key))) is not None:
                    owns[own.number] = own
                    places.setdefault(own.number, []).append(i)
                    is_own[i] = own.is_ready
        return is_own, [(own, np.array(places[number])) for number, own in owns.items()]

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
        is_shared = shared != NOWHERE
        changed = self._shared.feedback(shared[is_shared], outlier[is_shared])
        for own in self._owns:
            at = of_own == own.number
            if at.any():
                own.detector.feedback(own_numbers[at & is_shared], outlier[at & is_shared])
                changed += own.detector.feedback(own_numbers[at & ~is_shared], outlier[at & ~is_shared])
                self._owns.touch(own)
        return changed

    def numbers_of(self, rows: Float) -> list[Int]:
        """For each of rows (n, d), the numbers of the known records equal to it."""
        found = self._shared.numbers_of(rows)
        if self._routes is None:
            return found
        routes, records = self._routes, self.records
        all_found = [[routes.numbers(records, 0, numbers)] for numbers in found]
        for own in self._owns:
            for numbers, of_own in zip(all_found, own.detector.numbers_of(rows), strict=True):
                numbers.append(routes.numbers(records, own.number, of_own))
        return [np.unique(np.concatenate(numbers)) for numbers in all_found]

    def has_verdict(self, numbers: Int) -> NDArray[np.bool_]:
        """Whether there is feedback on known records, by number (k,)."""
        if self._routes is None:
            return self._shared.has_verdict(numbers)
        shared, of_own, own_numbers = self._routes.find(numbers)
        known: NDArray[np.bool_] = self._shared.has_verdict(shared) & (shared != NOWHERE)
        for own in self._owns:
            at = (of_own == own.number) & (shared == NOWHERE)
            known[at] = own.detector.has_verdict(own_numbers[at])
        return known

    # -- state ---------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries changed since the last call; the first call of a new detector returns its whole state.

        The entries of one call have to be in the log before the next call; if they get lost, go back with `recover`.
        """
        entries, self._converted = self._converted | self._shared.changes(), {}
        if self._routes is not None and entries | (own := self._owns.changes()):
            own |= self._routes.changes("routes")
            own["counters"] = COUNTERS.pack(self._apart, self._decided, self._owns.entered)
            entries |= {OWN + name: value for name, value in own.items()}
        return entries

    def recover(self, entries: StoredEntries, known: Detector | None = None) -> None:
        """Take the state from the entries: the same records then get the same results, bit for bit on one device.

        known: a detector of the same partition, perhaps this one, whose generations need not be encoded again.
        Raises StateError when the entries are of another detector (all differences, joined by "; ") or of another
        version of fomo-stream, incomplete or damaged. This detector must not be used then.
        """
        self._converted = changes_since(entries)
        entries = {**entries, **{name: value for name, value in self._converted.items() if value is not None}}
        self._shared.recover(entries, None if known is None else known._shared)
        own = {name[len(OWN) :]: value for name, value in entries.items() if name.startswith(OWN)}
        self._routes, self._apart, self._shifts, entered = None, 0, 0, 0
        self._decided = self.records // DECIDE * DECIDE
        if own:
            try:
                self._apart, self._decided, entered = COUNTERS.unpack(own.get("counters", b""))
            except struct.error as error:
                raise DamagedStateError(f"the state is damaged: {OWN}counters is not readable ({error})") from None
            self._routes = self._new_routes()
            self._routes.recover(own, "routes")
        self._owns.recover(own, entered, None if known is None else known._owns)

    def copy(self) -> Detector:
        """An independent detector in the same state; encoded contexts, which are immutable, are shared."""
        twin = copy(self)
        twin._converted = {}
        twin._shared, twin._owns = self._shared.copy(), self._owns.copy()
        twin._routes = None if self._routes is None else self._routes.copy()
        return twin

    def for_partition(self, number: int) -> Detector:
        """A copy, before the first record, for the partition of this number.

        Its steps and the renewals of its views come a part of their period earlier than those of partition 0. So
        partitions whose records come at the same rate do not build their contexts all at the same moment.
        """
        twin = self.copy()
        twin._shared = self._shared.for_partition(number)
        return twin


def _check_lengths(rows: Float, **given: Sequence[Key] | Results | None) -> None:
    for name, one in given.items():
        if one is not None and len(one) != len(rows):
            raise SchemaError(f"{len(rows)} rows with {len(one)} {name}; give one for each row")


def _at(scores: Scores | None, at: Int) -> Scores | None:
    return None if scores is None else scores[at]
