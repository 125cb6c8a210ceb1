"""`replay --suggest`: a configuration file from the data, with a comment at each line that says why it is there.

look at the records -> fields by their roles -> a replay with these -> how far its alerts are off -> rules
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from fomo_stream.limits import INFER_RECORDS
from fomo_stream.partition.incidents import begins_of
from fomo_stream.partition.rules import Rules
from fomo_stream.records.inference import (
    AUTO,
    infer_of,
    is_missing,
    key_of,
    leaves_of,
    roles_of,
    words_of,
)
from fomo_stream.records.schema import look_up
from fomo_stream.records.times import is_time, places_at, to_milliseconds
from fomo_stream.replaying.blocks import Block, Source
from fomo_stream.settings.config_file import config_lines
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.rules import Rule, zone
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import settings_of_group
from fomo_stream.wording import counted

LOOKED_AT = 100_000  # records, at most
SMALL = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)  # shares of a usual range that may not matter
RATES = (0.005, 0.002, 0.001)  # that are tried where rules are not enough
A_DAY = 10_000  # records, where there are no times
DAY_MS = 86_400_000
MOST_CATEGORIES, LEAST_OF_EACH = 50, 20  # values of a category, and records of each, on average
KEY_WORDS = {"id", "device", "machine", "sensor", "user", "host", "station", "pump", "unit", "customer", "account"} | {
    *("line", "asset", "serial", "key", "name", "node", "instance", "vehicle", "meter", "client")
}
LEAST_OF_KEY = 5  # records of a key, on average
AT_ONCE = 1.5  # records of one time, on average, whose texts may be keys
CYCLE = 0.5  # share of the variance that hours explain, so that it is worth to try them
SETTINGS = ("Records", "Alerts", "Detector")  # groups whose given values are kept


@dataclass
class Found:
    """What the records show: values of settings, and why."""

    values: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what may be worth to try

    def add(self, name: str, value: Any, why: str) -> None:
        """Suggest a setting."""
        self.values[name], self.why[name] = value, why


def look(settings: ReplaySettings, source: Source) -> Found:
    """The roles of the fields of a source, as far as the settings do not say them."""
    records, keys = _first(source)
    found, leaves = Found(), dict[str, list[Any]]()  # the known values of the fields
    for record in records:
        for path, value in leaves_of(record):
            if not is_missing(value):
                leaves.setdefault(path, []).append(value)
    taken = {*settings.exclude, *settings.categorical, settings.key, settings.time, settings.label}
    free = {path: values for path, values in leaves.items() if path not in (*taken, settings.result_field)}
    if source.kind != "topic":  # whose records have a time and a key
        times = leaves.get(settings.time, []) if settings.time is not None else _time(found, free)
        if settings.key is None:
            _key(found, free, len(records), times)
    _categories(found, settings, free)
    _features(found, settings, records, keys, free)
    _hours(found, settings, records)
    return found


def _first(source: Source) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """The first records of each partition, at most LOOKED_AT in all, and their series."""
    records, keys = list[Mapping[str, Any]](), list[Any]()
    share = max(INFER_RECORDS, LOOKED_AT // max(1, len(source.partitions)))
    for number in source.partitions:
        for sample in islice(source.read(number, lambda: False), share):
            if sample.error is None:
                records.append(sample.fields)
                keys.append((number, sample.key))
    return records, keys


def _time(found: Found, leaves: dict[str, list[Any]]) -> list[Any]:
    """The first field with times that never descend, or else the first with times; its values."""
    times = {path: values for path, values in leaves.items() if all(map(is_time, values[:INFER_RECORDS]))}
    ordered = [path for path, values in times.items() if _rises(values)]
    if chosen := next(iter(ordered or times), None):
        found.add("time", chosen, "the time of a record" + ("" if ordered else "; it is not in order"))
        return leaves.pop(chosen)
    return []


def _rises(values: Sequence[Any]) -> bool:  # in which zone does not matter
    stamps = [stamp for value in values[:LOOKED_AT] if (stamp := to_milliseconds(value)) is not None]
    return all(a <= b for a, b in pairwise(stamps))


def _key(found: Found, leaves: dict[str, list[Any]], n: int, times: Sequence[Any]) -> None:
    """The field that tells series apart: its values come again and again, and it is called so, or at each time each
    value comes once.

    times: (n,) of the records, empty if they have none.
    """
    counts = {}
    for path, values in leaves.items():
        is_name = all(isinstance(value, str) or type(value) is int for value in values[:INFER_RECORDS])
        if is_name and len(values) > n / 2 and (KEY_WORDS & set(words_of(path)) or _take_turns(values, times)):
            distinct = len(set(map(str, values)))
            if 2 <= distinct <= len(values) / LEAST_OF_KEY:
                counts[path] = distinct
    if counts:
        chosen = max(counts, key=lambda path: counts[path])
        found.add("key", chosen, f"{counts[chosen]:,} values, each of {n / counts[chosen]:,.0f} records: a series each")
        leaves.pop(chosen)


def _take_turns(values: Sequence[Any], times: Sequence[Any]) -> bool:
    """Whether several of these texts come at the same time, again and again, and none of them twice."""
    pairs = list(zip(times, values, strict=True)) if len(times) == len(values) else []
    at_once = len(pairs) / max(1, len({time for time, _ in pairs}))
    return at_once >= AT_ONCE and isinstance(values[0], str) and len(set(pairs)) == len(pairs)


def _categories(found: Found, settings: ReplaySettings, leaves: dict[str, list[Any]]) -> None:
    """Texts with few values, each of many records."""
    names = []
    for path, values in sorted(leaves.items()):
        if not all(isinstance(value, str) for value in values) or all(map(is_time, values[:INFER_RECORDS])):
            continue
        distinct = len(set(values))
        if 2 <= distinct <= min(MOST_CATEGORIES, len(values) / LEAST_OF_EACH):
            names.append((path, distinct))
    if names and not settings.categorical:
        why = ", ".join(f"{path} has {distinct} values" for path, distinct in names)
        found.add(
            "categorical",
            tuple(path for path, _ in names),
            f"{why}: as categories, a rare value or a rare pair of values is odd",
        )


def _features(
    found: Found,
    settings: ReplaySettings,
    records: Sequence[Mapping[str, Any]],
    keys: Sequence[Any],
    leaves: Mapping[str, list[Any]],
) -> None:
    """Counters among the features, and features that say nothing."""
    if settings.features is not None:
        return
    now = with_found(settings, found)
    roles = roles_of(now, settings.label)
    series = keys if now.key is None else [key_of(record, now.key) for record in records]
    schema, left_out = infer_of(now, records, roles, series)
    first, _ = infer_of(now, records[:INFER_RECORDS], roles, series[:INFER_RECORDS])
    if schema.counters and settings.counters == AUTO:
        found.add("counters", tuple(sorted(schema.counters)), "they only grow: their growth a record is scored")
    wrong = {path: left_out[path] for path in first.features if path in left_out}
    for path in schema.features:
        values = leaves.get(path, [])
        if path not in now.categorical and len(values) > INFER_RECORDS and len(set(map(str, values))) == 1:
            wrong[path] = f"always {str(values[0])[:30]}"
    wrong = {path: why for path, why in wrong.items() if path not in schema.counters}
    if wrong and len(wrong) < len(schema.features):
        names = tuple(dict.fromkeys((*settings.exclude, *sorted(wrong))))
        found.add("exclude", names, ", ".join(f"{path} is {why}" for path, why in sorted(wrong.items())))


def _hours(found: Found, settings: ReplaySettings, records: Sequence[Mapping[str, Any]]) -> None:
    """Say of which features the hours of other days explain more than half."""
    now = with_found(settings, found)
    if now.time is None or now.time_features:
        return
    place = zone(now.timezone)
    stamps = [to_milliseconds(look_up(record, now.time), place) for record in records]
    hours = np.array([places_at(stamp, ("hour",), place)[0] for stamp in stamps])
    days = np.array([-1 if stamp is None else stamp // DAY_MS for stamp in stamps])
    if np.isnan(hours).any() or len(set(days.tolist())) < 4:
        return
    bins, odd = hours.astype(np.int64), days % 2 == 1
    names = []
    schema, _ = infer_of(now, records[:INFER_RECORDS], roles_of(now, now.label), None)
    for name, column in zip(schema.features, schema.rows(records).T, strict=True):
        if name in schema.categorical or name in now.counter_names:
            continue
        known = ~np.isnan(column)
        one, other = (known & half for half in (odd, ~odd))
        count = np.bincount(bins[one], minlength=24)
        if not other.any() or (count[np.unique(bins[other])] == 0).any():
            continue
        means = np.bincount(bins[one], column[one], 24) / np.maximum(count, 1)
        rest, around = column[other] - means[bins[other]], column[other] - column[one].mean()
        if (total := float((around**2).sum())) > 0.0 and 1.0 - float((rest**2).sum()) / total >= CYCLE:
            names.append(name)
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        found.notes.append(
            f"the hour of the day explains more than half of {shown}; to compare values with what is "
            "usual at their time, replay with the next line, too, and compare the alerts"
        )


def with_found(settings: ReplaySettings, found: Found) -> ReplaySettings:
    """The settings with what was found."""
    return settings.model_copy(update=found.values)


class Alert(NamedTuple):
    """An alert of a replay, and its reasons."""

    place: int  # among the records of its partition
    key: Any
    result: dict[str, Any]


class Alerts:
    """The alerts of one partition, and what tells which of them belong together: whole series, not keys."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.series, self.begins = array("q"), array("b")  # (n,) of all records, as `Results` has them

    def add(self, block: Block) -> None:
        """Take those of the next block."""
        for at in np.flatnonzero(block.results.outlier).tolist():
            slim = {name: block.outputs[at].get(name) for name in ("reasons", "severity")}
            self.alerts.append(Alert(len(self.series) + at, block.keys[at] if block.keys else None, slim))
        self.series.extend(block.results.series.tolist())
        self.begins.extend(block.results.begins.tolist())

    def incidents(self, rules: Rules, quiet: tuple[int, int]) -> int:
        """How many incidents are left with these rules; quiet: as of `Groups`."""
        is_alert = np.zeros(len(self.series), bool)
        is_alert[[one.place for one in self.alerts if rules.suppressing(one.result, one.key) is None]] = True
        return int(begins_of(np.array(self.series), np.array(self.begins, bool), is_alert, quiet).sum())


