"""The producer of the broker in memory, with transactions: it behaves as confluent_kafka.Producer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.partition.record import Headers

if TYPE_CHECKING:
    from memory_broker import MemoryBroker

Place = tuple[str, int]  # topic and partition


class Produced(NamedTuple):
    """A record handed to a producer."""

    place: Place
    key: bytes | None
    value: bytes | None
    headers: Headers
    stamp: int
    on_delivery: Callable[[KafkaError | None, Any], None]

    def topic(self) -> str:
        return self.place[0]


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
        headers: Headers,
        partition: int,
        timestamp: int,
        on_delivery: Callable[[KafkaError | None, Any], None],
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
        """Send a batch to each partition, or each record alone; a batch is accepted or refused as a whole."""
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
            if error is not None or not self.options.get("delivery.report.only.error"):
                produced.on_delivery(error, produced)

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
        self._check("open", "abortable")
        self._begin("commit_transaction")
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
