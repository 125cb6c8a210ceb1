"""The audit for known vulnerabilities: if it cannot be done, it says so and does not fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[1] / ".ci" / "audit"


@pytest.mark.slow
def test_an_audit_without_a_network_says_so_soon(tmp_path: Path) -> None:
    unreachable = "http://127.0.0.1:1"
    environment = {"HTTPS_PROXY": unreachable, "https_proxy": unreachable, "NO_PROXY": "", "no_proxy": ""}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, AUDIT],
        capture_output=True,
        text=True,
        env={**os.environ, **environment, "PIP_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("audit: not done, the vulnerability database does not answer (")
    assert done.stdout.count("\n") == 1
    assert time.monotonic() - began < 60
    assert "://" not in AUDIT.read_text()  # it names no package index