def usual_ranges(alerts: Iterable[Alert]) -> dict[str, float]:
    """The usual range of each feature, as reasons of alerts say it."""
    found: dict[str, list[float]] = {}
    for alert in alerts:
        for reason in alert.result["reasons"] or ():
            if reason.get("cause") == "value" and reason.get("range") is not None:
                found.setdefault(reason["feature"], []).append(reason["range"][1] - reason["range"][0])
    return {name: median(widths) for name, widths in sorted(found.items()) if median(widths) > 0.0}


@dataclass(frozen=True)
class Advice:
    """Rules for the alerts of a replay, and what they do."""

    rate: float
    share: float  # of the usual range of a feature, that does not matter; 0: no rules
    rules: tuple[Rule, ...]
    before: float  # incidents a day without them
    after: float


def advise(parts: Sequence[Alerts], rate: float, most: float, quiet: tuple[int, int], days: float) -> Advice:
    """The least share of the usual ranges that has to be ignored, so that at most so many incidents a day are left.

    parts: of each partition; days: how long the records take.
    """

    def a_day(rules: Sequence[Rule]) -> float:
        return sum(part.incidents(Rules(rules), quiet) for part in parts) / days

    ranges = usual_ranges(alert for part in parts for alert in part.alerts)
    best = Advice(rate, 0.0, (), *[a_day(())] * 2)
    for share in SMALL:
        if best.after <= most:
            break
        rules = tuple(_small_moves(name, share * width) for name, width in ranges.items())
        best = Advice(rate, share, rules, best.before, a_day(rules))
    return best


