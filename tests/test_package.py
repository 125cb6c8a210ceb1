"""The package as a whole: imports that cost little, and the audit for known vulnerabilities."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "scipy", "sklearn", "river", "confluent_kafka", "rich", "orjson"}


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(output.splitlines()[-1].split())


def test_import_loads_neither_torch_nor_a_kafka_client() -> None:
    assert not HEAVY & modules_after("import fomo_stream")


def test_help_loads_neither_torch_nor_numpy_nor_a_kafka_client() -> None:
    statement = (
        "from contextlib import suppress; from fomo_stream.cli.main import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    with suppress(SystemExit): main([name, '--help'])\n"
        "assert main(['--topik', 't']) == main(['--topic', 't', '--threads', '0']) == 2"
    )
    modules = modules_after(statement)
    assert "argparse" in modules
    assert not HEAVY & modules


AUDIT = Path(__file__).parents[1] / ".ci" / "audit"


@pytest.mark.slow
def test_an_audit_without_a_network_says_so_and_does_not_fail(tmp_path: Path) -> None:
    unreachable = "http://127.0.0.1:1"
    environment = {"HTTPS_PROXY": unreachable, "https_proxy": unreachable, "NO_PROXY": "", "no_proxy": ""}
    environment = {**os.environ, **environment, "PIP_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, AUDIT], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("audit: not done, the vulnerability database does not answer (")
    assert done.stdout.count("\n") == 1
    assert "://" not in AUDIT.read_text()  # it names no package index
