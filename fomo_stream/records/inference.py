"""The features of a stream: those that are named, or else those inferred from its first records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from numbers import Real
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.limits import LONGEST_PATH, MAX_FEATURES
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.checkpoint import checkpoint_path, read_metadata
from fomo_stream.records.category_codes import is_mostly_rare
from fomo_stream.records.cells import MISSING
from fomo_stream.records.derivations import derivations_of
from fomo_stream.records.derived import inputs_without_value
from fomo_stream.records.files import FORMS
from fomo_stream.records.lines import Note
from fomo_stream.records.missing_values import EVERY, Marks, Suspects, marks_of
from fomo_stream.records.schema import Schema, is_number_text, look_up, number_of, numbers, shown
from fomo_stream.records.times import backward, check_times, digits_of_time, is_time, to_milliseconds
from fomo_stream.records.writers import csv_columns
from fomo_stream.wording import counted, did_you_mean

Float = NDArray[np.float64]

AUTO, NONE = ("auto",), ("none",)  # of counters: those that are recognised, and no field
MOST_NAMES = 3 * MAX_FEATURES  # of a record, and of all, that are looked at
NAMES_SHOWN = 20  # fields that a note lists
READ_AS_NUMBERS = "read as numbers although they are text"
TEXT_HINT = "text says most as --key (which device or user a record is of), or as --categorical"
COUNTED = "counters, of which the growth a record is scored"
MISLEADING = "later values are new ones, so that good records look odd"
RARE_VALUES = "no categories, as most of their values are seen once or twice"
A_TIME = "a time"  # why such a field is no feature
NO_VALUE, COUNTER, A_LABEL = "no value so far", "monotone counter", "named as labels are; --features takes it"
TEXTS, FEW = ("text", "a list"), "present in only"
# Why a field that has another role is no feature.
KEY, TIME, LABEL = "key of the series", "time of the record", "label of the record"
EXCLUDED = "excluded"


class TooManyFeaturesError(SchemaError):
    """Records have more numeric fields than can be inferred as features."""


class NoFeaturesError(SchemaError):
    """None of the first `n` records has a field that can be a feature. left_out: why, by field."""

    def __init__(self, n: int, left_out: Mapping[str, str], source: str = "") -> None:
        named = ", ".join(f"{path[:60]} ({reason})" for path, reason in list(left_out.items())[:10])
        hint = "name the features to use, or categories"
        if len(left_out) == 1 and len(next(iter(left_out)).split()) > 1:
            hint = "if spaces separate the cells of a file, give --delimiter ' '"
        super().__init__(f"no numeric field to score in {_sample(n, source)}; left out: {named or 'nothing'}", hint)


def _sample(n: int, source: str) -> str:
    """Records that were looked at, in words."""
    return f"the first {counted(n, 'record')}" + (f" of {source}" if source else "")


# Words at the end of names; they count only together with the values.
_TIME_WORDS = {
    *("time", "timestamp", "ts", "date", "datetime", "epoch", "at", "created", "updated"),
    *("zeit", "datum", "uhrzeit", "zeitstempel", "fecha", "hora", "heure", "data", "tid", "tijd"),
}
_LABELS = 2  # values of a column of labels, at most; what is called a target may also be measured
_LABEL_WORDS = {"label", "labels", "class", "target", "anomaly", "anomalous", "outlier", "outliers", "fraud", "attack"}
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "key", "pk", "hash", "serial"}
_COUNT_WORDS = {"seq", "sequence", "counter", "index", "idx", "offset", "row", "rownum", "line"}
_TOTAL_WORDS = {
    *("total", "count", "counts", "counter", "cumulative", "bytes", "packets", "pieces", "cycles"),
    *("energy", "kwh", "wh", "hours", "uptime", "runtime", "meter", "mileage", "odometer"),
}
# Steps by which a counter has grown; a sensor may rise for a while without falling.
_GROWN, _GROWN_SMOOTHLY, _GROWN_BY_NAME = 100, 1000, 20
_ROUGH = 0.2  # share of its steps by which those of a counter differ from the next ones, at least
_RESET = 0.5  # share of the total before that a counter which began again has at most
_FEW_RESETS, _FEW_DIPS = 0.05, 0.01  # of its steps
_YEAR_2000, _YEAR_2100 = 946_684_800.0, 4_102_444_800.0  # seconds since 1970
_ENOUGH = 10  # records; fewer values may rise in order by chance
_ROUNDED = 0.05  # of a step is the last digit, at most, where equal steps are rounded
_MANY = 20  # numbers that show that a word beside them says only that one is missing
_LONG = 10  # digits; whole numbers in text that are as long name something: cards, accounts, telephones
_RARE = 0.05  # share of records; a rarer leaf has too few values in the context to be compared with


def infer_schema(
    records: Iterable[Mapping[str, Any]],
    result_field: str = "fomo",
    categorical: Sequence[str] = (),
    other: Mapping[str, str] | None = None,
    source: str = "",
    counters: Sequence[str] = AUTO,
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
    given there. counters: ("auto",): those that only grow are recognised; ("none",): there are none. series: (n,) the
    one that each record belongs to; None: all are of one. source: name of the input, for errors. marks: of a
    `Schema`; derived: features that are computed. Of very many names, those that most records have are looked at.
    Raises NoFeaturesError if there is no feature, and TooManyFeaturesError if there are more than `MAX_FEATURES`.
    """
    sample = list(records)
    special = other or {}
    counts = Counter(path for record in sample for path, _ in islice(leaves_of(record), MOST_NAMES))
    leaves: dict[str, list[Any]] = {path: [] for path, _ in counts.most_common(MOST_NAMES)}
    places: dict[str, list[int]] = {path: [] for path in leaves}
    for at, record in enumerate(sample):
        for path, value in islice(leaves_of(record), MOST_NAMES):
            if path in leaves:
                leaves[path].append(value)
                places[path].append(at)
    for path in leaves if marks else ():
        missing = marks_of(path, marks or {})
        leaves[path] = [None if number_of(value) in missing else value for value in leaves[path]]
    left_out = {"...": f"there are {MOST_NAMES:,} names or more"} if len(counts) >= MOST_NAMES else {}
    named = () if tuple(counters) in (AUTO, NONE) else tuple(counters)
    features = list(dict.fromkeys((*categorical, *named, *derived)))
    for path in sorted(leaves.keys() - set(features)):
        if path == result_field or path.startswith(result_field + "."):
            left_out[path] = "result of an earlier run"
        elif name := next((name for name in special if path == name or path.startswith(name + ".")), None):
            left_out[path] = special[name]
        elif reason := _why_not(path, leaves[path], len(sample)):
            left_out[path] = reason
        else:
            features.append(path)
    if len(features) > MAX_FEATURES:  # a few odd records may have most of them
        chosen, most = {*categorical, *named, *derived}, len(sample) / 2
        usual = [path for path in features if path in chosen or len(leaves[path]) >= most]
        if not 0 < len(usual) <= MAX_FEATURES:
            raise TooManyFeaturesError(
                f"the first {len(sample)} records have more than {MAX_FEATURES} features ({shown(features, 5)})",
                "name the ones to use",
            )
        reason = f"less than half of the records have it, and more than {MAX_FEATURES} fields could be features"
        left_out |= dict.fromkeys(sorted(set(features) - set(usual)), reason)
        features = usual
    if not features:
        raise NoFeaturesError(len(sample), left_out, source)
    found = set(named)
    if counters == AUTO:
        recur = series is not None and 2 * len(set(series)) <= len(series)  # else keys are ids of records
        of_series = list(series) if series is not None and recur else [None] * len(sample)
        numeric = [path for path in features if path not in (*categorical, *derived)]
        found = {path for path in numeric if only_grows(path, leaves[path], [of_series[at] for at in places[path]])}
    return Schema(tuple(sorted(features)), frozenset(categorical), frozenset(found), marks or {}), left_out


