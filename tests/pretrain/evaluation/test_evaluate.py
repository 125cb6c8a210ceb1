"""Evaluation: metrics, comparisons, resuming, and the command from end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, wilcoxon
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from sklearn.neighbors import NearestNeighbors

from fomo_stream.errors import ConfigError
from fomo_stream.model.checkpoint import DEFAULT_MODEL
from pretrain.__main__ import main
from pretrain.evaluation.comparison import (
    FEWEST_FOR_A_TEST,
    average_ranks,
    one_sided_p,
    p_values,
    performance_profile,
    scoreboard,
)
from pretrain.evaluation.detectors import BASELINES, ECOD_SHARE, Detector, Method, baselines
from pretrain.evaluation.evaluate import Pending, Run, ranking_metrics, read_runs, run_all
from pretrain.evaluation.tables import Float, Task

SMALL = settings(max_examples=40, deadline=None)


def quiet(_: str) -> None:
    """Swallows progress."""


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


# Metrics


@SMALL
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60), levels=st.integers(1, 6), weight=st.floats(0.1, 30.0))
def test_metrics_agree_with_scikit_learn_on_ties_and_weights(seed: int, rows: int, levels: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.integers(0, levels, rows).astype(float)
    found = ranking_metrics(labels, scores, 1.5, weight)
    weights = np.where(labels == 1, weight, 1.5)
    assert found.auroc == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    assert found.aupr == pytest.approx(average_precision_score(labels, scores, sample_weight=weights))


@SMALL
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60))
def test_f1_without_ties_or_weights_is_that_of_the_true_number_of_flags(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.permutation(rows).astype(float)
    flags = scores >= np.sort(scores)[-labels.sum()]
    assert ranking_metrics(labels, scores).f1 == pytest.approx(f1_score(labels, flags))


@SMALL
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 12), copies=st.integers(2, 5), levels=st.integers(1, 6))
def test_a_weight_counts_like_so_many_copies_of_a_row(seed: int, rows: int, copies: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) < rng.integers(1, rows)).astype(np.int64)
    scores = rng.integers(0, levels, rows).astype(float)
    times = np.where(labels == 1, 1, copies)
    weighted = ranking_metrics(labels, scores, inlier_weight=copies)
    assert weighted == pytest.approx(ranking_metrics(labels.repeat(times), scores.repeat(times)))


def test_constant_scores_are_worth_chance_and_perfect_ones_everything(tmp_path: Path) -> None:
    labels = (np.arange(100) < 7).astype(np.int64)
    assert ranking_metrics(labels, np.zeros(100)) == pytest.approx((0.5, 0.07, 0.07))
    methods = {"perfect": method(lambda x: x[:, 0]), "reversed": method(lambda x: -x[:, 0])}
    perfect, backwards = run_all([Pending("made", 0, task)], methods, tmp_path / "r.csv", 60, 60, quiet)
    assert (perfect.auroc, perfect.aupr, perfect.f1) == (100.0, 100.0, 100.0)
    assert (backwards.auroc, backwards.f1) == (0.0, 0.0)


# Runs


def test_scores_that_are_no_numbers_rank_last_and_are_counted(tmp_path: Path) -> None:
    def broken(x: Float) -> Float:
        return np.where(x[:, 0] == 1, np.nan, x[:, 1])

    run = run_all([Pending("made", 0, task)], {"broken": method(broken)}, tmp_path / "r.csv", 60, 60, quiet)[0]
    assert run.nonfinite == run.n_outliers == 12
    assert run.auroc < 2.0


def some_methods(calls: list[tuple[str, int]] | None = None, fail_at: int | None = None) -> dict[str, Method]:
    """Two detectors that note what they were asked; `fail_at`: the call that is interrupted."""
    log: list[tuple[str, int]] = [] if calls is None else calls

    def make(name: str, column: int, seed: int) -> Detector:
        log.append((name, seed))
        if len(log) - 1 == fail_at:
            raise KeyboardInterrupt
        return Oracle(lambda x: np.abs(x[:, column]))

    return {name: partial(make, name, column) for name, column in (("one", 1), ("two", 2))}


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
        file.write("table,2,one,60")  # as a machine that went down while writing would leave it
    second: list[tuple[str, int]] = []
    parts = run_all(pending(), some_methods(second), path, 60, 60, quiet)
    assert len(first) + len(second) == 12 + 1
    assert without_times(parts) == without_times(whole)
    assert without_times(read_runs(path)) == without_times(read_runs(tmp_path / "whole.csv"))
    assert parts == read_runs(path)


def test_finished_runs_are_not_repeated_but_those_of_other_limits_are(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    run_all(pending(), some_methods(), path, 60, 60, quiet)
    for context, wanted in ((60, 0), (50, 12)):
        calls: list[tuple[str, int]] = []
        run_all(pending(), some_methods(calls), path, context, 60, quiet)
        assert len(calls) == wanted
    assert len(read_runs(path)) == 24


def test_runs_on_a_table_that_changed_are_not_taken_for_those_on_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    for data, wanted in (("before", 2), ("after", 2), ("before", 0)):
        calls: list[tuple[str, int]] = []
        runs = run_all([Pending("a", 0, partial(task, "a"), data)], some_methods(calls), path, 60, 60, quiet)
        assert len(calls) == wanted
        assert [run.data for run in runs] == [data, data]


def test_results_from_before_tables_had_digests_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    runs = run_all(pending(), some_methods(), path, 60, 60, quiet)
    lines = [line.split(",") for line in path.read_text().splitlines()]
    column = lines[0].index("data")
    path.write_text("".join(",".join(line[:column] + line[column + 1 :]) + "\n" for line in lines))
    assert read_runs(path) == runs


def test_a_method_that_fails_is_recorded_and_tried_again(tmp_path: Path) -> None:
    def cannot(x: Float) -> Float:
        raise IndexError("too\n  wide")

    path = tmp_path / "r.csv"
    failed = run_all([Pending("made", 0, task)], {"m": method(cannot)}, path, 60, 60, quiet)[0]
    assert failed.error == "IndexError: too wide"
    assert np.isnan(failed.auroc)
    fixed = run_all([Pending("made", 0, task)], {"m": method(lambda x: x[:, 0])}, path, 60, 60, quiet)[0]
    assert fixed.auroc == 100.0
    assert read_runs(path) == [fixed]


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("dataset,auroc\na,1\n")
    with pytest.raises(ConfigError, match="move it away"):
        run_all([], {}, path, 60, 60, quiet)
    assert path.read_text() == "dataset,auroc\na,1\n"


# Comparisons


@SMALL
@given(seed=st.integers(0, 2**32), datasets=st.integers(1, 12), methods=st.integers(1, 6), levels=st.integers(2, 20))
def test_ranks_and_profiles_say_the_same_of_the_best(seed: int, datasets: int, methods: int, levels: int) -> None:
    values = np.random.default_rng(seed).integers(0, levels, (datasets, methods)).astype(float)
    ranks = average_ranks(values)
    for i in range(datasets):
        assert ranks[i].tolist() == (methods + 1 - rankdata(values[i])).tolist()
    profile = performance_profile(values)
    best = values == values.max(1, keepdims=True)
    assert profile.share[0] == pytest.approx(best.mean(0))  # at a ratio of 1
    assert (np.diff(profile.share, axis=0) >= 0).all()
    assert ((profile.area >= profile.share[0] - 1e-12) & (profile.area <= 1 + 1e-12)).all()
    assert (profile.area[best.all(0)] == pytest.approx(1.0)) or not best.all(0).any()


def test_profile_area_is_one_less_the_mean_excess_of_the_ratio() -> None:
    values = np.array([[90.0, 60.0, 45.0], [80.0, 100.0, 50.0], [30.0, 30.0, 30.0]])
    ratio = values.max(1, keepdims=True) / values
    wanted = 1 - (ratio - 1).mean(0) / (ratio.max() - 1)
    assert performance_profile(values).area == pytest.approx(wanted)


@SMALL
@given(seed=st.integers(0, 2**32), datasets=st.integers(FEWEST_FOR_A_TEST, 20))
def test_wilcoxon_is_one_sided_in_favour_of_the_baseline(seed: int, datasets: int) -> None:
    rng = np.random.default_rng(seed)
    ours = rng.permutation(datasets).astype(float)
    baseline = ours + (rng.permutation(datasets) + 1) * rng.choice([-1.0, 1.0], datasets)
    assert one_sided_p(baseline, ours) == pytest.approx(wilcoxon(baseline - ours, alternative="greater").pvalue)
    # by its definition, where nothing ties: the chance that random signs give as large a sum of ranks
    signs = np.array(np.meshgrid(*[[0, 1]] * min(datasets, 10))).reshape(min(datasets, 10), -1)
    if datasets <= 10:
        gap = baseline - ours
        size = rankdata(np.abs(gap))
        assert one_sided_p(baseline, ours) == pytest.approx((size @ signs >= size[gap > 0].sum()).mean())


def test_a_baseline_that_always_wins_gets_a_small_p_and_equals_get_none() -> None:
    ours = np.arange(10.0)
    assert one_sided_p(ours + 1, ours) < 0.05
    assert one_sided_p(ours - 1, ours) > 0.95
    assert np.isnan(one_sided_p(ours, ours))


def test_a_few_datasets_decide_nothing() -> None:
    """With one that differs p would be 1, "ours is better"; four cannot reach 0.05 for a baseline that always wins."""
    ours = np.arange(10.0)
    for gap in (1.0, -1.0):
        differ = np.where(np.arange(10) < FEWEST_FOR_A_TEST - 1, gap, 0.0)
        assert np.isnan(one_sided_p(ours + differ, ours))
    enough = np.where(np.arange(10) < FEWEST_FOR_A_TEST, np.arange(1.0, 11.0), 0.0)
    assert one_sided_p(ours + enough, ours) < 0.05


def made_run(dataset: str, seed: int, name: str, auroc: float, **more: Any) -> Run:
    return Run(dataset, seed, name, 60, 60, auroc=auroc, n_features=4, **more)


def test_scoreboard_averages_seeds_then_parts_and_leaves_out_failures() -> None:
    runs = [
        made_run("MVTec_a", 0, "x", 80.0),
        made_run("MVTec_a", 1, "x", 90.0),
        made_run("MVTec_b", 0, "x", 45.0),
        made_run("MVTec_a", 0, "y", 70.0),
        made_run("MVTec_b", 0, "y", 70.0),
        made_run("plain", 0, "x", 50.001),
        made_run("plain", 0, "y", 50.0),
        made_run("gone", 0, "x", 99.0),
        made_run("gone", 0, "y", float("nan"), error="ValueError: no"),
    ]
    board, failed = scoreboard(runs, "auroc", groups=["MVTec"])
    assert (board.datasets, failed) == (["MVTec", "plain"], ["gone"])
    assert board.mean.tolist() == [[65.0, 70.0], [50.0, 50.0]]
    assert board.ranks().tolist() == [[2.0, 1.0], [1.5, 1.5]]  # a thousandth of a point is a tie
    assert board.narrow(3).datasets == []
    assert list(p_values(board, "x")) == ["y"]


# Baselines


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


# The command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three small tables, one of them CSV with a label in the middle."""
    rng = np.random.default_rng(0)
    tables = tmp_path / "tables"
    tables.mkdir()
    for name, features in (("narrow", 3), ("wide", 25)):
        labels = (np.arange(80) % 6 == 0).astype(np.int64)
        rows = rng.normal(size=(80, features)) * (1 + 2 * labels[:, None])
        np.savez(tables / f"{name}.npz", X=rows, y=labels, n_in_full=660, n_out_full=14)
    lines = [f"{rng.normal() + 6 * (i % 9 == 0):.3f},{int(i % 9 == 0)},{rng.integers(0, 3)}" for i in range(60)]
    (tables / "third.csv").write_text("\n".join(["flow,broken,state", *lines]) + "\n")
    return tables


