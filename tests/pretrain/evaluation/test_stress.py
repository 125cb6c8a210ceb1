"""The stress table: each row has its ranges, and the command reports on all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pretrain.__main__ import main
from pretrain.evaluation.report import mean_and_error
from pretrain.evaluation.runs import read_runs
from pretrain.evaluation.stress import OUTLIER_SHARE, QUERIES, ROWS, stress_task

BINARY = [name for name, row in ROWS.items() if row.binary]


def test_five_percent_of_the_queries_are_outliers_in_random_places() -> None:
    task = stress_task(ROWS["all-combined"], 0, context=80)
    assert (QUERIES, OUTLIER_SHARE) == (1000, 0.05)
    assert task.labels.shape == (1000,)
    assert task.labels.sum() == 50
    assert 5 < task.labels[:500].sum() < 45
    assert task.context.shape == (80, task.queries.shape[1])
    assert np.isfinite(task.context).all()
    assert task.inlier_weight == task.outlier_weight == 1.0


@pytest.mark.parametrize("name", BINARY)
def test_binary_rows_have_one_feature_of_zeros_and_ones(name: str) -> None:
    seen = set()
    for number in range(8):
        task = stress_task(ROWS[name], number, context=30, queries=200)
        strange = task.queries[task.labels == 1]
        binary = np.flatnonzero(np.isin(strange, (0, 1)).all(0))
        assert len(binary) == 1
        everyone = np.r_[task.context, task.queries[task.labels == 0]][:, binary[0]]
        assert set(strange[:, binary[0]]) == {1 - everyone[0]}  # one constant here, the other there
        assert (everyone == everyone[0]).all()
        seen.add(everyone[0])
    assert seen == {0.0, 1.0}


def test_command_fills_the_table_at_several_sizes_and_goes_on_with_more_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["evaluate", "--stress", "--datasets", "in-distribution,binary", "--context", "60,20", "--device", "cpu"]
    flags += ["--model", "streams", "--baselines", "knn", "--datasets-per-row"]
    assert main([*flags, "1"]) == 0
    first = read_runs(tmp_path / "evaluation" / "stress" / "results.csv")
    assert main([*flags, "2"]) == 0
    runs = read_runs(tmp_path / "evaluation" / "stress" / "results.csv")
    assert (len(first), len(runs)) == (8, 16)
    assert runs[:8] == first
    assert sorted({(run.n_context, run.n_queries) for run in runs}) == [(20, 1000), (60, 1000)]
    report = (tmp_path / "evaluation" / "stress" / "report.md").read_text()
    for size in (20, 60):
        of_knn = [run for run in runs if (run.dataset, run.method) == ("in-distribution", "knn")]
        values = [run.auroc for run in of_knn if run.context == size]
        assert f"knn, {size} rows |" in report
        assert mean_and_error(values) in report
    assert "| in-distribution | 98.55 |" in report
    assert "all-combined |" not in report
    assert "AUROC" in capsys.readouterr().out


def test_standard_error_is_the_spread_over_the_root_of_the_number() -> None:
    assert mean_and_error([90.0, 92.0, 94.0, 96.0]) == "93.00 ± 1.29 (sd 2.58, n 4)"
    assert mean_and_error([93.0]) == "93.00 (n 1)"
    assert mean_and_error([]) == "-"
