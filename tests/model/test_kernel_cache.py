"""Compiled kernels on disk: used from a folder that is read-only, and never trusted when damaged."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from fomo_stream.model.kernels import cache
from fomo_stream.model.kernels.options import kernel

SOURCE = """
def total(values):
    found = 0.0
    for value in values:
        found += value
    return found
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one small function to compile; the cache is in a folder beside it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setitem(sys.modules, "small", None)
    path = tmp_path / "small.py"
    path.write_text(SOURCE)
    return path


def hits(module: Path) -> int:
    """Call the kernel as a new process would; how many times its code came from the cache."""
    found = importlib.util.spec_from_file_location("small", module)
    assert found is not None
    assert found.loader is not None
    loaded: Any = importlib.util.module_from_spec(found)
    sys.modules["small"] = loaded  # numba looks for it there
    found.loader.exec_module(loaded)
    total = kernel(loaded.total)
    assert total(np.arange(5.0)) == 10.0
    return sum(total.stats.cache_hits.values())


def files(module: Path, ending: str) -> list[Path]:
    return sorted((module.parent / "kernels").rglob(f"*{ending}"))


def test_code_is_compiled_once(module: Path) -> None:
    assert [hits(module) for _ in range(3)] == [0, 1, 1]


def test_another_time_of_the_source_file_changes_nothing(module: Path) -> None:
    hits(module)
    module.touch()
    copy = module.read_bytes()
    module.unlink()
    module.write_bytes(copy)
    assert hits(module) == 1


def test_code_of_other_sources_is_not_used(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hits(module)
    monkeypatch.setattr(cache, "SOURCES", "another-one")
    assert hits(module) == 0


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def of_another_numba(path: Path) -> None:
    path.write_bytes(pickle.dumps("0.1") + b"its own format")


def of_unknown_classes(path: Path) -> None:
    path.write_bytes(b"cno_such_module\nNoSuchClass\n.")


@pytest.mark.parametrize("ending", [".nbi", ".nbc"], ids=["index", "code"])
@pytest.mark.parametrize("damage", [truncated, emptied, of_another_numba, of_unknown_classes, Path.unlink])
def test_a_damaged_or_foreign_file_counts_as_missing_and_is_replaced(
    module: Path, ending: str, damage: Callable[[Path], None]
) -> None:
    hits(module)
    (path,) = files(module, ending)
    damage(path)
    assert [hits(module) for _ in range(2)] == [0, 1]


def test_a_cache_that_can_be_neither_read_nor_written_is_not_needed(module: Path) -> None:
    hits(module)
    for path in (*files(module, ".nbi"), *files(module, ".nbc")):
        path.unlink()
        path.mkdir()
        (path / "in the way").touch()
    assert [hits(module) for _ in range(2)] == [0, 0]
