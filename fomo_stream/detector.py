"""The detector of one partition: every record is scored, then perhaps learned, as one pure state machine.

What scores a record is a *generation*: an immutable context, its encoding, and the scores that p-values refer to. A
generation is triggered by a number of admissions (or, failing that, of records) and takes effect a fixed number of
records later. So which generation scores a record depends on the records before it and on nothing else: not on time, on
batches, or on how long the encoding took.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fomo_stream.calibration import ScoreWindow, p_values
from fomo_stream.errors import ConfigError, SchemaError, StateError
from fomo_stream.generation import Blueprint, Build, Snapshot, under
from fomo_stream.missing import VALUE_LIMIT
from fomo_stream.model import MAX_CONTEXT, ZeroShotModel, cross_scores, logits_of
from fomo_stream.quantiles import QuantileSketch
from fomo_stream.reservoir import Reservoir
from fomo_stream.scored import Scored, Status

__all__ = ["Detector", "DetectorConfig", "Scored", "Snapshot", "Status"]

Float = NDArray[np.float64]
LEAST_CONTEXT = 4  # two halves of two rows can score each other


@dataclass(frozen=True)
class DetectorConfig:
    """How a detector keeps its context. All counts are records or rows."""

    context_size: int = 1000  # capacity of the reservoir
    min_context: int = 200  # rows before scores begin
    alert_rate: float = 0.01  # share of normal records that may be called outliers
    calibration_size: int = 2000  # recent records whose scores p-values refer to; more where the alert rate needs more
    gate: float = 0.2  # a record is a confirmed inlier when its p-value is above this
    refresh: float = 0.5  # admissions that trigger a new generation, as a share of the context
    patience: float = 2.0  # records that trigger one however few were admitted, likewise: a shift cannot end learning
    lag: int = 256  # records between a trigger and its generation taking effect
    seed: int = 0

    def __post_init__(self) -> None:
        def check(name: str, low: float, high: float) -> None:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} must be between {low} and {high}, not {value}")

        check("context_size", LEAST_CONTEXT, MAX_CONTEXT)
        check("min_context", LEAST_CONTEXT, self.context_size)
        check("alert_rate", 1e-5, 0.5)
        check("calibration_size", 1, 1_000_000)
        check("gate", 0.0, 0.9)
        check("refresh", 0.01, 10.0)
        check("patience", 0.01, 1000.0)
        check("lag", 1, 1_000_000)

    @property
    def window_size(self) -> int:
        """Scores to keep: enough for p-values down to half the alert rate."""
        return max(self.calibration_size, int(np.ceil(2 / self.alert_rate)))


class Detector:
    """Scores and learns the rows of one partition.

    model: from `load_model`; n_features: d; executor: where generations are encoded, off the hot path (None: in the
    thread that calls, when first needed). If an encoding is late, `process` waits for it.

    >>> import numpy as np
    >>> from fomo_stream import Detector, DetectorConfig, load_model
    >>> rng = np.random.default_rng(0)
    >>> detector = Detector(load_model(), n_features=3, config=DetectorConfig(min_context=100))
    >>> scored = detector.process(np.vstack([rng.normal(size=(500, 3)), [[9, -9, 9]]]))
    >>> scored.status[0].value, scored.status[-1].value, bool(scored.outlier[-1])
    ('warming_up', 'ok', True)
    """

    def __init__(
        self,
        model: ZeroShotModel,
        n_features: int,
        config: DetectorConfig | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.model = model
        self.n_features = n_features
        self.config = config or DetectorConfig()
        self._executor = executor
        self._reservoir = Reservoir(self.config.context_size, n_features, self.config.seed)
        # the sketch forgets as the full reservoir does: by exp(-1) in context_size admissions
        self._sketch = QuantileSketch(n_features, half_life=np.log(2) * self.config.context_size)
        self._window = ScoreWindow(self.config.window_size, self.config.calibration_size)
        self._records = 0  # processed so far; the next record has this number
        self._fresh = 0  # admissions since the last trigger
        self._triggered = 0  # number of the record after which it came
        self._current: Build | None = None
        self._next: Build | None = None
        self._first_scores: Float = np.zeros(0)

    @property
    def context_rows(self) -> int:
        """Rows now in the reservoir."""
        return len(self._reservoir)

    @property
    def generation(self) -> int:
        """Number of the generation that scores the next record; 0 while warming up."""
        return 0 if self._current is None else self._current.blueprint.number

    def process(self, rows: Float) -> Scored:
        """Score each of rows (n, d), raw units, NaN = missing, then learn it, in order.

        The result is the same however the rows of a partition are split over calls.
        Raises SchemaError when the rows have another number of features than the detector.
        """
        rows = self._checked(rows)
        parts = []
        while len(rows):
            room = self.config.min_context - self.context_rows if self._current is None else self.config.lag
            part, rows = rows[:room], rows[room:]
            parts.append(self.score_rows(part))
            self.learn_rows(part, parts[-1])
        return Scored.concatenate(parts)

    def is_ready(self, n: int) -> bool:
        """Whether the next n records can be processed without waiting for a generation that is being built."""
        needed = [] if self._current is None else [self._current]
        if self._next is not None and self._records + n > self._next.blueprint.takes_effect:
            needed.append(self._next)
        return all(build.done for build in needed)

    def score_rows(self, rows: Float) -> Scored:
        """Score rows (n, d) as the next n records, learning nothing."""
        rows = self._checked(rows)
        parts = []
        for build, part in self._by_generation(rows):
            if build is None:
                parts.append(Scored.nothing(len(part)))
                continue
            generation = build.result()
            logit = logits_of(self.model, generation.cache, part)
            p = p_values(logit, generation.reference)
            parts.append(Scored.of(logit, p, generation.number, len(generation.reference), self.config.alert_rate))
        return Scored.concatenate(parts)

    def learn_rows(self, rows: Float, scored: Scored) -> None:
        """Learn rows (n, d), n <= lag, as the next n records: count their scores, admit the confirmed inliers.

        scored: what `score_rows` said of exactly these rows in this state.
        """
        rows = self._checked(rows)
        start = 0
        while start < len(rows):
            stop = start + self._until_event(scored.p_value[start:])
            part = slice(start, stop)
            inlier = ~(scored.p_value[part] <= self.config.gate)  # NaN, while warming up, is admitted
            self._reservoir.admit(rows[part][inlier])
            self._sketch.update(rows[part][inlier])
            known = ~np.isnan(scored.logit[part])
            self._window.update(scored.logit[part][known], rows[part][known])
            self._records += stop - start
            self._fresh += int(inlier.sum())
            self._advance()
            start = stop

    def seed_context(self, rows: Float) -> None:
        """Start warm from trusted rows (n, d), n >= 4, all admitted. Must come before the first record.

        Raises SchemaError for fewer rows; StateError when records were already processed.
        """
        rows = self._checked(rows)
        if self._records or self._current is not None:
            raise StateError("a context can be seeded only before the first record")
        if len(rows) < LEAST_CONTEXT:
            raise SchemaError(f"a seed context needs at least {LEAST_CONTEXT} rows, got {len(rows)}")
        self._reservoir.admit(rows)
        self._sketch.update(rows)
        self._begin()

    def feedback_rows(self, rows: Float, outlier: NDArray[np.bool_]) -> int:
        """Take a verdict on rows (n, d) seen before: outliers leave the context, normal rows enter it.

        Idempotent. The transform's quantiles keep what they have learned. Returns the number of changes.
        """
        rows = self._checked(rows)
        changes = 0
        for row, is_outlier in zip(rows, outlier, strict=True):
            slots = self._reservoir.find(row)
            if is_outlier and len(slots) and self.context_rows - len(slots) >= LEAST_CONTEXT:
                self._reservoir.discard(slots)
                changes += len(slots)
            elif not is_outlier and not len(slots):
                self._reservoir.admit(row[None])
                self._sketch.update(row[None])
                changes += 1
        self._fresh += changes
        if changes:
            self._advance()
        return changes

    def widened(self, n_features: int) -> Detector:
        """The same detector with further features, which no row so far has: they count once the context knows them."""
        wider = Detector(self.model, n_features, self.config, self._executor)
        more = n_features - self.n_features
        # features are columns of rows, but rows of a sketch's points
        padding = {
            "rows": (((0, 0), (0, more)), np.nan),
            "recent": (((0, 0), (0, more)), np.nan),
            "buffer": (((0, 0), (0, more)), np.nan),
            "values": (((0, more), (0, 0)), np.inf),
            "weights": (((0, more), (0, 0)), 0.0),
        }
        state = self.snapshot() | {"identity": np.array(wider._identity())}
        for name, array in state.items():
            kind = name.rpartition(".")[2]
            if kind in padding:
                widths, value = padding[kind]
                state[name] = np.pad(array, widths, constant_values=value)
        wider.restore(state)
        return wider

    def copy(self) -> Detector:
        """A detector in the same state that goes its own way; what is immutable, the encoded context, is shared."""
        twin = Detector(self.model, self.n_features, self.config, self._executor)
        for name in ("_reservoir", "_sketch", "_window", "_records", "_fresh", "_triggered"):
            setattr(twin, name, deepcopy(getattr(self, name)))
        twin._current, twin._next, twin._first_scores = self._current, self._next, self._first_scores
        return twin

    def flush_warm_up(self) -> None:
        """Let scores begin now, with fewer than min_context rows. Raises SchemaError with fewer than 4 rows."""
        if self._current is None:
            if self.context_rows < LEAST_CONTEXT:
                raise SchemaError(
                    f"{self.context_rows} rows are too few for a context; at least {LEAST_CONTEXT} are needed"
                )
            self._begin()

    def cross_scored(self) -> Scored:
        """Scores of the rows of the first context, each from the half that it is not in; in the order they came.

        Empty until the first generation exists.
        """
        logit = self._first_scores
        if not len(logit):
            return Scored.nothing(0)
        ordered = np.sort(logit)
        p = (len(ordered) - np.searchsorted(ordered, logit)) / len(ordered)  # each counts itself
        return Scored.of(logit, p, 1, len(ordered), self.config.alert_rate)

    # -- generations ---------------------------------------------------------------------------------------------

    def _by_generation(self, rows: Float) -> Iterator[tuple[Build | None, Float]]:
        """Split rows, as the next records, by the generation that scores them."""
        cut = len(rows) if self._next is None else self._next.blueprint.takes_effect - self._records
        if len(rows[:cut]):
            yield self._current, rows[:cut]
        if self._next is not None and len(rows[cut:]):
            yield self._next, rows[cut:]

    def _until_event(self, p: Float) -> int:
        """How many of the next records, with p-values p, come before the state has to be looked at again."""
        n = len(p)
        if self._next is not None:
            return min(n, self._next.blueprint.takes_effect - self._records)
        admissions = np.cumsum(~(p <= self.config.gate))
        reached = int(np.searchsorted(admissions, self._admissions_left()))
        return min(n, reached + 1, self._records_left())

    def _admissions_left(self) -> int:
        """Admissions until the next trigger."""
        if self._current is None:
            return self.config.min_context - self.context_rows
        return max(1, round(self.config.refresh * self.context_rows)) - self._fresh

    def _records_left(self) -> int:
        """Records until the next trigger, if admissions do not bring it before."""
        if self._current is None:
            return sys.maxsize
        return self._triggered + max(1, round(self.config.patience * self.context_rows)) - self._records

    def _advance(self) -> None:
        """At a record boundary: let a due generation take effect, trigger the next one if it is due."""
        if self._next is not None and self._records >= self._next.blueprint.takes_effect:
            self._current, self._next = self._next, None
        if self._next is None and (self._admissions_left() <= 0 or self._records_left() <= 0):
            if self._current is None:
                self._begin()
            else:
                takes_effect = self._records + self.config.lag
                self._plan(self.generation + 1, takes_effect, self._window.recent, self._window.older)

    def _begin(self) -> None:
        """The first generation: takes effect at once.

        Its calibration is the context's rows, scored twice: by the half they are not in, which is honest but a smaller
        context, and leave-one-out, which ties a value that many rows share with itself. The higher score counts.
        """
        rows = self._reservoir.rows
        self._first_scores = cross_scores(self.model, rows)
        self._plan(1, self._records, rows, self._first_scores)
        self._window.update(self._first_scores, rows)
        self._advance()

    def _plan(self, number: int, takes_effect: int, recent: Float, older: Float) -> None:
        self._fresh, self._triggered = 0, self._records
        rows, sketch = self._reservoir.rows, deepcopy(self._sketch)
        self._next = self._build(Blueprint(number, takes_effect, rows, sketch, recent, older))

    def _build(self, blueprint: Blueprint) -> Build:
        return Build(self.model, blueprint, self._executor)

    # -- snapshot ------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything that the scores of coming records depend on, as named arrays (plain numbers and text)."""
        state: Snapshot = {
            "identity": np.array(self._identity()),
            "counters": np.array([self._records, self._fresh, self._triggered]),
        }
        state |= {f"reservoir.{k}": v for k, v in self._reservoir.snapshot().items()}
        state |= {f"window.{k}": v for k, v in self._window.snapshot().items()}
        state |= {f"sketch.{k}": v for k, v in self._sketch.snapshot().items()}
        if self._current is not None:
            state |= self._current.blueprint.to_arrays("current")
        if self._next is not None:
            state |= self._next.blueprint.to_arrays("next")
        return state

    def restore(self, state: Snapshot) -> None:
        """Become what `snapshot` saw: the same records then get the same scores, bit for bit on one device.

        Raises StateError when the snapshot is of another model, configuration or number of features.
        """
        found = str(state["identity"])
        if found != self._identity():
            raise StateError(f"the snapshot is of another detector ({found}), this one is {self._identity()}")
        self._records, self._fresh, self._triggered = (int(v) for v in state["counters"])
        self._window.restore(under(state, "window"))
        self._reservoir.restore(under(state, "reservoir"))
        self._sketch.restore(under(state, "sketch"))
        self._current = self._next = None
        if "current.rows" in state:
            self._current = self._build(Blueprint.from_arrays(state, "current", self._sketch))
        if "next.rows" in state:
            self._next = self._build(Blueprint.from_arrays(state, "next", self._sketch))

    def _identity(self) -> str:
        settings = " ".join(f"{f.name}={getattr(self.config, f.name)}" for f in fields(self.config))
        return f"model={self.model.name} features={self.n_features} {settings}"

    def _checked(self, rows: Float) -> Float:
        rows = np.asarray(rows, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise SchemaError(
                f"the detector takes rows of {self.n_features} features, got an array of shape {rows.shape}"
            )
        return np.where(np.isfinite(rows), np.clip(rows, -VALUE_LIMIT, VALUE_LIMIT), np.nan)
