"""Derived features, compared with a plain computation from lists of all records before."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.keys import FORGET_DIVISOR, Key
from fomo_stream.errors import DamagedStateError
from fomo_stream.records.category_codes import category_code
from fomo_stream.records.derivations import (
    Derivation,
    parse_derivation,
    parse_derivations,
    split_at_commas,
    split_derivations,
)
from fomo_stream.records.derived import (
    MAX_KNOWN_VALUES,
    MAX_LATENESS_MS,
    MAX_WINDOW_ENTRIES,
    MIN_TRIP_MS,
    RATIO_DECAY,
    WINDOW_CELLS,
    DerivedFeatures,
)
from fomo_stream.records.missing_values import Marks

ALL = parse_derivations(
    split_at_commas(
        "count(10m),gap,sum(x,24h),mean(x,7d),mean(in.y,10m),distinct(text,1h),new(text),share(text),rate(x),"
        "speed(lat,lon),change(x),ratio(part,x)"
    )
)
MARKS: Marks = {"x": (-9999.0,)}
HOSTILE: list[Any] = [
    *(None, math.nan, math.inf, "", " ", "12.5", "1e999", "007", "\ud800", "\x00", "k" * 300, True, False, -0.0),
    *([], {}, {"x": 1}, 10**400, -(10**25), 1.5e308, -1.5e308, 5e-324, -9999, "NaN", b"bytes"),
]
Stream = tuple[list[dict[str, Any]], list[Key], list[int | None]]


def stream(seed: int, n: int = 110) -> Stream:
    """Records of few keys, with missing and hostile values, and times that are late, equal, far away or unknown."""
    rng, records, keys, times = random.Random(seed), [], [], []
    time, keyed = 1_700_000_000_000, ["a", "b", b"c", None, "ü" * 400, "\ud800"]
    for _ in range(n):
        time += rng.choice([0, 1, 1000, 60_000, 600_000, 3_600_000, 90_000_000])
        late = rng.choice([0] * 8 + [5000, 3_600_000, MAX_LATENESS_MS - 1, 9 * MAX_LATENESS_MS])
        record: dict[str, Any] = {
            "x": rng.choice([rng.gauss(10, 5), rng.randint(0, 5), 0]),
            "in": {"y": rng.random()},
            "text": rng.choice(["p", "q", "r", rng.randint(0, 3)]),
            "lat": rng.uniform(-95, 95),
            "lon": rng.uniform(-190, 190),
            "part": rng.randint(0, 3),
        }
        for name in rng.sample(sorted(record), rng.choice([0, 0, 1, 6])):
            record[name] = rng.choice(HOSTILE)
        records.append(record)
        keys.append(rng.choice(keyed))
        times.append(rng.choice([time - late] * 20 + [None, 7_000_000_000_000]))
    return records, keys, times


# --- the plain computation


def number(record: dict[str, Any], path: str) -> Any:
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    is_text = isinstance(value, (str, bytes))
    if not math.isfinite(found) or (path == "x" and found == -9999) or (is_text and value != "12.5"):
        return None
    return max(-1e280, min(1e280, found))


def code(record: dict[str, Any], path: str) -> Any:
    found = category_code(record.get(path))
    return found if found == found else None


Past = list[tuple[Any, bool, dict[str, Any]]]  # time, whether it is late, record; the last one is the present


def windowed(one: Derivation, past: Past, begin: int, read: Any = number) -> list[float]:
    """The inputs in the window of the last record of a past, of the times since `begin`."""
    now = past[-1][0]
    timed = [(time, record) for time, _, record in past[begin:] if time is not None and time > now - one.window_ms]
    return [value for _, record in timed if (value := read(record, one.fields[0])) is not None]


def expected(one: Derivation, past: Past, begin: int) -> Any:
    """The value of the last record of a past; times count since the record at `begin`."""
    time, _, record = past[-1]
    read = code if one.function in ("distinct", "new", "share") else number
    own = [read(record, path) for path in one.fields]
    if None in own or (time is None and one.function not in ("new", "share", "change", "ratio")):
        return None
    first = own[0] if own else None
    before = [value for *_, each in past[:-1] if one.fields and (value := read(each, one.fields[0])) is not None]
    since = [each for each in past[begin:] if each[0] is not None]
    match one.function:
        case "count":
            return sum(each[0] > time - one.window_ms for each in since)
        case "gap":
            return (time - since[-2][0]) / 1000 if len(since) > 1 else None
        case "sum":
            return float(sum(map(Fraction, windowed(one, past, begin))))
        case "mean":
            values = windowed(one, past, begin)
            return float(sum(map(Fraction, values))) / len(values)
        case "distinct":
            return len(set(windowed(one, past, begin, code)))
        case "new":
            return int(first not in before) if before else None
        case "share":
            return before.count(first) / len(before) if before else None
        case "change":
            return first - before[-1] if before else None
        case "ratio":
            return ratio([(number(each, one.fields[0]), number(each, one.fields[1])) for *_, each in past])
    return moved(one, since)


def ratio(pairs: list[tuple[Any, Any]]) -> Any:
    known = [(a, b) for a, b in pairs if a is not None and b is not None and a >= 0 and b > 0]
    a, b = pairs[-1]
    if not known or known[-1] != (a, b) or len(known) < 2:
        return None
    weights = [RATIO_DECAY**age for age in range(len(known) - 1)][::-1]
    parts, wholes = (sum(w * each[i] for w, each in zip(weights, known, strict=False)) / sum(weights) for i in (0, 1))
    return (a + parts) / (b + wholes)


def moved(one: Derivation, since: Past) -> float | None:
    """rate and speed: of the record before that gave one, which is no late one."""
    last: Any = None
    value: float | None = None
    for time, is_late, record in since:
        values, value = [number(record, path) for path in one.fields], None
        if None in values or (is_late and last is not None) or (is_late and one.function == "speed"):
            continue
        if one.function == "speed" and (abs(values[0]) > 90 or abs(values[1]) > 180 or values == [0, 0]):
            continue
        if last is not None and one.function == "rate":
            if time == last[0]:
                continue
            grown = values[0] - last[1][0] if values[0] >= last[1][0] else max(values[0], 0)
            value = 1000 * grown / (time - last[0])
        elif last is not None:
            a, b = ([math.radians(each) for each in place] for place in (values, last[1]))
            points = [
                (math.cos(p[0]) * math.cos(p[1]), math.cos(p[0]) * math.sin(p[1]), math.sin(p[0])) for p in (a, b)
            ]
            km = 2 * 6371 * math.asin(min(1, math.dist(*points) / 2))
            value = km * 3_600_000 / max(time - last[0], MIN_TRIP_MS)
        last = (time, values)
    return value


def reference(derivations: Sequence[Derivation], given: Stream, max_keys: int) -> list[dict[str, float | None]]:
    pasts: dict[Any, Past] = {}
    begins: dict[Any, int] = {}
    used: list[Any] = []
    found = []
    for record, key, time in zip(*given, strict=True):
        name = (type(key), key)
        past, used = pasts.setdefault(name, []), [one for one in used if one != name] + [name]
        latest = next((each[0] for each in reversed(past[begins.get(name, 0) :]) if each[0] is not None), None)
        is_late = time is not None and latest is not None and time < latest
        if time is not None and latest is not None and latest - time > 7 * MAX_LATENESS_MS:
            begins[name], is_late = len(past), False
        past.append((latest if is_late else time, is_late, record))
        found.append({one.name: expected(one, past, begins.get(name, 0)) for one in derivations})
        if len(used) > max_keys:
            n = 1 + max_keys // FORGET_DIVISOR
            for old in used[:n]:
                del pasts[old]
                begins.pop(old, None)
            used = used[n:]
    return found


# --- comparisons


def values_of(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = [one.name for one in ALL]
    return [{name: record[name] for name in names} for record in found]


def whole(given: Stream, max_keys: int = 100) -> list[dict[str, Any]]:
    return values_of(DerivedFeatures(ALL, max_keys, MARKS).follow(*given))


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 100]))
def test_features_are_those_of_a_plain_computation_from_all_records_before(seed: int, max_keys: int) -> None:
    given = stream(seed)
    derived = DerivedFeatures(ALL, max_keys, MARKS)
    found = derived.follow(*given)
    for at, (own, wanted) in enumerate(zip(values_of(found), reference(ALL, given, max_keys), strict=True)):
        for name, value in wanted.items():
            is_rounded = value and name.startswith(("speed", "ratio", "rate"))
            assert own[name] == (pytest.approx(value, rel=1e-6, abs=1e-6) if is_rounded else value), (at, name)
    assert all(one.items() >= record.items() for one, record in zip(found, given[0], strict=True))


@given(st.integers(0, 10**6), st.lists(st.integers(0, 110), max_size=6), st.sampled_from([2, 100]))
def test_neither_batches_nor_restarts_nor_looks_change_a_bit(seed: int, cuts: list[int], max_keys: int) -> None:
    """At each cut another one goes on from the entries of a compacted log; a look and a copy change nothing."""
    given, entries = stream(seed), dict[str, bytes]()
    derived, found = DerivedFeatures(ALL, max_keys, MARKS), list[dict[str, Any]]()
    bounds = sorted({0, *cuts, 110})
    for start, stop in pairwise(bounds):
        part: Any = [column[start:stop] for column in given]
        looked = derived.follow(part[0], part[1], part[2], learn=False)
        derived.copy().follow(*part)
        if start + 1 == stop or max_keys == 100:
            assert derived.changes() == {}
        found += derived.follow(*part)
        if max_keys == 100:
            assert values_of(looked) == values_of(found[start:])
        twin = derived.copy()
        for name, value in derived.changes().items():
            entries |= {name: value} if value is not None else {}
            if value is None:
                del entries[name]
        assert entries == twin.changes()
        assert derived.changes() == {}
        derived = DerivedFeatures(ALL, max_keys, MARKS)
        derived.recover(entries)
        assert derived.changes() == {}
    assert repr(values_of(found)) == repr(whole(given, max_keys))


def test_a_window_with_many_records_is_at_most_a_part_longer_and_takes_bounded_memory() -> None:
    rng = random.Random(0)
    derived = DerivedFeatures(parse_derivations(["count(10m)", "sum(x,10m)", "mean(x,10m)"]), 1)
    times = sorted(rng.randrange(3_600_000) for _ in range(5000))
    values = [{"x": rng.random()} for _ in times]
    found = derived.follow(values, [None] * len(times), times)
    for at in range(0, len(times), 97):
        sizes = [
            sum(time > times[at] - span for time in times[: at + 1])
            for span in (600_000, 600_000 + 600_000 // WINDOW_CELLS)
        ]
        count, total, mean = (found[at][one] for one in derived.names)
        assert sizes[0] <= count <= sizes[1]
        assert total == pytest.approx(math.fsum(one["x"] for one in values[at + 1 - count : at + 1]))
        assert mean == pytest.approx(total / count)
    (entry,) = derived.changes().values()
    assert entry is not None
    assert len(entry) < 100 * MAX_WINDOW_ENTRIES


def test_of_very_many_values_those_seen_last_are_known() -> None:
    derived = DerivedFeatures(parse_derivations(["distinct(v,1h)", "new(v)", "share(v)"]), 1)
    n = 3 * MAX_KNOWN_VALUES
    records = [{"v": at} for at in range(n)] + [{"v": n - MAX_KNOWN_VALUES}, {"v": 0}]
    found = derived.follow(records, [None] * len(records), [0] * len(records))
    assert found[-3]["distinct(v,1h)"] == MAX_KNOWN_VALUES
    assert (found[-2]["new(v)"], found[-1]["new(v)"]) == (0, 1)
    assert found[-2]["share(v)"] == pytest.approx(1 / MAX_KNOWN_VALUES)
    derived = DerivedFeatures(parse_derivations(["share(v)"]), 1)
    texts = [{"v": "old"}] * 3000 + [{"v": "now"}] * 3000
    found = derived.follow(texts, [None] * 6000, [None] * 6000)
    assert found[2999]["share(v)"] == 1
    assert found[-1]["share(v)"] > 0.9  # old records count less


# --- what cannot be


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuont(10m)", "did you mean count?"),
        ("x", "there is no such function; write count(10m), gap(), "),
        ("speed(lat)", "write it as speed(lat, lon)"),
        ("count(10)", "10 is not a duration; write a number and a unit: 90s, 30m, 12h, 7d or 2w"),
        ("count(0.5s)", "at least 1s"),
        ("sum(x,99999d)", "at most 366d"),
        ("sum(x,24h", "a parenthesis is missing"),
        ("count(10m), gap(), count(600s)", "count(10m) and count(600s): give each feature once"),
    ],
)
def test_what_is_no_feature_is_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_derivations(split_derivations(text))


@given(st.text(max_size=30))
def test_any_text_means_a_feature_or_is_refused(text: str) -> None:
    for one in split_derivations(text):
        try:
            found = parse_derivation(one)
        except ValueError:
            continue
        assert parse_derivation(found.name) == found


def test_commas_between_parentheses_separate_nothing() -> None:
    assert split_derivations(["count(10m), sum(a, 24h)", "gap"]) == ("count(10m)", "sum(a, 24h)", "gap")
    assert parse_derivation("mean(T (C), 1h)").fields == ("T (C)",)


@pytest.mark.parametrize("entries", [{"zz": b"[]"}, {"aa": b"{"}, {"aa": b"[1,2]"}, {"aa": b"[null,2,[]]"}])
def test_a_damaged_state_is_refused(entries: dict[str, bytes]) -> None:
    with pytest.raises(DamagedStateError, match="derived features"):
        DerivedFeatures(parse_derivations(["gap()"]), 1).recover(entries)
