"""The features of a stream: those that are named, or else those inferred from its first records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from numbers import Real
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.limits import MAX_FEATURES, MAX_PATH_CHARACTERS
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.checkpoint import checkpoint_path, read_metadata
from fomo_stream.records.category_codes import is_mostly_rare
from fomo_stream.records.cells import MISSING
from fomo_stream.records.derivations import parse_derivations
from fomo_stream.records.derived import inputs_without_value
from fomo_stream.records.envelopes import envelope_note, recipe_hint
from fomo_stream.records.files import FORMAT_HINT, JSON_HINT
from fomo_stream.records.lines import Note
from fomo_stream.records.missing_values import ALL_FEATURES, MarkCandidates, Marks, marks_of
from fomo_stream.records.result_writers import csv_columns
from fomo_stream.records.schema import Schema, is_number_text, look_up, number_of, numbers, shown_names
from fomo_stream.records.times import backward_notes, check_times, digits_of_time, is_time, to_milliseconds
from fomo_stream.wording import counted, did_you_mean

Float = NDArray[np.float64]

AUTO_COUNTERS, NO_COUNTERS = ("auto",), ("none",)  # counters: the fields that are recognised; no field
MAX_FIELD_NAMES = 3 * MAX_FEATURES  # that are inspected, of one record and of all
MAX_NAMES_SHOWN = 20  # fields that a note lists
READ_AS_NUMBERS = "read as numbers although they are text"
TEXT_HINT = "text says most as --key (which device or user a record is of), or as --categorical"
COUNTED = "counters; their growth from record to record is scored"
MISLEADING = "later values are new ones, so that good records look odd"
RARE_VALUES = "no categories, as most of their values are seen once or twice"
TIME_REASON = "a time"  # why a field is not a feature
NO_VALUE, COUNTER_REASON = "no value so far", "monotone counter"
LABEL_REASON = "named as labels are; --features takes it"
TEXT_REASONS, RARE_REASON = ("text", "a list"), "present in only"
# Reasons of fields that have another role.
KEY, TIME, LABEL = "key of the series", "time of the record", "label of the record"
EXCLUDED = "excluded"


# The names of a line that no known delimiter cuts: words that one sign joins, or blanks.
_JOINED = re.compile(r"[\w.-]+(?:([^\w\s.-])[\w.-]+(?:\1[\w.-]+)*)|\S+(?:\s+\S+)+")


class TooManyFeaturesError(SchemaError):
    """Records have more numeric fields than can be inferred as features."""


class NoFeaturesError(SchemaError):
    """None of the first `n` records has a field that can be a feature. left_out: why, by field; hint: what to do."""

    def __init__(self, n: int, left_out: Mapping[str, str], source: str = "", hint: str = "") -> None:
        named = ", ".join(f"{path[:60]} ({reason})" for path, reason in list(left_out.items())[:10])
        hint = hint or "name the features to use, or categories"
        if len(left_out) == 1 and (joined := _JOINED.fullmatch(next(iter(left_out)).strip())):
            sign = joined[1] or " "
            hint = f"if {sign!r} separates the cells of a file, give --delimiter {sign!r}"
        where = _first_records_text(n, source)
        super().__init__(f"no numeric field to score in {where}; left out: {named or 'nothing'}", hint)


def _first_records_text(n: int, source: str) -> str:
    """Return the first n records of a source, in words."""
    return f"the first {counted(n, 'record')}" + (f" of {source}" if source else "")


# Words at the end of names; they count only together with the values.
_TIME_WORDS = {
    *("time", "timestamp", "ts", "date", "datetime", "epoch", "at", "created", "updated"),
    *("zeit", "datum", "uhrzeit", "zeitstempel", "fecha", "hora", "heure", "data", "tid", "tijd"),
}
_DATE_PARTS = {
    **{"year": (1900.0, 2100.0), "month": (1.0, 12.0), "day": (1.0, 31.0)},
    **{"hour": (0.0, 24.0), "minute": (0.0, 59.0), "second": (0.0, 60.0)},
}
_MAX_LABEL_VALUES = 2  # values of a column of labels; a target with more values may be a measurement
_LABEL_WORDS = {"label", "labels", "class", "target", "anomaly", "anomalous", "outlier", "outliers", "fraud", "attack"}
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "key", "pk", "hash", "serial"}
_COUNT_WORDS = {"seq", "sequence", "counter", "index", "idx", "offset", "row", "rownum", "line"}
_TOTAL_WORDS = {
    *("total", "count", "counts", "counter", "cumulative", "bytes", "packets", "pieces", "cycles"),
    *("energy", "kwh", "wh", "hours", "uptime", "runtime", "meter", "mileage", "odometer"),
}
# Steps by which a counter has grown, at least: a sensor may rise for a while without falling.
_MIN_GROWTH_STEPS, _MIN_SMOOTH_STEPS, _MIN_NAMED_STEPS = 100, 1000, 20
_MIN_ROUGHNESS = 0.2  # difference of successive steps of a counter, as a share of its steps: a slow sensor is smoother
_MAX_RESET_VALUE = 0.5  # first total after a reset, as a share of the total before
_MAX_RESET_SHARE, _MAX_DIP_SHARE = 0.05, 0.01  # of its steps
_YEAR_2000, _YEAR_2100 = 946_684_800.0, 4_102_444_800.0  # seconds since 1970
_MIN_VALUES = 10  # records; fewer values may rise in order by chance
_MAX_ROUNDING_SHARE = 0.05  # last digit as a share of a step, where equal steps may look unequal by rounding
_MIN_NUMBERS = 20  # with so many numbers in a field, a single word among them means "missing"
_MIN_ID_DIGITS = 10  # of whole numbers in text that name something: cards, accounts, telephones
_MIN_PRESENT_SHARE = 0.05  # share of records; a rarer leaf has too few values in the context to be compared with


def infer_schema(
    records: Iterable[Mapping[str, Any]],
    result_field: str = "fomo",
    categorical: Sequence[str] = (),
    other: Mapping[str, str] | None = None,
    source: str = "",
    counters: Sequence[str] = AUTO_COUNTERS,
    series: Sequence[Hashable] | None = None,
    marks: Marks | None = None,
    derived: Sequence[str] = (),
) -> tuple[Schema, dict[str, str]]:
    """Choose the features of a stream from its first records, taken in order.

    Returns the schema (numeric and boolean leaves, sorted by path) and the leaves left out, with the reason for
    each: text, lists, times, counters, identifiers, and results of an earlier run under `result_field`. A leaf whose
    texts are all numbers is numeric, unless they are long whole numbers. Paths of more than 1,000 characters are
    ignored. In doubt, a leaf is a feature. Constant leaves are features too, because a change in them matters.
    `categorical` fields are always features, and so are `counters`; the fields in `other` never are, for the reason
    given there. counters: ("auto",): recognise those that only grow; ("none",): no field. series: (n,) the series of
    each record; None: all are of one. source: name of the input, for errors. marks: of a `Schema`; derived: features
    that are computed. If there are very many names, only the most frequent ones are inspected.
    Raises NoFeaturesError without any feature, and TooManyFeaturesError if there are more than `MAX_FEATURES`.
    """
    sample = list(records)
    other_roles = other or {}
    counts = Counter(path for record in sample for path, _ in islice(leaves_of(record), MAX_FIELD_NAMES))
    leaves: dict[str, list[Any]] = {path: [] for path, _ in counts.most_common(MAX_FIELD_NAMES)}
    places: dict[str, list[int]] = {path: [] for path in leaves}
    for i, record in enumerate(sample):
        for path, value in islice(leaves_of(record), MAX_FIELD_NAMES):
            if path in leaves:
                leaves[path].append(value)
                places[path].append(i)
    for path in leaves if marks else ():
        missing = marks_of(path, marks or {})
        leaves[path] = [None if number_of(value) in missing else value for value in leaves[path]]
    left_out = {"...": f"there are {MAX_FIELD_NAMES:,} names or more"} if len(counts) >= MAX_FIELD_NAMES else {}
    named = () if tuple(counters) in (AUTO_COUNTERS, NO_COUNTERS) else tuple(counters)
    features = list(dict.fromkeys((*categorical, *named, *derived)))
    for path in sorted(leaves.keys() - set(features)):
        if path == result_field or path.startswith(result_field + "."):
            left_out[path] = "result of an earlier run"
        elif name := next((name for name in other_roles if path == name or path.startswith(name + ".")), None):
            left_out[path] = other_roles[name]
        elif reason := _reason_left_out(path, leaves[path], len(sample)):
            left_out[path] = reason
        else:
            features.append(path)
    chosen = {*categorical, *named, *derived}
    if parts := _parts_of_times({path: leaves[path] for path in features if path not in chosen}):
        left_out |= dict.fromkeys(parts, "part of a time")
        features = [path for path in features if path not in parts]
    if len(features) > MAX_FEATURES:  # a few odd records may have most of these fields
        min_present = len(sample) / 2
        usual = [path for path in features if path in chosen or len(leaves[path]) >= min_present]
        if not 0 < len(usual) <= MAX_FEATURES:
            raise TooManyFeaturesError(
                f"the first {len(sample)} records have more than {MAX_FEATURES} features ({shown_names(features, 5)})",
                "name the ones to use",
            )
        reason = f"less than half of the records have it, and more than {MAX_FEATURES} fields could be features"
        left_out |= dict.fromkeys(sorted(set(features) - set(usual)), reason)
        features = usual
    if not features:
        raise NoFeaturesError(len(sample), left_out, source, recipe_hint(sample))
    counter_names = set(named)
    if counters == AUTO_COUNTERS:
        have_series = series is not None and 2 * len(set(series)) <= len(series)  # else the keys are ids of records
        of_series = list(series) if series is not None and have_series else [None] * len(sample)
        numeric = [path for path in features if path not in (*categorical, *derived)]
        series_of = {path: [of_series[i] for i in places[path]] for path in numeric}
        counter_names = {path for path in numeric if only_grows(path, leaves[path], series_of[path])}
    return Schema(tuple(sorted(features)), frozenset(categorical), frozenset(counter_names), marks or {}), left_out


def leaves_of(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the (path, value) of each leaf, without paths that are too long."""
    for key, value in record.items():
        if len(prefix) + len(key) > MAX_PATH_CHARACTERS:
            continue
        if isinstance(value, dict):
            yield from leaves_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _reason_left_out(path: str, values: list[Any], n_records: int) -> str | None:
    """Return why the leaf at `path` is not a feature, or None if it is one. values: in stream order."""
    present = [value for value in values if not is_missing(value)]
    x = numbers(present)
    numeric = np.array([isinstance(value, Real) for value in present], dtype=bool)
    if not present or (numeric.all() and np.isnan(x).all()):
        return NO_VALUE
    texts = [value for value, is_number in zip(present, numeric, strict=True) if not is_number]
    if numeric.mean() < 0.5:
        if all(map(is_time, texts)):
            return TIME_REASON
        n_read = sum(map(is_number_text, texts))
        if n_read < len(texts) and not _is_one_word(texts, x):
            kind = TEXT_REASONS[isinstance(texts[0], list)]
            return f"{kind}, mostly numbers" if n_read > len(texts) / 2 else kind
    x = np.clip(x[~np.isnan(x)], -1e300, 1e300)  # differences must not overflow
    if len(x) < _MIN_PRESENT_SHARE * n_records:
        return f"{RARE_REASON} {len(x)} of {n_records} records"
    if _LABEL_WORDS & _last_words(path) and len(np.unique(x)) <= _MAX_LABEL_VALUES and (x == np.round(x)).all():
        return LABEL_REASON
    if all(isinstance(value, bool) for value in present):
        return None
    if reason := _reason_no_measure(path, x):
        return reason
    words = [text.strip() if isinstance(text, str) else "" for text in texts]
    if words and all(word.isdigit() and len(word) >= _MIN_ID_DIGITS for word in words):
        return "text of long whole numbers"
    return None


