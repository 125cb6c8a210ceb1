"""Messages as other tools write them, with the flags that the page of recipes names."""

from __future__ import annotations

import copy
import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fomo_stream.cli.parser import parse
from fomo_stream.records.inference import choose_features, key_of, roles_of
from fomo_stream.records.schema import look_up
from fomo_stream.records.times import to_milliseconds
from fomo_stream.settings.commands import ScoreSettings

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
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
            elif name == "items":
                node[name] = rng.randint(1, 5)
            elif name in ("time", "timestamp") and isinstance(value, str):
                node[name] = f"2026-10-01T12:{at // 60:02}:{at % 60:02}Z"

    walk(made)
    return made


def test_every_recipe_of_the_page_is_tried() -> None:
    assert RECIPES.keys() == FEATURES.keys()


@pytest.mark.parametrize("tool", FEATURES)
def test_the_flags_read_the_messages(tool: str) -> None:
    message, flags = RECIPES[tool]
    del flags[flags.index("--topic") : flags.index("--topic") + 2]
    flags = [word for word in flags if word not in ("--tombstones", "skip")]
    settings = parse(ScoreSettings, ["-", *flags])
    assert isinstance(settings, ScoreSettings)
    rng = random.Random(0)
    records = [varied(message, rng, at) for at in range(300)]
    schema, _ = choose_features(settings, "jsonl", records, tool, roles_of(settings), lambda _: None)
    assert schema.features == FEATURES[tool]
    assert key_of(message, settings.key) is not None
    times = [to_milliseconds(look_up(record, settings.time or "")) for record in records]
    assert all(one is not None and 1.7e12 < one < 2e12 for one in times)
    rows = schema.rows([*records, {**message, "after": None}, {"payload": None}, {}])
    assert rows.shape == (303, len(schema.features))
