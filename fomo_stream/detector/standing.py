"""How a detector is doing, in a few numbers, for those who watch it."""

from __future__ import annotations

from typing import NamedTuple

from fomo_stream.detector.context import Context
from fomo_stream.detector.panel import Panel
from fomo_stream.detector.regimes import Regimes


class Standing(NamedTuple):
    """A detector at one moment."""

    records: int  # processed
    context_rows: int  # rows of the history of which contexts are made
    trimmed_rows: int  # rows that the newest trimmed contexts have left out
    generation: int  # contexts that took effect so far, from 1; 0 while warming up
    generation_age: int  # records since the newest of them took effect
    regime: int  # from 1; 0 while warming up
    drift: float  # 0 to 1: how much of what announces a new regime was seen


def standing_of(records: int, context: Context, panel: Panel, regimes: Regimes) -> Standing:
    """The standing of a detector with these parts. records: number of the next record."""
    rows, age = len(context.pool), _generation_age(panel, records)
    return Standing(records, rows, _trimmed_rows(panel), panel.generation, age, regimes.number, regimes.drift)


def _trimmed_rows(panel: Panel) -> int:
    """Rows that the current trimmed contexts have left out."""
    builds = [one.current for one in panel.timelines if one.view.trim]
    return sum(
        len(build.blueprint.numbers) - len(build.result().numbers)
        for build in builds
        if build is not None and build.is_made
    )


def _generation_age(panel: Panel, records: int) -> int:
    """Records since the newest context took effect. records: number of the next record."""
    began = [one.current.blueprint.takes_effect for one in panel.timelines if one.current is not None]
    return records - max(began, default=records)
