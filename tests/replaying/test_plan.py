"""Plans of files: features, times and labels are settled before anything is scored, and mistakes are explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fomo_stream.errors import FomoError
from fomo_stream.kafka.bounds import Range
from fomo_stream.records.times import END_MS
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN
from fomo_stream.replaying.command import make_plan
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.topic_source import topic_start
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.sources import load

RNG = np.random.default_rng(5)
RECORDS: list[dict[str, Any]] = [
    {"at": 1_759_276_800 + 60 * i, "device": f"{7 * i % 3:03}", "flow": x, "load": {"kw": y}, "bad": i % 40 == 39}
    for i, (x, y) in enumerate(RNG.normal(size=(400, 2)).tolist())
]


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    lines = [f"{r['at']},{r['device']},{r['flow']},{r['bad']},0.5" for r in RECORDS]
    path.write_text("\n".join(["at,device,flow,bad,fomo_score", *lines]))
    return path


def plan_of(path: Path, **options: Any) -> Plan:
    return make_plan(ReplaySettings(file=path, **options))


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(FomoError) as caught:
        plan_of(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_fields_with_another_role_are_no_features(jsonl: Path, csv: Path) -> None:
    plan = plan_of(jsonl, label="bad", time="at", key="device")
    assert plan.schema.features == ("flow", "load.kw")
    assert (plan.axis, plan.has_labels) == ("time", True)
    assert plan.notes[0].startswith("The file is replayed from its first record")
    assert "bad (label of the record)" in plan.notes[1]
    found = list(plan.source.read(0, lambda: False))
    assert [one.fields for one in found] == RECORDS
    assert [one.timestamp for one in found] == [1000 * record["at"] for record in RECORDS]
    assert [one.key for one in found] == [record["device"] for record in RECORDS]
    assert [one.label for one in found] == [OUTLIER if record["bad"] else INLIER for record in RECORDS]
    other = plan_of(csv, label="bad", time="at", key="device")
    assert other.schema.features == ("flow",)  # without the result of an earlier run
    assert [one.key for one in other.source.read(0, lambda: False)] == [one.key for one in found]


def test_without_roles_every_number_is_a_feature_and_records_count_the_time(jsonl: Path) -> None:
    plan = plan_of(jsonl, group="live")
    assert plan.notes[-1].startswith("--group has no effect on a file")
    assert plan.schema.features == ("bad", "flow", "load.kw")
    assert "at (a time; use --time at)" in plan.notes[1]
    assert (plan.axis, plan.has_labels) == ("record", False)
    assert plan.source.total(0) == len(RECORDS)


def test_labels_of_a_file_are_joined_by_number(jsonl: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("offset,outlier\n3,true\n5,false\n1000,true\n")
    plan = plan_of(jsonl, labels_file=tmp_path / "labels.csv")
    labelled = [one.offset for one in plan.source.read(0, lambda: False) if one.label != UNKNOWN]
    assert labelled == [3, 5]
    assert plan.notes[-1] == "Left out of labels.csv: 1 label about no record of the range."
    assert plan.has_labels


def test_times_of_the_future_count_as_they_are_if_most_are_such(jsonl: Path) -> None:
    for n_future, is_said in ((21, True), (20, False)):
        rows = [{"flow": i % 7, "at": 4_900_000_000 + i if i < n_future else 1_700_000_000 + i} for i in range(40)]
        jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
        plan = plan_of(jsonl, time="at")
        assert (plan.now_ms == END_MS) == is_said
        assert any("The times in at are in the future" in note for note in plan.notes) == is_said


def test_labels_whose_normal_records_cannot_be_read_are_refused(jsonl: Path) -> None:
    """Else all records with a label would be outliers: of classes 1 and 2, one is normal."""
    assert "have no such field" in refusal(jsonl, label="is_bad")
    for normal in (2, "benign?"):
        records = [{"flow": i % 7, "class": 1 if i == 20 else normal} for i in range(40)]
        jsonl.write_text("".join(json.dumps(record) + "\n" for record in records))
        assert f"have other values, such as '{normal}'; name a field" in refusal(jsonl, label="class")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"label": "baad"}, "rows.csv has no column baad; did you mean bad?"),
        ({"features": ("flow", "rpm")}, "has no column rpm"),
        ({"categorical": ("bad",), "label": "bad"}, "is a feature and the --label"),
        ({"time": "bad", "features": ("flow",)}, "is not a time"),
        ({"labels_file": Path("/absent/labels.csv")}, "cannot read /absent/labels.csv"),
    ],
)
def test_a_mistake_is_explained_in_one_sentence(csv: Path, options: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(csv, **options)


def test_a_field_with_two_roles_is_refused() -> None:
    flags = {"file": "rows.csv", "label": "bad", "key": "device", "time": "at"}
    for one, other in (("label", "key"), ("label", "time"), ("key", "time")):
        with pytest.raises(FomoError, match=f"--{one} and --{other} both name the field rpm"):
            load(ReplaySettings, flags | {one: "rpm", other: "rpm"})


def test_the_first_note_says_whether_results_equal_the_live_output() -> None:
    seed: dict[str, Any] = {"seed_context": Path(__file__)}
    for starts, options, beginning in (
        ((0, 9), {}, "Each partition is replayed from its beginning"),  # 1 has no records
        ((0, 7), {"min_context": 50}, "Warms up: the first 50 records of each partition"),
        ((3, 7), seed, "Starts later than a group would have"),
    ):
        ranges = {number: Range(number, start, 9) for number, start in enumerate(starts)}
        assert topic_start(ReplaySettings(topic="t", **options), ranges).startswith(beginning)
