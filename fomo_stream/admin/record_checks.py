"""The checks of `fomo-stream doctor` on the first records of a topic. Pure.

They recognise what well-known tools write, and what else records show about the settings that read them. Findings have
names of fields and counts, never what a record holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from statistics import median
from typing import Any

import numpy as np

from fomo_stream.admin.deployment_checks import Facts
from fomo_stream.errors import FomoError, SchemaError
from fomo_stream.kafka.topics.checks import Finding
from fomo_stream.partition.record import Pending
from fomo_stream.records.envelopes import PAGE, Envelope, by_envelope, of_most
from fomo_stream.records.inference import (
    AUTO_COUNTERS,
    MAX_FIELD_NAMES,
    MAX_NAMES_SHOWN,
    TIME_REASON,
    features_note,
    infer_from_records,
    key_of,
    leaves_of,
    named_schema,
    only_grows,
    roles_of,
)
from fomo_stream.records.missing_values import MarkCandidates, is_usual_mark
from fomo_stream.records.roles import MIN_RECORDS_PER_KEY, find_key, find_time, known_values
from fomo_stream.records.schema import Schema, is_number_text, look_up, shown_names
from fomo_stream.records.times import to_milliseconds
from fomo_stream.records.wire_format import NEEDS_REGISTRY
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.settings.rule_spec import zone
from fomo_stream.settings.sources import flags_text
from fomo_stream.wording import counted, did_you_mean, exact, in_time

MIN_RECORDS = 50  # fewer say too little about the values of a field
MIN_ORDERED = 0.9  # of the times in a field: so many are not before that of the record before
MIN_TIME_DIFFERENCE_MS = 60_000  # between the time in a field and that of the record
MAX_MARK = 1e20  # larger numbers are not shown: no usual number for a missing value
Fields = Mapping[str, Any]


def records(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Report what the first records show."""
    first = facts.first
    if facts.unread or not first:
        yield Finding(facts.unread or f"{settings.topic} has no records yet", is_known=False)
        return
    read = [item for item in first if item.error is None]
    groups = by_envelope(item.fields for item in read)
    envelope = of_most(groups)
    yield from _unreadable(settings, first, envelope)
    if not read:
        return
    try:
        items = read if envelope is None else [read[i] for i in groups[envelope]]
        missing = {} if envelope is None else _missing_settings(settings, envelope, items)
        if finding := _shape(settings, groups, envelope, missing):
            yield finding
            if finding.error:
                return
        if envelope is not None:
            yield from _kinds(envelope, items)
        yield from _values(settings.model_copy(update=missing), items)
    except FomoError as error:
        yield Finding.problem(error)


def _add(settings: DoctorSettings, recipe: str = "", **values: Any) -> str:
    """Return the advice to give these settings these values."""
    return f"add {flags_text(type(settings), values)}" + (f"; {recipe}" if recipe else "")


def _unreadable(settings: DoctorSettings, first: Sequence[Pending], envelope: Envelope | None) -> Iterator[Finding]:
    """Report records that become dead letters."""
    counts = Counter(item.error.reason for item in first if item.error is not None)
    of_all, end = f"of {counted(len(first), 'record')}", "they become dead letters"
    tombstones, with_schema = counts.pop("tombstone", 0), counts.pop(NEEDS_REGISTRY, 0)
    if tombstones and settings.tombstones != "skip" and not (envelope and envelope.has_tombstones):
        what = f"{tombstones:,} {of_all} have no value (tombstones): {end}"
        yield Finding(what, _add(settings, tombstones="skip"))
    if with_schema:
        what = f"{with_schema:,} {of_all} have a schema of a registry: {end}"
        yield Finding(what, "add --registry URL; see docs/schemas.md")
    if counts:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in counts.most_common())
        yield Finding(f"{counts.total():,} {of_all} cannot be read ({reasons}): {end}", "correct their producer")


# --- what a tool writes


