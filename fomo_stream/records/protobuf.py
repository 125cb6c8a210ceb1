"""Protobuf: reads records by the schema of their writer, and writes a result behind their own bytes.

Every schema has its own pool of descriptors, as two schemas may define the same names. A plan, which is made once for
each type of message, turns messages into fields.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any

from google.protobuf import wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from fomo_stream.errors import RecordError
from fomo_stream.records.json_values import base64_text, decimal_text, time_text
from fomo_stream.records.result_schema import NAMESPACE, RESULT, as_written
from fomo_stream.records.writer_schema import Kind, Leaf, Leaves, SchemaText, SchemaType, TypePart, unsupported

NOT_PROTOBUF = "not_protobuf"  # reason of dead letters
RESULT_NUMBER = 89_124_301  # of the field with the result; no schema has this number by chance
RESULT_TYPE = "FomoResult"
MAX_MESSAGE_INDEXES = 100
MAX_VARINT_BYTES = 10  # bytes

Convert = Callable[[Any], Any]

_F = FieldDescriptorProto
_TYPE_NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in _F.Type.items()}
_WRAPPERS = frozenset(wrapper.full_name for wrapper in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())


class ProtobufWriter:
    """A `Writer` of Protobuf. field: of results; indexes: of its message in the file.

    Raises RecordError if its schema cannot be used.
    """

    kind = Kind.PROTOBUF

    def __init__(self, schema: SchemaText, field: str, indexes: tuple[int, ...] = (0,)) -> None:
        self._schema, self._field, self._indexes = schema, field, indexes
        self._files = FileDescriptorSet.FromString(schema.compiled)
        descriptor = _message_of(self._files, indexes)
        self._class = GetMessageClass(descriptor)
        self._plan = _message_converter(descriptor, {})
        self.head = _written_indexes(indexes)
        self.name = str(descriptor.full_name)
        self.leaves = Leaves(_type_of, descriptor)
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
        files = FileDescriptorSet()
        files.CopyFrom(self._files)
        own = files.file[-1]
        own.ClearField("source_code_info")
        message = _messages_at(own, self._indexes)[-1]
        self._check_free(message)
        _remove_result(message, self._field)
        full_name = f".{self.name}.{RESULT_TYPE}"
        is_proto3 = own.syntax == "proto3"
        message.nested_type.append(_message_type(RESULT, RESULT_TYPE, full_name, is_proto3))
        field = message.field.add(name=self._field, number=RESULT_NUMBER, type=_F.TYPE_MESSAGE, type_name=full_name)
        field.label = _F.LABEL_OPTIONAL
        _message_of(files, self._indexes)  # raises the error if the schema is not valid
        text = b64encode(own.SerializeToString()).decode()
        return SchemaText(Kind.PROTOBUF, text, self._schema.references, files.SerializeToString())

    def scored(self, body: bytes, result: Mapping[str, Any]) -> bytes:
        if self._result is None:
            scored = self.scored_schema()
            descriptor = _message_of(FileDescriptorSet.FromString(scored.compiled), self._indexes)
            self._result = GetMessageClass(descriptor.nested_types_by_name[RESULT_TYPE])
            self._has_earlier = any(field.number == RESULT_NUMBER for field in self._class.DESCRIPTOR.fields)
        if self._has_earlier:  # unknown fields of a message keep their bytes, and their order
            others = _carrier().FromString(body)
            others.ClearField("result")
            body = others.SerializeToString()
        message = self._result(**_set_values(as_written(dict(result)), self._result.DESCRIPTOR))
        return body + bytes(_carrier()(result=message.SerializeToString()).SerializeToString())

    def _check_free(self, message: DescriptorProto) -> None:
        """Raise RecordError if a field or a range of the message prevents one more field."""
        ranges = (*message.reserved_range, *message.extension_range)
        has_name = any(field.name == self._field and field.number != RESULT_NUMBER for field in message.field)
        has_number = any(field.number == RESULT_NUMBER and field.name != self._field for field in message.field)
        if has_name or self._field in message.reserved_name:
            what = f"message {self.name} already has a field {self._field}, or has reserved its name"
            raise unsupported(f"{what}; choose another --result-field")
        if has_number or any(taken.start <= RESULT_NUMBER < taken.end for taken in ranges):
            raise unsupported(f"message {self.name} does not leave the number {RESULT_NUMBER} free for the result")


@cache
def _carrier() -> Any:
    """Return the class of a message that knows the result alone, as bytes."""
    file = FileDescriptorProto(name="fomo_stream/carrier.proto")
    field = file.message_type.add(name="Carrier").field.add(name="result", number=RESULT_NUMBER)
    field.type, field.label = _F.TYPE_BYTES, _F.LABEL_OPTIONAL
    return GetMessageClass(_message_of(FileDescriptorSet(file=[file]), (0,)))


def empty_schema() -> SchemaText:
    """Return the schema of outputs that hold only results."""
    file = FileDescriptorProto(name="fomo_stream/scored.proto", package=NAMESPACE, syntax="proto3")
    file.message_type.add(name="Scored")
    files = FileDescriptorSet(file=[file])
    return SchemaText(Kind.PROTOBUF, b64encode(file.SerializeToString()).decode(), (), files.SerializeToString())


# --- the wire format ----------------------------------------------------------------------------------------------


def message_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message in its file, and the number of their bytes. Raises RecordError."""
    count, position = _read_varint(body, 0)
    count = count >> 1 ^ -(count & 1)
    if not 0 <= count <= MAX_MESSAGE_INDEXES:
        raise RecordError(NOT_PROTOBUF, f"the value names its message by {count} indexes")
    indexes = []
    for _ in range(count):
        index, position = _read_varint(body, position)
        indexes.append(index >> 1 ^ -(index & 1))
    return tuple(indexes) or (0,), position


