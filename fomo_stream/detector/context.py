"""The records that a partition's contexts are drawn from: a sample of its history, its last records, and feedback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import State
from fomo_stream.detector.config import MIN_CONTEXT_ROWS, DetectorConfig
from fomo_stream.detector.generation import ContextSpec
from fomo_stream.detector.history import History, Reservoir
from fomo_stream.detector.results import Scores
from fomo_stream.detector.series import flat
from fomo_stream.detector.step.follow import RELATIVE_VECTORS, Batch
from fomo_stream.detector.step.judge import INLIER, OUTLIER
from fomo_stream.detector.views import View
from fomo_stream.errors import DamagedStateError, SchemaError

Float = NDArray[np.float64]
Int = NDArray[np.int64]

MIN_TIMED_ROWS = 100  # rows with usual values of their time; fewer, as these begin only after two cycles
MAX_KNOWN_OUTLIERS = 500  # rows that feedback called outliers


class Context(State):
    """The reservoir of one partition, its known outliers, and the history of its last records.

    A record enters the reservoir at the next step, if the policy admits it, with the logit that it had in the trimmed
    view when it came. A context is the whole reservoir or, in a view of recent records, the end of the history. views:
    those in use.
    """

    parts: ClassVar = {"history": "history", "reservoir": "pool", "outliers": "outliers", "relatives": "relatives"}
    documents: ClassVar = {"confirmed": "confirmed"}
    scalars: ClassVar = ("history.records", "_changes", "_at_trigger", "_pending")

    def __init__(
        self,
        n_features: int,
        views: tuple[View, ...],
        movement: bool,
        config: DetectorConfig,
        categorical: tuple[int, ...],
        prior: float = 0.0,
        has_quantile_map: bool = True,
    ) -> None:
        """prior: see `History`; has_quantile_map: whether the model needs the quantiles of the reservoirs."""
        self.config, self.views = config, views
        self._n_features, self.categorical = n_features, categorical
        self._has_quantile_map = has_quantile_map
        vectors = 1 + config.lags + 2 * movement
        size, seed = config.context_size, config.seed
        self.reservoir = Reservoir(
            size, vectors * n_features, seed, fitted=n_features * has_quantile_map
        )  # of admitted records
        self.outliers = Reservoir(MAX_KNOWN_OUTLIERS, n_features, seed + 2)  # of outliers by feedback
        # of admitted records of known keys: how far they are from what is usual for their key
        relative = any(view.is_of_keys for view in views)
        width = RELATIVE_VECTORS * n_features
        self.relatives = Reservoir(size if relative else MIN_CONTEXT_ROWS, width, seed + 3, width * has_quantile_map)
        rows, scores = config.history_rows, config.history_scores
        self.history = History(n_features, self.n_shared, rows, scores, config.lags, movement, relative, prior)
        self.confirmed: Int = np.zeros(0, dtype=np.int64)  # ascending, by feedback; replaced, never written in place
        self._pending: dict[int, int] = {}  # by record with a new verdict: the verdict before it
        self._changes = [0, 0]  # of slots of the reservoir, and of the relatives, so far
        self._at_trigger = [0] * len(views)  # for each view: these changes, or the number of records

    @property
    def n_shared(self) -> int:
        """Views whose logits have a mean: all but that of what is usual for keys."""
        return sum(not view.is_of_keys for view in self.views)

    def _reservoir_of(self, view: View) -> Reservoir:
        return self.relatives if view.is_of_keys else self.reservoir

    @property
    def max_rows(self) -> int:
        """An upper bound on the rows of the reservoir once the waiting verdicts are applied."""
        return len(self.reservoir) + len(self._pending)

    def is_due(self, view: int) -> bool:
        """Return whether enough has changed for a new generation of a view, and enough rows are left to make one."""
        if self.views[view].sample == "recent":
            return self.history.records - self._at_trigger[view] >= self.config.recent_every
        of_keys = self.views[view].is_of_keys
        rows = len(self._reservoir_of(self.views[view]))
        changed = self._changes[of_keys] - self._at_trigger[view]
        least = min(self.config.min_context, MIN_TIMED_ROWS) if self.config.cycles else self.config.min_context
        return rows >= (least if of_keys else MIN_CONTEXT_ROWS) and changed >= self.config.refresh * rows

    def renew_early(self, share: float) -> None:
        """Let the next renewal of the views of recent records come earlier, by a share of their period."""
        for at, view in enumerate(self.views):
            self._at_trigger[at] -= int(share * self.config.recent_every) * (view.sample == "recent")

    def seed(self, batch: Batch) -> None:
        """Trusted records (n,), the first ones: all become context, and are confirmed."""
        n = len(batch.vectors)
        self.history.append(batch, Scores.unknown(n, self.n_shared), np.full(n, np.nan), np.zeros(n, dtype=bool))
        self.reservoir.admit(np.arange(n), flat(batch.vectors))
        self.confirmed = np.arange(n)

    def admit_first(self, numbers: Int) -> None:
        """Records of the warm-up: all become context."""
        self.reservoir.admit(numbers, flat(self.history.vectors(numbers)))

    def note_relative(self, numbers: Int, relative: Float) -> None:
        """Note how far records of the warm-up (n, RELATIVE_VECTORS, d) are from what is usual for their keys."""
        self.history.note_relative(numbers, relative)
        self._admit_relative(numbers)

    def note_far(self, numbers: Int, far: NDArray[np.bool_], moves: Float) -> None:
        """Note which records of the warm-up (n,) have far values, and how all move (n, MOVEMENT_VECTORS, d) without
        such values."""
        self.history.note_far(numbers, far, moves)
        kept = np.intersect1d(self.reservoir.numbers, numbers)
        self.reservoir.discard(kept)
        self.reservoir.admit(kept, flat(self.history.vectors(kept)))

    def note_first(self, numbers: Int, by_view: Float, remembered: Float, outlier: NDArray[np.bool_]) -> None:
        """Note the logits (n, views) and remembered logits (n,) that the first contexts give their records (n,), and
        which of these are outliers.
        """
        self.history.note(numbers, by_view, remembered, outlier)
        if self._trimmed is not None:
            self.reservoir.note(numbers, by_view[:, self._trimmed])

    def end_warm_up(self) -> None:
        """Apply the waiting verdicts. Raises SchemaError, and changes nothing, if too few rows are left."""
        after = self.copy()
        after.apply_verdicts()
        if (n := len(after.reservoir)) < MIN_CONTEXT_ROWS:
            raise SchemaError(f"{n} rows are too few for a context; at least {MIN_CONTEXT_ROWS} are needed")
        self.apply_verdicts()

    def step(self, n: int) -> None:
        """Admit the last n records of the history."""
        if self.config.admit != "feedback":
            self._admit(self.history.not_outliers(self.history.records - n, self.history.records))

    def feedback(self, verdicts: Mapping[int, bool]) -> int:
        """Note verdicts by record number (True: outlier). Returns how many were new; see `Detector.feedback`.

        The history changes at once, so p-values no longer refer to outliers; `apply_verdicts` changes the reservoirs
        later.
        """
        numbers = [number for number in verdicts if self.history.oldest <= number < self.history.records]
        judged = np.array(numbers, dtype=np.int64)
        verdict = np.array([OUTLIER if verdicts[number] else INLIER for number in numbers], dtype=np.int8)
        before = self.history.verdict(judged)
        new = before != verdict
        self.history.judge(judged[new], verdict[new])
        for number, old, now in zip(judged[new].tolist(), before[new].tolist(), verdict[new].tolist(), strict=True):
            if self._pending.setdefault(number, old) == now:
                del self._pending[number]  # back to the verdict before: nothing has changed
        return int(new.sum())

    @property
    def has_new_verdicts(self) -> bool:
        """Return whether verdicts wait for the next record."""
        return bool(self._pending)

    @property
    def new_verdicts(self) -> tuple[Int, Int]:
        """Return the numbers of records that waiting verdicts make outliers, and of those they make normal."""
        judged = np.array(sorted(self._pending), dtype=np.int64)
        was_outlier = [self._pending[number] == OUTLIER for number in judged.tolist()]
        return judged[self.history.verdict(judged) == OUTLIER], judged[np.array(was_outlier, dtype=bool)]

    def apply_verdicts(self) -> None:
        """Update the reservoirs by the verdicts since the last record; call it before the next record is learned.

        All together and sorted by record number, so that the result does not depend on the order of the verdicts. (A
        full reservoir loses other rows if rows enter before others leave.)
        """
        if not self._pending:
            return
        judged = np.array(sorted(self._pending), dtype=np.int64)
        self._pending = {}
        verdict = self.history.verdict(judged)
        outliers, normal = judged[verdict == OUTLIER], judged[verdict == INLIER]
        self.confirmed = np.union1d(np.setdiff1d(self.confirmed, outliers), normal)
        self._changes[False] += len(self.reservoir.discard(outliers))
        self._changes[True] += len(self.relatives.discard(outliers))
        self.outliers.discard(normal)
        self._admit(normal)
        self.outliers.admit(outliers, self.history.vectors(outliers)[:, 0])

    def _admit(self, numbers: Int) -> None:
        """Offer records of the history to the reservoir."""
        if len(entering := self.reservoir.may_enter(numbers)):
            logits = None if self._trimmed is None else self.history.logits_in(self._trimmed, entering)
            self._changes[False] += len(self.reservoir.admit(entering, flat(self.history.vectors(entering)), logits))
        self._admit_relative(numbers)

    def _admit_relative(self, numbers: Int) -> None:
        has_relative = self.history.knows_relative(numbers)
        if has_relative.any():
            entering = self.relatives.may_enter(numbers[has_relative])
            self._changes[True] += len(self.relatives.admit(entering, flat(self.history.relative(entering))))

    @property
    def _trimmed(self) -> int | None:
        """Position of the view whose context is trimmed."""
        return next((i for i, view in enumerate(self.views) if view.trim), None)

    # -- specs of contexts
    # ----------------------------------------------------------------------------------------------

    def context_spec(self, at: int, number: int, takes_effect: int) -> ContextSpec:
        """Return the spec of a generation of views[at] from the present state."""
        view, end = self.views[at], self.history.records
        self._at_trigger[at] = end if view.sample == "recent" else self._changes[view.is_of_keys]
        if view.sample == "recent":
            first = max(self.history.oldest, end - self.config.context_size)
            numbers = self.history.not_outliers(first, end)
            if len(numbers) < MIN_CONTEXT_ROWS:
                numbers = np.arange(first, end)
            return self.spec_of_recent(at, number, takes_effect, numbers)
        reservoir = self._reservoir_of(view)
        numbers, vectors = reservoir.numbers, reservoir.rows.reshape(len(reservoir), -1, self._n_features)
        if len(self.confirmed):
            self.confirmed = np.intersect1d(self.confirmed, self.reservoir.numbers)  # the others are forgotten
        rows = self.view_columns(view, vectors)
        is_fitted = self._has_quantile_map and view.input in ("record", "relative")
        quantiles = reservoir.quantiles if is_fitted else ()
        if view.is_of_keys and np.isnan(vectors[:, 1:]).all():
            # Without keys, only seasons tell usual values. Most rows came before a new season: its values, however
            # usual, would be unlike them
            few = 2 * (~np.isnan(rows)).sum(axis=0) < len(rows)
            rows = np.where(few, np.nan, rows)
            quantiles = tuple(np.zeros(0) if few[j] else q for j, q in enumerate(quantiles))
        return replace(
            self.blank_spec(at),
            number=number,
            takes_effect=takes_effect,
            numbers=numbers,
            rows=rows,
            logits=self.reservoir.logits if view.trim or at == self._adding[0] else np.zeros(0),
            quantiles=quantiles,
            confirmed=np.isin(numbers, self.confirmed) & bool(view.trim),
            outliers=self.outliers.rows if at == self._adding[1] else np.zeros((0, self._n_features)),
        )

    def spec_of_recent(self, at: int, number: int, takes_effect: int, numbers: Int) -> ContextSpec:
        """Return the spec of a generation of views[at], a view of recent records, from these records (n,).

        Raises StateError when the history has lost one of them.
        """
        rows, blank = self.columns(self.views[at], numbers), self.blank_spec(at)
        if len(rows) < len(numbers):
            what = f"records {numbers[0]} to {numbers[-1]} are not in the history"
            raise DamagedStateError(f"the state is damaged: {what}")
        made = replace(blank, number=number, takes_effect=takes_effect, numbers=numbers, rows=rows)
        return replace(made, confirmed=np.zeros(len(rows), dtype=bool))

    def blank_spec(self, at: int) -> ContextSpec:
        """Return a spec of views[at] without rows."""
        none, rows = np.zeros(0, dtype=np.int64), self.columns(self.views[at], np.zeros(0, dtype=np.int64))
        codes = self.views[at].codes(self._n_features, self.config.lags, self.categorical)
        outliers = np.zeros((0, self._n_features))
        no, trim, once = np.zeros(0, dtype=bool), self.views[at].trim, self._once(at)
        spec = ContextSpec(0, 0, self.config.seed, codes, trim, once, none, rows, np.zeros(0), no, outliers)
        return replace(spec, middle=self.views[at].middle)

    def columns(self, view: View, numbers: Int) -> Float:
        """Return rows (n, width) of records of the history in a view; none if one record is not there."""
        if len(numbers) and int(numbers.min()) < self.history.oldest:
            numbers = numbers[:0]
        vectors = self.history.relative(numbers) if view.is_of_keys else self.history.vectors(numbers)
        return self.view_columns(view, vectors)

    def view_columns(self, view: View, vectors: Float) -> Float:
        """The columns (n, width) of a view from vectors (n, vectors, d)."""
        return view.columns(vectors, self.config.lags, self.categorical)

    def _once(self, at: int) -> float:
        """Weight, in views[at], of extremes and of likeness to known outliers; 0: another view adds them."""
        if self.views[at].is_of_keys:
            return self.views[at].extremes  # it is in no mean
        return float(self.n_shared) if at in self._adding else 0.0

    @property
    def _adding(self) -> tuple[int, int]:
        """Positions of the views that add extremes, and likeness to known outliers, for the mean of all; -1: none.

        Both see the record alone, and are untrimmed and of the reservoir if possible. A trimmed context lacks the
        extremes, and a context of recent records is restored from their numbers, without the outliers of its time.
        """
        views = self.views
        plain = [i for i, view in enumerate(views) if view.input == "record"]
        of_reservoir = [i for i in plain if views[i].sample == "reservoir"]
        extremes = min(plain, key=lambda i: (views[i].trim > 0, views[i].sample != "reservoir"), default=-1)
        return extremes, min(of_reservoir, key=lambda i: views[i].trim > 0, default=-1)
