"""Decoding and encoding: any bytes give a record that can be encoded, or a reason."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_records import finite, records

from fomo_stream.errors import RecordError, SchemaError
from fomo_stream.partition.labels import parse_label
from fomo_stream.records.inference import infer_schema
from fomo_stream.records.json_codec import MAX_DEPTH, decode, encode

almost_json = st.text(alphabet='{}[]":,.eE+-0123456789 NaInfityul\\udtrs\ufeff', max_size=60).map(str.encode)


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    """The JSON of a record in which some bytes were replaced."""
    value = json.dumps(draw(records)).encode()
    start = draw(st.integers(0, len(value)))
    return value[:start] + draw(st.binary(max_size=3)) + value[start + draw(st.integers(0, 3)) :]


FIELDS = ("fomo", "a", "", 'a "b"', "größe", "\ud800")
RESULT = {"topic": "t", "score": 0.1, "p_value": None, "outlier": False, "offset": 2**53 + 1}
PARTS = (
    *('"a":1', '"a" : [1, {"a": 2}]', '"b":"}"', '"b":{"fomo":1}', '"c":-0', '"c":1.0', '"c":0.1000000000000000055'),
    *('"fomo":{"score":1}', '"f\\u006fmo":1', '"":2', '"\\u0061":3', '"größe":4', '"\\ud800":5'),
    *('"n":NaN', '"n":-Infinity', '"n":1e999', '"n":null'),
    *('"s":"\\ud83d\\ude00"', '"s":"\\udc00"', '"s":"\\n"', '"s":"\n"'),
    *(f'"i":{digits}' for digits in ("9" * 19, "-" + "9" * 19, str(2**64 - 1), str(2**64), "-" + "1" * 30, "9" * 400)),
    *(f'"i":{digits}' for digits in ("0." + "1" * 25, "1" * 25 + ".5", "1e" + "0" * 25 + "1", "9" * 4500)),
    '"deep":' + "[" * 199 + "]" * 199,
    '"deep":' + "[" * 200 + "]" * 200,
    '"deep":' + '{"d":' * 1100 + "1" + "}" * 1100,
)
spaces = st.text(" \t\r\n", max_size=2)


@st.composite
def odd_records(draw: st.DrawFn) -> bytes:
    """Fields of all kinds, in any order and more than once, with white space around them."""
    parts = draw(st.lists(st.sampled_from(PARTS), max_size=4))
    text = draw(spaces) + "{" + draw(spaces) + f",{draw(spaces)}".join(parts) + draw(spaces) + "}" + draw(spaces)
    return draw(st.sampled_from([b""] * 4 + [b"\xef\xbb\xbf"])) + text.encode()


def parsed(output: bytes) -> Any:
    """With integers of any size exact, and of keys that occur twice the last value."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(output, parse_int=Decimal, parse_constant=refuse)
    return found, list(found)


def exactly(value: bytes) -> dict[str, Any]:
    """`decode` by the standard library alone."""
    with patch.object(orjson, "loads", side_effect=orjson.JSONDecodeError("", "", 0)):
        return decode(value)


@given(st.one_of(st.binary(), almost_json, damaged_records(), odd_records()), st.sampled_from(FIELDS), st.booleans())
def test_copied_bytes_are_the_same_json_as_fields_that_are_written_again(
    value: bytes, field: str, scores_only: bool
) -> None:
    refusals = []
    for decoding in (exactly, decode):
        try:
            decoding(value)
        except RecordError as error:
            refusals.append((error.reason, str(error)))
    if refusals:
        assert refusals == refusals[:1] * 2
        return
    with suppress(RecordError):
        parse_label(value, b"k", 0, "t", "fomo")
    record = decode(value)
    expected = encode(exactly(value), RESULT, field, scores_only)
    assert encode(record, RESULT, field, scores_only) == expected
    output = encode(record, RESULT, field, scores_only, value)
    assert parsed(output) == parsed(expected)
    names = [name for name, _ in json.loads(output, object_pairs_hook=list)]
    assert names.count(field) == 1
    assert len(output.splitlines()) == 1


@given(records)
def test_the_bytes_of_a_usual_record_are_unchanged(record: dict[str, Any]) -> None:
    record.pop("fomo", None)
    value = json.dumps({**finite(record), "a": 1}).encode()
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:  # a lone surrogate, or an integer beyond all floats
        return
    assert encode(decode(value), {"score": 0.5}, raw=value) == value[:-1] + b',"fomo":{"score":0.5}}'


REASONS: dict[bytes | None, str] = {
    None: "tombstone",
    b"\xff{}": "not_utf8",
    b'{"a": "\xed\xa0\x80"}': "not_utf8",
    b"x" * 100: "too_large",
}
REASONS |= dict.fromkeys((b"", b'{"a": 1', b"[" * 90), "not_json")
REASONS |= dict.fromkeys((b"[1]", b"1", b"NaN"), "not_an_object")


@pytest.mark.parametrize(("value", "reason"), REASONS.items())
def test_each_undecodable_value_has_its_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode(value, max_bytes=90)
    assert caught.value.reason == reason


def test_deep_nesting_is_refused_and_never_crashes() -> None:
    for depth in (MAX_DEPTH + 1, 100_000):
        for opening, closing in ((b'{"a":', b"}"), (b"[", b"]")):
            with pytest.raises(RecordError) as caught:
                decode(b'{"r":' + opening * depth + b"1" + closing * depth + b"}")
            assert caught.value.reason == "not_json"
    for odd in (b"1", b"NaN", b"1" * 30):  # the deepest record that is accepted can be encoded
        value = b'{"a":' * MAX_DEPTH + odd + b"}" * MAX_DEPTH
        assert encode(decode(value), {}).startswith(b'{"a":{"a":')


# --- memory

SIZE = 1 << 16  # bytes of a hostile record, about


def filled(head: str, body: str, tail: str) -> bytes:
    return (head + body * (SIZE // len(body)) + tail).encode()


HOSTILE = {
    "open arrays": filled("", "[", ""),
    "closed arrays": filled('{"a":', "[", "]" * SIZE + "}"),
    "the deepest objects": b'{"a":' * 199 + b"1" + b"}" * 199,
    "empty arrays": filled('{"a":[', "[],", "0]}"),
    "empty arrays beside wide characters": filled('{"b":"\U0001f600","c":NaN,"a":[', "[],", "0]}"),
    "one name many times": filled("{", '"a":{"b":[]},', '"c":0}'),
    "many names": ("{" + ",".join(f'"{i:x}":0' for i in range(SIZE // 10)) + "}").encode(),
    "long names in one another": (
        "".join(f'{{"x{i}":0,"{"k" * (SIZE // 200)}":' for i in range(199)) + "1" + "}" * 199
    ).encode(),
    "a name full of dots": filled('{"', "a.", '":1}'),
    "long integers": filled('{"a":[', "9" * 3999 + ",", "0]}"),
    "a long fraction": filled('{"a":0.', "1", "}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_stays_in_proportion_to_the_record(name: str) -> None:
    value = HOSTILE[name]
    tracemalloc.start()
    try:
        with suppress(RecordError, SchemaError):
            records = [decode(value), {"a": 1}]
            infer_schema(records)[0].rows(records)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * SIZE  # an empty array takes 3 bytes there, 64 here
