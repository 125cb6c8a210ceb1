"""JSON records: decode untrusted bytes, and encode the scored record.

Any bytes decode to a dict or raise a `RecordError`, and every decoded record can be encoded.
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

MAX_DEPTH = 200  # levels of nesting; orjson writes at most 254

# orjson silently reads integers beyond 64 bits as floats; records that may have one take the slower, exact way.
_LONG_INTEGER = re.compile(rb"(?<![.0-9])[0-9]{19}").search


def decode(value: bytes | None, max_bytes: int = MAX_RECORD_BYTES) -> dict[str, Any]:
    """Decode one JSON object; ``NaN`` and ``Infinity``, which many JSON writers print, are accepted.

    The only error is RecordError, with the reason tombstone, too_large, not_utf8, not_json or not_an_object.

    >>> decode(b'{"flow": 3.5, "motor": {"rpm": NaN}}')
    {'flow': 3.5, 'motor': {'rpm': nan}}
    """
    if value is None:
        raise RecordError("tombstone", "the record has no value (a tombstone); there is nothing to score")
    if len(value) > max_bytes:
        raise RecordError("too_large", f"the record has {len(value)} bytes; at most {max_bytes} are decoded")
    try:
        record = _decode_exactly(value) if _LONG_INTEGER(value) else orjson.loads(value)
    except orjson.JSONDecodeError:
        record = _decode_exactly(value)
    if not isinstance(record, dict):
        kind = {list: "an array", str: "a string", type(None): "null"}.get(type(record), "a bare value")
        raise RecordError("not_an_object", f"the record is {kind}; it must be a JSON object with named fields")
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and _deeper_than(record, MAX_DEPTH):
        raise RecordError("not_json", f"the record is nested more than {MAX_DEPTH} levels deep")
    return record


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
    record: Mapping[str, Any], result: Mapping[str, Any], field: str = "fomo", scores_only: bool = False
) -> bytes:
    """One line of JSON: the record's own fields in their order, and `result` under `field`.

    A field of that name in the record is replaced, because the output carries the result of this run.
    Non-finite numbers become null, because JSON has no others. `scores_only` leaves out the record's own fields.
    """
    output = {field: result} if scores_only else {**record, field: result}
    try:
        return orjson.dumps(output)
    except TypeError:  # integers beyond 64 bits, or lone surrogates: the standard library can write both
        return json.dumps(_finite(output), separators=(",", ":")).encode("ascii")


def _finite(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _finite(child) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return [_finite(child) for child in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