def leaves_of(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The (path, value) of each leaf, without paths that are too long."""
    for key, value in record.items():
        if len(prefix) + len(key) > LONGEST_PATH:
            continue
        if isinstance(value, dict):
            yield from leaves_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _why_not(path: str, values: list[Any], n_records: int) -> str | None:
    """Why the leaf at `path` is not a feature, or None if it is one. values: its values in stream order."""
    present = [value for value in values if not is_missing(value)]
    x = numbers(present)
    numeric = np.array([isinstance(value, Real) for value in present], dtype=bool)
    if not present or (numeric.all() and np.isnan(x).all()):
        return NO_VALUE
    texts = [value for value, is_number in zip(present, numeric, strict=True) if not is_number]
    if numeric.mean() < 0.5:
        if all(map(is_time, texts)):
            return A_TIME
        n_read = sum(map(is_number_text, texts))
        if n_read < len(texts) and not _is_a_word(texts, x):
            kind = TEXTS[isinstance(texts[0], list)]
            return f"{kind}, mostly numbers" if n_read > len(texts) / 2 else kind
    x = np.clip(x[~np.isnan(x)], -1e300, 1e300)  # differences must not overflow
    if len(x) < _RARE * n_records:
        return f"{FEW} {len(x)} of {n_records} records"
    if _LABEL_WORDS & _words(path) and len(np.unique(x)) <= _LABELS and (x == np.round(x)).all():
        return A_LABEL
    if all(isinstance(value, bool) for value in present):
        return None
    if reason := _no_measure(path, x):
        return reason
    if texts and all(isinstance(text, str) and text.strip().isdigit() and len(text.strip()) >= _LONG for text in texts):
        return "text of long whole numbers"
    return None


def _is_a_word(texts: Sequence[Any], x: Float) -> bool:
    """Whether the texts among numbers (n,) are one word, which stands where a number is missing."""
    words = {text for text in texts if not is_number_text(text)} if all(isinstance(text, str) for text in texts) else ()
    x = x[~np.isnan(x)]
    return len(words) == 1 and len(x) >= _MANY and len(np.unique(x)) >= _ENOUGH


def _no_measure(path: str, x: Float) -> str | None:
    """Why numbers (n,), in stream order, measure nothing; None: they may."""
    words = _words(path)
    if _is_timestamp(x, words):
        return A_TIME
    if _is_counter(x, words):
        return COUNTER
    return "near-unique identifier" if _is_identifier(x, words) else None


def misleading(names: Sequence[Hashable], rows: Float, known: Collection[int] = ()) -> list[str]:
    """Columns that only name records, or only grow, each with the reason; a constant one does no harm.

    rows: (n, d), in the order in which they came, NaN = missing; known: columns that are categories or counters.
    """
    found = []
    for at, name in enumerate(names):
        x = np.clip(rows[~np.isnan(rows[:, at]), at], -1e300, 1e300)
        if at not in known and len(x) >= _ENOUGH:
            grows = only_grows(str(name), x.tolist(), [None] * len(x))
            if reason := _no_measure(str(name), x) or ("it only grows" if grows else None):
                found.append(f"{name!r} ({reason})")
    return found


def words_of(path: str) -> list[str]:
    """The words of the leaf's own name.

    >>> words_of("order.createdAt")
    ['created', 'at']
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", path.rpartition(".")[2])
    return re.findall(r"[a-z]+", name.lower())


def _words(path: str) -> set[str]:
    """The last two, which say what it is."""
    return set(words_of(path)[-2:])


def is_missing(value: Any) -> bool:
    """Whether a value of a record is none, or a blank text, or a word for a missing value."""
    return value is None or (isinstance(value, str) and value.strip().lower() in MISSING)


def _is_timestamp(x: np.ndarray, words: set[str]) -> bool:
    rising = len(x) >= _ENOUGH and float(np.mean(np.diff(x) >= 0)) >= 0.9 and x[-1] > x[0]
    named = bool(words & _TIME_WORDS)
    is_epoch = any(_YEAR_2000 * unit <= x.min() and x.max() <= _YEAR_2100 * unit for unit in (1, 1e3, 1e6, 1e9))
    is_epoch = is_epoch or all(value > 1e11 and digits_of_time(value) is not None for value in x.tolist())
    # A memory gauge of 2 GB is as large as an epoch, but has another name and does not only rise. A latency may be
    # called a time, but does not only rise either.
    return (is_epoch and (named or rising)) or (named and rising and bool((np.diff(x) >= 0).all()))


def _is_counter(x: np.ndarray, words: set[str]) -> bool:
    steps = np.diff(x)
    in_order = len(x) >= _ENOUGH and bool((steps > 0).all() or (steps < 0).all())
    # When partitions are read one after the other, a counter falls back where the next partition begins.
    mostly = len(x) >= _ENOUGH and max(float(np.mean(steps > 0)), float(np.mean(steps < 0))) >= 0.9
    if mostly and words & _COUNT_WORDS and (x == np.round(x)).all():
        return True
    # A sensor may rise for a long time, but noise and rounding make its steps unequal. Records of several
    # partitions may alternate, so a long sample need not be in order.
    if not in_order and len(x) < 5 * _ENOUGH:
        return False
    ordered = np.sort(x)
    size = np.abs(ordered)
    # Rounding errors grow with the values on both sides of a step; one 1e308 must not make all other steps look equal.
    tolerance = 4 * np.finfo(np.float64).eps * np.maximum(np.maximum(size[1:], size[:-1]), np.median(size))
    steps = np.diff(ordered)
    if in_order:  # in decimals, equal steps are rounded; where rounding is much of a step, they may as well be unequal
        unit = next((10.0**-n for n in range(1, 9) if np.allclose(x * 10.0**n, np.round(x * 10.0**n), 0, 1e-3)), 0.0)
        tolerance = tolerance + (1.5 * unit if unit <= _ROUNDED * np.median(steps) else 0.0)
    same = np.abs(steps - np.median(steps)) <= tolerance
    return bool((steps > 0).all()) and float(same.mean()) >= 0.9


def only_grows(path: str, values: Sequence[Any], series: Sequence[Hashable]) -> bool:
    """Whether numbers are totals of a counter: they grow in their series, and fall only where it begins again.

    Very few may fall by no more than what they usually grow by: rounding does it.
    """
    x = numbers(values)
    numbered: dict[Hashable, int] = {}
    of_series = np.array([numbered.setdefault(one, len(numbered)) for one in series])
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
    again = (after < before) & (after >= 0.0) & (after < _RESET * before)
    fallen = before / 2.0 - after / 2.0  # in halves, as differences of extreme values may be too large
    dips = (fallen > 0.0) & ~again
    if dips.any() and (dips.sum() > max(_FEW_DIPS * grown, 1) or fallen[dips].max() > np.median(-fallen[fallen < 0.0])):
        return False
    if again.sum() > _FEW_RESETS * grown or x.min() < 0.0:
        return False
    if _words(path) & _TOTAL_WORDS:
        return grown >= _GROWN_BY_NAME
    if grown < _GROWN:
        return False
    steps = after - before
    rough = np.abs(np.diff(steps)).mean() >= _ROUGH * np.abs(steps).mean()  # a sensor that rises slowly is smooth
    return bool(rough or grown >= _GROWN_SMOOTHLY)


def _is_identifier(x: np.ndarray, words: set[str]) -> bool:
    if len(x) < 3 or not (x == np.round(x)).all():
        return False
    distinct = len(np.unique(x)) / len(x)
    # No instrument measures 16 digits, so such integers are random or composed keys, whatever their name.
    return (distinct >= 0.5 and bool(words & _ID_WORDS)) or (
        distinct >= 0.99 and len(x) >= _ENOUGH and float(np.median(np.abs(x))) >= 2.0**53
    )


# --- features of a file ----------------------------------------------------------------------------------------


class RecordSettings(Protocol):
    """The settings that say which fields are features."""

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
    return taken(settings.model, replace(schema, marks=settings.marks))


def taken(model: str, schema: Schema) -> Schema:
    """The part of a schema that a model takes. Raises CheckpointError for a model that is not there."""
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
    """The schema of `settings.features`, or else the one inferred from `records`, which is noted, with the fields that
    are left out, and why.

    format: of the input. roles: fields that are never inferred as features, each with KEY, TIME or LABEL. offers_time:
    whether --time can name a time that is left out. Raises SchemaError if there are no records or no features, and
    ConfigError if records lack a field that is named, or have only text in a feature; the first records may lack
    labels.
    """
    if not records:
        raise SchemaError(f"no line of {source} is a record", FORMS)
    left_out: Mapping[str, str] = {}
    if settings.features is not None:
        schema = named_schema(settings)
    else:
        schema, left_out = infer_of_file(settings, format, records, source, roles)
    absent = np.array(schema.features)[np.isnan(schema.rows(records)).all(axis=0)].tolist()
    for name, kind in inputs_without_value(derivations_of(settings.derive), records):
        raise _absent(name, kind, records, source)
    fields = {path for record in records for path, value in leaves_of(record) if value is not None}
    lacking = [name for name, role in roles.items() if role != LABEL and name not in fields]
    # a name that is excluded may be that of an object
    others = [
        name for name in lacking if roles[name] != EXCLUDED or not any(one.startswith(f"{name}.") for one in fields)
    ]
    for name in (*(name for name in absent if name not in settings.derive), *others):
        is_number = name in absent and name not in schema.categorical
        raise _absent(name, "number" if is_number else "value", records, source)
    clock = ZoneInfo(settings.timezone)
    if settings.time is not None:
        for text in check_times(settings.time, [look_up(record, settings.time) for record in records], clock):
            note(text)
    for path in [path for path, why in left_out.items() if why == A_TIME]:
        times = [to_milliseconds(look_up(record, path), clock) for record in records]
        for text in backward(path, [time for time in times if time is not None]):
            note(text)
    if settings.features is None:
        note(features_note(schema, left_out, offers_time))
        if settings.key is None and "text" in left_out.values():
            note(TEXT_HINT)
    for text in input_notes(schema, records):
        note(text)
    return schema, left_out


def roles_of(settings: RecordSettings, label: str | None = None) -> dict[str, str]:
    """The fields that have another role than to be a feature, with this role. label: field of the label, if any."""
    others = ((settings.key, KEY), (settings.time, TIME), (label, LABEL))
    return dict.fromkeys(settings.exclude, EXCLUDED) | {field: role for field, role in others if field is not None}


def infer_of_file(
    settings: RecordSettings, format: str, records: Sequence[Mapping[str, Any]], source: str, roles: Mapping[str, str]
) -> tuple[Schema, dict[str, str]]:
    """`infer_schema` of records of a file, without the columns of an earlier result."""
    earlier = set() if format != "csv" else set(csv_columns(settings.result_field))
    own = [{name: v for name, v in record.items() if name not in earlier} for record in records]
    series = None if settings.key is None else [key_of(record, settings.key) for record in records]
    return infer_of(settings, own, roles, series, source)


def infer_of(
    settings: RecordSettings,
    records: Sequence[Mapping[str, Any]],
    roles: Mapping[str, str],
    series: Sequence[Hashable] | None,
    source: str = "",
) -> tuple[Schema, dict[str, str]]:
    given = settings.counters, series, settings.marks, settings.derive
    of_records = infer_schema(records, settings.result_field, settings.categorical, roles, source, *given)
    return taken(settings.model, of_records[0]), of_records[1]


def features_note(schema: Schema, left_out: Mapping[str, str], offers_time: bool = False) -> str:
    """The inferred features and the fields that are none, in one line. offers_time: see `choose_features`."""
    use = {path: f"; use --time {path}" for path, why in left_out.items() if offers_time and why == A_TIME}
    reasons = ", ".join(f"{path} ({why}{use.get(path, '')})" for path, why in list(left_out.items())[:NAMES_SHOWN])
    return f"features: {_listed(schema.features)}" + (f"; left out: {reasons}" if reasons else "")


def input_notes(schema: Schema, records: Sequence[Mapping[str, Any]], values: bool = True) -> Iterator[str]:
    """What the user may not expect of the features, as the first records have them: a line each.

    values: whether lines may show values of records: not in a log.
    """
    numeric = [name for name in schema.features if name not in schema.categorical]
    if schema.untaken:
        n = len(schema.features)
        part = f"of {n + len(schema.untaken):,} features a fixed random subset of {n:,} is scored"
        yield f"{part}, as the model takes no more; left out: {_listed(schema.untaken)}; --features names others"
    texts = [name for name in numeric if any(is_number_text(look_up(record, name)) for record in records)]
    if texts:
        yield f"{READ_AS_NUMBERS}: {_listed(texts)}"
    if schema.counters:
        yield f"{COUNTED}: {_listed(sorted(schema.counters))}; --counters none takes the totals"
    codes = schema.rows(records)
    known = {at for at, name in enumerate(schema.features) if name in schema.categorical | schema.counters}
    if found := misleading(schema.features, codes, known):
        yield (
            f"features that may mislead: {_listed(found)}; {MISLEADING}; leave them out (--exclude), or name totals in "
            "--counters, so that their growth is scored"
        )
    names = [schema.features[at] for at in schema.categorical_columns if is_mostly_rare(codes[:, at])]
    if names:
        yield f"{RARE_VALUES}: {_listed(names)}; leave them out, or make one the key of the series (of a file: --key)"
    for strange in sorted(map(str, schema.marks.keys() - {EVERY, *schema.features, *schema.untaken})):
        hint = did_you_mean(strange, schema.features)
        yield f"--missing-values can never apply to {strange[:60]}: there is no such feature{hint}"
    suspects = Suspects(schema.features, codes, schema.categorical_columns)
    if values:
        yield from suspects.notes("the first ")
    elif names := sorted({schema.features[at] for at, _ in suspects.found()}):
        yield f"numbers that may mean missing are in {_listed(names)}; replay names them, for --missing-values"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name[:60] for name in names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")


def _absent(name: str, kind: str, records: Sequence[Mapping[str, Any]], source: str) -> ConfigError | SchemaError:
    """The error for a named field without values: of the name, or of the data if the field is there, but empty."""
    where = f"in {_sample(len(records), source)}"
    fields = list(dict.fromkeys(path for record in records for path, _ in leaves_of(record)))
    if name not in fields:
        hint = did_you_mean(name, fields) or f"; the fields are {shown(fields, NAMES_SHOWN)}"
        if any("," in field and name in field for field in fields):
            hint += "; write a name that has a comma in quotes: '\"A, B\",C'"
        return ConfigError(f"there is no field {name[:60]} {where}{hint}")
    if not any(isinstance(look_up(record, name), str) for record in records):
        return SchemaError(f"there is no {kind} in {name[:60]} {where}")
    return ConfigError(f"{name[:60]} has text, and no {kind}, {where}", "if it is a category, name it as categorical")


def text_columns(settings: RecordSettings, key: str | None) -> set[str]:
    """Columns of a CSV file whose cells are text, even where they look like numbers, and those of an earlier result.

    key: field that names a series.
    """
    return {*settings.categorical, *({key or "", *csv_columns(settings.result_field)} - set(settings.features or ()))}


def key_of(record: Mapping[str, Any], field: str | None) -> str | None:
    """The series that a record belongs to; None if it has no such field."""
    value = None if field is None else look_up(record, field)
    return None if value is None else str(value)
