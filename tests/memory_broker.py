"""A broker in memory, with the parts that delivery and restoring need: it fails on demand, which no real broker does.

A transaction applies all of its parts at once, or none. `MemoryProducer` behaves as a confluent_kafka.Producer,
`MemoryReader` as a confluent_kafka.Consumer that reads committed records and reports the end of each partition;
`test_broker_contract` compares all this with a real broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any, NamedTuple
from unittest.mock import patch

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition

from fomo_stream.kafka.topics.watch import InputEnd, TopicsAnswer
from fomo_stream.partition.record import Headers

Place = tuple[str, int]  # topic and partition


class Produced(NamedTuple):
    """A record handed to a producer."""

    place: Place
    key: bytes | None
    value: bytes | None
    headers: Headers
    stamp: int
    on_delivery: Callable[[KafkaError | None, Any], None]


class Member(NamedTuple):
    """A membership in one generation of the group."""

    name: str
    generation: int


def retriable(code: int = KafkaError._TIMED_OUT) -> KafkaError:
    return KafkaError(code, "no answer", retriable=True)


def abortable(code: int = KafkaError.INVALID_PRODUCER_ID_MAPPING) -> KafkaError:
    return KafkaError(code, "must be aborted", txn_requires_abort=True)


def fatal(code: int = KafkaError._FENCED) -> KafkaError:
    return KafkaError(code, "fenced", fatal=True)


class MemoryProducer:
    """As confluent_kafka.Producer. Without a transactional id, a record is valid as soon as it is sent."""

    def __init__(self, broker: MemoryBroker, transactional_id: str | None, options: dict[str, Any]) -> None:
        self.options = options
        self._broker = broker
        self._id = transactional_id
        self._alone = options.get("batch.num.messages") == 1
        self._state = "new"  # then ready, open, abortable, fatal
        self._epoch = -1
        self._begun = ""  # the call without an answer, which must be repeated
        self._queue: list[Produced] = []
        self._sent: list[Produced] = []  # in the open transaction
        self._offsets: dict[Place, int] = {}  # likewise
        self._reports: list[tuple[Produced, KafkaError | None]] = []

    @property
    def unstable(self) -> set[Place]:
        """Partitions of the input whose committed offset depends on the open transaction."""
        return set(self._offsets) if self._epoch == self._broker.epochs[self._id or ""] else set()

    # --- records

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[KafkaError | None, Any], None],
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        if self._id is not None and (self._state != "open" or self._begun):
            raise KafkaException(KafkaError(KafkaError._STATE, f"produce in state {self._state} {self._begun}"))
        failure = self._next_answer("produce")
        if failure is not None:
            if failure.code() == KafkaError._QUEUE_FULL:
                raise BufferError
            raise KafkaException(failure)
        self._queue.append(Produced((topic, max(partition, 0)), key, value, headers or [], timestamp, on_delivery))

    def poll(self, _seconds: float) -> None:
        self.send()
        self._serve()

    def flush(self, _seconds: float) -> int:
        self.send()
        self._serve()
        return len(self._queue)

    def purge(self) -> None:
        self._reports += [(produced, KafkaError(KafkaError._PURGE_QUEUE)) for produced in self._queue]
        self._queue.clear()

    def send(self) -> None:
        """Send a batch to each partition, or each record alone; a batch is accepted or refused as a whole."""
        while not self._broker.is_down and (self._id is None or self._state == "open"):
            batch = [one for one in self._queue if one.place[0] not in self._broker.slow]
            batch = [one for one in batch if one.place == batch[0].place][: 1 if self._alone else None]
            if not batch:
                return
            self._queue = [one for one in self._queue if all(one is not sent for sent in batch)]
            codes = list(map(self._broker.refuses, batch))
            code = next(filter(None, codes), None)
            for one, its_code in zip(batch, codes, strict=True):
                if code == KafkaError.INVALID_RECORD:  # the broker says of each whether it was that one
                    answer = its_code or KafkaError._INVALID_DIFFERENT_RECORD
                    self._reports.append((one, KafkaError(answer)))
                else:
                    self._reports.append((one, KafkaError(code) if code is not None else None))
            if code is not None:
                self._state = "abortable" if self._id is not None else self._state
            elif self._id is None:
                self._apply(batch)
            else:
                self._sent += batch

    def _apply(self, batch: list[Produced]) -> None:
        for one in batch:
            self._broker.append(one.place, one.key, one.value, one.headers)

    def _serve(self) -> None:
        reports, self._reports = self._reports, []
        for produced, error in reports:
            if error is not None or not self.options.get("delivery.report.only.error"):
                produced.on_delivery(error, produced)

    # --- transactions

    def list_topics(self, timeout: float) -> None:
        """Asked for only so that the client is connected."""

    def init_transactions(self, _seconds: float) -> None:
        assert self._id is not None
        self._answer("init_transactions")
        self._broker.epochs[self._id] += 1
        self._epoch = self._broker.epochs[self._id]
        self._state = "ready"

    def begin_transaction(self) -> None:
        self._check("ready")
        self._state = "open"

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], member: Member, _seconds: float) -> None:
        self._check("open", "abortable")
        self._answer("send_offsets_to_transaction")
        if not self._broker.has(member):
            self._fail(abortable(KafkaError.ILLEGAL_GENERATION))
        self._offsets |= {(found.topic, found.partition): found.offset for found in offsets}

    def commit_transaction(self, _seconds: float) -> None:
        self._check("open", "abortable")
        self._begin("commit_transaction")
        if self._state == "open":
            self.send()
            self._serve()
            if self._queue:
                self._fail(retriable())
            if self._broker.loses_answers and self._state == "open":
                self._commit()
            self._answer("commit_transaction")
        if self._state == "abortable":
            self._fail(abortable(KafkaError.INVALID_TXN_STATE))
        self._commit()
        self._begun, self._state = "", "ready"

    def abort_transaction(self, _seconds: float) -> None:
        self._check("open", "abortable")
        self._begin("abort_transaction")
        self.purge()
        self._answer("abort_transaction")
        self._sent, self._offsets = [], {}
        self._begun, self._state = "", "ready"

    def _commit(self) -> None:
        self._apply(self._sent)
        self._broker.offsets |= self._offsets
        self._sent, self._offsets = [], {}

    def _begin(self, call: str) -> None:
        """A call without an answer must be repeated before another one."""
        if self._begun not in ("", call):
            raise KafkaException(retriable(KafkaError._CONFLICT))
        self._begun = call

    def _check(self, *states: str) -> None:
        if self._state != "new" and self._epoch != self._broker.epochs[self._id or ""]:
            self._state = "fatal"
        if self._state == "fatal":
            raise KafkaException(fatal())
        if self._state not in states:
            raise KafkaException(KafkaError(KafkaError._STATE, f"not valid in state {self._state}"))

    def _next_answer(self, call: str) -> KafkaError | None:
        answers = self._broker.answers[call]
        return answers.pop(0) if answers else None

    def _answer(self, call: str) -> None:
        if call in self._broker.hangs:
            self._broker.hangs[call].wait()
            self._check(self._state)
        failure = retriable() if self._broker.is_down else self._next_answer(call)
        if failure is not None:
            self._fail(failure)

    def _fail(self, failure: KafkaError) -> None:
        if failure.fatal():
            self._state = "fatal"
        elif failure.txn_requires_abort():
            self._begun, self._state = "", "abortable"
        elif not failure.retriable():
            self._begun = ""
        raise KafkaException(failure)


def message(
    place: Place,
    at: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None = None,
    error: KafkaError | None = None,
) -> Message:
    """A record of a log, as a client gives it."""
    return Message(
        topic=place[0], partition=place[1], offset=at, key=key, value=value, headers=headers or [], error=error
    )


class MemoryBroker:
    """Logs, the group's offsets, and the valid producers and members.

    refuses: returns the error code for a record that is never accepted. answers: errors of the next calls of a
    producer's method, by its name; None: success. is_down: no call is answered. slow: topics without acknowledgements.
    loses_answers: a transaction is committed although the answer is an error. hangs: events that calls wait for.
    """

    def __init__(self) -> None:
        self.logs: dict[Place, list[Message]] = defaultdict(list)
        self.begins: Counter[Place] = Counter()
        self.ends: Counter[Place] = Counter()
        self.offsets: dict[Place, int] = {}
        self.epochs: Counter[str] = Counter()  # of transactional ids
        self.generations: dict[str, int] = {}  # current generation of the group, by member; missing: any
        self.refuses: Callable[[Produced], int | None] = lambda produced: None
        self.answers: dict[str, list[KafkaError | None]] = defaultdict(list)
        self.is_down = False
        self.slow: set[str] = set()
        self.loses_answers = False
        self.hangs: dict[str, Event] = {}
        self.hidden: dict[Place, int] = {}  # first offset of an open transaction
        self.producers: list[MemoryProducer] = []
        self.partitions: dict[str, int] = {}
        self.topic_ids: dict[str, str] = {}
        self.waits = 0  # how often a caller had to wait for an open transaction
        self.input_end: InputEnd | None = None  # as of `TopicWatch`

    @contextmanager
    def stands_in(self) -> Iterator[None]:
        """Whatever reads topics reads them here; nobody waits long for newer state."""
        with (
            patch("fomo_stream.kafka.broker.topic_reader.make_reader", lambda *_: MemoryReader(self)),
            patch("fomo_stream.kafka.restore.BEHIND_S", -1.0),
            patch("fomo_stream.kafka.member.RELEASE_S", 0.0),
        ):
            yield

    def producer(self, transactional_id: str | None, **options: Any) -> MemoryProducer:
        self.producers.append(MemoryProducer(self, transactional_id, options))
        return self.producers[-1]

    def append(self, place: Place, key: bytes | None, value: bytes | None, headers: Headers | None = None) -> None:
        self.logs[place].append(message(place, self.ends[place], key, value, headers))
        self.ends[place] += 1

    def values(self, topic: str, number: int = 0) -> list[bytes | None]:
        return [one.value() for one in self.logs[topic, number]]

    def compact(self, topic: str) -> None:
        """Keep only the last record of each key, and no deleted key."""
        for place, log in self.logs.items():
            if place[0] == topic:
                last = {one.key(): one.offset() for one in log}
                log[:] = [one for one in log if one.offset() == last[one.key()] and one.value() is not None]

    def has(self, member: Member) -> bool:
        """Whether it is a member of the group in its current generation."""
        return self.generations.get(member.name, member.generation) == member.generation

    def expire(self, transactional_id: str) -> None:
        """Fence the producer and abort its transaction, as a broker does after the transaction timeout."""
        self.epochs[transactional_id] += 1

    # --- as fomo_stream.kafka.topics.watch.TopicWatch

    @property
    def cluster(self) -> MemoryBroker:
        return self

    @property
    def answer(self) -> TopicsAnswer:
        return TopicsAnswer(self.partitions, self.topic_ids)

    def poll(self) -> TopicsAnswer:
        return self.answer

    def recent(self, _max_age_s: float) -> TopicsAnswer:
        return self.answer

    def has_open_transaction(self, partition: TopicPartition) -> bool:
        self.waits += 1
        return (partition.topic, partition.partition) in self.hidden


class MemoryConsumer:
    """A member of the group, in the generation that it knows, which may be outdated."""

    def __init__(self, broker: MemoryBroker, name: str = "member", generation: int = 0) -> None:
        self._broker = broker
        self.name = name
        self.generation = generation
        self.joined = 0  # how often as a new member
        self.has_left = False  # the group
        self.is_subscribed = True
        self.failures: list[KafkaError] = []  # of the next plain commits
        self.on_commit: Any = None  # callback, called at once
        self._next: dict[Place, int] = {}  # next offset of each assigned partition
        self._paused: set[Place] = set()

    def memberid(self) -> str:
        return f"{self.name}-{self.joined}"

    def subscribe(self, _topics: list[str], **_callbacks: Any) -> None:
        """It joins when the test says so."""
        self.is_subscribed = True

    def unsubscribe(self) -> None:
        self.has_left, self.is_subscribed = True, False
        self._next.clear()
        self._paused.clear()

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*place) for place in self._next]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._next |= {(found.topic, found.partition): found.offset for found in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for found in partitions:
            self._next.pop((found.topic, found.partition), None)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(found.topic, found.partition) for found in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(found.topic, found.partition) for found in partitions}

    def seek(self, partition: TopicPartition) -> None:
        self._next[partition.topic, partition.partition] = partition.offset

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition(one.topic, one.partition, self._next[one.topic, one.partition]) for one in partitions]

    def read(self, topic: str, number: int, most: int, again: int = 0) -> list[Message]:
        """The next records of a partition, unless it is paused; before them `again` records that were read already."""
        place = topic, number
        if place not in self._next or place in self._paused:
            return []
        start = max(0, self._next[place])
        self._next[place] = min(start + most, self._broker.ends[place])
        return self._broker.logs[place][max(0, start - again) : start + most]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float, cached: bool) -> tuple[int, int]:
        return 0, self._broker.ends[partition.topic, partition.partition]

    def consumer_group_metadata(self) -> Member:
        return Member(self.name, self.generation)

    @property
    def is_stale(self) -> bool:
        return not self._broker.has(self.consumer_group_metadata())

    def join_again(self, as_new: bool = False) -> None:
        """Be a member of the present generation; as_new: with another member id, because the group removed it."""
        self.generation = self._broker.generations[self.name]
        self.joined += as_new

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        error = self.failures.pop(0) if self.failures else None
        if error is None:
            self._broker.offsets |= {(found.topic, found.partition): found.offset for found in offsets}
        elif not asynchronous:
            raise KafkaException(error)
        if asynchronous and self.on_commit is not None:
            self.on_commit(error, offsets)
        return offsets

    def committed(self, offsets: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout <= 1.0
        if self._broker.answers.get("committed"):
            raise KafkaException(self._broker.answers["committed"].pop(0))
        places = [(one.topic, one.partition) for one in offsets]
        return [TopicPartition(*place, self._broker.offsets.get(place, OFFSET_INVALID)) for place in places]


class MemoryReader:
    """A consumer that is no member of the group."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._messages: list[Message] = []
        self.closed = False

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        places = [(found.topic, found.partition) for found in partitions]
        if any(producer.unstable & set(places) for producer in self._broker.producers):
            self._broker.waits += 1
            raise KafkaException(retriable())
        return [TopicPartition(*place, self._broker.offsets.get(place, OFFSET_INVALID)) for place in places]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        place = partition.topic, partition.partition
        return self._broker.begins[place], self._broker.hidden.get(place, self._broker.ends[place])

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._messages = []
        for found in partitions:
            place = found.topic, found.partition
            end = self._broker.hidden.get(place, self._broker.ends[place])
            self._messages += [one for one in self._broker.logs[place] if found.offset <= one.offset() < end]
            eof = KafkaError(KafkaError._PARTITION_EOF)
            self._messages.append(message(place, end, None, None, error=eof))

    def poll(self, _seconds: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def consume(self, most: int, _seconds: float) -> list[Message]:
        taken, self._messages = self._messages[:most], self._messages[most:]
        return taken

    def unassign(self) -> None:
        self._messages = []

    def close(self) -> None:
        self.closed = True
