"""JSON Schema: records are JSON; their schema says which fields they have, and what outputs have besides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fomo_stream.errors import RecordError
from fomo_stream.records.json_codec import decode, encode
from fomo_stream.records.result_schema import json_schema
from fomo_stream.records.writer import Kind, Leaf, Leaves, Part, SchemaText, Type, unsupported

EMPTY = SchemaText(Kind.JSON, json.dumps({"type": "object", "title": "fomo_stream.Scored"}))  # of only results
MAX_DEPTH = 20  # levels of a schema whose fields are noted

_ROLES = {"number": "number", "integer": "number", "boolean": "number", "string": "text", "array": "list"}
_TIMES = ("date-time", "date", "time")


class JsonSchemaWriter:
    """A writer of JSON with a schema: see `Writer`. Records are not checked against it; their producer has done that.

    field: of results; max_bytes: of a record. Raises RecordError if the schema is no JSON object.
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
        self.leaves = Leaves(self._look, self._root)

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
        if target is not root and target.get("additionalProperties") is False:  # a new property needs to be beside it
            root = {**target, **{name: value for name, value in root.items() if name != "$ref"}}
        elif "$ref" in root:  # older drafts ignore what stands beside $ref
            rest = {name: value for name, value in root.items() if name != "$ref"}
            root = {**rest, "allOf": [{"$ref": root["$ref"]}]}
        properties = {**root.get("properties", {}), self._field: json_schema()}
        return SchemaText(Kind.JSON, json.dumps({**root, "properties": properties}), self._references)

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        return encode(self.read(body), result, self._field, raw=body)

    def _resolved(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """The definition in this schema that a node refers to; itself, if it refers to none."""
        path = node.get("$ref")
        if not isinstance(path, str) or not path.startswith("#/"):
            return node
        found: Any = self._root
        for step in path[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else node

    def _look(self, node: Mapping[str, Any], _path: str, inside: tuple[object, ...]) -> Type:
        """See `Look`. Fields that the schema only describes in other ways than by their names are left out."""
        node = self._resolved(node)
        choices = node.get("oneOf"), node.get("anyOf")
        for choice in (one for one in choices if isinstance(one, list)):  # a field that may be null
            kept = [one for one in choice if isinstance(one, dict) and one.get("type") != "null"]
            node = self._resolved(kept[0]) if len(kept) == 1 else node
        type_, properties = node.get("type"), node.get("properties")
        if isinstance(type_, list):
            type_ = next((one for one in type_ if one != "null"), None)
        if isinstance(properties, dict):
            fields = properties.items() if len(inside) < MAX_DEPTH and id(node) not in inside else ()
            return Type(parts=[Part(*one) for one in fields if isinstance(one[1], dict)], identity=id(node))
        if not isinstance(type_, str) or type_ not in _ROLES:
            return Type()
        return Type(Leaf(type_, "time" if node.get("format") in _TIMES else _ROLES[type_]))
