"""Markdown documents as tests read them: fenced code blocks, headings, links and code spans."""

from __future__ import annotations

import functools
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced code block; line: of its opening fence, counted from 1."""

    document: str  # path from the repository's root
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True)
class Document:
    """A Markdown file of the repository."""

    name: str  # path from the repository's root
    text: str

    @classmethod
    def read(cls, path: Path) -> Document:
        return cls(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))

    @property
    def blocks(self) -> list[Block]:
        """Its code blocks, in order."""
        return [
            Block(self.name, self.text.count("\n", 0, found.start()) + 1, found["language"], found["code"])
            for found in FENCE.finditer(self.text)
        ]

    @property
    def prose(self) -> str:
        """The text without code blocks."""
        return FENCE.sub("", self.text)

    @property
    def anchors(self) -> set[str]:
        """The anchors of its headings, made as GitHub makes them."""
        titles = re.findall(r"^#+ +(.*)$", self.prose, re.MULTILINE)
        found: set[str] = set()
        for title in titles:
            anchor = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
            number = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in found)
            found.add(f"{anchor}-{number}" if anchor in found else anchor)
        return found

    @property
    def links(self) -> list[str]:
        return re.findall(r"\]\(([^)\s]+)\)", self.prose)

    @property
    def spans(self) -> list[str]:
        """The texts between backticks; line breaks in them are blanks."""
        return [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", self.prose)]

    def section(self, title: str) -> Document:
        """The part below a heading of the second level, up to the next."""
        found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", self.text, re.MULTILINE | re.DOTALL)
        assert found is not None, f"{self.name} has no section {title}"
        return Document(self.name, found[1])


def table_rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables in `text`; heads and their rules are left out.

    >>> table_rows("| a | b |\\n|---|---|\\n| 1 | `2` |")
    [['1', '`2`']]
    """
    lines = [line.strip() for line in text.splitlines()]
    rules = {i for i, line in enumerate(lines) if re.fullmatch(r"\|(-+\|)+", line)}
    kept = [i for i, line in enumerate(lines) if line.startswith("|") and not {i, i + 1} & rules]
    return [[cell.strip() for cell in lines[i].strip("|").split("|")] for i in kept]


# What the documentation tells to run and no test runs, by the first word of the command, with the reason.
NOT_RUN = {
    "docker": "needs a Docker daemon; tests/deploy/test_image.py checks the Dockerfile",
    "kcat": "a program that is not installed where tests run",
    "kafka-topics.sh": "a tool of Apache Kafka, which is not on PATH where tests run",
    "kafka-consumer-groups.sh": "as kafka-topics.sh",
    "kafka-console-consumer.sh": "as kafka-topics.sh",
    "kafka-transactions.sh": "as kafka-topics.sh",
    "kafka-configs.sh": "as kafka-topics.sh",
    "kafka-acls.sh": "as kafka-topics.sh",
    "acls": "as kafka-topics.sh; tests/integration/test_secure_broker.py grants just these permissions",
    "curl": "asks a pod, by the port that kubectl forwards",
    "helm test": "needs a cluster; benchmarks/chart_bench.py runs it in one",
}


def not_run(line: str) -> bool:
    """Whether a command is, or pipes into, a program that no test runs.

    >>> not_run("docker build ."), not_run("echo 1 | kcat -P"), not_run("fomo-stream score docker.csv")
    (True, True, False)
    """
    return any(re.search(rf"(^|\| )\$?{re.escape(name)}[ =]", line) for name in NOT_RUN)


README = Document.read(ROOT / "README.md")
FLAGS = Document.read(ROOT / "docs" / "flags-and-output.md")


def with_changes(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `values` with the changes laid over it, as Helm lays one file of values over another."""
    merged = deepcopy(values)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = with_changes(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def listed_acls(text: str) -> list[tuple[str, str, str, str]]:
    """Kind and name of the resource, pattern and operation of each `$acls` command, one for each operation."""
    found = []
    for line in text.splitlines():
        words = shlex.split(line.removeprefix("$acls ")) if line.startswith("$acls ") else []
        pairs = [(flag[2:], value) for flag, value in zip(words[::2], words[1::2], strict=True)]
        pattern = dict(pairs).get("resource-pattern-type", "literal")
        for kind, name in pairs:
            if kind in ("topic", "group", "transactional-id"):
                found += [(kind, name, pattern, value) for flag, value in pairs if flag == "operation"]
    return found


def helm_values(line: str, before: dict[str, Any], file: Callable[[str], Path]) -> dict[str, Any]:
    """The values that a command installs the chart with; before: those of the last one, which it may reuse."""
    parser = ArgumentParser()
    for flag in ("--create-namespace", "--install", "--reuse-values"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--namespace", required=True)
    for flag in ("--set", "--set-string", "--values"):
        parser.add_argument(flag, action="append", default=[])
    for name in ("command", "release", "chart"):
        parser.add_argument(name)
    given = parser.parse_args(shlex.split(line, comments=True)[1:])
    values = before if given.reuse_values else {}
    changes = [yaml.safe_load(file(name).read_text()) for name in given.values]
    changes += map(helm_python.parse_set_string, given.set)
    changes += map(helm_python.parse_set_string_values, given.set_string)
    return functools.reduce(with_changes, changes, values)
