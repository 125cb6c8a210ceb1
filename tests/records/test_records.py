from __future__ import annotations

import contextlib
import io
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.calibration import AlertThreshold
from fomo_stream.detector.results import Results
from fomo_stream.errors import ConfigError, RecordError, SchemaError
from fomo_stream.records.files import RecordFile, read_records, read_rows
from fomo_stream.records.inference import infer_schema
from fomo_stream.records.json_codec import MAX_DEPTH, decode, encode
from fomo_stream.records.result import result_of
from fomo_stream.records.schema import Schema

numbers = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.integers(-(2**80), 2**80), st.just(10**400), st.just(1e308)
)
scalars = st.one_of(st.none(), numbers, st.text(st.characters(), max_size=5))
keys = st.one_of(st.sampled_from(["a", "b", "a.b", "b.a", "fomo", ""]), st.text(st.characters(), max_size=3))
values = st.recursive(
    scalars,
    lambda child: st.one_of(st.lists(child, max_size=3), st.dictionaries(keys, child, max_size=3)),
    max_leaves=10,
)
records = st.dictionaries(keys, values, max_size=6)


def flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in record.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def finite(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: finite(child) for key, child in node.items()}
    if isinstance(node, list):
        return [finite(child) for child in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


# --- decode and encode


@given(st.binary())
def test_arbitrary_bytes_give_an_object_or_a_record_error(value: bytes) -> None:
    with contextlib.suppress(RecordError):
        assert isinstance(decode(value), dict)


@given(st.text(alphabet='{}[]":,.eE+-0123456789 NaInfityul\\udtrs\ufeff', max_size=60))
def test_almost_json_gives_an_object_or_a_record_error(text: str) -> None:
    with contextlib.suppress(RecordError):
        encode(decode(text.encode()), {})


@given(records)
def test_every_decoded_record_is_encoded_with_its_fields_unchanged(record: dict[str, Any]) -> None:
    decoded = decode(json.dumps(record).encode())
    again = decode(encode(decoded, {"score": 0.5}))
    assert again.pop("fomo") == {"score": 0.5}
    record.pop("fomo", None)
    assert again == finite(record)
    assert list(again) == [key for key in record if key != "fomo"]


@given(records)
def test_encoded_output_is_strict_json_on_one_line(record: dict[str, Any]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = encode(record, {"score": None})
    json.loads(line, parse_constant=refuse)
    assert b"\n" not in line


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", "not_json"),
        (b"\xff{}", "not_utf8"),
        (b'{"a": "\xed\xa0\x80"}', "not_utf8"),
        (b'{"a": 1', "not_json"),
        (b"[1]", "not_an_object"),
        (b"1", "not_an_object"),
        (b"NaN", "not_an_object"),
        (b'{"a": "' + b"x" * 100 + b'"}', "too_large"),
        (b"[" * 90, "not_json"),
    ],
)
def test_each_undecodable_value_has_its_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode(value, max_bytes=90)
    assert caught.value.reason == reason


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_deep_nesting_is_refused_and_never_crashes(depth: int, opening: bytes, closing: bytes) -> None:
    value = b'{"r":' + opening * depth + b"1" + closing * depth + b"}"
    with pytest.raises(RecordError) as caught:
        decode(value)
    assert caught.value.reason == "not_json"


def test_the_deepest_accepted_record_can_be_encoded() -> None:
    for odd in (b"1", b"NaN", b"1" * 30):
        value = b'{"a":' * MAX_DEPTH + odd + b"}" * MAX_DEPTH
        assert encode(decode(value), {}).startswith(b'{"a":{"a":')


def test_wide_records_with_many_small_objects_are_not_taken_for_deep_ones() -> None:
    record = {f"k{i}": {"v": [i]} for i in range(500)}
    assert decode(json.dumps(record).encode()) == record


def test_integers_beyond_64_bits_and_lone_surrogates_survive() -> None:
    value = b'{"big": 123456789012345678901234567890, "half": "\\ud800", "nan": NaN}'
    assert json.loads(encode(decode(value), {"score": 1.0})) == {
        "big": 123456789012345678901234567890,
        "half": "\ud800",
        "nan": None,
        "fomo": {"score": 1.0},
    }


def test_an_integer_of_thousands_of_digits_is_missing_not_an_error() -> None:
    assert np.isnan(Schema(("a",)).rows([decode(b'{"a": ' + b"9" * 50_000 + b"}")])).all()


def test_a_byte_order_mark_is_accepted() -> None:
    assert decode(b"\xef\xbb\xbf" + b'{"a": 1}') == {"a": 1}


