"""The baselines of an evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from made_tasks import task
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from fomo_stream.errors import ConfigError
from pretrain.evaluation.detectors import BASELINES, ECOD_SHARE, baselines


def test_baselines_see_distances_by_their_definitions() -> None:
    made = task(rows=200, features=4)
    methods = baselines(BASELINES)
    context = (made.context - made.context.mean(0)) / made.context.std(0)
    queries = (made.queries - made.context.mean(0)) / made.context.std(0)
    distances = NearestNeighbors(n_neighbors=5).fit(context).kneighbors(queries)[0]
    found = {}
    for name, make in methods.items():
        detector = make(0)
        detector.fit(made.context)
        found[name] = detector.score(made.queries)
        assert found[name].shape == made.labels.shape
    assert found["knn"] == pytest.approx(distances[:, -1])
    lof = LocalOutlierFactor(n_neighbors=20, novelty=True).fit(context)
    assert found["lof"] == pytest.approx(-lof.score_samples(queries))
    order = np.argsort(distances.mean(1))
    assert (np.diff(found["dte-np"][order]) >= 0).all()  # a monotone function of the mean distance ...
    assert len(np.unique(found["dte-np"])) > 50  # ... that keeps them apart


@pytest.mark.parametrize("name", BASELINES)
def test_scores_of_a_baseline_hardly_depend_on_the_other_rows(name: str) -> None:
    made = task(rows=20 * ECOD_SHARE, features=3)
    detector = baselines([name])[name](0)
    detector.fit(made.context)
    together = detector.score(made.queries)
    alone = np.concatenate([detector.score(made.queries[i : i + 1]) for i in range(50)])
    assert np.abs(together[:50] - alone).mean() <= 0.02 * together.std()


def test_baselines_fill_missing_values_with_the_mean_of_the_context() -> None:
    made = task(rows=50)
    made.context[::3, 1] = np.nan
    filled = made.queries.copy()
    filled[:, 1], made.queries[:, 1] = np.nanmean(made.context[:, 1]), np.nan
    for name, make in baselines(BASELINES).items():
        detector = make(0)
        detector.fit(made.context)
        assert detector.score(made.queries) == pytest.approx(detector.score(filled)), name


def test_unknown_baselines_are_refused() -> None:
    with pytest.raises(ConfigError, match="no baseline svm; there are knn"):
        baselines(["svm"])
