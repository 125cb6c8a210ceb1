"""Silence: against a plain oracle that looks at every key at every record, at any split of the records, after any
restart, and with a clock that tests set.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.errors import DamagedStateError
from fomo_stream.partition.gaps import NO_LIMIT_MS, SilenceConfig
from fomo_stream.partition.incidents import Notice
from fomo_stream.partition.silence import Silence

FACTOR, LEAST = 5.0, 60_000
CONFIG = SilenceConfig(FACTOR, LEAST)
BEGAN = 1_700_000_000_000
SECOND = 1000
LOOK = 3 * SECOND

Record = tuple[bytes | None, int, int]  # key, offset, timestamp


# --- the oracle


@dataclass
class PlainSeries:
    """One series, with the text of the documentation written down once more, as plainly as possible."""

    last: int = 0
    mark: int = 0
    gaps: Counter[int] = field(default_factory=Counter)  # by half octaves above the floor
    seen: int = 0
    limit: float = math.inf
    is_silent: bool = False
    arrived: int = 0
    offset: int = 0

    def usual(self) -> float:
        ordered = sorted(self.gaps.elements())
        return 12_000 * 2 ** (ordered[-1 - len(ordered) // 100] / 2) if ordered else 0.0

    def record(self, now: int, others: list[float], n_keys: int) -> None:
        gap, self.last = now - self.last, now
        if gap < 12_000 and now - self.mark < 12_000:
            return
        self.mark = now
        self.gaps[0 if gap <= 12_000 else math.ceil(2 * math.log2(gap / 12_000))] += 1
        if self.gaps.total() >= 250:
            self.gaps = Counter({bucket: count // 2 for bucket, count in self.gaps.items()})
        self.seen = min(250, self.seen + 1)
        is_key = n_keys > 0
        if is_key and self.seen == 20:
            others.append(math.log(self.usual()))
        if self.seen < 3 or (self.seen > 50 and self.gaps.total() % 16):
            return
        weight, usual = 0.0, self.usual()
        if is_key and len(others) >= max(20, 0.95 * n_keys):
            weight = min(20.0, 1 / max(float(np.var(others)), 1e-9 / len(others)))
            usual = max(usual, (self.seen * usual + weight * math.exp(np.mean(others))) / (self.seen + weight))
        m = self.seen + weight
        self.limit = max(LEAST, round(FACTOR * m * (10 ** (9 / m) - 1) / math.log(1e9) * usual))


class PlainSilence:
    """Time passes with the records alone. Looks at every key at every record."""

    def __init__(self) -> None:
        self.keys: dict[bytes, PlainSeries] = {}
        self.whole = PlainSeries()
        self.others: list[float] = []
        self.clock = 0
        self.arrived: int | None = None

    def follow(self, record: Record) -> list[tuple[str, str, bytes | None, int]]:
        key, offset, timestamp = record
        said: list[tuple[str, str, bytes | None, int]] = []
        time = timestamp if self.arrived is None else max(timestamp, self.arrived)
        gap = 0 if self.arrived is None else time - self.arrived
        self.arrived, whole = time, self.whole
        if gap > whole.limit:
            said += [("silent", "partition", None, whole.offset), ("closed", "partition", None, whole.offset)]
        else:
            self.clock += gap
        whole.record(whole.last + gap, [], 0)
        whole.offset = offset
        for other, series in self.keys.items():
            if not series.is_silent and self.clock >= series.last + series.limit and other != key:
                series.is_silent = True
                said.append(("silent", "key", other, series.offset))
        if key is None:
            return said
        series = self.keys.setdefault(key, PlainSeries(self.clock, self.clock))
        if series.is_silent:
            series.is_silent = False
            said.append(("closed", "key", key, series.offset))
        series.record(self.clock, self.others, len(self.keys))
        series.offset = offset
        return said


def plain(notice: Notice) -> tuple[str, str, bytes | None, int]:
    summary = notice.summary
    return summary["status"], summary["of"], notice.key, summary["from"]["offset"]


GAPS = st.sampled_from([0, 1, 700, 5_000, 11_999, 12_000, 13_000, 40_000, 61_000, 300_000, 4_000_000, 10**9])
RUN = st.tuples(st.sampled_from([None, b"a", b"b", b"c"]), GAPS, st.integers(1, 40))


def records_of(runs: list[tuple[bytes | None, int, int]]) -> list[Record]:
    made: list[Record] = []
    time = BEGAN
    for key, gap, times in runs:
        for _ in range(times):
            time += gap
            made.append((key, len(made), time))
    return made


def mixed(runs: list[tuple[bytes | None, int, int]]) -> list[tuple[bytes | None, int, int]]:
    """The runs, after a while in which all keys send, so that something is known of them."""
    return [(key, 7_000, 1) for key in (b"a", b"b", b"c")] * 40 + runs


@given(st.lists(RUN, max_size=20), st.booleans())
def test_it_says_what_a_look_at_every_key_at_every_record_says(
    runs: list[tuple[bytes | None, int, int]], is_known: bool
) -> None:
    silence, oracle = Silence(CONFIG, "t", 0, by_records=True), PlainSilence()
    for record in records_of(mixed(runs) if is_known else runs):
        said = [plain(notice) for notice in silence.follow([record])]
        assert sorted(said, key=repr) == sorted(oracle.follow(record), key=repr)


def test_in_a_fleet_of_like_keys_a_young_key_is_known_at_once() -> None:
    """It has had three gaps; alone it would take hours."""
    runs = [(b"%d" % key, 400, 1) for _ in range(25) for key in range(30)]
    runs += [(key, 400, 1) for _ in range(4) for key in (b"young", *(b"%d" % key for key in range(30)))]
    records = records_of([*runs, (b"0", 1000, 300)])
    silence, oracle, delays = Silence(CONFIG, "t", 0, by_records=True), PlainSilence(), []
    for record in records:
        notices = silence.follow([record])
        assert sorted(map(plain, notices), key=repr) == sorted(oracle.follow(record), key=repr)
        delays += [one.summary["quiet_s"] for one in notices if one.key == b"young"]
    assert delays
    assert delays[0] < 150


# --- splits and restarts


def restarted(silence: Silence, log: dict[str, bytes], by_records: bool = True) -> Silence:
    """The same silence after a restart: from the log that it has written."""
    for name, value in silence.changes().items():
        if value is None:
            del log[name]
        else:
            log[name] = value
    another = Silence(CONFIG, "t", 0, by_records=by_records)
    another.recover(log)
    return another


@given(st.lists(RUN, max_size=12), st.lists(st.integers(1, 60), min_size=1, max_size=10), st.booleans())
def test_neither_splits_nor_restarts_change_what_it_says(
    runs: list[tuple[bytes | None, int, int]], sizes: list[int], has_restarts: bool
) -> None:
    records = records_of(mixed(runs))
    whole = Silence(CONFIG, "t", 0, by_records=True).follow(records)
    silence, log, parts, at = Silence(CONFIG, "t", 0, by_records=True), dict[str, bytes](), list[Notice](), 0
    while at < len(records):
        size = sizes[at % len(sizes)]
        parts += silence.follow(records[at : at + size])
        at += size
        if has_restarts:
            silence = restarted(silence, log)
    assert sorted(parts, key=repr) == sorted(whole, key=repr)


def test_a_key_that_no_commit_has_had_for_long_is_known_after_a_restart() -> None:
    records = records_of([*mixed([]), (b"a", 1_000, 400), (b"b", 1_000, 1)])
    silence, log, said = Silence(CONFIG, "t", 0, by_records=True), dict[str, bytes](), list[Notice]()
    for record in records:
        said += silence.follow([record])
        log |= {name: value for name, value in silence.changes().items() if value is not None}
    assert sorted(map(plain, said)) == sorted(map(plain, Silence(CONFIG, "t", 0, by_records=True).follow(records)))
    assert silence.open["key"] == 1
    assert restarted(silence, log).open == silence.open


def test_what_nobody_was_told_of_has_no_end_after_a_restart_either() -> None:
    records = records_of([*mixed([]), (b"a", 1_000, 400), (b"b", 1_000, 1)])
    silence, log = Silence(CONFIG, "t", 0, by_records=True), dict[str, bytes]()
    assert silence.follow(records[:-1], is_notified=False) == []
    assert silence.open["key"] == 2
    assert restarted(silence, log).follow(records[-1:]) == []


def test_of_too_many_keys_the_one_used_least_recently_is_forgotten_and_its_silence_ends() -> None:
    silence, log = Silence(CONFIG._replace(max_keys=3), "t", 0, by_records=True), dict[str, bytes]()
    runs = [*mixed([]), (b"a", 1_000, 400)]  # b and c are silent
    said = silence.follow(records_of(runs))
    assert sorted(plain(one)[:3] for one in said) == [("silent", "key", b"b"), ("silent", "key", b"c")]
    assert silence.open == {"key": 2, "partition": 0, "topic": 0}
    after = records_of([*runs, (b"d", 1, 1), (b"e", 1, 1), (b"f", 1, 1)])[len(records_of(runs)) :]
    (first, second) = silence.follow(after)
    assert [plain(one)[:3] for one in (first, second)] == [("closed", "key", b"b"), ("closed", "key", b"c")]
    assert "no longer watched" in first.summary["explanation"]
    assert first.summary["to"]["offset"] is None
    back = restarted(silence, log)
    assert back.open == {"key": 0, "partition": 0, "topic": 0}
    assert back.follow([(b"b", 10_000, after[-1][2])], after[-1][2]) == []


@pytest.mark.parametrize("name", ["head", "recent-1"])
@pytest.mark.parametrize("damage", [b"", b"[1,2]", b"\xff" * 300])
def test_a_damaged_state_is_an_error(name: str, damage: bytes) -> None:
    silence, log = Silence(CONFIG, "t", 0), dict[str, bytes]()
    silence.follow(records_of(mixed([])))
    restarted(silence, log)
    with pytest.raises(DamagedStateError):
        Silence(CONFIG, "t", 0).recover({**log, name: damage})


# --- the clock


class Live:
    """A partition, the broker and a clock: records that are sent are read at once, unless the service stands still."""

    def __init__(
        self, config: SilenceConfig = CONFIG, number: int = 0, skew: dict[bytes, int] | None = None, **more: Any
    ) -> None:
        self.skew = skew or {}  # by key: how much its clock is ahead
        self.silence = Silence(config, "t", number, **more)
        self.log: dict[str, bytes] = {}
        self.now = BEGAN
        self.end, self.others_end, self.looked = 0, 0, BEGAN
        self.unread: list[Record] = []
        self.said: list[dict[str, Any]] = []
        self.is_running, self.is_broker_up = True, True

    def run(self, seconds: float, keys: dict[bytes, float], others: float = 0.0) -> None:
        """Each key sends so often (seconds); another partition every `others` seconds, if it does."""
        until = self.now + round(seconds * SECOND)
        due = {key: self.now + round(gap * SECOND) for key, gap in keys.items()}
        other = self.now + round(others * SECOND) if others else NO_LIMIT_MS
        while True:
            at = min([self.looked + LOOK, other, *due.values()])
            if at > until:
                break
            self.now = at
            if at == self.looked + LOOK:
                self.looked = at
                self._look()
                continue
            if at == other:
                self.others_end += 1
                other += round(others * SECOND)
                continue
            key = next(key for key in due if due[key] == at)
            due[key] += round(keys[key] * SECOND)
            self.unread.append((key, self.end, at + self.skew.get(key, 0)))
            self.end += 1
            self._read()
        self.now = until

    def _read(self) -> None:
        if self.is_running and self.is_broker_up:
            self.said += [one.summary for one in self.silence.follow(self.unread, self.now)]
            self.unread.clear()

    def _look(self) -> None:
        if self.is_broker_up and self.is_running:
            self._read()
            self.said += [one.summary for one in self.silence.poll(self.now, True, self.end + self.others_end)]

    def lag(self, seconds: float, keys: dict[bytes, float]) -> None:
        """The broker answers, but no record is read."""
        self.is_running = False
        for _ in range(round(seconds / 3)):
            self.run(3, keys)
            self.said += [one.summary for one in self.silence.poll(self.now, False, self.end + self.others_end)]
        self.is_running = True

    def restart(self, after: float = 0.0, keys: dict[bytes, float] | None = None) -> None:
        self.silence = restarted(self.silence, self.log, by_records=False)
        self.is_running = False
        self.run(after, keys or {})
        self.is_running = True

    def take(self) -> list[tuple[str, str, str | None]]:
        said, self.said = self.said, []
        return [(one["status"], one["of"], one.get("key")) for one in said]


FAST, SLOW = {b"a": 2.0, b"b": 3.0}, {b"a": 2.0}


def test_a_key_that_stops_is_told_once_and_again_when_it_comes_back() -> None:
    live = Live()
    live.run(3600, FAST)
    live.run(58, SLOW)
    assert live.take() == []
    last = live.end
    live.run(3600, SLOW)
    assert live.take() == [("silent", "key", "b")]
    live.run(60, FAST)
    said = live.said
    assert live.take() == [("closed", "key", "b")]
    assert said[0]["to"]["offset"] > last
    assert 3600 < said[0]["quiet_s"] < 3700


def test_the_partition_is_told_in_place_of_its_keys_and_the_topic_in_place_of_its_partitions() -> None:
    live = Live()
    live.run(3600, FAST, others=1.0)
    live.run(600, {}, others=1.0)
    assert live.take() == [("silent", "partition", None)]
    live.run(600, FAST, others=1.0)
    assert live.take() == [("closed", "partition", None)]
    live.run(600, {})
    assert live.take() == [("silent", "topic", None)]
    live.run(600, FAST, others=1.0)
    assert live.take() == [("closed", "topic", None)]
    other = Live(number=1)
    other.run(3600, FAST)
    other.run(600, {})
    assert other.take() == []  # partition 0 tells of the topic


def test_a_key_that_died_with_its_partition_is_told_when_the_partition_is_back() -> None:
    live = Live(CONFIG._replace(levels=("key", "partition")))
    live.run(3600, FAST)
    live.run(7200, {})
    live.run(50, SLOW)
    assert live.take() == [("silent", "partition", None), ("closed", "partition", None)]
    live.run(60, SLOW)
    assert live.take() == [("silent", "key", "b")]


@pytest.mark.parametrize("what", ["stopped", "stopped with the producers", "lags", "no broker"])
@pytest.mark.parametrize(("seconds", "before"), [(3600, 30), (40, 30)])
def test_no_silence_is_told_because_the_service_was_stopped_lags_or_has_no_broker(
    what: str, seconds: int, before: int
) -> None:
    """before: seconds for which a key was quiet already."""
    live = Live()
    live.run(3600, FAST)
    live.run(before, SLOW)
    if what == "lags":
        live.lag(seconds, FAST)
    elif what == "no broker":
        live.is_broker_up = False
        live.run(seconds, {})
        live.is_broker_up = True
    else:
        live.restart(seconds, FAST if what == "stopped" else {})
    live.run(600, FAST)
    assert live.take() == []
    live.run(600, SLOW)
    assert live.take() == [("silent", "key", "b")]


@settings(max_examples=10)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=30))
def test_restarts_neither_repeat_nor_lose_a_silence(gaps: list[int]) -> None:
    """However often it restarts: of what lasts long enough while it runs."""
    live = Live()
    live.run(3600, FAST, others=1.0)
    for what, keys in (("key", SLOW), ("partition", dict[bytes, float]())):
        for gap in gaps:
            live.run(gap, keys, others=1.0)
            live.restart()
        live.run(200, keys, others=1.0)
        assert [status for status, of, _ in live.take() if of == what] == ["silent"]
        live.run(300, FAST, others=1.0)
        assert [status for status, of, _ in live.take() if of == what] == ["closed"]


@pytest.mark.parametrize("skew", [-3600, 90])
def test_clocks_of_producers_do_not_matter(skew: int) -> None:
    """One producer's clock is an hour off."""
    live = Live(skew={b"b": skew * SECOND})
    live.run(7200, {b"a": 2.0, b"b": 2.0})
    assert live.take() == []
    live.run(100, {b"a": 1.0})
    assert live.take() == [("silent", "key", "b")]


