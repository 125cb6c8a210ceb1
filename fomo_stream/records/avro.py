"""Avro: reads records by the schema of their writer, and writes a result behind their own bytes.

fastavro reads the bytes. Its own logical types give Python objects. These cannot hold every value, and JSON does not
have them. So this module registers `_CONVERSIONS` with fastavro under other names, and puts these names into a schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import LOGICAL_READERS

from fomo_stream.errors import RecordError, SchemaError
from fomo_stream.records.json_values import base64_text, decimal_text, time_text
from fomo_stream.records.result_schema import NAMESPACE, RESULT, as_written
from fomo_stream.records.schema_codec import FindWriter
from fomo_stream.records.wire_format import NO_SCHEMA_ID, VALUE_HEADER, Headers
from fomo_stream.records.writer_schema import (
    ITEMS_PATH,
    Kind,
    Leaf,
    Leaves,
    RegisteredWriter,
    SchemaText,
    SchemaType,
    TypePart,
    unsupported,
)

NOT_AVRO = "not_avro"  # reason of dead letters
MAX_EMPTY_VALUES = 100  # per byte of an item: values without bytes, as few bytes must not become very many values
_EMPTY = {"type": "record", "name": "Scored", "namespace": NAMESPACE, "fields": []}
EMPTY_SCHEMA = SchemaText(Kind.AVRO, json.dumps(_EMPTY))  # of outputs that hold only results

Node = Any  # a schema, as its JSON

_NUMBERS = frozenset({"int", "long", "float", "double", "boolean"})
_EPOCH = datetime(1970, 1, 1)
HIDDEN_LOGICAL_TYPE, OWN_PREFIX = "hidden logical type", "fomo-"  # a key, and a prefix of logical types


class AvroWriter:
    """A `Writer` of Avro. field: of results. Raises RecordError if its schema cannot be used."""

    kind, head = Kind.AVRO, b""

    def __init__(self, schema: SchemaText, field: str) -> None:
        self._schema, self._field = schema, field
        self._reads: Node = None
        self._named: dict[str, Node] = {}  # definitions by full name
        try:
            for text in _collect_texts(schema, {}):
                root = json.loads(text)
                self._reads = parse_schema(_with_own_types(root), self._named)
        except Exception as error:  # fastavro raises many kinds
            raise unsupported(f"the schema is not Avro ({type(error).__name__}: {str(error)[:200]})") from None
        self._root = root
        self.name = str(self._reads.get("name", "")) if isinstance(self._reads, dict) else ""
        self._sizes: dict[str, tuple[int, int]] = {}  # see `_size`, by name
        self.leaves = Leaves(self._type_of, self._reads)
        self._before: Node = None  # the schema without an earlier result
        fields = root.get("fields", []) if isinstance(root, dict) else []
        if fields and fields[-1].get("name") == field:
            self._before = {**self._reads, "fields": self._reads["fields"][:-1]}

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Writer.read`. The reason of the error is not_avro, or not_an_object."""
        fields = self.read_value(body)
        if not isinstance(fields, dict):
            raise RecordError("not_an_object", "its schema is not that of a record, which has named fields")
        return fields

    def read_value(self, body: bytes) -> Any:
        stream = BytesIO(body)
        value = self.read_next(stream)
        left = len(body) - stream.tell()
        if left:
            raise RecordError(NOT_AVRO, f"{left} bytes are left over after its schema")
        return value

    def read_next(self, stream: BinaryIO) -> Any:
        """Read the value that begins here. Raises RecordError."""
        return _read_by_schema(stream, self._reads)

    def scored_schema(self) -> SchemaText:
        root, is_result_defined = self._root, f"{NAMESPACE}.Result" in self._named
        if not isinstance(root, dict) or root.get("type") != "record":
            raise unsupported("a result can only be added to a record, not to another type")
        others = root["fields"] if self._before is None else root["fields"][:-1]
        if any(other["name"] == self._field for other in others):
            what = f"the schema {self.name} already has a field {self._field} that is not the last one"
            raise unsupported(f"{what}; choose another --result-field")
        result = f"{NAMESPACE}.Result" if is_result_defined and self._before is None else RESULT
        doc = "what fomo-stream says of this record"
        field = {"name": self._field, "type": ["null", result], "default": None, "doc": doc}
        return SchemaText(Kind.AVRO, json.dumps({**root, "fields": [*others, field]}), self._schema.references)

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        if self._before is not None:
            stream = BytesIO(body)
            _read_by_schema(stream, self._before)
            body = body[: stream.tell()]
        written = BytesIO()
        schemaless_writer(written, _result_schema(), as_written(dict(result)))
        return body + b"\x02" + written.getvalue()  # 2: the second type of the union, null being the first

    def _type_of(self, node: Node, path: str, inside: tuple[object, ...]) -> SchemaType:
        """See `TypeOf`. Raises RecordError for a type whose size nothing bounds."""
        node = self._resolved(node)
        if isinstance(node, list):
            return SchemaType(parts=[TypePart(None, branch) for branch in node])
        shown = path[:60] if path not in ("", ITEMS_PATH) else "it"
        kind = node if isinstance(node, str) else node["type"]
        if kind in ("record", "error"):
            if (name := node["name"]) in inside:
                raise unsupported(f"type {name} contains itself ({shown}); such records cannot be scored")
            fields = [TypePart(part["name"], part["type"], part.get("aliases", ())) for part in node["fields"]]
            return SchemaType(parts=fields, identity=name)
        if kind in ("array", "map"):
            inner = node["items" if kind == "array" else "values"]
            values, size = self._size(inner)
            if values > MAX_EMPTY_VALUES * (size + (kind == "map")):
                raise unsupported(f"{shown} is an {kind} of values without bytes, whose length nothing bounds")
            return SchemaType(Leaf(kind, "list" if kind == "array" else "map"), [TypePart(ITEMS_PATH, inner)])
        logical = _logical_type(node)
        role = "number" if kind in _NUMBERS else "bytes" if kind in ("bytes", "fixed") else "text"
        role = {"": role, "decimal": "number", "uuid": "text"}.get(logical, "time")
        return SchemaType(None if kind == "null" else Leaf(logical or kind, role))

    def _resolved(self, node: Node) -> Node:
        return self._named.get(node, node) if isinstance(node, str) else node

    def _size(self, node: Node) -> tuple[int, int]:
        """Return the least number of values, and of bytes, that a value of this type has."""
        node = self._resolved(node)
        kind = node if isinstance(node, str) else "union" if isinstance(node, list) else node["type"]
        if kind in ("record", "error"):
            if node["name"] not in self._sizes:
                self._sizes[node["name"]] = 1, 0  # for a type inside itself, which `_type_of` refuses
                sizes = [self._size(field["type"]) for field in node["fields"]]
                self._sizes[node["name"]] = 1 + sum(n for n, _ in sizes), sum(size for _, size in sizes)
            return self._sizes[node["name"]]
        return 1, node["size"] if kind == "fixed" else int(kind != "null")


