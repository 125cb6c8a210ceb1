"""`replay --suggest`: makes a configuration file from the data, with the reason for each line as a comment.

Steps: sample the records; suggest the roles of fields; replay once with these; compare the number of incidents with the
requested one; suggest rules, and what to try next: the feature behind most incidents first, a lower alert rate last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from datetime import time as clock
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.limits import INFER_RECORDS
from fomo_stream.partition.rules import Rules
from fomo_stream.records.explanation import name_text
from fomo_stream.records.inference import (
    AUTO_COUNTERS,
    infer_from_records,
    key_of,
    roles_of,
)
from fomo_stream.records.roles import find_key, find_time, known_values
from fomo_stream.records.schema import look_up, number_of
from fomo_stream.records.times import is_time, places_at, to_milliseconds
from fomo_stream.replaying.blocks import Block, Source
from fomo_stream.replaying.measures.incident_metrics import incidents_of
from fomo_stream.replaying.measures.segments import NOT_DETECTED, segments
from fomo_stream.settings.config_file import config_lines
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.rule_spec import Rule, zone
from fomo_stream.settings.sources import command_line, settings_of_group
from fomo_stream.settings.topic_flags import InputFlags
from fomo_stream.wording import counted

MAX_SAMPLE_RECORDS = 100_000  # that the roles of fields are suggested from
RANGE_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)  # shares of a usual range that rules may ignore
LOWER_RATES = (0.005, 0.002, 0.001)  # alert rates that are proposed if nothing else is enough
MIN_ALERTS_AT_RATE = 4  # that a lower rate allows in the records: else it would switch alerts off
MIN_SAME_INCIDENTS = 3  # incidents of a named feature; days on which they begin in the same hour
MIN_RISING_SHARE = 0.95  # share of the changes of a feature that nearly always grows
KEPT_FIELDS = ("reasons", "severity", "score", "p_value", "incident")  # of the results of alerts
RECORDS_PER_DAY = 10_000  # assumed for records without times
DAY_MS = 86_400_000
MAX_CATEGORY_VALUES, MIN_RECORDS_PER_VALUE = 50, 20  # values of a category, and records of each, on average
MIN_EXPLAINED_SHARE = 0.5  # of the variance that hours explain, to suggest time features
KEPT_GROUPS = ("Records", "Alerts", "Detector")  # groups whose given values are kept


@dataclass
class Suggestions:
    """Values of settings that the records suggest, and the reasons."""

    values: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what may be worth to try
    rising: set[str] = field(default_factory=set)  # features that nearly always grow

    def add(self, name: str, value: Any, why: str) -> None:
        """Suggest a value for a setting."""
        self.values[name], self.why[name] = value, why


def suggest_roles(settings: ReplaySettings, source: Source) -> Suggestions:
    """Suggest roles for the fields of a source that the settings say nothing about."""
    records, keys = _first_samples(source)
    suggestions, leaves = Suggestions(), known_values(records)
    used = {*settings.exclude, *settings.categorical, settings.key, settings.time, settings.label}
    free = {path: values for path, values in leaves.items() if path not in (*used, settings.result_field)}
    if source.kind != "topic":  # records of a topic have a time and a key
        times = leaves.get(settings.time, []) if settings.time is not None else _suggest_time(suggestions, free)
        if settings.key is None:
            _suggest_key(suggestions, free, len(records), times)
    _suggest_categories(suggestions, settings, free)
    _suggest_features(suggestions, settings, records, keys, free)
    _note_hours(suggestions, settings, records)
    return suggestions


def _first_samples(source: Source) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """Return the first records of each partition, about MAX_SAMPLE_RECORDS in all, and their series."""
    records, keys = list[Mapping[str, Any]](), list[Any]()
    share = max(INFER_RECORDS, MAX_SAMPLE_RECORDS // max(1, len(source.partitions)))
    for number in source.partitions:
        for sample in islice(source.read(number, lambda: False), share):
            if sample.error is None:
                records.append(sample.fields)
                keys.append((number, sample.key))
    return records, keys


def _suggest_time(suggestions: Suggestions, leaves: dict[str, list[Any]]) -> list[Any]:
    """Suggest the field with the times of records; return its values."""
    if (found := find_time(leaves)) is None:
        return []
    path, is_ordered = found
    suggestions.add("time", path, "the time of a record" + ("" if is_ordered else "; it is not in order"))
    return leaves.pop(path)


def _suggest_key(suggestions: Suggestions, leaves: dict[str, list[Any]], n: int, times: Sequence[Any]) -> None:
    """Suggest the field that distinguishes series. times: (n,) of the records, empty if they have none."""
    if (found := find_key(leaves, n, times)) is not None:
        path, n_values = found
        suggestions.add("key", path, f"{n_values:,} values, each of {n / n_values:,.0f} records: a series each")
        leaves.pop(path)


def _suggest_categories(suggestions: Suggestions, settings: ReplaySettings, leaves: dict[str, list[Any]]) -> None:
    """Suggest fields with text that has few values, each in many records."""
    names = []
    for path, values in sorted(leaves.items()):
        if not all(isinstance(value, str) for value in values) or all(map(is_time, values[:INFER_RECORDS])):
            continue
        distinct = len(set(values))
        if 2 <= distinct <= min(MAX_CATEGORY_VALUES, len(values) / MIN_RECORDS_PER_VALUE):
            names.append((path, distinct))
    if names and not settings.categorical:
        why = ", ".join(f"{path} has {distinct} values" for path, distinct in names)
        suggestions.add(
            "categorical",
            tuple(path for path, _ in names),
            f"{why}: as categories, a rare value or a rare pair of values is odd",
        )


def _suggest_features(
    suggestions: Suggestions,
    settings: ReplaySettings,
    records: Sequence[Mapping[str, Any]],
    keys: Sequence[Any],
    leaves: Mapping[str, list[Any]],
) -> None:
    """Suggest counters among the features, and features to exclude because they say nothing."""
    if settings.features is not None:
        return
    with_roles = with_found(settings, suggestions)
    roles = roles_of(with_roles, settings.label)
    series = keys if with_roles.key is None else [key_of(record, with_roles.key) for record in records]
    schema, left_out = infer_from_records(with_roles, records, roles, series)
    suggestions.rising = {name for name in schema.features if _nearly_always_rises(records, series, name)}
    first, _ = infer_from_records(with_roles, records[:INFER_RECORDS], roles, series[:INFER_RECORDS])
    if schema.counters and settings.counters == AUTO_COUNTERS:
        suggestions.add("counters", tuple(sorted(schema.counters)), "they only grow: their growth a record is scored")
    excluded = {path: left_out[path] for path in first.features if path in left_out}
    for path in schema.features:
        values = leaves.get(path, [])
        if path not in with_roles.categorical and len(values) > INFER_RECORDS and len(set(map(str, values))) == 1:
            excluded[path] = f"always {str(values[0])[:30]}"
    excluded = {path: why for path, why in excluded.items() if path not in schema.counters}
    if excluded and len(excluded) < len(schema.features):
        names = tuple(dict.fromkeys((*settings.exclude, *sorted(excluded))))
        suggestions.add("exclude", names, ", ".join(f"{path} is {why}" for path, why in sorted(excluded.items())))


def _nearly_always_rises(records: Sequence[Mapping[str, Any]], series: Sequence[Any], path: str) -> bool:
    """Return whether a feature nearly always grows in its series."""
    last, steps = dict[Any, float](), Counter[bool]()
    for record, key in zip(records, series, strict=True):
        if (value := number_of(look_up(record, path))) == value:
            if (before := last.get(key, value)) != value:
                steps[value > before] += 1
            last[key] = value
    return steps[True] >= MIN_RISING_SHARE * max(steps.total(), INFER_RECORDS / 2)


def _note_hours(suggestions: Suggestions, settings: ReplaySettings, records: Sequence[Mapping[str, Any]]) -> None:
    """Note the features whose variance is explained to more than half by the hours of other days."""
    with_roles = with_found(settings, suggestions)
    if with_roles.time is None or with_roles.time_features:
        return
    timezone = zone(with_roles.timezone)
    stamps = [to_milliseconds(look_up(record, with_roles.time), timezone) for record in records]
    hours = np.array([places_at(stamp, ("hour",), timezone)[0] for stamp in stamps])
    days = np.array([-1 if stamp is None else stamp // DAY_MS for stamp in stamps])
    if np.isnan(hours).any() or len(set(days.tolist())) < 4:
        return
    bins, odd = hours.astype(np.int64), days % 2 == 1
    names = []
    schema, _ = infer_from_records(with_roles, records[:INFER_RECORDS], roles_of(with_roles, with_roles.label), None)
    for name, column in zip(schema.features, schema.rows(records).T, strict=True):
        if name in schema.categorical or name in with_roles.counter_names:
            continue
        is_known = ~np.isnan(column)
        first, other = (is_known & half for half in (odd, ~odd))
        count = np.bincount(bins[first], minlength=24)
        if not other.any() or (count[np.unique(bins[other])] == 0).any():
            continue
        means = np.bincount(bins[first], column[first], 24) / np.maximum(count, 1)
        rest, around = column[other] - means[bins[other]], column[other] - column[first].mean()
        if (total := float((around**2).sum())) > 0.0 and 1.0 - float((rest**2).sum()) / total >= MIN_EXPLAINED_SHARE:
            names.append(name)
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        suggestions.notes.append(
            f"the hour of the day explains more than half of {shown}; to compare values with what is "
            "usual at their time, replay with the next line, too, and compare the alerts"
        )


def with_found(settings: ReplaySettings, suggestions: Suggestions) -> ReplaySettings:
    """Return the settings with the suggested values."""
    return settings.model_copy(update=suggestions.values)


class Alert(NamedTuple):
    """An alert of a replay, with the needed fields of its result."""

    place: int  # position among the records of its partition
    key: Any
    result: dict[str, Any]


def alerts_in(block: Block, before: int) -> list[Alert]:
    """Return the alerts of a block of a partition. before: number of its records before the block."""
    places = np.flatnonzero(block.results.outlier).tolist()
    slim = ({name: block.outputs[i].get(name) for name in KEPT_FIELDS} for i in places)
    keys = [block.keys[i] if block.keys else None for i in places]
    return [Alert(before + i, key, result) for i, key, result in zip(places, keys, slim, strict=True)]


@dataclass(frozen=True)
class PartitionAlerts:
    """The records (n,) of a partition, as `MeasureSpec.row`, and their alerts."""

    rows: NDArray[Any]
    alerts: Sequence[Alert]

    def count(self, quiet: tuple[int, int], is_kept: Callable[[Alert], bool] = lambda _: True) -> Counter[str]:
        """Count the incidents, and the labelled faults that are found, if only some alerts are kept."""
        rows = self.rows.copy()
        is_alert = rows["alert"][:, 0]
        is_alert[:] = False
        is_alert[[alert.place for alert in self.alerts if is_kept(alert)]] = True
        is_found = segments(0, rows).delay_records[:, 0] != NOT_DETECTED
        return Counter(incidents=len(incidents_of(rows, is_alert, quiet)[0]), faults=int(is_found.sum()))

    def blamed(self, quiet: tuple[int, int], only_false: bool) -> Iterator[tuple[str, int]]:
        """Yield the first reason of the highest alert, and the begin, of each incident or of each false one."""
        by_incident: dict[str, list[Alert]] = {}
        for alert in self.alerts:
            by_incident.setdefault(alert.result["incident"], []).append(alert)
        begins, _, false = incidents_of(self.rows, self.rows["alert"][:, 0], quiet)
        counted = set((false if only_false else begins).tolist())
        for alerts in by_incident.values():
            highest = max(alerts, key=lambda alert: alert.result["score"] or 0.0)
            if alerts[0].place in counted and highest.result["reasons"]:
                yield highest.result["reasons"][0]["feature"], int(self.rows["time"][alerts[0].place])


def usual_ranges(alerts: Iterable[Alert]) -> dict[str, float]:
    """Return the width of the usual range of each feature, from the reasons of alerts."""
    widths_of: dict[str, list[float]] = {}
    for alert in alerts:
        for reason in alert.result["reasons"] or ():
            if reason.get("cause") == "value" and reason.get("range") is not None:
                widths_of.setdefault(reason["feature"], []).append(reason["range"][1] - reason["range"][0])
    return {name: median(widths) for name, widths in sorted(widths_of.items()) if median(widths) > 0.0}


@dataclass(frozen=True)
class Advice:
    """Changes that would leave fewer incidents; the counts are of incidents, and of found faults."""

    days: float
    before: Counter[str]
    rules: tuple[Rule, ...] = ()
    share: float = 0.0  # of the usual range of a feature, that the rules ignore; 0: no rules
    after: Counter[str] = field(default_factory=Counter)  # with the rules
    blamed: Sequence[tuple[str, int]] = ()  # see `PartitionAlerts.blamed`: those of the most frequent feature
    of: int = 0  # the number of all of them
    lower: tuple[float, Counter[str]] | None = None  # a lower rate, and the counts that it leaves

    @property
    def a_day(self) -> float:
        """Incidents a day that are left."""
        return self.after["incidents"] / self.days


def advise(parts: Sequence[PartitionAlerts], settings: ReplaySettings, days: float, has_labels: bool = False) -> Advice:
    """Find changes that leave at most `settings.incidents_per_day`.

    The smallest rules that do so without losing a labelled fault are taken. If no rules do, or if one feature causes
    most incidents (with labels: most false ones), the feature is named. If too many are left, the highest of
    LOWER_RATES that is low enough is taken. days: duration of the records.
    """
    limit, quiet = settings.incidents_per_day * days, settings.quiet

    def count(is_kept: Callable[[Alert], bool] = lambda _: True) -> Counter[str]:
        return sum((part.count(quiet, is_kept) for part in parts), Counter())

    before = count()
    advice = Advice(days, before, after=before)
    ranges = usual_ranges(alert for part in parts for alert in part.alerts)
    for share in RANGE_SHARES if before["incidents"] > limit else ():
        rules = tuple(_rule_for_small_moves(name, share * width) for name, width in ranges.items())
        after = count(_passes_rules(Rules(rules)))
        if after["faults"] < before["faults"]:
            break
        if after["incidents"] <= limit:
            advice = replace(advice, rules=rules, share=share, after=after)
            break
    reasons = [reason for part in parts for reason in part.blamed(quiet, has_labels)]
    top = Counter(feature for feature, _ in reasons).most_common(1)
    feature, n = top[0] if top else ("", 0)
    if n >= MIN_SAME_INCIDENTS and (advice.a_day > settings.incidents_per_day or n > len(reasons) / 2):
        blamed = [reason for reason in reasons if reason[0] == feature]
        advice = replace(advice, blamed=blamed, of=len(reasons))
    longest = max((len(part.rows) for part in parts), default=0)
    for rate in LOWER_RATES if advice.a_day > settings.incidents_per_day else ():
        if rate < settings.alert_rate and rate * longest >= MIN_ALERTS_AT_RATE:
            after = count(_is_rare_at(rate))
            if not 0 < after["incidents"] < advice.after["incidents"]:
                continue
            advice = replace(advice, lower=(rate, after))
            if after["incidents"] <= limit:
                break
    return advice


def _passes_rules(rules: Rules) -> Callable[[Alert], bool]:
    return lambda alert: rules.suppressing(alert.result, alert.key) is None


def _is_rare_at(rate: float) -> Callable[[Alert], bool]:
    # None: a valid range gave the alert before there were scores
    return lambda alert: (p_value := alert.result["p_value"]) is None or p_value <= rate


def days_of(source: Mapping[str, Any]) -> float:
    """Return the duration of the records of a report, in days, from its source; at least 1."""
    ms = (source["to_ms"] or 0) - (source["from_ms"] or 0)
    return float(max(1.0, ms / DAY_MS if ms > 0 else (source["scored"] + source["warming_up"]) / RECORDS_PER_DAY))


def proposals(settings: ReplaySettings, suggestions: Suggestions, advice: Advice, has_labels: bool) -> list[str]:
    """Return lines about what to try next: the feature behind most incidents first, a lower rate last.

    Lines that begin with two blanks are commands, with all flags of this one, or lines for the configuration file.
    """
    lines = []
    if advice.a_day > settings.incidents_per_day:
        lines.append(f"{advice.a_day:.1f} incidents a day are left, and {settings.incidents_per_day:g} were asked for.")
    if advice.blamed:
        feature, n = name_text(advice.blamed[0][0]), len(advice.blamed)
        kind = "incidents without a labelled fault" if has_labels else "incidents"
        lines.append(f"Of {advice.of:,} {kind}, {n:,} are about {feature} first.")
        lines += _remedies(settings, suggestions, advice.blamed)
    if advice.lower is not None:
        rate, counts = advice.lower
        before = advice.before
        faults = f", {counts['faults']:,} of {before['faults']:,} labelled faults are found"
        lines += [
            f"A lower rate comes last, as it also loses faults: at {rate:g} about {counts['incidents']:,} of "
            f"{before['incidents']:,} incidents are left{faults if has_labels else ''}, and no alert is in the first "
            f"{round(1 / rate):,} records.",
            f"  {command_line(settings, 'replay', alert_rate=rate)}",
        ]
    return lines


def _remedies(settings: ReplaySettings, suggestions: Suggestions, blamed: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield lines about what can be done about a feature with these incidents."""
    feature, final = blamed[0][0], with_found(settings, suggestions)
    if (window := _same_hour(final, [time for _, time in blamed])) is not None:
        begin, end = (window[name][11:] for name in ("from", "to"))
        yield f"Most of these begin from {begin} to {end} ({final.timezone}). If work is done then, add to the file:"
        yield from (f"  {line}" for line in config_lines({"maintenance": [window]}))
    if feature in suggestions.rising and feature not in final.counter_names:
        yield "It nearly always grows: if it is a counter, and falls by a new start or by rounding,"
        yield f"  {command_line(settings, 'replay', counters=(*final.counter_names, feature))}"
    yield "If it may be left out, with the faults that only it shows:"
    if settings.features is None:
        yield f"  {command_line(settings, 'replay', exclude=(*settings.exclude, feature))}"
    else:
        kept = tuple(name for name in settings.features if name != feature)
        yield f"  {command_line(settings, 'replay', features=kept)}"


