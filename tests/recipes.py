"""Messages as other tools write them, and the flags that the page of recipes names."""

from __future__ import annotations

import copy
import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
RECIPES = {
    title: (json.loads(message), shlex.split(command)[1:])
    for title, message, command in re.findall(
        r"^## (.+?)\n.*?```json\n(.+?)\n```.*?```sh\n(.+?)\n```", PAGE, re.MULTILINE | re.DOTALL
    )
}
FEATURES = {
    "Telegraf": ("fields.usage_idle", "fields.usage_system", "fields.usage_user"),
    "Vector": ("gauge.value",),
    "Debezium": ("after.amount", "after.items"),
    "CloudEvents": ("data.flow", "data.pressure"),
    "Kafka Connect": ("payload.temp",),
}


def varied(message: Any, rng: random.Random, at: int) -> Any:
    """The message some seconds later, with other measured values; times and identifiers go on."""
    made = copy.deepcopy(message)

    def walk(node: dict[str, Any]) -> None:
        for name, value in node.items():
            if isinstance(value, dict):
                walk(value)
            elif isinstance(value, float):
                node[name] = value + rng.gauss(0.0, 1.0)
            elif isinstance(value, int) and value >= 1_790_000_000:
                node[name] = value + at * (10 if value < 1e11 else 10_000)
            elif name in ("id", "lsn") and isinstance(value, int):
                node[name] = value + at
            elif name in ("items", "customer", "device"):
                node[name] = rng.randint(1, 5)
            elif name in ("time", "timestamp") and isinstance(value, str):
                node[name] = f"2026-10-01T12:{at // 60:02}:{at % 60:02}Z"

    walk(made)
    return made


def messages(tool: str, n: int) -> list[dict[str, Any]]:
    """The message of a recipe, n times, with other values each time."""
    rng = random.Random(0)
    return [varied(RECIPES[tool][0], rng, at) for at in range(n)]


def flags_of(tool: str) -> list[str]:
    """The flags of a recipe, without the topic."""
    return RECIPES[tool][1][2:]
