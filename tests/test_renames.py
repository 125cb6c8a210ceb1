"""Modules that moved: CHANGELOG.md lists the old paths, and nothing else in the repository names them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
# | `fomo_stream.former` | `fomo_stream.room.present` |
ROW = re.compile(r"^\|\s*`((?:fomo_stream|pretrain)(?:\.\w+)+)`\s*\|\s*(.*?)\s*\|", re.MULTILINE)


def renames(changelog: str) -> dict[str, str]:
    """The old dotted paths in the table of renamed modules, each with the text of its second column."""
    return dict(ROW.findall(changelog))


def is_package(dotted: str) -> bool:
    """True for a path that is a package today (`fomo_stream.detector` was a module): it begins new paths too."""
    return (ROOT / dotted.replace(".", "/")).is_dir()


def mentions(text: str, old: str) -> list[str]:
    """The places of `text` that name the module `old`: dotted, as a file, or imported from its package."""
    package, _, name = old.rpartition(".")
    dotted = rf"(?<![\w.]){re.escape(old)}(?![\w])"
    file = rf"(?<![\w/]){re.escape(old.replace('.', '/'))}\.py\b"
    imported = rf"from {re.escape(package)} import \(?[\w\s,]*\b{name}\b"
    return [match[0] for match in re.finditer(f"{dotted}|{file}|{imported}", text)]


def tracked_texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    texts = {}
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name and path != CHANGELOG and path.suffix != ".safetensors" and path.is_file():
            texts[name] = path.read_text(errors="replace")
    return texts


def test_no_file_names_a_module_by_its_old_path() -> None:
    old_paths = renames(CHANGELOG.read_text())
    assert old_paths, "CHANGELOG.md has no table of renamed modules"
    found = {
        f"{name}: {mention}"
        for name, text in tracked_texts().items()
        for old in old_paths
        if not is_package(old) and old.rpartition(".")[2] in text
        for mention in mentions(text, old)
    }
    assert not found


def test_old_paths_are_modules_no_more() -> None:
    for old in renames(CHANGELOG.read_text()):
        assert not (ROOT / f"{old.replace('.', '/')}.py").exists(), old


def test_mentions_are_found_however_a_module_is_named() -> None:
    old = "fomo_stream.former"
    table = renames(f"| before | now |\n|---|---|\n| `{old}` | `fomo_stream.room.present` |\n")
    assert table == {old: "`fomo_stream.room.present`"}
    for text in (
        f"import {old}",
        f"from {old} import X",
        "from fomo_stream import former",
        "from fomo_stream import (\n    Detector,\n    former,\n)",
        "see fomo_stream/former.py",
        f"{old}.X",
    ):
        assert mentions(text, old), text
    for text in ("from fomo_stream.room import former", "fomo_stream.formerly", "the former", "a.fomo_stream.former"):
        assert not mentions(text, old), text
