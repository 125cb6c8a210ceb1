"""The results of scoring rows: scores, p-values, status and severity, and reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum, StrEnum
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


class Status(StrEnum):
    """The degree to which a record's score can be trusted."""

    WARMING_UP = "warming_up"  # too few rows for a context: no score
    CALIBRATING = "calibrating"  # a score, but fewer than 1 / alert_rate before it: too few to call it an outlier
    OK = "ok"


class Severity(IntEnum):
    """The urgency of a record, by its score and whether it is an outlier."""

    NONE = 0
    INFO = 1  # no outlier, but its score is above 1 - alert_rate
    WARNING = 2  # an outlier
    CRITICAL = 3  # an outlier with a score above 1 - alert_rate / 5


class Cause(StrEnum):
    """The respect in which a feature is odd."""

    VALUE = "value"  # its value
    CATEGORY = "category"  # its category
    PAST = "past"  # its value together with its values in the records before
    LEVEL = "level"  # the weighted mean of its last values, see `Series`
    STILL = "still"  # that its value stands still, see `step.follow`
    SPREAD = "spread"  # the size of its last changes, see `Series`


class Reason(NamedTuple):
    """One feature of a record, and how much it counts. Numbers are in raw units; NaN = none."""

    feature: int  # column of the record
    cause: Cause
    share: float  # of the record's excess: how much of what makes it odd goes away with this feature, 0 to 1
    value: float  # of the feature: category code, level or spread (not its logarithm), by the cause
    median: float  # of the same in the context; NaN for a category
    low: float  # the central 98 % of the context are between `low` ...
    high: float  # ... and `high`
    frequency: float  # share of the context's rows that have this category; NaN if the cause is another
    partner: int = -1  # column of the feature that it is odd together with, while each alone is usual; -1: none
    # of PAST: how many values of the feature in the records before are known; of STILL: how many are equal to it
    before: int = 0
    expected: float = math.nan  # if VALUE: its middle value in the rows nearest in the other features
    # what it is compared with: the records of "all" keys, what is usual for its "key", or at its "time"
    scope: str = "all"


NONE = np.zeros(0)


@dataclass(frozen=True)
class Scores:
    """Logits of n rows against the contexts of all views; NaN while warming up."""

    logit: Float  # (n,) see `combined`; less where a record is odd among all, but usual for its key
    by_view: Float  # (n, views) of all records together
    by_key: Float  # (n,) in the view of what is usual for keys; NaN where nothing is known of the key
    generation: NDArray[np.int64]  # (n,) counts the contexts that took effect, from 1; 0 while warming up
    confidence: Float  # (n,) in [0, 1]: how clearly the contexts agree
    weight: Float | None = None  # see `combined`

    @classmethod
    def of(
        cls,
        by_view: Float,
        generation: NDArray[np.int64],
        confidence: Float,
        by_key: Float | None = None,
        weight: Float | None = None,
    ) -> Scores:
        """Make scores from the logits by view. by_key: None = nothing is known of the keys."""
        by_key = np.full(len(by_view), np.nan) if by_key is None else by_key
        return cls(cls.combined(by_view, by_key, weight), by_view, by_key, generation, confidence, weight)

    @classmethod
    def unknown(cls, n: int, n_views: int) -> Scores:
        """Make the scores of n rows without a context."""
        return cls.of(np.full((n, n_views), np.nan), np.zeros(n, np.int64), np.full(n, np.nan))

    @cached_property
    def is_less(self) -> NDArray[np.bool_]:
        """Which records (n,) are odd among all, but usual for their keys."""
        return np.asarray(self.logit < self.combined(self.by_view, self.by_key, self.weight))

    @property
    def weights(self) -> Float:
        """The weights (n,), or (0,) if there are none, for kernels."""
        return NONE if self.weight is None else self.weight

    @property
    def stored_logit(self) -> Float:
        """The logits (n,) as a history keeps them: from 32 bits, so that equal records have equal ones."""
        by_view, by_key = (logits.astype(np.float32).astype(np.float64) for logits in (self.by_view, self.by_key))
        return np.asarray(np.where(self.is_less, self.logit, self.combined(by_view, by_key, self.weight)))

    @property
    def for_key(self) -> NDArray[np.bool_]:
        """Which records (n,) have the logit of what is usual for their key."""
        is_of_key: NDArray[np.bool_] = self.by_key >= self.logit
        return is_of_key

    @staticmethod
    def combined(by_view: Float, by_key: Float, weight: Float | None = None) -> Float:
        """The logits (n,) of records: the mean over the views, or that of the key where it is larger.

        So a record is odd if it is odd for all or for its key. View by view, so that a row's bits do not depend on the
        others. weight: (n,) of that of the key in the mean of both: where the views are of this key, too.
        """
        total = by_view[:, 0].copy()
        for column in by_view.T[1:]:
            total += column
        mean = total / by_view.shape[1]
        if weight is not None:
            blended = (1.0 - weight) * mean + weight * by_key
            return np.asarray(np.where(np.isnan(by_key), mean, blended), dtype=np.float64)
        return np.asarray(np.where(by_key > mean, by_key, mean), dtype=np.float64)

    def __len__(self) -> int:
        return len(self.logit)

    def __getitem__(self, part: slice | Int) -> Scores:
        logits = self.logit[part], self.by_view[part], self.by_key[part]
        weight = None if self.weight is None else self.weight[part]
        return Scores(*logits, self.generation[part], self.confidence[part], weight)


