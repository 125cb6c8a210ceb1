"""What is said of the messages of tools; that the flags of their recipes read them is tested with `doctor`."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import FEATURES, RECIPES, flags_of, messages

from fomo_stream.cli.parser import parse
from fomo_stream.records.inference import NoFeaturesError, choose_features, roles_of
from fomo_stream.settings.commands import ScoreSettings


def test_every_recipe_of_the_page_is_tried() -> None:
    assert RECIPES.keys() == FEATURES.keys()


@pytest.mark.parametrize("tool", ["CloudEvents", "Kafka Connect"])  # the others have no other numbers
def test_features_that_measure_nothing_are_named_with_the_recipe(tool: str) -> None:
    for flags, is_noted in (([], True), ([word for word in flags_of(tool) if word != "skip"], False)):
        settings, notes = parse(ScoreSettings, ["-", *(word for word in flags if word != "--tombstones")]), list[str]()
        choose_features(settings, "jsonl", messages(tool, 300), tool, roles_of(settings), notes.append)
        of_recipe = [note for note in notes if f"see docs/recipes.md#{tool.lower().replace(' ', '-')}" in note]
        assert len(of_recipe) == is_noted, notes


def test_a_file_that_cannot_be_read_names_the_recipe() -> None:
    settings = parse(ScoreSettings, ["-"])
    batches: list[dict[str, Any]] = [{"resourceMetrics": [{"resource": {}, "scopeMetrics": []}]}] * 9
    with pytest.raises(NoFeaturesError, match=r"docs/recipes\.md#what-is-not-read"):
        choose_features(settings, "jsonl", batches, "file", roles_of(settings), lambda _: None)
