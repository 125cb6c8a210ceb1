"""A broker in memory, as far as delivery and restoring need one: it fails on demand, which no real one does.

A transaction applies all of its parts at once, or none. `MemoryProducer` behaves as confluent_kafka.Producer does,
`MemoryReader` as a Consumer that reads committed records, of which each partition's end is told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from fomo_stream.kafka.clients import Headers
from fomo_stream.kafka.topic_watch import TopicsSeen

Place = tuple[str, int]  # topic and partition


class Message(NamedTuple):
    """A record of a log."""

    place: Place
    at: int
    raw_key: bytes | None
    raw_value: bytes | None
    raw_headers: Headers = []  # noqa: RUF012 - nobody changes it
    failure: KafkaError | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def headers(self) -> Headers:
        return self.raw_headers

    def error(self) -> KafkaError | None:
        return self.failure


class Produced(NamedTuple):
    """What a producer was asked to send."""

    place: Place
    key: bytes | None
    value: bytes | None
    headers: Headers
    stamp: int
    on_delivery: Callable[[KafkaError | None, object], None]


def retriable(code: int = KafkaError._TIMED_OUT) -> KafkaError:
    return KafkaError(code, "no answer", retriable=True)


def abortable(code: int = KafkaError.UNKNOWN_MEMBER_ID) -> KafkaError:
    return KafkaError(code, "must be aborted", txn_requires_abort=True)


def fatal(code: int = KafkaError._FENCED) -> KafkaError:
    return KafkaError(code, "fenced", fatal=True)


class MemoryBroker:
    """Logs, the group's offsets, and who may write.

    refuses: the error code for a record that is never taken; answers: errors that the next calls of a producer's method
    give, by its name, None standing for success; is_down: nothing is answered, and slow: nothing about these topics;
    loses_answers: a transaction is committed although the answer is an error; hangs: what these calls wait for.
    """

    def __init__(self) -> None:
        self.logs: dict[Place, list[Message]] = defaultdict(list)
        self.begins: Counter[Place] = Counter()
        self.ends: Counter[Place] = Counter()
        self.offsets: dict[Place, int] = {}
        self.epochs: Counter[str] = Counter()  # of transactional ids
        self.generations: dict[str, int] = {}  # members of the group, by name, if that is of interest
        self.refuses: Callable[[Produced], int | None] = lambda produced: None
        self.answers: dict[str, list[KafkaError | None]] = defaultdict(list)
        self.is_down = False
        self.slow: set[str] = set()
        self.loses_answers = False
        self.hangs: dict[str, Event] = {}
        self.hidden: dict[Place, int] = {}  # offsets from which on it is not known yet what is committed
        self.producers: list[MemoryProducer] = []
        self.partitions: dict[str, int] = {}
        self.topic_ids: dict[str, str] = {}
        self.waits = 0  # how often somebody was told to wait for what is not known yet

    def producer(self, transactional_id: str | None, **options: Any) -> MemoryProducer:
        self.producers.append(MemoryProducer(self, transactional_id, options))
        return self.producers[-1]

    def append(self, place: Place, key: bytes | None, value: bytes | None, headers: Headers | None = None) -> None:
        self.logs[place].append(Message(place, self.ends[place], key, value, headers or []))
        self.ends[place] += 1

    def values(self, topic: str, number: int = 0) -> list[bytes | None]:
        return [message.raw_value for message in self.logs[topic, number]]

    def compact(self, topic: str) -> None:
        """Of each key keep the last record, and nothing of those that were deleted."""
        for place, log in self.logs.items():
            if place[0] == topic:
                last = {message.raw_key: message.at for message in log}
                log[:] = [m for m in log if m.at == last[m.raw_key] and m.raw_value is not None]

    def has(self, member: Member) -> bool:
        """Whether it is a member of the group as that is now."""
        return self.generations.get(member.name, member.generation) == member.generation

    def expire(self, transactional_id: str) -> None:
        """End what is open, as a broker does when nothing was heard for long: the producer is fenced."""
        self.epochs[transactional_id] += 1

    # --- as fomo_stream.kafka.topic_watch.TopicWatch

    @property
    def seen(self) -> TopicsSeen:
        return TopicsSeen(self.partitions, self.topic_ids)

    def look(self) -> TopicsSeen:
        return self.seen

    def has_open_transaction(self, partition: TopicPartition) -> bool:
        self.waits += 1
        return (partition.topic, partition.partition) in self.hidden


class Member(NamedTuple):
    """Of the group, in one of its generations."""

    name: str
    generation: int


class MemoryConsumer:
    """A member of the group, of a generation that it knows, and that may be over."""

    def __init__(self, broker: MemoryBroker, name: str = "member", generation: int = 0) -> None:
        self._broker = broker
        self.name = name
        self.generation = generation
        self.failures: list[KafkaError] = []  # of the next plain commits
        self.on_commit: Any = None  # the callback, which is called at once
        self._next: dict[Place, int] = {}  # offset to read next, of what is assigned
        self._paused: set[Place] = set()

    def memberid(self) -> str:
        return self.name

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._next |= {(found.topic, found.partition): found.offset for found in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for found in partitions:
            del self._next[found.topic, found.partition]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(found.topic, found.partition) for found in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(found.topic, found.partition) for found in partitions}

    def seek(self, partition: TopicPartition) -> None:
        self._next[partition.topic, partition.partition] = partition.offset

    def read(self, topic: str, number: int, most: int, again: int = 0) -> list[Message]:
        """The next records of a partition, unless it is paused; before them some that were read already."""
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

    def join_again(self) -> None:
        self.generation = self._broker.generations[self.name]

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
        return offsets


class MemoryProducer:
    """confluent_kafka.Producer. Without a transactional id, what is sent counts at once."""

    def __init__(self, broker: MemoryBroker, transactional_id: str | None, options: dict[str, Any]) -> None:
        self.options = options
        self._broker = broker
        self._id = transactional_id
        self._alone = options.get("batch.num.messages") == 1
        self._state = "new"  # then ready, open, abortable, fatal
        self._epoch = -1
        self._begun = ""  # the call that gave no answer, and has to be made again
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
        headers: Headers,
        partition: int,
        timestamp: int,
        on_delivery: Callable[[KafkaError | None, object], None],
    ) -> None:
        if self._id is not None and (self._state != "open" or self._begun):
            raise KafkaException(KafkaError(KafkaError._STATE, f"produce in state {self._state} {self._begun}"))
        failure = self._next_answer("produce")
        if failure is not None:
            if failure.code() == KafkaError._QUEUE_FULL:
                raise BufferError
            raise KafkaException(failure)
        self._queue.append(Produced((topic, max(partition, 0)), key, value, headers, timestamp, on_delivery))

    def poll(self, _seconds: float) -> None:
        self._send()
        self._serve()

    def flush(self, _seconds: float) -> int:
        self._send()
        self._serve()
        return len(self._queue)

    def purge(self) -> None:
        self._reports += [(produced, KafkaError(KafkaError._PURGE_QUEUE)) for produced in self._queue]
        self._queue.clear()

    def _send(self) -> None:
        """Send a batch to each partition, or each record alone; a batch is taken or refused as a whole."""
        while not self._broker.is_down and (self._id is None or self._state == "open"):
            batch = [one for one in self._queue if one.place[0] not in self._broker.slow]
            batch = [one for one in batch if one.place == batch[0].place][: 1 if self._alone else None]
            if not batch:
                return
            self._queue = [one for one in self._queue if all(one is not sent for sent in batch)]
            code = next(filter(None, map(self._broker.refuses, batch)), None)
            self._reports += [(one, KafkaError(code) if code is not None else None) for one in batch]
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
            produced.on_delivery(error, None)

    # --- transactions

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
        self._begin("commit_transaction")
        self._check("open", "abortable")
        if self._state == "open":
            self._send()
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
        self._begin("abort_transaction")
        self._check("open", "abortable")
        self.purge()
        self._answer("abort_transaction")
        self._sent, self._offsets = [], {}
        self._begun, self._state = "", "ready"

    def _commit(self) -> None:
        self._apply(self._sent)
        self._broker.offsets |= self._offsets
        self._sent, self._offsets = [], {}

    def _begin(self, call: str) -> None:
        """A call that gave no answer has to be made again before another one."""
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
        (found,) = partitions
        place = found.topic, found.partition
        end = self._broker.hidden.get(place, self._broker.ends[place])
        self._messages = [message for message in self._broker.logs[place] if found.offset <= message.at < end]
        self._messages.append(Message(place, end, None, None, failure=KafkaError(KafkaError._PARTITION_EOF)))

    def poll(self, _seconds: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def unassign(self) -> None:
        self._messages = []

    def close(self) -> None:
        self.closed = True