def _parts_of_times(leaves: Mapping[str, list[Any]]) -> set[str]:
    """Return the leaves that are a date together: at least two of year, month, ..., second, and not only of a clock."""
    found: defaultdict[tuple[str, ...], dict[str, list[str]]] = defaultdict(dict)
    for path, values in leaves.items():
        parent, _, name = path.rpartition(".")
        *before, last = (name[-1:].isalpha() and words_of(path)) or [""]  # not hour_1, hour_2, ...
        if last not in _DATE_PARTS or not _TIME_WORDS.issuperset([*before, *words_of(parent)[-1:]]):
            continue
        x = numbers([value for value in values if not is_missing(value)])
        x, (low, high) = x[~np.isnan(x)], _DATE_PARTS[last]
        if len(x) and ((low <= x) & (x <= high) & (x == np.round(x))).all():
            found[(parent, *before)].setdefault(last, []).append(path)
    times = [parts for parts in found.values() if len(parts) > 1 and parts.keys() & {"year", "month", "day"}]
    return {path for parts in times for paths in parts.values() for path in paths}


def _is_one_word(texts: Sequence[Any], x: Float) -> bool:
    """Return whether the texts among numbers (n,) are one word, which stands where a number is missing."""
    words = {text for text in texts if not is_number_text(text)} if all(isinstance(text, str) for text in texts) else ()
    x = x[~np.isnan(x)]
    return len(words) == 1 and len(x) >= _MIN_NUMBERS and len(np.unique(x)) >= _MIN_VALUES


