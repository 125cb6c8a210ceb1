"""Rules and windows of maintenance, against the same in plain Python; and what they change, and what not."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from time import process_time
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipelines import QUICK, cheap_model

from fomo_stream.detector.detector import Detector
from fomo_stream.errors import DamagedStateError, RecordError
from fomo_stream.loading import first_detector
from fomo_stream.partition.labels import parse_label
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.position import NOTHING_RESTORED, Restored
from fomo_stream.partition.rules import MAX_CHANGES, Rules, RulesLog, Schedule, matches_key
from fomo_stream.partition.running import MAINTENANCE, Running
from fomo_stream.records.schema import Schema
from fomo_stream.settings.rule_spec import Rule, Window

HOUR = 3_600_000
SPRING = datetime(2026, 3, 27)  # clocks change on the 29th in Berlin
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
KEYS = (None, "pump-1", b"pump-2", "fan-1")
FEATURES = ("a", "b", "c.temp")


def window(name: str, begin: datetime, hours: float, **more: Any) -> Window:
    return Window.model_validate({"name": name, "from": begin, "to": begin + timedelta(hours=hours), **more})


windows = st.builds(
    lambda begin, hours, zone, repeat, keys, skip, name: window(
        name, SPRING + timedelta(hours=begin), hours, timezone=zone, repeat=repeat, keys=keys, skip=skip
    ),
    begin=st.integers(-60, 60),
    hours=st.sampled_from([0.5, 1, 3, 24, 30]),
    zone=st.sampled_from(ZONES),
    repeat=st.sampled_from(
        ["", "FREQ=DAILY", "FREQ=WEEKLY", "FREQ=DAILY;COUNT=3", "FREQ=DAILY;UNTIL=20260330T120000Z"]
    ),
    keys=st.sampled_from([(), ("pump-*",), ("fan-1", "x"), ("*",)]),
    skip=st.sampled_from(["both", "alerts", "learning"]),
    name=st.sampled_from("uvwxyz"),
)


def is_open(one: Window, time: int) -> bool:
    """By trying every day."""
    its = ZoneInfo(one.timezone)
    step = 7 if "WEEKLY" in one.repeat else 1
    for nth in range(3 if "COUNT" in one.repeat else 30 if one.repeat else 1):
        begin = one.from_ + timedelta(days=step * nth)
        if "UNTIL" in one.repeat and begin.replace(tzinfo=its) > datetime(2026, 3, 30, 12, tzinfo=UTC):
            break
        end = begin + (one.to - one.from_)
        if begin.replace(tzinfo=its).timestamp() * 1000 <= time < end.replace(tzinfo=its).timestamp() * 1000:
            return True
    return False


@settings(max_examples=100)
@given(st.lists(windows, max_size=5), st.lists(st.integers(-100, 200).map(lambda half: half * HOUR // 2), max_size=12))
def test_windows_are_open_when_a_calendar_says_so(given_windows: list[Window], after: list[int]) -> None:
    schedule, begin = Schedule(given_windows), round(SPRING.replace(tzinfo=UTC).timestamp() * 1000)
    times = [begin + one for one in after]
    for time in times:
        assert list(schedule.at(time)) == [one for one in given_windows if is_open(one, time)]
    assert not schedule.is_free(times) or not any(map(schedule.at, times))


# --- rules

amounts = st.one_of(st.none(), st.sampled_from([-4.0, -1.0, 0.0, 1.0, 1.5, 5.0]))
reasons = st.fixed_dictionaries(
    {
        "feature": st.sampled_from(FEATURES),
        "cause": st.sampled_from(["value", "spread", "category", "level"]),
        "share": st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, None]),
        "value": st.one_of(amounts, st.sampled_from(["text", True])),
        "usual": amounts,
        "expected": amounts,
    }
)
patterns = st.sampled_from([(), ("a",), ("c.*", "b"), ("nothing",), ("*",)])
key_patterns = st.sampled_from([(), ("pump-*",), ("fan-1",)])
says = st.sampled_from(
    [{"only": "rises"}, {"only": "falls"}, {"ignore": 1.5}, {"ignore": "50%"}, {"min_severity": "critical"}]
)
rules = st.builds(
    lambda features, keys, said, name: Rule(name=name, features=features, keys=keys, **said),
    patterns,
    key_patterns,
    says,
    st.sampled_from("rstuv"),
)


def plainly(given_rules: Sequence[Rule], result: dict[str, Any], key: str | bytes | None) -> str | None:
    """`Rules.suppressing`, said in another way."""
    text = key.decode() if isinstance(key, bytes) else key
    found = result["reasons"] or [{"feature": None, "share": 1.0}]
    largest = max(one["share"] or 0.0 for one in found)
    names = []
    for reason in found:
        if (reason["share"] or 0.0) * 2 < largest:
            continue
        by = []
        for rule in given_rules:
            if rule.keys and (text is None or not any(fnmatchcase(text, one) for one in rule.keys)):
                continue
            feature = reason["feature"]
            if rule.features and (feature is None or not any(fnmatchcase(feature, one) for one in rule.features)):
                continue
            if rule.min_severity:
                if result["severity"] == "warning":
                    by.append(rule.name)
                continue
            value = reason.get("value")
            base = reason.get("usual") if reason.get("expected") is None else reason["expected"]
            if type(value) is not float or base is None:
                continue
            if rule.only == "rises" and value < base and reason["cause"] != "spread":
                by.append(rule.name)
            if rule.only == "falls" and value > base and reason["cause"] != "spread":
                by.append(rule.name)
            if rule.ignore == 1.5 and abs(value - base) <= 1.5:
                by.append(rule.name)
            if rule.ignore == "50%" and abs(value - base) <= abs(base) / 2:
                by.append(rule.name)
        if not by:
            return None
        names.append(by[0])
    return names[0]


@settings(max_examples=250)
@given(
    st.lists(rules, max_size=6),
    st.lists(reasons, max_size=3),
    st.sampled_from(["warning", "critical"]),
    st.sampled_from(KEYS),
)
def test_an_alert_matters_while_a_reason_of_it_does(
    given_rules: list[Rule], given_reasons: list[dict[str, Any]], severity: str, key: str | bytes | None
) -> None:
    result = {"outlier": True, "severity": severity, "reasons": given_reasons}
    assert Rules(given_rules).suppressing(result, key) == plainly(given_rules, result, key)


ends = st.one_of(st.none(), st.integers(-3, 3).map(float))


@given(
    st.lists(st.tuples(patterns.filter(bool), key_patterns, ends, ends), max_size=4),
    st.lists(st.tuples(*[st.one_of(st.just(np.nan), st.integers(-4, 4).map(float))] * 3), min_size=1, max_size=5),
    st.data(),
)
def test_values_outside_of_a_valid_range_are_found(
    ranges: list[Any], values: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    possible = [(f, k, low, high) for f, k, low, high in ranges if low is not None or high is not None]
    made = [
        Rule(name=f"r{i}", features=f, keys=k, valid=(low, high) if None in (low, high) or low <= high else (high, low))
        for i, (f, k, low, high) in enumerate(possible)
    ]
    keys = [data.draw(st.sampled_from(KEYS)) for _ in values]
    categories = data.draw(st.frozensets(st.sampled_from(FEATURES)))
    found = Rules(made).outside(np.array(values), keys, Schema(FEATURES, categories))
    expected: dict[int, list[tuple[Rule, int]]] = {}
    for i, (row, key) in enumerate(zip(values, keys, strict=True)):
        text = key.decode() if isinstance(key, bytes) else key
        for rule in made:
            if rule.keys and (text is None or not any(fnmatchcase(text, one) for one in rule.keys)):
                continue
            assert rule.valid is not None
            low, high = rule.valid
            for j, (name, value) in enumerate(zip(FEATURES, row, strict=True)):
                is_out = (low is not None and value < low) or (high is not None and value > high)
                if is_out and name not in categories and any(fnmatchcase(name, one) for one in rule.features):
                    expected.setdefault(i, []).append((rule, j))
    assert found == expected


# --- in a partition


class Line(NamedTuple):
    """A record, as a partition takes it."""

    offset: int
    timestamp: int
    fields: dict[str, Any]
    key: str | None = None
    error: RecordError | None = None


N = 120


@cache
def lines(seed: int = 0) -> tuple[Line, ...]:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(N, 2)) + (rng.random((N, 1)) < 0.1) * 8
    return tuple(Line(i, i * HOUR, {"a": x, "b": y}, f"pump-{i % 2}") for i, (x, y) in enumerate(values.tolist()))


SCHEMA = Schema(("a", "b"))


@cache
def flags() -> Any:
    return QUICK["kind"](topic="t", **{name: value for name, value in QUICK.items() if name != "kind"})


@cache
def first() -> Detector:
    return first_detector(flags(), cheap_model(), SCHEMA)


def running(rules: Rules, restored: Restored = NOTHING_RESTORED, feedback: str | None = None) -> Running:
    waiting = Waiting(0, flags(), feedback=feedback, rules=rules)
    waiting.restore(restored)
    return Running(waiting, first(), SCHEMA)


def scored(given_rules: Rules, splits: Sequence[int] = (), of: Sequence[Line] | None = None) -> list[dict[str, Any]]:
    """The results of all records, scored in parts that end at these places."""
    of = lines() if of is None else of
    partition = running(given_rules)
    found: list[dict[str, Any]] = []
    edges = sorted({0, *splits, len(of)})
    for start, stop in pairwise(edges):
        at = start
        while at < stop:
            n = min(stop - at, partition.detector.room)
            found += [result or {} for result in partition.score(of[at : at + n]).results]
            at += n
    return found


ABOUT_ALERTS = {"outlier", "severity", "suppressed", "rule", "reasons", "explanation", "incident", "surprise"}


def numbers_of(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name not in ABOUT_ALERTS} for one in results]


SOME = [
    Rule(name="falls", features=("a",), only="rises"),
    Rule(name="small", keys=("pump-0",), ignore=3.0),
    Rule(name="range", features=("b",), valid=(-2.0, 2.5)),
]


@settings(max_examples=5)
@given(st.lists(st.integers(1, N), max_size=5))
def test_rules_change_alerts_and_nothing_else_however_records_come(splits: list[int]) -> None:
    before, after = scored(Rules()), scored(Rules(SOME), splits)
    assert numbers_of(after) == numbers_of(before)
    assert after == scored(Rules(SOME))
    for one, result in zip(before, after, strict=True):
        assert ("suppressed" in result) <= one["outlier"]
        assert result["outlier"] == ((one["outlier"] and "suppressed" not in result) or "rule" in result)
        assert ("incident" in result) == result["outlier"]


def test_a_value_outside_of_its_range_gives_an_alert_with_its_reason_even_while_warming_up() -> None:
    results = scored(Rules([Rule(name="range", features=("b",), valid=(None, 1.0))]))
    for line, result in zip(lines(), results, strict=True):
        assert (result.get("rule") == "range") == (line.fields["b"] > 1.0)
        if "rule" in result:
            assert result["outlier"]
            assert result["severity"] in ("warning", "critical")
            reason = result["reasons"][0]
            assert (reason["feature"], reason["cause"], reason["range"]) == ("b", "range", [None, 1.0])
            assert "outside of its valid range (to 1)" in result["explanation"]
    assert {result["status"] for result in results if "rule" in result} >= {"warming_up", "ok"}


@settings(max_examples=8)
@given(
    st.integers(0, N - 2),
    st.integers(1, 40),
    st.sampled_from(["both", "alerts", "learning"]),
    st.sampled_from([(), ("pump-1",)]),
    st.lists(st.integers(1, N), max_size=4),
)
@example(0, 30, "both", (), [])
def test_a_window_takes_alerts_and_learning_away_and_nothing_else(
    start: int, hours: int, skip: str, keys: tuple[str, ...], splits: list[int]
) -> None:
    one = window("clean", datetime(1970, 1, 1) + timedelta(hours=start), hours, timezone="UTC", keys=keys, skip=skip)
    results = scored(Rules((), [one]), splits)
    assert results == scored(Rules((), [one]))
    inside = {
        line.offset for line in lines() if start <= line.offset < start + hours and (not keys or line.key in keys)
    }
    quiet = inside if skip != "learning" else set()
    assert all(not results[at]["outlier"] for at in quiet)
    assert all(("suppressed" in result) <= (at in inside) for at, result in enumerate(results))
    if skip == "alerts":
        assert numbers_of(results) == numbers_of(scored(Rules()))
        return
    # Later records are judged as if those in the window had never been.
    others = [at for at in range(N) if at not in inside]
    without = scored(Rules(), of=[lines()[at] for at in others])
    assert [results[at] for at in others] == without if skip == "both" else True
    assert numbers_of([results[at] for at in others]) == numbers_of(without)
    assert {results[at]["status"] for at in inside} == {MAINTENANCE} if skip == "both" and inside else True


# --- from which offset rules hold


def test_rules_hold_from_the_offset_at_which_they_came_also_for_who_reads_again() -> None:
    partition = running(Rules())
    newest = Rules([Rule(name="all", ignore=1e9), Rule(name="range", features=("a",), valid=(-1e9, 0.0))])
    results: list[Any] = []
    entries: dict[str, bytes] = {}

    def score(start: int, stop: int) -> None:
        for at in range(start, stop):
            results.extend(partition.score(lines()[at : at + 1]).results)
        entries.update({name: value for name, value in partition.changes().items() if value is not None})

    score(0, 70)
    assert partition.set_rules(newest)
    assert not partition.set_rules(newest)
    score(70, N)
    assert not any("rule" in one for one in results[:70])
    assert [("rule" in one) for one in results[70:]] == [line.fields["a"] > 0 for line in lines()[70:]]
    other = running(newest, Restored(60, dict(entries), learned_until=N))
    again = [result or {} for result in other.score(lines()[60:]).results]
    assert [("rule" in one) for one in again] == [("rule" in one) for one in results[60:]]


changes = st.lists(
    st.tuples(st.integers(1, 5), st.lists(rules, max_size=2), st.lists(windows, max_size=1)), max_size=30
)


def test_the_first_rules_of_a_stored_partition_hold_from_its_next_record_on() -> None:
    partition = running(Rules())
    results = [result or {} for result in partition.score(lines()[:70]).results]
    newest = Rules([Rule(name="range", features=("a",), valid=(-1e9, 0.0))])
    entries = {name: value for name, value in partition.changes().items() if value is not None}
    other = running(newest, Restored(70, entries, learned_until=70))
    assert not any("rule" in one for one in results)
    assert any("rule" in (result or {}) for result in other.score(lines()[70:100]).results)
    entries |= {name: value for name, value in other.changes().items() if value is not None}
    again = running(newest, Restored(40, entries, learned_until=100)).score(lines()[40:100]).results
    assert [("rule" in (one or {})) for one in again[:30]] == [False] * 30
    assert [("rule" in (one or {})) for one in again[30:]] == [line.fields["a"] > 0 for line in lines()[70:100]]


@given(changes)
def test_the_log_of_rules_says_the_same_after_it_was_written(steps: list[Any]) -> None:
    log, offset, held = RulesLog(), 0, [Rules()]
    for more, its_rules, its_windows in steps:
        offset += more
        made = Rules(its_rules, its_windows)
        assert log.change(made, offset) == (made != held[-1])
        held += [held[-1]] * (offset - len(held)) + [made]
    read = RulesLog.decode(log.encode())
    assert [(one.offset, one.rules) for one in read.changes] == [(one.offset, one.rules) for one in log.changes]
    assert len(log.changes) <= MAX_CHANGES
    oldest = log.changes[0].offset
    offsets = list(range(oldest, len(held)))
    parts = list(read.parts(offsets))
    assert [at for part, _ in parts for at in offsets[part]] == offsets
    assert all(held[at] == its for part, its in parts for at in offsets[part])


@pytest.mark.parametrize("value", [b"x", b"[]", b'[{"from": 1}]', b'[{"from": 0, "rules": [{}], "windows": []}]'])
def test_damaged_rules_are_an_error_of_the_state(value: bytes) -> None:
    with pytest.raises(DamagedStateError, match="the rules are not readable"):
        RulesLog.decode(value)


# --- windows by feedback


def test_feedback_tells_of_windows_and_cancels_them() -> None:
    partition = running(Rules(), feedback="f")

    def tell(at: int, text: bytes) -> None:
        partition.labels.open(at)
        partition.label(at, parse_label(text, None, 0, "t", "fomo"), lambda *_: True)
        partition.apply_labels()

    partition.score(lines()[:10])
    tell(0, b'{"maintenance": "clean", "from": "1970-01-01T12:00Z", "to": "1970-01-02T12:00Z", "keys": ["pump-0"]}')
    found = [one or {} for one in partition.score(lines()[10:20]).results]
    assert [one["status"] == MAINTENANCE for one in found] == [False, False, *[True, False] * 4]
    tell(1, b'{"maintenance": "clean", "cancel": true}')
    assert not any("suppressed" in (one or {}) for one in partition.score(lines()[20:30]).results)
    assert partition.labels.committable == 2


# --- warnings


def test_rules_that_cannot_apply_and_windows_that_overlap_are_warned_of() -> None:
    made = Rules(
        [
            Rule(name="r", features=("temprature",), only="rises"),
            Rule(name="s", features=("kind",), ignore=1),
            Rule(name="t", keys=("p*",), min_severity="critical"),
            Rule(name="u", features=("temperature",), only="rises"),
            Rule(name="v", only="falls"),
        ],
        [
            window("w", SPRING, 5, timezone="UTC"),
            window("x", SPRING - timedelta(days=7, hours=-4), 2, timezone="UTC", repeat="FREQ=WEEKLY"),
            window("y", SPRING + timedelta(hours=5), 1, timezone="UTC"),
        ],
    )
    texts = list(made.warnings(Schema(("temperature", "kind"), frozenset({"kind"})), has_keys=False))
    assert next(text for text in texts if "temprature" in text).endswith("did you mean temperature?")
    assert any("rule s can never apply to kind: it is a category" in text for text in texts)
    assert any("rule t can never apply: it is for some keys" in text for text in texts)
    assert any("rules u and v together leave no alert of temperature" in text for text in texts)
    assert [text for text in texts if "overlap" in text] == [
        "the windows w and x overlap; what one of them skips is skipped",
        "the windows x and y overlap; what one of them skips is skipped",
    ]
    assert len(texts) == 6


# --- bounds


def test_what_the_state_has_is_read_with_the_bounds_of_now(caplog: pytest.LogCaptureFixture) -> None:
    kept = window("kept", SPRING, 5, timezone="UTC")
    value = json.loads(RulesLog(Rules([Rule(name="r", ignore=1)], [], [kept])).encode())
    plain = kept.plain()
    value[0]["told"] += [
        {**plain, "name": "hangs", "repeat": "FREQ=DAILY;INTERVAL=0"},
        {**plain, "name": "ends it", "from": "0001-01-01T00:00:00", "to": "9998-01-01T00:00:00"},
        {**plain, "name": "many", "keys": [f"{n}*" for n in range(60_000)]},
    ]
    partition = Waiting(0, flags(), feedback="f", rules=Rules())
    partition.restore(Restored(0, {"rules": json.dumps(value).encode()}))
    assert partition.rules.now.from_feedback == (kept,)
    assert [record.getMessage().split()[1] for record in caplog.records] == [
        'name="hangs"',
        'name="ends',
        'name="many"',
    ]


def test_windows_by_feedback_are_bounded_in_number_and_size() -> None:
    rules = Rules()
    for at in range(0, 700, 100):
        rules = rules.with_feedback([window(f"w{at + n}", SPRING, 1 + at + n, keys=("k" * 100,)) for n in range(100)])
    assert [one.name for one in rules.from_feedback] == [f"w{n}" for n in range(200, 700)]
    large = rules.with_feedback([window(f"x{n}", SPRING, 9000 + n, keys=("k" * 200,) * 70) for n in range(20)])
    assert [one.name for one in large.from_feedback] == [f"x{n}" for n in range(20 - len(large.from_feedback), 20)]
    assert 5 < len(large.from_feedback) < 20


def test_keys_that_were_compared_are_not_kept_whole() -> None:
    tracemalloc.start()
    for n in range(300):
        assert matches_key(f"pump-{n}-{'x' * 500_000}".encode(), ("pump-*",))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3_000_000


def test_the_worst_windows_that_are_taken_cost_a_record_little() -> None:
    begins = datetime(1970, 1, 1)
    daily: dict[str, Any] = {"repeat": "FREQ=DAILY", "timezone": "Europe/Berlin", "keys": ("*a" * 90,)}
    worst = [window(f"w{n}", begins + timedelta(minutes=n), 160, **daily) for n in range(500)]
    made, time = Rules(from_feedback=worst), round(datetime(2026, 3, 29, tzinfo=UTC).timestamp() * 1000)
    began = process_time()
    for n in range(2):
        made.open_windows([time + n * 97 * 24 * HOUR], [f"{n}" + "a" * 900_000])
    assert process_time() - began < 2 * 2.5  # a tenth of it is usual
