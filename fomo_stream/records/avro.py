"""Avro: records read by the schema of their writer, and written with a result behind their own bytes.

fastavro reads the bytes. Its own logical types are objects of Python, which cannot hold all of their values and are no
JSON. So `_TEXTS` are registered with it beside them, under names of their own, which the schema gets before it is read.
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
from fomo_stream.records.schema_codec import Find
from fomo_stream.records.wire_format import NO_SCHEMA_ID, VALUE_HEADER, Headers
from fomo_stream.records.writer import INNER, Kind, Leaf, Leaves, Part, Registered, SchemaText, Type, unsupported

NOT_AVRO = "not_avro"  # reason of dead letters
MOST_EMPTY = 100  # values without bytes for each byte of an item: few bytes must not become very many values
EMPTY = SchemaText(
    Kind.AVRO, json.dumps({"type": "record", "name": "Scored", "namespace": NAMESPACE, "fields": []})
)  # of outputs that hold only results

Node = Any  # a schema, as its JSON

_NUMBERS = frozenset({"int", "long", "float", "double", "boolean"})
_EPOCH = datetime(1970, 1, 1)
HIDDEN, OWN = "hidden logical type", "fomo-"  # keys and prefix of logical types


class AvroWriter:
    """A writer of Avro: see `Writer`. field: of results. Raises RecordError if its schema cannot be used."""

    kind, head = Kind.AVRO, b""

    def __init__(self, schema: SchemaText, field: str) -> None:
        self._schema, self._field = schema, field
        self._reads: Node = None
        self._named: dict[str, Node] = {}  # definitions by full name
        try:
            for text in _with_references(schema, {}):
                root = json.loads(text)
                self._reads = parse_schema(_as_read(root), self._named)
        except Exception as error:  # fastavro raises many kinds
            raise unsupported(f"the schema is not Avro ({type(error).__name__}: {str(error)[:200]})") from None
        self._root = root
        self.name = str(self._reads.get("name", "")) if isinstance(self._reads, dict) else ""
        self._sizes: dict[str, tuple[int, int]] = {}  # see `_size`, by name
        self.leaves = Leaves(self._look, self._reads)
        self._before: Node = None  # the schema without an earlier result
        fields = root.get("fields", []) if isinstance(root, dict) else []
        if fields and fields[-1].get("name") == field:
            self._before = {**self._reads, "fields": self._reads["fields"][:-1]}

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Writer.read`. The reason of the error is not_avro, or not_an_object."""
        fields = self.read_value(body)
        if not isinstance(fields, dict):
            raise RecordError("not_an_object", "the schema of the record is no record; it must have named fields")
        return fields

    def read_value(self, body: bytes) -> Any:
        stream = BytesIO(body)
        value = self.read_next(stream)
        left = len(body) - stream.tell()
        if left:
            raise RecordError(NOT_AVRO, f"{left} bytes are left over after its schema")
        return value

    def read_next(self, stream: BinaryIO) -> Any:
        """The value that begins here. Raises RecordError."""
        return _read(stream, self._reads)

    def scored_schema(self) -> SchemaText:
        root, known = self._root, f"{NAMESPACE}.Result" in self._named
        if not isinstance(root, dict) or root.get("type") != "record":
            raise unsupported("a result can only be added to a record, not to another type")
        others = root["fields"] if self._before is None else root["fields"][:-1]
        if any(other["name"] == self._field for other in others):
            what = f"the schema {self.name} already has a field {self._field} that is not the last one"
            raise unsupported(f"{what}; choose another --result-field")
        result = f"{NAMESPACE}.Result" if known and self._before is None else RESULT
        doc = "what fomo-stream says of this record"
        field = {"name": self._field, "type": ["null", result], "default": None, "doc": doc}
        return SchemaText(Kind.AVRO, json.dumps({**root, "fields": [*others, field]}), self._schema.references)

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        if self._before is not None:
            stream = BytesIO(body)
            _read(stream, self._before)
            body = body[: stream.tell()]
        written = BytesIO()
        schemaless_writer(written, _result_schema(), as_written(dict(result)))
        return body + b"\x02" + written.getvalue()  # 2: the second type of the union, null being the first

    def _look(self, node: Node, path: str, inside: tuple[object, ...]) -> Type:
        """See `Look`. Raises RecordError for a type without a bound."""
        node = self._resolved(node)
        if isinstance(node, list):
            return Type(parts=[Part(None, branch) for branch in node])
        shown = path[:60] if path not in ("", INNER) else "it"
        kind = node if isinstance(node, str) else node["type"]
        if kind in ("record", "error"):
            if (name := node["name"]) in inside:
                raise unsupported(f"type {name} contains itself ({shown}); such records cannot be scored")
            fields = [Part(one["name"], one["type"], one.get("aliases", ())) for one in node["fields"]]
            return Type(parts=fields, identity=name)
        if kind in ("array", "map"):
            inner = node["items" if kind == "array" else "values"]
            values, size = self._size(inner)
            if values > MOST_EMPTY * (size + (kind == "map")):
                raise unsupported(f"{shown} is an {kind} of values without bytes, whose length nothing bounds")
            return Type(Leaf(kind, "list" if kind == "array" else "map"), [Part(INNER, inner)])
        logical = _logical_type(node)
        role = "number" if kind in _NUMBERS else "bytes" if kind in ("bytes", "fixed") else "text"
        role = {"": role, "decimal": "number", "uuid": "text"}.get(logical, "time")
        return Type(None if kind == "null" else Leaf(logical or kind, role))

    def _resolved(self, node: Node) -> Node:
        return self._named.get(node, node) if isinstance(node, str) else node

    def _size(self, node: Node) -> tuple[int, int]:
        """How many values one of this type is at least, and how many bytes."""
        node = self._resolved(node)
        kind = node if isinstance(node, str) else "union" if isinstance(node, list) else node["type"]
        if kind in ("record", "error"):
            if node["name"] not in self._sizes:
                self._sizes[node["name"]] = 1, 0  # of a type in itself, which is refused
                sizes = [self._size(field["type"]) for field in node["fields"]]
                self._sizes[node["name"]] = 1 + sum(n for n, _ in sizes), sum(size for _, size in sizes)
            return self._sizes[node["name"]]
        return 1, node["size"] if kind == "fixed" else int(kind != "null")


