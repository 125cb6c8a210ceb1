"""Any bytes give a record or a RecordError, in bounded memory.

The inputs are random bytes, most of which are refused at their first character, JSON with hostile values, and valid
records and labels that were damaged.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pytest
from random_records import finite

from fomo_stream.errors import RecordError, SchemaError
from fomo_stream.partition.labels import parse_label
from fomo_stream.records.inference import infer_schema
from fomo_stream.records.json_codec import decode, encode
from fomo_stream.records.rows import RowReader
from fomo_stream.records.schema import Schema

INPUTS = 100_000
T = TypeVar("T")
BLOCK = 50  # inputs whose records become rows together

REASONS = {"tombstone", "too_large", "not_utf8", "not_json", "not_an_object"}
VALID = [
    b'{"temperature": 20.5, "motor": {"rpm": 903, "on": true}, "site": "north", "seen": null, "path": [1, {"a": 2}]}',
    '{"номер": 7, "naïve": -1.5e-7, "emoji": "😀", "": 0}'.encode(),
    b'{"partition": 0, "offset": 812, "outlier": true, "topic": "sensors"}',
    b'{"key": "p7", "outlier": false, "fomo": {"partition": 0, "offset": 3, "score": 0.5, "p_value": null}}',
    b'\xef\xbb\xbf{"x": NaN, "y": -Infinity, "z": 123456789012345678901234567890, "s": "\\ud83d\\ude00\\u0000"}',
]
NAMES = [
    *("a", "a.b", "a.b.c", "b", "c", "", ".", "x" * 300, "\\ud800"),
    *("outlier", "offset", "key", "partition", "fomo", "topic"),
]
SCALARS = [
    *("0", "-0", "1", "2.5", "true", "false", "null", "1e308", "1e999", "-1e999", "1e-999", "9" * 18, "-" + "9" * 19),
    *("18446744073709551616", "9" * 400, "9" * 3999, "9" * 4001, "0." + "1" * 500, "1" + "0" * 308, "1" + "0" * 309),
    *("NaN", "Infinity", "-Infinity", '""', '"a"', '"404"', '"1e5"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"'),
    *('"' + "x" * 300 + '"', '"😀"', "01", "1.", ".5", "+1", "0x1", "'a'", "undefined", "-", "1e", '"\t"', '"'),
]
PIECES = [
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u", b"\\ud800", b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf"),
    *(b"\xed\xa0\x80", b"[" * 300, b"[" * 3000, b'{"a":' * 300, b"e", b"-", b".", b"NaN", b"1" * 19, b"\n", b" " * 50),
]


def hostile_json(rng: random.Random, depth: int = 0) -> str:
    """Objects with dotted, empty and repeated names, and extreme values."""
    kind = rng.random()
    if depth == 0 or (kind < 0.3 and depth < 6):
        fields = (f'"{rng.choice(NAMES)}":{hostile_json(rng, depth + 1)}' for _ in range(rng.randrange(5)))
        return "{" + ",".join(fields) + "}"
    if kind < 0.4 and depth < 6:
        return "[" + ",".join(hostile_json(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    if kind < 0.55:
        return repr(rng.gauss(0, 10.0 ** rng.randrange(-20, 20)))
    return rng.choice(SCALARS)


def damaged(value: bytes, rng: random.Random) -> bytes:
    """The value with bytes removed, repeated, replaced or inserted at one to four places."""
    for _ in range(rng.randrange(1, 5)):
        start = rng.randrange(len(value) + 1)
        stop = min(len(value), start + rng.randrange(12))
        part = value[start:stop]
        kind = rng.randrange(5)
        if kind == 0:
            part = b""
        elif kind == 1:
            part *= rng.randrange(2, 40)
        elif kind == 2:
            part = rng.randbytes(len(part))
        elif kind == 3:
            part += rng.choice(PIECES)
        else:
            part = rng.choice(VALID)[start:stop]
        value = value[:start] + part + value[stop:]
    return value


def inputs(seed: int) -> Iterator[bytes]:
    """Endless inputs of all kinds."""
    rng = random.Random(seed)
    while True:
        yield rng.randbytes(rng.randrange(40))
        yield damaged(rng.choice(VALID), rng)
        yield (text := hostile_json(rng).encode("utf-8", "surrogatepass"))
        yield damaged(text, rng)


def attempt(read: Callable[[], T], reasons: set[str]) -> T | None:
    """The result of `read`, or None after a RecordError. The error must be short and have one of these reasons."""
    try:
        return read()
    except RecordError as error:
        refusal = error
    assert refusal.reason in reasons
    assert len(str(refusal)) < 200
    return None


def check(value: bytes) -> dict[str, Any] | None:
    """The record in `value`, or None. A record must survive encoding, and may be a label too."""
    record = attempt(lambda: decode(value), REASONS)
    if record is not None:
        output = encode(record, {"score": None})
        assert b"\n" not in output
        assert decode(output, max_bytes=len(output)) == finite({**record, "fomo": {"score": None}})
        label = attempt(lambda: parse_label(value, b"k", 0, "sensors", "fomo"), {"bad_feedback"})
        # it is kept as Kafka keeps offsets
        assert label is None or label.offset is None or 0 <= label.offset < 2**63
    return record


def check_rows(records: list[dict[str, Any]], number: int) -> None:
    """Rows of any records are numbers of the right shape, and inference gives features or a SchemaError."""
    keys = [None if i % 3 == 0 else b"%d" % (i % 3) for i in range(len(records))]
    reader = RowReader(Schema(("a", "a.b", "b", "c", "", "temperature", "motor.rpm"), frozenset({"b", "c"})))
    rows = reader.read(records, keys)
    assert rows.rows.shape == (rows.usable.sum(), reader.width)
    assert not np.isinf(rows.rows).any()
    if number % 4:  # takes as long as everything else together
        return
    try:
        schema, _ = infer_schema(records)
    except SchemaError:
        return
    assert schema.rows(records).shape == (len(records), len(schema.features))


def test_any_bytes_give_a_record_or_a_record_error() -> None:
    stream = inputs(0)
    kinds: Counter[bool] = Counter()
    for number in range(INPUTS // BLOCK):
        records = []
        for value in islice(stream, BLOCK):
            try:
                record = check(value)
            except Exception as error:
                error.add_note(f"input: {value!r}")
                raise
            kinds[record is not None] += 1
            if record is not None:
                records.append(record)
        check_rows(records, number)
    assert min(kinds.values()) > 0.1 * INPUTS  # neither all refused nor all accepted


def test_names_that_would_take_too_long_to_look_up_are_passed_over() -> None:
    records = [{"a": i % 7, "b." * 501: i % 7, "c": {"d" * 998: i % 7, "e" * 999: i % 7}} for i in range(50)]
    assert infer_schema(records)[0].features == ("a", "c." + "d" * 998)


SIZE = 1 << 18  # bytes of a hostile record, about


def filled(head: str, body: str, tail: str) -> bytes:
    return (head + body * (SIZE // len(body)) + tail).encode()


HOSTILE = {
    "open arrays": filled("", "[", ""),
    "open objects": filled("", '{"a":', ""),
    "closed arrays": filled('{"a":', "[", "]" * SIZE + "}"),
    "the deepest objects": b'{"a":' * 199 + b"1" + b"}" * 199,
    "empty arrays": filled('{"a":[', "[],", "0]}"),
    "empty objects": filled('{"a":[', "{},", "0]}"),
    "empty arrays beside NaN": filled('{"b":NaN,"a":[', "[],", "0]}"),
    "empty arrays beside wide characters": filled('{"b":"\U0001f600","c":NaN,"a":[', "[],", "0]}"),
    "small numbers": filled('{"a":[', "1e9,", "0]}"),
    "one name many times": filled("{", '"a":{"b":[]},', '"c":0}'),
    "many names": ("{" + ",".join(f'"{i:x}":0' for i in range(SIZE // 10)) + "}").encode(),
    "long names in one another": (
        "".join(f'{{"x{i}":0,"{"k" * (SIZE // 200)}":' for i in range(199)) + "1" + "}" * 199
    ).encode(),
    "a name full of dots": filled('{"', "a.", '":1}'),
    "a string": filled('{"a":"', "x", '"}'),
    "escapes": filled('{"a":"', "\\ud800", '"}'),
    "an integer": filled('{"a":', "9", "}"),
    "long integers": filled('{"a":[', "9" * 3999 + ",", "0]}"),
    "a long fraction": filled('{"a":0.', "1", "}"),
    "no text": b"\xff" * SIZE,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_stays_in_proportion_to_the_record(name: str) -> None:
    value = HOSTILE[name]
    tracemalloc.start()
    try:
        with contextlib.suppress(RecordError):
            records = [decode(value), {"a": 1}]
            check_rows(records, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * SIZE  # an empty array takes 3 bytes there, 64 here
