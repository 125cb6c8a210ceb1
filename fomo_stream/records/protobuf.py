"""Protobuf: records read by messages made from their writer's schema, and written with a result behind their own bytes.

Every schema has a pool of descriptors of its own, as two schemas define the same names. A plan made once for each type
of message turns messages into fields.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from fomo_stream.errors import RecordError
from fomo_stream.records.json_values import base64_text, decimal_text, time_text
from fomo_stream.records.result_schema import NAMESPACE, RESULT, as_written
from fomo_stream.records.writer import UNSUPPORTED, Kind, Leaf, Leaves, SchemaText

NOT_PROTOBUF = "not_protobuf"  # reason of dead letters
RESULT_NUMBER = 89_124_301  # of the field with the result: one that no schema has by chance
RESULT_TYPE = "FomoResult"
MOST_INDEXES = 100
LONGEST_VARINT = 10  # bytes

Convert = Callable[[Any], Any]

_NUMBERS = frozenset(
    {
        *(FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32),
        *(FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT),
        FieldDescriptor.CPPTYPE_BOOL,
    }
)
_TYPE_NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class ProtobufWriter:
    """A writer of Protobuf: see `Writer`. field: of results; indexes: of its message in the file.

    Raises RecordError if its schema cannot be used.
    """

    kind = Kind.PROTOBUF

    def __init__(self, schema: SchemaText, field: str, indexes: tuple[int, ...] = (0,)) -> None:
        self._schema, self._field, self._indexes = schema, field, indexes
        self._files = FileDescriptorSet.FromString(schema.compiled)
        descriptor = _message_of(self._files, indexes)
        self._class = GetMessageClass(descriptor)
        self._plan = _Plans().of(descriptor)
        self.head = _written_indexes(indexes)
        self.name = str(descriptor.full_name)
        self.leaves = Leaves()
        _find_leaves(self.leaves, descriptor, "", ())
        self.aliases: dict[str, str] = {}  # Protobuf has none
        self._result: type[Message] | None = None  # made when it is needed

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Writer.read`. The reason of the error is not_protobuf."""
        message = self._class()
        try:
            message.ParseFromString(body)
            return dict(self._plan(message))
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RecordError(NOT_PROTOBUF, f"the value does not fit its schema ({type(error).__name__})") from None

    read_value = read

    def scored_schema(self) -> SchemaText:
        """See `Writer.scored_schema`."""
        files = FileDescriptorSet()
        files.CopyFrom(self._files)
        own = files.file[-1]
        own.ClearField("source_code_info")
        message = _message_in(own, self._indexes)
        self._check_free(message)
        _without_result(message, self._field)
        full_name = f".{self.name}.{RESULT_TYPE}"
        is_proto3 = own.syntax == "proto3"
        message.nested_type.append(_message_type(RESULT, RESULT_TYPE, full_name, is_proto3))
        field = message.field.add(name=self._field, number=RESULT_NUMBER, type=_F.TYPE_MESSAGE, type_name=full_name)
        field.label = _F.LABEL_OPTIONAL
        _message_of(files, self._indexes)  # raises the error if that is not possible
        text = b64encode(own.SerializeToString()).decode()
        return SchemaText(Kind.PROTOBUF, text, self._schema.references, files.SerializeToString())

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        """See `Writer.scored`."""
        if self._result is None:
            scored = self.scored_schema()
            descriptor = _message_of(FileDescriptorSet.FromString(scored.compiled), self._indexes)
            self._result = GetMessageClass(descriptor.nested_types_by_name[RESULT_TYPE])
            self._has_earlier = any(one.number == RESULT_NUMBER for one in self._class.DESCRIPTOR.fields)
        if self._has_earlier:
            body = _without_field(body, RESULT_NUMBER)
        message = self._result(**_set_ones(as_written(dict(result)), self._result.DESCRIPTOR))
        written = message.SerializeToString()
        return body + _varint(RESULT_NUMBER << 3 | 2) + _varint(len(written)) + bytes(written)

    def _check_free(self, message: DescriptorProto) -> None:
        """Raise RecordError if a field or a range of the message prevents one more field."""
        ranges = (*message.reserved_range, *message.extension_range)
        has_name = any(one.name == self._field and one.number != RESULT_NUMBER for one in message.field)
        has_number = any(one.number == RESULT_NUMBER and one.name != self._field for one in message.field)
        if has_name or self._field in message.reserved_name:
            what = f"message {self.name} already has a field {self._field}, or has reserved its name"
            raise _unsupported(f"{what}; choose another --result-field")
        if has_number or any(one.start <= RESULT_NUMBER < one.end for one in ranges):
            raise _unsupported(f"message {self.name} does not leave the number {RESULT_NUMBER} free for the result")


