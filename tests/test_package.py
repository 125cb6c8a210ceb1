"""The package as a whole: imports that cost little, and the audit for known vulnerabilities."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_notify_loads_no_library_for_numbers_and_none_for_people_that_nobody_named() -> None:
    large = {"numpy", "torch", "numba", "sklearn", "scipy", "pandas", "river"}
    large |= {"apprise", "requests", "httpx2", "fastavro"}
    assert not large & modules_after("import fomo_stream.cli.main, fomo_stream.notify.notifier")


AUDIT = Path(__file__).parents[1] / ".ci" / "audit"


@pytest.mark.slow
def test_an_audit_without_a_network_fails_and_says_why(tmp_path: Path) -> None:
    unreachable = "http://127.0.0.1:1"
    environment = {"HTTPS_PROXY": unreachable, "https_proxy": unreachable, "NO_PROXY": "", "no_proxy": ""}
    done = audit(**environment, PIP_CACHE_DIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("audit: not done, the vulnerability database does not answer (")
    assert done.stderr.count("\n") == 1
    assert "://" not in AUDIT.read_text()  # it names no package index


UNKNOWN, KNOWN = {"name": "own", "skip_reason": "not found"}, {"name": "numpy", "version": "1", "vulns": []}
ODD = {**KNOWN, "vulns": [{"id": "V-1", "fix_versions": ["2"]}]}


@pytest.mark.parametrize(
    ("packages", "code", "code_offline", "says"),
    [
        ([UNKNOWN], 1, 0, "the vulnerability database knows none of the 1 packages"),
        ([UNKNOWN, KNOWN], 0, 0, "audit: 0 vulnerabilities known of 1 packages"),
        ([ODD, KNOWN], 1, 1, "audit: numpy 1: V-1, fixed in 2"),
    ],
)
def test_an_audit_is_done_or_fails(
    tmp_path: Path, packages: list[Any], code: int, code_offline: int, says: str
) -> None:
    (tmp_path / "pip_audit.py").write_text(f"print({json.dumps({'dependencies': packages})!r})")
    for flags, wanted in (([], code), (["--may-be-offline"], code_offline)):
        done = audit(*flags, PYTHONPATH=str(tmp_path))
        assert done.returncode == wanted, done.stderr
        assert says in done.stdout + done.stderr
        if (code, wanted) == (1, 0):
            assert done.stdout.splitlines()[-1].startswith("audit: WARNING: NOT DONE, ")


def audit(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(AUDIT), *flags]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
