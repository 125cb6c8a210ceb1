"""A range of past records of a topic: which offsets it has in each partition, and reading them.

Reading joins no group and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from fomo_stream.errors import BrokerError, ConfigError, LostOffsetError, NotPermittedError, TopicError
from fomo_stream.kafka.bounds import Bound, parse_bounds, shown_time
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.broker.failures import NOT_PERMITTED
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.kafka.record import to_record
from fomo_stream.partition.record import Record
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.wording import ranges as shown_ranges

STALLED_S = 5.0  # to wait for the next record, before another client asks
PATIENCE_S = 60.0  # to wait for the next record, with as many clients as it takes
ANSWER_S = 5.0


@dataclass(frozen=True)
class Range:
    """The offsets `start` to `end` - 1 of one partition; the range is empty where they are equal."""

    partition: int
    start: int
    end: int
    first: int = 0  # first offset that the topic retains
    topic_id: str = ""  # of the topic when the range was found; empty: the broker has no ids

    @property
    def records(self) -> int:
        """How many records it has at most; offsets without a record count, too."""
        return self.end - self.start


# --- which offsets -------------------------------------------------------------------------------------------


def resolve_ranges(
    settings: ServiceSettings, from_: str, to: str, last: str, now_ms: int
) -> tuple[list[Range], list[str]]:
    """The range of every partition of `settings.topic`, and sentences about anything unusual.

    from_, to, last: as the flags of these names; now_ms: the present in milliseconds since 1970. A partition may have
    an empty range, but not all. The range ends before the first transaction that is still open.
    Raises ConfigError for bounds that make no sense, TopicError if there is no such topic or no record in the range,
    and BrokerError or NotPermittedError if the broker does not say.
    """
    begin, end = parse_bounds(from_, to, last, now_ms)
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        try:
            return _Resolver(settings, cluster, now_ms).resolve(begin, end)
        except KafkaException as error:
            raise _explained(error, settings) from None


class _Resolver:
    """Finds the offsets of bounds. Calls raise KafkaException when the broker does not answer."""

    def __init__(self, settings: ServiceSettings, cluster: Cluster, now_ms: int) -> None:
        self._topic = topic = settings.topic
        self._cluster = cluster
        self._now_ms = now_ms
        partitions, topic_ids = cluster.partitions([topic])
        if topic not in partitions:
            raise TopicError(f"there is no topic {topic} on {settings.bootstrap}; check --topic and --bootstrap")
        self._count = count = partitions[topic]
        self._topic_id = topic_ids.get(topic, "")
        self._firsts = cluster.first_offsets(topic, count)
        self._ends = {number: ends for (_, number), ends in cluster.ends([(topic, n) for n in range(count)]).items()}
        if missing := [n for n in range(count) if n not in self._firsts or n not in self._ends]:
            names = shown_ranges(missing)
            raise BrokerError(f"the broker does not tell the offsets of {topic}[{names}]; check that all brokers run")

    def resolve(self, begin: Bound, end: Bound) -> tuple[list[Range], list[str]]:
        for bound in (begin, end):
            self._check_partitions(bound)
        starts = self._offsets_of(begin, self._firsts)
        stops = self._offsets_of(end, {number: ends.readable for number, ends in self._ends.items()})
        found = []
        for number in range(self._count):
            first, readable = self._firsts[number], self._ends[number].readable
            start = min(max(starts[number], first), readable)
            found.append(Range(number, start, max(start, min(stops[number], readable)), first, self._topic_id))
        if not any(one.records for one in found):
            raise self._empty(begin, end)
        return found, [*self._notes_on_start(begin, starts), *self._notes_on_end(end, stops)]

    def _check_partitions(self, bound: Bound) -> None:
        """Raise ConfigError if the bound names a partition that does not exist, or an offset after the last one."""
        if unknown := sorted(number for number in bound.offsets if number >= self._count):
            raise ConfigError(
                f"{bound.text}: {self._topic} has no partition {shown_ranges(unknown)}; it has "
                f"{'partition 0 only' if self._count == 1 else f'partitions 0 to {self._count - 1}'}"
            )
        named = {number: bound.offset_of(number) for number in range(self._count)}
        beyond = [n for n, offset in named.items() if offset is not None and offset > self._ends[n].end]
        if beyond and (bound.offsets or len(beyond) == self._count):
            ends = ", ".join(f"{self._topic}[{number}] at {self._ends[number].end}" for number in beyond[:3])
            more = f", and {len(beyond) - 3} more" if len(beyond) > 3 else ""
            raise ConfigError(f"{bound.text} is beyond the end of the topic: {ends}{more} (the next record's offset)")

    def _offsets_of(self, bound: Bound, default: Mapping[int, int]) -> dict[int, int]:
        """The bound in each partition; for a time: the first record of that time or later."""
        if bound.time_ms is None:
            return {number: _or(bound.offset_of(number), default[number]) for number in range(self._count)}
        if not self._cluster.has_controller:  # it would answer that there is no such record
            raise TopicError(f"{bound.text}: the embedded broker does not find records by their time; give offsets")
        found = self._cluster.offsets(self._topic, self._count, OffsetSpec.for_timestamp(bound.time_ms))
        if missing := [number for number in range(self._count) if number not in found]:
            names = shown_ranges(missing)
            raise BrokerError(f"the broker does not find records of {self._topic}[{names}] by their time; try again")
        return {n: one.offset if one.offset >= 0 else self._ends[n].end for n, one in found.items()}

    def _notes_on_start(self, begin: Bound, starts: Mapping[int, int]) -> list[str]:
        notes = []
        gone = {n: self._firsts[n] - starts[n] for n in starts if starts[n] < self._firsts[n]}
        if gone:
            count, names = sum(gone.values()), shown_ranges(sorted(gone))
            notes.append(
                f"{begin.text} is before the first retained record: {count:,} offsets of {self._topic}[{names}] were "
                "deleted, so the replay starts after them."
            )
        notes += self._note_on_time(begin)
        if begin.offsets and (others := [n for n in range(self._count) if n not in begin.offsets]):
            names = shown_ranges(others)
            notes.append(f"{begin.text} does not name {self._topic}[{names}]: read from the first retained record on.")
        behind = [n for n in starts if begin.offset is not None and starts[n] > self._ends[n].end]
        if behind:
            notes.append(f"{self._topic}[{shown_ranges(behind)}] ends before {begin.text}: nothing of it is replayed.")
        return notes

    def _note_on_time(self, begin: Bound) -> list[str]:
        """A note if records of the time asked for were deleted, as far as the times of the others tell."""
        if begin.time_ms is None:
            return []
        times = self._first_times()
        late = [n for n, first_ms in times.items() if self._firsts[n] and first_ms > begin.time_ms]
        if not late:
            return []
        count, since = sum(self._firsts[n] for n in late), shown_time(min(times[n] for n in late))
        return [
            f"{begin.text} is before the first retained record ({since}): the first {count:,} offsets of "
            f"{self._topic}[{shown_ranges(late)}] were deleted, so the replay starts after them."
        ]

    def _notes_on_end(self, end: Bound, stops: Mapping[int, int]) -> list[str]:
        notes = []
        for number, ends in self._ends.items():
            if ends.readable < ends.end and stops[number] >= ends.readable:
                notes.append(
                    f"{self._topic}[{number}] has an open transaction: the replay ends before it, at offset "
                    f"{ends.readable}, and leaves {ends.end - ends.readable:,} offsets out."
                )
        if end.time_ms is not None and end.time_ms > self._now_ms:
            notes.append(f"{end.text} is in the future: the replay ends with the last record that the topic has now.")
        behind = [n for n in stops if end.offset is not None and stops[n] > self._ends[n].end]
        if behind:
            notes.append(f"{self._topic}[{shown_ranges(behind)}] ends before {end.text}.")
        return notes

    def _empty(self, begin: Bound, end: Bound) -> TopicError:
        """Why no partition has a record in the range."""
        topic, has = self._topic, self._contents()
        if all(self._firsts[n] == ends.end for n, ends in self._ends.items()):
            return TopicError(f"topic {topic} has no records")
        if all(self._firsts[n] >= ends.readable for n, ends in self._ends.items()):
            return TopicError(f"topic {topic} has no records that can be read: its first transaction is still open")
        if begin.time_ms is not None and begin.time_ms > self._now_ms:
            return TopicError(f"{begin.text} is in the future; {has}")
        before = end.is_given and all(self._before_first(end, number) for number in range(self._count))
        if before and any(self._firsts.values()):
            return TopicError(f"the range ends before the first record that {topic} still retains; {has}")
        words = " ".join(bound.text for bound in (begin, end) if bound.is_given)
        return TopicError(f"there are no records in the range {words}; {has}")

    def _before_first(self, end: Bound, number: int) -> bool:
        if end.time_ms is None:
            return _or(end.offset_of(number), self._ends[number].end) <= self._firsts[number]
        return end.time_ms <= self._first_times().get(number, end.time_ms)

    def _contents(self) -> str:
        """A few words on the records that the topic has."""
        offsets = ", ".join(f"{self._firsts[n]} to {self._ends[n].end - 1}" for n in range(min(self._count, 4)))
        more = ", ..." if self._count > 4 else ""
        places = f"the topic has offsets {offsets}{more}"
        first = self._first_times()
        last = self._times(OffsetSpec.max_timestamp()) if first else {}
        if not last:
            return places
        return f"the topic has records from {shown_time(min(first.values()))} to {shown_time(max(last.values()))}"

    def _first_times(self) -> dict[int, int]:
        """The time of each partition's first record, where the broker tells it."""
        return self._times(OffsetSpec.for_timestamp(0))

    def _times(self, spec: OffsetSpec) -> dict[int, int]:
        if not self._cluster.has_controller:
            return {}
        found = self._cluster.offsets(self._topic, self._count, spec)
        return {number: one.timestamp for number, one in found.items() if one.offset >= 0 and one.timestamp >= 0}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


