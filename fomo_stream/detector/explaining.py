"""Reasons of records: which features make them odd for the generations that score them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.attribution import BackgroundRows, Column, Comparison, attribute
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.generation import ContextSpec
from fomo_stream.detector.keys import UNKEYED
from fomo_stream.detector.relative import Pooled
from fomo_stream.detector.results import Cause, Reason, Results, Scores
from fomo_stream.detector.step.follow import Batch
from fomo_stream.detector.view_set import ContextBuilder, ViewSet
from fomo_stream.detector.views import View, distances_of
from fomo_stream.model.architecture import Model

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Scorers = Sequence[tuple[View, ContextBuilder]]  # each view with the generation that scores a record
ScorersOf = Callable[[int], Scorers]  # by the position of a record


@dataclass(frozen=True)
class Explainer:
    """Finds the reasons of records. It has no state: what it computes for a generation is kept there.

    categorical: columns of a record that hold category codes.
    """

    model: Model
    config: DetectorConfig
    categorical: tuple[int, ...]

    def explained(self, results: Results, batch: Batch, builders: ScorersOf, pooled: Pooled | None) -> Results:
        """Return the results of n records, with reasons where settings ask for them. Other arguments: see `reasons`."""
        if self.config.explain == "none":
            return results
        is_wanted = results.outlier if self.config.explain == "alerts" else np.ones(len(results), dtype=bool)
        if not is_wanted.any():
            return results
        which, scores = enumerate(is_wanted.tolist()), results.scores
        reasons = (self.reasons(batch, i, scores, builders, pooled) if is_one else None for i, is_one in which)
        return results.explained(list(reasons))

    def halves(self, view_set: ViewSet, numbers: Int) -> ScorersOf:
        """Return, for the i-th of the records `numbers` (n,) in the first contexts, their half without this record."""
        first = [
            (view, builder.spec.numbers, cache(partial(self._half, builder.spec)))
            for view, builder in view_set.builders(0)
        ]
        return lambda i: [(view, half(bool(numbers[i] < of[len(of) // 2]))) for view, of, half in first]

    def reasons(
        self, batch: Batch, i: int, scores: Scores, builders: ScorersOf, pooled: Pooled | None
    ) -> tuple[Reason, ...]:
        """The reasons of the i-th record of a batch with these scores; () without generations that score it.

        builders: of the i-th record, these generations; pooled: what is usual for all keys. A record that has the logit
        of its key is explained by what is usual for that. Missing values that are unknown are not reasons.
        """
        usual = pooled if scores.for_key[i] else None
        scorers = [(view, builder) for view, builder in builders(i) if view.is_of_keys == (usual is not None)]
        reasons = self._found(batch, i, scorers)
        if usual is not None:
            values = [builder.spec.rows for view, builder in builders(i) if not view.is_computed]
            only_values = any(view.input == "key_value" for view, _ in scorers)
            reasons = tuple(_relative_to_key(reason, batch, i, usual, values, only_values) for reason in reasons)
        # how a value came to what nearly all records have is not a reason if there are others
        is_common = batch.is_common[i]
        reasons = tuple(r for r in reasons if r.cause is Cause.VALUE or not is_common[r.feature]) or reasons
        return (*self._still(batch, i), *reasons)[: self.config.reasons]

    def _still(self, batch: Batch, i: int) -> list[Reason]:
        """Return the features of the i-th record that stand still, the longest run first."""
        runs = batch.still[i] if self.config.stuck_values == "alert" else np.zeros(0, np.int64)
        nothing = (math.nan,) * 4
        return [
            Reason(feature, Cause.STILL, 1.0, float(batch.vectors[i, 0, feature]), *nothing, before=int(runs[feature]))
            for feature in np.argsort(-runs, kind="stable").tolist()
            if runs[feature] > 0
        ]

    def _found(self, batch: Batch, i: int, builders: Scorers) -> tuple[Reason, ...]:
        """Return the reasons of the i-th record against these generations, in the units of their views."""
        if not builders:
            return ()
        kinds: dict[str, list[tuple[View, ContextBuilder]]] = {}  # views of the same columns share near rows
        for view, builder in builders:
            kinds.setdefault(view.input, []).append((view, builder))
        comparisons, rows = [], []
        for same in kinds.values():
            scorers = tuple(partial(builder.result().logits, self.model) for _, builder in same)
            recent = next((builder for view, builder in same[1:] if view.sample == "recent"), None)
            comparisons.append(Comparison(self._background(*same[0], recent), scorers))
            vectors = batch.vectors_for(same[0][0].input)[i]
            rows.append(same[0][0].columns(vectors[None], self.config.lags, self.categorical)[0])
        return attribute(comparisons, rows, self.config.reasons, batch.gaps[i])

    def _background(self, view: View, builder: ContextBuilder, recent: ContextBuilder | None) -> BackgroundRows:
        """Return the rows of a context, with the recent records: after a shift, all near rows may be of the past."""
        if builder.background is None or builder.background[0] is not recent:
            spec = builder.spec
            numbers, rows, near = spec.numbers, spec.rows, np.isin(spec.numbers, builder.result().numbers)
            if recent is not None:
                others = recent.spec
                further = ~np.isin(others.numbers, numbers)
                near |= np.isin(numbers, others.numbers)
                near = np.concatenate([near, further[further]])
                rows = np.concatenate([rows, others.rows[further]])
            builder.background = recent, BackgroundRows(rows, self._columns(view, spec), near)
        return builder.background[1]

    def _columns(self, view: View, spec: ContextSpec) -> list[Column]:
        w, d = spec.rows.shape[1], spec.outliers.shape[1]
        causes = {"movement": (Cause.LEVEL, Cause.SPREAD), "relative": (Cause.VALUE, Cause.LEVEL, Cause.SPREAD)}.get(
            view.input, (Cause.VALUE, *[Cause.PAST] * self.config.lags)
        )
        return [Column(c % d, causes[c // d], c in spec.categorical) for c in range(w)]

    def _half(self, whole: ContextSpec, second: bool) -> ContextBuilder:
        """Return the generation of the first or of the second half of a context's rows."""
        middle = len(whole.rows) // 2
        part = slice(middle, None) if second else slice(0, middle)
        spec = replace(
            whole,
            number=0,  # the first generation would score its own rows
            numbers=whole.numbers[part],
            rows=whole.rows[part],
            logits=np.zeros(len(whole.rows[part])),
            confirmed=whole.confirmed[part],
        )
        return ContextBuilder(self.model, spec, None)


def _relative_to_key(
    reason: Reason, batch: Batch, i: int, pooled: Pooled, values: Sequence[Float], only_values: bool
) -> Reason:
    """Return a reason of the i-th record, whose numbers are relative to its key or its time, in raw units.

    values: contexts (c, w) that begin with raw values: where none of a feature is below 0, no usual value is;
    only_values: whether the numbers are of the view `key_values`.
    """
    level, spread = batch.usual[i, :2, reason.feature].tolist()
    names = ("value", "median", "low", "high", "expected")
    numbers = np.array([getattr(reason, name) for name in names])
    numbers = distances_of(numbers) if only_values else numbers
    if reason.cause is Cause.SPREAD:
        raw = numbers * pooled.width(level, spread, reason.feature)
    else:
        raw = pooled.raw(level + spread * numbers, reason.feature)
        if values and not any((rows[:, reason.feature] < 0.0).any() for rows in values):
            raw[1:] = np.maximum(raw[1:], 0.0)
    if reason.cause is Cause.VALUE:
        raw[0] = batch.vectors[i, 0, reason.feature]  # exactly
    scope = "key" if batch.slots[i] > UNKEYED else "time"
    return reason._replace(scope=scope, **dict(zip(names, raw.tolist(), strict=True)))
