"""A detector whose features come and go: it gets wider with them, and remembers its last results."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.adapters.explanation import Explanation
from fomo_stream.adapters.open_rows import OpenRows, has_values, readable_twice
from fomo_stream.detector.changelog import StoredEntries
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.errors import SchemaError
from fomo_stream.model.checkpoint import checkpoint_path, shared_model
from fomo_stream.wording import counted

Float = NDArray[np.float64]


class OpenDetector:
    """A `Detector` of records that are rows of a frame or an array, or dicts; see `OpenRows`. All are one series.

    model, device, kernel: as for `load_model`; the weights are loaded with the first features. categorical: names of
    features. Raises CheckpointError for a model that is not there.
    """

    def __init__(
        self, model: str, device: str, kernel: str, config: DetectorConfig, categorical: Collection[Hashable]
    ) -> None:
        checkpoint_path(model)
        self.model, self.device, self.kernel = model, device, kernel
        self.config = config
        self.detector: Detector | None = None
        self._rows = OpenRows(categorical)
        self._saved: tuple[int, StoredEntries] | None = None  # width and state, unpickled and not used yet
        self._scored: tuple[Float, Results] | None = None  # the last scored rows, so that nothing is scored twice

    def results(self, X: Any, name: str, unknown: float) -> Float:
        """The field `name` (n,) of the results of X as the next n records; `unknown` where there is no score."""
        rows = self._rows.rows(X)
        found, usable = np.full(len(rows), unknown), has_values(rows)
        detector = self._wake()
        if detector is not None and usable.any():
            values = np.asarray(getattr(self._score(detector, rows[usable]), name), dtype=np.float64)
            found[usable] = np.where(np.isnan(values), unknown, values)
        return found

    def explain(self, X: Any) -> list[Explanation]:
        """The explanation of each of X as the next records; empty where there is no score."""
        X = readable_twice(X)
        rows = self._rows.rows(X)
        found, usable = [Explanation() for _ in rows], np.flatnonzero(has_values(rows))
        detector = self._wake()
        if detector is None or not len(usable):
            return found
        given, names, codes = self._rows.values(X), self._rows.names, self._rows.categorical
        scored = self._score(detector, rows[usable])
        earlier = (scored.remembered_logit - scored.logit).tolist()
        columns = usable.tolist(), detector.explain(rows[usable]), earlier, scored.outlier.tolist()
        for i, reasons, before, is_outlier in zip(*columns, strict=True):
            if before == before:  # else it has no score
                found[i] = Explanation.of(reasons, names, codes, given[i], before, is_outlier)
        return found

    def learn(self, X: Any) -> None:
        """Learn X, in order. A record without any value is not learned."""
        rows = self._rows.rows(X, learn=True)
        rows = rows[has_values(rows)]
        detector = self._wake()
        if detector is None or not len(rows):
            return
        scored, self._scored = self._scored, None
        if scored is not None and np.array_equal(scored[0], rows, equal_nan=True):
            detector.learn_rows(rows, scored[1])
        else:
            detector.process(rows)

    def feedback(self, X: Any, is_outlier: Any) -> None:
        """See `FoMoDetector.feedback_many`."""
        rows = self._rows.rows(X, learn=True)
        verdicts = _verdicts(is_outlier, len(rows))
        detector = self._wake()
        if detector is None:
            return
        equal_to_each = detector.numbers_of(rows)
        for equal, verdict in zip(equal_to_each, verdicts, strict=True):
            open_ones = equal[~detector.has_verdict(equal)]
            detector.feedback(open_ones[:1] if len(open_ones) else equal[-1:], np.full(min(len(equal), 1), verdict))
        self._scored = None

    def _score(self, detector: Detector, rows: Float) -> Results:
        if self._scored is None or not np.array_equal(self._scored[0], rows, equal_nan=True):
            self._scored = rows, detector.score_rows(rows)
        return self._scored[1]

    def _wake(self) -> Detector | None:
        """The detector, as wide as the features known now; None before any feature is known."""
        width = self._rows.width
        if self._saved is not None:
            saved_width, entries = self._saved
            detector = self._make(saved_width)
            detector.recover(entries)  # a state that is refused stays, and is refused again
            self.detector, self._saved = detector, None
        if self.detector is None and width:
            self.detector = self._make(width)
        elif self.detector is not None and self.detector.n_features < width:
            self.detector = self.detector.widened(width)
            self._scored = None
        return self.detector

    def _make(self, width: int) -> Detector:
        model = shared_model(self.model, self.device, self.kernel)
        return Detector(model, width, self.config, categorical=self._rows.categorical)

    def __getstate__(self) -> dict[str, Any]:
        """Settings, features and the detector's state; not the weights, which are loaded again by name."""
        state = self.__dict__.copy()
        if self.detector is not None:
            state["_saved"] = self.detector.n_features, self.detector.copy().changes()
        state["detector"] = state["_scored"] = None
        return state


def _verdicts(given: Any, n: int) -> NDArray[np.bool_]:
    """Verdicts (n,), if they are booleans, or 0 and 1. Raises SchemaError."""
    found = np.ravel(np.asarray(given, dtype=object)).tolist()
    if len(found) != n:
        raise SchemaError(f"{counted(len(found), 'verdict')} for {counted(n, 'record')}; give one for each")
    for one in found:
        if not (isinstance(one, (Real, np.bool_)) and one in (0, 1)):
            raise SchemaError(f"a verdict is True for an outlier, else False, not {one!r}")
    return np.array(found, dtype=bool)
