"""The command `evaluate`, from tables to the report."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fomo_stream.model.checkpoint import TABLE_MODEL
from pretrain.__main__ import main
from pretrain.evaluation.detectors import BASELINES
from pretrain.evaluation.runs import read_runs


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
    ours = ("--model", "streams", "--model", "fomo", "--baselines", "all")
    flags = (*ours, folder, "--datasets", "narrow,third", "--seeds", "2", "--label", "broken", "--out", out)
    assert evaluate(*flags) == 0
    runs = read_runs(out / "results.csv")
    assert len(runs) == 2 * 2 * (2 + len(BASELINES))
    assert not [run.error for run in runs if run.error]
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 2 * 2  # one for each table and seed
    assert all(f" {name}=" in line for line in printed.err.splitlines() for name in BASELINES)
    assert "2 datasets" in printed.out
    report = (out / "report.md").read_text()
    for text in ("## Summary", "## AUROC of each dataset", "| narrow | 3 |", "against the others"):
        assert text in report
    pictures = sorted(out.glob("*.svg"))
    assert len(pictures) == 3 * 4
    html = (out / "report.html").read_text()
    for path in pictures:
        assert f"({path.name})" in report
        picture = path.read_text()
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert picture[picture.index("<svg") :] in html
    for cell in re.findall(r"(?<=\| )[^|*<-]+(?= \|)", report):
        assert f">{cell}<" in html
    assert evaluate(*flags) == 0  # everything is there already
    assert capsys.readouterr().err == ""
    assert read_runs(out / "results.csv") == runs
    assert (out / "report.md").read_text() == report


@pytest.mark.usefixtures("no_pictures")
def test_command_tells_detectors_apart_where_the_task_is_easy(folder: Path, tmp_path: Path) -> None:
    flags = ("--baselines", "none", "--seeds", "1", "--datasets", "wide", "--out", tmp_path / "out")
    assert evaluate(folder, *flags) == 0
    runs = read_runs(tmp_path / "out" / "results.csv")
    assert [run.dataset for run in runs] == ["wide"]
    assert runs[0].method.startswith(f"{TABLE_MODEL}@")
    assert runs[0].auroc > 95.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give a folder of tables, or --stress"),
        (["tables", "--stress"], "give a folder of tables, or --stress"),
        (["nowhere"], "nowhere is no folder"),
        (["tables", "--datasets", "narrow,odd"], "has no table odd; it has narrow, third, wide"),
        (["tables", "--context", "9000"], "2 to 5000"),
        (["tables", "--context", "30,1"], "2 to 5000"),
        (["tables", "--context", "30,-40"], "2 to 5000"),
        (["tables", "--context", "many"], "2 to 5000"),
        (["tables", "--context", ","], "2 to 5000"),
        (["tables", "--context", "30,030"], "each size once"),
        (["tables", "--seeds", "0"], "at least 1"),
        (["tables", "--max-test", "1"], "--max-test 1"),
        (["tables", "--contaminated", "0.6"], "--contaminated 0.6"),
        (["tables", "--published", "tables"], "published results cannot be read"),
        (["tables", "--label", "nothing"], "no column 'nothing'"),
        (["tables", "--label", "broken", "--baselines", "svm"], "no baseline svm"),
        (["tables", "--label", "broken", "--model", "enormous"], "no model named 'enormous'"),
        (["--stress", "--datasets", "odd"], "no row odd; there are in-distribution"),
    ],
)
def test_mistakes_get_a_message_before_anything_runs(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert evaluate(*flags) in (2, 4)
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "evaluation").exists()


def test_several_sizes_of_the_context_are_compared(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detectors = ("--model", "streams", "--baselines", "knn", "--datasets", "narrow,wide")
    flags = (*detectors, "--seeds", "1", "--out", tmp_path / "out")
    for size in ("10", "20"):
        assert evaluate(folder, *flags, "--context", size) == 0
    alone = read_runs(tmp_path / "out" / "results.csv")
    capsys.readouterr()
    assert evaluate(folder, *flags, "--context", "10, 20") == 0
    assert capsys.readouterr().err == ""  # these are the same runs
    assert read_runs(tmp_path / "out" / "results.csv") == alone
    report = (tmp_path / "out" / "report.md").read_text()
    picture = (tmp_path / "out" / "auroc_p.svg").read_text()
    for method in {run.method for run in alone}:
        areas = {size: [run.auroc for run in alone if (run.method, run.context) == (method, size)] for size in (10, 20)}
        assert len(set(map(tuple, areas.values()))) == 2
        for rows, values in areas.items():
            assert f"| {method}, {rows} rows | {np.mean([round(value, 2) for value in values]):.2f} |" in report
            assert f"{method}, {rows} rows" in picture


def test_stress_datasets_at_several_sizes(tmp_path: Path) -> None:
    flags = ("--stress", "--datasets", "binary", "--datasets-per-row", "2", "--context", "20,60")
    assert evaluate(*flags, "--model", "streams", "--out", tmp_path) == 0
    assert [(run.n_context, run.n_queries) for run in read_runs(tmp_path / "results.csv")] == [(20, 1000)] * 2 + [
        (60, 1000)
    ] * 2
    head = next(line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| datasets"))
    assert all(f", {size} rows |" in head for size in (20, 60))


@pytest.mark.usefixtures("no_pictures")
def test_a_contaminated_context_is_another_run(folder: Path, tmp_path: Path) -> None:
    flags = (
        "--baselines",
        "knn",
        "--seeds",
        "3",
        "--datasets",
        "narrow",
        "--model",
        "streams",
        "--out",
        tmp_path / "out",
    )
    assert evaluate(folder, *flags) == 0
    assert evaluate(folder, *flags, "--contaminated", "0.2") == 0
    runs = read_runs(tmp_path / "out" / "results.csv")
    clean, dirty = runs[:6], runs[6:]
    assert [run.n_context for run in dirty] == [run.n_context for run in clean]
    assert {run.n_outliers for run in dirty} == {
        clean[0].n_outliers // 2
    }  # half at most: 7 of 14, of 8 that were asked for
    assert "20% of them outliers" in (tmp_path / "out" / "report.md").read_text()