_F = FieldDescriptorProto


def empty_schema() -> SchemaText:
    """The schema of outputs that hold only results."""
    file = FileDescriptorProto(name="fomo_stream/scored.proto", package=NAMESPACE, syntax="proto3")
    file.message_type.add(name="Scored")
    files = FileDescriptorSet(file=[file])
    return SchemaText(Kind.PROTOBUF, b64encode(file.SerializeToString()).decode(), (), files.SerializeToString())


# --- the wire format ----------------------------------------------------------------------------------------------


def message_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of its file a value holds, and how many bytes say so. Raises RecordError.

    >>> message_indexes(bytes([0, 8])), message_indexes(bytes([4, 2, 0, 8]))
    (((0,), 1), ((1, 0), 3))
    """
    count, at = _read_varint(body, 0)
    count = count >> 1 ^ -(count & 1)
    if not 0 <= count <= MOST_INDEXES:
        raise RecordError(NOT_PROTOBUF, f"the value names its message by {count} indexes")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(body, at)
        indexes.append(index >> 1 ^ -(index & 1))
    return tuple(indexes) or (0,), at


def _written_indexes(indexes: tuple[int, ...]) -> bytes:
    if indexes == (0,):
        return b"\0"
    return b"".join(_varint(2 * number) for number in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(data[at : at + LONGEST_VARINT]):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise RecordError(NOT_PROTOBUF, "the value ends in a number, or has one that is too long")


def _without_field(body: bytes, number: int) -> bytes:
    """A message that can be read, without a field of the first level that holds bytes."""
    kept, at = bytearray(), 0
    while at < len(body):
        begin = at
        tag, at = _read_varint(body, at)
        kind = tag & 7
        if kind == 0:
            _, at = _read_varint(body, at)
        elif kind == 1 or kind == 5:
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _read_varint(body, at)
            at += size
        else:  # a group, of which nothing is known without reading it: what follows stays as it is
            return bytes(kept) + body[begin:]
        if tag >> 3 != number:
            kept += body[begin:at]
    return bytes(kept)


# --- reading ------------------------------------------------------------------------------------------------------


class _Plans:
    """How messages become fields: one function for each type, so that a type may contain itself."""

    def __init__(self) -> None:
        self._made: dict[str, Convert] = {}

    def of(self, descriptor: Descriptor) -> Convert:
        """The conversion of messages of this type."""
        known = descriptor.full_name
        if known in _WELL_KNOWN:
            return _WELL_KNOWN[known]
        if known in _WRAPPERS:
            convert = self._of_value(descriptor.fields_by_name["value"])
            return _value_of if convert is None else lambda message: convert(message.value)
        if known not in self._made:
            always: list[tuple[str, Convert | None]] = []
            when_set: list[tuple[str, Convert | None]] = []
            # Noted before its fields are looked at, which may be of the same type.
            self._made[known] = lambda message: _in_message(always, when_set, message)
            for field in descriptor.fields:
                has_presence = field.has_presence and not field.is_repeated
                (when_set if has_presence else always).append((field.name, self._of_field(field)))
        return self._made[known]

    def _of_field(self, field: FieldDescriptor) -> Convert | None:
        if _is_map(field):
            convert = self._of_value(field.message_type.fields_by_name["value"])
            is_bool = field.message_type.fields_by_name["key"].type == field.TYPE_BOOL
            return lambda values: _in_map(convert, is_bool, values)
        convert = self._of_value(field)
        if field.is_repeated:
            return list if convert is None else lambda values: [convert(value) for value in values]
        return convert

    def _of_value(self, field: FieldDescriptor) -> Convert | None:
        if field.message_type is not None:
            return self.of(field.message_type)
        if field.type == field.TYPE_BYTES:
            return base64_text
        if field.enum_type is None:
            return None
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)


def _in_message(
    always: list[tuple[str, Convert | None]], when_set: list[tuple[str, Convert | None]], message: Any
) -> dict[str, Any]:
    fields = {}
    for name, convert in always:
        value = getattr(message, name)
        fields[name] = value if convert is None else convert(value)
    for name, convert in when_set:
        if message.HasField(name):
            value = getattr(message, name)
            fields[name] = value if convert is None else convert(value)
    return fields


def _in_map(convert: Convert | None, is_bool: bool, values: Any) -> dict[str, Any]:
    """With names as text. Of a map of messages, `values[name]` would make new ones."""
    named = ((str(name).lower() if is_bool else str(name), value) for name, value in values.items())
    return {name: value if convert is None else convert(value) for name, value in named}


def _value_of(message: Any) -> Any:
    return message.value


def _timestamp(message: Any) -> Any:
    ticks = message.seconds * 10**9 + message.nanos
    text = time_text(9, "Z", ticks)
    return text if isinstance(text, str) else {"seconds": message.seconds, "nanos": message.nanos}


def _struct(message: Any) -> dict[str, Any]:
    return {name: _struct_value(value) for name, value in message.fields.items()}


def _struct_value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    if kind == "struct_value":
        return _struct(message.struct_value)
    if kind == "list_value":
        return _struct_list(message.list_value)
    return None if kind in (None, "null_value") else getattr(message, kind)


def _struct_list(message: Any) -> list[Any]:
    return [_struct_value(value) for value in message.values]


_WELL_KNOWN: dict[str, Convert] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": lambda message: message.seconds + message.nanos / 1e9,
    "google.protobuf.Struct": _struct,
    "google.protobuf.Value": _struct_value,
    "google.protobuf.ListValue": _struct_list,
    "google.protobuf.FieldMask": lambda message: ",".join(message.paths),
    "google.protobuf.Any": lambda message: {"@type": message.type_url, "value": base64_text(message.value)},
    "google.type.Decimal": _value_of,
    "confluent.type.Decimal": lambda message: decimal_text(message.scale, message.value),
}
_ROLES = {"google.protobuf.Timestamp": "time", "google.protobuf.Duration": "number"}
_ROLES |= {"google.type.Decimal": "number", "confluent.type.Decimal": "number", "google.protobuf.FieldMask": "text"}


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _find_leaves(leaves: Leaves, descriptor: Descriptor, path: str, inside: tuple[str, ...]) -> None:
    """Note the fields of a message and of those in it, but for types that contain themselves."""
    leaves.visit()
    for field in descriptor.fields:
        name = f"{path}.{field.name}" if path else field.name
        type_ = field.message_type.full_name if field.message_type is not None else _TYPE_NAMES[field.type]
        if _is_map(field) or field.is_repeated:
            leaves.visit(name, Leaf(type_, "map" if _is_map(field) else "list"))
        elif field.message_type is None or type_ in _WELL_KNOWN or type_ in _WRAPPERS:
            leaves.visit(name, Leaf(type_, _role(field, type_)))
        elif type_ not in (descriptor.full_name, *inside):
            _find_leaves(leaves, field.message_type, name, (*inside, descriptor.full_name))


def _role(field: FieldDescriptor, type_: str) -> str:
    if type_ in _WELL_KNOWN:
        return _ROLES.get(type_, "map")
    if type_ in _WRAPPERS:
        field = field.message_type.fields_by_name["value"]
    if field.type == field.TYPE_BYTES:
        return "bytes"
    return "number" if field.cpp_type in _NUMBERS else "text"


# --- schemas ------------------------------------------------------------------------------------------------------


def _unsupported(what: str) -> RecordError:
    return RecordError(UNSUPPORTED, what)


def _message_of(files: FileDescriptorSet, indexes: tuple[int, ...]) -> Descriptor:
    """The message at these indexes of the last file. Raises RecordError."""
    pool = DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        own = pool.FindFileByName(files.file[-1].name)
        name = ".".join(filter(None, (own.package, *_names(files.file[-1], indexes))))
        return pool.FindMessageTypeByName(name)
    except (KeyError, TypeError, IndexError) as error:
        raise _unsupported(f"the schema is not Protobuf that can be used ({error})") from None


def _names(file: FileDescriptorProto, indexes: tuple[int, ...]) -> list[str]:
    types, names = file.message_type, []
    for index in indexes:
        if not 0 <= index < len(types):
            what = f"the value names message {'.'.join(map(str, indexes))}, which the schema does not have"
            raise RecordError(NOT_PROTOBUF, what)
        names.append(types[index].name)
        types = types[index].nested_type
    return names


def _message_in(file: FileDescriptorProto, indexes: tuple[int, ...]) -> DescriptorProto:
    message = file.message_type[indexes[0]]
    for index in indexes[1:]:
        message = message.nested_type[index]
    return message


def _without_result(message: DescriptorProto, field: str) -> None:
    """Remove the field and the type of an earlier result: its type may have been an older one."""
    for at, one in reversed(list(enumerate(message.field))):
        if one.number == RESULT_NUMBER and one.name == field:
            del message.field[at]
    for at, nested in reversed(list(enumerate(message.nested_type))):
        if nested.name == RESULT_TYPE:
            del message.nested_type[at]


_SCALARS = {"string": _F.TYPE_STRING, "boolean": _F.TYPE_BOOL, "int": _F.TYPE_INT32, "long": _F.TYPE_INT64}
_SCALARS["double"] = _F.TYPE_DOUBLE


def _message_type(record: Any, name: str, full_name: str, is_proto3: bool) -> DescriptorProto:
    """A message with the fields of a record of `result_schema`, whose places are their numbers."""
    message = DescriptorProto(name=name)
    for number, one in enumerate(record["fields"], 1):
        type_ = one["type"][1]
        field = message.field.add(name=one["name"], number=number, label=_F.LABEL_OPTIONAL)
        if isinstance(type_, dict) and type_["type"] == "array":
            field.label, type_ = _F.LABEL_REPEATED, type_["items"]
        if isinstance(type_, dict):
            message.nested_type.append(_message_type(type_, type_["name"], f"{full_name}.{type_['name']}", is_proto3))
            type_ = type_["name"]
        if type_ in _SCALARS:
            field.type = _SCALARS[type_]
        else:
            field.type, field.type_name = _F.TYPE_MESSAGE, f"{full_name}.{type_.rpartition('.')[2]}"
        if is_proto3 and field.label == _F.LABEL_OPTIONAL and field.type != _F.TYPE_MESSAGE:
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{one['name']}")
    return message


def _set_ones(values: Mapping[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    """The values that are not null, of fields that the message has."""
    made = {}
    for name, value in values.items():
        field = descriptor.fields_by_name.get(name)
        if field is None or value is None:
            continue
        if isinstance(value, list):
            value = [_set_ones(one, field.message_type) for one in value]
        made[name] = _set_ones(value, field.message_type) if isinstance(value, dict) else value
    return made
