"""`fomo-stream score`: every record comes back in its place, with its result."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scoring import RECORDS, N, as_csv, as_jsonl, results, score

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.model.checkpoint import load_model
from fomo_stream.records.inference import infer_schema

FIELDS = (
    "score",
    "remembered_logit",
    "logit",
    "p_value",
    "outlier",
    "severity",
    "confidence",
    "missing",
    "generation",
    "regime",
    "status",
    "incident",
)
RESULT = [f"fomo_{name}" for name in (*FIELDS, "reasons", "explanation")]
STATUS = RESULT.index("fomo_status") - len(RESULT)


def test_json_lines_come_back_with_their_fields_and_a_result(model_path: Path) -> None:
    output, notes = score(model_path, as_jsonl(RECORDS))
    lines = [json.loads(line) for line in output.splitlines()]
    found = [line.pop("fomo") for line in lines]
    assert lines == RECORDS
    assert all(0 <= result["score"] <= 1 for result in found)
    assert f"scored={N}" in notes
    assert "reading (monotone counter)" in notes


def test_csv_comes_back_with_its_cells_and_new_columns(model_path: Path) -> None:
    data = as_csv(RECORDS)
    output, _ = score(model_path, data)
    rows = list(csv.DictReader(io.StringIO(output.decode())))
    assert list(rows[0])[-len(RESULT) :] == RESULT
    assert [{name: row[name] for name in RECORDS[0]} for row in rows] == list(
        csv.DictReader(io.StringIO(data.decode()))
    )
    assert {row["fomo_status"] for row in rows} == {"ok", "calibrating"}


def test_csv_and_json_lines_of_the_same_records_get_the_same_scores(model_path: Path) -> None:
    rows = csv.DictReader(io.StringIO(score(model_path, as_csv(RECORDS))[0].decode()))
    logits = [result["logit"] for result in results(score(model_path, as_jsonl(RECORDS))[0])]
    assert [float(row["fomo_logit"]) for row in rows] == pytest.approx(logits, rel=1e-8)


def test_scores_are_those_of_the_detector_and_the_first_ones_are_cross_scored(model_path: Path) -> None:
    schema, _ = infer_schema(RECORDS[:50])
    detector = Detector(load_model(str(model_path), "cpu"), len(schema.features), DetectorConfig(min_context=50))
    rows = schema.rows(RECORDS)
    detector.process(rows[:50])
    expected = np.concatenate([detector.cross_scored().logit, detector.process(rows[50:]).logit])
    found = [result["logit"] for result in results(score(model_path, as_jsonl(RECORDS))[0])]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("batch_size", [1, 37, 4096])
def test_scores_do_not_depend_on_the_batch_size(model_path: Path, batch_size: int) -> None:
    data = as_jsonl(RECORDS[:300])
    assert score(model_path, data, batch_size=batch_size)[0] == score(model_path, data)[0]


def test_an_input_shorter_than_the_context_is_cross_scored(model_path: Path) -> None:
    found = results(score(model_path, as_jsonl(RECORDS[:20]))[0])
    assert len(found) == 20
    assert all(result["score"] is not None for result in found)


def test_three_records_go_out_unscored_with_a_note(model_path: Path) -> None:
    output, notes = score(model_path, as_jsonl(RECORDS[:3]))
    assert [result["status"] for result in results(output)] == ["warming_up"] * 3
    assert "nothing was scored: the input has 3 records to score, and at least 4 are needed" in notes
    assert "--context" in notes


def test_no_line_is_dropped_and_those_that_cannot_be_scored_say_why(model_path: Path) -> None:
    good = as_jsonl(RECORDS[:60]).splitlines()
    data = b"\n".join([b"{bad", *good[:30], b"[1]", b"", b'{"note": "empty"}', *good[30:], b"\xff"])
    output, notes = score(model_path, data)
    assert len(output.splitlines()) == len(data.splitlines()) == 65
    assert output.splitlines()[32] == b""
    lines = [json.loads(line) for line in output.splitlines() if line]
    status = [line["fomo"]["status"] for line in lines]
    assert [status[i] for i in (0, 31, 32, 63)] == ["malformed", "malformed", "no_features", "malformed"]
    assert lines[0]["raw"] == "{bad"
    assert lines[31]["fomo"]["line"] == 32
    assert [lines[i]["fomo"]["reason"] for i in (0, 31, 63)] == ["not_json", "not_an_object", "not_utf8"]
    assert "line 32" in notes
    assert "scored=60 outliers=0 skipped=4 missing=1 blank=1" in notes


def test_only_the_first_malformed_lines_are_shown_and_the_rest_are_counted(model_path: Path) -> None:
    _, notes = score(model_path, b"{\n" * 9 + as_jsonl(RECORDS[:60]), may_skip=True)
    assert notes.count("not JSON") == 5
    assert "4 more lines" in notes


def test_a_ragged_csv_row_keeps_its_place(model_path: Path) -> None:
    lines = as_csv(RECORDS[:60]).splitlines()
    lines.insert(10, b"P-101,1,2,3,4,5,6,7,8,9")
    lines.insert(20, b"P-101,1")
    output, notes = score(model_path, b"\n".join(lines))
    rows = list(csv.reader(io.StringIO(output.decode())))
    assert {len(row) for row in rows} == {len(RECORDS[0]) + len(RESULT)}
    assert [rows[i][STATUS] for i in (10, 20)] == ["malformed"] * 2
    assert "malformed" not in {rows[i][STATUS] for i in (9, 11, 19, 21)}
    assert "line 11: the row has 10 cells" in notes


def test_a_second_run_replaces_the_first_one(model_path: Path) -> None:
    once, _ = score(model_path, as_csv(RECORDS[:100]))
    assert score(model_path, once)[0] == once
    once, _ = score(model_path, as_jsonl(RECORDS[:100]))
    assert score(model_path, once)[0] == once


def test_scores_only_leaves_the_record_out(model_path: Path) -> None:
    output, _ = score(model_path, as_csv(RECORDS[:60]), scores_only=True, result_field="r")
    assert output.splitlines()[0].decode() == ",".join(RESULT).replace("fomo", "r")
    output, _ = score(model_path, as_jsonl(RECORDS[:60]), scores_only=True, result_field="r")
    assert {tuple(json.loads(line)) for line in output.splitlines()} == {("r",)}


@pytest.mark.parametrize(
    ("data", "flags", "complaint"),
    [
        (b"a,b\nx,y\n", {}, "no numeric field"),
        (b"{bad\n", {"format": "jsonl"}, "no line of the input is a record"),
        (b"{bad\n" * 5000, {"format": "jsonl"}, "only 0 of the first"),  # before memory fills up
        (b"a,b\n", {}, "the input has only a line of column names, and no rows under it"),
        (b"Report of June\n" + b"1,2\n" * 60, {}, r"names 1 column \(Report of June\); if it is a title or a comment"),
        (b"a,b\n1,2\n", {"format": "jsonl"}, "each line must be one JSON object; if the file is CSV, .* --format csv"),
        (
            b'{"a": "1.5"}\n' * 60,
            {},
            r"no numeric .* first 60 records of the input; left out: a \(text such as '1\.5'\)",
        ),
        (b"a,b\n" + b",1\n" * 60, {"features": ("a",)}, "no number in a in the first 60 records of the input$"),
        (
            as_jsonl([{f"f{j}": (i * (j + 2)) % 13 for j in range(101)} for i in range(60)]),
            {"model": "paper-100"},
            "takes up to 100 features .*, the rows have 101; name the features to use",
        ),
        (b'{"a": 1}\n' * 60 + b'{"b": 1}\n' * 5000, {"features": ("a",), "min_context": 200}, "only 60 of the first"),
    ],
)
def test_an_input_that_cannot_be_scored_is_refused(model_path: Path, data: bytes, flags: Any, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        score(model_path, data, **flags)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            {"features": ("flow",)},
            "--features: there is no field flow in the first 60 records .*; did you mean flow",
        ),
        ({"features": ("reading", "Pump_2")}, "--features: .* no field Pump_2 .*; did you mean pump?"),
        ({"features": ("pump",)}, "--features: pump has text such as 'P-101', .* name it with --categorical"),
        ({"categorical": ("colour",)}, "--categorical: .* no field colour .*; the fields are pump,reading,"),
        ({"lags": 2, "key": "PUMPS"}, "--key: .* no field PUMPS .*; did you mean pump?"),
    ],
)
@pytest.mark.parametrize("as_bytes", [as_jsonl, as_csv])
def test_a_mistyped_field_is_a_mistake_in_a_flag(model_path: Path, flags: Any, complaint: str, as_bytes: Any) -> None:
    data = as_bytes(RECORDS[:60])
    with pytest.raises(ConfigError, match=complaint) as caught:
        score(model_path, data, **flags)
    assert caught.value.exit_code == 2
    context = model_path.parent / "named.context"
    context.write_bytes(data)
    with pytest.raises(ConfigError, match=complaint):
        score(model_path, data, **{"lags": 1, **flags}, context=context)


@pytest.mark.parametrize("flag", ["features", "categorical", "key"])
@pytest.mark.parametrize(("name", "fields"), [("m", "m.x,m.n.y"), ("m.n", "m.n.y")])
def test_an_object_is_no_field_and_its_fields_are_named(model_path: Path, flag: str, name: str, fields: str) -> None:
    records = [{"a": i % 7, "m": {"x": i % 5, "n": {"y": i % 3}}} for i in range(60)]
    value = name if flag == "key" else (name,)
    with pytest.raises(ConfigError, match=f"--{flag}: {name} is an object .*; name one of {fields}$"):
        score(model_path, as_jsonl(records), **{flag: value})
    columns = as_csv([{"a": i % 7, "m.x": i % 5} for i in range(60)])
    with pytest.raises(ConfigError, match="there is no field m"):
        score(model_path, columns, **{flag: value})
