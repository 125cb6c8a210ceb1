"""The package as a whole: imports that cost little."""

from __future__ import annotations

import subprocess
import sys

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


def test_unknown_names_are_attribute_errors() -> None:
    import fomo_stream

    with pytest.raises(AttributeError, match="nonsense"):
        fomo_stream.nonsense  # noqa: B018
