"""Decoding and encoding: any bytes give a record that can be encoded, or a reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_records import finite, records

from fomo_stream.errors import RecordError
from fomo_stream.records.json_codec import MAX_DEPTH, decode, encode
from fomo_stream.records.schema import Schema

REASONS = {"too_large", "not_utf8", "not_json", "not_an_object"}
almost_json = st.text(alphabet='{}[]":,.eE+-0123456789 NaInfityul\\udtrs\ufeff', max_size=60).map(str.encode)


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    """The JSON of a record in which some bytes were replaced."""
    value = json.dumps(draw(records)).encode()
    start = draw(st.integers(0, len(value)))
    return value[:start] + draw(st.binary(max_size=3)) + value[start + draw(st.integers(0, 3)) :]


@given(st.one_of(st.binary(), almost_json, damaged_records()))
def test_any_bytes_are_refused_with_a_known_reason_or_survive_encoding_and_decoding(value: bytes) -> None:
    try:
        record = decode(value)
    except RecordError as error:
        refusal = error.reason
    else:
        assert isinstance(record, dict)
        again = decode(encode(record, {"score": 0.5}))
        assert again == finite({**record, "fomo": {"score": 0.5}})
        assert decode(encode(again, {"score": 0.5})) == again
        return
    assert refusal in REASONS


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
