from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fomo_stream.cli.score import Scoring, run_score
from fomo_stream.cli.scorers import text_columns
from fomo_stream.demo.sensors import sensor_stream
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.past_values import PastValues
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.model.checkpoint import load_model, save_model
from fomo_stream.model.zero_shot import PRESETS, ZeroShotModel
from fomo_stream.records.files import RecordFile
from fomo_stream.records.inference import infer_schema
from fomo_stream.settings.commands import ScoreSettings

N = 600
RECORDS = [record for record, _ in islice(sensor_stream(0, n_sensors=5, fault_every=100, first_fault=300), N)]
FIELDS = ("score", "logit", "p_value", "outlier", "severity", "missing", "generation", "regime", "status")
RESULT = [f"fomo_{name}" for name in FIELDS]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "fusion.safetensors"
    save_model(ZeroShotModel(PRESETS["fusion"]), path)
    return path


def as_jsonl(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def as_csv(records: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def score(model_path: Path, data: bytes, **flags: Any) -> tuple[bytes, str]:
    """What goes to standard output and to standard error."""
    out, notes = io.BytesIO(), io.StringIO()
    settings = ScoreSettings(**{"model": str(model_path), "device": "cpu", "min_context": 50, **flags})
    table = RecordFile(io.BytesIO(data), settings.format, text=text_columns(settings))
    Scoring(settings, table, out, notes).run()
    return out.getvalue(), notes.getvalue()


def results(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line)["fomo"] for line in output.splitlines()]


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
    assert "too few" in notes
    assert "--context" in notes


def test_a_fixed_context_is_not_learned_from(model_path: Path, tmp_path: Path) -> None:
    context = tmp_path / "normal.csv"
    context.write_bytes(as_csv(RECORDS[:200]))
    twice = as_jsonl([RECORDS[400], *RECORDS[300:350], RECORDS[400]])
    first, *_, last = results(score(model_path, twice, context=context)[0])
    assert first == last
    assert first["generation"] == 1


def test_a_context_file_counts_with_all_its_rows_unless_told_otherwise(model_path: Path, tmp_path: Path) -> None:
    context = tmp_path / "normal.jsonl"
    odd, usual = {"a": 50.0, "b": 50.0}, [{"a": i % 7, "b": i * i % 11} for i in range(1500)]
    context.write_bytes(as_jsonl([*usual[:20], odd, *usual]))
    data = as_jsonl([odd, usual[0]])
    everything = score(model_path, data, context=context)[0]
    assert score(model_path, data, context=context, context_size=1521)[0] == everything
    assert score(model_path, data, context=context, context_size=1000)[0] != everything


def test_a_context_file_too_small_for_the_alert_rate_is_told_of_once(model_path: Path, tmp_path: Path) -> None:
    context = tmp_path / "normal.csv"
    context.write_bytes(as_csv(RECORDS[:40]))
    output, notes = score(model_path, as_jsonl(RECORDS[300:500]), context=context)
    assert notes.count("nothing will be flagged: 40 rows") == 1
    assert {result["status"] for result in results(output)} == {"calibrating"}
    _, notes = score(model_path, as_jsonl(RECORDS[300:500]), context=context, alert_rate=0.1)
    assert "nothing will be flagged" not in notes


def test_no_line_is_dropped_and_those_that_cannot_be_scored_say_why(model_path: Path) -> None:
    good = as_jsonl(RECORDS[:60]).splitlines()
    data = b"\n".join([b"{bad", *good[:30], b"[1]", b"", b'{"note": "empty"}', *good[30:], b"\xff"])
    output, notes = score(model_path, data)
    lines = [json.loads(line) for line in output.splitlines()]
    status = [line["fomo"]["status"] for line in lines]
    assert len(lines) == 64
    assert [status[i] for i in (0, 31, 32, 63)] == ["malformed", "malformed", "no_features", "malformed"]
    assert lines[0]["raw"] == "{bad"
    assert lines[31]["fomo"]["line"] == 32
    assert [lines[i]["fomo"]["reason"] for i in (0, 31, 63)] == ["not_json", "not_an_object", "not_utf8"]
    assert "line 32" in notes
    assert "scored=60 outliers=0 skipped=4" in notes


def test_only_the_first_malformed_lines_are_shown_and_the_rest_are_counted(model_path: Path) -> None:
    _, notes = score(model_path, b"{\n" * 9 + as_jsonl(RECORDS[:60]))
    assert notes.count("not JSON") == 5
    assert "4 more lines" in notes


def test_a_ragged_csv_row_keeps_its_place(model_path: Path) -> None:
    lines = as_csv(RECORDS[:60]).splitlines()
    lines.insert(10, b"P-101,1,2,3,4,5,6,7,8,9")
    lines.insert(20, b"P-101,1")
    output, notes = score(model_path, b"\n".join(lines))
    rows = list(csv.reader(io.StringIO(output.decode())))
    assert {len(row) for row in rows} == {len(RECORDS[0]) + len(RESULT)}
    assert [rows[i][-1] for i in (10, 20)] == ["malformed"] * 2
    assert "malformed" not in {rows[i][-1] for i in (9, 11, 19, 21)}
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
        (as_jsonl(RECORDS[:60]), {"features": ("flow",)}, "no number in flow; check --features"),
        (as_jsonl(RECORDS[:60]), {"categorical": ("colour",)}, "no value in colour; check --categorical"),
        (as_jsonl(RECORDS[:60]), {"lags": 2, "key": "device"}, "no value in device; check --key"),
        (
            as_jsonl(RECORDS[:60]),
            {"model": "paper-100", "lags": 50},
            "takes up to 100 features, the rows have .* --lags",
        ),
        (b'{"a": 1}\n' * 60 + b'{"b": 1}\n' * 5000, {"features": ("a",), "min_context": 200}, "only 60 of the first"),
    ],
)
def test_an_input_that_cannot_be_scored_is_refused(model_path: Path, data: bytes, flags: Any, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        score(model_path, data, **flags)


# --- missing values, categories, and the past


def test_missing_values_are_counted_by_row_and_in_the_summary(model_path: Path) -> None:
    rng = np.random.default_rng(0)
    batch = [{"x": x, "y": y} for x, y in rng.normal(size=(60, 2)).tolist()]
    batch[5] |= {"x": None}
    batch[7] = {"y": "broken", "x": 1.0}
    batch[9] = {"other": 1}
    output, notes = score(model_path, as_jsonl(batch) + b"{bad", lags=2)
    missing = [result["missing"] for result in results(output)]
    assert missing == [0] * 5 + [1, 0, 1, 0, 2] + [0] * 50 + [None]
    assert "scored=59 outliers=0 skipped=2 missing=2" in notes


def postal(n: int) -> list[dict[str, Any]]:
    """Parcels with a postal code, which looks like a number, and a carrier."""
    rng = np.random.default_rng(0)
    codes, carriers = rng.choice(["01067", "10115", "80331"], n), rng.choice(["sea", "air"], n)
    return [
        {"weight": weight, "code": code, "carrier": carrier}
        for weight, code, carrier in zip(rng.normal(size=n).tolist(), codes.tolist(), carriers.tolist(), strict=True)
    ]


def test_categories_count_alike_in_csv_and_json_lines_and_are_not_taken_for_numbers(model_path: Path) -> None:
    batch = postal(400)
    batch[380]["code"] = "1067"  # as a number it would be the same as 01067
    batch[390]["carrier"] = "rail"
    lines = results(score(model_path, as_jsonl(batch), categorical=("code", "carrier"))[0])
    rows = list(
        csv.DictReader(io.StringIO(score(model_path, as_csv(batch), categorical=("code", "carrier"))[0].decode()))
    )
    assert [float(row["fomo_logit"]) for row in rows] == pytest.approx([line["logit"] for line in lines], rel=1e-8)
    assert lines[380]["outlier"]
    assert lines[390]["outlier"]
    assert sum(line["outlier"] for line in lines) < 12


def test_a_context_file_says_which_categories_are_known(model_path: Path, tmp_path: Path) -> None:
    context = tmp_path / "normal.csv"
    context.write_bytes(as_csv(postal(200)))
    known = [{"weight": 0.1, "code": code, "carrier": "sea"} for code in ("01067", "80331")]
    new = {"weight": 0.1, "code": "1067", "carrier": "sea"}
    found = results(score(model_path, as_jsonl([*known, new]), context=context, categorical=("code", "carrier"))[0])
    assert [result["outlier"] for result in found] == [False, False, True]


@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize("as_bytes", [as_jsonl, as_csv])
def test_each_row_is_scored_with_its_past_of_the_same_key(model_path: Path, batch_size: int, as_bytes: Any) -> None:
    rng = np.random.default_rng(0)
    values, devices = rng.normal(size=(150, 2)), rng.integers(1, 4, 150)
    batch = [
        {"x": x, "y": y, "device": device} for (x, y), device in zip(values.tolist(), devices.tolist(), strict=True)
    ]
    output, notes = score(model_path, as_bytes(batch), batch_size=batch_size, lags=3, key="device")
    assert "left out: device (key of the series)" in notes
    rows = PastValues(3, 2).rows(values, [str(device) for device in devices])
    detector = Detector(load_model(str(model_path), "cpu"), 8, DetectorConfig(min_context=50))
    detector.process(rows[:50])
    expected = np.concatenate([detector.cross_scored().logit, detector.process(rows[50:]).logit])
    if as_bytes is as_csv:
        found = [float(row["fomo_logit"]) for row in csv.DictReader(io.StringIO(output.decode()))]
    else:
        found = [result["logit"] for result in results(output)]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_the_past_of_a_context_file_is_its_own(model_path: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    normal, values = rng.normal(size=(100, 2)), rng.normal(size=(5, 2))
    context = tmp_path / "normal.jsonl"
    context.write_bytes(as_jsonl([{"x": x, "y": y} for x, y in normal.tolist()]))
    data = as_jsonl([{"x": x, "y": y} for x, y in values.tolist()])
    found = [result["logit"] for result in results(score(model_path, data, context=context, lags=1)[0])]
    detector = Detector(load_model(str(model_path), "cpu"), 4, DetectorConfig(min_context=50))
    detector.seed_context(PastValues(1, 2).rows(normal))
    np.testing.assert_array_equal(found, detector.score_rows(PastValues(1, 2).rows(values)).logit)


def test_a_context_may_come_through_a_pipe(model_path: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "context"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"cat > {pipe}"], stdin=subprocess.PIPE) as writer:
        threading.Thread(target=writer.communicate, args=(as_jsonl(RECORDS[:100] * 20),)).start()
        out, _ = score(model_path, as_jsonl(RECORDS[100:110]), context=pipe)
    assert all(result["score"] is not None for result in results(out))


def test_rows_that_have_nothing_in_common_with_the_context_are_explained(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "context.csv").write_bytes(as_csv(RECORDS[:100]))
    _, notes = score(model_path, b'{"other": 1}\n', context=tmp_path / "context.csv")
    assert "nothing was scored" in notes


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(model_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(model_path), input=as_jsonl(RECORDS[:50]), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_named(model_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.csv"):
        run_score(ScoreSettings(file="nowhere.csv", model=str(model_path)))


# --- as a command, in a pipe


def command(model_path: Path, *flags: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "fomo_stream.cli",
        "score",
        f"--model={model_path}",
        "--min-context=50",
        *flags,
        "-",
    ]


def test_in_a_pipe_each_record_is_scored_before_the_next_one_comes(model_path: Path) -> None:
    with subprocess.Popen(
        command(model_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(as_jsonl(RECORDS[:50]))
        process.stdin.flush()
        assert len([process.stdout.readline() for _ in range(50)]) == 50
        for record in RECORDS[50:53]:  # would hang here if the output waited for more input
            process.stdin.write(as_jsonl([record]))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["reading"] == record["reading"]
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_reader_that_goes_away_ends_it_quietly(model_path: Path) -> None:
    with subprocess.Popen(
        command(model_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(as_jsonl(RECORDS[:50]))
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        with open(os.dup(process.stdin.fileno()), "wb") as rest:
            rest.write(as_jsonl(RECORDS[50:60]))
        process.stdin.close()
        assert process.wait(30) == 0
        assert b"Error" not in process.stderr.read()