def _reason_no_measure(path: str, x: Float) -> str | None:
    """Return why numbers (n,), in stream order, are not a measurement; None: they may be one."""
    words = _last_words(path)
    if _is_timestamp(x, words):
        return TIME_REASON
    if _is_counter(x, words):
        return COUNTER_REASON
    return "near-unique identifier" if _is_identifier(x, words) else None


def misleading_columns(names: Sequence[Hashable], rows: Float, skip: Collection[int] = ()) -> list[str]:
    """Return columns that only name records, or only grow, each with the reason; a constant one does no harm.

    rows: (n, d), in the order in which they came, NaN = missing; skip: columns of categories and counters.
    """
    columns = []
    for i, name in enumerate(names):
        x = np.clip(rows[~np.isnan(rows[:, i]), i], -1e300, 1e300)
        if i not in skip and len(x) >= _MIN_VALUES:
            grows = only_grows(str(name), x.tolist(), [None] * len(x))
            if reason := _reason_no_measure(str(name), x) or ("it only grows" if grows else None):
                columns.append(f"{name!r} ({reason})")
    return columns


def words_of(path: str) -> list[str]:
    """Return the words of the leaf's own name.

    >>> words_of("order.createdAt")
    ['created', 'at']
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", path.rpartition(".")[2])
    return re.findall(r"[a-z]+", name.lower())


def _last_words(path: str) -> set[str]:
    """Return the last two words of a name, which say what it is."""
    return set(words_of(path)[-2:])


def is_missing(value: Any) -> bool:
    """Return whether a value of a record is None, a blank text, or a word for a missing value."""
    return value is None or (isinstance(value, str) and value.strip().lower() in MISSING)


def _is_timestamp(x: np.ndarray, words: set[str]) -> bool:
    rising = len(x) >= _MIN_VALUES and float(np.mean(np.diff(x) >= 0)) >= 0.9 and x[-1] > x[0]
    named = bool(words & _TIME_WORDS)
    is_epoch = any(_YEAR_2000 * unit <= x.min() and x.max() <= _YEAR_2100 * unit for unit in (1, 1e3, 1e6, 1e9))
    is_epoch = is_epoch or all(value > 1e11 and digits_of_time(value) is not None for value in x.tolist())
    # A memory gauge of 2 GB is as large as an epoch, but has another name and does not only rise. A latency may be
    # called a time, but does not only rise either.
    return (is_epoch and (named or rising)) or (named and rising and bool((np.diff(x) >= 0).all()))


def is_time_field(path: str, values: Sequence[Any]) -> bool:
    """Return whether all values of a field are times: in text, or numbers since 1970 whose name says so."""
    if all(map(is_time, values)):
        return bool(values)
    x, words = numbers(values), _last_words(path)
    times = [to_milliseconds(value) for value in values]
    is_plausible = all(time is not None and _YEAR_2000 <= time / 1000.0 <= _YEAR_2100 for time in times)
    return is_plausible and bool(words & _TIME_WORDS) and _is_timestamp(x, words)


def _is_counter(x: np.ndarray, words: set[str]) -> bool:
    steps = np.diff(x)
    in_order = len(x) >= _MIN_VALUES and bool((steps > 0).all() or (steps < 0).all())
    # When partitions are read one after the other, a counter falls back where the next partition begins.
    mostly = len(x) >= _MIN_VALUES and max(float(np.mean(steps > 0)), float(np.mean(steps < 0))) >= 0.9
    if mostly and words & _COUNT_WORDS and (x == np.round(x)).all():
        return True
    # A sensor may rise for a long time, but noise and rounding make its steps unequal. Records of several
    # partitions may alternate, so a long sample need not be in order.
    if not in_order and len(x) < 5 * _MIN_VALUES:
        return False
    ordered = np.sort(x)
    size = np.abs(ordered)
    # Rounding errors grow with the values on both sides of a step; one 1e308 must not make all other steps look equal.
    tolerance = 4 * np.finfo(np.float64).eps * np.maximum(np.maximum(size[1:], size[:-1]), np.median(size))
    steps = np.diff(ordered)
    if in_order:  # in decimals, equal steps are rounded; where rounding is much of a step, they may as well be unequal
        unit = next((10.0**-n for n in range(1, 9) if np.allclose(x * 10.0**n, np.round(x * 10.0**n), 0, 1e-3)), 0.0)
        tolerance = tolerance + (1.5 * unit if unit <= _MAX_ROUNDING_SHARE * np.median(steps) else 0.0)
    same = np.abs(steps - np.median(steps)) <= tolerance
    return bool((steps > 0).all()) and float(same.mean()) >= 0.9


def only_grows(path: str, values: Sequence[Any], series: Sequence[Hashable]) -> bool:
    """Return whether numbers are totals of a counter: they grow in their series, and fall only at a reset.

    Very few may fall by up to the usual growth: rounding does that.
    """
    x = numbers(values)
    numbered: dict[Hashable, int] = {}
    of_series = np.array([numbered.setdefault(key, len(numbered)) for key in series])
    order = np.argsort(of_series, kind="stable")
    x, of_series = x[order], of_series[order]
    x, of_series = x[~np.isnan(x)], of_series[~np.isnan(x)]
    is_step = of_series[1:] == of_series[:-1]
    before, after = x[:-1][is_step], x[1:][is_step]
    if not len(after) or any(isinstance(value, bool) for value in values):
        return False
    grown = int((after > before).sum())
    if not grown:
        return False
    is_reset = (after < before) & (after >= 0.0) & (after < _MAX_RESET_VALUE * before)
    fallen = before / 2.0 - after / 2.0  # in halves, as differences of extreme values may be too large
    dips = (fallen > 0.0) & ~is_reset
    if dips.sum() > max(_MAX_DIP_SHARE * grown, 1):
        return False
    if dips.any() and fallen[dips].max() > np.median(-fallen[fallen < 0.0]):
        return False
    if is_reset.sum() > _MAX_RESET_SHARE * grown or x.min() < 0.0:
        return False
    if _last_words(path) & _TOTAL_WORDS:
        return grown >= _MIN_NAMED_STEPS
    if grown < _MIN_GROWTH_STEPS:
        return False
    steps = after - before
    rough = np.abs(np.diff(steps)).mean() >= _MIN_ROUGHNESS * np.abs(steps).mean()  # a slow sensor is smooth
    return bool(rough or grown >= _MIN_SMOOTH_STEPS)


def _is_identifier(x: np.ndarray, words: set[str]) -> bool:
    if len(x) < 3 or not (x == np.round(x)).all():
        return False
    distinct = len(np.unique(x)) / len(x)
    if distinct >= 0.5 and words & _ID_WORDS:
        return True
    # No instrument measures 16 digits, so such integers are random or composed keys, whatever their name; but 1.234e19
    # has four.
    is_large = distinct >= 0.99 and len(x) >= _MIN_VALUES and float(np.median(np.abs(x))) >= 2.0**53
    return is_large and sum(float(f"{value:.14e}") != value for value in x.tolist()) > len(x) / 2


# --- features of a file ----------------------------------------------------------------------------------------


class RecordSettings(Protocol):
    """The settings that choose the features."""

    features: tuple[str, ...] | None
    categorical: tuple[str, ...]
    derive: tuple[str, ...]
    result_field: str
    exclude: tuple[str, ...]
    counters: tuple[str, ...]
    key: str | None
    time: str | None
    timezone: str
    model: str

    @property
    def counter_names(self) -> tuple[str, ...]: ...

    @property
    def marks(self) -> Marks: ...


def named_schema(settings: RecordSettings) -> Schema:
    features = dict.fromkeys((*(settings.features or ()), *settings.derive))
    schema = Schema.of(tuple(features), settings.categorical, settings.counter_names)
    return limited_to_model(settings.model, replace(schema, marks=settings.marks))


def limited_to_model(model: str, schema: Schema) -> Schema:
    """Return the part of a schema that a model can take. Raises CheckpointError for a model that does not exist."""
    config = ModelConfig.from_dict(read_metadata(checkpoint_path(model))["config"])
    return schema.at_most(config.max_features(len(schema.categorical)))


def choose_features(
    settings: RecordSettings,
    format: str,
    records: Sequence[Mapping[str, Any]],
    source: str,
    roles: Mapping[str, str],
    note: Note,
    offers_time: bool = False,
) -> tuple[Schema, Mapping[str, str]]:
    """Return the schema, named by the settings or inferred from `records`, and the fields left out, with reasons.

    An inferred schema is noted.
    format: of the input. roles: fields that are never inferred as features, each with KEY, TIME or LABEL. offers_time:
    --time can name a time that is left out. Raises SchemaError without records or features, and ConfigError if records
    lack a named field, or have only text in a feature; the first records may lack labels.
    """
    if not records:
        raise SchemaError(f"no line of {source} is a record", JSON_HINT if format == "jsonl" else FORMAT_HINT)
    left_out: Mapping[str, str] = {}
    if settings.features is not None:
        schema = named_schema(settings)
    else:
        schema, left_out = infer_from_file(settings, format, records, source, roles)
    absent = np.array(schema.features)[np.isnan(schema.rows(records)).all(axis=0)].tolist()
    for name, kind in inputs_without_value(parse_derivations(settings.derive), records):
        raise _absent_error(name, kind, records, source)
    fields = {path for record in records for path, value in leaves_of(record) if value is not None}
    lacking = [name for name, role in roles.items() if role != LABEL and name not in fields]
    # an excluded name may be that of an object
    others = [
        name for name in lacking if roles[name] != EXCLUDED or not any(path.startswith(f"{name}.") for path in fields)
    ]
    for name in (*(name for name in absent if name not in settings.derive), *others):
        is_number = name in absent and name not in schema.categorical
        raise _absent_error(name, "number" if is_number else "value", records, source)
    clock = ZoneInfo(settings.timezone)
    if settings.time is not None:
        for text in check_times(settings.time, [look_up(record, settings.time) for record in records], clock):
            note(text)
    for path in [path for path, why in left_out.items() if why == TIME_REASON]:
        times = [to_milliseconds(look_up(record, path), clock) for record in records]
        for text in backward_notes(path, [time for time in times if time is not None]):
            note(text)
    if settings.features is None:
        note(features_note(schema, left_out, offers_time))
        for text in unnamed_note(schema, records):
            note(text)
        if settings.key is None and "text" in left_out.values():
            note(TEXT_HINT)
    for text in input_notes(schema, records):
        note(text)
    return schema, left_out


def roles_of(settings: RecordSettings, label: str | None = None) -> dict[str, str]:
    """Return the fields that are not features because of another role, with it. label: field of the label, if any."""
    others = ((settings.key, KEY), (settings.time, TIME), (label, LABEL))
    return {field: role for field, role in others if field is not None} | dict.fromkeys(settings.exclude, EXCLUDED)


def infer_from_file(
    settings: RecordSettings, format: str, records: Sequence[Mapping[str, Any]], source: str, roles: Mapping[str, str]
) -> tuple[Schema, dict[str, str]]:
    """Infer the schema of records of a file, without the columns of an earlier result."""
    earlier = set() if format != "csv" else set(csv_columns(settings.result_field))
    own = [{name: v for name, v in record.items() if name not in earlier} for record in records]
    series = None if settings.key is None else [key_of(record, settings.key) for record in records]
    return infer_from_records(settings, own, roles, series, source)


def infer_from_records(
    settings: RecordSettings,
    records: Sequence[Mapping[str, Any]],
    roles: Mapping[str, str],
    series: Sequence[Hashable] | None,
    source: str = "",
) -> tuple[Schema, dict[str, str]]:
    options = settings.counters, series, settings.marks, settings.derive
    schema, left_out = infer_schema(records, settings.result_field, settings.categorical, roles, source, *options)
    return limited_to_model(settings.model, schema), left_out


def features_note(schema: Schema, left_out: Mapping[str, str], offers_time: bool = False) -> str:
    """Return the inferred features and the fields left out, in one line. offers_time: see `choose_features`."""
    use = {path: f"; use --time {path}" for path, why in left_out.items() if offers_time and why == TIME_REASON}
    reasons = ", ".join(f"{path} ({why}{use.get(path, '')})" for path, why in list(left_out.items())[:MAX_NAMES_SHOWN])
    return f"features: {_names_text(schema.features)}" + (f"; left out: {reasons}" if reasons else "")


def unnamed_note(schema: Schema, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a note if features that the user has not named measure nothing; see `envelope_note`."""
    chosen = [name for name in schema.features if name not in schema.categorical and "(" not in name]  # not derived
    if note := envelope_note(chosen, records):
        yield note


