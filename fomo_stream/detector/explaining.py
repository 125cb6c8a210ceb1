"""Reasons of the records of a partition: from the generations that score them to the features that matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.attribution import Background, Column, Comparison, attribute
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.generation import Blueprint
from fomo_stream.detector.panel import Build, Panel
from fomo_stream.detector.results import Cause, Reason, Results
from fomo_stream.detector.views import View
from fomo_stream.model.config import Model

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Scorers = Sequence[tuple[View, Build]]  # each view with the generation that scores a record


@dataclass(frozen=True)
class Explainer:
    """Finds the reasons of records. It has no state: what it computes once for a generation, that generation keeps.

    categorical: columns of a record that hold category codes.
    """

    model: Model
    config: DetectorConfig
    categorical: tuple[int, ...]

    def explained(self, results: Results, vectors: Float, gaps: Bool, builds: Callable[[int], Scorers]) -> Results:
        """The results (n,) of records of vectors (n, vectors, d) and gaps (n, d), with reasons where wanted.

        builds: of the i-th record, the generations that score it.
        """
        wanted = results.outlier if self.config.explain == "alerts" else np.ones(len(results), dtype=bool)
        if self.config.explain == "none" or not wanted.any():
            return results
        which = enumerate(wanted.tolist())
        found = (self.reasons(vectors[i], gaps[i], builds(i)) if is_one else None for i, is_one in which)
        return results.explained(list(found))

    def halves(self, panel: Panel, numbers: Int) -> Callable[[int], Scorers]:
        """For the i-th of the records `numbers` (n,) in the first contexts: the half of each that does not have it."""
        first = [
            (view, build.blueprint.numbers, cache(partial(self._half, build.blueprint)))
            for view, build in panel.builds(0)
        ]
        return lambda i: [(view, half(bool(numbers[i] < of[len(of) // 2]))) for view, of, half in first]

    def reasons(self, vectors: Float, gaps: Bool, builds: Scorers) -> tuple[Reason, ...]:
        """The reasons of one record (vectors, d) that these generations score; () without them.

        gaps: (d,) values that are missing. Where they are unknown, they are no reasons.
        """
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
        unknown = gaps if self.config.missing_is == "unknown" else np.zeros_like(gaps)
        return attribute(comparisons, rows, self.config.reasons, unknown)

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

    def _half(self, whole: Blueprint, second: bool) -> Build:
        """The generation of the first or of the second half of a context's rows."""
        middle = len(whole.rows) // 2
        part = slice(middle, None) if second else slice(0, middle)
        blueprint = replace(
            whole,
            number=0,  # the first generation would score its own rows
            numbers=whole.numbers[part],
            rows=whole.rows[part],
            logits=np.zeros(len(whole.rows[part])),
            confirmed=whole.confirmed[part],
        )
        return Build(self.model, blueprint, None)
