"""Generations: an immutable context, its encoding, and what it makes of earlier records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fomo_stream.detector.categories import Frequencies
from fomo_stream.detector.changelog import Document, Entries, Survivors
from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.detector.trimming import is_consistent, trimmed
from fomo_stream.errors import DamagedStateError
from fomo_stream.model.cache_arrays import flatten, unflatten
from fomo_stream.model.quantile_map import Knots
from fomo_stream.model.zero_shot import ContextCache, ZeroShotModel, cross_scores, encode_rows, logits_of, row_keys

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Snapshot = dict[str, NDArray[Any]]

FEW = 30  # known outliers that say what outliers are like
LIKENESS = 0.2  # weight of a record's logit among known outliers, against its logit in the context
UNLIKE = 3.0  # logit among known outliers from which on a record is simply not like them


@dataclass(frozen=True)
class Blueprint:
    """All that a generation is made of; with the model, it determines the generation."""

    number: int
    takes_effect: int  # number of the first record that it scores
    seed: int
    categorical: tuple[int, ...]  # columns that hold category codes
    trim: float  # share of the unconfirmed rows that is left out
    numbers: Int  # (n,) records of `rows`
    rows: Float  # (n, d) candidates for the context
    confirmed: NDArray[np.bool_]  # (n,) rows that somebody vouches for
    outliers: Float  # (o, d) rows that feedback calls outliers
    sketch: QuantileSketch  # a copy that nothing updates
    sample: Float  # (m, d) records of the past, learned or not, that the gate compares with
    recent_numbers: Int  # (r,) the last records, whose scores are replaced by this generation's
    recent: Float  # (r, d) and their rows

    ARRAYS = ("numbers", "rows", "confirmed", "outliers", "sample", "recent_numbers", "recent")

    def to_arrays(self) -> Snapshot:
        """Named arrays, for a snapshot."""
        return {
            "counters": np.array([self.number, self.takes_effect, self.seed]),
            "categorical": np.array(self.categorical, dtype=np.int64),
            "trim": np.array(self.trim),
            **{name: getattr(self, name) for name in self.ARRAYS},
            **{f"sketch.{name}": array for name, array in self.sketch.snapshot().items()},
        }

    @classmethod
    def from_arrays(cls, found: Snapshot, like: QuantileSketch) -> Blueprint:
        """What `to_arrays` wrote; `like` has the settings of the sketch."""
        number, takes_effect, seed = (int(v) for v in found["counters"])
        sketch = QuantileSketch(like.n_features, like.half_life, like.size, like.chunk)
        sketch.restore(under(found, "sketch"))
        rest = {name: np.array(found[name]) for name in cls.ARRAYS}
        categorical, trim = tuple(found["categorical"].tolist()), float(found["trim"])
        return cls(number, takes_effect, seed, categorical, trim, sketch=sketch, **rest)

    def equals(self, other: Blueprint) -> bool:
        """Whether both make the same generation, bit for bit."""
        if (self.number, self.takes_effect) != (other.number, other.takes_effect):
            return False
        pairs = zip(self.to_arrays().values(), other.to_arrays().values(), strict=True)
        return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


@dataclass(frozen=True)
class Generation:
    """A blueprint carried out."""

    number: int
    numbers: Int  # records whose rows are the context
    frequencies: Frequencies
    cache: ContextCache
    outliers: ContextCache | None  # of rows that feedback calls outliers; None: too few
    sample: Float  # (m,) logits of the blueprint's sample, ascending
    recent: Float  # (r,) logits of the blueprint's recent records, in order

    @classmethod
    def build(cls, model: ZeroShotModel, blueprint: Blueprint) -> Generation:
        """Trim and encode the context and score the sample and recent rows: the one expensive step of learning."""
        rows, columns = blueprint.rows, blueprint.categorical
        frequencies = Frequencies.fit(rows, columns)  # before trimming, which would leave out rare categories first
        encoded = frequencies.encode_own(rows)
        cross = cross_scores(model, encoded) if blueprint.number == 1 else None
        seed = (blueprint.seed, blueprint.number)
        keep = trimmed(model, encoded, ~blueprint.confirmed, blueprint.trim, seed)
        rows, encoded = rows[keep], encoded[keep]
        cache = encode_rows(model, encoded, _knots(blueprint.sketch, encoded, columns))
        own = cross_scores(model, encoded) if cache.own is None else cache.own[0].cpu().numpy().astype(np.float64)
        outliers = None
        if len(blueprint.outliers) >= FEW:
            outliers = encode_rows(model, frequencies.encode(blueprint.outliers))
            own = own + _likeness(model, outliers, encoded)
        nothing = np.zeros(0)
        generation = cls(blueprint.number, blueprint.numbers[keep], frequencies, cache, outliers, nothing, nothing)
        past = generation._held_out(model, rows, own, np.concatenate([blueprint.sample, blueprint.recent]))
        sample, recent = past[: len(blueprint.sample)], past[len(blueprint.sample) :]
        if cross is not None:  # sample and recent records are the context: leave-one-out flatters, cross-scores do not
            sample = recent = np.maximum(recent, cross)
        return replace(generation, sample=np.sort(sample), recent=recent)

    def to_arrays(self) -> Snapshot:
        """Named arrays of all that is not in the blueprint."""
        arrays = {
            "number": np.array(self.number),
            "numbers": self.numbers,
            "sample": self.sample,
            "recent": self.recent,
        }
        return arrays | flatten(self.cache, "cache") | flatten(self.outliers, "outliers")

    @classmethod
    def from_arrays(cls, arrays: Snapshot, blueprint: Blueprint, device: torch.device) -> Generation | None:
        """What `to_arrays` wrote; None if that was another generation than the blueprint's."""
        if int(arrays["number"]) != blueprint.number:
            return None
        frequencies = Frequencies.fit(blueprint.rows, blueprint.categorical)
        cache = unflatten(ContextCache, arrays, "cache", device)
        has_outliers = "outliers.n_rows" in arrays
        outliers = unflatten(ContextCache, arrays, "outliers", device) if has_outliers else None
        numbers, sample, recent = (np.array(arrays[name]) for name in ("numbers", "sample", "recent"))
        return cls(blueprint.number, numbers, frequencies, cache, outliers, sample, recent)

    def logits(self, model: ZeroShotModel, rows: Float) -> Float:
        """Logits (q,) of new rows (q, d)."""
        encoded = self.frequencies.encode(rows)
        logit = logits_of(model, self.cache, encoded)
        return logit if self.outliers is None else logit + _likeness(model, self.outliers, encoded)

    def _held_out(self, model: ZeroShotModel, context: Float, own: Float, rows: Float) -> Float:
        """Logits (m,) of rows (m, d), each as if it were not in the context (n, d), whose own logits are `own`.

        A row that is in the context once gets its own, leave-one-out. One that is there several times is scored as any
        new record equal to it would be, so that equal records stay tied.
        """
        keys = row_keys(context)
        copies = Counter(keys)
        known = {key: logit for key, logit in zip(keys, own.tolist(), strict=True) if copies[key] == 1}
        wanted = dict(zip(row_keys(rows), rows, strict=True))
        fresh = [key for key in wanted if key not in known]
        if fresh:
            scored = self.logits(model, np.array([wanted[key] for key in fresh]))
            known.update(zip(fresh, scored.tolist(), strict=True))
        return np.array([known[key] for key in row_keys(rows)])


