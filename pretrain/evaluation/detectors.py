"""The detectors of an evaluation: zero-shot models, and classical baselines from PyOD.

A `Detector` is fitted on inliers and scores rows, higher = more outlying. A `Method` makes a detector from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch

from fomo_stream.errors import ConfigError
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.scoring import encode_rows, logits_of
from fomo_stream.records.schema import random_columns
from pretrain.evaluation.tables import Float

NEIGHBOURS = 5  # of kNN and DTE-NP, as in the paper
SEVERAL = (5, 10, 20, 40, 50)  # neighbours of their averages
ECOD_SHARE = 100


class Detector(Protocol):
    """Rows are raw, NaN = missing."""

    def fit(self, rows: Float) -> object:
        """Fit on inliers (n, d)."""

    def score(self, rows: Float) -> Float:
        """Scores (q,) of rows (q, d); the score of a row must not depend on the other rows. Of several rankings (v, q),
        the mean of their measures counts."""


Method = Callable[[int], Detector]


class ZeroShot:
    """A model with its scikit-learn estimator, as users have it."""

    def __init__(self, model: str, device: str, seed: int) -> None:
        from fomo_stream.adapters.scikit_learn import ZeroShotDetector

        self.detector = ZeroShotDetector(model=model, device=device, random_state=seed)

    def fit(self, rows: Float) -> object:
        return self.detector.fit(rows)

    def score(self, rows: Float) -> Float:
        scores: Float = -self.detector.score_samples(rows)
        return scores


class Encoded:
    """A model without the estimator: the same logits for a third of the cost, if no query is a context row.

    A model with raw inputs uses a random subset of the features of wider data, the same for context and queries (paper,
    appendix, "Dealing with varying dimensions and dataset size").
    """

    def __init__(self, model: str, device: str, _: int) -> None:
        self.model = shared_model(model, device)

    def fit(self, rows: Float) -> object:
        self.columns = random_columns(range(rows.shape[1]), self.model.config.max_features())
        self.cache = encode_rows(self.model, rows[:, self.columns])
        return self

    def score(self, rows: Float) -> Float:
        return logits_of(self.model, self.cache, rows[:, self.columns])


class Baseline:
    """A PyOD detector on z-scores; missing values are filled with the mean of the context."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def fit(self, rows: Float) -> object:
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        self.scale = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
        scaled = self.scale.fit_transform(rows)
        self.detector = self.make(len(rows)).fit(scaled)
        return self

    def score(self, rows: Float) -> Float:
        return self.raw_score(self.scale.transform(rows))

    def raw_score(self, scaled: Float) -> Float:
        scores: Float = self.detector.decision_function(scaled)
        return scores


