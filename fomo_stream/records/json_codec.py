"""JSON records: decode untrusted bytes, and encode the scored record.

Any bytes decode to a dict or raise a `RecordError`, and every decoded record can be encoded. A scored record is the
record's own bytes with the result at their end, which is fast and changes nothing in them. Its fields are written again
if that would not be JSON on one line (it is empty, or has several lines or white space behind its brace), if it already
has a result, and if orjson refuses the record: the standard library also reads `NaN`, `Infinity`, lone
surrogates and a byte order mark. Of keys that occur twice both take the last value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from fomo_stream.errors import RecordError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.wire_format import NEEDS_REGISTRY, VALUE_HEADER, Headers, RecordFields, has_prefix

MAX_DEPTH = 200  # levels of nesting; orjson writes at most 254

# orjson silently reads integers beyond 64 bits as floats; records that may have one are read again, exactly. Looking
# for a run of digits first is ten times faster than the pattern, which excludes fractions and integers of 19 digits.
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_MANY_DIGITS = b"0" * 19
_LONG_INTEGER = re.compile(rb"(?<![.0-9])(?:[0-9]{20}|(?<=-)[0-9]{19})").search


class JsonCodec:
    """The codec of JSON: see `Codec`. field: of the result; scores_only: leaves out the record's own fields."""

    def __init__(self, field: str, scores_only: bool, max_bytes: int) -> None:
        self._field, self._scores_only, self._max_bytes = field, scores_only, max_bytes

    def decode(self, value: bytes | None, headers: Headers = ()) -> dict[str, Any]:
        """See `decode`; of a record with a schema of a registry, the reason of the error says so."""
        try:
            return decode(value, self._max_bytes)
        except RecordError:
            if value is not None and (has_prefix(value) or any(name == VALUE_HEADER for name, _ in headers)):
                what = "the record has the id of a schema in a registry"
                raise RecordError(NEEDS_REGISTRY, f"{what}; give the address of the registry with --registry") from None
            raise

    def key(self, key: bytes | None, headers: Headers = ()) -> tuple[bytes | None, Mapping[str, Any]]:
        return key, {}

    def encode(self, fields: RecordFields, result: RecordFields, raw: bytes | None = None, topic: str = "") -> bytes:
        return encode(fields, result, self._field, self._scores_only, raw)

    def summary(self, summary: RecordFields, last: RecordFields, topic: str) -> bytes:
        """Write the summary alone."""
        return encode({}, summary, self._field)


class _Loose(dict[str, Any]):
    """The fields of a record that is not strict JSON, so that its bytes cannot be copied to the output."""


def checked(value: bytes | None, max_bytes: int) -> bytes:
    """Return the bytes of a record. Raises RecordError: tombstone or too_large."""
    if value is None:
        raise RecordError("tombstone", "the record has no value (a tombstone); there is nothing to score")
    if len(value) > max_bytes:
        raise RecordError("too_large", f"the record has more than {max_bytes} bytes, which is the limit")
    return value


def decode(value: bytes | None, max_bytes: int = MAX_RECORD_BYTES) -> dict[str, Any]:
    """Decode one JSON object; ``NaN`` and ``Infinity``, which many JSON writers print, are accepted.

    The only error is RecordError, with the reason tombstone, too_large, not_utf8, not_json or not_an_object.
    """
    value = checked(value, max_bytes)
    try:
        record, is_strict = orjson.loads(value), True
    except orjson.JSONDecodeError:
        record, is_strict = _decode_exactly(value), False
    if is_strict and _MANY_DIGITS in value.translate(_DIGITS) and _LONG_INTEGER(value):
        record = _decode_exactly(value)
    if not isinstance(record, dict):
        kind = {list: "an array", str: "a string", type(None): "null"}.get(type(record), "a bare value")
        raise RecordError("not_an_object", f"the record is {kind}; it must be a JSON object with named fields")
    # A level takes two bytes, so a short record has not too many; most of the others have too few brackets.
    may_be_deep = len(value) > 2 * MAX_DEPTH and value.count(b"{") + value.count(b"[") > MAX_DEPTH
    if may_be_deep and _deeper_than(record, MAX_DEPTH):
        raise RecordError("not_json", f"the record is nested more than {MAX_DEPTH} levels deep")
    return record if is_strict else _Loose(record)


def _decode_exactly(value: bytes) -> Any:
    """Decode with the standard library: slower, but it reads NaN, lone surrogates and integers of any size."""
    try:
        text = value.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError("not_utf8", f"the record is not UTF-8 text (byte {error.start})") from None
    try:
        return json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise RecordError("not_json", f"the record is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        where = f": {error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise RecordError("not_json", f"the record is not JSON{where}") from None


def _parse_int(digits: str) -> int | float:
    # Python refuses to parse thousands of digits, against denial of service; such a number is beyond all floats anyway.
    return int(digits) if len(digits) <= 4000 else math.inf


def _deeper_than(record: dict[str, Any], limit: int) -> bool:
    level: list[Any] = [record]
    for _ in range(limit):
        children = [c for node in level for c in (node.values() if isinstance(node, dict) else node)]
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


def encode(
    record: Mapping[str, Any],
    result: Mapping[str, Any],
    field: str = "fomo",
    scores_only: bool = False,
    raw: bytes | None = None,
) -> bytes:
    """Write one line of JSON: the record's own fields in their order, and `result` under `field`.

    A field of that name in the record is replaced, because the output carries the result of this run.
    Non-finite numbers become null, because JSON has no others. `scores_only` leaves out the record's own fields.
    raw: the bytes that `decode` read as `record`; they stay unchanged if possible.
    """
    if raw is not None and not scores_only and _can_be_copied(raw, record, field):
        try:
            return raw[:-1] + b"," + orjson.dumps({field: result})[1:]
        except TypeError:  # the name of the field has a lone surrogate
            pass
    output = {field: result} if scores_only else {**record, field: result}
    try:
        return orjson.dumps(output)
    except TypeError:  # integers beyond 64 bits, or lone surrogates: the standard library can write both
        return json.dumps(_finite(output), separators=(",", ":")).encode("ascii")


def is_strict(record: Mapping[str, Any]) -> bool:
    """Return whether a record was decoded from strict JSON."""
    return not isinstance(record, _Loose)


def _can_be_copied(raw: bytes, record: Mapping[str, Any], field: str) -> bool:
    is_line = raw.endswith(b"}") and b"\n" not in raw and b"\r" not in raw
    return is_line and bool(record) and is_strict(record) and field not in record


def _finite(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _finite(child) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return [_finite(child) for child in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
