"""JSON Schema: records are JSON; their schema lists their fields, and those that outputs have in addition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fomo_stream.errors import RecordError
from fomo_stream.records.json_codec import decode, encode
from fomo_stream.records.result_schema import json_schema
from fomo_stream.records.writer_schema import Kind, Leaf, Leaves, SchemaText, SchemaType, TypePart, unsupported

EMPTY_SCHEMA = SchemaText(Kind.JSON, json.dumps({"type": "object", "title": "fomo_stream.Scored"}))  # of only results
MAX_DEPTH = 20  # levels of a schema whose fields are noted

_ROLES = {"number": "number", "integer": "number", "boolean": "number", "string": "text", "array": "list"}
_TIMES = ("date-time", "date", "time")


class JsonSchemaWriter:
    """A `Writer` of JSON with a schema. Records are not checked against it; their producer has done that.

    field: of results; max_bytes: of a record. Raises RecordError if the schema is not a JSON object.
    """

    kind, head = Kind.JSON, b""

    def __init__(self, schema: SchemaText, field: str, max_bytes: int) -> None:
        self._field, self._max_bytes, self._references = field, max_bytes, schema.references
        try:
            root = json.loads(schema.text)
        except (ValueError, RecursionError):
            root = None
        if not isinstance(root, dict):
            raise unsupported("the schema is not a JSON object")
        self._root: dict[str, Any] = root
        self.name = str(self._root.get("title", ""))
        self.leaves = Leaves(self._type_of, self._root)

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Writer.read`. The reasons of the error are those of `json_codec.decode`."""
        return decode(body, self._max_bytes)

    def read_value(self, body: bytes) -> Any:
        """See `Writer.read_value`. The reason of the error is not_json."""
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise RecordError("not_json", "it is not JSON") from None

    def scored_schema(self) -> SchemaText:
        root = self._root
        target = self._resolved(root)
        if target is not root and target.get("additionalProperties") is False:  # then it must be in the same object
            root = {**target, **{name: value for name, value in root.items() if name != "$ref"}}
        elif "$ref" in root:  # older drafts ignore other properties next to $ref
            rest = {name: value for name, value in root.items() if name != "$ref"}
            root = {**rest, "allOf": [{"$ref": root["$ref"]}]}
        properties = {**root.get("properties", {}), self._field: json_schema()}
        return SchemaText(Kind.JSON, json.dumps({**root, "properties": properties}), self._references)

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        return encode(self.read(body), result, self._field, raw=body)

    def _resolved(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the definition in this schema that a node refers to; the node itself if it does not refer to one."""
        path = node.get("$ref")
        if not isinstance(path, str) or not path.startswith("#/"):
            return node
        target: Any = self._root
        for step in path[2:].split("/"):
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        return target if isinstance(target, dict) else node

    def _type_of(self, node: Mapping[str, Any], _path: str, inside: tuple[object, ...]) -> SchemaType:
        """See `TypeOf`. Fields that the schema does not name are left out."""
        node = self._resolved(node)
        choices = node.get("oneOf"), node.get("anyOf")
        for choice in (choice for choice in choices if isinstance(choice, list)):  # a field that may be null
            kept = [branch for branch in choice if isinstance(branch, dict) and branch.get("type") != "null"]
            node = self._resolved(kept[0]) if len(kept) == 1 else node
        type_, properties = node.get("type"), node.get("properties")
        if isinstance(type_, list):
            type_ = next((name for name in type_ if name != "null"), None)
        if isinstance(properties, dict):
            fields = properties.items() if len(inside) < MAX_DEPTH and id(node) not in inside else ()
            parts = [TypePart(name, field) for name, field in fields if isinstance(field, dict)]
            return SchemaType(parts=parts, identity=id(node))
        if not isinstance(type_, str) or type_ not in _ROLES:
            return SchemaType()
        return SchemaType(Leaf(type_, "time" if node.get("format") in _TIMES else _ROLES[type_]))
