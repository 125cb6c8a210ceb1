"""The features of a file of records: those that flags name, or those inferred from the first records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.records.inference import TEXT, NoFeaturesError, first_records, infer_schema, leaves_of
from fomo_stream.records.lines import Note
from fomo_stream.records.schema import Schema, look_up, shown
from fomo_stream.records.writers import csv_columns
from fomo_stream.wording import did_you_mean

NAMES_SHOWN = 20  # fields that a note lists

# Why a field is no feature, by the flag that names it.
ROLES = {"--key": "key of the series", "--time": "time of the record", "--label": "label of the record"}


class RecordSettings(Protocol):
    """The settings that say which fields are features."""

    @property
    def features(self) -> tuple[str, ...] | None: ...
    @property
    def categorical(self) -> tuple[str, ...]: ...
    @property
    def result_field(self) -> str: ...


def choose_features(
    settings: RecordSettings,
    format: str,
    records: Sequence[Mapping[str, Any]],
    source: str,
    special: Mapping[str, str],
    note: Note,
) -> Schema:
    """The schema of `settings.features`, or else the one inferred from `records`, which is noted.

    format: of the input. special: fields that are never inferred as features, with the flag that names each, one of
    `ROLES`. Raises SchemaError if there are no records or no features, and ConfigError if records lack a field
    that a flag names, or have only text in a feature; the first records may lack labels.
    """
    if not records:
        raise SchemaError(f"no line of {source} is a record")
    if settings.features is not None:
        schema = Schema.of(settings.features, settings.categorical)
        _check_fields(schema, records, source, special)
        return schema
    if format != "jsonl":
        earlier = set(csv_columns(settings.result_field))
        records = [{name: v for name, v in record.items() if name not in earlier} for record in records]
    roles = {name: ROLES[flag] for name, flag in special.items()}
    try:
        schema, left_out = infer_schema(records, settings.result_field, settings.categorical, roles)
    except NoFeaturesError as error:
        raise NoFeaturesError(len(records), _shown(error.left_out, records), source) from None
    _check_fields(schema, records, source, special)
    note(features_note(schema, _shown(left_out, records)))
    return schema


def features_note(schema: Schema, left_out: Mapping[str, str]) -> str:
    """The inferred features and the fields that are none, in one line."""
    names = ", ".join(schema.features[:NAMES_SHOWN]) + (", ..." if len(schema.features) > NAMES_SHOWN else "")
    reasons = ", ".join(f"{path} ({reason})" for path, reason in list(left_out.items())[:NAMES_SHOWN])
    more = f", and {len(left_out) - NAMES_SHOWN} more" if len(left_out) > NAMES_SHOWN else ""
    return f"features: {names}" + (f"; left out: {reasons}{more}" if reasons else "")


def _shown(left_out: Mapping[str, str], records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The reasons; for text with digits with an example, because it may have been meant as numbers."""
    found = dict(left_out)
    for path in (path for path, why in left_out.items() if why == TEXT):
        values = (look_up(record, path) for record in records)
        text = next((v for v in values if isinstance(v, str) and any(map(str.isdigit, v))), None)
        if text is not None:
            found[path] = f"{TEXT} such as {text[:20]!r}"
    return found


def _check_fields(
    schema: Schema, records: Sequence[Mapping[str, Any]], source: str, special: Mapping[str, str]
) -> None:
    """Raise ConfigError or SchemaError if no record has a value of a field that a flag names."""
    absent = np.array(schema.features)[np.isnan(schema.rows(records)).all(axis=0)].tolist()
    found = [
        ("number", [name for name in absent if name not in schema.categorical], "--features"),
        ("value", [name for name in absent if name in schema.categorical], "--categorical"),
    ]
    for name, flag in special.items():
        if flag != "--label" and not any(key_of(record, name) for record in records):
            found.append(("value", [name], flag))
    for kind, names, flag in found:
        if names:
            raise _absent(kind, names, records, source, flag)


def _absent(
    kind: str, names: Sequence[str], records: Sequence[Mapping[str, Any]], source: str, flag: str
) -> ConfigError | SchemaError:
    """The error for named fields without values: of the flag, or of the data if the fields are there, but empty."""
    where = f"in the {first_records(len(records))} of {source}"
    fields = list(dict.fromkeys(path for record in records for path, _ in leaves_of(record)))
    unknown = [name for name in names if name not in fields]
    if unknown:
        parts = [path for path in fields if path.startswith(f"{unknown[0]}.")]
        if parts and any(isinstance(record.get(unknown[0].partition(".")[0]), dict) for record in records):
            return ConfigError(f"{flag}: {unknown[0]} is an object {where}; name one of {shown(parts, NAMES_SHOWN)}")
        hint = did_you_mean(unknown[0], fields) or f"; the fields are {shown(fields, NAMES_SHOWN)}"
        return ConfigError(f"{flag}: there is no field {shown(unknown)} {where}{hint}")
    values = (look_up(record, names[0]) for record in records)
    text = next((value for value in values if isinstance(value, str)), None)
    if text is None:
        return SchemaError(f"{flag}: there is no {kind} in {shown(names)} {where}")
    return ConfigError(
        f"{flag}: {names[0][:60]} has text such as {text[:20]!r}, and no {kind}, {where}; "
        "if it is a category, name it with --categorical"
    )


def text_columns(settings: RecordSettings, key: str | None) -> set[str]:
    """Columns of a CSV file whose cells are text, even where they look like numbers, and those of an earlier result.

    key: field that names a series.
    """
    return {*settings.categorical, *({key or "", *csv_columns(settings.result_field)} - set(settings.features or ()))}


def key_of(record: Mapping[str, Any], field: str | None) -> str | None:
    """The series that a record belongs to; None if it has no such field."""
    value = None if field is None else look_up(record, field)
    return None if value is None else str(value)
