"""Runs of detectors: kept in a CSV file, resumed, and never repeated; and the baselines that are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from fomo_stream.errors import ConfigError
from pretrain.evaluation.detectors import BASELINES, ECOD_SHARE, Detector, Method, baselines
from pretrain.evaluation.ranking_metrics import METRICS
from pretrain.evaluation.runs import Pending, Run, read_runs, run_all
from pretrain.evaluation.tables import Float, Task


def quiet(_: str) -> None:
    """Ignores lines of progress."""


class Oracle:
    """Scores rows by a function of themselves."""

    def __init__(self, score: Callable[[Float], Float]) -> None:
        self.score = score

    def fit(self, rows: Float) -> object:
        return self


def method(score: Callable[[Float], Float]) -> Method:
    """The same detector for every seed."""
    return lambda seed: Oracle(score)


def task(name: str = "made", seed: int = 0, rows: int = 60, features: int = 3) -> Task:
    """Inliers around 0 and outliers further out, 1 in 5; the first feature says which is which."""
    rng = np.random.default_rng([seed, len(name)])
    labels = (np.arange(rows) % 5 == 0).astype(np.int64)
    queries = rng.normal(size=(rows, features)) * np.where(labels == 1, 3.0, 1.0)[:, None]
    queries[:, 0] = labels
    return Task(name, seed, rng.normal(size=(rows, features)), queries, labels, 2.0, 0.5)


def without_times(runs: list[Run]) -> list[dict[str, Any]]:
    return [asdict(replace(run, fit_seconds=0.0, score_seconds=0.0)) for run in runs]


def some_methods(calls: list[tuple[str, int]] | None = None, fail_at: int | None = None) -> dict[str, Method]:
    """Two detectors that record their calls; fail_at: the call that is interrupted."""
    log: list[tuple[str, int]] = [] if calls is None else calls

    def make(name: str, column: int, seed: int) -> Detector:
        log.append((name, seed))
        if len(log) - 1 == fail_at:
            raise KeyboardInterrupt
        return Oracle(lambda x: np.abs(x[:, column]))

    return {name: partial(make, name, column) for name, column in (("one", 1), ("two", 2))}


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that PyOD would compile for seconds, as plain Python."""
    for module, name in (
        ("utils.stat_models", "_pairwise_distances_no_broadcast_helper"),
        ("models.hbos", "_calculate_outlier_scores"),
    ):
        compiled = getattr(import_module(f"pyod.{module}"), name)
        monkeypatch.setattr(f"pyod.{module}.{name}", compiled.py_func)


def pending() -> list[Pending]:
    return [Pending(name, seed, partial(task, name, seed)) for name in ("a", "table") for seed in range(3)]


@pytest.mark.parametrize("interrupted", [0, 1, 4, 11])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, interrupted: int) -> None:
    whole = run_all(pending(), some_methods(), tmp_path / "whole.csv", 60, 60, quiet)
    path = tmp_path / "parts.csv"
    first: list[tuple[str, int]] = []
    with pytest.raises(KeyboardInterrupt):
        run_all(pending(), some_methods(first, interrupted), path, 60, 60, quiet)
    with path.open("a") as file:
        file.write("table,2,one,60")  # an incomplete line, as after a crash
    second: list[tuple[str, int]] = []
    parts = run_all(pending(), some_methods(second), path, 60, 60, quiet)
    assert len(first) + len(second) == 12 + 1
    assert without_times(parts) == without_times(whole)
    assert without_times(read_runs(path)) == without_times(read_runs(tmp_path / "whole.csv"))
    assert parts == read_runs(path)


def test_a_method_that_fails_is_recorded_and_tried_again(tmp_path: Path) -> None:
    def cannot(x: Float) -> Float:
        raise IndexError("too\n  wide")

    path = tmp_path / "r.csv"
    failed = run_all([Pending("made", 0, task)], {"m": method(cannot)}, path, 60, 60, quiet)[0]
    assert failed.error == "IndexError: too wide"
    assert np.isnan(failed.auroc)
    fixed = run_all([Pending("made", 0, task)], {"m": method(lambda x: x[:, 0])}, path, 60, 60, quiet)[0]
    assert (fixed.auroc, fixed.aupr, fixed.f1) == (100.0, 100.0, 100.0)
    assert read_runs(path) == [fixed]


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("dataset,auroc\na,1\n")
    with pytest.raises(ConfigError, match="move it away"):
        run_all([], {}, path, 60, 60, quiet)
    assert path.read_text() == "dataset,auroc\na,1\n"


