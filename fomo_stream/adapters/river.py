"""`FoMoDetector`: the detector as a River anomaly detector."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from narwhals.stable.v2.typing import IntoDataFrame, IntoSeries
from numpy.typing import ArrayLike, NDArray
from river.base import AnomalyDetector
from river.utils.dataframe import to_native_series

from fomo_stream.adapters.columns import Columns
from fomo_stream.adapters.named_reasons import Explanation
from fomo_stream.adapters.open_detector import OpenDetector, OpenedData, OpenRows, open_data
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.errors import ConfigError, renamed_keyword
from fomo_stream.records.derivations import parse_derivations, split_derivations
from fomo_stream.records.derived import DerivedFeatures
from fomo_stream.records.missing_values import parse_marks as marks_of

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = NDArray[Any] | Iterable[Mapping[Any, Any]]  # an array (n, d), or dicts


class FoMoDetector(AnomalyDetector):
    """Zero-shot outlier detection: a pretrained model scores each record against contexts of earlier records.

    The default model, "streams", is a weighted sum of measures of how far a record is from the rows of a context. Its
    29 numbers were trained once, on synthetic streams. "fomo" is a transformer, for tables.
    Each context is a view: a uniform sample of the records so far, with or without the most outlying fifth, or the last
    records. Nothing is trained; until `min_context` records are learned every score is 0. Scores are in [0, 1), higher
    = more anomalous: they say how rare such a record is in the long run. They come from the mean over the views, and a
    third of their weight is on earlier records.
    With `key` each value of that field is a series of its own: a record is unusual if it is unusual for all records, or
    for its key. Without `key` all records are one series. Score, p-value and verdict of a record are computed once, and
    learning it then costs no further computation.

    Features may come and go. Text that is a decimal number is read as a number. A feature that a record lacks, or that
    is None, NaN, an infinity or something unreadable, is missing and changes nothing. A record without a value of any
    known feature gets NaN as score and p-value, with a warning, and is not learned. A new feature counts as soon as
    records that have it reach the context: the detector begins again, with the last records (at least 5,000) and the
    verdicts on them. It takes up to 1,000 features and ignores further ones; if the model takes fewer, a fixed random
    subset of the features is scored, chosen by their names.

    Parameters
    ----------
    model
        Name of a shipped model: "streams" (the default) or "fomo"; or path of a checkpoint.
    context_size
        Maximum number of rows in a context, 4 to 5,000.
    min_context
        Number of learned records before scores begin.
    admit
        Which records may enter the sample: "auto" (all that `feedback_many` does not call outliers), "feedback" (after
        the first `min_context` only those that it calls normal) or "all" (as "auto", and no view is trimmed).
    adapt_after
        Number of records after which a lasting shift is announced, 0: never. It changes no score.
    alert_rate
        Target for the share of normal records that are called outliers; real incidents are flagged in addition.
    device
        "cpu", "cuda", ... or "auto" (for models that run in torch the GPU where there is one, else the CPU).
    seed
        Seed of the reservoir.
    categorical
        Names of the features that are categories, of any type; a value counts by how often the context has it.
    lags
        Number of earlier records, 0 to 100, that each record is also compared together with: the records learned before
        it, and those before it in the same call. Adds the view "past" if it has at most 200 columns.
    backend
        What computes the scores: "numba", "torch" or "auto" (torch with device "cuda" and for models of raw features
        or with attention, else numba). A pickle is continued by the same backend only.
    views
        What records are compared with: "default" (trimmed, all, recent, movement, key), "fast" (trimmed, all, key),
        "events" (trimmed, all, recent, key_values; for independent records of keys), or a sequence of names of views.
    reasons
        Number of reasons that an explanation has at most, 1 to 10.
    key
        Name of the field that distinguishes series: a device, a user. It is not a feature. Records without it form one
        series.
    counters
        Names of features that only grow: their growth per record is scored, not the total.
    missing_values
        Numbers that mean "missing", by feature, "*" for all: {"temp": -9999, "*": 65535}.
    reference
        Good records in the order of time: a frame, an array or a list of dicts. A record is an outlier if, and as long
        as, it is unusual compared with those of its key. Scores begin with the first record.
    derive
        Features to compute by key as records are learned, as --derive of the command line: "count(10m)", "new(device)".
        A field whose values are only compared, such as device, is not a feature itself, unless categorical names it.
    time
        Name of the field with the time of a record, for derive: a datetime, a number since 1970, or ISO 8601. It is not
        a feature.

    Raises
    ------
    CheckpointError
        For a model that does not exist. It is a ValueError.
    ConfigError
        For an impossible value. It is a ValueError.

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
    >>> usual, odd = {"load": 50, "temperature": 20}, {"load": 50, "temperature": 45}
    >>> detector.score_one(usual) < 0.9, detector.score_one(odd) > 0.99
    (True, True)
    >>> print(detector.is_outlier_one({"load": 50, "temperature": 45}))
    True
    >>> detector.explain_one({"load": 50, "temperature": 45})[0]["feature"]
    'temperature'
    """

    parse_marks: Mapping[Hashable, Any] | None = None  # this and the next are defaults for older pickles
    reference: Rows | IntoDataFrame | None = None
    derive: str | Sequence[str] | None = None
    time: Hashable | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> FoMoDetector:
        if "missing_is" in kwargs:
            raise ConfigError("missing_is is gone; leave it out: a missing value is unknown")
        made: FoMoDetector = super().__new__(cls)
        return made

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"backend": state.get("kernel", "auto"), **state})  # `kernel` in older pickles

    @renamed_keyword("kernel", "backend")
    def __init__(
        self,
        model: str = "default",
        context_size: int = 1000,
        min_context: int = 200,
        admit: str = "auto",
        adapt_after: int = 1000,
        alert_rate: float = DetectorConfig.alert_rate,
        device: str = "auto",
        seed: int = 0,
        categorical: Collection[Any] | None = None,
        lags: int = 0,
        backend: str = "auto",
        views: str | Sequence[str] = "default",
        reasons: int = 3,
        key: Hashable | None = None,
        counters: Collection[Any] | None = None,
        missing_values: Mapping[Hashable, Any] | None = None,
        reference: Rows | IntoDataFrame | None = None,
        derive: str | Sequence[str] | None = None,
        time: Hashable | None = None,
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
        self.backend = backend
        self.views = views
        self.reasons = reasons
        self.key = key
        self.counters = counters
        self.missing_values = missing_values
        self.reference = reference = list(reference) if isinstance(reference, Iterator) else reference  # clones need it
        self.derive = derive
        self.time = time
        if not isinstance(key, Hashable):
            raise ConfigError(f"key is the name of one field, not {key!r}")
        names = () if categorical is None else _checked_names(categorical, "categorical", ["mode"])
        totals = () if counters is None else _checked_names(counters, "counters", ["energy"])
        if both := set(names) & set(totals):
            raise ConfigError(f"{min(map(repr, both))} is both in categorical and in counters; name it in one")
        config = DetectorConfig(
            context_size=context_size,
            min_context=min_context,
            admit=admit,
            views=_checked_names([views] if isinstance(views, str) else views, "views", ["all", "recent"]),
            lags=lags,
            adapt_after=adapt_after,
            alert_rate=alert_rate,
            seed=seed,
            reasons=reasons,
        )
        marks = marks_of(missing_values or {})
        texts = _checked_names([derive] if isinstance(derive, str) else derive or (), "derive", ["count(10m)"])
        try:
            derivations = parse_derivations(split_derivations(list(map(str, texts))))
        except ValueError as error:
            raise ConfigError(f"derive: {error}") from None
        if time is None and (timed := [derivation.name for derivation in derivations if derivation.is_timed]):
            raise ConfigError(f"derive: {timed[0]} needs time, the name of the field with the time of a record")
        compared = {field for derivation in derivations if derivation.takes_categories for field in derivation.fields}
        rows = OpenRows(names, key, totals, marks, {time, *(compared - {*names, *totals})} - {None})
        derived = DerivedFeatures(derivations, config.keys, marks) if derivations else None
        good = None if reference is None else open_data(reference)
        self._inner = OpenDetector(model, device, backend, config, rows, derived, time, good)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"model": "streams", "context_size": 20, "min_context": 10}

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        """Learn one record."""
        self._inner.learn([x])

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score a record in [0, 1): how rare it is in the long run; 0 until min_context records are learned.

        The score is about the share of all earlier records that were less unusual; older ones count less. Rank records
        by it. NaN if the record has no value of any feature that was learned.
        """
        return self._inner.result(x, "score", 0.0)

    def p_value_one(self, x: Mapping[Any, Any]) -> float:
        """Return the share of recent records that were at least as unusual, about uniform on normal records.

        It is 1 until min_context records are learned, so it is a valid p-value from the first record on, also for
        procedures that take p-values one by one. NaN as for `score_one`.
        """
        return self._inner.result(x, "p_value", 1.0)

    def is_outlier_one(self, x: Mapping[Any, Any]) -> bool:
        """Return whether the record begins an incident, or continues one.

        It begins one if it is more unusual than each of the last 7 / alert_rate records. It continues one if, shortly
        after another outlier, it is rare in the long run. False until 1 / alert_rate records are known.
        """
        return self._inner.result(x, "outlier", 0.0) > 0

    def explain_one(self, x: Mapping[Any, Any]) -> Explanation:
        """Return the features that make a record unusual, the strongest first: a list of dicts whose `str` is a
        sentence. Empty until min_context records are learned. The detector does not change.
        """
        return self.explain_many([x])[0]

    @overload
    def score_many(self, X: Rows) -> NDArray[np.float64]: ...
    @overload
    def score_many(self, X: pd.DataFrame) -> pd.Series[float]: ...
    @overload
    def score_many(self, X: IntoDataFrame) -> IntoSeries: ...
    def score_many(self, X: Any) -> Any:
        """Score a DataFrame, an array (n, d), or a sequence of dicts as the next n records: return (n,) scores, for a
        DataFrame as a Series with its index, else as an array.

        From the first record that a new context would score, they may differ a little from those of `score_one` with
        `learn_one`.
        """
        data = open_data(X)
        return _as_series(data, self._inner.results(data, "score", 0.0), "score")

    @overload
    def p_value_many(self, X: Rows) -> NDArray[np.float64]: ...
    @overload
    def p_value_many(self, X: pd.DataFrame) -> pd.Series[float]: ...
    @overload
    def p_value_many(self, X: IntoDataFrame) -> IntoSeries: ...
    def p_value_many(self, X: Any) -> Any:
        """Return p-values (n,), as `score_many` does; see `p_value_one`."""
        data = open_data(X)
        return _as_series(data, self._inner.results(data, "p_value", 1.0), "p_value")

    @overload
    def is_outlier_many(self, X: Rows) -> NDArray[np.bool_]: ...
    @overload
    def is_outlier_many(self, X: pd.DataFrame) -> pd.Series[bool]: ...
    @overload
    def is_outlier_many(self, X: IntoDataFrame) -> IntoSeries: ...
    def is_outlier_many(self, X: Any) -> Any:
        """Return verdicts (n,), as `score_many` does; see `is_outlier_one`."""
        data = open_data(X)
        return _as_series(data, self._inner.results(data, "outlier", 0.0) > 0, "is_outlier")

    def explain_many(self, X: Rows | IntoDataFrame) -> list[Explanation]:
        """Explain a DataFrame, an array (n, d), or a sequence of dicts, as the next n records."""
        return self._inner.explain(open_data(X))

    def learn_many(self, X: Rows | IntoDataFrame) -> None:
        """Learn a DataFrame, an array (n, d), or a sequence of dicts, in order."""
        self._inner.learn(open_data(X))

    def feedback_many(self, X: Rows | IntoDataFrame, is_outlier: ArrayLike) -> None:
        """Take verdicts on earlier records: the reservoir changes before the next record is learned, the contexts with
        their next generation.

        X: as in `learn_many`; is_outlier: (n,) bool. A verdict is about the record with these values among the last
        learned ones (at least 5,000); verdicts on other records are ignored. Of equal records it is about the first
        without a verdict, else the last. Repeating a verdict has no effect if records differ; of several verdicts on a
        record the last counts.
        """
        self._inner.feedback(X, is_outlier)


def _checked_names(names_given: Any, parameter: str, example: list[str]) -> tuple[Any, ...]:
    """Return names, which have to be a collection of possible dict keys. Raises ConfigError."""
    if isinstance(names_given, str) or not isinstance(names_given, Iterable):
        raise ConfigError(f"{parameter} is a list of names, such as {example}, not {names_given!r}")
    # a set has a different order in each process
    names = tuple(sorted(names_given, key=repr) if isinstance(names_given, Set) else names_given)
    for name in names:
        if not isinstance(name, Hashable):
            raise ConfigError(f"{parameter} is a list of names, and {name!r} is not a name")
    return names


def _as_series(data: OpenedData, values: NDArray[Any], name: str) -> Any:
    """Return values (n,) as a Series if the data are a frame, else unchanged."""
    frame = data.frame if isinstance(data, Columns) else None
    return values if frame is None else to_native_series(values, name=name, like=frame)