def test_nobody_is_told_of_muted_keys_nor_in_windows_but_afterwards_if_it_lasts() -> None:
    muted_until = BEGAN + 10_000 * SECOND
    live = Live(is_muted=lambda key, time: time < muted_until or key == b"c")
    live.run(3600, {**FAST, b"c": 5.0})
    live.run(3600, {**SLOW, b"c": 5.0})
    assert live.take() == []
    live.run(3600, SLOW)
    assert live.take() == [("silent", "key", "b")]


# --- what happens rarely


def test_a_clock_that_was_ahead_once_does_not_blind_it() -> None:
    live = Live()
    live.run(3600, FAST)
    live.silence.poll(live.now + 10 * 365 * 86_400 * SECOND, True, live.end)
    live.restart()
    live.run(60, FAST)
    assert live.take() == []
    live.run(300, SLOW)
    assert live.take() == [("silent", "key", "b")]


@pytest.mark.parametrize(
    "changed", [SilenceConfig(None), CONFIG._replace(factor=8.0), CONFIG._replace(levels=("topic",))]
)
def test_what_was_told_ends_when_it_is_no_longer_watched(changed: SilenceConfig) -> None:
    live = Live()
    live.run(3600, FAST)
    live.run(600, SLOW)
    assert live.take() == [("silent", "key", "b")]
    log = {name: value for name, value in live.silence.changes().items() if value is not None}
    another = Silence(changed, "t", 0)
    another.recover(log)
    assert another.has_news
    notices = another.follow([(b"a", live.end, live.now)], live.now)
    assert [(one.summary["status"], one.summary["of"]) for one in notices] == [("closed", "key")]
    assert {one.offset for one in notices} == {live.end}
    assert all("no longer watched: the settings have changed" in one.summary["explanation"] for one in notices)
    assert another.follow([(b"a", live.end + 1, live.now)], live.now) == []


