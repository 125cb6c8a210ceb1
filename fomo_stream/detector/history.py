"""The last records of a partition, with scores and verdicts, and bounded random samples of records."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import BlockTable, State
from fomo_stream.detector.quantiles import Quantiles
from fomo_stream.detector.results import Scores
from fomo_stream.detector.series import MOVEMENT_VECTORS
from fomo_stream.detector.step import judge as kernels
from fomo_stream.detector.step.follow import RELATIVE_VECTORS, Batch
from fomo_stream.detector.step.judge import BEGINS_FLAG, FAR_FLAG, LESS_FLAG, OUTLIER, UNKNOWN
from fomo_stream.limits import MAX_CONTEXT

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

EMPTY = -1  # the number in a slot without a record
BLOCK_BYTES = 128  # about so many bytes of rows to a block: slots are written in any order, each costs a whole block
HORIZON_RECORDS = 1e9  # records over which a sample is uniform: all that a partition ever has
PRIORITIES_AT_ONCE = 1024  # records whose priorities are computed together


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 finaliser: a well-spread 64-bit number for each counter, without the state of a generator."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Reservoir(State):
    """A random sample of at most `capacity` rows of those admitted, each with its record's number and a logit.

    Every record number has a pseudo-random priority, which rises with the number: it grows by the factor e every
    HORIZON_RECORDS records. The rows with the highest priorities stay (Efraimidis & Spirakis 2006, with the forward
    decay of Cormode et al. 2009). So the sample is uniform over about the last HORIZON_RECORDS records, and older ones
    fade exponentially. The sample depends only on the seed and the set of admitted numbers: the order of admissions and
    how they are split over calls do not matter, and admitting a row again changes nothing. After a row is discarded
    this no longer holds: rows that were dropped earlier do not come back.
    """

    parts: ClassVar = {"_slots": ""}

    def __init__(self, capacity: int, n_features: int, seed: int = 0, fitted: int = 0) -> None:
        """fitted: how many of the features, the first ones, have their quantiles kept."""
        if not 2 <= capacity <= MAX_CONTEXT:
            raise ValueError(f"a reservoir holds 2 to {MAX_CONTEXT} rows, not {capacity}")
        self.capacity = capacity
        self.seed = seed
        self._fitted = fitted
        self._slots = BlockTable(
            max(1, BLOCK_BYTES // (8 * n_features)),
            rows=np.zeros((capacity, n_features)),
            numbers=np.full(capacity, EMPTY, dtype=np.int64),
            logits=np.full(capacity, np.nan, dtype=np.float32),
        )
        self._recovered()
        self._ahead_of, self._ahead = 0, np.zeros(0)  # priorities of the records from this number on

    def _recovered(self) -> None:
        numbers, taken = self._slots["numbers"], self._taken
        # of the rows; inf: an empty slot
        self._priorities = np.where(taken, self._priority(np.where(taken, numbers, 0)), np.inf)
        self._count = int(taken.sum())  # rows
        self._order: Int | None = None  # see `_in_order`; None: rows have come or gone
        self._quantiles = Quantiles(self._slots["rows"][taken, : self._fitted])
        # priority that a further row needs to enter
        self._lowest = float(self._priorities.min()) if self._count == self.capacity else -np.inf
        self._newest = int(numbers.max())  # no row has a higher number

    def __len__(self) -> int:
        return self._count

    @property
    def numbers(self) -> Int:
        """Record numbers (len(self),) of the rows, ascending."""
        return self._slots["numbers"][self._in_order]

    @property
    def rows(self) -> Float:
        """A copy of the rows (len(self), n_features), by record number."""
        return self._slots["rows"][self._in_order]

    @property
    def logits(self) -> Float:
        """The logits (len(self),) of the rows, by record number; NaN where none is known."""
        return self._slots["logits"][self._in_order].astype(np.float64)

    @property
    def quantiles(self) -> tuple[Float, ...]:
        """The values of each fitted feature, ascending."""
        return self._quantiles.columns

    @property
    def _in_order(self) -> Int:
        """The slots (len(self),) that have a row, by record number."""
        if self._order is None:
            slots: Int = np.flatnonzero(self._taken)
            self._order = slots[np.argsort(self._slots["numbers"][slots])]
        return self._order

    @property
    def _taken(self) -> NDArray[np.bool_]:
        taken: NDArray[np.bool_] = self._slots["numbers"] != EMPTY
        return taken

    def _priority(self, numbers: Int) -> Float:
        offset = np.uint64((self.seed * 0x632BE59BD9B4E019) % 2**64)
        with np.errstate(over="ignore"):
            uniform = (_mix(numbers.astype(np.uint64) + offset) >> np.uint64(11)).astype(np.float64)
        return numbers / HORIZON_RECORDS - np.log(-np.log((uniform + 0.5) * 2.0**-53))

    def _priority_of_next(self, numbers: Int, first: int) -> Float:
        """The same for numbers from `first` on, which are usually close together and higher than any before."""
        last = int(numbers.max())
        if first < self._ahead_of or last - first >= PRIORITIES_AT_ONCE:
            return self._priority(numbers)
        if last >= self._ahead_of + len(self._ahead):
            self._ahead_of, self._ahead = first, self._priority(np.arange(first, first + PRIORITIES_AT_ONCE))
        return self._ahead[numbers - self._ahead_of]

    def may_enter(self, numbers: Int) -> Int:
        """Return those of these records, ascending, that `admit` may let in: few in a long stream, so few rows are
        read."""
        if not len(numbers) or (first := int(numbers[0])) <= self._newest:
            return numbers
        return numbers[self._priority_of_next(numbers, first) > self._lowest]

    def admit(self, numbers: Int, rows: Float, logits: Float | None = None) -> Int:
        """Offer rows (n, n_features) of the records of these numbers (n,), all different, with their logits (n,).

        Returns the slots (m,), m <= n, whose rows have changed.
        """
        if len(numbers) and (first := int(numbers.min())) <= self._newest:
            new = ~np.isin(numbers, self._slots["numbers"])
            numbers, rows, logits = numbers[new], rows[new], None if logits is None else logits[new]
        if not len(numbers):
            return np.zeros(0, dtype=np.int64)
        priority = self._priority_of_next(numbers, first)
        entering = np.flatnonzero(priority > self._lowest)
        excess = self._count + len(entering) - self.capacity
        if excess > 0:  # of the rows and the new ones, those with the lowest priorities leave or do not enter
            if excess < self._count:
                held = np.argpartition(self._priorities, excess - 1)[:excess]
            else:
                held = np.flatnonzero(self._taken)
            order = np.argpartition(np.concatenate([self._priorities[held], priority[entering]]), excess - 1)
            low, high = order[:excess], order[excess:]
            self._empty(np.sort(held[low[low < len(held)]]))
            entering = np.sort(entering[high[high >= len(held)] - len(held)])
        logits = np.full(len(entering), np.nan) if logits is None else logits[entering]
        return self._fill(numbers[entering], rows[entering], logits, priority[entering])

    def _fill(self, numbers: Int, rows: Float, logits: Float, priority: Float) -> Int:
        if not len(numbers):
            return numbers
        slots: Int = np.flatnonzero(~self._taken)[: len(numbers)]
        self._slots.put(slots, rows=rows, numbers=numbers, logits=logits)
        self._quantiles.add(rows[:, : self._fitted])
        self._priorities[slots], self._order = priority, None
        self._newest = max(self._newest, int(numbers.max()))
        self._count += len(slots)
        self._lowest = float(self._priorities.min()) if self._count == self.capacity else -np.inf
        return slots

    def _empty(self, slots: Int) -> None:
        if len(slots):
            self._quantiles.remove(self._slots["rows"][slots, : self._fitted])
            self._slots.put(slots, numbers=EMPTY)
            self._priorities[slots], self._lowest, self._order = np.inf, -np.inf, None
            self._count -= len(slots)

    def note(self, numbers: Int, logits: Float) -> None:
        """Note the logits (n,) of records, as far as their rows are here; numbers (n,), ascending."""
        slots = np.flatnonzero(np.isin(self._slots["numbers"], numbers))
        self._slots.put(slots, logits=logits[np.searchsorted(numbers, self._slots["numbers"][slots])])

    def discard(self, numbers: Int) -> Int:
        """Remove the rows of these records; returns the slots (m,) that were emptied."""
        slots = np.flatnonzero(self._taken & np.isin(self._slots["numbers"], numbers)) if len(numbers) else numbers
        self._empty(slots)
        return slots


# a commit may be of a few records, and each entry that they touch is written as a whole
ROW_BYTES = 400  # about so many bytes of rows to an entry of the log
BLOCK_SCORES = 8  # scores to an entry


class History(State):
    """Rows of the last `rows` records and scores of the last `scores`, by record number.

    A row is the vectors (vectors, d) of `Series.follow`: 1 + lags of 64 bits, and with movement two of 32; and
    which of its values are missing. Rows are kept because they are the context of the view of recent records, and
    because feedback may come late. Of every record its logits by view, its remembered logit and whether it was called
    an outlier are kept, as they were when it came: later records are compared with them.
    """

    parts: ClassVar = {"_rows": "rows", "_relative": "relative", "_scores": "scores"}
    scalars: ClassVar = ("records",)

    def __init__(
        self,
        n_features: int,
        n_views: int,
        rows: int,
        scores: int,
        lags: int,
        movement: bool,
        relative: bool = True,
        prior: float = 0.0,
    ) -> None:
        """prior: records that what is usual for the key counts as, if all are of one key; 0: they are not."""
        if not 1 <= rows <= scores:
            raise ValueError(f"a history of {scores} scores holds 1 to {scores} rows, not {rows}")
        self.tally = np.zeros(kernels.N_TALLY, np.int64)
        self._n_features, self._prior = n_features, prior
        # ring buffers; values that may still change are kept with the scores, so that a row is written to the log once
        vectors: dict[str, NDArray[Any]] = {
            "rows": np.full((rows, 1 + lags, n_features), np.nan),
            "gaps": np.zeros((rows, -(-n_features // 8)), dtype=np.uint8),
        }
        if movement:
            vectors["moves"] = np.full((rows, MOVEMENT_VECTORS, n_features), np.nan, dtype=np.float32)
        width = sum(vector[0].nbytes for vector in vectors.values())
        self._rows = BlockTable(max(1, ROW_BYTES // max(1, width)), **vectors)
        self._scores = BlockTable(
            BLOCK_SCORES,
            logits=np.full((scores, n_views), np.nan, dtype=np.float32),
            remembered=np.full(scores, np.nan),
            by_key=np.full(scores, np.nan, dtype=np.float32),
            series=np.zeros(scores, dtype=np.uint32),
            verdict=np.full(scores, UNKNOWN, dtype=np.int8),
            outlier=np.zeros(scores, dtype=bool),
        )
        # written for records of known keys only
        block = max(1, ROW_BYTES // (4 * RELATIVE_VECTORS * max(1, n_features)))
        shape = rows, RELATIVE_VECTORS if relative else 0, n_features
        self._relative = BlockTable(block, relative=np.full(shape, np.nan, dtype=np.float32))
        self._recovered()

    def _recovered(self) -> None:
        """Collect the arrays for the compiled step."""
        (rows, written), ((of_keys,), marks) = self._rows.whole(*self._rows), self._relative.whole("relative")
        moves = rows[2] if "moves" in self._rows else np.zeros((0, MOVEMENT_VECTORS, self._n_features), np.float32)
        scores, marked = self._scores.whole(*self._scores)
        self._score_rings = kernels.ScoreRings._make([*scores, marked])
        blocks = self._rows.block, self._relative.block, self._scores.size, BLOCK_SCORES
        self.rings = (
            *self._score_rings,
            *rows[:2],
            moves,
            written,
            of_keys,
            marks,
            np.array([self._rows.size, *blocks]),
            self.tally,
        )

    @property
    def records(self) -> int:
        """So far: the number of the next one."""
        return int(self.tally[kernels.RECORDS])

    @records.setter
    def records(self, records: int) -> None:
        self.tally[kernels.RECORDS] = records

    @property
    def oldest(self) -> int:
        """Number of the oldest record whose row is kept."""
        return max(0, self.records - self._rows.size)

    @property
    def oldest_scored(self) -> int:
        """Number of the oldest record whose scores are kept."""
        return max(0, self.records - self._scores.size)

    def append(self, batch: Batch, scores: Scores, remembered: Float, outlier: NDArray[np.bool_]) -> None:
        """Append the next records, with scores and remembered logits (n,), NaN while warming up, and whether each is an
        outlier (n,). `step.judge.judge_visits` does the same.
        """
        numbers = self.records + np.arange(len(batch.vectors))
        self.records += len(numbers)
        new = slice(-self._rows.size, None)
        at, n_plain = numbers[new] % self._rows.size, self._rows["rows"].shape[1]
        moves = {"moves": batch.vectors[new, n_plain:]} if "moves" in self._rows else {}
        gaps = np.packbits(batch.gaps[new], axis=1)
        self._rows.put(at, rows=batch.vectors[new, :n_plain], gaps=gaps, **moves)
        self.note_relative(numbers[new], batch.relative[new])
        new = slice(-self._scores.size, None)
        series = batch.slots + BEGINS_FLAG * batch.begins + FAR_FLAG * batch.far + LESS_FLAG * scores.is_less
        values_of = {"logits": scores.by_view, "remembered": remembered, "by_key": scores.by_key, "series": series}
        values_of = {name: values[new] for name, values in (values_of | {"outlier": outlier}).items()}
        self._scores.put(numbers[new] % self._scores.size, verdict=UNKNOWN, **values_of)

    def vectors(self, numbers: Int) -> Float:
        """Rows (n, vectors, d) of known records."""
        at = numbers % self._rows.size
        parts = [self._rows[name][at] for name in ("rows", "moves") if name in self._rows]
        return np.concatenate(parts, axis=1, dtype=np.float64)

    def note_relative(self, numbers: Int, relative: Float) -> None:
        """Note how far known records are from what is usual for their keys."""
        at = numbers % self._rows.size
        if not self._relative["relative"].shape[1]:
            return
        changed = ~(np.isnan(relative) & np.isnan(self._relative["relative"][at])).all(axis=(1, 2))
        self._relative.put(at[changed], relative=relative[changed])

    def relative(self, numbers: Int) -> Float:
        """Return how far known records are from what is usual for their keys (n, RELATIVE_VECTORS, d); NaN: unknown."""
        return self._relative["relative"][numbers % self._rows.size].astype(np.float64)

    def knows_relative(self, numbers: Int) -> Bool:
        """Return which known records (n,) have any such distance."""
        relative = self._relative["relative"][numbers % self._relative.size]
        return np.asarray((relative == relative).any(axis=(1, 2)))

    def gaps(self, numbers: Int) -> NDArray[np.bool_]:
        """Which values (n, d) of known records are missing."""
        bits = np.unpackbits(self._rows["gaps"][numbers % self._rows.size], axis=1, count=self._n_features)
        return bits.astype(bool)

    def batch(self, numbers: Int, slots: Int, begins: NDArray[np.bool_]) -> Batch:
        """Known records (n,) as they came, of these series (n,), less what was usual for their keys then."""
        usual, gaps = np.full((len(numbers), 3, self._n_features), np.nan), self.gaps(numbers)
        still, far, is_common = np.zeros(gaps.shape, np.int64), self.far(numbers), np.zeros(gaps.shape, bool)
        return Batch(self.vectors(numbers), gaps, slots, begins, self.relative(numbers), usual, still, far, is_common)

    def logits_in(self, view: int, numbers: Int) -> Float:
        """Logits (n,) of known records in the view at this position."""
        logits: Float = self._scores["logits"][numbers % self._scores.size, view].astype(np.float64)
        return logits

    def logits(self, first: int, stop: int) -> Float:
        """Logits (n, views) of the known records from `first` to before `stop`."""
        return self._between("logits", first, stop).astype(np.float64)

    def remembered(self, numbers: Int) -> Float:
        """Remembered logits (n,) of known records; NaN of those without a score."""
        return self._scores["remembered"][numbers % self._scores.size]

    def series(self, first: int, stop: int) -> tuple[Int, NDArray[np.bool_]]:
        """Number of the series (n,) of these records, and whether each is the first of it."""
        numbers = self._between("series", first, stop).astype(np.int64)
        return numbers % LESS_FLAG, numbers >= BEGINS_FLAG

    def far(self, numbers: Int) -> NDArray[np.bool_]:
        """Return whether any value of known records (n,) is far."""
        return self._scores["series"][numbers % self._scores.size] & FAR_FLAG > 0

    def note_far(self, numbers: Int, far: NDArray[np.bool_], moves: Float) -> None:
        """Note of known records which have far values (n,), and their level and spread (n, MOVEMENT_VECTORS, d)."""
        at = numbers[far] % self._scores.size
        self._scores.put(at, series=self._scores["series"][at] | FAR_FLAG)
        if "moves" in self._rows:
            self._rows.put(numbers % self._rows.size, moves=moves)

    def verdict(self, numbers: Int) -> NDArray[np.int8]:
        """The verdicts of feedback on known records."""
        return self._scores["verdict"][numbers % self._scores.size]

    def key_weights(self, numbers: Int) -> Float | None:
        """Weights (n,) of what is usual for the key in the logits of records; see `Scores.combined`."""
        return None if not self._prior else np.asarray(self._prior / (self._prior + numbers), dtype=np.float64)

    def by_key(self, numbers: Int) -> Float:
        """Logits (n,) of what is usual for the keys of known records; NaN: unknown."""
        return self._scores["by_key"][numbers % self._scores.size].astype(np.float64)

    def judge(self, numbers: Int, verdict: NDArray[np.int8]) -> None:
        """Note verdicts (n,) on known records."""
        self._scores.put(numbers % self._scores.size, verdict=verdict)

    def find(self, values: Float, features: Int) -> Int:
        """Numbers of the known records that have exactly these values (d,) in some features; NaN equals NaN."""
        numbers = np.arange(self.oldest, self.records)
        rows = np.where(self.gaps(numbers), np.nan, self._rows["rows"][numbers % self._rows.size, 0])
        rows, values = rows[:, features], values[features]
        same: NDArray[np.bool_] = ((rows == values) | (np.isnan(rows) & np.isnan(values))).all(1)
        return numbers[same]

    def scored(self, first: int, stop: int) -> tuple[Int, Float, Float, Bool, Int, Bool]:
        """Numbers, own logits, remembered logits, whether they are outliers, series, and which have far values.

        (m,) each, in order, of the known records from `first` to before `stop` that have a score and that feedback
        does not call outliers.
        """
        records: tuple[Int, Float, Float, Bool, Int, Bool] = kernels.scored(
            self._score_rings, self._scores.size, max(0, first), stop, self._prior
        )
        return records

    def not_outliers(self, first: int, stop: int) -> Int:
        """Numbers (n,) of the records from `first` to before `stop` that feedback does not call outliers."""
        numbers: Int = np.arange(first, stop)
        outlier = self._between("verdict", first, stop) == OUTLIER
        return numbers[~outlier] if outlier.any() else numbers

    def _between(self, column: str, first: int, stop: int) -> NDArray[Any]:
        """Values of the scores' table of the known records from `first` to before `stop`, in order."""
        values, size = self._scores[column], self._scores.size
        start, end = first % size, first % size + max(0, stop - first)
        return values[start:end] if end <= size else np.concatenate([values[start:], values[: end - size]])

    def note(self, numbers: Int, logits: Float, remembered: Float, outlier: NDArray[np.bool_]) -> None:
        """Note the logits (n, views) and remembered logits (n,) of records of the warm-up, as far as they are kept, and
        which of them (n,) are outliers.
        """
        kept = numbers >= self.oldest_scored
        noted = {"logits": logits[kept], "remembered": remembered[kept], "outlier": outlier[kept]}
        self._scores.put(numbers[kept] % self._scores.size, **noted)