@dataclass(frozen=True)
class Results:
    """Results for n rows, in row order."""

    score: Float  # (n,) in (0, 1): how rare such a record is in the long run; see `Alerts`
    remembered_logit: Float  # (n,) the logit, with those of the records before it; NaN while warming up, as the score
    logit: Float  # (n,) of the record alone, see `Scores.combined`; NaN while warming up
    by_view: Float  # (n, views) logits in each view
    by_key: Float  # (n,) logits in the view of what is usual for keys; NaN where nothing is known of the key
    p_value: Float  # (n,) of the remembered logit among the last ones: how rare it is lately; NaN while warming up
    outlier: NDArray[np.bool_]  # (n,) False while warming up or calibrating
    generation: NDArray[np.int64]  # (n,) counts the contexts that took effect, from 1; 0 while warming up
    severity: NDArray[np.int8]  # (n,) a `Severity`
    confidence: Float  # (n,) in [0, 1]: how clearly the contexts agree on it; NaN while warming up
    series: Int  # (n,) number of the record's series, 0: that of the whole partition; see `Batch.slots`
    begins: NDArray[np.bool_]  # (n,) whether no record before belongs to this series
    status: list[Status]
    reasons: list[tuple[Reason, ...] | None]  # of each record, the one that counts most first; None: not explained
    by_reference: Float  # (n,) logits among the reference, which then decides; NaN without one

    def __len__(self) -> int:
        return len(self.status)

    @property
    def scores(self) -> Scores:
        """The scores that the results were made from."""
        return Scores(self.logit, self.by_view, self.by_key, self.generation, self.confidence)

    def part(self, rows: slice) -> Results:
        return Results(**{name: values[rows] for name, values in vars(self).items()})

    @classmethod
    def concatenate(cls, parts: list[Results]) -> Results:
        """The rows of all parts, at least one, in order."""
        if len(parts) == 1:
            return parts[0]
        lists = ("status", "reasons")
        names = [f.name for f in fields(cls) if f.name not in lists]
        joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        joined |= {name: list(chain.from_iterable(getattr(part, name) for part in parts)) for name in lists}
        return cls(**joined)

    @classmethod
    def nothing(cls, scores: Scores, slots: Int | None = None, begins: Bool | None = None) -> Results:
        """Results of rows without a score, of these series (n,)."""
        unknown = scores.logit
        n = len(scores)
        none, grade = np.zeros(n, dtype=bool), np.zeros(n, dtype=np.int8)
        return cls.of(scores, unknown, unknown, unknown, none, grade, Status.WARMING_UP, slots, begins)

    @classmethod
    def of(
        cls,
        scores: Scores,
        remembered: Float,
        score: Float,
        p_value: Float,
        outlier: Bool,
        severity: NDArray[np.int8],
        status: Status,
        slots: Int | None = None,
        begins: Bool | None = None,
    ) -> Results:
        """Results from the logits, and from remembered logits (n,) with what is said of them (n,).

        slots, begins: (n,) of the series; None: all are of that of the whole partition, which has begun before.
        """
        n = len(scores)
        return cls(
            score=score,
            remembered_logit=remembered,
            logit=scores.logit,
            by_view=scores.by_view,
            by_key=scores.by_key,
            p_value=p_value,
            outlier=outlier,
            generation=scores.generation,
            severity=severity,
            confidence=scores.confidence,
            series=np.zeros(n, np.int64) if slots is None else slots,
            begins=np.zeros(n, dtype=bool) if begins is None else begins,
            status=[status] * n,
            reasons=[None] * n,
            by_reference=np.full(n, np.nan),
        )

    def with_alerts(self, places: Sequence[int], without: Sequence[int] = ()) -> Results:
        """These results, where records at these places are outliers, and those at others are not."""
        if not len(places) and not len(without):
            return self
        outlier, severity = self.outlier.copy(), self.severity.copy()
        outlier[list(without)], severity[list(without)] = False, Severity.NONE
        outlier[list(places)], severity[list(places)] = True, np.maximum(severity[list(places)], Severity.WARNING)
        return replace(self, outlier=outlier, severity=severity)

    def explained(self, reasons: Sequence[tuple[Reason, ...] | None]) -> Results:
        """These results, with reasons (n,). (): nothing that was replaced makes the record more usual."""
        return replace(self, reasons=list(reasons))


class DetectorSummary(NamedTuple):
    """The state of a detector at one moment, in a few numbers."""

    records: int  # processed
    context_rows: int  # rows in the reservoir
    trimmed_rows: int  # rows that the newest trimmed contexts have left out
    generation: int  # contexts that took effect so far, from 1; 0 while warming up
    generation_age: int  # records since the newest of them took effect
    drift: float  # 0 to 1: how much of what announces a lasting shift was seen
    keys: int = 0  # that are known
    forgotten: int = 0  # keys that were, since this instance began
    own_contexts: int = 0  # keys with contexts of their own
