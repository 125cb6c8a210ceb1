"""Data that stop: keys, partitions and a topic that send no more. Pure: it has no clock.

Each level is judged by the time in which the level above it has sent: a key by the time in which its partition had
records, a partition by the time in which the topic had some, and the topic by the time in which the broker answered. So
an outage gives one alert, at the level where it is, and not one for each key.

Nothing that keeps records from being read is silence:
- *A service that was stopped*: time passes only between two looks at the broker, and a gap between two records counts
  only if it is shorter than what makes the partition silent.
- *A service that lags*: a partition is silent only if all that the broker has of it was read. Keys go by the times of
  records, not by when they were read.
- *A broker that does not answer*: the time between two looks that are OUTAGE_MS apart does not count.

A record counts at the time when it arrived: its timestamp, but never earlier than the record before it or than the last
look at which it was not there, and never later than now. So it does not matter if the clocks of producers are wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from heapq import heappop, heappush
from itertools import takewhile
from typing import Any

import orjson

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.keys import Key
from fomo_stream.errors import DamagedStateError
from fomo_stream.partition.gaps import (
    FIRST_KEY,
    KEY,
    LEVELS,
    NO_LIMIT_MS,
    PARTITION,
    TOPIC,
    GapSeries,
    PeerGaps,
    SilenceConfig,
)
from fomo_stream.partition.incidents import CLOSED, Notice
from fomo_stream.records.result import Result
from fomo_stream.wording import in_time

SILENT = "silent"  # a status, beside CLOSED
OUTAGE_MS = 10_000  # between two looks at the broker: longer, and the time between them does not count
MIN_NOTED_MS = 15_000  # of silence, after which it is noted how long it has lasted
MAX_KEY_BYTES = 4096  # bytes; longer ones are not watched
HEAD = "head"
RECENT, RING = "recent-", 64  # entries with the series of the last commits
_PART = struct.Struct("<II")  # number of a series, and the length of its row
_NOTIFIED, _NOT_NOTIFIED = 1, 2  # of a silent series, in its entry
_BITS = 32  # of the number of a series
MAX_KEY_CHARACTERS = 60  # characters of a key in a sentence


@dataclass
class _Clock:
    """What is known beside the series. Times are milliseconds."""

    clock: int = 0  # of keys
    pace: int = 0  # time in which the topic had records
    quiet_since: int = 0  # the pace when the partition last had one
    still: int = 0  # time since the topic last had one
    arrived: int | None = None  # when the last record arrived
    earliest: int = 0  # no further record has arrived before
    lost: int = 0  # time since the last record in which the broker did not answer
    topic_end: int | None = None
    has_more: bool = False  # records were followed since the broker was asked,
    had_more: bool = False  # and before
    partitions: int = 0  # of the topic; 0: not known


class Silence:
    """What is known of the times of records of one partition, and what is silent of it.

    topic, number: of the partition; without a topic, notices do not name it. by_records: time passes with the records
    alone, as in a replay; else also with `look`. is_muted: whether nobody wants to know of a key (None: of the whole
    partition) at a time. What it says does not depend on how records are split over calls.
    """

    def __init__(
        self,
        config: SilenceConfig,
        topic: str | None = None,
        number: int = 0,
        *,
        by_records: bool = False,
        is_muted: Callable[[Key, int], bool] = lambda _key, _time: False,
    ) -> None:
        self._config, self._by_records, self._is_muted = config, by_records, is_muted
        self._source: dict[str, Any] = {} if topic is None else {"topic": topic, "partition": number}
        self._number = number
        self._levels = frozenset[str]() if config.factor is None else frozenset(config.levels)
        self.is_on = bool(self._levels)
        self._learned_with = [config.factor, config.least_ms, sorted(self._levels)]
        self._at = _Clock()
        self._others = PeerGaps()
        self._partition, self._topic = GapSeries(0), GapSeries(1)
        self._series = {0: self._partition, 1: self._topic}  # by number
        self._next = FIRST_KEY  # number of the next new key
        self._keys: dict[bytes, GapSeries] = {}  # those that were used least recently first
        self._due: list[int] = []  # a heap: when a key is looked at << _BITS | its number; some are out of date
        self._silent: dict[GapSeries, bool] = {}  # whether somebody was told
        self._looked: int | None = None  # when the broker was asked
        self._can_tell = self._is_telling = True
        self._is_restored = False  # no record was followed since a restart: nobody knows how long a gap really was
        self._notices: list[Notice] = []  # to return
        # The log has the series of each commit in one entry of a ring: an entry each would cost more than all else.
        # One that no later commit has when its entry is overwritten gets an entry of its own.
        self._sequence = 0  # of the last commit
        self._in_ring: dict[int, int] = {}  # by number: the last commit that has it, oldest first
        self._written: set[int] = set()  # numbers since the last commit
        self._is_changed = False
        self._noted = 0

    @property
    def open(self) -> dict[str, int]:
        """How many are silent, by level."""
        found = dict.fromkeys(LEVELS, 0)
        for series in list(self._silent):  # another thread may ask
            found[series.level] += 1
        return found

    @property
    def has_news(self) -> bool:
        """Whether `follow` has something to tell of before."""
        return bool(self._notices)

    # -- records ---------------------------------------------------------------------------------------------

    def follow(
        self, records: Iterable[tuple[Key, int, int | None]], now: int | None = None, is_told: bool = True
    ) -> list[Notice]:
        """Follow the next records: key, offset and timestamp (milliseconds since 1970) of each.

        now: the time now, after which no record has arrived. is_told: whether notices are wanted; if not, nobody is
        told later of what begins here.
        """
        at, self._is_telling = self._at, is_told
        latest = NO_LIMIT_MS if now is None else now
        if latest < at.earliest:
            self._set_back(latest)
        for key, offset, timestamp in records:
            if self._notices and self._notices[0].offset is None:  # of what is no longer watched
                self._notices = [one._replace(offset=offset) for one in self._notices]
            arrived = at.arrived if now is None else now
            time = min(timestamp, latest) if timestamp is not None else arrived
            if time is None:
                continue  # nothing is known of its time
            time = max(time, at.earliest)
            gap = 0 if at.arrived is None else max(0, time - at.arrived - at.lost)
            at.arrived = at.earliest = time
            at.lost, at.has_more, self._is_changed = 0, True, True
            name = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
            if name is None or len(name) > MAX_KEY_BYTES or KEY not in self._levels:
                self._partition_record(gap, offset, time, None)
                continue
            own = self._keys.pop(name, None)
            self._partition_record(gap, offset, time, own)
            self._keys[name] = own = own or self._new(name, offset, time)
            self._key_record(own, offset, time)
        self._is_telling = True
        return self._take_notices()

    def _set_back(self, now: int) -> None:
        """The clock has gone back: what is later has not happened."""
        self._at.earliest = now
        self._at.arrived = None if self._at.arrived is None else min(self._at.arrived, now)

    def _partition_record(self, gap: int, offset: int, time: int, own: GapSeries | None) -> None:
        """A record came `gap` after the one before it. own: of its key."""
        its, at = self._partition, self._at
        if gap > its.limit and self._by_records and PARTITION in self._levels:
            self._begin(its, offset, time - gap + its.limit)
            if its not in self._silent:  # it was muted then
                self._begin(its, offset, time)
        if its in self._silent:
            self._end(its, offset, time)
        elif gap <= (its.usual(self._config.floor) if self._is_restored else its.limit):
            at.clock += gap
        elif not self._by_records:  # nobody watched it
            gap = 0
        self._is_restored = False
        self._learn(its, its.last + gap)
        its.offset, its.time = offset, time
        while self._due and self._due[0] >> _BITS <= at.clock:
            due, number = divmod(heappop(self._due), 1 << _BITS)
            series = self._series.get(number)
            if series is None or series.due != due:
                continue  # out of date
            series.due, until = NO_LIMIT_MS, series.last + series.limit
            if until > at.clock:
                self._look_at(series, until)
            elif series is not own:
                self._begin(series, offset, time)

    def _key_record(self, series: GapSeries, offset: int, time: int) -> None:
        if series in self._silent:
            self._end(series, offset, time)
        self._learn(series, self._at.clock)
        series.offset, series.time = offset, time
        self._written.add(series.number)
        until = self._at.clock + series.limit
        if until < series.due:
            self._look_at(series, until)

    def _learn(self, series: GapSeries, now: int) -> None:
        """A series has a record now, on its clock."""
        gap, floor = now - series.last, self._config.floor
        series.last = now
        if gap >= floor or now - series.mark >= floor:  # if it is shorter, it ends a burst, or there are no gaps
            others = self._others if series.number >= FIRST_KEY else None
            series.add(max(gap, floor), self._config, others, len(self._series) - FIRST_KEY)
            series.mark = now

    def _look_at(self, series: GapSeries, when: int) -> None:
        series.due = when
        heappush(self._due, when << _BITS | series.number)

    def _new(self, name: bytes, offset: int, time: int) -> GapSeries:
        """A new key; if there are too many, it takes the number of the one that was used least recently."""
        if len(self._keys) >= self._config.max_keys:
            forgotten = self._keys.pop(next(iter(self._keys)))
            self._forget(forgotten, offset, time, "there are too many other keys")
            number = forgotten.number
        else:
            number, self._next = self._next, self._next + 1
        series = self._series[number] = GapSeries(number, name, self._at.clock)
        return series

    def _forget(self, series: GapSeries, offset: int | None, time: int, why: str) -> None:
        """A key, which is not among the keys any more."""
        if series in self._silent:
            self._end(series, offset, time, why)
        del self._series[series.number]
        self._written.add(series.number)

    # -- the clock -------------------------------------------------------------------------------------------

    def look(
        self, now: int, is_read: bool, topic_end: int | None, partitions: int = 1, can_tell: bool = True
    ) -> list[Notice]:
        """The broker was asked at this time (milliseconds since 1970).

        is_read: whether all was followed that it had of the partition; topic_end: sum of the ends of all partitions of
        the topic, None if it is not known. can_tell: if not, nothing begins or ends at this look.
        """
        at, its = self._at, self._partition
        step, self._can_tell = 0 if self._looked is None else now - self._looked, can_tell
        if step < 0:
            self._set_back(now)
        if not 0 <= step <= OUTAGE_MS:
            at.lost += max(0, step)
            step = 0
        self._looked = now
        if partitions != at.partitions and can_tell:
            if at.partitions:  # keys may be in others from now on
                for series in self._keys.values():
                    self._forget(series, None, now, "the topic has more partitions now")
                self._keys, self._next = {}, FIRST_KEY
            at.partitions = partitions
        self._look_at_topic(step, now, topic_end)
        if at.has_more or at.had_more or not is_read:
            at.quiet_since = at.pace
        elif PARTITION in self._levels and at.pace - at.quiet_since > its.limit and its not in self._silent:
            self._begin(its, None, now)
        if is_read:
            at.earliest = max(at.earliest, now)
        self._is_changed |= bool(self._notices) or (self._waits and now - self._noted >= MIN_NOTED_MS)
        at.has_more, at.had_more = False, at.has_more
        notices, self._can_tell = self._take_notices(), True
        return notices

    @property
    def _waits(self) -> bool:
        """Whether it is quiet, but not silent yet."""
        quiet = ((self._partition, self._at.pace - self._at.quiet_since), (self._topic, self._at.still))
        return self._topic not in self._silent and any(
            lasted > 0 and its.limit < NO_LIMIT_MS and its not in self._silent and its.level in self._levels
            for its, lasted in quiet
        )

    def _take_notices(self) -> list[Notice]:
        if not self._can_tell:
            return []
        notices, self._notices = self._notices, []
        return notices

    def _look_at_topic(self, step: int, now: int, end: int | None) -> None:
        its, at, is_watched = self._topic, self._at, TOPIC in self._levels
        if not is_watched:
            at.pace += step
        at.still += step
        if end is None:
            return
        before, at.topic_end = at.topic_end, end
        if before is None:
            at.still = 0
        elif end == before:
            if at.still > its.limit and its not in self._silent and is_watched:
                self._begin(its, None, now)
            return
        if its in self._silent:
            if not self._can_tell:
                return  # at the next look at which it has moved
            self._end(its, None, now)
        elif is_watched and at.still <= its.limit:
            at.pace += at.still
        self._learn(its, its.last + at.still)
        its.time, at.still = now, 0

    # -- what is said of it ----------------------------------------------------------------------------------

    def _begin(self, series: GapSeries, offset: int | None, now: int) -> None:
        if not self._can_tell:
            return
        if self._is_muted(series.name, now):  # asked again later
            if series.level == KEY:
                self._look_at(series, self._at.clock + series.limit)
            elif series.level == PARTITION:
                self._at.quiet_since = self._at.pace
            else:
                self._at.still = 0
            return
        # every partition follows the topic, and one tells of it
        self._silent[series] = self._is_telling and (series.level != TOPIC or self._number == 0)
        self._written.add(series.number)
        if self._silent[series]:
            quiet, usual = in_time((now - series.time) / 1000), in_time(series.usual(self._config.floor) / 1000)
            said = f"no record of {self._who(series)} for {quiet}; usually never for more than {usual}"
            self._tell(series, offset, SILENT, now, {"severity": "warning", "explanation": said})

    def _end(self, series: GapSeries, offset: int | None, now: int, why: str = "") -> None:
        """why: it is no longer watched; empty: it sends again."""
        self._written.add(series.number)
        if self._silent.pop(series):
            who, quiet = self._who(series), in_time((now - series.time) / 1000)
            ended = f"{who}, silent for {quiet}, is no longer watched: {why}"
            said = ended if why else f"{who} sends again, after {quiet}"
            to = {"offset": None if why else offset, "timestamp": now}
            self._tell(series, offset, CLOSED, now, {"to": to, "explanation": said})

    def _tell(self, series: GapSeries, offset: int | None, status: str, now: int, about: Result) -> None:
        last = None if series.level == TOPIC else series.offset
        named = {} if series.name is None else {"key": series.name.decode("utf-8", "replace")}
        summary = {
            "incident": f"{self._number}-{series.time if last is None else last}-{series.level}-silent",
            "status": status,
            "of": series.level,
            **self._source,
            **named,
            "from": {"offset": last, "timestamp": series.time},
            "quiet_s": (now - series.time) / 1000,
            "usual_gap_s": round(series.usual(self._config.floor) / 1000, 3),
            **about,
        }
        self._notices.append(Notice(offset, series.name, series.offset, summary))

    def _who(self, series: GapSeries) -> str:
        if series.name is not None:
            text = series.name.decode("utf-8", "replace")
            return f"key {text if len(text) <= MAX_KEY_CHARACTERS else text[:MAX_KEY_CHARACTERS] + '...'}"
        if not self._source:
            return "the input"
        topic = self._source["topic"]
        return f"topic {topic}" if series.level == TOPIC else f"partition {topic}[{self._number}]"

    # -- state -----------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """The changes since the last call, as entries of a compacted log."""
        if not self._is_changed:
            return {}
        self._sequence += 1
        rows = {number: self._row(number) for number in sorted({0, 1, *self._written})}
        recent = b"".join(_PART.pack(number, len(row)) + row for number, row in rows.items())
        entries: Entries = {f"{RECENT}{self._sequence % RING}": self._sequence.to_bytes(8, "little") + recent}
        self._note_ring(rows)
        overwritten = self._sequence - RING
        for number in list(takewhile(lambda one: self._in_ring[one] <= overwritten, self._in_ring)):
            del self._in_ring[number]
            entries[str(number)] = self._row(number) or None
        learned = {"learned_with": self._learned_with, "others": list(vars(self._others).values())}
        entries[HEAD] = orjson.dumps({**asdict(self._at), **learned})
        self._written.clear()
        self._is_changed, self._noted = False, self._looked or 0
        return entries

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries. Raises DamagedStateError when they are not readable.

        What was learned with other settings is forgotten.
        """
        if HEAD not in entries:
            return
        try:
            head = orjson.loads(entries[HEAD])
            learned_with = head["learned_with"][:3]  # earlier builds had a factor of rates, too
            if learned_with != self._learned_with:
                self._end_all(entries, *learned_with)
                return
            self._at = _Clock(**{one.name: head[one.name] for one in fields(_Clock)})
            self._others = PeerGaps(*head["others"])
            for number, row in sorted(self._rows(entries).items()):
                if row:
                    series = self._series.setdefault(number, GapSeries(number))
                    if flag := series.decode(row):
                        self._silent[series] = flag == _NOTIFIED
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DamagedStateError(f"what is known of silence is not readable ({error})") from None
        # Those that had a record at the same time may be forgotten in another order.
        keys = sorted((one for one in self._series.values() if one.name is not None), key=lambda one: one.last)
        self._keys, self._next = {one.name or b"": one for one in keys}, max(self._series) + 1
        for one in keys:
            if one not in self._silent and one.limit < NO_LIMIT_MS:
                self._look_at(one, one.last + one.limit)
        self._is_restored = not self._by_records

    def _end_all(self, entries: StoredEntries, factor: float | None, least: int, levels: list[str]) -> None:
        """Forget what was learned with these settings, and end what was told."""
        former = Silence(SilenceConfig(factor, least, tuple(levels)), self._source.get("topic"), self._number)
        former.recover(entries)
        for series in sorted(former._silent, key=lambda one: one.number):
            former._end(series, None, former._at.earliest, "the settings have changed")
        self._notices, self._sequence, self._in_ring = former._notices, former._sequence, former._in_ring
        self._written |= set(former._series)
        self._is_changed = True

    def _rows(self, entries: StoredEntries) -> dict[int, bytes]:
        """What the entries say of each series; empty: it was forgotten. Later ones count more than earlier ones."""
        rows = {int(name): value for name, value in entries.items() if name.isdecimal()}
        recent = [value for name, value in entries.items() if name.startswith(RECENT)]
        for value in sorted(recent, key=lambda one: int.from_bytes(one[:8], "little")):
            self._sequence, at, numbers = int.from_bytes(value[:8], "little"), 8, list[int]()
            while at < len(value):
                number, length = _PART.unpack_from(value, at)
                at += _PART.size + length
                rows[number] = value[at - length : at]
                numbers.append(number)
            if at != len(value):
                raise ValueError("an entry of the last commits is not whole")
            self._note_ring(numbers)
        return rows

    def _note_ring(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._in_ring.pop(number, None)  # it is the newest now
            self._in_ring[number] = self._sequence

    def _row(self, number: int) -> bytes:
        """Empty: it was forgotten."""
        series = self._series.get(number)
        told = None if series is None else self._silent.get(series)
        return b"" if series is None else series.encode(0 if told is None else _NOTIFIED if told else _NOT_NOTIFIED)
