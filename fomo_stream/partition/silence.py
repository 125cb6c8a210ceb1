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
from array import array
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

import orjson

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.keys import Key
from fomo_stream.errors import DamagedStateError
from fomo_stream.partition.gaps import NEVER, Gaps, Others
from fomo_stream.partition.incidents import CLOSED, Notice
from fomo_stream.records.result import Result
from fomo_stream.wording import in_time

KEY, PARTITION, TOPIC = "key", "partition", "topic"
LEVELS = (KEY, PARTITION, TOPIC)
SILENT = "silent"  # a status, beside CLOSED
OUTAGE_MS = 10_000  # between two looks at the broker: longer, and the time between them does not count
NOTED_MS = 15_000  # of silence, after which it is noted how long it has lasted
LONGEST_KEY = 4096  # bytes; longer ones are not watched
HEAD = "head"
OF_PARTITION, OF_TOPIC, FIRST_KEY = 0, 1, 2  # numbers of series
RECENT, RING = "recent-", 64  # entries with the series of the last commits
_PART = struct.Struct("<II")  # number of a series, and the length of its row
_ROW = struct.Struct("<qqqqBH")
_TOLD, _NOT_TOLD = 1, 2  # of a silent series, in its entry
_HEAD = (
    *("clock", "pace", "quiet_since", "still", "arrived", "earliest", "lost", "topic_end", "has_more", "had_more"),
    "partitions",
)
SHOWN = 60  # characters of a key in a sentence
_BITS = 24  # of the number of a series


