"""The command `evaluate`, from tables to the report."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fomo_stream.model.checkpoint import TABLE_MODEL
from pretrain.__main__ import main
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
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contexts of two sizes are compared, and the runs of each size are those of a command with this size alone."""
    out = tmp_path / "report"
    flags: list[str | Path] = [folder, "--datasets", "narrow,third", "--label", "broken", "--seeds", "2", "--out", out]
    flags += ["--model", "streams", "--baselines", "knn,knn-avg"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)  # only the last command draws
        for size in ("10", "20"):
            assert evaluate(*flags, "--context", size) == 0
    runs = read_runs(out / "results.csv")
    assert len(runs) == 2 * 2 * 2 * 3
    assert not [run.error for run in runs if run.error]
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 2 * 2 * 2  # one for each size, table and seed
    assert all(f" {name}=" in line for line in printed.err.splitlines() for name in ("knn", "knn-avg"))
    assert "2 datasets" in printed.out
    assert evaluate(*flags, "--context", "10, 20") == 0  # everything is there already
    assert capsys.readouterr().err == ""
    assert read_runs(out / "results.csv") == runs
    report, html = (out / "report.md").read_text(), (out / "report.html").read_text()
    for text in ("## Summary", "## AUROC of each dataset", "| narrow | 3 |", "against the others"):
        assert text in report
    pictures = sorted(out.glob("*.svg"))
    assert len(pictures) == 3 * 4
    for path in pictures:
        assert f"({path.name})" in report
        picture = path.read_text()
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert picture[picture.index("<svg") :] in html
    for cell in re.findall(r"(?<=\| )[^|*<-]+(?= \|)", report):
        assert f">{cell}<" in html
    for method in {run.method for run in runs}:
        means = set()
        for rows in (10, 20):
            areas: dict[str, list[float]] = {"narrow": [], "third": []}
            for run in runs:
                if (run.method, run.context) == (method, rows):
                    areas[run.dataset].append(run.auroc)
            mean = np.mean([round(float(np.mean(values)), 2) for values in areas.values()])
            assert f"| {method}, {rows} rows | {mean:.2f} |" in report
            assert f"{method}, {rows} rows" in (out / "auroc_p.svg").read_text()
            means.add(mean)
        assert len(means) == 2, "the size counts"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give a folder of tables, or --stress"),
        (["nowhere"], "nowhere is no folder"),
        (["tables", "--datasets", "narrow,odd"], "has no table odd; it has narrow, third, wide"),
        (["tables", "--context", "9000"], "2 to 5000"),
        (["tables", "--context", "many"], "2 to 5000"),
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


@pytest.mark.usefixtures("no_pictures")
def test_a_contaminated_context_is_another_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model of tables, which is the default, then also by all baselines, of which there are two here."""
    monkeypatch.setattr("pretrain.commands.evaluate.BASELINES", ("knn", "lof"))
    flags = (folder, "--seeds", "1", "--datasets", "wide", "--out", tmp_path / "out")
    assert evaluate(*flags, "--baselines", "none") == 0
    assert evaluate(*flags, "--baselines", "all", "--contaminated", "0.2") == 0
    clean, *dirty = read_runs(tmp_path / "out" / "results.csv")
    assert clean.method.startswith(f"{TABLE_MODEL}@")
    assert clean.auroc > 95.0
    assert [run.method for run in dirty] == [clean.method, "knn", "lof"]
    assert {run.n_context for run in dirty} == {clean.n_context}
    assert {run.n_outliers for run in dirty} == {clean.n_outliers // 2}  # half at most: 7 of 14
    assert "20% of them outliers" in (tmp_path / "out" / "report.md").read_text()