def _shape(
    settings: DoctorSettings,
    groups: Mapping[Envelope | None, Sequence[int]],
    envelope: Envelope | None,
    missing: Mapping[str, Any],
) -> Finding | None:
    """Return the finding about the tools that write the records. envelope: of most; missing: settings that read it."""
    parts = [f"{len(places):,} {group.content}" for group, places in groups.items() if group is not None]
    if not parts:
        return None
    count, _, content = parts[0].partition(" ")
    others = [f"{len(groups[None]):,} others"] if None in groups else []
    what = ", ".join([f"{count} of {sum(map(len, groups.values())):,} records are {content}", *parts[1:], *others])
    advice = ["give each kind a topic of its own, as all records of a topic are compared"] if len(groups) > 1 else []
    if envelope is not None and envelope.remedy:
        remedy = f"{envelope.remedy}; {envelope.recipe}"
        return Finding.problem(SchemaError(what, "; ".join([*advice, remedy])))
    if missing and envelope is not None:
        which = f"for the {envelope.content}, " if len(groups) > 1 else ""
        advice.append(which + _add(settings, envelope.recipe, **missing))
    elif advice:
        advice.append(f"see {PAGE}")
    return Finding(what, "; ".join(advice))


def _missing_settings(settings: DoctorSettings, envelope: Envelope, items: Sequence[Pending]) -> dict[str, Any]:
    """Return the settings that read an envelope and are not given, by their names. Raises SchemaError.

    items: the records that have it.
    """
    if envelope.remedy:
        return {}
    values: dict[str, Any] = {}
    records = [item.fields for item in items]
    rows = [_only(record, envelope.row) for record in records]
    leaves = _nameable(rows)
    if settings.key is None and (key := _key_field(envelope, records, leaves)) is not None:
        values["key"] = key
    if settings.time is None and envelope.time:
        values |= {"time": envelope.time} if any(look_up(record, envelope.time) for record in records) else {}
    if settings.features is None:
        with_key = settings.model_copy(update=values)
        series = [_series_of(item, with_key.key) for item in items]
        try:
            schema, left_out = infer_from_records(with_key, rows, roles_of(with_key), series)
        except SchemaError as error:
            raise SchemaError(f"{len(items):,} records are {envelope.content}: {error.what}", envelope.recipe) from None
        time = next((path for path, why in left_out.items() if why == TIME_REASON and path in leaves), None)
        if with_key.time is None and time is not None:
            values["time"] = time
        if envelope.row:
            values["features"] = tuple(name for name in schema.features if name in leaves)
            if schema.counters and settings.counters == AUTO_COUNTERS:
                values["counters"] = tuple(sorted(schema.counters & leaves.keys()))
        no_values = [
            name
            for name in envelope.exclude
            if any(feature == name or feature.startswith(f"{name}.") for feature in schema.features)
        ]
        values |= {"exclude": (*settings.exclude, *no_values)} if no_values else {}
    if envelope.has_tombstones and settings.tombstones != "skip":
        values["tombstones"] = "skip"
    return values


