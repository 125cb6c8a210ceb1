"""A replay goes on only with the inputs that it began with, and leaves out what its topics have got since."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_source import make_plan

from fomo_stream.errors import ConfigError
from fomo_stream.kafka.feedback.recorded_effects import LabelEffect
from fomo_stream.kafka.ranges import Range
from fomo_stream.replaying import resuming
from fomo_stream.replaying.resuming import resumed_plan
from fomo_stream.settings.replay import ReplaySettings


@pytest.fixture
def settings(tmp_path: Path) -> ReplaySettings:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"x": at * 7 % 5}) + "\n" for at in range(60)))
    (tmp_path / "labels.csv").write_text("offset,outlier\n3,1\n4,0\n")
    (tmp_path / "seed.csv").write_text("x\n1\n2\n")
    (tmp_path / "own.safetensors").write_bytes(b"weights")
    (tmp_path / "other.safetensors").write_bytes(b"other weights")
    return ReplaySettings(
        file=tmp_path / "rows.jsonl",
        labels_file=tmp_path / "labels.csv",
        seed_context=tmp_path / "seed.csv",
        model=str(tmp_path / "own.safetensors"),
        grid=(f"model={tmp_path / 'other.safetensors'}",),
        min_context=10,
        context_size=20,
    )


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("rows.jsonl", '{"x": 1}\n{"x": 2}\n' * 30, "file .*rows.jsonl"),
        ("labels.csv", "offset,outlier\n3,1\n4,1\n", r"what the labels say \(file labels.csv\)"),
        ("seed.csv", "x\n1\n3\n", "file .*seed.csv"),
        ("own.safetensors", "weightz", "model .*own.safetensors"),
        ("other.safetensors", "another", "model .*other.safetensors"),
    ],
)
def test_an_input_that_has_changed_is_named(
    settings: ReplaySettings, tmp_path: Path, name: str, content: str, named: str
) -> None:
    folder = tmp_path / "progress"
    before = resumed_plan(settings, folder)
    again = resumed_plan(settings, folder)
    assert (again.now_ms, again.notes, again.schema) == (before.now_ms, before.notes, before.schema)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{named} has changed since .*; use another folder to start a new replay$"):
        resumed_plan(settings, folder)


def test_another_version_does_not_go_on(
    settings: ReplaySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed_plan(settings, tmp_path)
    monkeypatch.setattr("fomo_stream.__version__", "0.0.0")
    with pytest.raises(ConfigError, match="the version of fomo-stream has changed"):
        resumed_plan(settings, tmp_path)


def test_a_file_that_can_be_read_only_once_is_refused(settings: ReplaySettings, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    changed = settings.model_copy(update={"seed_context": tmp_path / "pipe"})
    with pytest.raises(ConfigError, match="is no file that can be read twice"):
        resumed_plan(changed, tmp_path)


Effects = dict[int, list[LabelEffect]]
EFFECTS: Effects = {0: [LabelEffect(5, ((1, True), (2, False)))], 1: [LabelEffect(9, ((8, True),))]}


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({**EFFECTS, 0: [*EFFECTS[0], LabelEffect(11, ((10, True),))]}, True),  # after the range
        ({**EFFECTS, 0: [*EFFECTS[0], LabelEffect(10, ((9, True),))]}, False),  # when its last record was scored
        ({**EFFECTS, 0: [LabelEffect(5, ((1, True), (2, True)))]}, False),
        ({**EFFECTS, 0: [LabelEffect(6, ((1, True), (2, False)))]}, False),
        ({0: EFFECTS[1], 1: EFFECTS[0]}, False),
    ],
)
def test_labels_of_the_group_are_compared_up_to_the_end_of_the_range(changed: Effects, is_same: bool) -> None:
    plan = replace(make_plan(effects=EFFECTS), ranges={number: Range(number, 0, 10) for number in (0, 1)})
    found = resuming._inputs(plan), resuming._inputs(replace(plan, effects=changed))
    assert (found[0] == found[1]) is is_same


@pytest.mark.parametrize("now", [{"t": "new"}, {}])
def test_a_topic_that_was_created_again_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: dict[str, str]
) -> None:
    plan = replace(make_plan(), ranges={0: Range(0, 3, 90, 2, "old")})
    settings = plan.settings
    made: list[Any] = []

    def makes(_settings: ReplaySettings, begun: Any = None) -> Any:
        made.append(begun)
        return plan

    monkeypatch.setattr(resuming, "make_plan", makes)
    monkeypatch.setattr(resuming, "present_topic_ids", lambda *_: {"t": "old"})
    resumed_plan(settings, tmp_path)
    resumed_plan(settings, tmp_path)
    assert made[1].ranges == plan.ranges
    monkeypatch.setattr(resuming, "present_topic_ids", lambda *_: now)
    with pytest.raises(ConfigError, match=r"topic t was deleted or created again .*; use another folder to start"):
        resumed_plan(settings, tmp_path)
    assert len(made) == 2
