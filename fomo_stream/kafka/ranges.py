"""A range of past records of a topic: find its offsets in each partition, and read them.

Reading does not join a group, and does not commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from fomo_stream.errors import BrokerError, ConfigError, LostOffsetError, SchemaError, TopicError
from fomo_stream.kafka.bounds import Bound, Range, parse_bounds
from fomo_stream.kafka.broker.clients import broker_error, broker_errors
from fomo_stream.kafka.broker.cluster import Cluster, PartitionId
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader, to_record
from fomo_stream.kafka.decoding import Decoder
from fomo_stream.kafka.registry import codec_for
from fomo_stream.partition.record import Pending, Record
from fomo_stream.records.times import known_time
from fomo_stream.settings.topic_flags import InputFlags, TopicFlags
from fomo_stream.wording import ranges as shown_ranges

STALLED_S = 5.0  # the wait for the next record; then a new client asks
LOOK_ON = 10_000  # records after the ends of ranges, which show whether times are in order
PATIENCE_S = 60.0  # the wait for the next record, with any number of clients
Answer = TypeVar("Answer")
Settings = TypeVar("Settings", bound=TopicFlags)

PERMIT = "permit Describe and Read on it with kafka-acls.sh"


def resolve_ranges(settings: TopicFlags, from_: str, to: str, last: str, now_ms: int) -> tuple[list[Range], list[str]]:
    """Return the range of every partition of `settings.topic`, and sentences about anything unusual.

    from_, to, last: as the flags of these names; now_ms: the present in milliseconds since 1970. A partition may have
    an empty range, but not all. The range ends before the first transaction that is still open.
    Raises ConfigError for bounds that are not valid, TopicError if the topic or any record in the range is missing,
    and BrokerError or NotPermittedError if the broker does not say.
    """
    return _resolved(settings, *parse_bounds(from_, to, last, now_ms))


def reference_ranges(settings: TopicFlags, now_ms: int) -> tuple[list[Range], list[str]]:
    """Return the same of the range of time that --reference names.

    Raises ConfigError if it has not ended yet, SchemaError if it has no record.
    """
    span, name = settings.reference_span or range(0), f"--reference {settings.reference}"
    if span.stop > now_ms:
        raise ConfigError(f"{name} has not ended yet, and it is read only once", "give an end that has passed")
    try:
        ranges, notes = _resolved(settings, Bound(name, time_ms=span.start), Bound(time_ms=span.stop))
    except TopicError as error:
        raise SchemaError(error.what, f"{error.remedy}; give a range that the topic has, or a file") from None
    if empty := [each.partition for each in ranges if each.start >= each.end]:
        where = f"{settings.topic}[{shown_ranges(empty)}]"
        notes.append(f"{where} has no record in the range, or one before it with a later time: it has no good records")
    n_read, late = _read_on(settings, span, ranges)
    if late:
        count = f"{late:,} of the next {n_read:,} records have times in it"
        notes.append(f"{name} ends with the first later record, but {count}: they are left out, with all like them")
    return ranges, notes


def with_first_range(settings: Settings, now_ms: int) -> Settings:
    """Return the settings with the range of time that the first records of the topic have, if these are the good ones.

    They begin with the earliest record that a partition still has in its first place. Raises NotCompleteError until the
    range has passed, and a partition has a record after it.
    """
    if not settings.has_first_records:
        return settings
    name = f"--reference {settings.reference}"
    with _resolver(settings) as resolver:
        return settings.with_reference_of(resolver.times_around(len(settings.reference_span or ()), now_ms, name))


def _read_on(settings: TopicFlags, span: range, ranges: Sequence[Range]) -> tuple[int, int]:
    """Read on behind these ranges, at most LOOK_ON records; return how many, and how many have times in the span."""
    behind, times = {each.partition: (each.end, None) for each in ranges}, list[int]()
    with suppress(NoProgressError, KafkaException), TopicReader(settings) as reader:
        for message in islice(reader.read(settings.topic, behind, STALLED_S), LOOK_ON):
            times.append(message.timestamp()[1])
    return len(times), sum(time_ms in span for time_ms in times)


def _resolved(settings: TopicFlags, begin: Bound, end: Bound) -> tuple[list[Range], list[str]]:
    with _resolver(settings) as resolver:
        return resolver.resolve(begin, end)


@contextmanager
def _resolver(settings: TopicFlags) -> Iterator[_Resolver]:
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        with broker_errors(f"topic {settings.topic} cannot be read", permit=PERMIT):
            yield _Resolver(settings, cluster)


class _Resolver:
    """Find the offsets of bounds. Calls raise KafkaException when the broker does not answer."""

    def __init__(self, settings: TopicFlags, cluster: Cluster) -> None:
        self._topic = topic = settings.topic
        self._cluster = cluster
        partitions, topic_ids = cluster.partitions([topic])
        if topic not in partitions:
            raise TopicError(f"there is no topic {topic} on {settings.bootstrap}", "check --topic and --bootstrap")
        self._numbers = range(partitions[topic])
        self._topic_id = topic_ids.get(topic, "")
        self._places = [(topic, number) for number in self._numbers]
        self._firsts = self._checked(cluster.offsets(self._places, OffsetSpec.earliest()))
        self._ends = self._checked(cluster.ends(self._places))

    def _checked(self, answers: Mapping[PartitionId, Answer]) -> dict[int, Answer]:
        """Return the broker's answers by partition. Raises BrokerError if one is missing."""
        if missing := [number for _, number in self._places if (self._topic, number) not in answers]:
            what = f"the broker does not tell the offsets of {self._topic}[{shown_ranges(missing)}]"
            raise BrokerError(what, "check that all brokers run")
        return {number: answers[place] for number, place in enumerate(self._places)}

    def resolve(self, begin: Bound, end: Bound) -> tuple[list[Range], list[str]]:
        for bound in (begin, end):
            self._check_partitions(bound)
        starts = self._offsets_of(begin, self._firsts)
        stops = self._offsets_of(end, {number: ends.readable for number, ends in self._ends.items()})
        ranges = []
        for number in self._numbers:
            first, readable = self._firsts[number], self._ends[number].readable
            start = min(max(starts[number], first), readable)
            ranges.append(Range(number, start, max(start, min(stops[number], readable)), first, self._topic_id))
        if not any(range_.records for range_ in ranges):
            raise self._empty(begin, end)
        return ranges, [*self._notes_on_start(begin, starts), *self._notes_on_end(stops)]

    def times_around(self, length_ms: int, now_ms: int, text: str) -> Iterator[int | None]:
        """Yield the times of the first records and, if so long has passed since then, of those after this time."""
        firsts = [known_time(found.timestamp) for found in self._found(0, text).values()]
        yield from firsts
        end = min((time for time in firsts if time is not None), default=now_ms) + length_ms
        if end <= now_ms:
            yield from (known_time(found.timestamp) for found in self._found(end, text).values())

    def _check_partitions(self, bound: Bound) -> None:
        """Raise ConfigError if the bound names a partition that does not exist, or an offset after the last one."""
        if unknown := sorted(number for number in bound.offsets if number not in self._numbers):
            what = f"{bound.text}: {self._topic} has no partition {shown_ranges(unknown)}"
            raise ConfigError(what, f"it has {len(self._numbers)}, numbered from 0")
        named = {number: bound.offset_of(number) for number in self._numbers}
        beyond = [n for n, offset in named.items() if offset is not None and offset > self._ends[n].end]
        if beyond and (bound.offsets or len(beyond) == len(self._numbers)):
            raise ConfigError(f"{bound.text} is beyond the end of the topic", self._contents())

    def _offsets_of(self, bound: Bound, default: Mapping[int, int]) -> dict[int, int]:
        """Return the offset of the bound in each partition; for a time: of the first record of that time or later."""
        if bound.time_ms is None:
            named = {number: bound.offset_of(number) for number in self._numbers}
            return {number: default[number] if offset is None else offset for number, offset in named.items()}
        places = self._found(bound.time_ms, bound.text)
        return {n: found.offset if found.offset >= 0 else self._ends[n].end for n, found in places.items()}

    def _found(self, time_ms: int, text: str) -> dict[int, Any]:
        """Return by partition the offset and time of the first record of this time or later; both -1: it has none."""
        if not self._cluster.has_controller:  # it would answer that there is no such record
            raise TopicError(f"{text}: the embedded broker does not find records by their time; give offsets")
        return self._checked(self._cluster.listed(self._places, OffsetSpec.for_timestamp(time_ms)))

    def _notes_on_start(self, begin: Bound, starts: Mapping[int, int]) -> Iterator[str]:
        if begin.time_ms is None:
            gone = [number for number in starts if starts[number] < self._firsts[number]]
        else:  # if all that is left is later, records of the range may be gone
            found = self._found(begin.time_ms, begin.text)
            later = [n for n in found if found[n].timestamp > begin.time_ms]
            gone = [n for n in later if 0 < self._firsts[n] == starts[n] < self._ends[n].end]
        if gone:
            yield (
                f"{begin.text} is before the first retained record of {self._topic}[{shown_ranges(sorted(gone))}]: "
                "records were deleted, so the range starts after them."
            )
        if begin.offsets and (others := [n for n in self._numbers if n not in begin.offsets]):
            names = shown_ranges(others)
            yield f"{begin.text} does not name {self._topic}[{names}]: read from the first retained record on."

    def _notes_on_end(self, stops: Mapping[int, int]) -> Iterator[str]:
        for number, ends in self._ends.items():
            if ends.readable < ends.end and stops[number] >= ends.readable:
                yield (
                    f"{self._topic}[{number}] has an open transaction: the range ends before it, at offset "
                    f"{ends.readable}, and leaves {ends.end - ends.readable:,} offsets out."
                )

    def _empty(self, begin: Bound, end: Bound) -> TopicError:
        """Return the error that no partition has a record in the range."""
        if all(self._firsts[n] >= ends.readable for n, ends in self._ends.items()):
            return TopicError(f"topic {self._topic} has no records, or none that are committed")
        words = " ".join(bound.text for bound in (begin, end) if bound.text)
        return TopicError(f"there are no records in the range {words}", self._contents())

    def _contents(self) -> str:
        """Return a short description of the records that the topic has."""
        offsets = (f"{self._firsts[n]} to {self._ends[n].end - 1}" for n in self._numbers[:4])
        others = ", ..." if len(self._numbers) > 4 else ""
        return f"the topic has records, by partition at offsets {', '.join(offsets)}{others}"


