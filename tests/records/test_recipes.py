"""The flags that the page of recipes names read the messages of the tools."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import FEATURES, RECIPES, flags_of, messages

from fomo_stream.cli.parser import parse
from fomo_stream.records.inference import NoFeaturesError, choose_features, key_of, roles_of
from fomo_stream.records.schema import look_up
from fomo_stream.records.times import to_milliseconds
from fomo_stream.settings.commands import ScoreSettings


def test_every_recipe_of_the_page_is_tried() -> None:
    assert RECIPES.keys() == FEATURES.keys()


@pytest.mark.parametrize("tool", FEATURES)
def test_the_flags_read_the_messages(tool: str) -> None:
    message = RECIPES[tool][0]
    flags = [word for word in flags_of(tool) if word not in ("--tombstones", "skip")]
    settings = parse(ScoreSettings, ["-", *flags])
    assert isinstance(settings, ScoreSettings)
    records = messages(tool, 300)
    schema, _ = choose_features(settings, "jsonl", records, tool, roles_of(settings), lambda _: None)
    assert schema.features == FEATURES[tool]
    assert key_of(message, settings.key) is not None
    times = [to_milliseconds(look_up(record, settings.time or "")) for record in records]
    assert all(one is not None and 1.7e12 < one < 2e12 for one in times)
    rows = schema.rows([*records, {**message, "after": None}, {"payload": None}, {}])
    assert rows.shape == (303, len(schema.features))


@pytest.mark.parametrize("tool", ["CloudEvents", "Kafka Connect"])  # the others have no other numbers
def test_features_that_measure_nothing_are_named_with_the_recipe(tool: str) -> None:
    for flags, is_noted in (([], True), ([word for word in flags_of(tool) if word != "skip"], False)):
        settings, notes = parse(ScoreSettings, ["-", *(word for word in flags if word != "--tombstones")]), list[str]()
        assert isinstance(settings, ScoreSettings)
        choose_features(settings, "jsonl", messages(tool, 300), tool, roles_of(settings), notes.append)
        of_recipe = [note for note in notes if f"see docs/recipes.md#{tool.lower().replace(' ', '-')}" in note]
        assert len(of_recipe) == is_noted, notes


def test_features_that_a_user_has_named_or_derived_are_no_parts_of_a_message() -> None:
    for flags in (["--derive", "change(payload.temp)"], ["--features", "payload.temp,schema.optional"]):
        settings, notes = parse(ScoreSettings, ["-", "--key", "payload.device", *flags]), list[str]()
        assert isinstance(settings, ScoreSettings)
        records = [{**one, "change(payload.temp)": 0.5} for one in messages("Kafka Connect", 300)]
        choose_features(settings, "jsonl", records, "file", roles_of(settings), notes.append)
        assert not any("change(payload.temp)" in note and "recipes.md" in note for note in notes)
        assert any("schema.optional" in note and "recipes.md" in note for note in notes) == ("--derive" in flags)


def test_a_file_that_cannot_be_read_names_the_recipe() -> None:
    settings = parse(ScoreSettings, ["-"])
    assert isinstance(settings, ScoreSettings)
    batches: list[dict[str, Any]] = [{"resourceMetrics": [{"resource": {}, "scopeMetrics": []}]}] * 9
    with pytest.raises(NoFeaturesError, match=r"docs/recipes\.md#what-is-not-read"):
        choose_features(settings, "jsonl", batches, "file", roles_of(settings), lambda _: None)
