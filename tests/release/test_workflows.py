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


def test_the_linter_finds_nothing_in_the_workflows() -> None:
    found = subprocess.run([*ZIZMOR, FOLDER], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout


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
