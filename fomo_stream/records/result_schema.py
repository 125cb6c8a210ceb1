"""The schema of a result, for outputs with a schema: in Avro, and from that in Protobuf and JSON Schema.

Every field may be null. A new version may add fields at the end; none may be removed or changed, because readers have
schemas of their own, and the number of a field in Protobuf is its place here.
"""

from __future__ import annotations

from typing import Any

NAMESPACE = "fomo_stream"  # of all types here, so that they collide with no type of a record


def _field(name: str, type_: Any, doc: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", type_], "default": None, "doc": doc}


def _record(name: str, doc: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": NAMESPACE, "doc": doc, "fields": list(fields)}


_PLACE = (
    _field("offset", "long", "offset of a record of the input"),
    _field("timestamp", "long", "its time, in milliseconds since 1970"),
)
_REASON = _record(
    "Reason",
    "One of the features that make a record odd.",
    _field("feature", "string", "dotted path of the field"),
    _field("cause", "string", "what is odd about it: value, category and so on"),
    _field("share", "double", "its share of what makes the record odd, from 0 to 1"),
    _field("value", "double", "value of the record; of text, see `text`"),
    _field("text", "string", "value of the record if it is not a number"),
    _field("usual", "double", "median of the records that it was compared with"),
    _field("low", "double", "1st percentile of them"),
    _field("high", "double", "99th percentile of them"),
    _field("expected", "double", "what the other features of the record let expect"),
    _field("frequency", "double", "how often the category occurs, from 0 to 1"),
    _field("scope", "string", "what it was compared with: all records, or those of its key"),
    _field("with", "string", "the other feature, where two are odd together"),
)
_WORST = _record(
    "Worst",
    "The alert of an incident with the highest score.",
    *_PLACE,
    _field("score", "double", "as in Result"),
    _field("remembered_logit", "double", "as in Result"),
    _field("p_value", "double", "as in Result"),
    _field("severity", "string", "as in Result"),
)
RESULT = _record(
    "Result",
    "What fomo-stream says of a record, of an incident that has ended (status closed), or of data that stop.",
    _field("topic", "string", "topic of the input"),
    _field("partition", "int", "partition of the input"),
    _field("offset", "long", "offset of the record in the input"),
    _field("timestamp", "long", "time of the record, in milliseconds since 1970"),
    _field("score", "double", "how rare such a record is in the long run, from 0 to 1: sort by this"),
    _field("remembered_logit", "double", "two thirds this record, one third those before it"),
    _field("logit", "double", "how odd the record is by itself, on the scale of the model"),
    _field("p_value", "double", "share of the last 2,000 records that were at least as odd"),
    _field("outlier", "boolean", "it begins or continues an incident"),
    _field("severity", "string", "critical, warning or info"),
    _field("confidence", "double", "how clearly the contexts agree, from 0 to 1"),
    _field("missing", "int", "features that the record lacks"),
    _field("model", "string", "name and digest of the checkpoint"),
    _field("generation", "long", "contexts that have taken effect"),
    _field("regime", "int", "always null: earlier versions counted lasting shifts here"),
    _field("status", "string", "warming_up, calibrating, ok or maintenance; closed: an incident; silent"),
    _field("reasons", {"type": "array", "items": _REASON}, "the features that make it odd, most important first"),
    _field("explanation", "string", "the same as a sentence"),
    _field("muted", "boolean", "it would have been an outlier, but its key is muted"),
    _field("incident", "string", "name of the incident that it belongs to"),
    _field("surprise", "double", "how much is odd in the incident so far"),
    _field("key", "string", "of an incident: key of its series"),
    _field("from", _record("Place", "A record of the input.", *_PLACE), "of an incident: its first alert"),
    _field("to", f"{NAMESPACE}.Place", "of an incident: its last alert"),
    _field("records", "long", "of an incident: its alerts"),
    _field("span", "long", "of an incident: records of its series from the first alert to the last"),
    _field("worst", _WORST, "of an incident: its worst alert"),
    _field("suppressed", "string", "name of the rule or window of maintenance without which it might be an outlier"),
    _field("rule", "string", "name of the rule that makes it an outlier"),
    _field("of", "string", "of silence: key, partition or topic"),
    _field("quiet_s", "double", "of silence: seconds since the last record"),
    _field("usual_gap_s", "double", "of silence: seconds that 99 of 100 gaps do not exceed"),
    _field("reference_logit", "double", "how odd the record is for the reference, which then decides"),
)
_JSON_TYPES = {"string": "string", "boolean": "boolean", "int": "integer", "long": "integer", "double": "number"}


def as_written(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result of `results_of`, or the summary of an incident, in the form of this schema.

    A reason's value has a field for numbers and one for text, and its range has two fields.
    """
    if "reasons" not in result:
        return result
    return {**result, "reasons": [_written_reason(reason) for reason in result["reasons"]]}


def _written_reason(reason: dict[str, Any]) -> dict[str, Any]:
    value, limits = reason.get("value"), reason.get("range") or (None, None)
    written = {name: own for name, own in reason.items() if name not in ("value", "range")}
    written |= {"low": limits[0], "high": limits[1]}
    if value is not None:
        written |= {"text": value} if isinstance(value, str) else {"value": float(value)}
    return written


def json_schema(node: Any = RESULT) -> dict[str, Any]:
    """Return this schema as JSON Schema, with values and ranges of reasons in the form of JSON results."""
    if isinstance(node, list):
        return {"oneOf": [{"type": "null"}, json_schema(node[1])]}
    if isinstance(node, str):
        return {"type": _JSON_TYPES[node]} if node in _JSON_TYPES else json_schema(_type_named(node))
    if node["type"] == "array":
        return {"type": "array", "items": json_schema(node["items"])}
    fields = node["fields"]
    properties = {field["name"]: {**json_schema(field["type"]), "description": field["doc"]} for field in fields}
    if node["name"] == "Reason":
        for name in ("text", "low", "high"):
            del properties[name]
        properties["value"] = {"description": "value of the record"}
        properties["range"] = {"description": "1st and 99th percentile of the records that it was compared with"}
    return {"type": "object", "description": node["doc"], "properties": properties}


def _type_named(name: str) -> Any:
    """Return the definition of a type that a field of RESULT only names."""
    types = (field["type"][1] for field in RESULT["fields"])
    return next(type_ for type_ in types if isinstance(type_, dict) and f"{NAMESPACE}.{type_.get('name')}" == name)
