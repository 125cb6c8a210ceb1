"""What people know of a stream: rules of what does not matter, and windows of maintenance. Pure.

Rules act on alerts alone, never on a score or on what is learned. Both depend on the record, its time, its key and its
result, so a replay says the same as the service.
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

MIN_REASON_SHARE = 0.5  # a reason counts if its share is at least this part of the largest one
GRADES = ("warning", "critical")
DAY_MS = 86_400_000
MAX_CACHED_DAYS = 64  # days of which it is remembered when windows are open
MAX_CHANGES = 20  # that a state remembers
MAX_LOG_BYTES = 256 << 10  # of the entry that remembers them, unless one alone is larger
MAX_FEEDBACK_WINDOWS, MAX_FEEDBACK_BYTES = 500, 128 << 10  # windows of a partition by feedback: those that end last
MAX_KEY_CHARACTERS = 1000  # characters of a key, so that memory and the time to compare are bounded

log = logging.getLogger(__name__)

OpenWindows = tuple[Window, ...]  # the windows that are open
Span = tuple[int, int]  # from, and to just before, in milliseconds since 1970


class RulesConfig(Protocol):
    """The rules and windows of the settings, those of flags and calendars among them."""

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
    """Whether the first LOOKED_AT characters of a key have one of these patterns; without any every record does."""
    if not patterns:
        return True
    text = key[: 4 * MAX_KEY_CHARACTERS].decode("utf-8", "replace") if isinstance(key, bytes) else key
    return text is not None and _matches(text[:MAX_KEY_CHARACTERS], patterns)


class Schedule:
    """When windows are open. Times are milliseconds since 1970.

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
        """The windows that are open, in their order; none at a time that is no `known_time`."""
        opened = self._day(time // DAY_MS) if known_time(time) is not None else ()
        return tuple(window for window, spans in opened if any(begin <= time < end for begin, end in spans))

    def is_free(self, times: Iterable[int]) -> bool:
        """Whether no window is open on any of the days of these times."""
        return not any(self._day(day) for day in {time // DAY_MS for time in times if known_time(time) is not None})

    def spans(self, window: Window, begin: int, end: int) -> Iterator[Span]:
        """The parts of a window that have something of the time from `begin` to `end`."""
        its, length = zone(window.timezone or "UTC"), window.length
        begins: Iterable[datetime] = [window.from_]
        if window in self._repeated:
            days, at = self._repeated[window]
            first, stop = begin // DAY_MS - length.days - 2, end // DAY_MS + 2  # clocks may differ by hours
            begins = [datetime.combine(day, at) for day in days_in(days, first, stop).tolist()]
        for start in begins:
            if start not in window.without:
                span = _milliseconds(start.replace(tzinfo=its)), _milliseconds((start + length).replace(tzinfo=its))
                if span[0] < end and begin < span[1]:
                    yield span

    def _day(self, day: int) -> list[tuple[Window, list[Span]]]:
        known = self._days.get(day)
        if known is None:
            spans = ((window, list(self.spans(window, day * DAY_MS, (day + 1) * DAY_MS))) for window in self.windows)
            if len(self._days) >= MAX_CACHED_DAYS:
                del self._days[next(iter(self._days))]
            self._days[day] = known = [(window, its) for window, its in spans if its]
        return known


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def skips(windows: OpenWindows, what: Literal["alerts", "learning"]) -> bool:
    """Whether a record in these windows goes without alerts, or without learning."""
    return any(one.skip in ("both", what) for one in windows)


class Rules:
    """Rules, and windows of maintenance; never changed in place. told: windows by feedback."""

    def __init__(self, rules: Sequence[Rule] = (), windows: Sequence[Window] = (), told: Sequence[Window] = ()) -> None:
        self.rules, self.windows, self.told = tuple(rules), tuple(windows), tuple(told)
        self._schedule = Schedule((*self.windows, *self.told))
        self._valid = [rule for rule in self.rules if rule.valid is not None]
        self._striking = [rule for rule in self.rules if rule.valid is None]

    @classmethod
    def of(cls, config: RulesConfig) -> Rules:
        return cls(config.all_rules, config.windows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rules) and self.plain() == other.plain()

    # -- maintenance -----------------------------------------------------------------------------------------

    def open_windows(self, times: Sequence[int | None], keys: Sequence[Key]) -> list[OpenWindows] | None:
        """The windows that records of these times and keys (n,) are in; None: none of them is in any."""
        if not self._schedule.windows or self._schedule.is_free(time for time in times if time is not None):
            return None
        found = [
            tuple(one for one in (() if time is None else self._schedule.at(time)) if matches_key(key, one.keys))
            for time, key in zip(times, keys, strict=True)
        ]
        return found if any(found) else None

    # -- alerts ----------------------------------------------------------------------------------------------

    def outside(self, rows: Float, keys: Sequence[Key], schema: Schema) -> dict[int, list[tuple[Rule, int]]]:
        """The records with values outside of a valid range: by place, the rules and the columns.

        rows: (n, d) of the features of `schema`; keys: (n,).
        """
        found: dict[int, list[tuple[Rule, int]]] = {}
        for rule in self._valid:
            columns = _matching_columns(rule.features, schema.features)
            low, high = rule.valid or (None, None)
            values = rows[:, columns]
            odd = (values < (-np.inf if low is None else low)) | (values > (np.inf if high is None else high))
            for i, j in zip(*(at.tolist() for at in np.nonzero(odd)), strict=True):
                if matches_key(keys[i], rule.keys):
                    found.setdefault(i, []).append((rule, columns[j]))
        return found

    def suppressing(self, result: Result, key: Key) -> str | None:
        """The name of the rule that says that an alert does not matter; None: it does.

        An alert matters as long as one of its reasons that count is struck out by no rule. Where all are, the rule
        that strikes out the first one is named. An alert without reasons is struck out only by rules for all features.
        """
        rules = [rule for rule in self._striking if matches_key(key, rule.keys)]
        if not rules:
            return None
        reasons: Sequence[Mapping[str, Any]] = result.get("reasons") or [{}]
        least = MIN_REASON_SHARE * max(reason.get("share") or 0.0 for reason in reasons)
        first = None
        for reason in reasons:
            if (reason.get("share") or 0.0) < least:
                continue
            by = next((rule.name for rule in rules if removes_reason(rule, reason, result)), None)
            if by is None:
                return None
            first = first or by
        return first

    # -- state -----------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        tables = {"rules": self.rules, "windows": self.windows, "told": self.told}
        return {name: [one.plain() for one in of_one] for name, of_one in tables.items()}

    @classmethod
    def of_plain(cls, content: Mapping[str, Any], dropped: dict[str, str]) -> Rules:
        """The reverse of `plain`, without what the bounds of now refuse: it goes to `dropped`, by name, with why."""

        def read(kind: type[AnyConfigTable], tables: Sequence[Mapping[str, Any]]) -> Iterator[AnyConfigTable]:
            for one in tables:
                try:
                    yield parse_table(kind, one)
                except ValueError as error:
                    dropped[str(one.get("name"))[:100]] = str(error)

        windows = ([*read(Window, content[name])] for name in ("windows", "told"))
        return cls([*read(Rule, content["rules"])], *windows)

    def telling(self, told: Sequence[Window], cancelled: Sequence[str] = ()) -> Rules:
        """After feedback told of these windows, which replace those of the same name, or cancelled some by name."""
        by_name = {one.name: one for one in self.told} | {one.name: one for one in told}
        kept = sorted((one for name, one in by_name.items() if name not in cancelled), key=lambda one: one.to)
        sizes = accumulate(len(orjson.dumps(one.plain())) for one in reversed(kept[-MAX_FEEDBACK_WINDOWS:]))
        n = sum(size <= MAX_FEEDBACK_BYTES for size in sizes)
        return Rules(self.rules, self.windows, kept[len(kept) - n :])

    # -- warnings --------------------------------------------------------------------------------------------

    def warnings(self, schema: Schema, has_keys: bool) -> Iterator[str]:
        """Sentences about rules that can never apply, and windows that overlap. has_keys: whether records have keys."""
        for one in (*self.rules, *self.windows):
            what = "rule" if isinstance(one, Rule) else "window"
            if one.keys and not has_keys:
                yield f"the {what} {one.name} can never apply: it is for some keys, and records have none; give --key"
        for rule in self.rules:
            for pattern in rule.features:
                found = _matching_columns((pattern,), schema.features)
                matched = {schema.features[at] for at in found}
                if not found:
                    hint = did_you_mean(pattern, schema.features)
                    yield f"the rule {rule.name} can never apply to {pattern[:60]}: there is no such feature{hint}"
                elif rule.min_severity is None and matched <= schema.categorical:
                    yield f"the rule {rule.name} can never apply to {pattern[:60]}: it is a category, not a number"
        for one, other in combinations([rule for rule in self.rules if rule.only is not None], 2):
            if one.only != other.only and (both := _common_features(one, other, schema.features)):
                names = ", ".join(both[:3])
                yield f"the rules {one.name} and {other.name} together leave no alert of {names} that rises or falls"
        yield from self._overlaps()

    def _overlaps(self) -> Iterator[str]:
        for one, other in combinations(self.windows, 2):
            if one.keys and other.keys and not set(one.keys) & set(other.keys):
                continue
            pair = (one, other) if not one.repeat else (other, one)
            begins = pair[0].from_.replace(tzinfo=zone(pair[0].timezone or "UTC"))
            ends = pair[0].to.replace(tzinfo=zone(pair[0].timezone or "UTC"))
            spans = (_milliseconds(begins), _milliseconds(ends))
            if next(self._schedule.spans(pair[1], *spans), None) is not None:
                yield f"the windows {one.name} and {other.name} overlap; what one of them skips is skipped"


def removes_reason(rule: Rule, reason: Mapping[str, Any], result: Result) -> bool:
    """Whether a rule says that a reason of an alert does not matter. {}: the alert has no reason."""
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
        is_moved = reason.get("cause") != "spread" and value != usual  # of a spread it is no direction
        return is_moved and (value > usual) != (rule.only == "rises")
    absolute, share = rule.amount
    return bool(abs(value - usual) <= max(absolute, share * abs(usual)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _matching_columns(patterns: tuple[str, ...], features: Sequence[str]) -> list[int]:
    return [at for at, name in enumerate(features) if _matches(name, patterns)]


def _common_features(one: Rule, other: Rule, features: Sequence[str]) -> list[str]:
    if one.keys and other.keys and not set(one.keys) & set(other.keys):
        return []
    return [name for name in features if _matches(name, one.features) and _matches(name, other.features)]


# --- what a result says of it


def force_alert(
    result: Result, outside: Sequence[tuple[Rule, int]], row: Float, schema: Schema, n_reasons: int
) -> None:
    """Make a result that of an alert, because values of the record (d,) are outside of their valid ranges."""
    rule = outside[0][0]
    reasons, said = [], []
    for one, column in outside[:n_reasons]:
        name, value = schema.features[column], float(row[column])
        low, high = one.valid or (None, None)
        limits = " to ".join(["" if limit is None else number_text(limit) for limit in (low, high)]).strip()
        reasons.append({"feature": name, "cause": "range", "share": 1.0, "value": value, "range": [low, high]})
        said.append(f"{name_text(name)} is {number_text(value, 6)}, outside of its valid range ({limits})")
    result["outlier"], result["rule"] = True, rule.name
    result["severity"] = result["severity"] if result["severity"] in GRADES else "warning"
    result["reasons"] = (reasons + result.get("reasons", []))[:n_reasons]
    more = result.get("explanation")
    result["explanation"] = "; ".join(said) + (f"; {more}" if more and not more.startswith("no ") else "")


def suppress_alert(result: Result, name: str) -> None:
    """Make the result of an alert that of a record without one, and say what suppressed it."""
    result["outlier"], result["severity"], result["suppressed"] = False, None, name


# --- changes


class RulesChange(NamedTuple):
    """Rules that hold from an offset on."""

    offset: int
    rules: Rules


class RulesLog:
    """The rules of a partition and the offsets from which they hold: a record that is read again has the same ones."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.changes: tuple[RulesChange, ...] = (RulesChange(0, rules or Rules()),)

    @property
    def now(self) -> Rules:
        """The newest ones."""
        return self.changes[-1].rules

    def parts(self, offsets: Sequence[int]) -> Iterator[tuple[slice, Rules]]:
        """Ascending offsets in parts with the same rules; the first ones that are remembered hold before, too."""
        start = 0
        for change, following in zip(self.changes, (*self.changes[1:], None), strict=True):
            stop = len(offsets) if following is None else bisect_right(offsets, following.offset - 1)
            if stop > start:
                yield slice(start, stop), change.rules
                start = stop

    def change(self, rules: Rules, offset: int) -> bool:
        """Let rules hold from an offset on; False: they do already."""
        if rules == self.now:
            return False
        kept = [change for change in self.changes if change.offset < offset]
        self.changes = (*kept[-MAX_CHANGES + 1 :], RulesChange(offset if kept else 0, rules))
        return True

    def encode(self) -> bytes:
        """The value of its entry: the newest changes that fit."""
        while True:
            value = orjson.dumps([{"from": change.offset, **change.rules.plain()} for change in self.changes])
            if len(value) <= MAX_LOG_BYTES or len(self.changes) == 1:
                return value
            self.changes = self.changes[1:]

    @classmethod
    def decode(cls, value: bytes) -> RulesLog:
        """The reverse of `encode`. Raises DamagedStateError."""
        found, dropped = cls(), dict[str, str]()
        try:
            changes = ((int(one["from"]), Rules.of_plain(one, dropped)) for one in orjson.loads(value))
            found.changes = tuple(RulesChange(*change) for change in changes)
            _ = found.now
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise DamagedStateError(f"the rules are not readable ({error})") from None
        for name, reason in dropped.items():
            log.warning("rule_dropped name=%s reason=%s", json.dumps(name), json.dumps(reason))
        return found