def input_notes(schema: Schema, records: Sequence[Mapping[str, Any]], values: bool = True) -> Iterator[str]:
    """Yield lines about properties of the features in the first records that the user may not expect.

    values: lines may show values of records, which a log must not.
    """
    numeric = [name for name in schema.features if name not in schema.categorical]
    if schema.untaken:
        n = len(schema.features)
        part = f"of {n + len(schema.untaken):,} features a fixed random subset of {n:,} is scored"
        yield f"{part}, as the model takes no more; left out: {_names_text(schema.untaken)}; --features names others"
    texts = [name for name in numeric if any(is_number_text(look_up(record, name)) for record in records)]
    if texts:
        yield f"{READ_AS_NUMBERS}: {_names_text(texts)}"
    if schema.counters:
        yield f"{COUNTED}: {_names_text(sorted(schema.counters))}; --counters none takes the totals"
    codes = schema.rows(records)
    skip = {i for i, name in enumerate(schema.features) if name in schema.categorical | schema.counters}
    if misleading := misleading_columns(schema.features, codes, skip):
        yield (
            f"features that may mislead: {_names_text(misleading)}; {MISLEADING}; leave them out (--exclude), or name "
            "totals in --counters, so that their growth is scored"
        )
    names = [schema.features[i] for i in schema.categorical_columns if is_mostly_rare(codes[:, i])]
    if names:
        remedy = "leave them out, or make one the key of the series (of a file: --key)"
        yield f"{RARE_VALUES}: {_names_text(names)}; {remedy}"
    for unknown in sorted(map(str, schema.marks.keys() - {ALL_FEATURES, *schema.features, *schema.untaken})):
        hint = did_you_mean(unknown, schema.features)
        yield f"--missing-values can never apply to {unknown[:60]}: there is no such feature{hint}"
    candidates = MarkCandidates(schema.features, codes, schema.categorical_columns)
    if values:
        yield from candidates.notes("the first ")
    elif names := sorted({schema.features[i] for i, _ in candidates.candidates()}):
        yield f"numbers that may mean missing are in {_names_text(names)}; replay names them, for --missing-values"