def test_baselines_see_distances_by_their_definitions() -> None:
    made = task(rows=200, features=4)
    methods = baselines(["knn", "lof", "dte-np"])
    context = (made.context - made.context.mean(0)) / made.context.std(0)
    queries = (made.queries - made.context.mean(0)) / made.context.std(0)
    distances = NearestNeighbors(n_neighbors=5).fit(context).kneighbors(queries)[0]
    found = {}
    for name, make in methods.items():
        detector = make(0)
        detector.fit(made.context)
        found[name] = detector.score(made.queries)
        assert found[name].shape[-1:] == made.labels.shape
    assert found["knn"] == pytest.approx(distances[:, -1])
    lof = LocalOutlierFactor(n_neighbors=20, novelty=True).fit(context)
    assert found["lof"] == pytest.approx(-lof.score_samples(queries))
    order = np.argsort(distances.mean(1))
    assert (np.diff(found["dte-np"][order]) >= 0).all()  # a monotone function of the mean distance ...
    assert len(np.unique(found["dte-np"])) > 50  # ... that keeps them apart
    of_two = methods["dte-np"](0)
    of_two.fit(made.context[:, :2])
    nearest = NearestNeighbors(n_neighbors=5).fit(context[:, :2]).kneighbors(queries[:, :2])[0]
    assert of_two.score(made.queries[:, :2]) == pytest.approx(nearest.mean(1))


# COPOD takes the sign of the skewness of context and queries together, which is chance where rows are symmetric.
@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", [name for name in BASELINES if name != "copod"])
def test_scores_of_a_baseline_hardly_depend_on_the_other_rows(name: str) -> None:
    made = task(rows=20 * ECOD_SHARE if name == "ecod" else 200, features=3)
    detector = baselines([name])[name](0)
    detector.fit(made.context)
    together = detector.score(made.queries)
    alone = np.concatenate([detector.score(made.queries[i : i + 1]) for i in range(10)], axis=-1)
    assert np.abs(together[..., :10] - alone).mean() <= 0.02 * together.std()


@pytest.mark.usefixtures("_interpreted")
def test_baselines_fill_missing_values_with_the_mean_of_the_context() -> None:
    made = task(rows=50)
    made.context[::3, 1] = np.nan
    filled = made.queries.copy()
    filled[:, 1], made.queries[:, 1] = np.nanmean(made.context[:, 1]), np.nan
    for name, make in baselines(BASELINES).items():
        detector = make(0)
        detector.fit(made.context)
        assert detector.score(made.queries) == pytest.approx(detector.score(filled)), name


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_tell_outliers_apart_where_columns_are_constant_or_copies(name: str, tmp_path: Path) -> None:
    plain = task(rows=300, features=4)

    def wider(rows: Float) -> Float:
        return np.column_stack([rows, np.full(len(rows), 3.0), rows[:, 0] - 2 * rows[:, 1], rows[:, 2]])

    made = replace(plain, context=wider(plain.context), queries=wider(plain.queries))
    run = run_all([Pending("made", 0, lambda: made)], baselines([name]), tmp_path / "results.csv", 60, 60, quiet)[0]
    assert not run.error
    assert run.nonfinite == 0
    assert run.auroc > 70


def test_an_average_over_hyperparameters_is_the_mean_of_the_measures_of_each(tmp_path: Path) -> None:
    several = [
        run_all([Pending("made", 0, task)], {f"column {j}": make}, tmp_path / "each.csv", 60, 60, quiet)[0]
        for j, make in enumerate([method(lambda x: x[:, 0]), method(lambda x: x[:, 1]), method(lambda x: x[:, 2])])
    ]
    together = method(lambda x: x.T)
    run = run_all([Pending("made", 0, task)], {"m": together}, tmp_path / "all.csv", 60, 60, quiet)[0]
    for metric in METRICS:
        assert getattr(run, metric) == pytest.approx(np.mean([getattr(one, metric) for one in several]), abs=1e-3)
    made = task(rows=200)
    average, single = (baselines([name])[name](0) for name in ("knn-avg", "knn"))
    average.fit(made.context)
    single.fit(made.context)
    scores = average.score(made.queries)
    assert scores[0] == pytest.approx(single.score(made.queries))
    assert (np.diff(scores, axis=0) >= 0).all()  # the distance to a farther neighbour


@pytest.mark.parametrize(("value", "auroc"), [(np.nan, 0.0), (np.inf, 100.0), (-np.inf, 0.0)])
def test_scores_that_are_not_finite_rank_first_or_last_and_are_counted(
    tmp_path: Path, value: float, auroc: float
) -> None:
    odd = method(lambda x: np.where(x[:, 0] == 1, value, x[:, 1]))
    run = run_all([Pending("made", 0, task)], {"m": odd}, tmp_path / "r.csv", 60, 60, quiet)[0]
    assert run.auroc == pytest.approx(auroc, abs=2.0)
    assert run.nonfinite == run.n_outliers == 12


def test_runs_are_repeated_with_other_limits_and_on_a_changed_table_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    for context, data, wanted in ((60, "a", 2), (60, "a", 0), (50, "a", 2), (60, "b", 2), (60, "a", 0)):
        calls: list[tuple[str, int]] = []
        runs = run_all([Pending("t", 0, partial(task, "t"), data)], some_methods(calls), path, context, 60, quiet)
        assert len(calls) == wanted
        assert [(run.context, run.data) for run in runs] == [(context, data)] * 2
    assert len(read_runs(path)) == 6
