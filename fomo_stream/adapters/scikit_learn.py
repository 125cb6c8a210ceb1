"""`ZeroShotDetector`: the detector as a scikit-learn estimator, for a fixed context."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar, cast

import numpy as np
from narwhals.stable.v2.typing import IntoDataFrame
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions, validate_params
from sklearn.utils.validation import check_is_fitted, validate_data

from fomo_stream.adapters.columns import (
    Columns,
    categorical_positions,
    first_words,
    has_values,
    note_of_empty,
    note_of_misleading,
    numeric_rows,
    table_columns,
    unmasked,
    warn,
)
from fomo_stream.adapters.named_reasons import Explanation
from fomo_stream.detector.attribution import BackgroundRows, Column, Comparison, attribute
from fomo_stream.detector.categories import Frequencies
from fomo_stream.detector.results import Cause
from fomo_stream.errors import SchemaError, renamed_keyword
from fomo_stream.limits import ALERT_RATE, MAX_CONTEXT
from fomo_stream.model.architecture import VALUE_LIMIT, Model
from fomo_stream.model.checkpoint import BACKENDS, TABLE_MODEL, shared_model
from fomo_stream.model.scoring import EncodedContext, cross_scores, encode_rows, logits_of
from fomo_stream.records.missing_values import ALL_FEATURES, parse_marks, table_of_marks, without_marks
from fomo_stream.records.schema import random_columns

if TYPE_CHECKING:
    from fomo_stream.model.attention import Attended

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
ROUNDING = 1e-5  # standard deviations: a row that differs by less from a training row counts as that row
MAX_CELL = 1e14  # at this size, float64 still distinguishes numbers that are less than 1 apart
N_SAMPLES, SAMPLE_ROWS = 16, 8  # samples of training rows and their size, see `_suspects`
Rows: TypeAlias = ArrayLike | IntoDataFrame  # (n_rows, n_features)
Method = TypeVar("Method", bound=Callable[..., Any])


def _keeping_types(decorator: Any) -> Callable[[Method], Method]:
    """Return an untyped decorator of scikit-learn as one that keeps the types of the method."""
    return cast(Callable[[Method], Method], decorator)


class TrainingView(NamedTuple):
    """A part of the training data: columns (d',) and rows (n', d')."""

    columns: Int
    kept: Int  # (n',) positions among the training rows
    rows: Float  # raw units; category codes
    codes: tuple[int, ...]  # positions in `columns` of those with category codes
    width: int  # d, columns of the training data

    def half(self, which: NDArray[np.bool_]) -> TrainingView:
        """Return the view with some of its rows (n',)."""
        return self._replace(kept=self.kept[which], rows=self.rows[which])


View = TrainingView  # the name in pickles of earlier versions


class EncodedView:
    """A view, encoded as a context."""

    def __init__(self, model: Model, view: TrainingView) -> None:
        self.model, self.view = model, view
        self.frequencies = Frequencies.fit(view.rows, view.codes)
        self.encoded = self.frequencies.encode(view.rows)
        self.cache: EncodedContext = encode_rows(model, self.encoded)

    def logits(self, rows: Float) -> Float:
        """Return the logits (q,) of new rows (q, d') of the view."""
        return logits_of(self.model, self.cache, self.frequencies.encode(rows))

    @cached_property
    def comparison(self) -> Comparison:
        """The context in the form that explanations need."""
        codes = set(self.view.codes)
        columns = [Column(c, Cause.VALUE, i in codes) for i, c in enumerate(self.view.columns.tolist())]
        return Comparison(BackgroundRows(self.view.rows, columns, n_features=self.view.width), (self.logits,))


class EnsembleMember:
    """A view that is ready to score. A row of its context is scored by the half that does not contain it."""

    def __init__(self, model: Model, view: TrainingView) -> None:
        self.context = EncodedView(model, view)
        _, self._first, which = np.unique(view.rows, axis=0, return_index=True, return_inverse=True, equal_nan=True)
        which = which.ravel()
        own = cross_scores(model, self.context.encoded)
        self._own = np.bincount(which, own) / np.bincount(which)  # for each distinct row, the mean of equal ones
        distinct = view.rows[self._first]
        filled = np.where(np.isnan(distinct), 0.0, distinct)
        spread, single = filled.std(axis=0), np.finfo(np.float32).eps
        rounded = 2.0 * single * np.abs(filled).max(axis=0)
        self._cells = np.where(
            np.ptp(filled, axis=0) > 0.0, spread * ROUNDING + np.minimum(rounded, spread * 1e-3), rounded
        )
        self._center = filled[0]  # so that columns that vary little are not beyond MAX_CELL
        self._tree = cKDTree(self._scaled(distinct), balanced_tree=False)

    def _scaled(self, rows: Float) -> Float:
        """Return rows (n, d) in units in which rows less than 1 apart count as equal; missing values are far off."""
        with np.errstate(over="ignore"):
            cells = (rows - self._center) / np.maximum(self._cells, np.finfo(np.float64).tiny)
            cells = np.clip(cells, -MAX_CELL, MAX_CELL)
        return np.where(np.isnan(cells), -2 * MAX_CELL, cells)

    def _row_numbers(self, rows: Float) -> Int:
        """Return the position (q,) of each row among the distinct rows, up to rounding; their number for new rows."""
        places: Int = self._tree.query(self._scaled(rows), p=np.inf, distance_upper_bound=1.0)[1]
        return places

    def logits(self, rows: Float) -> Float:
        """Return the logits (q,) of rows (q, d), new ones or of the training data."""
        rows = rows[:, self.context.view.columns]
        places = self._row_numbers(rows)
        new = places == len(self._own)
        result = self._own[np.where(new, 0, places)]
        if new.any():
            result[new] = self.context.logits(rows[new])
        return result

    def comparison(self, row: Float) -> Comparison:
        """Return the context that scores a row (d,)."""
        place = int(self._row_numbers(row[None, self.context.view.columns])[0])
        if place == len(self._own) or len(self.context.view.rows) < 4:  # see `cross_scores`
            return self.context.comparison
        return self._halves[int(self._first[place] < self._middle)].comparison

    @property
    def _middle(self) -> int:
        return len(self.context.view.rows) // 2

    @cached_property
    def _halves(self) -> tuple[EncodedView, EncodedView]:
        """The first and the second half of the context."""
        first = np.arange(len(self.context.view.rows)) < self._middle
        model, view = self.context.model, self.context.view
        return EncodedView(model, view.half(first)), EncodedView(model, view.half(~first))


def _suspects(model: Model, view: TrainingView, share: float, rng: np.random.RandomState) -> Bool:
    """Return which rows of a view (n,) are the most outlying ones, at most this share.

    Outliers that are alike hide each other in halves of the rows. Most of N_SAMPLES small samples of rows contain none
    of a small group. A row is judged by the quarter of the samples that finds it most unusual.
    """
    suspects = np.zeros(len(view.rows), dtype=bool)
    count = int(share * len(suspects) + 1e-9)
    if count and len(suspects) >= 2 * SAMPLE_ROWS:
        encoded = Frequencies.fit(view.rows, view.codes).encode(view.rows)
        logits = np.empty((N_SAMPLES, len(suspects)))
        for sample_logits in logits:
            sample = rng.choice(len(suspects), SAMPLE_ROWS, replace=False)
            sample_logits[:] = logits_of(model, encode_rows(model, encoded[sample]), encoded)
            sample_logits[sample] = np.nan
        unusualness = np.nan_to_num(np.nanquantile(logits, 0.75, axis=0))
        suspects[np.argsort(-unusualness, kind="stable")[:count]] = True
    return suspects


_TOP = {"top": [Interval(Integral, 1, None, closed="left")]}


def _chosen_alert_rate(alert_rate: float | None, contamination: float | None) -> float:
    if alert_rate is not None and contamination is not None:
        raise InvalidParameterError("alert_rate and contamination are two names of one parameter; give one of them")
    return next((rate for rate in (alert_rate, contamination) if rate is not None), ALERT_RATE)


class ZeroShotDetector(OutlierMixin, BaseEstimator):
    """Zero-shot outlier detection against a fixed context of inliers: nothing is trained, `fit` encodes the context.

    It is for tables whose rows have no order: fit on rows that are mostly ordinary, then judge them (`labels_`,
    `fit_predict`) or new ones (`predict`). With `contamination`, the most outlying training rows are left out of the
    context. For streams of records `FoMoDetector` is better: it uses earlier records, and adapts.

    X is an array, or a frame of pandas, polars or pyarrow. Missing values (NaN, None, NA) are unknown. Columns
    whose texts are all decimal numbers are read as numbers, with a warning. Infinities are refused, and so are columns
    with dates or other text, unless they are categorical. A pickle holds no weights.

    Parameters
    ----------
    model
        Name of a shipped model or path of a .safetensors checkpoint. "fomo" is the best one for tables: a transformer
        that weighs training rows by their distance. "default" is "streams", a weighted sum of distances and densities.
    context_size
        Maximum number of context rows of a view, 2 to 5,000; of more training rows a random subset is used.
    device
        "cpu", "cuda", ... or "auto" (for models that run in torch the GPU where there is one, else the CPU).
    backend
        What computes the scores: "numba", "torch" or "auto" (torch with device "cuda" and for models of raw features,
        else numba).
    alert_rate
        Share of training rows that `predict` calls outliers, in (0, 0.5]; None: 0.01.
    n_members
        Scores are averaged over this many views. The first has all features (as many as the model takes) and up
        to context_size rows; each further one has a random half to all of the features and a random context.
    random_state
        Seed of the subsets.
    contamination
        Share of outliers among the training rows, as in scikit-learn and PyOD; give either this or alert_rate. At most
        this share, the most outlying rows, is left out of the context, because outliers that are alike would hide each
        other. The value "auto" of scikit-learn, a fixed score, is not supported.
    categorical
        The columns that are categories: names of a DataFrame's columns, positions, or a mask. Values are of any type,
        and count by how often the context has them.
    missing_values
        Numbers that mean "missing", by name (or position) of the column, "*" for all: {"temp": -9999, "*": 65535}.

    Attributes
    ----------
    decision_scores_
        Scores of the training rows, (n_rows,), higher = more anomalous, as in PyOD: minus
        `score_samples`. A row of the context is scored by the half of it that does not contain the row.
    labels_
        Whether each training row is an outlier, (n_rows,): 0 or 1, as in PyOD.
    threshold_
        A row with a higher decision score is an outlier.
    offset_
        Minus threshold_, as in scikit-learn: the alert_rate quantile of the training rows' `score_samples`.
    categorical_
        Positions of the categorical columns.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from fomo_stream import ZeroShotDetector
    >>> inliers = np.random.default_rng(0).normal(size=(300, 4))
    >>> detector = ZeroShotDetector().fit(inliers)
    >>> detector.predict([[0.0, 0.1, -0.2, 0.0], [8.0, -8.0, 8.0, 8.0]])
    array([ 1, -1])
    >>> detector.explain([[0.0, 0.1, 9.0, 0.0]])[0][0]["feature"]
    2
    """

    _parameter_constraints = {  # noqa: RUF012  (scikit-learn's own convention)
        "model": [str],
        "context_size": [Interval(Integral, 2, MAX_CONTEXT, closed="both")],
        "device": [str],
        "backend": [StrOptions(set(BACKENDS))],
        "alert_rate": [Interval(Real, 0, 0.5, closed="right"), None],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "contamination": [Interval(Real, 0, 0.5, closed="right"), None],
        "categorical": ["array-like", None],
        "missing_values": [dict, None],
    }

    @renamed_keyword("kernel", "backend")
    def __init__(
        self,
        *,
        model: str = TABLE_MODEL,
        context_size: int = MAX_CONTEXT,
        device: str = "auto",
        backend: str = "auto",
        alert_rate: float | None = None,
        n_members: int = 1,
        random_state: Any = None,
        contamination: float | None = None,
        categorical: Any = None,
        missing_values: dict[Any, Any] | None = None,
    ) -> None:
        self.model = model
        self.context_size = context_size
        self.device = device
        self.backend = backend
        self.alert_rate = alert_rate
        self.n_members = n_members
        self.random_state = random_state
        self.contamination = contamination
        self.categorical = categorical
        self.missing_values = missing_values

    @_keeping_types(_fit_context(prefer_skip_nested_validation=True))
    def fit(self, X: Rows, y: object = None) -> Self:
        """Take X (n_rows, n_features), mostly inliers, as the context. y is ignored."""
        rate = _chosen_alert_rate(self.alert_rate, self.contamination)
        rows = self._rows(X, fit=True)
        if np.count_nonzero(has_values(rows)) < 2:
            raise SchemaError("X has fewer than 2 rows with a value")
        names = getattr(self, "feature_names_in_", range(rows.shape[1]))
        if note := note_of_misleading(list(names), rows[:MAX_CONTEXT], self.categorical_, "leave them out"):
            warn("ZeroShotDetector", note)
        if note := note_of_empty(list(names), rows):
            warn("ZeroShotDetector", note)
        if strange := [repr(name) for name in self.missing_values or () if name not in (ALL_FEATURES, *names)]:
            warn("ZeroShotDetector", f"missing_values names columns that X lacks: {first_words(strange)}")
        rng = check_random_state(self.random_state)
        usable = np.flatnonzero(has_values(rows))
        first = self._draw_view(rows, usable, rng, first=True)
        suspects = first.kept[_suspects(self._shared_model(), first, self.contamination or 0.0, rng)]
        first, usable = first.half(~np.isin(first.kept, suspects)), np.setdiff1d(usable, suspects)
        others = [self._draw_view(rows, usable, rng, first=False) for _ in range(self.n_members - 1)]
        self.members_ = [first, *others]
        self._encode()
        scores = self._scores(rows)
        self.offset_ = float(np.nanquantile(scores, rate))
        self.threshold_ = -self.offset_
        self.decision_scores_ = -scores
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(np.int64)
        return self

    def fit_predict(self, X: Rows, y: object = None) -> NDArray[np.int64]:
        """`fit`, then `predict` of the same rows."""
        return np.where(self.fit(X).labels_ == 1, -1, 1)

    def _rows(self, X: Any, fit: bool = False) -> Float:
        """Return X as rows (n_rows, n_features) of numbers."""
        X = unmasked(X)
        checks = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "ensure_min_samples": 2 if fit else 1}
        columns = table_columns(X, has_codes=self.categorical is not None if fit else bool(self.categorical_))
        if columns is None:
            if fit:
                self.categorical_: tuple[int, ...] = ()
            return self._without_marks(np.asarray(validate_data(self, X, reset=fit, **checks)))
        validate_data(self, X, reset=fit, skip_check_array=True)
        if fit:
            self.categorical_ = categorical_positions(self.categorical, columns.names)
        rows, notes = numeric_rows(columns, self.categorical_)
        for note in notes if fit else ():
            warn("ZeroShotDetector", note)
        return self._without_marks(np.asarray(check_array(rows, input_name="X", estimator=self, **checks)))

    def _without_marks(self, rows: Float) -> Float:
        """Return rows without the numbers that mean "missing", and within the limits of the model."""
        if self.missing_values:
            names: list[Any] = list(getattr(self, "feature_names_in_", range(rows.shape[1])))
            rows = without_marks(rows, table_of_marks(names, parse_marks(self.missing_values), self.categorical_))
        return np.clip(rows, -VALUE_LIMIT, VALUE_LIMIT)

    def _shared_model(self) -> Model:
        return shared_model(self.model, self.device, self.backend)

    def _draw_view(self, X: Float, usable: Int, rng: np.random.RandomState, first: bool) -> TrainingView:
        """Draw a view of some of the rows `usable` of X (n, d)."""
        n, d = len(usable), X.shape[1]
        limit = self._shared_model().config.max_features(len(self.categorical_))
        if first:
            columns = np.array(random_columns(getattr(self, "feature_names_in_", range(d)), limit))
        else:
            width = min(limit or d, rng.randint(-(-d // 2), d + 1))
            columns = np.arange(d) if width == d else np.sort(rng.choice(d, width, replace=False))
        size = min(n, self.context_size) if first else min(max(2, round(0.8 * n)), self.context_size)
        kept = rng.permutation(usable)[:size]  # in random order, so that the halves that score each other are alike
        codes = tuple(np.flatnonzero(np.isin(columns, self.categorical_)).tolist())
        return TrainingView(columns, kept, X[np.ix_(kept, columns)], codes, d)

    def _encode(self) -> None:
        self._encoded = [EnsembleMember(self._shared_model(), view) for view in self.members_]

    def score_samples(self, X: Rows) -> Float:
        """Return minus the mean logit of each row of X, (n_rows,): higher = more normal; NaN for a row without a value.

        A row of the context gets its cross-scored value, so that training rows can be judged, too.
        """
        check_is_fitted(self)
        return self._scores(self._rows(X))

    def _scores(self, rows: Float) -> Float:
        usable, scores = has_values(rows), np.full(len(rows), np.nan)
        if not usable.all():
            warn("ZeroShotDetector", "a row without any value gets no score (NaN), and is called an inlier")
        if usable.any():
            scores[usable] = -sum(member.logits(rows[usable]) for member in self._encoded) / len(self._encoded)
        return scores

    def decision_function(self, X: Rows) -> Float:
        """Return `score_samples` minus `offset_`, (n_rows,): negative = outlier."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Rows) -> NDArray[np.int64]:
        """Return -1 for outliers, 1 for inliers, (n_rows,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    @_keeping_types(validate_params(_TOP, prefer_skip_nested_validation=True))
    def explain(self, X: Rows, top: int = 3) -> list[Explanation]:
        """Return for each row of X at most `top` features that make it unusual; it takes some milliseconds per row.

        A row of the context is compared with the half that scores it. Raises the errors of `predict`.
        """
        check_is_fitted(self)
        rows = self._rows(X)
        table = table_columns(X, has_codes=True) or Columns(rows)
        names = list(getattr(self, "feature_names_in_", table.names))
        explained, outlying = [], (self._scores(rows) < self.offset_).tolist()
        for row, record, is_outlier in zip(rows, table.records(), outlying, strict=True):
            if np.isnan(row).all():
                explained.append(Explanation())
                continue
            comparisons = [member.comparison(row) for member in self._encoded]
            reasons = attribute(comparisons, [row[view.columns] for view in self.members_], top)
            values = dict(zip(names, record.values(), strict=True))
            explained.append(Explanation.of(reasons, names, self.categorical_, values, is_outlier=is_outlier))
        return explained

    @_keeping_types(validate_params(_TOP, prefer_skip_nested_validation=True))
    def attended_context(self, X: Rows, top: int = 5) -> Attended:
        """Return the training rows that each row of X attends to most (last layer, mean over heads), in the first view.

        Returns indices into the rows given to `fit` and weights, (n_rows, top) each, the most attended first. Raises
        ConfigError for a model without attention weights, such as "streams".
        """
        check_is_fitted(self)
        from fomo_stream.model.attention import attention_weights, most_attended

        rows, view, context = self._rows(X), self.members_[0], self._encoded[0].context
        model = shared_model(self.model, self.device, "torch")  # the other backend encodes other parts
        queries = context.frequencies.encode(rows[:, view.columns])
        attended = most_attended(attention_weights(model, context.encoded, queries), top)
        return attended._replace(indices=view.kept[attended.indices])

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_encoded"}  # weights and encodings stay behind

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"missing_values": None, "backend": state.get("kernel", "auto"), **state})
        if "members_" in state:
            self._encode()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
