"""Avro: records read by the schema of their writer, and written with a result behind their own bytes.

fastavro reads the bytes. It would turn logical types into objects of Python, which cannot hold all of their values and
are no JSON. So they are hidden from it, and a plan made once for each schema converts the few fields that need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from fomo_stream.errors import RecordError, SchemaError
from fomo_stream.limits import LONGEST_PATH
from fomo_stream.records.json_values import base64_text, decimal_text, time_text
from fomo_stream.records.result_schema import NAMESPACE, RESULT, as_written
from fomo_stream.records.schema_codec import Find
from fomo_stream.records.wire_format import NO_SCHEMA_ID, VALUE_HEADER, Headers
from fomo_stream.records.writer import UNSUPPORTED, Kind, Leaf, Leaves, Registered, SchemaText

NOT_AVRO = "not_avro"  # reason of dead letters
MAX_DEPTH = 100  # levels of a schema
MOST_ALIASES = 1000  # former paths of a field, and ten times as many of a schema
MOST_EMPTY = 100  # values without bytes for each byte of an item: few bytes must not become very many values
EMPTY = json.dumps({"type": "record", "name": "Scored", "namespace": NAMESPACE, "fields": []})

Node = Any  # a schema, as its JSON
Convert = Callable[[Any], Any]

_NUMBERS = frozenset({"int", "long", "float", "double", "boolean"})
_PYTHON_TYPES = {
    **{"null": type(None), "boolean": bool, "int": int, "long": int, "float": float, "double": float},
    **{"bytes": bytes, "string": str, "array": list, "map": dict},
}
_TICKS = {"millis": 3, "micros": 6, "nanos": 9}  # decimal places of a second
_EPOCH = datetime(1970, 1, 1)
HIDDEN = "hidden logical type"
INNER = "\0"  # the path of what is inside of lists and maps, which are leaves


class AvroWriter:
    """A writer of Avro: see `Writer`. field: of results. Raises RecordError if its schema cannot be used.

    >>> schema = '{"type": "record", "name": "Reading", "fields": [{"name": "flow", "type": "double"}]}'
    >>> writer = AvroWriter(SchemaText(Kind.AVRO, schema), "fomo")
    >>> writer.read(bytes.fromhex("0000000000000c40")), writer.leaves
    ({'flow': 3.5}, {'flow': Leaf(type='double', role='number')})
    """

    kind, head = Kind.AVRO, b""

    def __init__(self, schema: SchemaText, field: str) -> None:
        self._schema, self._field = schema, field
        self._reads: Node = None
        self.leaves = Leaves()
        self.aliases: dict[str, str] = {}
        self._named: dict[str, Node] = {}  # definitions by full name
        try:
            for text in _with_references(schema, {}):
                root = json.loads(text)
                self._reads = parse_schema(_with_hidden_types(root), self._named)
        except RecordError:
            raise
        except Exception as error:  # fastavro raises many kinds
            raise _unsupported(f"the schema is not Avro ({type(error).__name__}: {str(error)[:200]})") from None
        self._root = root
        self.name = str(self._reads.get("name", "")) if isinstance(self._reads, dict) else ""
        self._convert = _Plan(self).of(self._reads, "", (), ())
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
        """See `Writer.read_value`."""
        stream = BytesIO(body)
        value = self.read_next(stream)
        left = len(body) - stream.tell()
        if left:
            raise RecordError(NOT_AVRO, f"{left} bytes are left over after its schema")
        return value

    def read_next(self, stream: BinaryIO) -> Any:
        """The value that begins here. Raises RecordError."""
        value = _read(stream, self._reads)
        return value if self._convert is None else self._convert(value)

    def scored_schema(self) -> SchemaText:
        """See `Writer.scored_schema`."""
        root, known = self._root, f"{NAMESPACE}.Result" in self._named
        if not isinstance(root, dict) or root.get("type") != "record":
            raise _unsupported("a result can only be added to a record, not to another type")
        others = root["fields"] if self._before is None else root["fields"][:-1]
        if any(other["name"] == self._field for other in others):
            what = f"the schema {self.name} already has a field {self._field} that is not the last one"
            raise _unsupported(f"{what}; choose another --result-field")
        result = f"{NAMESPACE}.Result" if known and self._before is None else RESULT
        doc = "what fomo-stream says of this record"
        field = {"name": self._field, "type": ["null", result], "default": None, "doc": doc}
        return SchemaText(Kind.AVRO, json.dumps({**root, "fields": [*others, field]}), self._schema.references)

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        """See `Writer.scored`."""
        if self._before is not None:
            stream = BytesIO(body)
            _read(stream, self._before)
            body = body[: stream.tell()]
        written = BytesIO()
        schemaless_writer(written, _result_schema(), as_written(dict(result)))
        return body + b"\x02" + written.getvalue()  # 2: the second type of the union, null being the first


class _Plan:
    """Makes the conversion of values, and notes the leaves of the schema."""

    def __init__(self, writer: AvroWriter) -> None:
        self._writer = writer
        self._sizes: dict[str, tuple[int, int]] = {}  # see `_size`, by name

    def of(self, node: Node, path: str, former: tuple[str, ...], inside: tuple[str, ...]) -> Convert | None:
        """How a value is converted; None: it is JSON already.

        path: of the value. former: its earlier paths. inside: names of the records around it.
        """
        node = self._resolved(node)
        self._writer.leaves.visit()
        if len(inside) > MAX_DEPTH:
            raise _unsupported(f"it has more than {MAX_DEPTH} levels")
        if isinstance(node, list):
            return self._of_union(node, path, former, inside)
        kind = node if isinstance(node, str) else node["type"]
        if kind in ("record", "error"):
            return self._of_record(node, path, former, inside)
        if kind == "array" or kind == "map":
            self._leaf(path, former, kind, "list" if kind == "array" else "map")
            inner = node["items"] if kind == "array" else node["values"]
            values, size = self._size(inner)
            if values > MOST_EMPTY * (size + (kind == "map")):
                raise _unsupported(f"{_shown(path)} is an {kind} of values without bytes, whose length nothing bounds")
            convert = self.of(inner, INNER, (), (*inside, ""))
            if convert is None:
                return None
            return partial(_in_list if kind == "array" else _in_map, convert)
        logical = None if isinstance(node, str) else _logical_type(node)
        convert, role = _conversion(kind, logical, node)
        self._leaf(path, former, kind if logical is None else logical, role)
        return convert

    def _of_record(self, node: Node, path: str, former: tuple[str, ...], inside: tuple[str, ...]) -> Convert | None:
        name = node["name"]
        if name in inside:
            raise _unsupported(f"type {name} contains itself ({_shown(path)}); such records cannot be scored")
        steps = []
        for field in node["fields"]:
            own = field["name"]
            its_path = INNER if path == INNER else _joined(path, own)
            aliases = (_joined(before, one) for one in field.get("aliases", ()) for before in (path, *former))
            earlier = islice(chain((_joined(before, own) for before in former), aliases), MOST_ALIASES)
            convert = self.of(field["type"], its_path, tuple(earlier), (*inside, name))
            if convert is not None:
                steps.append((own, convert))
        return partial(_in_record, tuple(steps)) if steps else None

    def _of_union(self, node: Node, path: str, former: tuple[str, ...], inside: tuple[str, ...]) -> Convert | None:
        by_type: dict[type, Convert | None] = {}
        by_name: dict[str, Convert | None] = {}  # fastavro gives values of types with names together with these
        for branch in node:
            resolved = self._resolved(branch)
            convert = self.of(resolved, path, former, (*inside, ""))
            if isinstance(resolved, dict) and "name" in resolved:
                by_name[resolved["name"]] = convert
                continue
            kind = _PYTHON_TYPES[resolved if isinstance(resolved, str) else resolved["type"]]
            # An int and a long look alike: where they have different logical types, numbers stay as they are.
            by_type[kind] = None if by_type.get(kind, convert) is not convert else convert
        return partial(_in_union, by_type, by_name) if by_name or any(by_type.values()) else None

    def _leaf(self, path: str, former: tuple[str, ...], type_: str, role: str) -> None:
        if path == INNER or type_ == "null":
            return
        leaves = self._writer.leaves
        known = leaves.get(path)
        same = known is None or known.role == role
        type_ = type_ if known is None or len(known.type) > LONGEST_PATH else f"{known.type} or {type_}"
        leaves.visit(path, Leaf(type_, role if same else "mixed"))
        if path in leaves and len(self._writer.aliases) < 10 * MOST_ALIASES:
            self._writer.aliases.update(dict.fromkeys(former, path))

    def _resolved(self, node: Node) -> Node:
        return self._writer._named.get(node, node) if isinstance(node, str) else node

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
        return schemaless_reader(stream, schema, None, return_named_type=True)
    except EOFError:
        what = "the value ends before its schema does"
    except UnicodeDecodeError:
        what = "a text in it is not UTF-8"
    except Exception as error:  # of any kind, as bytes can be anything
        what = f"the value does not fit its schema ({type(error).__name__})"
    raise RecordError(NOT_AVRO, what)


def _in_record(steps: tuple[tuple[str, Convert], ...], fields: dict[str, Any]) -> dict[str, Any]:
    for name, convert in steps:
        fields[name] = convert(fields[name])
    return fields


def _in_list(convert: Convert, values: list[Any]) -> list[Any]:
    return [convert(value) for value in values]


def _in_map(convert: Convert, values: dict[str, Any]) -> dict[str, Any]:
    return {name: convert(value) for name, value in values.items()}


def _in_union(by_type: Mapping[type, Convert | None], by_name: Mapping[str, Convert | None], value: Any) -> Any:
    if value is None:
        return None
    if type(value) is tuple:
        name, value = value
        convert = by_name[name]
    else:
        convert = by_type[type(value)]
    return value if convert is None else convert(value)


# --- logical types ------------------------------------------------------------------------------------------------


def _logical_type(node: Mapping[str, Any]) -> str | None:
    """The logical type, if it fits the type; one that does not is ignored, as the specification says."""
    kind, logical = node["type"], node.get(HIDDEN)
    if not isinstance(logical, str):
        return None
    if logical == "decimal":
        scale, precision = node.get("scale", 0), node.get("precision", 0)
        is_sound = isinstance(scale, int) and isinstance(precision, int) and 0 <= scale <= precision
        return logical if kind in ("bytes", "fixed") and is_sound else None
    if logical == "uuid":
        return logical if kind == "string" or (kind == "fixed" and node.get("size") == 16) else None
    if logical in ("date", "time-millis"):
        return logical if kind == "int" else None
    first, _, unit = logical.rpartition("-")
    is_time = first in ("time", "timestamp", "local-timestamp") and unit in _TICKS
    return logical if is_time and kind == "long" else None


def _conversion(kind: str, logical: str | None, node: Node) -> tuple[Convert | None, str]:
    """How values become JSON (None: they are), and the role of the field."""
    if logical == "decimal":
        return partial(decimal_text, int(node.get("scale", 0))), "number"
    if logical == "uuid":
        return (None if kind == "string" else _uuid), "text"
    if logical == "date":
        return _date, "time"
    if logical is not None:
        first, _, unit = logical.rpartition("-")
        if first == "time":
            return partial(_time_of_day, _TICKS[unit]), "time"
        return partial(time_text, _TICKS[unit], "Z" if first == "timestamp" else ""), "time"
    if kind in ("bytes", "fixed"):
        return base64_text, "bytes"
    return None, "number" if kind in _NUMBERS else "text"


def _uuid(value: bytes) -> str:
    return str(UUID(bytes=value))


def _date(days: int) -> str | int:
    """ISO 8601; a day beyond the year 9999 stays a number."""
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return days


def _time_of_day(places: int, ticks: int) -> str | int:
    text = time_text(places, "", ticks)
    return text[11:] if isinstance(text, str) and 0 <= ticks < 86_400 * 10**places else ticks


# --- schemas ------------------------------------------------------------------------------------------------------


def _unsupported(what: str) -> RecordError:
    return RecordError(UNSUPPORTED, what)


def _shown(path: str) -> str:
    return path[:60] if path not in ("", INNER) else "it"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _with_references(schema: SchemaText, texts: dict[str, None]) -> dict[str, None]:
    """Add to the texts those that it refers to, each before those that use it and each once, and its own."""
    for reference in schema.references:
        if reference.schema.text not in texts:
            _with_references(reference.schema, texts)
    texts[schema.text] = None
    return texts


def _with_hidden_types(node: Node) -> Node:
    """The schema with its logical types under a name that fastavro does not know."""
    if isinstance(node, list):
        return [_with_hidden_types(one) for one in node]
    if not isinstance(node, dict):
        return node
    hidden = {HIDDEN if name == "logicalType" else name: value for name, value in node.items()}
    for name in ("type", "items", "values"):
        if name in hidden:
            hidden[name] = _with_hidden_types(hidden[name])
    if isinstance(hidden.get("fields"), list):
        hidden["fields"] = [_with_hidden_types(field) for field in hidden["fields"]]
    return hidden


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