def test_an_earlier_result_is_replaced_where_it_stood() -> None:
    line = encode({"fomo": {"score": 0.1}, "a": 1}, {"score": 0.9})
    assert line == b'{"fomo":{"score":0.9},"a":1}'


def test_scores_only_leaves_the_record_out() -> None:
    assert encode({"a": 1}, {"score": 0.9}, field="f", scores_only=True) == b'{"f":{"score":0.9}}'


def test_a_result_names_its_severity() -> None:
    threshold = AlertThreshold(0.01, 2000)
    p = np.array([0.5, 0.02, 0.01, 0.0001])
    scored = Results.of(np.zeros(4), p, np.ones(4, np.int64), 2, 100_000, threshold)
    results = [result_of(scored, i, "m", None, 0) for i in range(4)]
    assert [result["severity"] for result in results] == [None, "info", "warning", "critical"]
    assert [result["outlier"] for result in results] == [False, False, True, True]
    assert {result["regime"] for result in results} == {2}


def test_a_result_has_null_where_there_is_no_score() -> None:
    nan = np.array([np.nan])
    scored: Any = SimpleNamespace(
        score=nan,
        logit=nan,
        p_value=nan,
        outlier=np.array([False]),
        generation=np.array([0]),
        regime=np.array([0]),
        severity=np.array([0], dtype=np.int8),
        status=["warming_up"],
    )
    source = {"topic": "sensors", "partition": 3, "offset": 812, "timestamp": None}
    assert json.loads(encode({}, result_of(scored, 0, "m", source, 2)))["fomo"] == {
        **source,
        "score": None,
        "logit": None,
        "p_value": None,
        "outlier": False,
        "severity": None,
        "missing": 2,
        "model": "m",
        "generation": 0,
        "regime": 0,
        "status": "warming_up",
    }


# --- rows


@given(st.lists(records, min_size=1, max_size=6), st.lists(keys, min_size=1, max_size=6, unique=True))
def test_rows_agree_with_flattening_each_record(batch: list[dict[str, Any]], names: list[str]) -> None:
    def naive(value: Any) -> float:
        try:
            return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan
        except OverflowError:
            return math.nan

    # Where {"a.b": 1} and {"a": {"b": 2}} both stand in one record the name is ambiguous: the next test.
    batch = [record for record in batch if not any("." in key for key in record)]
    names = [name for name in names if name.count(".") < 2]
    if names and batch:
        expected = [[naive(flat(record).get(name)) for name in names] for record in batch]
        np.testing.assert_array_equal(Schema(tuple(names)).rows(batch), np.array(expected))


def test_a_key_with_dots_is_preferred_to_a_nested_one() -> None:
    rows = Schema(("a.b", "a.b.c")).rows(
        [
            {"a.b": 1, "a": {"b": 2}},
            {"a": {"b": 2}},
            {"a.b": {"c": 3}},
            {"a": {"b.c": 4}},
            {"a": {"b": {"c": 5}}},
        ]
    )
    np.testing.assert_array_equal(rows, [[1, np.nan], [2, np.nan], [np.nan, 3], [np.nan, 4], [np.nan, 5]])


def test_what_is_no_finite_number_is_missing_and_1e308_stays() -> None:
    odd = [None, "3", math.nan, math.inf, -math.inf, 10**400, [1], {"x": 1}]
    assert np.isnan(Schema(("a",)).rows([{"a": value} for value in odd] + [{}])).all()
    assert Schema(("a",)).rows([{"a": 1e308}, {"a": True}])[:, 0].tolist() == [1e308, 1.0]


def test_no_records_give_no_rows() -> None:
    assert Schema(("a", "b")).rows([]).shape == (0, 2)


def test_a_feature_named_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="named twice"):
        Schema(("a", "a"))


# --- inference