def _same_hour(settings: ReplaySettings, times: Sequence[int]) -> dict[str, str] | None:
    """Return a daily window of maintenance for the hour that has most of these times; None without such an hour."""
    if settings.file is not None and settings.time is None:
        return None  # records of a topic have a time
    local = sorted(datetime.fromtimestamp(time / 1000, zone(settings.timezone)) for time in times)
    hour, n = Counter(time.hour for time in local).most_common(1)[0]
    days = {time.date() for time in local if time.hour == hour}
    if n <= len(local) / 2 or len(days) < MIN_SAME_INCIDENTS:
        return None
    begin = datetime.combine(min(days), clock(hour))
    name, end = f"every day at {hour}", begin + timedelta(hours=1)
    window = {"name": name, "from": f"{begin:%Y-%m-%dT%H:%M}", "to": f"{end:%Y-%m-%dT%H:%M}"}
    return window | {"timezone": settings.timezone, "repeat": "FREQ=DAILY"}


def _rule_for_small_moves(feature: str, amount: float) -> Rule:
    rounded = f"{float(f'{amount:.2g}'):.12f}".rstrip("0").rstrip(".")
    pattern = re.sub(r"([*?\[])", r"[\1]", feature)  # that only this feature matches
    return Rule(name=f"small moves of {feature}"[:100], features=(pattern,), ignore=rounded)