# --- reading -------------------------------------------------------------------------------------------------


def read_range(
    settings: ServiceSettings, topic: str, range_: Range, start: int, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Record]:
    """The committed records of a range from offset `start` on, in order; ends early when `is_stopped`.

    Constant memory. A broker that does not answer is asked again for PATIENCE_S seconds; then BrokerError is raised.
    Raises LostOffsetError if records of the range were deleted meanwhile, or the topic was created again.
    """
    if start >= range_.end:
        return
    _check_same_topic(settings, topic, range_)
    at, last_progress = start, time.monotonic()
    with TopicReader(settings, is_stopped=is_stopped, on_lost="error") as reader:
        while at < range_.end and not is_stopped():
            try:
                span = {range_.partition: (at, range_.end)}
                for message in reader.read(topic, span, STALLED_S, retry_errors=True):
                    if message.offset() < at:  # a client may read records twice when a broker comes back
                        continue
                    at = message.offset() + 1
                    yield to_record(message)
                    last_progress = time.monotonic()
                break
            except NoProgressError as error:
                if is_stopped():
                    return
                _check_end(settings, reader, topic, range_)
                if time.monotonic() - last_progress > PATIENCE_S:
                    place = f"{topic}[{range_.partition}]@{at}"
                    raise BrokerError(
                        f"{place} could not be read for {PATIENCE_S:g} s ({error}); check that all brokers run, and "
                        "start the replay again"
                    ) from None
            except KafkaException as error:
                if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET:
                    raise _lost(settings, topic, range_.partition, at) from None
                raise _explained(error, settings) from None
    if not is_stopped():
        _check_same_topic(settings, topic, range_)


