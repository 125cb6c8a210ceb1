"""Modules, classes and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for package in ("fomo_stream", "pretrain") for path in (ROOT / package).rglob("*.py"))
MODULE_LINES, CLASS_LINES, FUNCTION_LINES = 350, 200, 50


def too_long(text: str) -> Iterator[str]:
    """What is longer than it may be in the text of a module."""
    lines = len(text.splitlines())
    if lines > MODULE_LINES:
        yield f"the module: {lines} lines, at most {MODULE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            most = CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > most:
                yield f"{node.name}: {lines} lines, at most {most}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_classes_and_functions_are_short(path: Path) -> None:
    assert list(too_long(path.read_text())) == []


def test_what_is_one_line_too_long_is_found() -> None:
    def function(lines: int) -> str:
        return "def f():\n" + "    pass\n" * (lines - 1)

    assert list(too_long(function(50))) == []
    assert list(too_long(function(51))) == ["f: 51 lines, at most 50"]
    assert list(too_long("class C:\n" + "    x = 0\n" * 199)) == []
    assert list(too_long("class C:\n" + "    x = 0\n" * 200)) == ["C: 201 lines, at most 200"]
    assert list(too_long("x = 0\n" * 350)) == []
    assert list(too_long("x = 0\n" * 351)) == ["the module: 351 lines, at most 350"]