# --- reading ----------------------------------------------------------------------------------------------------


def _read_by_schema(stream: BinaryIO, schema: Node) -> Any:
    try:
        return schemaless_reader(stream, schema, None)
    except EOFError:
        what = "the value ends before its schema does"
    except UnicodeDecodeError:
        what = "a text in it is not UTF-8"
    except Exception as error:  # of any kind, as bytes can be anything
        what = f"the value does not fit its schema ({type(error).__name__})"
    raise RecordError(NOT_AVRO, what)


# --- logical types ------------------------------------------------------------------------------------------------


def _logical_type(node: Node) -> str:
    """Return the logical type of a leaf; empty if it has none, or one that does not fit (Avro: ignore it)."""
    logical = node.get(HIDDEN_LOGICAL_TYPE) if isinstance(node, dict) else None
    if not isinstance(logical, str) or f"{node['type']}-{logical}" not in _CONVERSIONS:
        return ""
    if logical == "decimal":
        scale, precision = node.get("scale", 0), node.get("precision", 0)
        return logical if isinstance(scale, int) and isinstance(precision, int) and 0 <= scale <= precision else ""
    return "" if (node["type"], logical) == ("fixed", "uuid") and node.get("size") != 16 else logical


def _date(days: int) -> str | int:
    """Return a date in ISO 8601; a day after the year 9999 stays a number."""
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return days


