"""`FoMoDetector`: the detector as a River anomaly detector."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river.base import AnomalyDetector

from fomo_stream.adapters.open_rows import OpenRows
from fomo_stream.detector.changelog import StoredEntries
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.detector.views import named_views
from fomo_stream.model.checkpoint import shared_model

Float = NDArray[np.float64]


class FoMoDetector(AnomalyDetector):
    """Zero-shot outlier detection: a pretrained transformer scores each record against contexts of earlier records.

    Each context is a view: a uniform sample of the records so far, with or without the most outlying fifth, or the last
    records. Nothing is trained; until `min_context` records are learned every score is 0. Scores are in [0, 1], higher
    = more anomalous. A score is of the mean over the views, and remembers the records before: a third of it is theirs.
    All records are one series.

    Features may come and go. A feature that a record does not have, or has as None, NaN, an infinity or anything that
    is not a number, is missing and counts as the context's median. A new feature counts as soon as records that have it
    reach the context. Up to 1,000 features are taken, further ones are ignored.

    Parameters
    ----------
    model
        Name of a shipped model, or path of a checkpoint.
    context_size
        Maximum number of rows in a context, 4 to 5,000.
    min_context
        Number of rows before scores begin.
    admit
        Which records may enter the sample: "auto" (all that `feedback_many` does not call outliers), "feedback" (after
        the first `min_context` only those that it calls normal) or "all" (as "auto", and no view is trimmed).
    adapt_after
        Number of records after which a lasting shift is announced, 0: never. It changes no score.
    alert_rate
        Share of normal records that may be called outliers; sets how many recent scores are kept.
    device
        "auto" (the GPU where there is one), "cpu", "cuda", ...
    seed
        Seed of the reservoir.
    categorical
        Names of the features that are categories, of any type; a value counts by how often the context has it.
    lags
        Number of earlier records that each record is also compared together with, 0 to 100: the records learned before
        it, and those before it in the same call. Adds the view "past", where that has at most 200 columns.
    kernel
        What computes the scores: "numba", "torch" or "auto" (numba on a CPU, torch on a GPU and for models of raw
        features). A pickle is continued by the same kernel only.
    views
        What records are compared with: "default" (trimmed, all, recent, movement), "fast" (trimmed, all), or a sequence
        of names of views.

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
        adapt_after: int = 1000,
        alert_rate: float = 0.01,
        device: str = "auto",
        seed: int = 0,
        categorical: Collection[Any] | None = None,
        lags: int = 0,
        kernel: str = "auto",
        views: str | Sequence[str] = "default",
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
        self.kernel = kernel
        self.views = views
        self._config = DetectorConfig(
            context_size=context_size,
            min_context=min_context,
            admit=admit,
            views=named_views([views] if isinstance(views, str) else views),
            lags=lags,
            adapt_after=adapt_after,
            alert_rate=alert_rate,
            seed=seed,
        )
        self._rows = OpenRows(categorical or ())
        self._detector: Detector | None = None
        self._saved: tuple[int, StoredEntries] | None = None  # width and state, unpickled and not used yet
        self._scored: tuple[Float, Results] | None = None  # the last scored rows, so that learning them is free

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"context_size": 20, "min_context": 10}

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of one record, in [0, 1]; 0 until min_context records are learned."""
        return float(self.score_many([x])[0])

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        """Learn one record."""
        self.learn_many([x])

    def score_many(self, X: Any) -> Float:
        """Scores (n,) of a DataFrame, an array (n, d), or a sequence of dicts, as the next n records.

        From one that a new context scores on they may differ a little from those of `score_one` and `learn_one`.
        """
        rows = self._rows.rows(X)
        detector = self._wake()
        if detector is None or not rows.size:
            return np.zeros(len(rows))
        scores, usable = np.zeros(len(rows)), ~np.isnan(rows).all(axis=1)
        scored = detector.score_rows(rows[usable])
        self._scored = rows[usable], scored
        scores[usable] = np.nan_to_num(scored.score)
        return scores

    def learn_many(self, X: Any) -> None:
        """Learn a DataFrame, an array (n, d), or a sequence of dicts, in order."""
        rows = self._rows.rows(X, learn=True)
        rows = rows[~np.isnan(rows).all(axis=1)]  # a record without any value is not learned
        detector = self._wake()
        if detector is None or not len(rows):
            return
        scored, self._scored = self._scored, None
        known = scored is not None and np.array_equal(scored[0], rows, equal_nan=True)
        if scored is not None and known:
            detector.learn_rows(rows, scored[1])
        else:
            detector.process(rows)

    def feedback_many(self, X: Any, is_outlier: Any) -> None:
        """Take verdicts on records seen before: the reservoir changes before the next record is learned, the scoring
        context with the next generation.

        X: as in `learn_many`; is_outlier: (n,) bool. A verdict is about one of the last records learned (at least
        5,000), the one with these values; verdicts on other records are ignored. Of equal records it is the
        first without a verdict, or else the last. Idempotent where records differ; of several verdicts on a record the
        last counts.
        """
        rows = self._rows.rows(X, learn=True)
        detector = self._wake()
        if detector is None:
            return
        verdicts = np.asarray(is_outlier, dtype=bool).reshape(len(rows))
        equal_to_each = detector.numbers_of(rows)
        for equal, verdict in zip(equal_to_each, verdicts, strict=True):
            open_ones = equal[~detector.has_verdict(equal)]
            detector.feedback(open_ones[:1] if len(open_ones) else equal[-1:], np.full(min(len(equal), 1), verdict))
        self._scored = None

    def _wake(self) -> Detector | None:
        """The detector, as wide as the features known now; None before any feature is known."""
        width = self._rows.width
        if self._saved is not None:
            saved_width, entries = self._saved
            detector = self._make(saved_width)
            detector.recover(entries)  # a state that is refused stays, and is refused again
            self._detector, self._saved = detector, None
        if self._detector is None and width:
            self._detector = self._make(width)
        elif self._detector is not None and self._detector.n_features < width:
            self._detector = self._detector.widened(width)
            self._scored = None
        return self._detector

    def _make(self, width: int) -> Detector:
        model = shared_model(self.model, self.device, self.kernel)
        return Detector(model, width, self._config, categorical=self._rows.categorical)

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, features and the detector's state; not the weights, which are loaded again by name."""
        state = self.__dict__.copy()
        if self._detector is not None:
            state["_saved"] = self._detector.n_features, self._detector.copy().changes()
        state["_detector"] = state["_scored"] = None
        return state
