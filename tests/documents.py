"""Markdown documents as tests read them: fenced code blocks, headings, links and code spans."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
        """The targets of its links."""
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


README = Document.read(ROOT / "README.md")
FLAGS = Document.read(ROOT / "docs" / "flags-and-output.md")
