"""Every reason in the code is one that `redrive --reason` accepts."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import fomo_stream
from fomo_stream.errors import REASONS, UNKNOWN

REASON_AT = {
    "RecordError": 0,
    "Letter": 0,
    "dead_letter": 1,
    "dead_letter_reason": 1,
}  # which argument of these calls is a reason
OF_FILES = {"not_csv", "ragged"}  # for rows of CSV, which never become dead letters


def reasons_in(source: str) -> Iterator[str]:
    """The reasons that a module gives, as text or by a name that it has given them."""
    nodes = list(ast.walk(ast.parse(source)))
    named: dict[str, list[ast.AST]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named[node.targets[0].id].append(node.value)
    for node in nodes:
        if isinstance(node, ast.Call):
            at = REASON_AT.get(ast.unparse(node.func).rpartition(".")[2], len(node.args))
            given = node.args[at : at + 1]
            values = named[given[0].id] if given and isinstance(given[0], ast.Name) else given
            for part in (part for value in values for part in ast.walk(value)):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_every_reason_that_the_service_gives_can_be_asked_for() -> None:
    modules = Path(str(fomo_stream.__file__)).parent.rglob("*.py")
    given = {reason for module in modules for reason in reasons_in(module.read_text())}
    assert given - OF_FILES == set(REASONS) - {UNKNOWN}