def _key_field(envelope: Envelope, records: Sequence[Fields], leaves: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the field that names the series: one that the tool writes, or one whose values show it."""
    for name in envelope.keys:
        keys = [key for record in records if (key := key_of(record, name)) is not None]
        if 10 * len(keys) >= 9 * len(records) and MIN_RECORDS_PER_KEY * len(set(keys)) <= max(len(keys), MIN_RECORDS):
            return name
    found = find_key(leaves, len(records)) if envelope.row else None
    return None if found is None else found[0]


def _only(record: Fields, path: str) -> Fields:
    """Return a record with nothing but the object at this path; empty if it has no such object."""
    names = path.split(".") if path else []
    for name in names:
        inner = record.get(name)
        record = inner if isinstance(inner, dict) else {}
    for name in reversed(names if record else ()):
        record = {name: record}
    return record


def _kinds(envelope: Envelope, items: Sequence[Pending]) -> Iterator[Finding]:
    """Report records of one tool that are about several things."""
    kinds = {key_of(item.fields, envelope.kind) for item in items} - {None}
    if len(kinds) > 1:
        what = f"the {envelope.content} have {len(kinds):,} different values in {envelope.kind}"
        remedy = "give those that have other fields or units a topic of their own"
        yield Finding(f"{what}: all are compared with each other", f"{remedy}; {envelope.recipe}")


# --- what records show about settings


def _values(settings: DoctorSettings, items: Sequence[Pending]) -> Iterator[Finding]:
    """Report the features, and what the values of fields show. Raises SchemaError."""
    records = [item.fields for item in items]
    yield from _buckets(records)
    schema, note = schema_of(settings, items)
    yield Finding(note)
    yield from _absent(settings, schema, items)
    if len(items) < MIN_RECORDS:
        return
    if settings.key is None:
        yield from _key(settings, items)
    if settings.time is None:
        yield from _time(settings, items)
    if settings.features is not None and settings.counters == AUTO_COUNTERS:
        yield from _counters(settings, schema, items)
    yield from _marks(settings, schema, records)


def schema_of(settings: DoctorSettings, read: Sequence[Pending]) -> tuple[Schema, str]:
    """Return the features, and a sentence about them. Raises SchemaError."""
    if settings.features is not None:
        schema = named_schema(settings)
        return schema, features_note(schema, {})
    series = [_series_of(item, settings.key) for item in read]
    records = [item.fields for item in read]
    schema, left_out = infer_from_records(settings, records, roles_of(settings), series, settings.topic)
    counters = shown_names(sorted(schema.counters), MAX_NAMES_SHOWN)
    return schema, features_note(schema, left_out) + (f"; counters: {counters}" if counters else "")


def _series_of(item: Pending, key: str | None) -> tuple[int, Any]:
    return item.record.partition, item.record.key if key is None else key_of(item.fields, key)


def _can_be_named(path: str) -> bool:
    """Return whether a flag can name this field, so that a user can copy it."""
    return path.isprintable() and path == path.strip() and '"' not in path and 0 < len(path) <= 200


def _nameable(records: Iterable[Fields]) -> dict[str, list[Any]]:
    """Return the known values of the fields that a flag can name."""
    return {path: values for path, values in known_values(records).items() if _can_be_named(path)}


def _absent(settings: DoctorSettings, schema: Schema, read: Sequence[Pending]) -> Iterator[Finding]:
    """Report records without a value of any feature, and named fields without a value in all records."""
    records = [item.fields for item in read]
    without = np.isnan(schema.rows(records))
    if not settings.derive and (n := int(without.all(axis=1).sum())):
        what = f"{n:,} of {counted(len(read), 'record')} have no value of any feature: they become dead letters"
        error = SchemaError(what, "check --features") if n == len(read) else None
        yield Finding(what) if error is None else Finding.problem(error)
    absent = {
        name: "features" for name, is_absent in zip(schema.features, without.all(axis=0), strict=True) if is_absent
    }
    if settings.key is not None and not any(item.key or key_of(item.fields, settings.key) for item in read):
        absent[settings.key] = "key"
    if settings.time is not None and all(to_milliseconds(look_up(record, settings.time)) is None for record in records):
        absent[settings.time] = "time"
    for name in absent.keys() - {*settings.derive}:
        value = "value" if name in schema.categorical else absent[name].replace("features", "number")
        hint = did_you_mean(name, known_values(records)).removeprefix("; ")
        yield Finding(f"no record has a {value} in {name[:60]}", hint or f"check --{absent[name]}")


def _buckets(records: Sequence[Fields]) -> Iterator[Finding]:
    """Report buckets of histograms of Prometheus that come as records: a field `le` with their limits."""
    limits: dict[str, list[Any]] = {}
    for record in records:
        for path, value in islice(leaves_of(record), MAX_FIELD_NAMES):
            if path.rpartition(".")[2] == "le":
                limits.setdefault(path, []).append(value)
    for path, values in limits.items():
        finite = [value for value in values if value != "+Inf"]
        if 0 < len(finite) < len(values) and all(map(is_number_text, finite)):
            what = f"{len(values):,} of {len(records):,} records are buckets of histograms (limits in {path[:60]})"
            remedy = "send quantiles instead, computed by recording rules of Prometheus"
            yield Finding(f"{what}, which are compared with each other", f"{remedy}; see {PAGE}#telegraf")


def _key(settings: DoctorSettings, read: Sequence[Pending]) -> Iterator[Finding]:
    """Suggest a key where the records' own keys name no series."""
    own = [item.record.key for item in read if item.record.key is not None]
    if 2 * len(own) > len(read) and MIN_RECORDS_PER_KEY * len(set(own)) <= len(own):
        return
    leaves = _nameable(item.fields for item in read)
    if (found := find_key(leaves, len(read))) is not None:
        path, n_values = found
        have = f"{len(own):,} of {len(read):,} records have a key, with {len(set(own)):,} values"
        have = have if own else "no record has a key"
        what = f"{have}; {path} has {n_values:,} values in {len(leaves[path]):,} records, and may name their series"
        yield Finding(what, _add(settings, key=path))


def _time(settings: DoctorSettings, read: Sequence[Pending]) -> Iterator[Finding]:
    """Suggest a field with the time where it is before the record's own time."""
    leaves = _nameable(item.fields for item in read)
    found = find_time({path: values for path, values in leaves.items() if len(values) == len(read)})
    if found is None:
        return
    path, clock = found[0], zone(settings.timezone)
    times = [(item.timestamp, to_milliseconds(look_up(item.fields, path), clock)) for item in read]
    pairs = sorted((own, time) for own, time in times if own is not None and time is not None)
    n_ordered = sum(a <= b for (_, a), (_, b) in pairwise(pairs))
    if n_ordered < MIN_ORDERED * (len(pairs) - 1):  # a date of birth, or when something ends
        return
    differences = [own - time for own, time in pairs]
    if differences and (difference := median(differences)) > MIN_TIME_DIFFERENCE_MS:
        what = f"the time in {path} is {in_time(difference / 1000)} before the record's own time"
        yield Finding(f"{what} (median of {len(differences):,} records)", _add(settings, time=path))


def _counters(settings: DoctorSettings, schema: Schema, read: Sequence[Pending]) -> Iterator[Finding]:
    """Suggest counters among features that are named."""
    series: list[Hashable] = [_series_of(item, settings.key) for item in read]
    if 2 * len(set(series)) > len(series):  # the keys are ids of records
        series = [item.record.partition for item in read]
    numeric = [name for name in schema.features if name not in {*schema.categorical, *settings.derive}]
    values = {name: [look_up(item.fields, name) for item in read] for name in numeric}
    if names := tuple(name for name in numeric if only_grows(name, values[name], series)):
        what = f"only grows in its series, in {counted(len(read), 'record')}: {shown_names(names, MAX_NAMES_SHOWN)}"
        yield Finding(what, f"{_add(settings, counters=names)}, so that the growth is scored")


def _marks(settings: DoctorSettings, schema: Schema, records: Sequence[Fields]) -> Iterator[Finding]:
    """Suggest the usual numbers for missing values that some features have."""
    candidates = MarkCandidates(schema.features, schema.rows(records), schema.categorical_columns).candidates()
    found = {(schema.features[i], value): n for (i, value), n in candidates.items()}
    usual = [(*place, n) for place, n in found.items() if is_usual_mark(place[1]) and abs(place[1]) < MAX_MARK]
    usual = [mark for mark in usual if _can_be_named(mark[0])][:MAX_NAMES_SHOWN]
    if usual:
        listed = ", ".join(f"{name[:60]} is {exact(value)} in {n:,}" for name, value, n in usual)
        marks = (*settings.missing_values, *(f"{name}={exact(value)}" for name, value, _ in usual))
        what = f"{listed} of {counted(len(records), 'record')}, far from all others: it may mean a missing value"
        yield Finding(what, f"if it does, {_add(settings, missing_values=marks)}")
