"""Data that stop: keys, partitions and a topic without further records. Pure: the caller passes the time.

The clock of each level runs only while the level above it is active: that of a key while its partition has records,
that of a partition while the topic has records, and that of the topic while the broker answers. So an outage gives one
alert at its level, not one for each key.

A reason why records are not read is not silence:
- *A service that was stopped*: time passes only between two polls of the broker, and a gap between two records counts
  only if it is shorter than the limit of the partition.
- *A service that lags*: a partition is silent only if everything that the broker has of it was read. For keys, the
  times of records count, not the times at which they were read.
- *A broker that does not answer*: the time between two polls that are more than OUTAGE_MS apart does not count.

The arrival of a record is its timestamp, but never before the record before it or before the last poll without it, and
never after now. So wrong clocks of producers do not matter.
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

SILENT = "silent"  # a status, like CLOSED
OUTAGE_MS = 10_000  # a longer time between two polls of the broker does not count
MIN_NOTED_MS = 15_000  # between two entries of the state about a growing silence
MAX_KEY_BYTES = 4096  # bytes; longer ones are not watched
HEAD = "head"
RECENT, RING = "recent-", 64  # entries with the series of the last commits
_PART = struct.Struct("<II")  # number of a series, and the length of its row
_NOTIFIED, _NOT_NOTIFIED = 1, 2  # of a silent series, in its entry
_BITS = 32  # of the number of a series
MAX_KEY_CHARACTERS = 60  # of a key in a sentence


@dataclass
class _Clock:
    """The clocks of a partition, in milliseconds."""

    clock: int = 0  # of keys
    pace: int = 0  # time in which the topic had records, the clock of partitions
    quiet_since: int = 0  # the pace when the partition last had one
    still: int = 0  # time since the topic last had one
    arrived: int | None = None  # arrival of the last record
    earliest: int = 0  # the next record cannot have arrived before
    lost: int = 0  # time since the last record during which the broker did not answer
    topic_end: int | None = None
    has_more: bool = False  # records came since the last poll,
    had_more: bool = False  # and before it
    partitions: int = 0  # of the topic; 0: not known


class Silence:
    """Watch the times of records of one partition, and report silence.

    topic, number: of the partition; without a topic, notices do not name it. by_records: time passes with the records
    alone, as in a replay; else also with `poll`. is_muted: returns whether a key (None: the whole partition) is muted
    at a time. Notices do not depend on how records are split over calls.
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
        self._learned_with = [config.factor, config.min_ms, sorted(self._levels)]
        self._clocks = _Clock()
        self._others = PeerGaps()
        self._partition, self._topic = GapSeries(0), GapSeries(1)
        self._series = {0: self._partition, 1: self._topic}  # by number
        self._next = FIRST_KEY  # number of the next new key
        self._keys: dict[bytes, GapSeries] = {}  # the least recently used first
        self._due: list[int] = []  # a heap of (time of the check of a key << _BITS | its number); some are outdated
        self._silent: dict[GapSeries, bool] = {}  # and whether its notice was sent
        self._polled_at: int | None = None  # time of the last poll of the broker
        self._can_notify = self._is_notifying = True
        self._is_restored = False  # no record came since a restart: the length of the gap is not known
        self._notices: list[Notice] = []  # to return
        # The log has all series of a commit in one entry of a ring: one entry for each series would cost more than all
        # else. A series that no later commit has when its entry is overwritten gets an entry of its own.
        self._sequence = 0  # of the last commit
        self._in_ring: dict[int, int] = {}  # by number: the last commit that has it, oldest first
        self._written: set[int] = set()  # numbers since the last commit
        self._is_changed = False
        self._noted = 0

    @property
    def open(self) -> dict[str, int]:
        """Return the number of silent series by level."""
        counts = dict.fromkeys(LEVELS, 0)
        for series in list(self._silent):  # a copy, as another thread may call this
            counts[series.level] += 1
        return counts

    @property
    def has_news(self) -> bool:
        """Return whether the next `follow` returns earlier notices."""
        return bool(self._notices)

    # -- records ---------------------------------------------------------------------------------------------

    def follow(
        self, records: Iterable[tuple[Key, int, int | None]], now: int | None = None, is_notified: bool = True
    ) -> list[Notice]:
        """Follow the next records: key, offset and timestamp (milliseconds since 1970) of each.

        now: the present; every record has arrived before. is_notified: False: silence that begins here is not notified,
        and neither is its end.
        """
        clocks, self._is_notifying = self._clocks, is_notified
        latest = NO_LIMIT_MS if now is None else now
        if latest < clocks.earliest:
            self._set_back(latest)
        for key, offset, timestamp in records:
            if self._notices and self._notices[0].offset is None:  # of series that are no longer watched
                self._notices = [notice._replace(offset=offset) for notice in self._notices]
            arrived = clocks.arrived if now is None else now
            time = min(timestamp, latest) if timestamp is not None else arrived
            if time is None:
                continue  # its time is not known
            time = max(time, clocks.earliest)
            gap = 0 if clocks.arrived is None else max(0, time - clocks.arrived - clocks.lost)
            clocks.arrived = clocks.earliest = time
            clocks.lost, clocks.has_more, self._is_changed = 0, True, True
            name = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
            if name is None or len(name) > MAX_KEY_BYTES or KEY not in self._levels:
                self._partition_record(gap, offset, time, None)
                continue
            own = self._keys.pop(name, None)
            self._partition_record(gap, offset, time, own)
            self._keys[name] = own = own or self._new(name, offset, time)
            self._key_record(own, offset, time)
        self._is_notifying = True
        return self._take_notices()

    def _set_back(self, now: int) -> None:
        """Set arrivals back to `now`, as the clock has gone back."""
        self._clocks.earliest = now
        self._clocks.arrived = None if self._clocks.arrived is None else min(self._clocks.arrived, now)

    def _partition_record(self, gap: int, offset: int, time: int, own: GapSeries | None) -> None:
        """Follow a record that came `gap` after the one before. own: the series of its key."""
        partition_series, clocks = self._partition, self._clocks
        if gap > partition_series.limit and self._by_records and PARTITION in self._levels:
            self._begin(partition_series, offset, time - gap + partition_series.limit)
            if partition_series not in self._silent:  # it was muted at that time
                self._begin(partition_series, offset, time)
        if partition_series in self._silent:
            self._end(partition_series, offset, time)
        elif gap <= (partition_series.usual(self._config.floor) if self._is_restored else partition_series.limit):
            clocks.clock += gap
        elif not self._by_records:  # this gap was not watched
            gap = 0
        self._is_restored = False
        self._learn(partition_series, partition_series.last + gap)
        partition_series.offset, partition_series.time = offset, time
        while self._due and self._due[0] >> _BITS <= clocks.clock:
            due, number = divmod(heappop(self._due), 1 << _BITS)
            series = self._series.get(number)
            if series is None or series.due != due:
                continue  # outdated
            series.due, until = NO_LIMIT_MS, series.last + series.limit
            if until > clocks.clock:
                self._check_at(series, until)
            elif series is not own:
                self._begin(series, offset, time)

    def _key_record(self, series: GapSeries, offset: int, time: int) -> None:
        if series in self._silent:
            self._end(series, offset, time)
        self._learn(series, self._clocks.clock)
        series.offset, series.time = offset, time
        self._written.add(series.number)
        until = self._clocks.clock + series.limit
        if until < series.due:
            self._check_at(series, until)

    def _learn(self, series: GapSeries, now: int) -> None:
        """Note a record of a series at this time of its clock."""
        gap, floor = now - series.last, self._config.floor
        series.last = now
        if gap >= floor or now - series.mark >= floor:  # a shorter gap ends a burst, or is inside one
            others = self._others if series.number >= FIRST_KEY else None
            series.add(max(gap, floor), self._config, others, len(self._series) - FIRST_KEY)
            series.mark = now

    def _check_at(self, series: GapSeries, when: int) -> None:
        series.due = when
        heappush(self._due, when << _BITS | series.number)

    def _new(self, name: bytes, offset: int, time: int) -> GapSeries:
        """Return the series of a new key. If there are too many, it replaces the least recently used one."""
        if len(self._keys) >= self._config.max_keys:
            forgotten = self._keys.pop(next(iter(self._keys)))
            self._forget(forgotten, offset, time, "there are too many other keys")
            number = forgotten.number
        else:
            number, self._next = self._next, self._next + 1
        series = self._series[number] = GapSeries(number, name, self._clocks.clock)
        return series

    def _forget(self, series: GapSeries, offset: int | None, time: int, why: str) -> None:
        """Forget a series that was removed from the keys."""
        if series in self._silent:
            self._end(series, offset, time, why)
        del self._series[series.number]
        self._written.add(series.number)

    # -- the clock -------------------------------------------------------------------------------------------

    def poll(
        self, now: int, is_read: bool, topic_end: int | None, partitions: int = 1, can_notify: bool = True
    ) -> list[Notice]:
        """Take the answer of the broker to a poll at this time (milliseconds since 1970).

        is_read: all its records of the partition were followed; topic_end: sum of the ends of all partitions of the
        topic; None: not known. can_notify: False: silence cannot begin or end at this poll.
        """
        clocks, own = self._clocks, self._partition
        step, self._can_notify = 0 if self._polled_at is None else now - self._polled_at, can_notify
        if step < 0:
            self._set_back(now)
        if not 0 <= step <= OUTAGE_MS:
            clocks.lost += max(0, step)
            step = 0
        self._polled_at = now
        if partitions != clocks.partitions and can_notify:
            if clocks.partitions:  # keys may be in other partitions from now on
                for series in self._keys.values():
                    self._forget(series, None, now, "the topic has more partitions now")
                self._keys, self._next = {}, FIRST_KEY
            clocks.partitions = partitions
        self._poll_topic(step, now, topic_end)
        if clocks.has_more or clocks.had_more or not is_read:
            clocks.quiet_since = clocks.pace
        elif PARTITION in self._levels and clocks.pace - clocks.quiet_since > own.limit and own not in self._silent:
            self._begin(own, None, now)
        if is_read:
            clocks.earliest = max(clocks.earliest, now)
        self._is_changed |= bool(self._notices) or (self._waits and now - self._noted >= MIN_NOTED_MS)
        clocks.has_more, clocks.had_more = False, clocks.has_more
        notices, self._can_notify = self._take_notices(), True
        return notices

    @property
    def _waits(self) -> bool:
        """Return whether the partition or the topic is quiet, but not silent yet."""
        quiet = ((self._partition, self._clocks.pace - self._clocks.quiet_since), (self._topic, self._clocks.still))
        return self._topic not in self._silent and any(
            lasted > 0 and series.limit < NO_LIMIT_MS and series not in self._silent and series.level in self._levels
            for series, lasted in quiet
        )

    def _take_notices(self) -> list[Notice]:
        if not self._can_notify:
            return []
        notices, self._notices = self._notices, []
        return notices

    def _poll_topic(self, step: int, now: int, end: int | None) -> None:
        topic_series, clocks, is_watched = self._topic, self._clocks, TOPIC in self._levels
        if not is_watched:
            clocks.pace += step
        clocks.still += step
        if end is None:
            return
        before, clocks.topic_end = clocks.topic_end, end
        if before is None:
            clocks.still = 0
        elif end == before:
            if clocks.still > topic_series.limit and topic_series not in self._silent and is_watched:
                self._begin(topic_series, None, now)
            return
        if topic_series in self._silent:
            if not self._can_notify:
                return  # it ends at the next poll with new records
            self._end(topic_series, None, now)
        elif is_watched and clocks.still <= topic_series.limit:
            clocks.pace += clocks.still
        self._learn(topic_series, topic_series.last + clocks.still)
        topic_series.time, clocks.still = now, 0

    # -- notices --------------------------------------------------------------------------------------------

    def _begin(self, series: GapSeries, offset: int | None, now: int) -> None:
        if not self._can_notify:
            return
        if self._is_muted(series.name, now):  # and checked again later
            if series.level == KEY:
                self._check_at(series, self._clocks.clock + series.limit)
            elif series.level == PARTITION:
                self._clocks.quiet_since = self._clocks.pace
            else:
                self._clocks.still = 0
            return
        # Every partition follows the topic, and partition 0 sends its notices.
        self._silent[series] = self._is_notifying and (series.level != TOPIC or self._number == 0)
        self._written.add(series.number)
        if self._silent[series]:
            quiet, usual = in_time((now - series.time) / 1000), in_time(series.usual(self._config.floor) / 1000)
            text = f"no record of {self._who(series)} for {quiet}; usually never for more than {usual}"
            self._notify(series, offset, SILENT, now, {"severity": "warning", "explanation": text})

    def _end(self, series: GapSeries, offset: int | None, now: int, why: str = "") -> None:
        """End a silence. why: the series is no longer watched; empty: it has a record again."""
        self._written.add(series.number)
        if self._silent.pop(series):
            who, quiet = self._who(series), in_time((now - series.time) / 1000)
            ended = f"{who}, silent for {quiet}, is no longer watched: {why}"
            text = ended if why else f"{who} sends again, after {quiet}"
            to = {"offset": None if why else offset, "timestamp": now}
            self._notify(series, offset, CLOSED, now, {"to": to, "explanation": text})

    def _notify(self, series: GapSeries, offset: int | None, status: str, now: int, about: Result) -> None:
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
        """Return the changes since the last call, as entries of a compacted log."""
        if not self._is_changed:
            return {}
        self._sequence += 1
        rows = {number: self._row(number) for number in sorted({0, 1, *self._written})}
        recent = b"".join(_PART.pack(number, len(row)) + row for number, row in rows.items())
        entries: Entries = {f"{RECENT}{self._sequence % RING}": self._sequence.to_bytes(8, "little") + recent}
        self._note_ring(rows)
        overwritten = self._sequence - RING
        for number in list(takewhile(lambda number: self._in_ring[number] <= overwritten, self._in_ring)):
            del self._in_ring[number]
            entries[str(number)] = self._row(number) or None
        learned = {"learned_with": self._learned_with, "others": list(vars(self._others).values())}
        entries[HEAD] = orjson.dumps({**asdict(self._clocks), **learned})
        self._written.clear()
        self._is_changed, self._noted = False, self._polled_at or 0
        return entries

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries. Raises DamagedStateError when they are not readable.

        State that was learned with other settings is forgotten.
        """
        if HEAD not in entries:
            return
        try:
            head = orjson.loads(entries[HEAD])
            learned_with = head["learned_with"][:3]  # earlier builds had a factor of rates, too
            if learned_with != self._learned_with:
                self._end_all(entries, *learned_with)
                return
            self._clocks = _Clock(**{field.name: head[field.name] for field in fields(_Clock)})
            self._others = PeerGaps(*head["others"])
            for number, row in sorted(self._rows(entries).items()):
                if row:
                    series = self._series.setdefault(number, GapSeries(number))
                    if flag := series.decode(row):
                        self._silent[series] = flag == _NOTIFIED
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DamagedStateError(f"the state of silence is not readable ({error})") from None
        # Keys with a record at the same time may now be forgotten in another order.
        keys = sorted((key for key in self._series.values() if key.name is not None), key=lambda key: key.last)
        self._keys, self._next = {key.name or b"": key for key in keys}, max(self._series) + 1
        for key in keys:
            if key not in self._silent and key.limit < NO_LIMIT_MS:
                self._check_at(key, key.last + key.limit)
        self._is_restored = not self._by_records

    def _end_all(self, entries: StoredEntries, factor: float | None, min_ms: int, levels: list[str]) -> None:
        """Forget the state of these settings, and end the silence that was notified."""
        former = Silence(SilenceConfig(factor, min_ms, tuple(levels)), self._source.get("topic"), self._number)
        former.recover(entries)
        for series in sorted(former._silent, key=lambda series: series.number):
            former._end(series, None, former._clocks.earliest, "the settings have changed")
        self._notices, self._sequence, self._in_ring = former._notices, former._sequence, former._in_ring
        self._written |= set(former._series)
        self._is_changed = True

    def _rows(self, entries: StoredEntries) -> dict[int, bytes]:
        """Return the row of each series from the entries; empty: forgotten. Later entries replace earlier ones."""
        rows = {int(name): value for name, value in entries.items() if name.isdecimal()}
        recent = [value for name, value in entries.items() if name.startswith(RECENT)]
        for value in sorted(recent, key=lambda value: int.from_bytes(value[:8], "little")):
            self._sequence, position, numbers = int.from_bytes(value[:8], "little"), 8, list[int]()
            while position < len(value):
                number, length = _PART.unpack_from(value, position)
                position += _PART.size + length
                rows[number] = value[position - length : position]
                numbers.append(number)
            if position != len(value):
                raise ValueError("an entry of the last commits is not whole")
            self._note_ring(numbers)
        return rows

    def _note_ring(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._in_ring.pop(number, None)  # it becomes the newest
            self._in_ring[number] = self._sequence

    def _row(self, number: int) -> bytes:
        """Return the row of a series; empty if it was forgotten."""
        series = self._series.get(number)
        is_notified = None if series is None else self._silent.get(series)
        flag = 0 if is_notified is None else _NOTIFIED if is_notified else _NOT_NOTIFIED
        return b"" if series is None else series.encode(flag)
