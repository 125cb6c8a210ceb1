from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_loads_neither_torch_nor_a_kafka_client() -> None:
    assert not {"torch", "confluent_kafka", "river", "sklearn", "numpy"} & modules_after("import fomo_stream")


def test_unknown_names_are_attribute_errors() -> None:
    import fomo_stream

    with pytest.raises(AttributeError, match="nonsense"):
        fomo_stream.nonsense  # noqa: B018
