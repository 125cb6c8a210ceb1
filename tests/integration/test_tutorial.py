"""The tutorial, as a reader goes through it: one shell, one command after the other, against a real Kafka."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import Broker, free_ports
from documents import ROOT, Block, Document, not_run

LIMIT_S = 900


def session(blocks: list[Block]) -> str:
    """A script with the commands of all blocks, which writes the number of each block before its output."""
    parts = ["exec 2>&1"]
    for number, block in enumerate(blocks):
        if block.language == "sh":  # tests/test_docs.py makes the objects of Helm
            lines = [line for line in block.code.splitlines() if not (not_run(line) or line.startswith("helm "))]
            parts += ["echo", f"echo '=== {number}'", *lines]
    return "\n".join(parts)


def alike(shown: str, printed: str) -> bool:
    """Whether two lines have the same words, and numbers that differ by at most 2 %.

    >>> alike("p2 score=0.998", "p2 score=0.997"), alike("p2 score=0.998", "p3 score=0.998"), alike("1", "1 2")
    (True, False, False)
    """
    number = r"-?\d+(?:\.\d+)?"
    values = [[float(text) for text in re.findall(number, line)] for line in (shown, printed)]
    return re.split(number, shown) == re.split(number, printed) and values[0] == pytest.approx(values[1], rel=0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("real_kafka")
def test_every_step_prints_what_the_page_shows(broker: Broker, tmp_path: Path) -> None:
    blocks = Document.read(ROOT / "docs" / "tutorial.md").blocks
    for block in blocks:
        if block.language == "python":
            name = re.match(r"# (\w+\.py)", block.code)
            assert name, f"{block} does not say its name"
            (tmp_path / name[1]).write_text(block.code)
    script = session(blocks).replace("localhost:9094", broker.bootstrap).replace("8080", str(free_ports(1)))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output = process.communicate(timeout=LIMIT_S)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    printed = dict(re.findall(r"^=== (\d+)\n(.*?)(?=^=== |\Z)", output, re.MULTILINE | re.DOTALL))
    shown = [number for number, block in enumerate(blocks) if block.language == "text"]
    assert len(shown) > 5
    for number in shown:
        assert blocks[number - 1].language == "sh", blocks[number]
        expected, found = blocks[number].code.splitlines(), printed[str(number - 1)].strip("\n").splitlines()
        assert len(expected) == len(found), f"{blocks[number]}\n" + "\n".join(found)
        for line, other in zip(expected, found, strict=True):
            assert alike(line, other.rstrip()), f"{blocks[number]}: {line}\n{other}"