def evaluate(*flags: str | Path) -> int:
    return main(["evaluate", *map(str, flags), "--device", "cpu"])


def test_command_writes_results_report_and_pictures_and_resumes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    flags = (folder, "--model", "fusion,fusion-router", "--seeds", "2", "--label", "broken", "--out", out)
    assert evaluate(*flags) == 0
    runs = read_runs(out / "results.csv")
    assert len(runs) == 3 * 2 * (2 + len(BASELINES))
    assert not [run.error for run in runs if run.error]
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == len(runs)
    assert "3 datasets" in printed.out
    report = (out / "report.md").read_text()
    for text in ("## Summary", "## AUROC of each dataset", "| narrow | 3 |", "d ≤ 20 (2)", "against the others"):
        assert text in report
    pictures = sorted(out.glob("*.png"))
    assert len(pictures) == 9
    assert all(path.read_bytes().startswith(b"\x89PNG") and f"({path.name})" in report for path in pictures)
    assert evaluate(*flags) == 0  # everything is there already
    assert capsys.readouterr().err == ""
    assert read_runs(out / "results.csv") == runs
    assert (out / "report.md").read_text() == report


def test_results_of_the_command_are_the_same_however_it_was_cut(folder: Path, tmp_path: Path) -> None:
    flags = (folder, "--model", "fusion", "--baselines", "knn,lof", "--seeds", "2", "--label", "broken", "--out")
    assert evaluate(*flags, tmp_path / "whole") == 0
    whole = read_runs(tmp_path / "whole" / "results.csv")
    (tmp_path / "parts").mkdir()
    text = (tmp_path / "whole" / "results.csv").read_bytes()
    (tmp_path / "parts" / "results.csv").write_bytes(text[: len(text) // 2])
    assert evaluate(*flags, tmp_path / "parts") == 0
    assert without_times(read_runs(tmp_path / "parts" / "results.csv")) == without_times(whole)


@pytest.mark.usefixtures("no_pictures")
def test_command_tells_detectors_apart_where_the_task_is_easy(folder: Path, tmp_path: Path) -> None:
    flags = ("--baselines", "none", "--seeds", "1", "--datasets", "wide", "--out", tmp_path / "out")
    assert evaluate(folder, *flags) == 0
    runs = read_runs(tmp_path / "out" / "results.csv")
    assert [run.dataset for run in runs] == ["wide"]
    assert runs[0].method.startswith(f"{DEFAULT_MODEL}@")
    assert runs[0].auroc > 95.0


@pytest.mark.usefixtures("no_pictures")
def test_models_may_stand_before_the_folder_and_be_given_one_by_one(folder: Path, tmp_path: Path) -> None:
    usual = ("--seeds", "1", "--baselines", "none", "--datasets", "narrow", "--out")
    assert evaluate("--model", "fusion,fusion-router", folder, *usual, tmp_path / "one") == 0
    assert evaluate("--model", "fusion", "--model", "fusion-router", folder, *usual, tmp_path / "two") == 0
    one, two = (read_runs(tmp_path / name / "results.csv") for name in ("one", "two"))
    assert without_times(one) == without_times(two)
    assert [run.method.partition("@")[0] for run in one] == ["fusion", "fusion-router"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give a folder of tables, or --stress"),
        (["tables", "--stress"], "give a folder of tables, or --stress"),
        (["nowhere"], "nowhere is no folder"),
        (["tables", "--datasets", "narrow,odd"], "has no table odd; it has narrow, third, wide"),
        (["tables", "--context", "9000"], "2 to 5000"),
        (["tables", "--seeds", "0"], "at least 1"),
        (["tables", "--max-test", "1"], "--max-test 1"),
        (["tables", "--label", "nothing"], "no column 'nothing'"),
        (["tables", "--label", "broken", "--baselines", "svm"], "no baseline svm"),
        (["tables", "--label", "broken", "--model", "enormous"], "no model named 'enormous'"),
        (["--stress", "--datasets", "odd"], "no row odd; there are in-distribution"),
    ],
)
def test_mistakes_get_a_message_before_anything_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    flags: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert evaluate(*flags) in (2, 4)
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "evaluation").exists()
