"""Schemas of the writers of records: what reads their records, and writes these with results. One file for each kind.

A value is read by the schema of its own writer. A result is written behind the record's own bytes, as one more field at
the end of the same schema: the fields of an Avro record follow each other, and in Protobuf their order does not matter.
So no byte of the record itself changes.
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
MOST_LEAVES = 10_000  # of a schema
MOST_VISITS = 10 * MOST_LEAVES  # of its nodes: a type that is used twice is visited twice
MAX_DEPTH = 100  # levels of a schema
COMPILE_S = 5.0  # CPU time: a schema is not refused because the machine is busy
MOST_ALIASES = 1000  # former paths of a field, and ten times as many of a schema
INNER = "\0"  # the path of what is inside of lists and maps, which are leaves


class Kind(StrEnum):
    """In which language a schema is written, as registries name it."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True)
class Reference:
    """A schema that another one uses, and how that calls it: a name of a type in Avro, of a file in Protobuf."""

    name: str
    subject: str
    version: int
    schema: SchemaText


@dataclass(frozen=True)
class SchemaText:
    """A schema as a registry holds it, with those that it refers to.

    compiled: of Protobuf: a serialized FileDescriptorSet: all that the file imports, and the file itself at the end.
    """

    kind: Kind
    text: str
    references: tuple[Reference, ...] = ()
    compiled: bytes = b""


class Leaf(NamedTuple):
    """A field that holds no other fields.

    type: as its schema calls it. role: number, text, time, bytes, list or map; mixed, if it can be several of these.
    """

    type: str
    role: str


class Part(NamedTuple):
    """What a type holds: a field with its former names, a branch of a union (no name), or what is INNER."""

    name: str | None
    type: Any
    aliases: Iterable[str] = ()


class Type(NamedTuple):
    """A type in a schema: a leaf, or what holds others, or both. identity: by which it is found inside of itself."""

    leaf: Leaf | None = None
    parts: Iterable[Part] = ()
    identity: object = None


# What a language says of a type: its definition, its path, and the identities of those around it.
Look = Callable[[Any, str, tuple[object, ...]], Type]


class Leaves(dict[str, Leaf]):
    """The leaves of a schema by dotted path. There is a bound for finding them, as a few types can have endless fields.

    aliases: by former path of a field: its path now.
    """

    def __init__(self, look: Look, root: Any) -> None:
        self.aliases: dict[str, str] = {}
        self._look, self._visits, self._until = look, 0, time.thread_time() + COMPILE_S
        self._visit(root, "", (), ())

    def _visit(self, node: Any, path: str, former: tuple[str, ...], inside: tuple[object, ...]) -> None:
        """Note the leaves of this type. former: earlier paths of it. Raises RecordError."""
        if len(inside) > MAX_DEPTH:
            raise unsupported(f"it has more than {MAX_DEPTH} levels")
        leaf, parts, identity = self._look(node, path, inside)
        self._visits += 1
        if leaf is not None and path not in ("", INNER) and len(path) <= MAX_PATH_CHARACTERS:
            known = self.get(path, leaf)
            named = (
                known.type if known is leaf or len(known.type) > MAX_PATH_CHARACTERS else f"{known.type} or {leaf.type}"
            )
            self[path] = Leaf(named, leaf.role if known.role == leaf.role else "mixed")
            if len(self.aliases) < 10 * MOST_ALIASES:
                self.aliases.update(dict.fromkeys(former, path))
        if len(self) > MOST_LEAVES or self._visits > MOST_VISITS:
            raise unsupported(f"it has more than {MOST_LEAVES:,} fields")
        if time.thread_time() > self._until:
            raise unsupported(f"its fields are not found in {COMPILE_S:g} s")
        for name, part, aliases in parts:
            if name is None or INNER in (name, path):
                self._visit(part, path if name is None else INNER, former, (*inside, identity))
                continue
            earlier = chain(
                (joined(old, name) for old in former), (joined(old, one) for one in aliases for old in (path, *former))
            )
            self._visit(part, joined(path, name), tuple(islice(earlier, MOST_ALIASES)), (*inside, identity))


def joined(path: str, name: str) -> str:
    """The path of a field in what is at `path`."""
    return f"{path}.{name}" if path else name


def unsupported(what: str) -> RecordError:
    """The error for a schema that cannot be used."""
    return RecordError(UNSUPPORTED, what)


class Writer(Protocol):
    """The schema of a writer, compiled. It knows the name of the field with the result."""

    kind: Kind
    name: str  # full name of the type of its records; empty if it has none
    head: bytes  # what its records have between the id of the schema and their body
    leaves: Leaves

    def read(self, body: bytes) -> dict[str, Any]:
        """The fields of a record, as JSON can hold them. Raises RecordError."""

    def read_value(self, body: bytes) -> Any:
        """A value of any type, as JSON can hold it: for keys. Raises RecordError."""

    def scored_schema(self) -> SchemaText:
        """The schema of its records with a result. Raises RecordError if no result can be added."""

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        """The body of a record with its result; an earlier result is replaced. Raises RecordError."""


@dataclass(frozen=True)
class Registered:
    """A writer whose schema is known, and what writes its records with results.

    ids: of the schemas of the outputs, by topic; empty if outputs have no schema. output: their writer; it is another
    one where outputs hold only results.
    """

    writer: Writer
    output: Writer
    ids: Mapping[str, int]


class WrittenFields(dict[str, Any]):
    """The fields of a record, and what is needed to write it again: its writer, and its body.

    json: the body, where it is JSON that can be copied to an output.
    """

    __slots__ = ("body", "json", "writer")

    def __init__(self, fields: Mapping[str, Any], writer: Registered, body: bytes) -> None:
        super().__init__(fields)
        self.writer, self.body = writer, body
        self.json = body if writer.writer.kind is Kind.JSON and is_strict(fields) else None


def under_features(fields: Mapping[str, Any], features: Sequence[str]) -> Mapping[str, Any]:
    """The fields, and those that have another name than a feature had before, under the feature's name, too."""
    if not isinstance(fields, WrittenFields) or not (leaves := fields.writer.writer.leaves).aliases:
        return fields
    aliases = leaves.aliases
    renamed = {name: aliases[name] for name in features if name in aliases and name not in leaves}
    return {**fields, **{name: look_up(fields, path) for name, path in renamed.items()}} if renamed else fields
