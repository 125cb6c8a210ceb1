"""Generations: an immutable context of one view, its encoding, and its vote."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.categories import Frequencies
from fomo_stream.detector.rarity import MAX_FAR_SHARE, far_outside, p_values
from fomo_stream.model import scoring
from fomo_stream.model.architecture import Model
from fomo_stream.model.bulk import WIDE_GAP, ends_of
from fomo_stream.model.quantile_map import SortedColumns, ascending

if TYPE_CHECKING:
    from fomo_stream.model.kernels.handles import Handle

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

KnownLogits = dict[bytes, float]  # by the bytes of a row
UNDECIDED_P = 0.05  # p-value at which a vote is undecided
HALF_WEIGHT_ROWS = 100  # rows of a context whose vote has half of the full weight
CLEAR_OF_TRIMMED = 0.18  # heights, see `far_outside`: larger, as trimmed halves make the rows at their ends odder
MIN_ROWS_FOR_RANGES = 700  # rows of a context that knows the ends of the ranges; a smaller one may not know them yet


def vote(p: Float) -> Float:
    """Return the vote of a context on records with these p-values (n,) among its rows: -1, normal, to 1, odd."""
    return (UNDECIDED_P - p) / (UNDECIDED_P + p)


def weight(rows: int) -> float:
    """The weight, in (0, 1), of the vote of a context with so many rows."""
    return rows / (rows + HALF_WEIGHT_ROWS)


@lru_cache(maxsize=64)
def _vote_by_rank(n: int) -> Float:
    """Return the votes (n + 1,) of a context of n rows, by how many of its rows have a smaller logit."""
    p = p_values(np.arange(n + 1.0), np.arange(0.5, n))
    return weight(n) * vote(p)


def confidence(votes: list[Float]) -> Float:
    """Confidence (n,) in [0, 1] from votes (n,) each: 1 if all say the same and are sure, 0 if they cancel out."""
    total = votes[0].copy()
    for view_votes in votes[1:]:
        total += view_votes
    return np.asarray(np.abs(total / len(votes)), dtype=np.float64)


MIN_KNOWN_OUTLIERS = 30  # known outliers that are enough to compare new records with
LIKENESS_WEIGHT = 0.2  # weight of the logit among known outliers, relative to the logit in the context
UNLIKE_LOGIT = 3.0  # logit among known outliers at and above which a record is not like them
USUAL_SHARE = 0.95  # share of the context's own rows whose logits are not odd


@dataclass(frozen=True)
class ContextSpec:
    """The input of a generation; together with the model it determines the generation. Rows have a view's columns."""

    number: int
    takes_effect: int  # number of the first record that it scores
    seed: int
    categorical: tuple[int, ...]  # columns that hold category codes
    trim: float  # share of the unconfirmed rows to leave out
    once: float  # weight of extremes and likeness to known outliers, which one view adds for all; 0: another view does
    numbers: Int  # (n,) records of `rows`
    rows: Float  # (n, d) candidates for the context
    # (n,) of `rows` when they came, by the trimmed context of that time, NaN = unknown; (0,): none is left out
    logits: Float
    confirmed: NDArray[np.bool_]  # (n,) rows that feedback or a seed context calls normal
    outliers: Float  # (o, d) rows that feedback calls outliers
    quantiles: tuple[Float, ...] = ()  # of each column of `rows`: its values, ascending; of later ones: not known yet
    middle: float = 1.0  # share of the values of a column, those in the middle, that are its range; see `Ranges`

    ARRAYS = ("numbers", "rows", "logits", "confirmed", "outliers")

    @property
    def frequencies(self) -> Frequencies:
        """The frequencies of categories in all rows: without trimmed rows, rare categories would be missing first."""
        return Frequencies.fit(self.rows, self.categorical, self.outliers.shape[1])

    def encoded_quantiles(self, encoded: Float) -> list[Float]:
        """The values of each column of the encoded rows (n, d), ascending, also of rows that are left out."""
        columns = [ascending(column) for column in encoded.T[len(self.quantiles) :]]
        columns = [*self.quantiles, *columns]
        for column in self.categorical:
            columns[column] = ascending(encoded[:, column])
        return columns

    def to_arrays(self) -> scoring.Arrays:
        """Named arrays of everything but the quantiles, which are those of the rows."""
        return {
            "counters": np.array([self.number, self.takes_effect, self.seed]),
            "categorical": np.array(self.categorical, dtype=np.int64),
            "shares": np.array([self.trim, self.once, self.middle][: 2 if self.middle == 1.0 else 3]),
            **{name: getattr(self, name) for name in self.ARRAYS},
        }

    @classmethod
    def from_arrays(cls, arrays: scoring.Arrays) -> ContextSpec:
        """Return the spec from the arrays of `to_arrays`."""
        number, takes_effect, seed = (int(v) for v in arrays["counters"][:3])  # format 12 has one more
        trim, once, middle = (*arrays["shares"].tolist(), 1.0)[:3]
        rest: dict[str, Any] = {name: np.array(arrays[name]) for name in cls.ARRAYS}
        categorical = tuple(arrays["categorical"].tolist())
        return cls(number, takes_effect, seed, categorical, trim, once, **rest, middle=middle)

    def equals(self, other: ContextSpec) -> bool:
        """Return whether both make the same generation, bit for bit."""
        if (self.number, self.takes_effect) != (other.number, other.takes_effect):
            return False
        own, others = self.to_arrays(), other.to_arrays()
        return own.keys() == others.keys() and all(
            own[name].shape == others[name].shape and own[name].tobytes() == others[name].tobytes() for name in own
        )


