"""The detector of one partition: scores every record, then learns it. A pure state machine.

A record is scored in several *views*, each by its *generation*: an immutable context and its encoding. A new generation
takes effect a fixed number of records after the record that triggered it. Every `STEP` records the detector updates the
reservoir, the reference scores and the alert threshold. So a result depends only on earlier records
and feedback: not on time, not on how records are split over calls, and not on how long an encoding took.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.config import LEAST_CONTEXT, DetectorConfig
from fomo_stream.detector.explaining import Explainer
from fomo_stream.detector.fingerprint import fingerprint_of
from fomo_stream.detector.history import UNKNOWN
from fomo_stream.detector.reasons import Reason
from fomo_stream.detector.results import Results
from fomo_stream.detector.series import Key
from fomo_stream.detector.standing import Standing
from fomo_stream.detector.state import DetectorState
from fomo_stream.detector.views import LeftOut, View, fitting, too_wide
from fomo_stream.errors import SchemaError, StateError
from fomo_stream.model.imputation import VALUE_LIMIT
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class Detector:
    """Scores and learns the rows of one partition.

    model: from `load_model`; n_features: d; executor: runs the encoding of generations in the background (None: in
    the calling thread, when first needed). If an encoding is late, `process` waits for it. categorical: columns that
    hold category codes; n_past: earlier records that a row holds after its own, so that reasons name its own features.
    Raises SchemaError when no view fits rows of n_features; `left_out` has those that do not.

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
        categorical: tuple[int, ...] = (),
        n_past: int = 0,
    ) -> None:
        self.model = model
        self.n_features = n_features
        self.categorical = categorical
        self.config = config = config or DetectorConfig()
        self.views, self.left_out = _fitting(model, n_features, config)
        explainer = Explainer(model, config, categorical, n_past)
        self._state = DetectorState(n_features, self.views, config, executor, categorical, self._fingerprint, explainer)

    @property
    def context_rows(self) -> int:
        """Rows in the reservoir now; verdicts given since the last record may still change that."""
        return len(self._state.context.pool)

    @property
    def context_numbers(self) -> Int:
        """Numbers (n,) of the records in the present context of the first view; empty while warming up."""
        current = self._state.panel.timelines[0].current
        return np.zeros(0, dtype=np.int64) if current is None else current.result().numbers

    @property
    def standing(self) -> Standing:
        """How it is doing. Safe from any thread."""
        return self._state.standing

    @property
    def records(self) -> int:
        """Records processed: the number of the next one."""
        return self._state.context.history.records

    @property
    def generation(self) -> int:
        """Counts the contexts that took effect so far, from 1; 0 while warming up."""
        return self._state.panel.generation

    @property
    def room(self) -> int:
        """How many of the next records can be scored before any of them is learned; at least 1."""
        return self._state.room

    def is_ready(self, n: int) -> bool:
        """Whether the next n records can be processed without waiting for a generation that is being built."""
        return self._state.is_ready(self.records + n)

    # -- scoring and learning ------------------------------------------------------------------------------------

    def process(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score each of rows (n, d), raw units, NaN = missing, then learn it, in order.

        keys: (n,) the series that each row belongs to (bytes, text, or None for that of the whole partition); None: all
        belong to that one. The result is the same however the rows of a partition are split over calls.
        Raises SchemaError when the rows have another number of features than the detector.
        """
        return self._state.process(self._state.series.follow(_checked(rows, self.n_features), keys))

    def score_rows(self, rows: Float, keys: Sequence[Key] | None = None) -> Results:
        """Score rows (n, d) as the next n records without learning them.

        The p-values use only records before these rows, and a generation that takes effect among them does not score
        the earlier ones again, so that remembered logits after it differ a little from those of `process`. This changes
        no later result: verdicts that come before these rows are learned still take effect together.
        """
        seen = self._state.series.peek(_checked(rows, self.n_features), keys)
        return self._state.judge(self._state.scores(seen.planes), seen, learn=False)

    def explain(self, rows: Float, keys: Sequence[Key] | None = None) -> list[tuple[Reason, ...]]:
        """The reasons (n,) of rows (n, d) as the next n records, whatever `explain` is; () while warming up.

        Nothing changes. Raises SchemaError as `process`.
        """
        return self._state.explain(self._state.series.peek(_checked(rows, self.n_features), keys))

    def learn_rows(self, rows: Float, scored: Results, keys: Sequence[Key] | None = None) -> None:
        """Learn rows (n, d) as the next n records; the same as `process`, without scoring most of them again.

        scored: results of `score_rows` for exactly these rows, with no record learned since; feedback may have come.
        """
        self._state.process(self._state.series.follow(_checked(rows, self.n_features), keys), scored.scores)

    def seed_context(self, rows: Float, keys: Sequence[Key] | None = None) -> None:
        """Start warm from trusted rows (n, d), n >= 4: they count as the first n records, confirmed by feedback.

        Must come before the first record. Raises SchemaError for fewer rows; StateError when records were processed.
        """
        rows = _checked(rows, self.n_features)
        if self.records:
            raise StateError("a context can be seeded only before the first record")
        if len(rows) < LEAST_CONTEXT:
            raise SchemaError(f"a seed context needs at least {LEAST_CONTEXT} rows, got {len(rows)}")
        self._state.context.take_first(self._state.series.follow(rows, keys), confirmed=True)
        self._state.begin()

    def flush_warm_up(self) -> None:
        """Let scores begin now, with fewer than min_context rows. Raises SchemaError with fewer than 4 rows."""
        if not self.generation:
            self._state.context.end_warm_up()
            self._state.begin()

    def cross_scored(self) -> Results:
        """Scores of the warm-up rows, each against the half that does not contain it.

        Only directly after the warm-up; otherwise empty.
        """
        return self._state.cross_scored()

    # -- feedback ------------------------------------------------------------------------------------------------

    def feedback(self, numbers: Int, outlier: NDArray[np.bool_]) -> int:
        """Take verdicts on records, by their numbers (k,) in this partition: is each an outlier?

        An outlier leaves the scores that p-values refer to at once. Before the next record is learned it leaves the
        reservoir. The contexts change with the next generation. All verdicts before the next record take
        effect together: neither their order nor how they are split over calls matters, but of several verdicts on one
        record the last counts. Repeating them changes nothing. Records that the history no longer has are ignored.
        Returns how many verdicts changed something.
        """
        new = self._state.context.feedback(dict(zip(map(int, numbers), map(bool, outlier), strict=True)))
        self._state.alerts.refresh()
        return new

    def numbers_of(self, rows: Float) -> list[Int]:
        """For each of rows (n, d), the numbers of the known records equal to it."""
        return [self._state.context.history.find(row) for row in _checked(rows, self.n_features)]

    def has_verdict(self, numbers: Int) -> NDArray[np.bool_]:
        """Whether there is feedback on known records, by number (k,)."""
        known: NDArray[np.bool_] = self._state.context.history.verdict(numbers) != UNKNOWN
        return known

    # -- state ---------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries changed since the last call; the first call of a new detector returns its whole state.

        The entries of one call have to be in the log before the next call; if they get lost, go back with `recover`.
        """
        return self._state.changes()

    def recover(self, entries: StoredEntries, known: Detector | None = None) -> None:
        """Take the state from the entries: the same records then get the same results, bit for bit on one device.

        known: a detector of the same partition, perhaps this one, whose generations need not be encoded again.
        Raises StateError when the entries are of another detector (all differences, joined by "; ") or of another
        version of fomo-stream, incomplete or damaged. This detector must not be used then.
        """
        self._state.recover(entries, known._state if known is not None and known.model is self.model else None)

    def copy(self) -> Detector:
        """An independent detector in the same state; encoded contexts, which are immutable, are shared."""
        return self.widened(self.n_features)

    def widened(self, n_features: int) -> Detector:
        """A copy for rows with further features at their end. They count once the context has values of them."""
        twin = copy(self)
        twin.n_features = n_features
        twin.views, twin.left_out = _fitting(self.model, n_features, self.config)
        twin._state = self._state.copy(twin.views, twin._fingerprint, n_features - self.n_features)
        return twin

    @property
    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint_of(self.model, self.n_features, self.views, self.categorical, self.config)


def _fitting(
    model: ZeroShotModel, n_features: int, config: DetectorConfig
) -> tuple[tuple[View, ...], tuple[LeftOut, ...]]:
    """The views that rows of n_features fit, and those that they do not fit. Raises SchemaError if they fit none."""
    views, left_out = fitting(config.wanted_views, n_features, config.lags, model.config.raw_features)
    if not views:
        raise SchemaError(too_wide(left_out, model.name))
    return views, left_out


def _checked(rows: Float, n_features: int) -> Float:
    """Rows (n, n_features) within the model's limits, NaN where they are not finite."""
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise SchemaError(f"the detector takes rows of {n_features} features, got an array of shape {rows.shape}")
    return np.where(np.isfinite(rows), np.clip(rows, -VALUE_LIMIT, VALUE_LIMIT), np.nan)
