"""Schemas and files that would cost far more than their size says: a little of either must not cost much."""

from __future__ import annotations

import bz2
import json
import lzma
import time
import tracemalloc
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import cramjam
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError, RecordError
from fomo_stream.kafka.registry.protoc import descriptors
from fomo_stream.records import arrays, avro_file, writer_schema
from fomo_stream.records.avro import AvroWriter
from fomo_stream.records.avro_file import count_in_container, read_container
from fomo_stream.records.json_schema import JsonSchemaWriter
from fomo_stream.records.protobuf import ProtobufWriter
from fomo_stream.records.writer_schema import Kind, ReferencedSchema, SchemaText, Writer
from fomo_stream.replaying.tables import open_table
from pretrain.evaluation.tables import read_table


@contextmanager
def cheap(megabytes: int = 100) -> Iterator[None]:
    """What is done here takes neither long nor much memory: what has no bound would take hours, or all of it."""
    began = time.process_time()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 60


def avro(schema: Any) -> Writer:
    return AvroWriter(SchemaText(Kind.AVRO, json.dumps(schema)), "fomo")


def json_writer(schema: Any) -> Writer:
    return JsonSchemaWriter(SchemaText(Kind.JSON, json.dumps(schema)), "fomo", 10_000)


def proto(text: str) -> Writer:
    text = f'syntax = "proto3";\n{text}'
    return ProtobufWriter(SchemaText(Kind.PROTOBUF, text, (), descriptors(text, "own.proto", ())), "fomo")


# Types of two fields each, of the type before: 2^levels leaves.


def doubled_avro(levels: int, leaf: Any = "int") -> Writer:
    made: Any = leaf
    for level in range(levels):
        name = f"T{level - 1}" if level else leaf
        fields = [{"name": "a", "type": made}, {"name": "b", "type": name}]
        made = {"type": "record", "name": f"T{level}", "fields": fields}
    return avro(made)


def doubled_json(levels: int, leaf: Any = None) -> Writer:
    types = {"T0": leaf or {"type": "number"}}
    for level in range(1, levels + 1):
        one = {"$ref": f"#/definitions/T{level - 1}"}
        types[f"T{level}"] = {"type": "object", "properties": {"a": one, "b": one}}
    return json_writer({"$ref": f"#/definitions/T{levels}", "definitions": types})


def doubled_proto(levels: int) -> Writer:
    lines = [f"message T{n} {{ T{n - 1} a = 1; T{n - 1} b = 2; }}" for n in range(levels, 1, -1)]
    return proto("\n".join([*lines, "message T1 { double a = 1; double b = 2; }"]))