def _time_of_day(places: int, ticks: int) -> str | int:
    text = time_text(places, "", ticks)
    return text[11:] if isinstance(text, str) and 0 <= ticks < 86_400 * 10**places else ticks


# By type and logical type: how a value becomes JSON; None: unchanged. Bytes without a logical type have an empty one.
_CONVERSIONS: dict[str, Callable[[Any], Any] | None] = {
    **{"string-uuid": None, "fixed-uuid": lambda value: str(UUID(bytes=value))},
    **{"int-date": _date, "int-time-millis": partial(_time_of_day, 3)},
    **{"long-time-micros": partial(_time_of_day, 6), "long-time-nanos": partial(_time_of_day, 9)},
    **{f"{kind}-{logical}": base64_text for kind in ("bytes", "fixed") for logical in ("", "decimal")},
}
for _unit, _places in (("millis", 3), ("micros", 6), ("nanos", 9)):
    _CONVERSIONS[f"long-timestamp-{_unit}"] = partial(time_text, _places, "Z")
    _CONVERSIONS[f"long-local-timestamp-{_unit}"] = partial(time_text, _places, "")


def _logical_reader(name: str, convert: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return the conversion with the signature that fastavro calls: value, its schema, and the schema of a reader."""
    if name.endswith("-decimal"):
        return lambda value, schema, _: decimal_text(int(schema.get("scale", 0)), value)
    return lambda value, _schema, _: convert(value)


for _name, _convert in _CONVERSIONS.items():
    if _convert is not None:
        LOGICAL_READERS[_name.replace("-", f"-{OWN_PREFIX}", 1)] = _logical_reader(_name, _convert)


# --- schemas ------------------------------------------------------------------------------------------------------


def _collect_texts(schema: SchemaText, texts: dict[str, None]) -> dict[str, None]:
    """Add the texts of the schemas that this one uses, each once and before its users, and then its own text."""
    for reference in schema.references:
        if reference.schema.text not in texts:
            _collect_texts(reference.schema, texts)
    texts[schema.text] = None
    return texts


def _with_own_types(node: Node, is_field: bool = False, is_alone: bool = True) -> Node:
    """Return the schema with its logical types under the names of `_CONVERSIONS`.

    is_field: the node is a field. is_alone: no other integer type is in the same union; else both stay numbers.
    """
    if isinstance(node, list):
        kinds = [branch.get("type") if isinstance(branch, dict) else branch for branch in node]
        is_alone = sum(kind in ("int", "long") for kind in kinds) < 2
        return [_with_own_types(branch, is_alone=is_alone) for branch in node]
    if node == "bytes":
        node = {"type": "bytes"}
    if not isinstance(node, dict):
        return node
    changed = {HIDDEN_LOGICAL_TYPE if name == "logicalType" else name: value for name, value in node.items()}
    kind = changed.get("type")
    for name in ("type", "items", "values"):
        if name in changed and (name != "type" or is_field or not isinstance(kind, str)):
            changed[name] = _with_own_types(changed[name])
    if isinstance(changed.get("fields"), list):
        changed["fields"] = [_with_own_types(field, is_field=True) for field in changed["fields"]]
    if not is_field and (is_alone or kind not in ("int", "long")):
        logical = _logical_type(changed)
        if logical or kind in ("bytes", "fixed"):
            changed["logicalType"] = OWN_PREFIX + logical
    return changed


@cache
def _result_schema() -> Node:
    return parse_schema(RESULT)


# --- one schema for all records -----------------------------------------------------------------------------------


def writer_of_file(path: Path) -> FindWriter:
    """Return a search that finds the writer of this file for every record: they name no schema. Raises SchemaError."""
    try:
        writer = AvroWriter(SchemaText(Kind.AVRO, path.read_text(encoding="utf-8")), "")
    except (OSError, UnicodeDecodeError, RecordError) as error:
        raise SchemaError(f"{path} cannot be read as an Avro schema ({error})", "check --schema-file") from None
    registered = RegisteredWriter(writer, writer, {})

    def find(data: bytes, headers: Headers, header: str) -> tuple[RegisteredWriter, bytes]:
        if header != VALUE_HEADER:
            raise RecordError(NO_SCHEMA_ID, "the schema is not one of keys")
        return registered, data

    return find