def configuration(
    settings: ReplaySettings,
    suggestions: Suggestions,
    advice: Advice,
    next_lines: Sequence[str],
    source: str,
    records: int,
) -> str:
    """Return the configuration file, as YAML. next_lines: see `proposals`."""
    lines = [
        f"# Suggested on {datetime.now(UTC):%Y-%m-%d} from {counted(records, 'record')} of {source}.",
        "# It serves run, score and replay: --config FILE. Read each line; the comment above it says why it is there.",
        *(f"# {line}" for line in next_lines),
        "",
    ]
    for name, value in _given_settings(settings, suggestions).items():
        lines += ["# as it was given", *_setting_lines(name, value), ""]
    for name, value in suggestions.values.items():
        lines += [*_comment_lines(suggestions.why[name]), *_setting_lines(name, value), ""]
    for note in suggestions.notes:
        lines += [*_comment_lines(note), "# time-features: hour,weekday", ""]
    rate = f"{advice.before['incidents'] / advice.days:.1f} incidents a day at this rate"
    rate += f", {advice.a_day:.1f} with the rules below" if advice.rules else ""
    lines += [*_comment_lines(rate), *_setting_lines("alert_rate", settings.alert_rate), ""]
    if settings.maintenance:
        lines += [
            "# as they were given",
            *config_lines({"maintenance": [window.plain() for window in settings.maintenance]}),
            "",
        ]
    if settings.rules or advice.rules:
        tables: list[Any] = [_with_dashes(rule.plain()) for rule in (*settings.rules, *advice.rules)]
        if advice.rules:
            lines += _comment_lines(
                f"Deviations of at most {advice.share:.0%} of the usual range of a feature give no alert. The score "
                "stays as it is. Change the amounts to what matters to you, in the unit of the feature"
            )
        lines += [*config_lines({"rules": tables}), ""]
    return "\n".join(lines)


def _given_settings(settings: ReplaySettings, suggestions: Suggestions) -> dict[str, Any]:
    """Return the given settings that the file keeps."""
    names = settings_of_group(InputFlags, *KEPT_GROUPS)
    others = (*suggestions.values, "alert_rate", "rules", "maintenance")
    kept = [name for name in names if settings.is_given(name) and name not in others]
    return {name: getattr(settings, name) for name in kept}


def _setting_lines(name: str, value: Any) -> list[str]:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return config_lines({name.strip("_").replace("_", "-"): text})


def _with_dashes(table: Mapping[str, Any]) -> dict[str, Any]:
    dashed = {name.replace("_", "-"): value for name, value in table.items()}
    return {name: ", ".join(value) if name in ("features", "keys") else value for name, value in dashed.items()}


def _comment_lines(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + len(word) > 110:
            yield line
            line = "#"
        line += f" {word}"
    yield line
