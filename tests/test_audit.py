"""The look for known vulnerabilities: where it cannot be done, it says so and fails nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

AUDIT = Path(__file__).parents[1] / ".ci" / "audit"


def test_an_audit_that_cannot_be_done_says_so_soon(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:1"
    environment = {"HTTPS_PROXY": nobody, "https_proxy": nobody, "NO_PROXY": "", "no_proxy": ""}
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


def test_the_audit_leaves_it_to_the_installer_where_packages_come_from() -> None:
    assert "://" not in AUDIT.read_text()
