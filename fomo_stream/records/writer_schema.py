"""Schemas of the writers of records. They read the records, and write them with results.

A value is read by the schema of its own writer. A result is written behind the record's own bytes, as one more field at
the end of the same schema: the fields of an Avro record follow each other, and in Protobuf their order does not matter.
So no byte of the record itself changes. Each language of schemas has a file of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

from fomo_stream.errors import RecordError
from fomo_stream.limits import MAX_PATH_CHARACTERS
from fomo_stream.records.json_codec import is_strict
from fomo_stream.records.schema import look_up

UNSUPPORTED = "unsupported_schema"  # reason of dead letters
MAX_LEAVES = 10_000  # of a schema
MAX_NODE_VISITS = 10 * MAX_LEAVES  # of nodes of a schema: a type that is used twice is visited twice
MAX_DEPTH = 100  # levels of a schema
COMPILE_S = 5.0  # CPU time: a schema is not refused because the machine is busy
MAX_ALIASES = 1000  # former paths of a field; a schema has up to ten times as many
ITEMS_PATH = "\0"  # the path of everything inside lists and maps, as these are leaves


class Kind(StrEnum):
    """The languages of schemas, as registries name them."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True)
class ReferencedSchema:
    """A schema that another one uses, with its name there: a type in Avro, a file in Protobuf."""

    name: str
    subject: str
    version: int
    schema: SchemaText


@dataclass(frozen=True)
class SchemaText:
    """A schema in a registry, with the schemas that it refers to.

    compiled: for Protobuf, a serialized FileDescriptorSet: all imports of the file, and the file itself at the end.
    """

    kind: Kind
    text: str
    references: tuple[ReferencedSchema, ...] = ()
    compiled: bytes = b""


class Leaf(NamedTuple):
    """A field that holds no other fields.

    type: its name in the schema. role: number, text, time, bytes, list or map; mixed, if it can be several of these.
    """

    type: str
    role: str


class TypePart(NamedTuple):
    """A part of a type: a field with its former names, a branch of a union (no name), or its items (ITEMS_PATH)."""

    name: str | None
    type: Any
    aliases: Iterable[str] = ()


class SchemaType(NamedTuple):
    """A type in a schema: a leaf, or a type with parts, or both. identity: shows that a type is inside itself."""

    leaf: Leaf | None = None
    parts: Iterable[TypePart] = ()
    identity: object = None


# Describes a type by its definition, its path, and the identities of the types around it.
TypeOf = Callable[[Any, str, tuple[object, ...]], SchemaType]


class Leaves(dict[str, Leaf]):
    """The leaves of a schema by dotted path. The search is bounded, as a few types can have endless fields.

    aliases: the current path of a field by its former path.
    """

    def __init__(self, look: TypeOf, root: Any) -> None:
        self.aliases: dict[str, str] = {}
        self._look, self._visits, self._until = look, 0, time.thread_time() + COMPILE_S
        self._visit(root, "", (), ())

    def _visit(self, node: Any, path: str, former_paths: tuple[str, ...], inside: tuple[object, ...]) -> None:
        """Note the leaves of this type. former: earlier paths of it. Raises RecordError."""
        if len(inside) > MAX_DEPTH:
            raise unsupported(f"it has more than {MAX_DEPTH} levels")
        leaf, parts, identity = self._look(node, path, inside)
        self._visits += 1
        if leaf is not None and path not in ("", ITEMS_PATH) and len(path) <= MAX_PATH_CHARACTERS:
            first_leaf = self.get(path, leaf)
            named = (
                first_leaf.type
                if first_leaf is leaf or len(first_leaf.type) > MAX_PATH_CHARACTERS
                else f"{first_leaf.type} or {leaf.type}"
            )
            self[path] = Leaf(named, leaf.role if first_leaf.role == leaf.role else "mixed")
            if len(self.aliases) < 10 * MAX_ALIASES:
                self.aliases.update(dict.fromkeys(former_paths, path))
        if len(self) > MAX_LEAVES or self._visits > MAX_NODE_VISITS:
            raise unsupported(f"it has more than {MAX_LEAVES:,} fields")
        if time.thread_time() > self._until:
            raise unsupported(f"its fields are not found in {COMPILE_S:g} s")
        for name, part, aliases in parts:
            if name is None or ITEMS_PATH in (name, path):
                self._visit(part, path if name is None else ITEMS_PATH, former_paths, (*inside, identity))
                continue
            earlier = chain(
                (joined_path(old, name) for old in former_paths),
                (joined_path(old, alias) for alias in aliases for old in (path, *former_paths)),
            )
            self._visit(part, joined_path(path, name), tuple(islice(earlier, MAX_ALIASES)), (*inside, identity))


def joined_path(path: str, name: str) -> str:
    """Return the path of a field of the type at `path`."""
    return f"{path}.{name}" if path else name


def unsupported(what: str) -> RecordError:
    """Return the error for a schema that cannot be used."""
    return RecordError(UNSUPPORTED, what)


class Writer(Protocol):
    """The compiled schema of a writer. It knows the name of the field with the result."""

    kind: Kind
    name: str  # full name of the type of its records; empty if it has none
    head: bytes  # of its records, between the id of the schema and the body
    leaves: Leaves

    def read(self, body: bytes) -> dict[str, Any]:
        """Read the fields of a record, as JSON can hold them. Raises RecordError."""

    def read_value(self, body: bytes) -> Any:
        """Read a value of any type, as JSON can hold it: for keys. Raises RecordError."""

    def scored_schema(self) -> SchemaText:
        """Return the schema of its records with a result. Raises RecordError if no result can be added."""

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        """Return the body of a record with its result, which replaces an earlier one. Raises RecordError."""


@dataclass(frozen=True)
class RegisteredWriter:
    """A writer whose schema is known, and the writer of its outputs, which differs if outputs hold only results.

    ids: of the schemas of the outputs, by topic; empty if outputs have no schema.
    """

    writer: Writer
    output: Writer
    ids: Mapping[str, int]


class WrittenFields(dict[str, Any]):
    """The fields of a record, with its writer and its body, to write it again.

    json: the body, if it is JSON that can be copied to an output.
    """

    __slots__ = ("body", "json", "writer")

    def __init__(self, fields: Mapping[str, Any], writer: RegisteredWriter, body: bytes) -> None:
        super().__init__(fields)
        self.writer, self.body = writer, body
        self.json = body if writer.writer.kind is Kind.JSON and is_strict(fields) else None


def with_current_names(fields: Mapping[str, Any], features: Sequence[str]) -> Mapping[str, Any]:
    """Return the fields. A field that was renamed since a feature was named also appears under the former name."""
    if not isinstance(fields, WrittenFields) or not (leaves := fields.writer.writer.leaves).aliases:
        return fields
    aliases = leaves.aliases
    renamed = {name: aliases[name] for name in features if name in aliases and name not in leaves}
    return {**fields, **{name: look_up(fields, path) for name, path in renamed.items()}} if renamed else fields