def _names_text(names: Sequence[str]) -> str:
    return ", ".join(name[:60] for name in names[:MAX_NAMES_SHOWN]) + (", ..." if len(names) > MAX_NAMES_SHOWN else "")


def _absent_error(name: str, kind: str, records: Sequence[Mapping[str, Any]], source: str) -> ConfigError | SchemaError:
    """Return the error for a named field without values: about the name, or about the data if the field is empty."""
    where = f"in {_first_records_text(len(records), source)}"
    fields = list(dict.fromkeys(path for record in records for path, _ in leaves_of(record)))
    if name not in fields:
        hint = did_you_mean(name, fields) or f"; the fields are {shown_names(fields, MAX_NAMES_SHOWN)}"
        if any("," in field and name in field for field in fields):
            hint += "; write a name that has a comma in quotes: '\"A, B\",C'"
        return ConfigError(f"there is no field {name[:60]} {where}{hint}")
    if not any(isinstance(look_up(record, name), str) for record in records):
        return SchemaError(f"there is no {kind} in {name[:60]} {where}")
    return ConfigError(f"{name[:60]} has text, and no {kind}, {where}", "if it is a category, name it as categorical")


def text_columns(settings: RecordSettings, key: str | None) -> set[str]:
    """Return the CSV columns whose cells stay text even if they look like numbers, and those of an earlier result.

    key: field that names a series.
    """
    return {*settings.categorical, *({key or "", *csv_columns(settings.result_field)} - set(settings.features or ()))}


def key_of(record: Mapping[str, Any], field: str | None) -> str | None:
    """Return the series that a record belongs to; None if it has no such field. 7 and 7.0 are one.

    >>> [key_of({"pump": value}, "pump") for value in (7, 7.0, "7", 7.5, None)]
    ['7', '7', '7', '7.5', None]
    """
    value = None if field is None else look_up(record, field)
    if isinstance(value, float) and value.is_integer():  # a frame has such numbers where a key is missing
        return str(int(value))
    return None if value is None else str(value)
