"""The types that a program of a user sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("user_program.py")
CONFIG = """
[mypy]
strict = true
disallow_any_expr = true
follow_imports = silent
mypy_path = {root}
[mypy-torch.*]
follow_imports = skip
"""


@pytest.mark.slow
def test_a_strict_program_meets_no_any(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(CONFIG.format(root=PROGRAM.parents[2]))
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