def _written_indexes(indexes: tuple[int, ...]) -> bytes:
    if indexes == (0,):
        return b"\0"
    return b"".join(_varint(2 * number) for number in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def _read_varint(data: bytes, begin: int) -> tuple[int, int]:
    number = 0
    for i, byte in enumerate(data[begin : begin + MAX_VARINT_BYTES]):
        number |= (byte & 127) << 7 * i
        if byte < 128:
            return number, begin + i + 1
    raise RecordError(NOT_PROTOBUF, "the value ends in a number, or has one that is too long")


# --- reading ------------------------------------------------------------------------------------------------------


def _message_converter(descriptor: Descriptor, converters: dict[str, Convert]) -> Convert:
    """Return the conversion of messages of this type. converters: by type; so a type may contain itself."""
    name = descriptor.full_name
    if name in _WELL_KNOWN:
        return _WELL_KNOWN[name][0]
    if name in _WRAPPERS:
        convert = _value_converter(descriptor.fields_by_name["value"], converters)
        return _value_of if convert is None else lambda message: convert(message.value)
    if name not in converters:
        fields: list[tuple[str, bool, Convert | None]] = []
        converters[name] = partial(_convert_message, fields)  # before its fields: they may have the same type
        for field in sorted(descriptor.fields, key=_may_be_unset):
            fields.append((field.name, _may_be_unset(field), _field_converter(field, converters)))
    return converters[name]


def _may_be_unset(field: FieldDescriptor) -> bool:
    return bool(field.has_presence and not field.is_repeated)


def _field_converter(field: FieldDescriptor, converters: dict[str, Convert]) -> Convert | None:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return partial(_convert_map, _value_converter(value, converters), key.type == field.TYPE_BOOL)
    convert = _value_converter(field, converters)
    if field.is_repeated:
        return list if convert is None else lambda values: [convert(value) for value in values]
    return convert


def _value_converter(field: FieldDescriptor, converters: dict[str, Convert]) -> Convert | None:
    if field.message_type is not None:
        return _message_converter(field.message_type, converters)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return base64_text if field.type == field.TYPE_BYTES else None


def _convert_message(fields: list[tuple[str, bool, Convert | None]], message: Any) -> dict[str, Any]:
    converted = {}
    for name, may_be_unset, convert in fields:
        if not may_be_unset or message.HasField(name):
            value = getattr(message, name)
            converted[name] = value if convert is None else convert(value)
    return converted


def _convert_map(convert: Convert | None, is_bool: bool, values: Any) -> dict[str, Any]:
    """Convert with names as text. In a map of messages, `values[name]` would create new messages."""
    named = ((str(name).lower() if is_bool else str(name), value) for name, value in values.items())
    return {name: value if convert is None else convert(value) for name, value in named}


def _timestamp(message: Any) -> Any:
    ticks = message.seconds * 10**9 + message.nanos
    text = time_text(9, "Z", ticks)
    return text if isinstance(text, str) else {"seconds": message.seconds, "nanos": message.nanos}


def _struct_value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    if kind in (None, "null_value"):
        return None
    value = getattr(message, kind)
    return _WELL_KNOWN[value.DESCRIPTOR.full_name][0](value) if isinstance(value, Message) else value


_value_of = attrgetter("value")
# By name of the message: its conversion to JSON, and its role.
_WELL_KNOWN: dict[str, tuple[Convert, str]] = {
    "google.protobuf.Timestamp": (_timestamp, "time"),
    "google.protobuf.Duration": (lambda message: message.seconds + message.nanos / 1e9, "number"),
    "google.protobuf.Struct": (lambda message: {k: _struct_value(v) for k, v in message.fields.items()}, "map"),
    "google.protobuf.Value": (_struct_value, "map"),
    "google.protobuf.ListValue": (lambda message: [_struct_value(value) for value in message.values], "map"),
    "google.protobuf.FieldMask": (lambda message: ",".join(message.paths), "text"),
    "google.protobuf.Any": (lambda message: {"@type": message.type_url, "value": base64_text(message.value)}, "map"),
    "google.type.Decimal": (_value_of, "number"),
    "confluent.type.Decimal": (lambda message: decimal_text(message.scale, message.value), "number"),
}


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _type_of(node: Descriptor | FieldDescriptor, _path: str, inside: tuple[object, ...]) -> SchemaType:
    """See `TypeOf`; the node is a message or a field. A type inside itself has no leaves."""
    message = node
    if isinstance(node, FieldDescriptor):
        message = node.message_type
        name = _TYPE_NAMES[node.type] if message is None else message.full_name
        if node.is_repeated:
            return SchemaType(Leaf(name, "map" if _is_map(node) else "list"))
        if name in _WELL_KNOWN:
            return SchemaType(Leaf(name, _WELL_KNOWN[name][1]))
        if message is None or name in _WRAPPERS:
            value = node if message is None else message.fields_by_name["value"]
            roles = {_F.TYPE_BYTES: "bytes", _F.TYPE_STRING: "text", _F.TYPE_ENUM: "text"}
            return SchemaType(Leaf(name, roles.get(value.type, "number")))
    if message.full_name in inside:
        return SchemaType()
    return SchemaType(parts=[TypePart(field.name, field) for field in message.fields], identity=message.full_name)


# --- schemas ------------------------------------------------------------------------------------------------------


def _message_of(files: FileDescriptorSet, indexes: tuple[int, ...]) -> Descriptor:
    """Return the message at these indexes of the last file. Raises RecordError."""
    pool = DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        own = pool.FindFileByName(files.file[-1].name)
        names = (message.name for message in _messages_at(files.file[-1], indexes))
        name = ".".join(filter(None, (own.package, *names)))
        return pool.FindMessageTypeByName(name)
    except (KeyError, TypeError, IndexError) as error:
        raise unsupported(f"the schema is not Protobuf that can be used ({error})") from None


def _messages_at(file: FileDescriptorProto, indexes: tuple[int, ...]) -> list[DescriptorProto]:
    """Return the message at these indexes, after those around it. Raises RecordError."""
    types, messages = file.message_type, []
    for index in indexes:
        if not 0 <= index < len(types):
            what = f"the value names message {'.'.join(map(str, indexes))}, which the schema does not have"
            raise RecordError(NOT_PROTOBUF, what)
        messages.append(types[index])
        types = types[index].nested_type
    return messages


def _remove_result(message: DescriptorProto, field: str) -> None:
    """Remove the field and the type of an earlier result, which may be an older type."""
    for earlier in [other for other in message.field if (other.number, other.name) == (RESULT_NUMBER, field)]:
        message.field.remove(earlier)
    for nested in [nested for nested in message.nested_type if nested.name == RESULT_TYPE]:
        message.nested_type.remove(nested)


_SCALARS = {
    **{"string": _F.TYPE_STRING, "boolean": _F.TYPE_BOOL, "int": _F.TYPE_INT32, "long": _F.TYPE_INT64},
    "double": _F.TYPE_DOUBLE,
}


def _message_type(record: Any, name: str, full_name: str, is_proto3: bool) -> DescriptorProto:
    """Return a message with the fields of a record of `result_schema`, numbered by their position."""
    message = DescriptorProto(name=name)
    for number, definition in enumerate(record["fields"], 1):
        type_ = definition["type"][1]
        field = message.field.add(name=definition["name"], number=number, label=_F.LABEL_OPTIONAL)
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
            message.oneof_decl.add(name=f"_{definition['name']}")
    return message


def _set_values(values: Mapping[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    """Return the values that are not null, of fields that the message has."""
    converted = {}
    for name, value in values.items():
        field = descriptor.fields_by_name.get(name)
        if field is None or value is None:
            continue
        if isinstance(value, list):
            value = [_set_values(item, field.message_type) for item in value]
        converted[name] = _set_values(value, field.message_type) if isinstance(value, dict) else value
    return converted