def gap_note(topic: str, offsets: int, records: int) -> str:
    """A sentence about offsets of the ranges without a record; empty if there are none.

    offsets: of all ranges; records: that were read of them.
    """
    if records >= offsets:
        return ""
    return (
        f"{topic}: {offsets - records:,} of {offsets:,} offsets have no record to replay: they were removed by "
        "compaction, belong to aborted transactions, or mark the ends of transactions."
    )


def _check_same_topic(settings: ServiceSettings, topic: str, range_: Range) -> None:
    """Raise LostOffsetError if the topic was created again since the range was found. No answer means nothing."""
    if not range_.topic_id:
        return
    with closing(Cluster(settings)) as cluster:
        try:
            cluster.connect()
            partitions, topic_ids = cluster.partitions([topic])
        except (BrokerError, KafkaException):
            return
    if topic not in partitions or topic_ids.get(topic, range_.topic_id) != range_.topic_id:
        raise LostOffsetError(f"topic {topic} was deleted or created again since the replay began; start a new replay")


def _check_end(settings: ServiceSettings, reader: TopicReader, topic: str, range_: Range) -> None:
    """Raise LostOffsetError if the partition has no more the records of the range."""
    _check_same_topic(settings, topic, range_)
    try:
        _, end = reader.range_now(topic, range_.partition, ANSWER_S)
    except KafkaException:
        return
    if end < range_.end:
        place = f"{topic}[{range_.partition}]"
        raise LostOffsetError(
            f"{place} ends at offset {end} now, before the end of the range ({range_.end}): the broker has lost its "
            f"last records, or the topic was created again; start a new replay"
        )


def _lost(settings: ServiceSettings, topic: str, number: int, at: int) -> LostOffsetError:
    return LostOffsetError(
        f"the broker no longer has {topic}[{number}]@{at}: its retention has deleted that record while the replay "
        f"read the topic, or the topic was created again; start a new replay, with a later --from"
    )


def _explained(error: Any, settings: ServiceSettings) -> BrokerError:
    reason, topic = error.args[0].str(), settings.topic
    if error.args[0].code() in NOT_PERMITTED:
        return NotPermittedError(
            f"not permitted: topic {topic} cannot be read ({reason}); permit Describe and Read on it with kafka-acls.sh"
        )
    return BrokerError(f"topic {topic} cannot be read ({reason}); check that all brokers run, and try again")
