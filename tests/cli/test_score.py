"""`fomo-stream score`: every record comes back in its place, with its result."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scoring import RECORDS, N, as_avro, as_csv, as_jsonl, results, score, table

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.model.checkpoint import load_model
from fomo_stream.records.inference import infer_schema
from fomo_stream.records.result_writers import CSV_FIELDS, EXPLAINED_FIELDS

RESULT = [f"fomo_{name}" for name in (*CSV_FIELDS, *EXPLAINED_FIELDS)]
STATUS = RESULT.index("fomo_status") - len(RESULT)


def test_records_come_back_with_the_scores_of_the_detector_and_the_first_ones_are_cross_scored(
    model_path: Path,
) -> None:
    output, notes = score(model_path, as_jsonl(RECORDS))
    lines = [json.loads(line) for line in output.splitlines()]
    logits = [line.pop("fomo")["logit"] for line in lines]
    assert lines == RECORDS
    assert f"scored={N}" in notes
    assert "reading (monotone counter)" in notes
    schema, _ = infer_schema(RECORDS[:50])
    detector = Detector(load_model(str(model_path), "cpu"), len(schema.features), DetectorConfig(min_context=50))
    rows = schema.rows(RECORDS)
    detector.process(rows[:50])
    expected = np.concatenate([detector.cross_scored().logit, detector.process(rows[50:]).logit])
    np.testing.assert_array_equal(logits, expected)


def test_csv_comes_back_with_its_cells_and_the_results_of_json_lines(model_path: Path) -> None:
    data = as_csv(RECORDS)
    rows = table(score(model_path, data)[0])
    of_json = results(score(model_path, as_jsonl(RECORDS))[0])
    assert list(rows[0])[-len(RESULT) :] == RESULT
    assert [{name: row[name] for name in RECORDS[0]} for row in rows] == table(data)
    assert [float(row["fomo_logit"]) for row in rows] == pytest.approx([one["logit"] for one in of_json], rel=1e-8)
    for row, result in zip(rows, of_json, strict=True):
        assert row["fomo_explanation"] == result.get("explanation", "")
        names = [reason["feature"] for reason in result.get("reasons", [])]
        assert row["fomo_reasons"].split("; ") == (names or [""])
        assert row["fomo_incident"] == ("" if "incident" not in result else str(int(result["incident"]) + 1))
    assert any(row["fomo_reasons"] for row in rows)
    once, _ = score(model_path, as_csv(RECORDS[:60]), explain="none", result_field="r", scores_only=True)
    assert once.splitlines()[0].decode() == ",".join(f"r_{name}" for name in CSV_FIELDS)
    once, _ = score(model_path, as_csv(RECORDS[:60]))
    assert score(model_path, once)[0] == once  # a second run replaces the first one


def test_avro_comes_back_as_the_same_records_in_json_lines(model_path: Path) -> None:
    flags = {"features": ("temperature_c", "pressure_bar", "flow_m3_h")}
    assert score(model_path, as_avro(RECORDS), **flags) == score(model_path, as_jsonl(RECORDS), **flags)


def test_three_records_go_out_unscored_with_a_note(model_path: Path) -> None:
    output, notes = score(model_path, as_jsonl(RECORDS[:3]))
    assert [result["status"] for result in results(output)] == ["warming_up"] * 3
    assert "nothing was scored: the input has 3 records to score, and at least 4 are needed" in notes
    assert "--context" in notes
    output, _ = score(model_path, as_jsonl(RECORDS[:20]))  # fewer than --min-context
    assert all(result["score"] is not None for result in results(output))


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
    ragged = as_csv(RECORDS[:60]).splitlines()
    ragged[10:10] = [b"P-101,1,2,3,4,5,6,7,8,9"] * 9
    output, notes = score(model_path, b"\n".join(ragged), may_skip=True)
    rows = list(csv.reader(io.StringIO(output.decode())))
    assert {len(row) for row in rows} == {len(RECORDS[0]) + len(RESULT)}
    assert [at for at, row in enumerate(rows) if row[STATUS] == "malformed"] == list(range(10, 19))
    assert "line 11: the row has 10 cells" in notes
    assert (notes.count("the row has"), "4 more lines" in notes) == (5, True)  # only the first ones are shown


@pytest.mark.parametrize(
    ("data", "flags", "complaint"),
    [
        (b"aa\x01bb\n" + b"11\x0122\n" * 60, {}, r"if '.x01' separates the cells of a file, give --delimiter"),
        (b"a b\n" + b"x 1\n" * 60, {}, "if ' ' separates the cells of a file, give --delimiter ' '"),
        (b"{bad\n", {"format": "jsonl"}, "no line of the input is a record; each line must be one JSON object"),
        (b"{bad\n" * 5000, {"format": "jsonl"}, "only 0 of the first"),  # before memory fills up
        (b"a,b\n", {}, "no line of the input is a record; it must be CSV with rows under a line of column names"),
        (b'{"a": "1,5"}\n' * 60, {}, r"no numeric .* first 60 records of the input; left out: a \(text\)"),
        (b'{"a": null, "b": 1}\n' * 50, {"key": "a"}, "there is no value in a in the first 50 records"),
        (b"a,b\n" + b"nan,1\n" * 60, {"features": ("a",)}, "no number in a in the first 60 records of the input$"),
        (b'{"a": 1}\n' * 60 + b'{"b": 1}\n' * 5000, {"features": ("a",), "min_context": 200}, "only 60 of the first"),
    ],
)
def test_an_input_that_cannot_be_scored_is_refused(model_path: Path, data: bytes, flags: Any, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        score(model_path, data, **flags)


OBJECTS = [{"a": i % 7, "m": {"x": i % 5, "n": {"y": i % 3}}} for i in range(60)]


@pytest.mark.parametrize(
    ("records", "flags", "complaint"),
    [
        (RECORDS, {"features": ("reading", "Pump_2")}, "no field Pump_2 .*; did you mean pump?"),
        (RECORDS, {"features": ("pump",)}, "^pump has text, .* name it as categorical"),
        (RECORDS, {"exclude": ("collour",)}, "there is no field collour .*; the fields are pump,reading,"),
        (OBJECTS, {"key": "m.n", "lags": 1}, "there is no field m.n .*; did you mean m.n.y"),
    ],
)
def test_a_mistyped_field_is_a_mistake_in_a_flag(
    model_path: Path, tmp_path: Path, records: list[dict[str, Any]], flags: Any, complaint: str
) -> None:
    context = tmp_path / "named.context"
    context.write_bytes(as_jsonl(records[:50]))
    for more in ({}, {"context": context}):
        if "key" not in flags or not more:
            with pytest.raises(ConfigError, match=complaint) as caught:
                score(model_path, as_jsonl(records[:50]), **more, **flags)
            assert caught.value.exit_code == 2


# --- files as they come, and only the outliers


def summary(notes: str) -> str:
    return next(line for line in notes.splitlines() if line.startswith("scored="))


def test_only_the_outliers_are_written_and_everything_is_counted(model_path: Path) -> None:
    everything, notes = score(model_path, as_csv(RECORDS))
    only, few_notes = score(model_path, as_csv(RECORDS), outliers_only=True)
    rows = enumerate(table(everything), 2)  # the header is line 1
    assert table(only) == [row | {"fomo_line": str(n)} for n, row in rows if row["fomo_outlier"] == "true"]
    assert 0 < len(table(only)) < 60
    assert summary(notes) == summary(few_notes)


def test_columns_and_cells_that_do_not_count_and_decimal_commas_are_named(model_path: Path) -> None:
    rows = [f"{i % 7};{i % 5},5;v{i % 3};{'x7' if i == 58 else i % 4}" for i in range(60)]
    rows[20] = rows[40] = ";;;"
    _, notes = score(model_path, "\n".join(["a;b;load;d", *rows]).encode())
    assert "read with decimal commas" in notes
    assert "left out: load (text)" in notes
    assert "1 cell of the column d of the input counted as missing: text such as 'x7'" in notes
    assert "skipped=2 missing=1" in summary(notes)
    assert "2 records of the input without a value of any feature (a,b,d)" in notes


def test_marks_of_missing_values_give_the_results_of_empty_cells(model_path: Path) -> None:
    marked = [one | ({"flow_m3_h": -9999} if i % 7 == 3 else {}) for i, one in enumerate(RECORDS)]
    marked = [one | ({"pressure_bar": 65535} if 300 < i < 310 else {}) for i, one in enumerate(marked)]
    gaps = [{name: None if value in (-9999, 65535) else value for name, value in one.items()} for one in marked]
    expected, notes = score(model_path, as_csv(gaps))
    assert "missing-values" not in notes
    marks = {"flow_m3_h": -9999, "*": [65535], "flow_m3": -1}
    found, notes = score(model_path, as_csv(marked), missing_values=marks)
    assert "--missing-values can never apply to flow_m3: there is no such feature; did you mean flow_m3_h?" in notes
    for line, other, own in zip(*(text.split(b"\n") for text in (found, expected, as_csv(gaps))), strict=True):
        assert line.endswith(other[len(own) :])
    _, notes = score(model_path, as_csv(marked))
    assert "flow_m3_h is -9999 in 37 of the first 256 records, far from all others" in notes
    assert "pressure_bar is 65535 in 9 of 420 records" in notes
    assert "use --missing-values flow_m3_h=-9999,pressure_bar=65535\n" in notes


def test_times_that_cannot_be_read_and_keys_that_no_record_has_are_named(model_path: Path) -> None:
    times = [f"2026-10-01T{i // 60:02}:{i % 60:02}:00Z" if i < 400 else "yesterday" for i in range(N)]
    data = as_csv([{**record, "at": None if i < 3 else times[i]} for i, record in enumerate(RECORDS)])
    notes = score(model_path, data, time="at", key="pump", mute_key=("p99",))[1]
    assert "23 records of the input without a readable time in at, such as 'yesterday'" in notes
    assert "--mute-key: no record of the input has the key p99" in notes


@pytest.mark.parametrize(("begin", "batch_size", "skip"), [(0, 32, "both"), (2, 256, "learning"), (20, 256, "both")])
def test_records_around_a_window_are_scored_as_without_those_in_it(
    model_path: Path, begin: int, batch_size: int, skip: str
) -> None:
    records = [record | {"t": 1_790_000_000 + 60 * i} for i, record in enumerate(RECORDS[:240])]
    ends = [f"{datetime.fromtimestamp(records[i]['t'], UTC):%Y-%m-%dT%H:%M:%S}" for i in (begin, 130)]
    window = {"name": "w", "from": ends[0], "to": ends[1], "skip": skip}
    flags: Any = {"time": "t", "maintenance": [window], "batch_size": batch_size}
    output, notes = score(model_path, as_jsonl(records), **flags)
    assert "nothing was scored" not in notes
    outside = results(output)[:begin] + results(output)[130:]
    expected = results(score(model_path, as_jsonl(records[:begin] + records[130:]), time="t")[0])
    assert [result["logit"] for result in outside] == [result["logit"] for result in expected]
    assert all(result["score"] is not None for result in outside)
    assert all(result["score"] is None for result in results(output)[begin:130])  # in the warm-up
    _, notes = score(model_path, as_jsonl(records), maintenance=[window])
    assert "windows of maintenance (w) can never apply: records of a file have times only by --time" in notes


def test_records_in_a_window_are_scored_by_those_before_them_only(model_path: Path, tmp_path: Path) -> None:
    total = np.cumsum(np.random.default_rng(0).exponential(size=140))  # also in the window
    records = [
        record | {"total": float(total[i]), "t": 1_790_000_000 + 60 * i} for i, record in enumerate(RECORDS[:140])
    ]
    good = tmp_path / "good.csv"
    good.write_bytes(as_csv(records))
    cases = (105, None, "learning"), (105, good, "both"), (5, good, "learning"), (5, good, "both")
    for begin, reference, skip in cases:
        ends = [f"{datetime.fromtimestamp(records[i]['t'], UTC):%Y-%m-%dT%H:%M:%S}" for i in (begin, begin + 10)]
        flags: Any = {"time": "t", "counters": ("total",), "reference": reference}
        flags |= {"maintenance": [{"name": "w", "from": ends[0], "to": ends[1], "skip": skip}]}
        output = results(score(model_path, as_jsonl(records), **flags)[0])
        for n in (begin + 6, begin + 12):
            assert results(score(model_path, as_jsonl(records[:n]), **flags)[0]) == output[:n]
        assert output == results(score(model_path, as_jsonl(records), batch_size=1, **flags)[0])


def test_a_reference_decides(model_path: Path, tmp_path: Path) -> None:
    lasting = [{**record, "pressure_bar": 3.0 + (record["pressure_bar"] or 5.0)} for record in RECORDS]
    (tmp_path / "good.csv").write_bytes(as_csv(RECORDS[:200]))
    flags: dict[str, Any] = {"exclude": ("reading",), "min_context": 50}
    without = results(score(model_path, as_jsonl(lasting), **flags)[0])
    found = results(score(model_path, as_jsonl(lasting), reference=tmp_path / "good.csv", **flags)[0])
    assert all(one["outlier"] and one["status"] == "ok" for one in found)
    assert sum(one["outlier"] for one in without) < N // 2
    assert [one["logit"] for one in found[60:]] == [one["logit"] for one in without[60:]]
    assert "pressure_bar is" in found[-1]["explanation"]
    assert "in the reference usually" in found[-1]["explanation"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (as_csv(RECORDS[:60]), "has 60 usable rows; at least 106 are needed; give more rows, or raise --alert-rate"),
        (as_jsonl(RECORDS[:60]) + b"{\n", "line 61: .*; correct or remove that line"),
        (b"time,other\n1,2\n3,4\n", "has no value of any feature .*flow_m3_h.*; give records with the same"),
        (b"flow_m3_h\n" + b"1\n" * 300, "has no value of .*temperature_c.*; add it, or leave it out"),
        (b"", "empty|no rows|usable"),
    ],
)
def test_a_reference_that_is_refused(model_path: Path, tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "reference"
    path.write_bytes(text)
    with pytest.raises(SchemaError, match=message):
        score(model_path, as_jsonl(RECORDS), reference=path)


@pytest.mark.parametrize("form", [as_jsonl, as_avro])
def test_a_range_of_the_input_is_a_reference_as_a_file_with_its_records(
    model_path: Path, tmp_path: Path, form: Any
) -> None:
    timed = [{"t": f"2026-10-01T{i // 60:02}:{i % 60:02}:00", **record} for i, record in enumerate(RECORDS)]
    data = form(timed) + (b"" if form == as_avro else b"{oops\n")  # which is no record of the range
    (tmp_path / "all").write_bytes(data)
    (tmp_path / "good").write_bytes(form(timed[30:180]))
    flags: dict[str, Any] = {"file": str(tmp_path / "all"), "key": "pump", "exclude": "reading", "time": "t"}
    flags |= {"missing_values": "flow_m3_h=0", "timezone": "Europe/Berlin", "derive": "change(flow_m3_h)"}
    expected, _ = score(model_path, data, reference=tmp_path / "good", **flags)
    found, notes = score(model_path, data, reference="2026-09-30T22:30/2026-10-01T01:00", **flags)
    assert found == expected
    assert "--reference: 150 good records" in notes
    expected, _ = score(model_path, data, reference="2026-09-30T22:00/2026-10-01T01:00", **flags)
    found, notes = score(model_path, data, reference="first:3h", **flags)
    assert found == expected
    assert "--reference 2026-09-30T22:00:00/2026-10-01T01:00:00: 180 good records" in notes
    for reference, message in (
        ("first:24h", "first:24h is not complete: there is no record after its range 2026-09-30T22:00:00/2026-10"),
        ("first:9m", "--reference 2026-09-30T22:00:00/2026-09-30T22:09:00: the reference has 9 usable rows; at least"),
    ):
        with pytest.raises(SchemaError, match=message):
            score(model_path, data, reference=reference, **flags)
    with pytest.raises(SchemaError, match="2020-01-02: no record of the input has such a time; give another range"):
        score(model_path, data, reference="2020-01-01/2020-01-02", **flags)


def test_a_reference_has_derived_features_too(model_path: Path, tmp_path: Path) -> None:
    rng, begin = np.random.default_rng(0), 1_790_000_000
    calm = [{"t": begin + 300 * i, "user": "ab"[i % 2], "amount": rng.normal(20.0, 5.0)} for i in range(500)]
    fast = [{**record, "t": begin + 300 * 500 + 5 * i} for i, record in enumerate(calm[:60])]
    good = tmp_path / "good.jsonl"
    good.write_bytes(as_jsonl(calm[:400]))
    flags: dict[str, Any] = {"key": "user", "time": "t", "derive": ("count(10m)",), "reference": good}
    found = results(score(model_path, as_jsonl(calm[400:] + fast), **flags)[0])
    assert sum(one["outlier"] for one in found[:100]) <= 10
    assert all(one["outlier"] for one in found[-30:])
    assert "count(10m) is" in found[-1]["explanation"]