class Ranges(NamedTuple):
    """The two smallest and the two largest values of each of d features, without far ones; infinite where all are far.

    Evidence grows ever more slowly beyond all values of a context; the distance from them keeps growing. A range can
    also be that of the values in the middle. Then a feature that rarely differs, such as a flag, has no range.
    """

    low: Float  # (2, d) ascending
    high: Float  # (2, d) ascending

    @classmethod
    def of(cls, rows: Float, middle: float = 1.0) -> Ranges:
        """The ranges of rows (n, d), n >= 2, NaN = missing. middle: the share of the values that they have."""
        columns = SortedColumns.of(rows)
        if middle < 1.0:
            aside, at = ((1.0 - middle) / 2.0 * columns.counts).astype(int), np.arange(len(columns.counts))
            low, high = columns.values[at, aside], columns.values[at, np.maximum(columns.counts - 1 - aside, 0)]
            return cls(np.stack([low, low]), np.stack([high, high]))
        ends = ends_of(columns, WIDE_GAP)
        return cls(ends[5:7], ends[7:])

    def beyond(self, rows: Float) -> Float:
        """log(1 + the largest distance beyond a feature's range, in widths of that range) of rows (n, d): (n,).

        0 inside of all ranges. A feature that never varied has no width, and does not count.
        """
        return _beyond(rows, self.low[0], self.high[1])

    def beyond_others(self, rows: Float) -> Float:
        """The same for the rows of the context themselves, each compared with the others."""
        at_end = np.flatnonzero((rows <= self.low[0]) | (rows >= self.high[1]))  # the other values are inside
        out, at = np.zeros(len(rows)), np.unique(at_end // max(rows.shape[1], 1))
        rows = rows[at]
        low = np.where(rows == self.low[0], self.low[1], self.low[0])
        high = np.where(rows == self.high[1], self.high[0], self.high[1])
        out[at] = _beyond(rows, low, high)
        return out


@dataclass(frozen=True)
class Generation:
    """A generation, built from its spec."""

    number: int
    numbers: Int  # records whose rows are the context
    frequencies: Frequencies
    cache: scoring.EncodedContext
    once: float  # see `ContextSpec`
    ranges: Ranges | None  # of the context; None: it says nothing of extremes
    outliers: scoring.EncodedContext | None  # encoding of the known outliers; None: too few
    own: Float  # (n,) ascending: logits of the context's own rows
    first: Float  # of a first generation: (m,) logits of its candidates, each against the half without it; else empty

    @classmethod
    def build(cls, model: Model, spec: ContextSpec) -> Generation:
        """Trim and encode the context: the one expensive step of learning."""
        rows, frequencies = spec.rows, spec.frequencies
        encoded = frequencies.encode(rows)
        is_first, once = spec.number == 1, spec.once
        # leave-one-out logits would be too low for records that are judged by them
        first, far = np.zeros(0), np.zeros(len(rows), dtype=bool)  # rows that do not widen the ranges
        if is_first:
            first, far = first_scores(model, encoded, ~spec.confirmed)
        elif len(spec.logits) < MIN_ROWS_FOR_RANGES:  # later a row that was far outside may be of another time
            # such rows do not widen the ranges: else one outlier would hide the next
            far = far_outside(spec.logits) if len(spec.logits) else far
        keep = trimmed(first if is_first else spec.logits, ~spec.confirmed, spec.trim)
        context = encoded[keep]
        quantiles = spec.encoded_quantiles(encoded) if model.config.has_quantile_map else None
        cache = scoring.encode_rows(model, context, quantiles)
        own = scoring.own_logits(cache)
        own = scoring.cross_scores(model, context) if own is None else own
        added = np.zeros(len(rows))
        ranges = outliers = None
        if once and not spec.trim:  # a trimmed context lacks the ends of the ranges
            ranges = Ranges.of(context[~far] if far.any() else context, spec.middle)
            added = added + once * ranges.beyond_others(context)
        if once and len(spec.outliers) >= MIN_KNOWN_OUTLIERS:
            outliers = scoring.encode_rows(model, frequencies.encode(spec.outliers))
            added = added + once * _likeness_to_outliers(model, outliers, encoded)
        first = first + added if is_first else first
        own, numbers = np.sort(own + added[keep]), spec.numbers[keep]
        return cls(spec.number, numbers, frequencies, cache, once, ranges, outliers, own, first)

    STORED = ("number", "numbers", "cache", "ranges", "outliers", "own", "first")

    def to_arrays(self) -> scoring.Arrays:
        """Named arrays of everything that is not in the spec."""
        parts = [scoring.flatten_arrays(getattr(self, name), name) for name in self.STORED]
        return {name: array for part in parts for name, array in part.items()}

    @classmethod
    def from_arrays(cls, arrays: scoring.Arrays, spec: ContextSpec, model: Model) -> Generation | None:
        """Return the generation from the arrays of `to_arrays`; None if it is not that of the spec."""
        number, kind, device = int(arrays["number"]), scoring.context_type(model), getattr(model, "device", None)
        if number != spec.number:
            return None
        frequencies = spec.frequencies
        numbers, own, first = (np.array(arrays[name]) for name in ("numbers", "own", "first"))
        kept = np.isin(spec.numbers, numbers)
        cache = scoring.with_rows(
            scoring.unflatten_arrays(kind, arrays, "cache", device), frequencies.encode(spec.rows[kept])
        )
        outliers = scoring.unflatten_arrays(kind, arrays, "outliers", device) if "outliers.n_rows" in arrays else None
        if outliers is not None:
            outliers = scoring.with_rows(outliers, frequencies.encode(spec.outliers))
        ranges = scoring.unflatten_arrays(Ranges, arrays, "ranges", device) if "ranges.low" in arrays else None
        return cls(number, numbers, frequencies, cache, spec.once, ranges, outliers, own, first)

    @cached_property
    def usual(self) -> float:
        """The logit that few of the context's own rows exceed."""
        return float(self.own[int(USUAL_SHARE * (len(self.own) - 1))])

    def logits(self, model: Model, rows: Float, gaps: Bool | None = None, known: KnownLogits | None = None) -> Float:
        """Logits (q,) of new rows (q, d) of the view.

        gaps: (q, d) values that stand in for missing ones; None: there are none. A row with any has the logit that is
        less outlying: with these values, or with those that the rest of it makes likely. known: logits of rows that
        were scored before; those that are new are added.
        """
        at = np.flatnonzero(False if gaps is None else gaps.any(axis=1))
        if gaps is not None and len(at):
            rows = np.concatenate([rows, np.where(gaps[at], np.nan, rows[at])])
        logits = self._logits(model, rows) if known is None else self._looked_up(model, rows, known)
        if len(at):
            logits, without = logits[: -len(at)], logits[-len(at) :]
            logits[at] = np.minimum(logits[at], without)
        return logits

    def _looked_up(self, model: Model, rows: Float, known: KnownLogits) -> Float:
        bits = [row.tobytes() for row in rows]
        new = {row: i for i, row in enumerate(bits) if row not in known}
        if new:
            known.update(zip(new, self._logits(model, rows[[*new.values()]]).tolist(), strict=True))
        return np.array([known[row] for row in bits])

    def _logits(self, model: Model, rows: Float) -> Float:
        encoded = self.frequencies.encode(rows)
        logit = scoring.logits_of(model, self.cache, encoded)
        if self.ranges is not None:
            logit = logit + self.once * self.ranges.beyond(encoded)
        return (
            logit if self.outliers is None else logit + self.once * _likeness_to_outliers(model, self.outliers, encoded)
        )

    def vote(self, logits: Float) -> Float:
        """Return the votes of this context on records with these logits (q,)."""
        return _vote_by_rank(len(self.own))[self.own.searchsorted(logits)]

    @property
    def handle(self) -> Handle:
        """The arrays that the compiled kernels need, see `kernels.view_scores.score_views`.

        If several threads make a handle, the first one stays: its address is in use.
        """
        made: Handle | None = self.__dict__.get("_handle")
        return made or self.__dict__.setdefault("_handle", self._made_handle())

    def _made_handle(self) -> Handle:
        low, high = (None, None) if self.ranges is None else (self.ranges.low[0], self.ranges.high[1])
        outliers = None if self.outliers is None else scoring.handle_of(self.outliers)
        votes = _vote_by_rank(len(self.own))
        return scoring.handle_of(
            self.cache, self.once, low, high, self.own, votes, outliers, LIKENESS_WEIGHT, UNLIKE_LOGIT
        )


def _likeness_to_outliers(model: Model, outliers: scoring.EncodedContext, encoded: Float) -> Float:
    """The increase (q,) of the logits of rows (q, d) for being like known outliers: larger for more likeness."""
    return LIKENESS_WEIGHT * np.maximum(UNLIKE_LOGIT - scoring.logits_of(model, outliers, encoded), 0.0)


def _beyond(rows: Float, low: Float, high: Float) -> Float:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        width = high - low
        excess = np.maximum(low - rows, rows - high) / width
        excess[~((excess > 0) & (width > 0) & np.isfinite(excess))] = 0.0
    return np.asarray(np.log1p(excess.max(axis=1, initial=0.0)), dtype=np.float64)


def first_scores(model: Model, rows: Float, doubtful: Bool) -> tuple[Float, Bool]:
    """Logits (n,) of the first rows (n, d), each against the half without it; and those that are far outside (n,).

    Outliers hide each other in both halves, so they are looked for against halves that are trimmed. If there are any,
    they are left out of both.
    """
    logits, far = scoring.cross_scores(model, rows), np.zeros(len(rows), dtype=bool)
    if len(rows) >= HALF_WEIGHT_ROWS and doubtful.any():
        of_trimmed = scoring.cross_scores(model, rows, trimmed(logits, doubtful, MAX_FAR_SHARE))
        far = doubtful & far_outside(of_trimmed, CLEAR_OF_TRIMMED)
        if far.any():
            logits = scoring.cross_scores(model, rows, ~far)
    return logits, far


def trimmed(logits: Float, doubtful: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Return which rows (n,), by their logits (n,), stay: all but the most outlying `share` of the doubtful ones.

    A row is judged by the logit that it had when it came, before similar rows were in the context. In a burst of
    outliers each row would look normal next to the others; by these logits the burst is found, as far as the context
    before it did not have such rows.
    """
    keep = np.ones(len(doubtful), dtype=bool)
    if leaving := int(share * doubtful.sum()):
        keep[np.argsort(-np.where(doubtful, logits, -np.inf), kind="stable")[:leaving]] = False
    return keep
