"""Published results: their files, and ours beside them; and the page of figures in the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import paper_page
import pytest
from scipy.stats import rankdata, wilcoxon

from fomo_stream.errors import ConfigError
from pretrain.__main__ import main
from pretrain.evaluation.published import FILES, read_published
from pretrain.evaluation.runs import read_runs

NAMES = ("annthyroid", "glass", "wbc", "yeast", "stamps", "hepatitis", "MVTec-AD", "lymphography")
WIDTHS = (6, 7, 9, 30, 60, 130, 512, 18)
METHODS = ("kNN", "ICL", "VAE")
SPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def write_sheet(path: Path, rows: list[list[str | float]]) -> None:
    """An .xlsx file with shared texts and plain numbers; an empty text is an absent cell."""
    texts = sorted({cell for row in rows for cell in row if isinstance(cell, str)})
    lines = []
    for i, row in enumerate(rows, 1):
        cells = []
        for j, cell in enumerate(row):
            value = f't="s"><v>{texts.index(cell)}</v>' if isinstance(cell, str) else f"><v>{cell}</v>"
            if cell != "" or (i, j) == (1, 0):
                cells.append(f'<c r="{chr(65 + j)}{i}" {value}</c>')
        lines.append(f'<row r="{i}">{"".join(cells)}</row>')
    shared = "".join(f"<si><r><t>{text[:1]}</t></r><r><t>{text[1:]}</t></r></si>" for text in texts)
    with ZipFile(path, "w") as archive:
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{SPACE}">{shared}</sst>')
        sheet = f'<worksheet xmlns="{SPACE}"><sheetData>{"".join(lines)}</sheetData></worksheet>'
        archive.writestr("xl/worksheets/sheet1.xml", sheet)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Three methods and an average on eight tables; the second method has no result on the last table."""
    rng = np.random.default_rng(1)
    folder = tmp_path / "published"
    folder.mkdir()
    for kind in FILES.values():
        values = rng.uniform(80, 100, (len(NAMES), 4)).round(2)
        rows: list[list[str | float]] = [["", *METHODS]]
        rows += [[name, *(f"{v}(0.5)" for v in line[:3])] for name, line in zip(NAMES, values, strict=True)]
        rows[-1][2] = ""
        write_sheet(folder / f"semi_{kind}.xlsx", rows)
        lines = [f"{name},1.0(0),{line[3]}(0.1)" for name, line in zip(NAMES, values, strict=True)]
        (folder / f"avg_kNN_{kind}.csv").write_text("\n".join(["dataset,KNN_5,KNN_avr", *reversed(lines)]) + "\n")
    sizes: list[list[str | float]] = [["Dataset", "sample", "feature"]]
    write_sheet(folder / "dim.xlsx", sizes + [[name, 100.0, float(d)] for name, d in zip(NAMES, WIDTHS, strict=True)])
    return folder


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Tables with the names of ADBench's files, one of them in two parts, one that has no published results."""
    folder = tmp_path / "tables"
    folder.mkdir()
    files = ["2_annthyroid", "14_glass", "42_WBC", "47_yeast", "37_Stamps", "MVTec-AD_bottle", "MVTec-AD_cable", "own"]
    for i, name in enumerate([*files, "21_Lymphography"]):
        rng = np.random.default_rng(i)
        labels = (np.arange(60) % 5 == 0).astype(np.int64)
        features = WIDTHS[i] if i < 5 else 8
        np.savez(folder / f"{name}.npz", X=rng.normal(size=(60, features)) * (1 + 0.4 * labels[:, None]), y=labels)
    return folder


def cells_of(text: str, first: str) -> dict[str, list[str]]:
    """The rows of the first table after a text, by their first cell, without marks; the head has the key "method"."""
    rows = re.findall(
        r"^\| (.*) \|$", text[text.index(first) :].split("\n\n## ")[0].split("\n\n### AUPR")[0], re.MULTILINE
    )
    plain = [re.sub(r"\*\*|</?u>", "", row).split(" | ") for row in rows]
    return {row[0]: row[1:] for row in plain}