def inferred(columns: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    n = len(next(iter(columns.values())))
    schema, left_out = infer_schema({key: column[i] for key, column in columns.items()} for i in range(n))
    return schema.features, left_out


def test_features_are_the_numeric_and_boolean_leaves_sorted_by_path() -> None:
    record = {
        "z": 1.5,
        "motor": {"rpm": 900, "on": True, "tags": [1, 2]},
        "a": 2,
        "site": "north",
        "gone": None,
    }
    schema, left_out = infer_schema([record] * 20)
    assert schema.features == ("a", "motor.on", "motor.rpm", "z")
    assert left_out == {"gone": "always missing", "motor.tags": "a list", "site": "text"}


def test_counters_timestamps_and_identifiers_are_left_out() -> None:
    rng = np.random.default_rng(0)
    n = 200
    late = np.arange(n) * 1000 + rng.integers(0, 3000, n)  # milliseconds, some out of order
    _, left_out = inferred(
        {
            "seq": list(range(n)),
            "reading": [5 * i + 7 for i in range(n)],
            "elapsed": [0.1 * i for i in range(n)],
            "time": sorted(rng.uniform(0, 60, n).tolist()),
            "timestamp": (1_700_000_000_000 + late).tolist(),
            "when": (1_700_000_000 + np.cumsum(rng.exponential(3, n))).tolist(),
            "customerId": rng.permutation(10_000)[:n].tolist(),
            "trace": rng.integers(2**60, 2**62, n).tolist(),
            "x": rng.normal(size=n).tolist(),
        }
    )
    assert left_out == {
        "seq": "monotone counter",
        "reading": "monotone counter",
        "elapsed": "monotone counter",
        "time": "timestamp",
        "timestamp": "timestamp",
        "when": "timestamp",
        "customerId": "near-unique identifier",
        "trace": "near-unique identifier",
    }


def test_measured_numbers_stay_however_they_look() -> None:
    rng = np.random.default_rng(0)
    n = 200
    slow = np.linspace(20, 35, n)
    columns = {
        "rising": (slow + rng.normal(0, 1e-4, n)).tolist(),
        "rising_counts": np.round(20_000 + np.cumsum(rng.integers(1, 6, n))).tolist(),
        "rising_steps": np.round(slow).tolist(),
        "price": rng.permutation(100_000)[:n].tolist(),
        "bytes": rng.integers(0, 2**40, n).tolist(),
        "memory": rng.integers(1_600_000_000, 1_700_000_000, n).tolist(),
        "response_time": rng.exponential(30, n).tolist(),
        "room_id": rng.integers(0, 5, n).tolist(),
        "constant": [3] * n,
        "huge": [1e308] * n,
        "flag": (rng.random(n) < 0.5).tolist(),
        "sometimes": [1.5 if i % 3 else None for i in range(n)],
        "mixed": ["n/a" if i % 5 == 0 else 2.5 for i in range(n)],
    }
    features, left_out = inferred(columns)
    assert left_out == {}
    assert features == tuple(sorted(columns))


def test_a_counter_is_recognised_in_records_of_several_partitions_in_turn() -> None:
    turns = np.concatenate([np.arange(50) + 1000 * partition for partition in (2, 0, 3, 1)])
    assert inferred({"n": turns.tolist(), "x": (turns % 7).tolist()})[1] == {"n": "monotone counter"}


def test_a_named_counter_is_recognised_however_many_records_each_partition_gives() -> None:
    turns = np.concatenate([np.arange(0, 280, 2), np.arange(1, 121, 2)])
    assert inferred({"seq": turns.tolist(), "x": (turns % 7).tolist()})[1] == {"seq": "monotone counter"}


@pytest.mark.filterwarnings("error")
def test_absurd_values_do_not_make_a_measurement_a_counter() -> None:
    flow = np.random.default_rng(0).normal(170, 3, 200).tolist()
    flow[100:102] = [1e308, -1e308]
    features, left_out = inferred({"flow": flow, "n": list(range(200))})
    assert features == ("flow",)
    assert left_out == {"n": "monotone counter"}


def test_long_names_are_shortened_in_the_error() -> None:
    with pytest.raises(SchemaError) as error:
        infer_schema([{"a" * 300_000: "x"}])
    assert len(str(error.value)) < 300


def test_a_few_records_in_rising_order_are_not_taken_for_a_counter() -> None:
    assert inferred({"x": [1, 2, 3, 4]})[0] == ("x",)


def test_rare_leaves_and_earlier_results_are_left_out() -> None:
    batch: list[dict[str, Any]] = [{"x": i % 7, "fomo": {"score": 0.1}} for i in range(100)]
    batch[50]["rare"] = 1.0
    schema, left_out = infer_schema(batch)
    assert schema.features == ("x",)
    assert left_out == {"fomo.score": "result of an earlier run", "rare": "present in only 1 of 100 records"}


@pytest.mark.parametrize("batch", [[], [{}], [{"a": "x"}], [{"a": math.nan}]])
def test_without_any_number_the_error_names_the_flag(batch: list[dict[str, Any]]) -> None:
    with pytest.raises(SchemaError, match="--features"):
        infer_schema(batch)


@given(st.lists(records, min_size=1, max_size=20))
def test_inferred_features_have_at_least_one_number(batch: list[dict[str, Any]]) -> None:
    try:
        schema, left_out = infer_schema(batch)
    except SchemaError:
        return
    assert list(schema.features) == sorted(schema.features)
    assert not set(schema.features) & set(left_out)
    assert schema.rows(batch).shape == (len(batch), len(schema.features))


# --- files


def lines_of(data: bytes, **options: Any) -> list[Any]:
    return list(RecordFile(io.BytesIO(data), **options))


def test_csv_cells_become_numbers_booleans_text_or_missing() -> None:
    data = b'\xef\xbb\xbfa, b,,d\r\n1,x y,true,\r\n\r\nNaN,1_000,"2\n3",1e999\r\n'
    first, second = lines_of(data)
    assert first.record == {"a": 1.0, "b": "x y", "column_3": True, "d": None}
    assert (first.number, second.number) == (2, 4)
    assert second.raw == ["NaN", "1_000", "2\n3", "1e999"]
    assert Schema(("a", "b", "d")).rows([second.record]).tolist() == pytest.approx(np.full((1, 3), np.nan), nan_ok=True)


@pytest.mark.parametrize("mark", [b",", b";", b"\t"])
def test_the_delimiter_is_told_by_the_header(mark: bytes) -> None:
    assert list(read_records(io.BytesIO(b"a|b\n1|2\n".replace(b"|", mark)))) == [{"a": 1.0, "b": 2.0}]


def test_a_ragged_row_is_reported_with_its_line_and_reading_goes_on() -> None:
    good, ragged, after = lines_of(b"a,b\n1,2\n1,2,3\n4,5\n")
    assert (good.error, after.record) == (None, {"a": 4.0, "b": 5.0})
    assert (ragged.number, ragged.error.reason) == (3, "ragged")


def test_a_missing_quote_is_pointed_out() -> None:
    lines = list(RecordFile(io.BytesIO(b'a,b\n"1,2\n3,4\n5,6\n')))
    assert [line.number for line in lines] == [2]
    assert str(lines[0].error).endswith("it goes on to line 4: is a quote missing?")


def test_bytes_that_are_not_utf8_stay_what_they_were_in_csv() -> None:
    (line,) = lines_of(b"a,b\n1,caf\xe9\n")
    assert line.raw[1].encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_an_undecodable_json_line_is_reported_and_reading_goes_on() -> None:
    bad, good = lines_of(b'\n{"a": \n\n{"a": 1}')
    assert (bad.number, bad.error.reason, bad.raw) == (2, "not_json", b'{"a": ')
    assert (good.number, good.record) == (4, {"a": 1})


def test_a_line_beyond_the_limit_is_cut_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fomo_stream.records.files.MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr("fomo_stream.records.files._CHUNK_BYTES", 64)
    too_long = b'{"a": "' + b"x" * 5000 + b'"}'
    lines = lines_of(b'{"a": 1}\n' + too_long + b'\n{"a": 2}\n', format="jsonl")
    assert [line.number for line in lines] == [1, 2, 3]
    assert len(lines[1].raw) == 1001
    assert lines[2].record == {"a": 2}


@given(st.lists(st.binary(max_size=20).filter(lambda raw: b"\n" not in raw)), st.integers(1, 30))
def test_lines_do_not_depend_on_how_the_input_arrives(raws: list[bytes], chunk: int) -> None:
    class Trickle(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(chunk)

    data = b'{"first": 1}\n' + b"\n".join(raws)
    seen = [line.raw for line in RecordFile(Trickle(data))]
    assert seen == [raw for raw in data.split(b"\n") if raw.strip()]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"1,2\n3,4\n", "names the columns"),
        (b"a,a\n1,2\n", "two columns"),
    ],
)
def test_a_file_without_usable_header_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        lines_of(data)


def test_context_rows_come_in_the_order_of_the_schema(tmp_path: Any) -> None:
    path = tmp_path / "normal.csv"
    path.write_text("b,a,note\n1,2,x\n,,x\n3,,x\n")
    np.testing.assert_array_equal(read_rows(path, Schema(("a", "b"))), [[2, 1], [np.nan, 3]])


def test_a_context_file_that_does_not_fit_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "normal.jsonl"
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(SchemaError, match=r"normal\.jsonl line 2"):
        read_rows(path, Schema(("a",)))
    path.write_text('{"a": 1}\n')
    with pytest.raises(SchemaError, match="check their names"):
        read_rows(path, Schema(("b",)))
    with pytest.raises(ConfigError, match="cannot read"):
        read_rows(tmp_path / "absent.csv", Schema(("b",)))
