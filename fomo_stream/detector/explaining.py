"""Reasons of the records of a partition: from the generations that score them to the features that matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.attribution import Background, Column, Comparison, attribute
from fomo_stream.detector.config import DetectorConfig, Explain
from fomo_stream.detector.generation import Blueprint
from fomo_stream.detector.panel import Build, Panel
from fomo_stream.detector.results import Cause, Reason, Results
from fomo_stream.detector.views import View
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Scorers = Sequence[tuple[View, Build]]  # each view with the generation that scores a record


@dataclass(frozen=True)
class Explainer:
    """Finds the reasons of records. It has no state: what it computes once for a generation, that generation keeps.

    categorical: columns of a record that hold category codes.
    """

    model: ZeroShotModel
    config: DetectorConfig
    categorical: tuple[int, ...]

    def explained(self, results: Results, vectors: Float, panel: Panel, first: int) -> Results:
        """The results of the records from number `first` on, vectors (n, vectors, d), with reasons where wanted."""
        wanted = self._wanted(results)
        if not wanted:
            return results
        n = len(results)
        return results.explained(
            [self.reasons(vectors[i], panel.builds(first + i)) if i in wanted else None for i in range(n)]
        )

    def cross_explained(self, results: Results, vectors: Float, panel: Panel, numbers: Int) -> Results:
        """The results of the records `numbers` (n,) of the first generations, with reasons where wanted.

        A record is compared with the half of each context that does not have it, as it was when it was scored.
        """
        wanted = self._wanted(results)
        if not wanted:
            return results
        halves = [(view, build.blueprint.numbers, self._halves(build.blueprint)) for view, build in panel.builds(0)]

        def reasons(i: int) -> tuple[Reason, ...]:
            later = [(view, half[int(numbers[i] < of[len(of) // 2])]) for view, of, half in halves]
            return self.reasons(vectors[i], later)

        return results.explained([reasons(i) if i in wanted else None for i in range(len(results))])

    def reasons_of_all(self, vectors: Float, panel: Panel, first: int) -> list[tuple[Reason, ...]]:
        """The reasons (n,) of the records from number `first` on, vectors (n, vectors, d)."""
        return [self.reasons(one, panel.builds(first + i)) for i, one in enumerate(vectors)]

    def reasons(self, vectors: Float, builds: Scorers) -> tuple[Reason, ...]:
        """The reasons of one record (vectors, d) that these generations score; () without them."""
        if not builds:
            return ()
        kinds: dict[str, list[tuple[View, Build]]] = {}  # views of the same columns share near rows
        for view, build in builds:
            kinds.setdefault(view.sees, []).append((view, build))
        comparisons, rows = [], []
        for same in kinds.values():
            scorers = tuple(partial(build.result().logits, self.model) for _, build in same)
            recent = next((build for view, build in same[1:] if view.of == "recent"), None)
            comparisons.append(Comparison(self._background(*same[0], recent), scorers))
            rows.append(same[0][0].columns(vectors[None], self.config.lags, self.categorical)[0])
        return attribute(comparisons, rows, self.config.reasons)

    def _wanted(self, results: Results) -> set[int]:
        which = Explain(self.config.explain)
        if which is Explain.NONE:
            return set()
        return set(range(len(results)) if which is Explain.ALL else np.flatnonzero(results.outlier).tolist())

    def _background(self, view: View, build: Build, recent: Build | None) -> Background:
        """Those of a context together with the recent records: after a shift, its near rows may all be of the past."""
        if build.background is None or build.background[0] is not recent:
            blueprint = build.blueprint
            numbers, rows, near = blueprint.numbers, blueprint.rows, np.isin(blueprint.numbers, build.result().numbers)
            if recent is not None:
                others = recent.blueprint
                further = ~np.isin(others.numbers, numbers)
                near |= np.isin(numbers, others.numbers)
                near = np.concatenate([near, further[further]])
                rows = np.concatenate([rows, others.rows[further]])
            build.background = recent, Background(rows, self._columns(view, blueprint), near)
        return build.background[1]

    def _columns(self, view: View, blueprint: Blueprint) -> list[Column]:
        w, d = blueprint.rows.shape[1], blueprint.outliers.shape[1]
        first, later = (Cause.LEVEL, Cause.SPREAD) if view.sees == "movement" else (Cause.VALUE, Cause.PAST)
        return [Column(c % d, first if c < d else later, c in blueprint.categorical) for c in range(w)]

    def _halves(self, whole: Blueprint) -> tuple[Build, Build]:
        """Generations of the first and of the second half of a context's rows."""

        def half(part: slice) -> Build:
            blueprint = replace(
                whole,
                number=0,  # the first generation would score its own rows
                numbers=whole.numbers[part],
                rows=whole.rows[part],
                confirmed=whole.confirmed[part],
                recent_numbers=whole.recent_numbers[:0],
                recent=whole.recent[:0],
            )
            return Build(self.model, blueprint, None)

        middle = len(whole.rows) // 2
        return half(slice(0, middle)), half(slice(middle, None))
