"""The views of a partition side by side: each scores the records with the generations of its own timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.confidence import confidence
from fomo_stream.detector.context import Context
from fomo_stream.detector.generation import Blueprint
from fomo_stream.detector.results import Scores
from fomo_stream.detector.timeline import Build, Timeline
from fomo_stream.detector.views import View
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


class Panel:
    """The timelines of all views. A record's logit is the mean of its logits in the views."""

    def __init__(self, views: tuple[View, ...], model: ZeroShotModel, executor: Executor | None) -> None:
        self._model, self._executor = model, executor
        self.timelines = [Timeline(view, model, executor) for view in views]
        self.steps = 0  # since the warm-up

    @property
    def views(self) -> tuple[View, ...]:
        """The views, in order."""
        return tuple(timeline.view for timeline in self.timelines)

    @property
    def generation(self) -> int:
        """Counts the contexts that took effect after the first ones, from 1; 0 while there are none."""
        numbers = [timeline.number for timeline in self.timelines]
        return sum(numbers) - len(numbers) + 1 if numbers[0] else 0

    @property
    def trimmed_rows(self) -> int:
        """Rows that the current trimmed contexts have left out."""
        builds = [timeline.current for timeline in self.timelines if timeline.view.trim]
        made = [build for build in builds if build is not None and build.is_made]
        return sum(len(build.blueprint.numbers) - len(build.result().numbers) for build in made)

    def generation_age(self, records: int) -> int:
        """Records since the newest context took effect. records: number of the next record."""
        builds = [timeline.current for timeline in self.timelines]
        return records - max((b.blueprint.takes_effect for b in builds if b is not None), default=records)

    def begin(self, context: Context) -> None:
        """Build the first generations, which take effect at once."""
        for at, timeline in enumerate(self.timelines):
            timeline.add(context.blueprint(at, 1, context.history.records))

    def renew(self, context: Context, takes_effect: int) -> None:
        """At a step: build the next generation of one view if it is due."""
        for turn in range(len(self.timelines)):
            at = (self.steps + turn) % len(self.timelines)
            timeline = self.timelines[at]
            if timeline.next is None and context.is_due(at):
                timeline.add(context.blueprint(at, timeline.number + 1, takes_effect))
                break  # one at a step, so that no two take effect together
        self.steps += 1

    def advance(self, records: int) -> None:
        """Make the next generations current that score the record of number `records`."""
        for timeline in self.timelines:
            timeline.advance(records)

    def until_next(self, records: int) -> int | None:
        """How many records from number `records` on the current generations still score; None: no end is known."""
        return min((n for one in self.timelines if (n := one.until_next(records)) is not None), default=None)

    def needed(self, stop: int) -> list[Build]:
        """The generations that score the records before number `stop`."""
        return [build for timeline in self.timelines for build in timeline.needed(stop)]

    def scores(self, rows: list[Float], records: int) -> Scores:
        """Scores of the records from number `records` on, from their rows (n, width) in each view."""
        parts = [timeline.scores(part, records) for timeline, part in zip(self.timelines, rows, strict=True)]
        numbers = sum(part.generations for part in parts)
        assert not isinstance(numbers, int)
        generation = numbers - (len(parts) - 1) if self.generation else numbers
        votes = [vote for part in parts for vote in part.votes]
        return Scores.of(np.stack([part.logits for part in parts], axis=1), generation, confidence(votes))

    def builds(self, number: int) -> list[tuple[View, Build]]:
        """Each view, with the generation that scores the record of this number; none before the first ones."""
        return [(one.view, build) for one in self.timelines if (build := one.build_of(number)) is not None]

    def rescored(self) -> Iterator[tuple[int, tuple[Int, Float]]]:
        """For each view with a new generation: its position, and numbers and logits (r,) of earlier records."""
        for at, timeline in enumerate(self.timelines):
            if (found := timeline.rescored()) is not None and len(found[0]):
                yield at, found

    def first_scores(self, records: int) -> tuple[Int, Scores]:
        """Numbers (n,) and scores of the records that are in the first contexts of all views; of none later."""
        builds = [timeline.current for timeline in self.timelines if timeline.number == 1]
        first = [build for build in builds if build is not None and records == build.blueprint.takes_effect]
        if len(first) < len(self.timelines):
            return np.zeros(0, dtype=np.int64), Scores.unknown(0, len(self.timelines))
        numbers = reduce(np.intersect1d, [build.blueprint.recent_numbers for build in first])
        parts = [build.result().recent_logits[np.isin(build.blueprint.recent_numbers, numbers)] for build in first]
        votes = [build.result().vote(logits) for build, logits in zip(first, parts, strict=True)]
        return numbers, Scores.of(np.stack(parts, axis=1), np.ones(len(numbers), np.int64), confidence(votes))

    def is_odd(self, by_view: Float) -> tuple[Bool, Bool] | None:
        """Whether the last records (n,) are odd in the history, and among recent records, from logits (n, views).

        None without a view of each. Odd: the logit is above those of most of the context's own rows.
        """
        history = next((i for i, view in enumerate(self.views) if view.of == "history" and view.sees == "record"), None)
        recent = next((i for i, view in enumerate(self.views) if view.of == "recent"), None)
        if history is None or recent is None:
            return None
        odd = [by_view[:, at] > self._usual(at) for at in (history, recent)]
        return odd[0], odd[1]

    def _usual(self, at: int) -> float:
        build = self.timelines[at].current
        assert build is not None
        return build.result().usual

    # -- log -----------------------------------------------------------------------------------------------------

    def counters(self) -> list[list[Any]]:
        """The plain numbers of the state."""
        return [list(timeline.counters().values()) for timeline in self.timelines]

    def changes(self) -> Entries:
        """Entries that the log does not have yet; not the counters."""
        entries: Entries = {}
        for timeline in self.timelines:
            entries |= timeline.changes()
        return entries

    def recover(self, entries: StoredEntries, counters: list[list[Any]], context: Context, known: Panel | None) -> None:
        """Take the state from entries, counters, and the context, which has recovered. Raises StateError."""
        for at, timeline in enumerate(self.timelines):
            found: Mapping[str, Any] = dict(zip(timeline.counters(), counters[at], strict=True))
            view = timeline.view
            other = None if known is None else next((one for one in known.timelines if one.view == view), None)
            timeline.recover(entries, found, partial(context.columns, view), context.blank(at), other)

    def copy(self, views: tuple[View, ...], lags: int, more: int = 0) -> Panel:
        """An independent panel of these of its views; with `more` features their generations are built again."""
        twin = Panel((), self._model, self._executor)
        twin.steps = self.steps
        once = float(len(views))

        def blueprint_of(view: View) -> Any:
            def widened(blueprint: Blueprint) -> Blueprint:
                rows, recent = (view.widened(rows, lags, more) for rows in (blueprint.rows, blueprint.recent))
                d = blueprint.outliers.shape[1]
                outliers = np.pad(blueprint.outliers, [(0, 0), (0, more)], constant_values=np.nan)
                categorical = view.codes(d + more, lags, tuple(c for c in blueprint.categorical if c < d))
                share = once if blueprint.once else 0.0
                return replace(
                    blueprint, rows=rows, recent=recent, outliers=outliers, categorical=categorical, once=share
                )

            return widened if more else None

        twin.timelines = [one.widened(blueprint_of(one.view)) for one in self.timelines if one.view in views]
        return twin