def read_items(settings: InputFlags, range_: Range, is_stopped: Callable[[], bool]) -> Iterator[Pending]:
    """Yield the records of a range of `settings.topic`, decoded as the service decodes them; see `read_range`."""
    decoder = Decoder(codec_for(settings, of_service=False)[0], settings.key)
    records = read_range(settings, settings.topic, range_, range_.start, is_stopped)
    yield from filter(None, (decoder.receive(record, 0.0) for record in records))


def read_range(
    settings: TopicFlags, topic: str, range_: Range, start: int, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Record]:
    """Yield the committed records of a range from offset `start` on, in order; end early when `is_stopped`.

    Needs constant memory. Asks a broker that does not answer again for PATIENCE_S seconds, and then raises BrokerError.
    Raises LostOffsetError if records of the range were deleted meanwhile, or the topic was created again.
    """
    if start >= range_.end:
        return
    _check_same_topic(settings, topic, range_)
    offset, last_progress = start, time.monotonic()
    with TopicReader(settings, is_stopped=is_stopped, on_lost="error") as reader:
        while offset < range_.end and not is_stopped():
            try:
                span = {range_.partition: (offset, range_.end)}
                for message in reader.read(topic, span, STALLED_S, retry_errors=True):
                    if message.offset() < offset:  # a client may read records twice when a broker comes back
                        continue
                    offset = message.offset() + 1
                    yield to_record(message)
                    last_progress = time.monotonic()
                break
            except NoProgressError as error:
                if is_stopped():
                    return
                _check_same_topic(settings, topic, range_)
                if time.monotonic() - last_progress > PATIENCE_S:
                    what = f"{topic}[{range_.partition}]@{offset} could not be read for {PATIENCE_S:g} s ({error})"
                    raise BrokerError(what, "check that all brokers run, and start again") from None
            except KafkaException as error:
                if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET:
                    what = f"the broker no longer has {topic}[{range_.partition}]@{offset}: it was deleted meanwhile"
                    raise LostOffsetError(what, "start again, with a later begin of the range") from None
                raise broker_error(error, f"topic {topic} cannot be read", permit=PERMIT) from None
    if not is_stopped():
        _check_same_topic(settings, topic, range_)


def _check_same_topic(settings: TopicFlags, topic: str, range_: Range) -> None:
    """Raise LostOffsetError if the topic was created again since the range was found. Without an answer, do nothing."""
    if not range_.topic_id:
        return
    with closing(Cluster(settings)) as cluster:
        try:
            cluster.connect()
            partitions, topic_ids = cluster.partitions([topic])
        except (BrokerError, KafkaException):
            return
    if topic not in partitions or topic_ids.get(topic, range_.topic_id) != range_.topic_id:
        raise LostOffsetError(f"topic {topic} was deleted or created again while it was read; start again")