# --- reading ----------------------------------------------------------------------------------------------------


def _read(stream: BinaryIO, schema: Node) -> Any:
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
    """The logical type of a leaf; empty if it has none, or one that does not fit, which Avro says to ignore."""
    logical = node.get(HIDDEN) if isinstance(node, dict) else None
    if not isinstance(logical, str) or f"{node['type']}-{logical}" not in _TEXTS:
        return ""
    if logical == "decimal":
        scale, precision = node.get("scale", 0), node.get("precision", 0)
        return logical if isinstance(scale, int) and isinstance(precision, int) and 0 <= scale <= precision else ""
    return "" if (node["type"], logical) == ("fixed", "uuid") and node.get("size") != 16 else logical


def _date(days: int) -> str | int:
    """ISO 8601; a day beyond the year 9999 stays a number."""
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return days


def _time_of_day(places: int, ticks: int) -> str | int:
    text = time_text(places, "", ticks)
    return text[11:] if isinstance(text, str) and 0 <= ticks < 86_400 * 10**places else ticks


# By type and logical type: how values become JSON; None: they are. The empty ones are of bytes without a logical type.
_TEXTS: dict[str, Callable[[Any], Any] | None] = {
    **{"string-uuid": None, "fixed-uuid": lambda value: str(UUID(bytes=value))},
    **{"int-date": _date, "int-time-millis": partial(_time_of_day, 3)},
    **{"long-time-micros": partial(_time_of_day, 6), "long-time-nanos": partial(_time_of_day, 9)},
    **{f"{kind}-{logical}": base64_text for kind in ("bytes", "fixed") for logical in ("", "decimal")},
}
for _unit, _places in (("millis", 3), ("micros", 6), ("nanos", 9)):
    _TEXTS[f"long-timestamp-{_unit}"] = partial(time_text, _places, "Z")
    _TEXTS[f"long-local-timestamp-{_unit}"] = partial(time_text, _places, "")


def _reader(name: str, convert: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """As fastavro calls it, with the schema of the value."""
    if name.endswith("-decimal"):
        return lambda value, schema, _: decimal_text(int(schema.get("scale", 0)), value)
    return lambda value, _schema, _: convert(value)


for _name, _convert in _TEXTS.items():
    if _convert is not None:
        LOGICAL_READERS[_name.replace("-", f"-{OWN}", 1)] = _reader(_name, _convert)


# --- schemas ------------------------------------------------------------------------------------------------------


def _with_references(schema: SchemaText, texts: dict[str, None]) -> dict[str, None]:
    """Add to the texts those that it refers to, each before those that use it and each once, and its own."""
    for reference in schema.references:
        if reference.schema.text not in texts:
            _with_references(reference.schema, texts)
    texts[schema.text] = None
    return texts


def _as_read(node: Node, is_field: bool = False, is_alone: bool = True) -> Node:
    """The schema with its logical types under names of `_TEXTS`.

    is_field: the node is a field. is_alone: no number that looks alike is in the same union, where it would stay as it
    is.
    """
    if isinstance(node, list):
        kinds = [one.get("type") if isinstance(one, dict) else one for one in node]
        is_alone = sum(kind in ("int", "long") for kind in kinds) < 2
        return [_as_read(one, is_alone=is_alone) for one in node]
    if node == "bytes":
        node = {"type": "bytes"}
    if not isinstance(node, dict):
        return node
    made = {HIDDEN if name == "logicalType" else name: value for name, value in node.items()}
    kind = made.get("type")
    for name in ("type", "items", "values"):
        if name in made and (name != "type" or is_field or not isinstance(kind, str)):
            made[name] = _as_read(made[name])
    if isinstance(made.get("fields"), list):
        made["fields"] = [_as_read(field, is_field=True) for field in made["fields"]]
    if not is_field and (is_alone or kind not in ("int", "long")):
        logical = _logical_type(made)
        if logical or kind in ("bytes", "fixed"):
            made["logicalType"] = OWN + logical
    return made


@cache
def _result_schema() -> Node:
    return parse_schema(RESULT)


# --- one schema for all records -----------------------------------------------------------------------------------


def one_writer(path: Path) -> Find:
    """Finds the writer of records that name no schema: it is that in this file. Raises SchemaError."""
    try:
        writer = AvroWriter(SchemaText(Kind.AVRO, path.read_text(encoding="utf-8")), "")
    except (OSError, UnicodeDecodeError, RecordError) as error:
        raise SchemaError(f"{path} cannot be read as an Avro schema ({error})", "check --schema-file") from None
    known = Registered(writer, writer, {})

    def find(data: bytes, headers: Headers, header: str) -> tuple[Registered, bytes]:
        if header != VALUE_HEADER:
            raise RecordError(NO_SCHEMA_ID, "the schema is not one of keys")
        return known, data

    return find