class SilenceConfig(NamedTuple):
    """What is watched. factor: times the usual gap; None: nothing."""

    factor: float | None
    least_ms: int = 60_000  # the shortest silence
    levels: tuple[str, ...] = LEVELS
    max_keys: int = 100_000


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
        self._gaps = Gaps(config.factor or 1.0, config.least_ms, apart=FIRST_KEY)
        # By number of a series. Each has its own clock, on which only that time passes in which the level above it had
        # records, in milliseconds.
        self._last, self._mark = array("q"), array("q")  # its last record, and the last one that ended a gap or a burst
        self._offset, self._time = array("q"), array("q")  # of its last record; when that arrived, since 1970
        self._silent: dict[int, bool] = {}  # by number of a silent series: whether somebody was told
        self._due = array("q")  # when it is looked at next; NEVER: it is not
        self._names: list[bytes | None] = []
        self._slots: dict[bytes, int] = {}  # of keys, those that were used least recently first
        self._free: list[int] = []
        self._wheel: list[int] = []  # a heap of (when a key is looked at << _BITS | its number); some are out of date
        for _ in (PARTITION, TOPIC):
            self._grow()
        self._clock = 0  # of keys
        self._pace = 0  # time in which the topic had records
        self._quiet_since = 0  # the pace when the partition last had one
        self._still = 0  # time since the topic last had one
        self._arrived: int | None = None  # when the last record arrived
        self._earliest = 0  # no further record has arrived before
        self._lost = 0  # time since the last record in which the broker did not answer
        self._looked: int | None = None  # when the broker was asked
        self._has_more = self._had_more = False  # records were followed since then, and before
        self._can_tell = True
        self._partitions = 0  # of the topic; 0: not known
        self._is_restored = False  # no record was followed since a restart: nobody knows how long a gap really was
        self._topic_end: int | None = None
        self._learned_with = [config.factor, config.least_ms, sorted(self._levels)]
        self._is_telling = True
        self._notices: list[Notice] = []  # to return
        self._noted = 0
        self._is_changed = False
        self._written: set[int] = set()
        # The log has the series of each commit in one entry of a ring: an entry each would cost more than all else.
        self._sequence = 0  # of the last commit
        self._recent: list[list[int]] = [[] for _ in range(RING)]  # the series in each entry of the ring
        self._in_entry: dict[int, int] = {}  # by series: the last commit whose entry has it, while the ring has that

    @property
    def open(self) -> dict[str, int]:
        """How many are silent, by level."""
        found = dict.fromkeys(LEVELS, 0)
        for number in list(self._silent):  # another thread may ask
            found[_level(number)] += 1
        return found

    # -- records ---------------------------------------------------------------------------------------------

    def follow(
        self, records: Iterable[tuple[Key, int, int | None]], now: int | None = None, is_told: bool = True
    ) -> list[Notice]:
        """Follow the next records: key, offset and timestamp (milliseconds since 1970) of each.

        now: the time now, after which no record has arrived. is_told: whether notices are wanted; if not, nobody is
        told later of what begins here.
        """
        self._is_telling = is_told
        has_keys = KEY in self._levels
        latest = NEVER if now is None else now
        if latest < self._earliest:
            self._set_back(latest)
        for key, offset, timestamp in records:
            if self._notices and self._notices[0].offset is None:  # of what is no longer watched
                self._notices = [one._replace(offset=offset) for one in self._notices]
            arrived = self._arrived if now is None else now
            time = min(timestamp, latest) if timestamp is not None else arrived
            if time is None:
                continue  # nothing is known of its time
            time = max(time, self._earliest)
            gap = 0 if self._arrived is None else max(0, time - self._arrived - self._lost)
            self._arrived = self._earliest = time
            self._lost, self._has_more, self._is_changed = 0, True, True
            name = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
            slot = None
            if has_keys and name is not None and len(name) <= LONGEST_KEY:
                slot = self._slots.pop(name, -1)
            self._partition_record(gap, offset, time, slot)
            if slot is not None and name is not None:
                self._key_record(name, slot, offset, time)
        self._is_telling = True
        return self._take_notices()

    def _set_back(self, now: int) -> None:
        """The clock has gone back: what is later has not happened."""
        self._earliest = now
        self._arrived = None if self._arrived is None else min(self._arrived, now)

    def _partition_record(self, gap: int, offset: int, time: int, own: int | None) -> None:
        """A record came `gap` after the one before it. own: number of its key."""
        limit = self._gaps.limit[OF_PARTITION]
        if gap > limit and self._by_records and PARTITION in self._levels:
            self._begin(OF_PARTITION, offset, time - gap + limit)
            if OF_PARTITION not in self._silent:  # it was muted then
                self._begin(OF_PARTITION, offset, time)
        if OF_PARTITION in self._silent:
            self._end(OF_PARTITION, offset, time)
        elif gap <= (self._gaps.usual(OF_PARTITION) if self._is_restored else limit):
            self._clock += gap
        elif not self._by_records:  # nobody watched it
            gap = 0
        self._is_restored = False
        self._learn(OF_PARTITION, self._last[OF_PARTITION] + gap)
        self._offset[OF_PARTITION], self._time[OF_PARTITION] = offset, time
        while self._wheel and self._wheel[0] >> _BITS <= self._clock:
            due = heappop(self._wheel)
            slot = due & ((1 << _BITS) - 1)
            if self._due[slot] != due >> _BITS:
                continue  # out of date
            self._due[slot] = NEVER
            until = self._last[slot] + self._gaps.limit[slot]
            if until > self._clock:
                self._look_at(slot, until)
            elif slot != own:
                self._begin(slot, offset, time)

    def _key_record(self, name: bytes, slot: int, offset: int, time: int) -> None:
        if slot < 0:
            slot = self._new(name, offset, time)
        self._slots[name] = slot
        if slot in self._silent:
            self._end(slot, offset, time)
        self._learn(slot, self._clock)
        self._offset[slot], self._time[slot] = offset, time
        self._written.add(slot)
        until = self._clock + self._gaps.limit[slot]
        if until < self._due[slot]:
            self._look_at(slot, until)

    def _learn(self, slot: int, now: int) -> None:
        """A series has a record now, on its clock."""
        gap, floor = now - self._last[slot], self._gaps.floor
        self._last[slot] = now
        if gap >= floor or now - self._mark[slot] >= floor:  # if it is shorter, it ends a burst, or there are no gaps
            self._gaps.add(slot, max(gap, floor), slot >= FIRST_KEY)
            self._mark[slot] = now

    def _look_at(self, slot: int, when: int) -> None:
        self._due[slot] = when
        heappush(self._wheel, when << _BITS | slot)

    def _new(self, name: bytes, offset: int, time: int) -> int:
        """The number of a new key; if there are too many, the one that was used least recently is forgotten."""
        if len(self._slots) >= self._config.max_keys:
            self._forget(self._slots.pop(next(iter(self._slots))), offset, time, "there are too many other keys")
        slot = self._free.pop() if self._free else self._grow()
        self._names[slot] = name
        self._last[slot] = self._mark[slot] = self._clock
        return slot

    def _forget(self, slot: int, offset: int | None, time: int, why: str) -> None:
        """A key, which is not among the slots any more."""
        if slot in self._silent:
            self._end(slot, offset, time, why)
        self._gaps.forget(slot)
        self._due[slot], self._names[slot] = NEVER, None
        self._written.add(slot)
        self._free.append(slot)

    def _grow(self) -> int:
        self._names.append(None)
        for column in (self._last, self._mark, self._offset, self._time):
            column.append(0)
        self._due.append(NEVER)
        self._gaps.grow(len(self._names))
        return len(self._names) - 1

    # -- the clock -------------------------------------------------------------------------------------------

    def look(
        self, now: int, is_read: bool, topic_end: int | None, partitions: int = 1, can_tell: bool = True
    ) -> list[Notice]:
        """The broker was asked at this time (milliseconds since 1970).

        is_read: whether all was followed that it had of the partition; topic_end: sum of the ends of all partitions of
        the topic, None if it is not known. can_tell: if not, nothing begins or ends at this look.
        """
        step, self._can_tell = 0 if self._looked is None else now - self._looked, can_tell
        if step < 0:
            self._set_back(now)
        if not 0 <= step <= OUTAGE_MS:
            self._lost += max(0, step)
            step = 0
        self._looked = now
        if partitions != self._partitions and can_tell:
            for slot in self._slots.values() if self._partitions else ():  # their keys may be in others from now on
                self._forget(slot, None, now, "the topic has more partitions now")
            self._slots = {} if self._partitions else self._slots
            self._partitions = partitions
        self._look_at_topic(step, now, topic_end)
        if self._has_more or self._had_more or not is_read:
            self._quiet_since = self._pace
        elif (
            PARTITION in self._levels
            and self._pace - self._quiet_since > self._gaps.limit[OF_PARTITION]
            and OF_PARTITION not in self._silent
        ):
            self._begin(OF_PARTITION, None, now)
        if is_read:
            self._earliest = max(self._earliest, now)
        self._is_changed |= bool(self._notices) or (self._waits and now - self._noted >= NOTED_MS)
        self._has_more, self._had_more = False, self._has_more
        notices, self._can_tell = self._take_notices(), True
        return notices

    @property
    def _waits(self) -> bool:
        """Whether it is quiet, but not silent yet."""
        quiet = {OF_PARTITION: self._pace - self._quiet_since, OF_TOPIC: self._still}
        return OF_TOPIC not in self._silent and any(
            quiet[slot] > 0
            and self._gaps.limit[slot] < NEVER
            and slot not in self._silent
            and _level(slot) in self._levels
            for slot in quiet
        )

    def _take_notices(self) -> list[Notice]:
        if not self._can_tell:
            return []
        notices, self._notices = self._notices, []
        return notices

    def _look_at_topic(self, step: int, now: int, end: int | None) -> None:
        if TOPIC not in self._levels:
            self._pace += step
        self._still += step
        if end is None:
            return
        before, self._topic_end = self._topic_end, end
        limit = self._gaps.limit[OF_TOPIC]
        if before is None:
            self._still = 0
        elif end == before:
            if self._still > limit and OF_TOPIC not in self._silent and TOPIC in self._levels:
                self._begin(OF_TOPIC, None, now)
            return
        if OF_TOPIC in self._silent:
            if not self._can_tell:
                return  # at the next look at which it has moved
            self._end(OF_TOPIC, None, now)
        elif TOPIC in self._levels and self._still <= limit:
            self._pace += self._still
        self._learn(OF_TOPIC, self._last[OF_TOPIC] + self._still)
        self._time[OF_TOPIC], self._still = now, 0

    # -- what is said of it ----------------------------------------------------------------------------------

    def _begin(self, slot: int, offset: int | None, now: int) -> None:
        name = self._names[slot]
        if not self._can_tell:
            return
        if self._is_muted(name, now):  # asked again later
            if slot >= FIRST_KEY:
                self._look_at(slot, self._clock + self._gaps.limit[slot])
            self._quiet_since = self._pace if slot == OF_PARTITION else self._quiet_since
            self._still = 0 if slot == OF_TOPIC else self._still
            return
        # every partition follows the topic, and one tells of it
        self._silent[slot] = self._is_telling and (slot != OF_TOPIC or self._number == 0)
        self._written.add(slot)
        if self._silent[slot]:
            quiet, usual = (now - self._time[slot]) / 1000, self._gaps.usual(slot) / 1000
            said = f"no record of {self._who(slot)} for {in_time(quiet)}; usually never for more than {in_time(usual)}"
            about = {"severity": "warning", "explanation": said}
            self._tell(slot, offset, self._summary(slot, SILENT, now) | about)

    def _end(self, slot: int, offset: int | None, now: int, why: str = "") -> None:
        """why: it is no longer watched; empty: it sends again."""
        self._written.add(slot)
        if not self._silent.pop(slot):
            return
        quiet = in_time((now - self._time[slot]) / 1000)
        said = f"{self._who(slot)} sends again, after {quiet}"
        if why:
            said = f"{self._who(slot)}, silent for {quiet}, is no longer watched: {why}"
        about = {"to": {"offset": None if why else offset, "timestamp": now}, "explanation": said}
        self._tell(slot, offset, self._summary(slot, CLOSED, now) | about)

    def _tell(self, slot: int, offset: int | None, summary: Result) -> None:
        self._notices.append(Notice(offset, self._names[slot], self._offset[slot], summary))

    def _summary(self, slot: int, status: str, now: int) -> Result:
        level, name, since = _level(slot), self._names[slot], self._time[slot]
        last = None if slot == OF_TOPIC else self._offset[slot]
        named = {} if name is None else {"key": name.decode("utf-8", "replace")}
        return {
            "incident": f"{self._number}-{since if last is None else last}-{level}-silent",
            "status": status,
            "of": level,
            **self._source,
            **named,
            "from": {"offset": last, "timestamp": since},
            "quiet_s": (now - since) / 1000,
            "usual_gap_s": round(self._gaps.usual(slot) / 1000, 3),
        }

    def _who(self, slot: int) -> str:
        name = self._names[slot]
        if name is not None:
            text = name.decode("utf-8", "replace")
            return f"key {text if len(text) <= SHOWN else text[:SHOWN] + '...'}"
        return _place(_level(slot), self._source)

    # -- state -----------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """The changes since the last call, as entries of a compacted log."""
        if not self._is_changed:
            return {}
        entries: Entries = {}
        self._sequence += 1
        written = sorted(self._written | {OF_PARTITION, OF_TOPIC})
        rows = {slot: self._encode(slot) if self._is_known(slot) else b"" for slot in written}
        recent = b"".join(_PART.pack(slot, len(row)) + row for slot, row in rows.items())
        place = self._sequence % RING
        entries[f"{RECENT}{place}"] = self._sequence.to_bytes(8, "little") + recent
        for slot in self._recent[place]:  # the entry is gone now: what no later one has gets an entry of its own
            if self._in_entry.get(slot) == self._sequence - RING and slot not in rows:
                entries[str(slot)] = self._encode(slot) if self._is_known(slot) else None
                del self._in_entry[slot]
        self._recent[place] = written
        self._in_entry |= dict.fromkeys(written, self._sequence)
        head = {name: getattr(self, f"_{name}") for name in _HEAD}
        learned = {"learned_with": self._learned_with, "others": self._gaps.others.plain()}
        entries[HEAD] = orjson.dumps({**head, **learned})
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
            for name in _HEAD:
                setattr(self, f"_{name}", head[name])
            self._gaps.others = Others(*head["others"])
            rows = self._rows(entries)
            slots = sorted(slot for slot, row in rows.items() if row)
            while len(self._names) <= max(slots, default=0):
                self._grow()
            for slot in slots:
                self._decode(slot, rows[slot])
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DamagedStateError(f"what is known of silence is not readable ({error})") from None
        keys = [slot for slot in slots if slot >= FIRST_KEY]
        # Those that had a record at the same time may be forgotten in another order.
        self._slots = {self._names[slot] or b"": slot for slot in sorted(keys, key=lambda slot: self._last[slot])}
        self._free = [slot for slot in range(FIRST_KEY, len(self._names)) if self._names[slot] is None]
        for slot in keys:
            if slot not in self._silent and self._gaps.limit[slot] < NEVER:
                self._look_at(slot, self._last[slot] + self._gaps.limit[slot])
        self._is_restored = not self._by_records
        self._end_rates(head)

    def _end_rates(self, head: dict[str, Any]) -> None:
        """Earlier builds told of unusual rates: end those that are open."""
        for level, slot in ((PARTITION, OF_PARTITION), (TOPIC, OF_TOPIC)):
            if not (head.get("rate_told", {}).get(level) and head["rates"].get(level, {}).get("is_odd")):
                continue
            since, place = head["rate_since"][level], _place(level, self._source)
            name = since["timestamp"] if since["offset"] is None else since["offset"]
            summary = {"incident": f"{self._number}-{name}-{level}-rate", "status": CLOSED, "of": level, **self._source}
            said = f"{place} is no longer watched: rates are gone"
            about = {"from": since, "to": {"offset": None, "timestamp": self._earliest}, "explanation": said}
            self._tell(slot, None, {**summary, **about})
            self._is_changed = True

    def _end_all(self, entries: StoredEntries, factor: float | None, least: int, levels: list[str]) -> None:
        """Forget what was learned with these settings, and end what was told."""
        config = SilenceConfig(factor, least, tuple(levels))
        former = Silence(config, self._source.get("topic"), self._number)
        former.recover(entries)
        now, why = former._earliest, "the settings have changed"
        for slot in sorted(former._silent):
            former._end(slot, None, now, why)
        self._notices = former._notices
        self._sequence, self._recent, self._in_entry = former._sequence, former._recent, former._in_entry
        self._written |= {slot for slot in range(len(former._names)) if former._is_known(slot)}
        self._is_changed = True

    @property
    def has_news(self) -> bool:
        """Whether `follow` has something to tell of before."""
        return bool(self._notices)

    def _rows(self, entries: StoredEntries) -> dict[int, bytes]:
        """What the entries say of each series; empty: it was forgotten. Later ones count more than earlier ones."""
        rows = {int(name): value for name, value in entries.items() if name.isdecimal()}
        recent = sorted(
            (int.from_bytes(value[:8], "little"), value) for name, value in entries.items() if name.startswith(RECENT)
        )
        for sequence, value in recent:
            at, slots = 8, list[int]()
            if len(value) < at:
                raise ValueError("an entry of the last commits is not whole")
            while at < len(value):
                slot, length = _PART.unpack_from(value, at)
                at += _PART.size
                if at + length > len(value):
                    raise ValueError("an entry of the last commits is not whole")
                rows[slot] = value[at : at + length]
                at += length
                slots.append(slot)
            self._sequence = sequence
            self._recent[sequence % RING] = slots
            self._in_entry |= dict.fromkeys(slots, sequence)
        return rows

    def _is_known(self, slot: int) -> bool:
        return slot < FIRST_KEY or (slot < len(self._names) and self._names[slot] is not None)

    def _encode(self, slot: int) -> bytes:
        name = self._names[slot] or b""
        flag = 0 if slot not in self._silent else _TOLD if self._silent[slot] else _NOT_TOLD
        numbers = (self._last[slot], self._mark[slot], self._offset[slot], self._time[slot])
        return _ROW.pack(*numbers, flag, len(name)) + name + self._gaps.encode(slot)

    def _decode(self, slot: int, data: bytes) -> None:
        *numbers, flag, length = _ROW.unpack(data[: _ROW.size])
        self._last[slot], self._mark[slot], self._offset[slot], self._time[slot] = numbers
        if flag:
            self._silent[slot] = flag == _TOLD
        if slot >= FIRST_KEY:
            self._names[slot] = data[_ROW.size : _ROW.size + length]
        self._gaps.decode(slot, data[_ROW.size + length :])


def _level(slot: int) -> str:
    return {OF_PARTITION: PARTITION, OF_TOPIC: TOPIC}.get(slot, KEY)


def _place(level: str, source: Mapping[str, object]) -> str:
    if not source:
        return "the input"
    return f"topic {source['topic']}" if level == TOPIC else f"partition {source['topic']}[{source['partition']}]"