def test_keys_begin_again_when_the_topic_grows_because_they_may_have_moved() -> None:
    live = Live()
    live.run(3600, FAST)
    live.run(200, SLOW)
    assert live.take() == [("silent", "key", "b")]
    live.now += LOOK
    (ended,) = live.silence.poll(live.now, True, live.end, partitions=2)
    assert plain(ended)[:3] == ("closed", "key", b"b")
    live.silence.poll(live.now + LOOK, True, live.end, partitions=2)
    records = [(b"c", live.end + second, None) for second in range(600)]
    assert live.silence.follow(records, live.now + 9999) == []


@pytest.mark.parametrize(("until", "told"), [(36_000, ["silent", "closed"]), (7_000, [])])
def test_in_a_replay_a_silence_beyond_a_window_is_told_as_in_the_service(until: int, told: list[str]) -> None:
    opened = range(BEGAN + 3_700 * SECOND, BEGAN + 7_200 * SECOND)
    silence = Silence(CONFIG, "t", 0, by_records=True, is_muted=lambda _key, time: time in opened)
    records: list[Record] = [(b"a", second, BEGAN + second * SECOND) for second in range(0, 3_695, 5)]
    notices = silence.follow([*records, (b"a", 4_000, BEGAN + until * SECOND)])
    assert [plain(one)[:2] for one in notices] == [(status, "partition") for status in told]


def test_a_record_between_the_question_and_the_answer_is_no_quiet_time() -> None:
    """The topic's end shows it a look later than the partition."""
    live = Live()
    live.run(3_600, {b"a": 10.0})
    last = live.now
    for second in range(0, 60, 3):
        live.silence.poll(last + second * SECOND, True, live.end)
    live.silence.follow([(b"a", live.end, last + 60_500)], last + 60_500)
    said = live.silence.poll(last + 60_400, True, live.end)
    said += live.silence.poll(last + 63_000, True, live.end + 1)
    said += live.silence.poll(last + 66_000, True, live.end + 1)
    assert [plain(one)[:2] for one in said if one.summary["of"] == "partition"] == []


def test_where_nothing_can_be_told_it_waits() -> None:
    """A partition of records with a schema, none of which was read since a restart."""
    live = Live()
    live.run(3_600, FAST)
    told: list[Notice] = []
    for second in range(0, 1_200, 3):
        told += live.silence.poll(live.now + second * SECOND, True, live.end, can_notify=False)
    assert told == []
    (notice,) = live.silence.poll(live.now + 1_200 * SECOND, True, live.end)
    assert plain(notice)[:2] == ("silent", "topic")