def test_files_are_read_by_table_method_and_metric(published: Path) -> None:
    found = read_published(published)
    assert found.methods == [*METHODS, "kNN-avg"]
    assert found.features == dict(zip(map(str.lower, NAMES), WIDTHS, strict=True))
    for metric, values in found.values.items():
        assert set(values) == {name.lower() for name in NAMES}, metric
        assert [name for name, row in values.items() if np.isnan(row).any()] == [NAMES[-1]]
        averages = dict(
            re.findall(r"^([\w-]+),1.0\(0\),([\d.]+)", (published / f"avg_kNN_{FILES[metric]}.csv").read_text(), re.M)
        )
        assert all(values[name.lower()][3] == float(value) for name, value in averages.items())
    names = ["12_wbc", "MVTec-AD_metal_nut", "42_WBC", "mvtec", "wbc_2", "own"]
    assert found.names_of(names) == {"12_wbc": "wbc", "MVTec-AD_metal_nut": "mvtec-ad", "42_WBC": "wbc", "wbc_2": "wbc"}


@pytest.mark.parametrize("broken", ["semi_aucpr.xlsx", "avg_kNN_aucf1.csv"])
def test_files_that_are_missing_or_damaged_have_a_message(published: Path, broken: str) -> None:
    (published / broken).unlink()
    with pytest.raises(ConfigError, match=re.escape(str(published))):
        read_published(published)
    (published / broken).write_text("nothing")
    with pytest.raises(ConfigError, match=re.escape(str(published))):
        read_published(published)


def test_ranks_and_p_among_published_methods_are_those_of_an_independent_calculation(
    tables: Path, published: Path, tmp_path: Path, no_pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    flags = ["--model", "fomo,streams", "--baselines", "none", "--seeds", "1", "--device", "cpu"]
    assert main(["evaluate", str(tables), "--published", str(published), "--out", str(out), *flags]) == 0
    printed = capsys.readouterr().out
    report = (out / "report.md").read_text()
    assert "own" in report.split("without published results")[1].splitlines()[0]
    assert "lymphography" in report.split("no published result for")[1].splitlines()[0]
    assert "hepatitis" in report.split("that are not here")[1].splitlines()[0]
    assert "| annthyroid * |" in report
    assert "| wbc |" in report
    runs = read_runs(out / "results.csv")
    for model in sorted({run.method for run in runs}):
        by_table: dict[str, list[float]] = {}
        for run in runs:
            if run.method == model:
                name = re.sub(r"^\d+_", "", run.dataset).lower().split("_")[0]
                by_table.setdefault(name, []).append(run.auroc)
        theirs = read_published(published).values["auroc"]
        common = ["annthyroid", "glass", "mvtec-ad", "stamps", "wbc", "yeast"]
        values = np.array([[round(float(np.mean(by_table[name])), 2), *theirs[name]] for name in common])
        ranks = rankdata(-values, axis=1).mean(0)
        cells = cells_of(printed, f"## {model} beside published results")
        heads = cells["method"]
        assert heads[1:3] == ["rank, all: 6 of 8", "p, all: 6 of 8"]
        assert "rank, development: 2 of 2" in heads
        assert "p, no language, no vision: 5 of 7" in heads
        for j, method in enumerate([model, *METHODS, "kNN-avg"]):
            assert cells[method][:2] == [f"{values[:, j].mean():.2f}", f"{ranks[j]:.2f}"]
            for head, rows in (("p, all: 6 of 8", slice(None)), ("p, no language, no vision: 5 of 7", [0, 1, 3, 4, 5])):
                part = values[rows]
                p = "-" if j == 0 else f"{wilcoxon(part[:, j], part[:, 0], alternative='greater').pvalue:.3f}"
                assert cells[method][heads.index(head)] == p


def test_the_small_figures_of_the_page_can_be_made_again(tmp_path: Path, no_pictures: None) -> None:
    kept = cells_of(f"{paper_page.block(paper_page.PAGE.read_text(), 'small')}", "| method")
    again = cells_of(paper_page.small(tmp_path), "| method")
    assert set(again) == set(kept), "run python tests/paper_page.py"
    for method, cells in again.items():
        if method not in ("method", "---"):
            found, wanted = np.array(cells, float), np.array(kept[method], float)
            assert found[:3] == pytest.approx(wanted[:3], abs=0.05), method  # percent
            assert found[3:] == pytest.approx(wanted[3:], abs=0.7), method  # ranks, where near values change places