def _likeness(model: ZeroShotModel, outliers: ContextCache, encoded: Float) -> Float:
    """What to add to logits (q,) of rows (q, d) for being like known outliers: more, the better they fit among them."""
    return LIKENESS * np.maximum(UNLIKE - logits_of(model, outliers, encoded), 0.0)


def _knots(sketch: QuantileSketch, encoded: Float, columns: tuple[int, ...]) -> Knots:
    """The quantile transform: the sketch's, and for rarities, which no sketch has seen, one of the context itself."""
    knots = sketch.knots()
    if columns:
        rarities = QuantileSketch(len(columns), half_life=np.inf)
        rarities.update(encoded[:, columns])
        for whole, part in zip(knots, rarities.knots(), strict=True):
            whole[list(columns)] = part
    return knots


Result = TypeVar("Result")


class Deferred(Generic[Result]):
    """Something costly to be made: in an executor at once, or in the thread that first asks for it.

    made: what it is, if that is known already.
    """

    def __init__(self, make: Callable[[], Result], executor: Executor | None, made: Result | None = None) -> None:
        self._make = make
        self._made: list[Result] = [] if made is None else [made]
        is_needed = executor is not None and made is None
        self._future: Future[Result] | None = executor.submit(make) if executor is not None and is_needed else None

    @property
    def done(self) -> bool:
        """Whether `result` returns without waiting for another thread."""
        return self._future is None or self._future.done()

    @property
    def is_made(self) -> bool:
        """Whether `result` costs nothing."""
        return bool(self._made) or (self._future is not None and self._future.done())

    def result(self) -> Result:
        """What was made; waits if need be."""
        if not self._made:
            self._made.append(self._make() if self._future is None else self._future.result())
        return self._made[0]