class InPortions(Baseline):
    """PyOD's ECOD or COPOD, in portions of a hundredth of the context.

    They rank test rows together with each other, so they read the test set, and many outliers in the tails make each
    of them less extreme. In small portions this effect is negligible.
    """

    def raw_score(self, scaled: Float) -> Float:
        portion = max(1, self.detector.X_train.shape[0] // ECOD_SHARE)
        parts = np.array_split(scaled, range(portion, len(scaled), portion))
        return np.concatenate([super(InPortions, self).raw_score(part) for part in parts])


class DteNp(Baseline):
    """DTE-NP (Livernoche et al. 2024): the diffusion time that best explains the mean distance r to the neighbours.

    The posterior of the noise variance is an inverse gamma with mode r / d; the score is the diffusion step, 0 to 999,
    with the nearest variance. For d <= 2 this posterior does not exist, and r is the score.
    """

    def raw_score(self, scaled: Float) -> Float:
        distance = super().raw_score(scaled)
        if scaled.shape[1] <= 2:
            return distance
        variances = 1 - np.cumprod(1 - np.linspace(1e-4, 1e-2, 1000))
        steps: Float = np.interp(distance / scaled.shape[1], variances, np.arange(1000)).round()
        return steps


class Averaged:
    """Detectors with other hyperparameters, which are measured one by one: the paper's `-avg`."""

    def __init__(self, parts: Sequence[Detector]) -> None:
        self.parts = parts

    def fit(self, rows: Float) -> object:
        for part in self.parts:
            part.fit(rows)
        return self

    def score(self, rows: Float) -> Float:
        """(v, q): scores of each detector."""
        return np.stack([part.score(rows) for part in self.parts])


class Bagged:
    """Feature bagging (Lazarevic and Kumar 2005): the mean score of ten detectors, each on a random subset of at least
    half of the features. PyOD's needs a package that is not maintained any more."""

    def __init__(self, make: Callable[[], Any], seed: int) -> None:
        self.make, self.rng = make, np.random.default_rng(seed)

    def fit(self, rows: Float) -> Bagged:
        width = rows.shape[1]
        sizes = self.rng.integers(max(1, width // 2), max(2, width), 10)
        columns = [self.rng.choice(width, size, replace=False) for size in sizes]
        self.parts = [(each, self.make().fit(rows[:, each])) for each in columns]
        return self

    def decision_function(self, rows: Float) -> Float:
        scores: Float = np.mean([part.decision_function(rows[:, each]) for each, part in self.parts], axis=0)
        return scores


def pyod(name: str, **settings: Any) -> Any:
    """A detector of PyOD by the name of its class."""
    return getattr(import_module(f"pyod.models.{name.lower()}"), name)(**settings)


class FirstThatFits:
    """The first detector that takes the rows: PyOD's CBLOF refuses clusters of like size, where more clusters help."""

    def __init__(self, makes: Sequence[Callable[[], Any]]) -> None:
        self.makes = makes

    def fit(self, rows: Float) -> Any:
        for make in self.makes[:-1]:
            with suppress(ValueError):
                return make().fit(rows)
        return self.makes[-1]().fit(rows)


class WithoutEmptyComponents:
    """PyOD's PCA without components that have no variance, from columns that are constant or follow from others.

    It divides by the variance of each, so they would decide alone, or make every score infinite.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def fit(self, rows: Float) -> Any:
        variances = np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2
        count = int((variances > EMPTY * variances[0]).sum())
        return pyod("PCA", n_components=max(1, count), random_state=self.seed).fit(rows)


EMPTY = 1e-9  # relative variance of a component; what rounding leaves is below 1e-14
CLUSTERS = (8, 16, 32)
# not formatted: a name a line would take a page
USUAL = ("knn", "dte-np", "lof", "iforest", "ecod", "ocsvm")
BASELINES = (
    *USUAL, "copod", "hbos", "loda", "mcd", "pca", "cblof", "feature-bagging", "knn-avg", "dte-np-avg",
)  # fmt: skip


def baselines(names: Sequence[str]) -> dict[str, Method]:
    """Methods by name, with the settings of the paper. Raises ConfigError for unknown names, and without PyOD."""
    if unknown := [name for name in names if name not in BASELINES]:
        raise ConfigError(f"there is no baseline {', '.join(unknown)}; there are {', '.join(BASELINES)}")
    if not names:
        return {}
    if find_spec("numba"):  # else PyOD would choose the processor for which numba compiles our kernels
        import fomo_stream.model.kernels.compiling  # noqa: F401 (for what its import does)
    if find_spec("pyod") is None:
        raise ConfigError(
            "baselines need PyOD; pip install 'fomo-stream[pretrain]', or leave them out: --baselines none"
        )

    def plain(name: str, **settings: Any) -> Detector:
        return Baseline(lambda n: pyod(name, **settings))

    def knn(k: int) -> Detector:
        return Baseline(lambda n: pyod("KNN", n_neighbors=min(k, n - 1)))

    def dte_np(k: int) -> Detector:
        return DteNp(lambda n: pyod("KNN", n_neighbors=min(k, n - 1), method="mean"))

    def lof(n: int) -> Any:
        return pyod("LOF", n_neighbors=min(20, n - 1))

    def cblof(seed: int) -> Any:
        return FirstThatFits([partial(pyod, "CBLOF", n_clusters=k, random_state=seed) for k in CLUSTERS])

    methods: dict[str, Method] = {
        "knn": lambda seed: knn(NEIGHBOURS),
        "dte-np": lambda seed: dte_np(NEIGHBOURS),
        "lof": lambda seed: Baseline(lof),
        "iforest": lambda seed: plain("IForest", n_estimators=100, random_state=seed),
        "ecod": lambda seed: InPortions(lambda n: pyod("ECOD")),
        "ocsvm": lambda seed: plain("OCSVM", nu=0.5, gamma="auto"),
        "copod": lambda seed: InPortions(lambda n: pyod("COPOD")),
        "hbos": lambda seed: plain("HBOS"),
        "loda": lambda seed: plain("LODA", random_state=seed),
        "mcd": lambda seed: plain("MCD", random_state=seed),
        "pca": lambda seed: Baseline(lambda n: WithoutEmptyComponents(seed)),
        "cblof": lambda seed: Baseline(lambda n: cblof(seed)),
        "feature-bagging": lambda seed: Baseline(lambda n: Bagged(partial(lof, n), seed)),
        "knn-avg": lambda seed: Averaged([knn(k) for k in SEVERAL]),
        "dte-np-avg": lambda seed: Averaged([dte_np(k) for k in SEVERAL]),
    }
    return {name: methods[name] for name in names}


def models(names: Sequence[str], device: str, bare: bool = False) -> dict[str, Method]:
    """Zero-shot models by name and digest, `fusion@a85585ac`; bare: without the estimator.

    Raises CheckpointError for an unknown model, and ConfigError for an unknown device, or if the estimator is needed
    and scikit-learn is not installed.
    """
    if not bare and find_spec("sklearn") is None:
        raise ConfigError("evaluating on tables needs scikit-learn: pip install 'fomo-stream[pretrain]'")
    found: dict[str, Method] = {}
    for name in names:
        kind = partial(Encoded, name, device) if bare else partial(ZeroShot, name, device)
        found[shared_model(name, device).name] = kind
    return found


def limit_threads(threads: int) -> Any:
    """A context manager that limits the CPU threads of torch, NumPy and scikit-learn."""
    torch.set_num_threads(threads)
    if find_spec("threadpoolctl") is None:  # a part of scikit-learn; without it only torch uses much time
        return nullcontext()
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=threads)
