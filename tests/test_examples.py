"""The examples: notebooks are those of the scripts, and both run; they assert what they say of their results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
OF_NOTEBOOK = "plant"  # which runs as a notebook
by_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def test_every_example_is_listed_and_has_a_notebook() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert len(SCRIPTS) == 4
    assert {path.stem for path in (ROOT / "examples").glob("*.ipynb")} == {script.stem for script in SCRIPTS}
    assert all(f"(../examples/{script.name})" in page for script in SCRIPTS)


@by_script
def test_a_notebook_has_the_cells_of_its_script_and_no_outputs(script: Path) -> None:
    import jupytext  # takes a second: not for every process that collects tests

    kept = jupytext.read(script.with_suffix(".ipynb")).cells
    made = [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    assert [(cell.cell_type, cell.source) for cell in kept] == made
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in kept)


@pytest.mark.slow
@pytest.mark.parametrize("script", [one for one in SCRIPTS if one.stem != OF_NOTEBOOK], ids=lambda script: script.stem)
def test_a_script_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_notebook_shows_the_report_and_its_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them: its cells are those of a script, and all others run as scripts."""
    import jupytext
    from nbclient import NotebookClient

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # else the kernel shows no plots
    notebook = jupytext.read(ROOT / "examples" / f"{OF_NOTEBOOK}.ipynb")
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, iopub_timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [out["data"] for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    assert any("image/png" in data for data in shown)
    assert any("<iframe" in "".join(data.get("text/html", "")) for data in shown)
