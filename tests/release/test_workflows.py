"""The workflows of the hosting site, which cannot run here: a linter, and what they have to agree with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from documents import ROOT

FOLDER = ROOT / ".github"
WORKFLOWS = {path.stem: path.read_text() for path in (FOLDER / "workflows").glob("*.yml")}
ZIZMOR = [str(Path(sys.executable).parent / "zizmor"), "--offline", "--strict-collection", "--no-progress", "--quiet"]


def test_the_linter_finds_nothing_in_the_workflows(tmp_path: Path) -> None:
    found = subprocess.run([*ZIZMOR, FOLDER], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    for good, bad, rule in (
        ("make dist", 'echo "${{ github.event.head_commit.message }}"', "template-injection"),
        (
            "permissions:\n      contents: read\n    outputs",
            "permissions: write-all\n    outputs",
            "excessive-permissions",
        ),
        ("    runs-on: ubuntu", "    runs_on: ubuntu", "failed to load"),
    ):
        assert good in WORKFLOWS["release"]
        (tmp_path / "bad.yml").write_text(WORKFLOWS["release"].replace(good, bad))
        found = subprocess.run([*ZIZMOR, tmp_path / "bad.yml"], capture_output=True, text=True)
        assert found.returncode != 0
        assert rule in found.stdout + found.stderr


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = {
        name for text in WORKFLOWS.values() for name in re.findall(r"^ *(?:- run: )?make ([\w-]+)", text, re.MULTILINE)
    }
    assert run <= targets
    assert {"test", "test-slow", "dist", "sbom", "demo"} <= run


def test_images_are_built_of_the_targets_of_the_dockerfile_with_its_version() -> None:
    stages = re.findall(r"^FROM .* AS (\S+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert {"cpu", "cuda"} == set(re.findall(r"target: (\w+)", WORKFLOWS["release"])) <= set(stages)
    assert '--build-arg "VERSION=$VERSION"' in WORKFLOWS["release"]
    assert "ARG VERSION=" in (ROOT / "deploy" / "Dockerfile").read_text()
