"""`ZeroShotDetector`: the detector as a scikit-learn estimator, for a fixed context."""

from __future__ import annotations

import time
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.attention import Attended, attention_weights, most_attended
from fomo_stream.model.checkpoint import KERNELS, shared_model
from fomo_stream.model.scoring import EncodedContext, cross_scores, encode_rows, logits_of, row_keys
from fomo_stream.model.zero_shot import ContextCache, ZeroShotModel

Float = NDArray[np.float64]


def _means(keys: list[bytes], values: Float) -> dict[bytes, float]:
    """The mean value of each key."""
    found: dict[bytes, list[float]] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        found.setdefault(key, []).append(value)
    return {key: sum(several) / len(several) for key, several in found.items()}


class View(NamedTuple):
    """A member's view of the training data: columns (d',) and the context's rows (n', d')."""

    columns: NDArray[np.int64]
    kept: NDArray[np.int64]  # which of the training rows
    rows: Float


class EncodedView(NamedTuple):
    """A view, ready to score. A row of its context is scored by the half that does not contain it."""

    cache: EncodedContext
    own: dict[bytes, float]  # cross-scored logits of the context's rows, the mean over equal rows


class ZeroShotDetector(OutlierMixin, BaseEstimator):
    """Zero-shot outlier detection against a fixed context of inliers: nothing is trained, `fit` encodes.

    Parameters
    ----------
    model : name of a shipped model ("default", "fusion", ...) or path of a .safetensors checkpoint.
    context_size : maximum number of context rows of a view, 2 to 5,000; of more training rows a random subset is used.
    device : "auto" (the GPU where there is one), "cpu", "cuda", ...
    kernel : what computes the scores: "numba", "torch" or "auto" (numba on a CPU, torch on a GPU and for models of raw
        features).
    alert_rate : share of training rows that `predict` would call outliers, in (0, 0.5].
    n_members : scores are averaged over this many views. The first has all features (as many as the model takes) and up
        to context_size rows; each further one has a random half to all of the features and a random context.
    random_state : seed of the subsets.
    verbose : 1 prints a line for each view that `fit` has encoded; 5,000 rows with 50 features take about a second.

    Attributes
    ----------
    offset_ : the `alert_rate` quantile of the training rows' cross-scored values: each half of the context scored by
        a detector that holds the other half.
    n_features_in_, feature_names_in_ : as in scikit-learn.

    A pickle holds the context rows and the model's name, not its weights. Missing values (NaN) are allowed: they count
    as the context's median. Rows with infinities are refused.

    >>> import numpy as np
    >>> from fomo_stream import ZeroShotDetector
    >>> inliers = np.random.default_rng(0).normal(size=(300, 4))
    >>> ZeroShotDetector().fit(inliers).predict([[0.0, 0.1, -0.2, 0.0], [8.0, -8.0, 8.0, 8.0]])
    array([ 1, -1])
    """

    _parameter_constraints = {  # noqa: RUF012  (scikit-learn's own convention)
        "model": [str],
        "context_size": [Interval(Integral, 2, MAX_CONTEXT, closed="both")],
        "device": [str],
        "kernel": [StrOptions(set(KERNELS))],
        "alert_rate": [Interval(Real, 0, 0.5, closed="right")],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        *,
        model: str = "default",
        context_size: int = MAX_CONTEXT,
        device: str = "auto",
        kernel: str = "auto",
        alert_rate: float = 0.01,
        n_members: int = 1,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.context_size = context_size
        self.device = device
        self.kernel = kernel
        self.alert_rate = alert_rate
        self.n_members = n_members
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None) -> Self:
        """Take X (n_rows, n_features), inliers, as the context. y is ignored."""
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2)
        rng = check_random_state(self.random_state)
        self.members_ = [self._draw_view(X, rng, first=i == 0) for i in range(self.n_members)]
        self._encode(self.verbose)
        self.offset_ = float(np.quantile(self._scores(X[self.members_[0].kept]), self.alert_rate))
        return self

    def _shared_model(self) -> ZeroShotModel:
        return shared_model(self.model, self.device, self.kernel)

    def _draw_view(self, X: Float, rng: np.random.RandomState, first: bool) -> View:
        n, d = X.shape
        limit = self._shared_model().config.raw_features or d
        width = min(d, limit) if first else min(limit, rng.randint(-(-d // 2), d + 1))
        columns = np.arange(d) if width == d else np.sort(rng.choice(d, width, replace=False))
        size = min(n, self.context_size) if first else min(max(2, round(0.8 * n)), self.context_size)
        kept = rng.permutation(n)[:size]  # in random order: the halves that score each other are alike
        return View(columns, kept, X[np.ix_(kept, columns)])

    def _encode(self, verbose: int = 0) -> None:
        model, self._encoded = self._shared_model(), []
        began = time.perf_counter()
        for _, _, rows in self.members_:
            known = _means(row_keys(rows), cross_scores(model, rows))
            self._encoded.append(EncodedView(encode_rows(model, rows), known))
            if verbose:
                done, size = (
                    f"{len(self._encoded)} of {len(self.members_)}",
                    "{} rows x {} features".format(*rows.shape),
                )
                print(f"[ZeroShotDetector] view {done}, {size}, after {time.perf_counter() - began:.1f} s")

    def score_samples(self, X: Any) -> Float:
        """Minus the mean logit of each row of X, (n_rows,): higher = more normal.

        A row that is in the context gets its cross-scored value, so that the training rows can be judged too.
        """
        check_is_fitted(self)
        return self._scores(validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False))

    def _scores(self, X: Float) -> Float:
        model = self._shared_model()
        total = np.zeros(len(X))
        for view, encoded in zip(self.members_, self._encoded, strict=True):
            rows = X[:, view.columns]
            logits = logits_of(model, encoded.cache, rows)
            total += [encoded.own.get(key, logit) for key, logit in zip(row_keys(rows), logits.tolist(), strict=True)]
        return -total / len(self.members_)

    def decision_function(self, X: Any) -> Float:
        """`score_samples` minus `offset_`, (n_rows,): negative = outlier."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:
        """-1 for outliers, 1 for inliers, (n_rows,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def attended_context(self, X: Any, top: int = 5) -> Attended:
        """Which training rows each row of X attends to most (last layer, mean over heads), in the first view.

        Returns indices into the rows given to `fit` and weights, (n_rows, top) each, the most attended first. Raises
        ConfigError for a model without attention weights, as the default one; `paper-100` has them.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        view, cache = self.members_[0], self._encoded[0].cache
        model = self._shared_model()
        encoded = cache if isinstance(cache, ContextCache) else None  # the kernels' encoding has other parts
        found = most_attended(attention_weights(model, view.rows, X[:, view.columns], encoded), top)
        return Attended(view.kept[found.indices], found.weights)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_encoded"}  # weights and encodings stay behind

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "members_" in state:
            self._encode()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
