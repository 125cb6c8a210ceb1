"""Programs of the operating system that some tests run."""

from __future__ import annotations

import os
import shutil

import pytest


def needed(program: str, package: str) -> str:
    """The path of a program; without it the test is skipped, but fails in continuous integration.

    program: its name on PATH; package: the Debian package that has it.
    """
    path = shutil.which(program)
    if path is not None:
        return path
    reason = f"needs {program}: apt-get install {package}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