def days_of(source: Mapping[str, Any]) -> float:
    """How long the records of a report take, from its source; 1 at least."""
    ms = (source["to_ms"] or 0) - (source["from_ms"] or 0)
    return float(max(1.0, ms / DAY_MS if ms > 0 else (source["scored"] + source["warming_up"]) / A_DAY))


def _small_moves(feature: str, amount: float) -> Rule:
    rounded = f"{float(f'{amount:.2g}'):.12f}".rstrip("0").rstrip(".")
    return Rule(name=f"small moves of {feature}"[:100], features=(_pattern(feature),), ignore=rounded)


def _pattern(name: str) -> str:
    """A pattern that only this name matches."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def configuration(settings: ReplaySettings, found: Found, advice: Advice, source: str, records: int) -> str:
    """The file, as YAML."""
    lines = [
        f"# Suggested on {datetime.now(UTC):%Y-%m-%d} from {counted(records, 'record')} of {source}.",
        "# It serves run, score and replay: --config FILE. Read each line; the comment above it says why it is there.",
        "",
    ]
    for name, value in _given(settings, found).items():
        lines += ["# as it was given", *_setting(name, value), ""]
    for name, value in found.values.items():
        lines += [*_comment(found.why[name]), *_setting(name, value), ""]
    for note in found.notes:
        lines += [*_comment(note), "# time-features: hour,weekday", ""]
    rate = f"{advice.before:.1f} incidents a day at this rate"
    rate += f", {advice.after:.1f} with the rules below" if advice.rules else ""
    lines += [*_comment(rate), *_setting("alert_rate", advice.rate), ""]
    if settings.maintenance:
        lines += [
            "# as they were given",
            *config_lines({"maintenance": [one.plain() for one in settings.maintenance]}),
            "",
        ]
    if settings.rules or advice.rules:
        tables: list[Any] = [_dashed(one.plain()) for one in (*settings.rules, *advice.rules)]
        if advice.rules:
            lines += _comment(
                f"Deviations of at most {advice.share:.0%} of the usual range of a feature give no alert. The score "
                "stays as it is. Change the amounts to what matters to you, in the unit of the feature"
            )
        lines += [*config_lines({"rules": tables}), ""]
    return "\n".join(lines)


def _given(settings: ReplaySettings, found: Found) -> dict[str, Any]:
    """The settings that are given and that the file keeps."""
    names = settings_of_group(ServiceSettings, *SETTINGS)
    others = (*found.values, "alert_rate", "rules", "maintenance")
    kept = [name for name in names if settings.is_given(name) and name not in others]
    return {name: getattr(settings, name) for name in kept}


def _setting(name: str, value: Any) -> list[str]:
    plain = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return config_lines({name.strip("_").replace("_", "-"): plain})


def _dashed(table: Mapping[str, Any]) -> dict[str, Any]:
    found = {name.replace("_", "-"): value for name, value in table.items()}
    return {name: ", ".join(one) if name in ("features", "keys") else one for name, one in found.items()}


def _comment(text: str) -> Iterator[str]:
    """Words in lines of a comment."""
    line = "#"
    for word in text.split():
        if len(line) + len(word) > 110:
            yield line
            line = "#"
        line += f" {word}"
    yield line
