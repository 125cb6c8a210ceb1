"""Envelopes: the shapes of the messages that well-known tools write, recognised by their structure.

`docs/recipes.md` says how each is read. A message may have more fields than its tool writes, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fomo_stream.records.schema import shown_names

Fields = Mapping[str, Any]
PAGE = "docs/recipes.md"
MIN_SHARE = 0.05  # of records; fewer may be a mistake of a producer

_VECTOR_VALUES = ("counter", "gauge", "set", "distribution", "aggregated_histogram", "aggregated_summary", "sketch")
_OTLP_LISTS = ("resourceMetrics", "resourceLogs", "resourceSpans")
_CHANGES = ("c", "u", "d", "r", "t", "m")  # create, update, delete, read, truncate, message


class Envelope(NamedTuple):
    """The shape of what a tool writes around the values that it measures, and the fields that have a role in it.

    content: what its messages are. heading: of its recipe. fits: returns whether a record has this shape. keys: fields
    that may name a series, the best first. time: field with the time. row: the object with the values; the key, the
    features, and the time if none is named, are fields of it. kind: field that says what a message is about. exclude:
    fields and objects that only name things, although some hold numbers. remedy: what to do, if it cannot be read.
    """

    content: str
    heading: str
    fits: Callable[[Fields], bool]
    keys: tuple[str, ...] = ()
    time: str = ""
    row: str = ""
    kind: str = ""
    exclude: tuple[str, ...] = ()
    has_tombstones: bool = False
    remedy: str = ""

    @property
    def recipe(self) -> str:
        """Return the place of the recipe in the documentation."""
        return f"see {PAGE}#{self.heading.lower().replace(' ', '-')}"


def _has(record: Fields, kind: type, *names: str) -> bool:
    return all(isinstance(record.get(name), kind) for name in names)


def _is_telegraf(record: Fields) -> bool:
    return _has(record, dict, "fields") and _has(record, str, "name") and ("tags" in record or "timestamp" in record)


def _is_vector(record: Fields) -> bool:
    has_value = any(_has(record, dict, name) for name in _VECTOR_VALUES)
    return has_value and _has(record, str, "name") and record.get("kind") in ("absolute", "incremental")


def _is_change(record: Fields) -> bool:
    images = [record[name] for name in ("before", "after") if name in record]
    texts = [image for image in images if isinstance(image, str)]  # of MongoDB: a document as JSON
    has_images = bool(images) and all(image is None or isinstance(image, dict | str) for image in images)
    has_images = has_images and all(text.startswith("{") for text in texts)
    return has_images and record.get("op") in _CHANGES and ("source" in record or "ts_ms" in record)


def _is_event(record: Fields) -> bool:
    return _has(record, str, "specversion", "type", "source")


def _has_schema(record: Fields) -> bool:
    is_struct = _has(record, dict, "schema") and record["schema"].get("type") == "struct"
    return is_struct and isinstance(record.get("payload", 0), dict | None)


def _is_change_with_schema(record: Fields) -> bool:
    return _has_schema(record) and _is_change(record["payload"] or {})


def _is_otlp(record: Fields) -> bool:
    return any(_has(record, list, name) for name in _OTLP_LISTS)


_CHANGE = Envelope(
    "changes of Debezium", "Debezium", _is_change, time="ts_ms", row="after", kind="source.table", has_tombstones=True
)
ENVELOPES = (
    _CHANGE._replace(
        fits=_is_change_with_schema, time="payload.ts_ms", row="payload.after", kind="payload.source.table"
    ),
    Envelope("rows of Kafka Connect", "Kafka Connect", _has_schema, row="payload", kind="schema.name"),
    _CHANGE,
    Envelope(
        *("CloudEvents", "CloudEvents", _is_event),
        keys=("subject", "source"),
        time="time",
        kind="type",
        exclude=("specversion", "id", "sequence"),
    ),
    Envelope(
        *("metrics of Vector", "Vector", _is_vector),
        keys=("tags.host", "tags.instance"),
        time="timestamp",
        kind="name",
        exclude=("tags",),
    ),
    Envelope(
        *("metrics of Telegraf", "Telegraf", _is_telegraf),
        keys=("tags.host", "tags.instance"),
        time="timestamp",
        kind="name",
        exclude=("tags",),
    ),
    Envelope(
        *("batches of the OpenTelemetry Collector", "What is not read", _is_otlp),
        remedy="arrays are not used as features: send metrics through Telegraf (inputs.opentelemetry) or Vector",
    ),
)


def envelope_of(record: Fields) -> Envelope | None:
    """Return the envelope that a record has; None: it has none of these."""
    return next((envelope for envelope in ENVELOPES if envelope.fits(record)), None)


def by_envelope(records: Iterable[Fields]) -> dict[Envelope | None, list[int]]:
    """Return the positions of the records of each envelope, the most frequent first; None: of all others.

    Records of an envelope that very few have are among the others.
    """
    found = [envelope_of(record) for record in records]
    counts, places = Counter(found), dict[Envelope | None, list[int]]()
    for i, envelope in enumerate(found):
        places.setdefault(envelope if counts[envelope] >= MIN_SHARE * len(found) else None, []).append(i)
    return dict(sorted(places.items(), key=lambda item: -len(item[1])))


def of_most(groups: Mapping[Envelope | None, Sequence[int]]) -> Envelope | None:
    """Return the envelope that more than half of the records have, if there is one. groups: see `by_envelope`."""
    n = sum(map(len, groups.values()))
    return next((envelope for envelope, places in groups.items() if 2 * len(places) > n), None)


def recipe_hint(records: Iterable[Fields]) -> str:
    """Return what to do if one of these tools has written most of the records; else an empty text."""
    if (envelope := of_most(by_envelope(records))) is None:
        return ""
    return "; ".join(filter(None, (f"most records are {envelope.content}", envelope.remedy, envelope.recipe)))


def envelope_note(features: Iterable[str], records: Iterable[Fields]) -> str:
    """Return a note about features that do not measure anything, because one of these tools has written most of the
    records; else an empty text.

    >>> record = {"schema": {"type": "struct"}, "payload": {"temp": 1.5}}
    >>> envelope_note(("payload.temp", "schema.version"), [record])[:71]
    'most records are rows of Kafka Connect, and schema.version is not a val'
    """
    if (envelope := of_most(by_envelope(records))) is None:
        return ""
    row = envelope.row and f"{envelope.row}."
    named = [
        name for name in features if not name.startswith(row) or set(envelope.exclude) & {name, name.split(".")[0]}
    ]
    verb = "is not a value" if len(named) == 1 else "are not values"
    text = f"most records are {envelope.content}, and {shown_names(named, 5)} {verb} of theirs; {envelope.recipe}"
    return text if named else ""