@pytest.fixture
def few_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller bound is reached sooner, and tracing memory is slow."""
    monkeypatch.setattr(writer_schema, "MAX_LEAVES", 200)
    monkeypatch.setattr(writer_schema, "MAX_NODE_VISITS", 2000)


@pytest.mark.usefixtures("few_leaves")
@pytest.mark.parametrize(
    ("doubled", "leaf"),
    [
        (doubled_avro, ()),
        (doubled_json, ()),
        (doubled_proto, ()),
        (doubled_avro, ("null",)),  # without any leaf
        (doubled_json, ({"type": "object"},)),
    ],
)
def test_fields_that_multiply_are_bounded(doubled: Callable[..., Writer], leaf: tuple[Any, ...]) -> None:
    with cheap(), pytest.raises(RecordError, match="more than 200 fields") as caught:
        doubled(60, *leaf)
    assert caught.value.reason == "unsupported_schema"


def test_a_type_in_itself_has_no_leaves() -> None:
    flow = {"oneOf": [7, None], "type": "number"}  # choices that are none are passed over
    node: dict[str, Any] = {"properties": {"flow": flow, "left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    mutual = {
        "properties": {"a": {"$ref": "#/definitions/A"}},
        "definitions": {
            "A": {"properties": {"x": {"type": "number"}, "b": {"$ref": "#/definitions/B"}}},
            "B": {"properties": {"y": {"type": "number"}, "a": {"$ref": "#/definitions/A"}}},
        },
    }
    with cheap():
        assert list(json_writer({**node, "$ref": "#/none"}).leaves) == ["flow"]
        assert "tree.flow" in json_writer({"properties": {"tree": node}}).leaves
        assert list(json_writer(mutual).leaves) == ["a.x", "a.b.y"]
        tree = proto(
            "message Tree { double flow = 1; Tree left = 2; Tree right = 3; Other o = 4; }\n"
            "message Other { Tree a = 1; double y = 2; }"
        )
        assert list(tree.leaves) == ["flow", "o.y"]
        assert tree.read(bytes.fromhex("12090900000000000004401a00"))["left"]["flow"] == 2.5


def test_long_names_and_many_former_names_cost_little() -> None:
    inner = {f"f{i}": {"type": "number"} for i in range(5000)}
    long = {"properties": {"x" * 500_000: {"properties": inner}, "flow": {"type": "number"}}}
    with cheap():
        assert list(json_writer(long).leaves) == ["flow"]
    fields: Any = "int"
    for level in range(6):
        aliases = [f"old{i}" for i in range(1000)]
        fields = {"type": "record", "name": f"T{level}", "fields": [{"name": "f", "aliases": aliases, "type": fields}]}
    with cheap():
        assert 1000 <= len(avro(fields).leaves.aliases) <= 20_000


def test_few_bytes_of_a_list_become_few_values() -> None:
    nulls = [{"name": f"n{i}", "type": "null"} for i in range(5000)]
    item = {"type": "record", "name": "Item", "fields": [{"name": "x", "type": "int"}, *nulls]}
    for kind in ({"type": "array", "items": item}, {"type": "map", "values": item}):
        with pytest.raises(RecordError, match="without bytes"):
            avro({"type": "record", "name": "R", "fields": [{"name": "list", "type": kind}]})
    endless = {"type": "record", "name": "E", "fields": [{"name": "e", "type": "E"}]}
    with pytest.raises(RecordError, match="without bytes"):
        avro({"type": "record", "name": "R", "fields": [{"name": "e", "type": {"type": "array", "items": endless}}]})


def test_a_schema_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_schema, "COMPILE_S", 0.05)
    choices = [{"type": "null"}] * 20_000
    fields = {f"f{i}": {"$ref": "#/definitions/A"} for i in range(5000)}
    slow = {"properties": fields, "definitions": {"A": {"oneOf": choices}}}
    with cheap(), pytest.raises(RecordError, match="fields are not found in") as caught:
        json_writer(slow)
    assert caught.value.reason == "unsupported_schema"


def test_schemas_that_refer_to_each_other_are_read_once() -> None:
    schema: SchemaText | None = None
    for n in range(60):  # each refers twice to the one before
        field = {"name": "x", "type": f"S{n - 1}" if n else "int"}
        both = () if schema is None else tuple(ReferencedSchema(f"r{i}", f"r{i}", 1, schema) for i in range(2))
        schema = SchemaText(Kind.AVRO, json.dumps({"type": "record", "name": f"S{n}", "fields": [field]}), both)
    assert schema is not None
    with cheap():
        assert list(AvroWriter(schema, "fomo").leaves) == [".".join("x" * 60)]


# --- files


def zigzag(n: int) -> bytes:
    """A number of Avro."""
    n, made = (n << 1) ^ (n >> 63), bytearray()
    while n > 127:
        made.append(n & 127 | 128)
        n >>= 7
    return bytes([*made, n])


def container(schema: Any, *blocks: tuple[int, bytes], codec: str = "null") -> BytesIO:
    """blocks: how many records each says that it has, and its bytes."""
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    entries = b"".join(zigzag(len(k)) + k.encode() + zigzag(len(v)) + v for k, v in meta.items())
    head = b"Obj\1" + zigzag(len(meta)) + entries + zigzag(0) + bytes(16)
    return BytesIO(head + b"".join(zigzag(n) + zigzag(len(data)) + data + bytes(16) for n, data in blocks))


FLOW = {"type": "record", "name": "R", "fields": [{"name": "flow", "type": "int"}]}
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data, 9, -15),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)) + bytes(4),
    "zstandard": zstd.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_of_files_are_read_and_large_ones_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = range(-1000, 1000)
    data = b"".join(map(zigzag, numbers))
    block = (len(numbers), CODECS[codec](data))
    file = container(FLOW, block, block, codec=codec)
    assert [*read_container(file)] == [{"flow": n} for n in numbers] * 2
    file.seek(0)
    assert count_in_container(file) == 2 * len(numbers)
    monkeypatch.setattr(avro_file, "MAX_PART_BYTES", 1 << 20)
    bomb = container(FLOW, block, (1, CODECS[codec](bytes(20 << 20))), codec=codec)
    with cheap(megabytes=14), pytest.raises(RecordError, match="more than 1 MiB"):
        deque(read_container(bomb), maxlen=0)


@given(st.binary(max_size=300), st.integers(0, 400), st.sampled_from(["null", "deflate"]))
def test_a_damaged_file_gives_errors_of_one_sentence(junk: bytes, at: int, codec: str) -> None:
    data = container(FLOW, (3, CODECS[codec](b"\2\4\6")), codec=codec).getvalue()
    with suppress(RecordError):
        deque(read_container(BytesIO(data[:at] + junk)), maxlen=0)
    with suppress(RecordError):
        count_in_container(BytesIO(data[:at] + junk + data[at:]))


def test_what_a_file_claims_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"type": "record", "name": "R", "fields": []}
    lists = {"type": "record", "name": "L", "fields": [{"name": "list", "type": {"type": "array", "items": FLOW}}]}
    with cheap():
        [first, error] = read_container(container(FLOW, (2**60, b"\2")))
        assert first == {"flow": 1}
        assert isinstance(error, RecordError)
        [error] = read_container(container(nothing, (2**60, b"")))
        assert isinstance(error, RecordError)
        for size in (2**40, 2**62):
            with pytest.raises(RecordError, match="more than 64 MiB"):
                deque(read_container(BytesIO(container(FLOW).getvalue() + b"\2" + zigzag(size))), maxlen=0)
            with pytest.raises(RecordError):
                read_container(BytesIO(b"Obj\1\2" + zigzag(size)))
    monkeypatch.setattr(avro_file, "WINDOW_BYTES", 1 << 16)
    long = zigzag(4 << 20) + bytes(4 << 20) + zigzag(0)
    with cheap():
        assert all(isinstance(one, RecordError) for one in read_container(container(lists, (1, long))))


def test_records_are_read_wherever_they_lie_in_a_large_block() -> None:
    text = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}
    sizes = [400_000, 900_000, 0, 1_000_000, 5, 1_048_000, 300] * 3
    data = b"".join(zigzag(size) + b"x" * size for size in sizes)
    found = [*read_container(container(text, (len(sizes), data)))]
    assert [len(one["text"]) for one in found if not isinstance(one, RecordError)] == sizes


def npy(shape: tuple[int, ...], data: bytes, kind: str = "<f8") -> bytes:
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + data


@pytest.mark.parametrize("file", ["claim", "bomb", "one_array", "encrypted", "damaged", "kind"])
def test_arrays_that_claim_too_much_are_refused_by_name(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "odd.npz"
    shape, kind = (10**13 if file == "claim" else 10, 10), "<x99" if file == "kind" else "<f8"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", npy(shape, bytes(800), kind))
        archive.writestr("y.npy", npy((10,), bytes(80)))
    data = bytearray(path.read_bytes())
    if file == "one_array":
        data[:] = npy((2, 2), bytes(32))
    elif file == "bomb":
        monkeypatch.setattr(arrays, "MAX_ARRAY_BYTES", 900)
    elif file == "encrypted":
        data[6] |= 1
        data[data.rindex(b"PK\1\2", 0, data.rindex(b"PK\1\2")) + 8] |= 1
    elif file == "damaged":
        data[60:80] = bytes(20)
    path.write_bytes(data)
    with cheap(megabytes=10**10):  # memory that is claimed and never used costs nothing
        for read in (lambda: open_table(path, "npz"), lambda: read_table(path)):
            with pytest.raises(ConfigError, match=r"odd\.npz"):
                read()
