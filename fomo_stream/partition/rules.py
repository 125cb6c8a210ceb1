"""Knowledge of people about a stream: rules about alerts, and windows of maintenance. Pure.

Rules act on alerts alone, never on a score or on the learned state. Both depend only on the record, its time, its key
and its result, so a replay gives the same alerts as the service.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import translate
from functools import lru_cache
from itertools import accumulate, combinations
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from fomo_stream.detector.keys import Key
from fomo_stream.errors import DamagedStateError
from fomo_stream.limits import MAX_RULES
from fomo_stream.records.explanation import name_text, number_text
from fomo_stream.records.recurrence import days_in
from fomo_stream.records.result import Result
from fomo_stream.records.schema import Schema
from fomo_stream.records.times import known_time
from fomo_stream.settings.rule_spec import AnyConfigTable, Rule, Window, parse_table, zone
from fomo_stream.wording import did_you_mean

Bool = NDArray[np.bool_]
Float = NDArray[np.float64]

MIN_REASON_SHARE = 0.5  # of the largest share: rules ignore reasons with a smaller one
GRADES = ("warning", "critical")
DAY_MS = 86_400_000
MAX_CACHED_DAYS = 64  # days whose open windows are cached
MAX_CHANGES = 20  # of rules, in the state
MAX_LOG_BYTES = 256 << 10  # of the entry with these changes, unless one alone is larger
MAX_FEEDBACK_WINDOWS, MAX_FEEDBACK_BYTES = 500, 128 << 10  # windows of a partition: those that end last stay
MAX_KEY_CHARACTERS = 1000  # characters of a key, so that memory and the time to compare are bounded

log = logging.getLogger(__name__)

OpenWindows = tuple[Window, ...]  # the windows that are open
Span = tuple[int, int]  # begin, and end without itself, in milliseconds since 1970


class RulesConfig(Protocol):
    """The rules and windows of the settings, also those of flags and calendars."""

    @property
    def all_rules(self) -> Sequence[Rule]: ...

    @property
    def windows(self) -> Sequence[Window]: ...


@lru_cache(maxsize=10_000)
def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or name in patterns or _compiled_patterns(patterns).match(name) is not None


@lru_cache(maxsize=2 * MAX_RULES)
def _compiled_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))


def matches_key(key: Key, patterns: tuple[str, ...]) -> bool:
    """Return whether the first MAX_KEY_CHARACTERS of a key match one of these patterns, or there are no patterns."""
    if not patterns:
        return True
    text = key[: 4 * MAX_KEY_CHARACTERS].decode("utf-8", "replace") if isinstance(key, bytes) else key
    return text is not None and _matches(text[:MAX_KEY_CHARACTERS], patterns)


class Schedule:
    """The times at which windows are open, in milliseconds since 1970.

    >>> night = {"from": "2026-03-29T01:00", "to": "2026-03-29T04:00", "timezone": "Europe/Berlin"}
    >>> window = Window(name="clean", **night)
    >>> begin = 1_774_742_400_000  # midnight in UTC
    >>> [bool(Schedule([window]).at(begin + hour * 3_600_000)) for hour in range(-1, 4)]
    [False, True, True, False, False]
    """

    def __init__(self, windows: Iterable[Window]) -> None:
        self.windows = tuple(windows)
        self._repeated = {window: window.repetitions() for window in self.windows if window.repeat}
        self._days: dict[int, list[tuple[Window, list[Span]]]] = {}  # by day: the windows with parts in it, and these

    def at(self, time: int) -> OpenWindows:
        """Return the open windows, in their order; empty if the time is not a `known_time`."""
        opened = self._day(time // DAY_MS) if known_time(time) is not None else ()
        return tuple(window for window, spans in opened if any(begin <= time < end for begin, end in spans))

    def is_free(self, times: Iterable[int]) -> bool:
        """Return whether every window is closed on all days of these times."""
        return not any(self._day(day) for day in {time // DAY_MS for time in times if known_time(time) is not None})

    def spans(self, window: Window, begin: int, end: int) -> Iterator[Span]:
        """Yield the parts of a window that overlap the time from `begin` to `end`."""
        clock_zone, length = zone(window.timezone or "UTC"), window.length
        begins: Iterable[datetime] = [window.from_]
        if window in self._repeated:
            days, time_of_day = self._repeated[window]
            first, stop = begin // DAY_MS - length.days - 2, end // DAY_MS + 2  # clocks of zones differ by up to a day
            begins = [datetime.combine(day, time_of_day) for day in days_in(days, first, stop).tolist()]
        for start in begins:
            if start not in window.without:
                begin_ms = _milliseconds(start.replace(tzinfo=clock_zone))
                span = begin_ms, _milliseconds((start + length).replace(tzinfo=clock_zone))
                if span[0] < end and begin < span[1]:
                    yield span

    def _day(self, day: int) -> list[tuple[Window, list[Span]]]:
        opened = self._days.get(day)
        if opened is None:
            spans = ((window, list(self.spans(window, day * DAY_MS, (day + 1) * DAY_MS))) for window in self.windows)
            if len(self._days) >= MAX_CACHED_DAYS:
                del self._days[next(iter(self._days))]
            self._days[day] = opened = [(window, parts) for window, parts in spans if parts]
        return opened


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def skips(windows: OpenWindows, what: Literal["alerts", "learning"]) -> bool:
    """Return whether these windows skip alerts, or learning, of a record."""
    return any(window.skip in ("both", what) for window in windows)


class Rules:
    """Rules, and windows of maintenance; never changed in place. from_feedback: windows from feedback."""

    def __init__(
        self, rules: Sequence[Rule] = (), windows: Sequence[Window] = (), from_feedback: Sequence[Window] = ()
    ) -> None:
        self.rules, self.windows, self.from_feedback = tuple(rules), tuple(windows), tuple(from_feedback)
        self._schedule = Schedule((*self.windows, *self.from_feedback))
        self._valid = [rule for rule in self.rules if rule.valid is not None]
        self._removing = [rule for rule in self.rules if rule.valid is None]

    @classmethod
    def of(cls, config: RulesConfig) -> Rules:
        return cls(config.all_rules, config.windows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rules) and self.plain() == other.plain()

    # -- maintenance -----------------------------------------------------------------------------------------

    def open_windows(self, times: Sequence[int | None], keys: Sequence[Key]) -> list[OpenWindows] | None:
        """Return the open windows for records of these times and keys (n,); None: every record is outside of all."""
        if not self._schedule.windows or self._schedule.is_free(time for time in times if time is not None):
            return None
        windows = [
            tuple(open_ for open_ in (() if time is None else self._schedule.at(time)) if matches_key(key, open_.keys))
            for time, key in zip(times, keys, strict=True)
        ]
        return windows if any(windows) else None

    # -- alerts ----------------------------------------------------------------------------------------------

    def outside(self, rows: Float, keys: Sequence[Key], schema: Schema) -> dict[int, list[tuple[Rule, int]]]:
        """Return the records with values outside of a valid range: by position, the rules and the columns.

        rows: (n, d) of the features of `schema`; keys: (n,).
        """
        violations: dict[int, list[tuple[Rule, int]]] = {}
        for rule in self._valid:
            matching = _matching_columns(rule.features, schema.features)
            columns = [j for j in matching if schema.features[j] not in schema.categorical]  # which have only codes
            low, high = rule.valid or (None, None)
            values = rows[:, columns]
            odd = (values < (-np.inf if low is None else low)) | (values > (np.inf if high is None else high))
            for i, j in zip(*(positions.tolist() for positions in np.nonzero(odd)), strict=True):
                if matches_key(keys[i], rule.keys):
                    violations.setdefault(i, []).append((rule, columns[j]))
        return violations

    def suppressing(self, result: Result, key: Key) -> str | None:
        """Return the name of the rule that removes an alert; None: the alert stays.

        An alert stays as long as one of its reasons with enough share stays. If rules remove all of them, the rule that
        removes the first is named. An alert without reasons is removed only by rules for all features.
        """
        rules = [rule for rule in self._removing if matches_key(key, rule.keys)]
        if not rules:
            return None
        reasons: Sequence[Mapping[str, Any]] = result.get("reasons") or [{}]
        min_share = MIN_REASON_SHARE * max(reason.get("share") or 0.0 for reason in reasons)
        first = None
        for reason in reasons:
            if (reason.get("share") or 0.0) < min_share:
                continue
            remover = next((rule.name for rule in rules if removes_reason(rule, reason, result)), None)
            if remover is None:
                return None
            first = first or remover
        return first

    # -- state -----------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """Return the content for JSON."""
        tables = {"rules": self.rules, "windows": self.windows, "told": self.from_feedback}
        return {name: [table.plain() for table in kind] for name, kind in tables.items()}

    @classmethod
    def of_plain(cls, content: Mapping[str, Any], dropped: dict[str, str]) -> Rules:
        """Reverse `plain`. Tables that the present bounds refuse go to `dropped`, by name, with the reason."""

        def read(kind: type[AnyConfigTable], tables: Sequence[Mapping[str, Any]]) -> Iterator[AnyConfigTable]:
            for table in tables:
                try:
                    yield parse_table(kind, table)
                except ValueError as error:
                    dropped[str(table.get("name"))[:100]] = str(error)

        windows = ([*read(Window, content[name])] for name in ("windows", "told"))
        return cls([*read(Rule, content["rules"])], *windows)

    def with_feedback(self, announced: Sequence[Window], cancelled: Sequence[str] = ()) -> Rules:
        """Return the rules with these windows from feedback, which replace those of the same name, or without some."""
        by_name = {window.name: window for window in (*self.from_feedback, *announced)}
        kept = [window for window in by_name.values() if window.name not in cancelled]
        kept.sort(key=lambda window: window.to)
        sizes = accumulate(len(orjson.dumps(window.plain())) for window in reversed(kept[-MAX_FEEDBACK_WINDOWS:]))
        n = sum(size <= MAX_FEEDBACK_BYTES for size in sizes)
        return Rules(self.rules, self.windows, kept[len(kept) - n :])

    # -- warnings --------------------------------------------------------------------------------------------

    def warnings(self, schema: Schema, has_keys: bool, has_times: bool = True) -> Iterator[str]:
        """Yield sentences about rules that can never apply, and windows that overlap.

        has_keys, has_times: records have keys, and times.
        """
        for table in (*self.rules, *self.windows):
            what = "rule" if isinstance(table, Rule) else "window"
            if table.keys and not has_keys:
                yield f"the {what} {table.name} can never apply: it is for some keys, and records have none; give --key"
        if self.windows and not has_times:
            named = ", ".join([window.name for window in self.windows][:5])
            yield f"windows of maintenance ({named}) can never apply: records of a file have times only by --time"
        for rule in self.rules:
            for pattern in rule.features:
                columns = _matching_columns((pattern,), schema.features)
                matched = {schema.features[column] for column in columns}
                if not columns:
                    hint = did_you_mean(pattern, schema.features)
                    yield f"the rule {rule.name} can never apply to {pattern[:60]}: there is no such feature{hint}"
                elif rule.min_severity is None and matched <= schema.categorical:
                    yield f"the rule {rule.name} can never apply to {pattern[:60]}: it is a category, not a number"
        for first, second in combinations([rule for rule in self.rules if rule.only is not None], 2):
            if first.only != second.only and (both := _common_features(first, second, schema.features)):
                names = ", ".join(both[:3])
                yield f"the rules {first.name} and {second.name} together leave no alert of {names} that rises or falls"
        yield from self._overlaps()

    def _overlaps(self) -> Iterator[str]:
        for first, second in combinations(self.windows, 2):
            if first.keys and second.keys and not set(first.keys) & set(second.keys):
                continue
            pair = (first, second) if not first.repeat else (second, first)
            begins = pair[0].from_.replace(tzinfo=zone(pair[0].timezone or "UTC"))
            ends = pair[0].to.replace(tzinfo=zone(pair[0].timezone or "UTC"))
            spans = (_milliseconds(begins), _milliseconds(ends))
            if next(self._schedule.spans(pair[1], *spans), None) is not None:
                yield f"the windows {first.name} and {second.name} overlap; what one of them skips is skipped"


def removes_reason(rule: Rule, reason: Mapping[str, Any], result: Result) -> bool:
    """Return whether a rule removes a reason of an alert. {}: an alert without reasons."""
    name = reason.get("feature")
    if not _matches(name, rule.features) if name is not None else rule.features:
        return False
    if rule.min_severity is not None:
        severity = result.get("severity")
        return severity in GRADES and GRADES.index(severity) < GRADES.index(rule.min_severity)
    value, usual = reason.get("value"), reason.get("expected")
    usual = reason.get("usual") if usual is None else usual
    if not _is_number(value) or not _is_number(usual) or value is None or usual is None:
        return False
    if rule.only is not None:
        is_moved = reason.get("cause") != "spread" and value != usual  # a spread has no direction
        return is_moved and (value > usual) != (rule.only == "rises")
    absolute, share = rule.amount
    return bool(abs(value - usual) <= max(absolute, share * abs(usual)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _matching_columns(patterns: tuple[str, ...], features: Sequence[str]) -> list[int]:
    return [column for column, name in enumerate(features) if _matches(name, patterns)]


def _common_features(first: Rule, second: Rule, features: Sequence[str]) -> list[str]:
    if first.keys and second.keys and not set(first.keys) & set(second.keys):
        return []
    return [name for name in features if _matches(name, first.features) and _matches(name, second.features)]


# --- results of rules


def force_alert(
    result: Result, outside: Sequence[tuple[Rule, int]], row: Float, schema: Schema, n_reasons: int
) -> None:
    """Turn a result into an alert, because values of the record (d,) are outside of their valid ranges."""
    rule = outside[0][0]
    reasons, statements = [], []
    for broken, column in outside[:n_reasons]:
        name, value = schema.features[column], float(row[column])
        low, high = broken.valid or (None, None)
        limits = " to ".join(["" if limit is None else number_text(limit) for limit in (low, high)]).strip()
        reasons.append({"feature": name, "cause": "range", "share": 1.0, "value": value, "range": [low, high]})
        statements.append(f"{name_text(name)} is {number_text(value, 6)}, outside of its valid range ({limits})")
    result["outlier"], result["rule"] = True, rule.name
    result["severity"] = result["severity"] if result["severity"] in GRADES else "warning"
    result["reasons"] = (reasons + result.get("reasons", []))[:n_reasons]
    explanation = result.get("explanation")
    if explanation and not explanation.startswith("no "):
        statements.append(explanation)
    result["explanation"] = "; ".join(statements)


def suppress_alert(result: Result, name: str) -> None:
    """Turn the result of an alert into that of a record without one, and name the rule or window."""
    result["outlier"], result["severity"], result["suppressed"] = False, None, name


# --- changes


class RulesChange(NamedTuple):
    """Rules that apply from an offset on."""

    offset: int
    rules: Rules


class RulesLog:
    """The rules of a partition by offset: a record that is read again has the same rules."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.changes: tuple[RulesChange, ...] = (RulesChange(0, rules or Rules()),)

    @property
    def now(self) -> Rules:
        """Return the newest rules."""
        return self.changes[-1].rules

    def parts(self, offsets: Sequence[int]) -> Iterator[tuple[slice, Rules]]:
        """Split ascending offsets into parts with the same rules; the oldest known rules also apply before."""
        start = 0
        for change, following in zip(self.changes, (*self.changes[1:], None), strict=True):
            stop = len(offsets) if following is None else bisect_right(offsets, following.offset - 1)
            if stop > start:
                yield slice(start, stop), change.rules
                start = stop

    def change(self, rules: Rules, offset: int) -> bool:
        """Apply rules from an offset on. Return False if they apply already."""
        if rules == self.now:
            return False
        kept = [change for change in self.changes if change.offset < offset]
        self.changes = (*kept[-MAX_CHANGES + 1 :], RulesChange(offset if kept else 0, rules))
        return True

    def encode(self) -> bytes:
        """Return the value of its entry: the newest changes that fit."""
        while True:
            value = orjson.dumps([{"from": change.offset, **change.rules.plain()} for change in self.changes])
            if len(value) <= MAX_LOG_BYTES or len(self.changes) == 1:
                return value
            self.changes = self.changes[1:]

    @classmethod
    def decode(cls, value: bytes) -> RulesLog:
        """Reverse `encode`. Raises DamagedStateError."""
        decoded, dropped = cls(), dict[str, str]()
        try:
            changes = ((int(entry["from"]), Rules.of_plain(entry, dropped)) for entry in orjson.loads(value))
            decoded.changes = tuple(RulesChange(*change) for change in changes)
            _ = decoded.now
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise DamagedStateError(f"the rules are not readable ({error})") from None
        for name, reason in dropped.items():
            log.warning("rule_dropped name=%s reason=%s", json.dumps(name), json.dumps(reason))
        return decoded
