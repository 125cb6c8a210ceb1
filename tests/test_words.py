"""The words of code and pages: none that makes a reader stop, and no name for two things."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from documents import ROOT

# What a reader has to read twice, and what to write.
INSTEAD = {
    r"(?<![Tt]here )\b(is|are|was|were) no(ne)?\b(?! longer)": "is not, are not",
    r"\bin place of\b": "instead of",
    r"\bbeside\b": "next to, with",
    r"\b(of|outside of) wh(ich|om)\b": "two sentences",
    r"\b(for want of|perhaps|heeds?|anew|likewise)\b": "because of the lack of, may, follows, again, in the same way",
}
BEGINNINGS = r"(Of|That of|Those of|All of it|As in|What|Whether|How|Where|Who) "  # of docstrings
CODE = sorted((ROOT / "fomo_stream").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").glob("*.md")])


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and texts of a program, and a page without its blocks of code: lines with their numbers."""
    text = path.read_text()
    if path.suffix == ".md":
        text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
        yield from enumerate(text.splitlines(), 1)
        return
    middle = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)  # a kind of its own from Python 3.12 on
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, middle):
            yield from enumerate(token.string.splitlines(), token.start[0])


def test_no_text_has_words_that_a_reader_reads_twice() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}: write {instead}"
        for path in (*CODE, *PAGES)
        for number, line in words_of(path)
        for phrase, instead in INSTEAD.items()
        if re.search(phrase, line)
    ]
    assert places == []


def test_docstrings_begin_with_a_verb_or_a_noun_and_names_are_used_once() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    odd, places = [], defaultdict(list)
    for path in CODE:
        name = path.relative_to(ROOT)
        module = ast.parse(path.read_text())
        for node in ast.walk(module):
            if isinstance(node, kinds) and re.match(BEGINNINGS, text := ast.get_docstring(node, clean=False) or ""):
                odd.append(f"{name}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
        if path.stem not in ("__init__", "__main__"):
            places[f"module {path.stem}"].append(name)
        for node in module.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                places[node.name].append(name)
    assert odd == []
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