class Build(Deferred[Generation]):
    """A generation in the making; made: what has come of it, if that is known already."""

    def __init__(
        self, model: ZeroShotModel, blueprint: Blueprint, executor: Executor | None, made: Generation | None = None
    ) -> None:
        self.blueprint = blueprint
        super().__init__(partial(Generation.build, model, blueprint), executor, made)


class GenerationLog:
    """The current and the next generation as documents of a log, by the parity of their numbers.

    A blueprint is written once, when it is made, and what has come of it once it is there. So the next generation
    becoming the current one rewrites nothing, and whoever reads the log need not encode what was encoded before.
    """

    def __init__(self) -> None:
        self._blueprints, self._made = (Document(), Document()), (Document(), Document())
        self._numbers, self._made_numbers = [0, 0], [0, 0]  # of the generations in the log

    def changes(self, name: str, builds: Iterable[Build | None]) -> Entries:
        """Entries of what the log has not."""
        entries: Entries = {}
        for build in (build for build in builds if build is not None):
            number, parity = build.blueprint.number, build.blueprint.number % 2
            if self._numbers[parity] != number:
                entries |= self._blueprints[parity].changes(f"{name}/{parity}", save(build.blueprint.to_arrays()))
                self._numbers[parity] = number
            if self._made_numbers[parity] != number and build.is_made:
                made = save(build.result().to_arrays())
                entries |= self._made[parity].changes(f"{name}/{parity}/encoded", made)
                self._made_numbers[parity] = number
        return entries

    def recover(
        self, entries: Survivors, name: str, number: int, like: QuantileSketch, device: torch.device
    ) -> tuple[Blueprint, Generation | None]:
        """The blueprint of this generation, and what has come of it if the log has that.

        `like` has the settings of the sketch. Raises StateError without a blueprint.
        """
        parity = number % 2
        blueprint = Blueprint.from_arrays(load(self._blueprints[parity].recover(entries, f"{name}/{parity}")), like)
        if blueprint.number != number:
            raise DamagedStateError(f"the state is damaged: it has generation {blueprint.number} in place of {number}")
        self._numbers[parity] = number
        made = None
        if f"{name}/{parity}/encoded/0" in entries:
            arrays = load(self._made[parity].recover(entries, f"{name}/{parity}/encoded"))
            try:
                made = Generation.from_arrays(arrays, blueprint, device)
            except KeyError as error:
                raise DamagedStateError(f"the state is damaged: generation {number} lacks {error}") from None
            self._made_numbers[parity] = int(arrays["number"])
        return blueprint, made


class Trial(Deferred[bool]):
    """Whether the records from `first` to before `stop`, with these rows, are a regime: known for record `due`."""

    def __init__(
        self,
        span: tuple[int, int, int],
        model: ZeroShotModel,
        rows: Float,
        categorical: tuple[int, ...],
        executor: Executor | None,
    ) -> None:
        self.first, self.stop, self.due = span
        super().__init__(partial(is_consistent, model, rows, categorical), executor)


def under(arrays: Snapshot, prefix: str) -> Snapshot:
    """The arrays whose names begin with `prefix.`, without it."""
    return {k.removeprefix(prefix + "."): v for k, v in arrays.items() if k.startswith(prefix + ".")}


def widened(state: Snapshot, more: int) -> Snapshot:
    """A detector's snapshot with `more` further features, which no row has."""
    columns = ((0, 0), (0, more))  # features are columns of rows, but rows of a sketch's points
    points = ((0, more), (0, 0))
    padding: dict[str, tuple[tuple[tuple[int, int], ...], float]] = {
        **dict.fromkeys(("rows", "outliers", "sample", "recent", "buffer"), (columns, np.nan)),
        **dict.fromkeys(("below", "upto", "moments"), (points, 0.0)),
        "values": (points, np.inf),
    }
    wide = dict(state)
    for name, array in state.items():
        widths, value = padding.get(name.rpartition(".")[2], ((), 0.0))
        if widths:
            wide[name] = np.pad(array, widths, constant_values=value)
    return wide
