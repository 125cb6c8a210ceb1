"""`FoMoDetector`: the detector as a River anomaly detector."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river.base import AnomalyDetector

from fomo_stream.detector.categories import category_code
from fomo_stream.detector.changelog import Survivors
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.past_values import MOST_COLUMNS, PastValues
from fomo_stream.detector.results import Results
from fomo_stream.errors import SchemaError
from fomo_stream.model.checkpoint import shared_model

Float = NDArray[np.float64]
MAX_FEATURES = 500


class FoMoDetector(AnomalyDetector):
    """Zero-shot outlier detection: a pretrained transformer scores each record against a rolling context of inliers.

    Nothing is trained; until `min_context` records are learned every score is 0. Scores are in [0, 1], higher = more
    anomalous. A record becomes context only when the records around it look normal, so bursts of outliers do not; lone
    ones are left out of each context.

    Features may come and go. A feature that a record lacks, or holds as None, NaN, an infinity or anything that is not
    a number, is missing and counts as the context's median. A feature that is new counts as soon as records that
    have it reach the context; up to 500 are taken, further ones are ignored (with `lags`, up to 1000 // (lags + 1)).

    Parameters
    ----------
    model
        Name of a shipped model, or path of a checkpoint.
    context_size
        Rows that the context holds at most, 4 to 5,000.
    min_context
        Rows before scores begin.
    admit
        Which records become context: "auto" (from times that look normal), "feedback" (after the first `min_context`
        only what `feedback_many` calls normal) or "all".
    adapt_after
        With "auto": records after which a shift that lasts becomes the new normal; 0: never.
    alert_rate
        Share of normal records that may be called outliers; sets how many recent scores are kept.
    device
        "auto" (the GPU where there is one), "cpu", "cuda", ...
    seed
        Seed of the reservoir.
    categorical
        Names of the features that are categories, of whatever type; a value counts by how often the context has it.
    lags
        Each record is compared together with this many before it, 0 to 100. They are the records learned before it,
        whether the context has taken them or not; of several at once, those that stand before it too.

    Examples
    --------
    >>> import random
    >>> from fomo_stream import FoMoDetector
    >>> rng = random.Random(0)
    >>> detector = FoMoDetector(context_size=500, min_context=100)
    >>> for _ in range(300):
    ...     x = {"load": rng.gauss(50, 5), "temperature": rng.gauss(20, 1)}
    ...     score = detector.score_one(x)
    ...     detector.learn_one(x)
    >>> detector.score_one({"load": 50, "temperature": 20}) < 0.5 < detector.score_one({"load": 50, "temperature": 45})
    True
    """

    def __init__(
        self,
        model: str = "default",
        context_size: int = 1000,
        min_context: int = 200,
        admit: str = "auto",
        adapt_after: int = 10_000,
        alert_rate: float = 0.01,
        device: str = "auto",
        seed: int = 0,
        categorical: Collection[Any] | None = None,
        lags: int = 0,
    ) -> None:
        self.model = model
        self.context_size = context_size
        self.min_context = min_context
        self.admit = admit
        self.adapt_after = adapt_after
        self.alert_rate = alert_rate
        self.device = device
        self.seed = seed
        self.categorical = categorical
        self.lags = lags
        self._config = DetectorConfig(
            context_size=context_size,
            min_context=min_context,
            admit=admit,
            adapt_after=adapt_after,
            alert_rate=alert_rate,
            seed=seed,
        )
        # Categorical features come first, so that their columns are known before they are seen.
        self._columns: dict[Any, int] = {name: i for i, name in enumerate(dict.fromkeys(categorical or ()))}
        self._n_codes = len(self._columns)
        self._past = PastValues(lags, len(self._columns))
        self._detector: Detector | None = None
        self._saved: tuple[int, Survivors] | None = None  # width and state, unpickled and not used yet
        self._scored: tuple[Float, Results] | None = None  # the last scored rows, so that learning them is free

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"context_size": 20, "min_context": 10}

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of one record, in [0, 1]; 0 until min_context records are learned."""
        return float(self._score(self._with_past(self._to_rows([x])))[0])

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        """Learn one record, if it looks normal."""
        self._learn(self._to_rows([x], learn=True))

    def score_many(self, X: Any) -> Float:
        """Scores (n,) of a DataFrame, an array (n, d), or a sequence of dicts, as the next n records."""
        return self._score(self._with_past(self._to_rows(X)))

    def learn_many(self, X: Any) -> None:
        """Learn a DataFrame, an array (n, d), or a sequence of dicts, in order."""
        self._learn(self._to_rows(X, learn=True))

    def feedback_many(self, X: Any, is_outlier: Any) -> None:
        """Take a verdict on records seen before: outliers leave the context, normal ones enter it.

        X: as in `learn_many`; is_outlier: (n,) bool. A verdict is about one of the last records learned (`adapt_after`,
        at least 5,000), the one with these values; others are passed over. Of equal records it is the first without a
        verdict, or else the last. Idempotent where records differ; of several verdicts on a record the last counts.
        """
        rows = self._to_rows(X, learn=True)
        detector = self._wake()
        if detector is not None:
            own = np.arange(rows.shape[1]) * (self.lags + 1)  # where a row has its own values, not those before it
            shingles = np.full((len(rows), detector.n_features), np.nan)
            shingles[:, own] = rows
            verdicts = np.asarray(is_outlier, dtype=bool).reshape(len(rows))
            for equal, verdict in zip(detector.numbers_of(shingles, own), verdicts, strict=True):
                fresh = equal[~detector.has_verdict(equal)]
                detector.feedback(fresh[:1] if len(fresh) else equal[-1:], np.full(min(len(equal), 1), verdict))
            self._scored = None

    def _score(self, rows: Float) -> Float:
        if not len(rows):
            return np.zeros(0)
        detector = self._wake()
        if detector is None or rows.shape[1] == 0:
            return np.zeros(len(rows))
        scored = detector.score_rows(rows)
        self._scored = rows, scored
        return np.nan_to_num(scored.score)

    def _learn(self, values: Float) -> None:
        values = values[~np.isnan(values).all(1)] if values.size else values  # without features, it teaches nothing
        if values.size == 0:
            return
        rows = self._with_past(values, learn=True)
        detector = self._wake()
        assert detector is not None
        scored, self._scored = self._scored, None
        known = scored is not None and np.array_equal(scored[0], rows, equal_nan=True)
        if scored is not None and known and detector.generation and len(rows) <= detector.config.lag:
            detector.learn_rows(rows, scored[1])
        else:
            detector.process(rows)

    def _wake(self) -> Detector | None:
        """The detector, as wide as the features known by now; None before any feature is known."""
        width = len(self._columns) * (self.lags + 1)
        if self._saved is not None:
            width_then, entries = self._saved
            self._detector, self._saved = self._make(width_then), None
            self._detector.recover(entries)
        if self._detector is None and width:
            self._detector = self._make(width)
        elif self._detector is not None and self._detector.n_features < width:
            self._detector = self._detector.widened(width)
            self._scored = None
        return self._detector

    def _make(self, width: int) -> Detector:
        codes = tuple(range(self._n_codes * (self.lags + 1)))
        return Detector(shared_model(self.model, self.device), width, self._config, categorical=codes)

    def _with_past(self, values: Float, learn: bool = False) -> Float:
        """Rows (n, n_columns * (lags + 1)) of values (n, n_columns): each feature followed by its earlier values.

        So the columns of a feature that appears come after all others.
        """
        n, d = values.shape
        if self._past.n_features < d:
            self._past.widen(d)
        known = ~np.isnan(values).all(1)  # a record without features is no part of the past
        shingles = np.full((n, self._past.width), np.nan)
        shingles[known] = (self._past.rows if learn else self._past.peek)(values[known])
        return shingles.reshape(n, self.lags + 1, d).swapaxes(1, 2).reshape(n, -1)

    def _to_rows(self, X: Any, learn: bool = False) -> Float:
        """Rows (n, n_columns) float64; learning makes columns of features not seen before."""
        if hasattr(X, "columns"):  # a DataFrame
            return self._arrange(list(X.columns), X.to_numpy(dtype=object), learn)
        if isinstance(X, np.ndarray):
            if X.ndim != 2:
                raise SchemaError(f"expected an array (n, d), got one of shape {X.shape}")
            return self._arrange(list(range(X.shape[1])), X, learn)
        records: Sequence[Mapping[Any, Any]] = X
        names = {name for record in records for name in record}
        if learn:
            self._add_columns(names)
        rows = np.full((len(records), len(self._columns)), np.nan)
        for i, record in enumerate(records):
            for name, value in record.items():
                column = self._columns.get(name)
                if column is not None:
                    rows[i, column] = category_code(value) if column < self._n_codes else _number(value)
        return rows

    def _arrange(self, names: list[Any], values: NDArray[Any], learn: bool) -> Float:
        if learn:
            self._add_columns(set(names))
        rows = np.full((len(values), len(self._columns)), np.nan)
        for j, name in enumerate(names):
            column = self._columns.get(name)
            if column is not None:
                given = values[:, j]
                if column < self._n_codes:
                    rows[:, column] = [category_code(value) for value in given.tolist()]
                else:
                    rows[:, column] = given if given.dtype.kind in "fiub" else [_number(value) for value in given]
        return rows

    def _add_columns(self, names: set[Any]) -> None:
        for name in sorted(names - self._columns.keys(), key=lambda n: (type(n).__name__, n)):
            if len(self._columns) < min(MAX_FEATURES, MOST_COLUMNS // (self.lags + 1)):
                self._columns[name] = len(self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, feature names and the detector's state; not the weights, which are found again by name."""
        state = self.__dict__.copy()
        if self._detector is not None:
            state["_saved"] = self._detector.n_features, self._detector.copy().changes()
        state["_detector"] = state["_scored"] = None
        return state


def _number(value: Any) -> float:
    """A finite float, or NaN for whatever is none."""
    try:
        number = float(value) if isinstance(value, (int, float, np.number, np.bool_)) else math.nan
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan
