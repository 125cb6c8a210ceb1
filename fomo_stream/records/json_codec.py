"""Records in and out: decode JSON, encode the scored record, read files of records.

What arrives is never trusted: any bytes give a dict or a `RecordError`, and what was decoded can be encoded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from fomo_stream.detector.results import Severity
from fomo_stream.errors import RecordError

if TYPE_CHECKING:
    from fomo_stream.detector.results import Results

MAX_RECORD_BYTES = 2**20  # as Kafka's own default
MAX_DEPTH = 200  # orjson writes at most 254 levels; beyond this nothing is an event

# orjson reads integers beyond 64 bits as floats, silently; such records take the slower, exact way.
_LONG_INTEGER = re.compile(rb"(?<![.0-9])[0-9]{19}").search


# --- decode and encode


def decode(value: bytes | None, max_bytes: int = MAX_RECORD_BYTES) -> dict[str, Any]:
    """Decode one JSON object; ``NaN`` and ``Infinity``, as ordinary JSON writers print them, are accepted.

    Raises nothing but RecordError: with reason tombstone, too_large, not_utf8, not_json or not_an_object.

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
        raise RecordError("not_an_object", f"the record is {kind}; a JSON object with named fields is needed")
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and _deeper_than(record, MAX_DEPTH):
        raise RecordError("not_json", f"the record is nested more than {MAX_DEPTH} levels deep")
    return record


def _decode_exactly(value: bytes) -> Any:
    """The standard library's decoder: slower, but it reads NaN, lone surrogates and integers of any size."""
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
    # Python refuses to read thousands of digits (a denial-of-service guard); no float holds them either.
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
    """The record's own fields where they were and `result` under `field`, as one line of JSON.

    A field of that name that the record already has is replaced: the output carries this run's result.
    Non-finite numbers become null, because JSON cannot write them. `scores_only` leaves the record out.
    """
    output = {field: result} if scores_only else {**record, field: result}
    try:
        return orjson.dumps(output)
    except TypeError:  # integers beyond 64 bits, lone surrogates: the standard library can write both
        return json.dumps(_finite(output), separators=(",", ":")).encode("ascii")


def _finite(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _finite(child) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return [_finite(child) for child in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


_SEVERITIES = [None, *(severity.name.lower() for severity in Severity if severity)]


def result_of(scored: Results, i: int, model: str, source: Mapping[str, Any] | None, missing: int) -> dict[str, Any]:
    """Row `i` of `scored` as the JSON-ready object of the output record; NaN becomes None.

    source: topic, partition, offset and timestamp (milliseconds since 1970, or None) of the record, or None
    for a record that does not come from a topic. missing: how many features it has no value of.
    """
    return {
        **(source or {}),
        "score": _or_none(float(scored.score[i])),
        "logit": _or_none(float(scored.logit[i])),
        "p_value": _or_none(float(scored.p_value[i])),
        "outlier": bool(scored.outlier[i]),
        "severity": _SEVERITIES[scored.severity[i]],
        "missing": missing,
        "model": model,
        "generation": int(scored.generation[i]),
        "regime": int(scored.regime[i]),
        "status": str(scored.status[i]),
    }


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


# --- files
