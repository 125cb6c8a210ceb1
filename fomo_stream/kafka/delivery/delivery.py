"""Delivery: what is sent since one commit takes effect with the next one, together with the offsets consumed for it.

There are two kinds: `exactly_once` and `at_least_once`. With either, a commit that fails is to be undone with `abort`,
and its records are to be read again.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.clients import Headers, Record
from fomo_stream.logs import Throttle, kv

log = logging.getLogger(__name__)

# (topic, partition of the source, key): which partition to write to; -1: by key
PartitionOf = Callable[[str, int, bytes | None], int]

SLICE_S = 1.0  # no call blocks for longer: the loop has to turn
MOST_BYTES = 64 << 20  # in one commit
OVERHEAD_BYTES = 200  # of a record, headers aside, and of a batch with nothing but it

# The broker will never take these bytes; anything else that fails may succeed later.
REFUSALS = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)


class Outcome(Enum):
    """What became of a commit so far."""

    COMMITTED = auto()
    PENDING = auto()  # not known yet: `proceed` has to be called again
    FAILED = auto()  # nothing of it took effect: `abort`, and read again


@dataclass(slots=True)
class Output:
    """One record to produce. source: the record that it is about, if any."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int = -1  # -1: chosen by key
    timestamp: int = 0  # milliseconds since 1970; 0: the time of producing
    source: Record | None = None

    def size(self) -> int:
        """Bytes that it takes in a batch of its own, or a little less."""
        headers = sum(len(name) + len(value or b"") + 10 for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers + OVERHEAD_BYTES


@dataclass
class Commit:
    """Offsets to commit for the group of which `consumer` is a member."""

    offsets: list[TopicPartition]
    consumer: Any
    member: Any  # the consumer in the group as it was: if that has dealt partitions anew since, the broker refuses
    offsets_sent: bool = False  # as part of the transaction, or to be answered


class Call:
    """Something that may block, in a thread of its own: if it never ends, nothing has to wait for it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._done = threading.Event()
        self._error: Exception | None = None
        self._began = monotonic()
        self._looked = self._began
        self.waited = 0.0  # seconds, less those in which this process did not run either
        threading.Thread(target=self._run, name="fomo-commit", daemon=True).start()

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:
            self._error = error
        self._done.set()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return monotonic() - self._began

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, at the latest after so many seconds."""
        done = self._done.wait(seconds)
        now = monotonic()
        self.waited += min(now - self._looked, 2 * SLICE_S)
        self._looked = now
        return done

    def result(self) -> None:
        """Raise what it raised."""
        if self._error is not None:
            raise self._error


class Delivery(ABC):
    """Sends outputs through one producer, and commits.

    make_producer: called with settings to add; limits: bytes that a record of a topic may have, where that is known;
    most: outputs in one commit.
    """

    def __init__(self, make_producer: Callable[..., Any], limits: Mapping[str, int], most: int = 10_000) -> None:
        self._make_producer = make_producer
        self._limits = limits
        self._most = most
        self._round = 0  # counts commits and aborts: reports on what was sent before are of no interest
        self._failure: KafkaError | None = None  # of the first output since the last commit that failed
        self._refusals: dict[tuple[str, str], tuple[int, KafkaError]] = {}  # by topic and place of the source
        self.has_refusal = False  # since the last commit or abort it was found out which output is refused
        self._is_suspicious = False  # a batch was refused: which output of it was meant?
        self._one_by_one = False  # to find that out, the producer sends each output alone
        self._is_fresh = False  # the producer is new
        self._commit: Commit | None = None  # that has begun
        self._call: Call | None = None  # that carries it out
        self._later: list[Output] = []  # sent while committing
        self._bytes = 0
        self._throttle = Throttle()
        self.sent = 0  # outputs since the last commit
        self.trouble = ""  # why nothing can be committed at the moment
        self._producer = self._new_producer()

    def send(self, output: Output) -> None:
        """Produce one output as part of the next commit; while one is under way, of the one after that."""
        self._bytes += output.size()
        if self.is_committing:
            self._later.append(output)
            return
        self.begin()
        self.sent += 1
        if self._failure is not None:  # in vain
            return
        report = partial(self._delivered, self._round, output)
        for _ in range(100):
            try:
                self._producer.produce(
                    output.topic,
                    value=output.value,
                    key=output.key,
                    headers=output.headers,
                    partition=output.partition,
                    timestamp=output.timestamp,
                    on_delivery=report,
                )
                return
            except BufferError:
                self._producer.poll(SLICE_S / 10)
            except KafkaException as error:
                self._failed(output, error.args[0])
                return
        self._failed(output, KafkaError(KafkaError._QUEUE_FULL))

    @property
    def is_full(self) -> bool:
        """Whether enough was sent for one commit."""
        return self.sent + len(self._later) >= self._most or self._bytes >= MOST_BYTES

    @property
    def has_failed(self) -> bool:
        """Whether the next commit is bound to fail."""
        return self._failure is not None

    @property
    def is_committing(self) -> bool:
        """Whether a commit has begun whose outcome is not known."""
        return self._commit is not None

    def fits(self, output: Output) -> bool:
        """Whether its topic takes an output of that size, as far as is known."""
        return output.size() <= self._limits.get(output.topic, output.size())

    def learn_partitions(self, topic: str) -> None:
        """The topic has another number of partitions than before: the client has to know, or it refuses outputs."""
        try:
            self._producer.list_topics(topic, timeout=SLICE_S)
        except KafkaException as error:  # a commit fails then, and is tried again
            log.debug(kv("partitions_unknown", topic=topic, reason=error.args[0].str()))

    def refused(self, topic: str, source: Record) -> tuple[int, KafkaError | None]:
        """How often `topic` has refused an output about this record since the last commit, and why at last."""
        return self._refusals.get((topic, source.where()), (0, None))

    def commit(self, offsets: Sequence[TopicPartition], consumer: Any) -> Outcome:
        """Commit what was sent together with these offsets of the group of which `consumer` is a member."""
        self.begin()
        self._commit = Commit(list(offsets), consumer, consumer.consumer_group_metadata())
        return self.proceed()

    def proceed(self, seconds: float = 0.0) -> Outcome:
        """Go on with the commit that has begun, and wait so long for its outcome. Raises BrokerError when fenced."""
        assert self._commit is not None
        outcome = self._proceed(self._commit, seconds)
        if outcome is Outcome.PENDING:
            return outcome
        self._commit = self._call = None
        if outcome is Outcome.COMMITTED:
            self._committed()
            if self._one_by_one:
                self._is_suspicious = False
                self._producer = self._new_producer()
            self._forget()
            later, self._later = self._later, []
            for output in later:
                self.send(output)
        return outcome

    def _proceed(self, commit: Commit, seconds: float) -> Outcome:
        if self._call is None:
            if self._failure is not None and not commit.offsets_sent:  # else the client has begun, and has to conclude
                return Outcome.FAILED
            self._call = Call(self._carry_out(commit))
        if not self._call.wait(seconds):
            return self._outcome_of_waiting(self._call)
        call, self._call = self._call, None
        try:
            call.result()
        except KafkaException as error:
            return self._outcome_of(error.args[0], call)
        return Outcome.COMMITTED if self._failure is None else Outcome.FAILED

    def abort(self) -> bool:
        """Undo what was sent since the last commit, for about a second at most; False: not done yet, call it again."""
        self._round += 1
        try:
            self._abort()
        except KafkaException as error:
            self._note(error.args[0])
            return False
        self._forget()
        self._later.clear()
        self.trouble = ""
        return True

    @abstractmethod
    def begin(self) -> None:
        """Be ready to send."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is not committed."""

    @abstractmethod
    def _carry_out(self, commit: Commit) -> Callable[[], None]:
        """What carries a commit out, or goes on with it, and may take about a second, or for ever."""

    @abstractmethod
    def _abort(self) -> None: ...

    @abstractmethod
    def _outcome_of(self, error: KafkaError, call: Call) -> Outcome:
        """What an error in a commit means. Raises BrokerError when there is no going on."""

    def _outcome_of_waiting(self, call: Call) -> Outcome:
        return Outcome.PENDING

    def _committed(self) -> None:
        """The commit has succeeded."""
        self._refusals.clear()
        self.trouble = ""

    def _new_producer(self) -> Any:
        self._is_fresh = True
        self._one_by_one = self._is_suspicious
        more = {"batch.num.messages": 1} if self._one_by_one else {}
        return self._make_producer(error_cb=self._log, **more)

    def _log(self, error: KafkaError) -> None:
        """The client is in trouble as a whole; it goes on by itself, or the next commit will tell."""
        if self._throttle.allow(error.name()) is not None:
            log.warning(kv("delivery_trouble", name=error.name(), reason=error.str()))

    def _note(self, error: KafkaError) -> None:
        self.trouble = f"nothing can be committed: {error.str()}"
        self._log(error)

    def _forget(self) -> None:
        self._round += 1
        self._failure = None
        self.has_refusal = False
        self.sent = self._bytes = 0

    def _delivered(self, round_: int, output: Output, error: KafkaError | None, _message: object) -> None:
        if error is not None and round_ == self._round:
            self._failed(output, error)

    def _failed(self, output: Output, error: KafkaError) -> None:
        if self._failure is None:
            self._failure = error
            if self._throttle.allow(output.topic) is not None:
                log.warning(kv("delivery_failed", topic=output.topic, reason=error.str()))
        if error.code() in REFUSALS:
            self._count_refusal(output, error)

    def _count_refusal(self, output: Output, error: KafkaError) -> None:
        """The broker refuses a batch with this output: next time each goes alone, then it is known which it was."""
        self._is_suspicious = True
        if not self._one_by_one:
            return
        if output.source is None:
            raise BrokerError(
                f"topic {output.topic} refuses a record ({error.str()}); check that topic's configuration"
            )
        key = (output.topic, output.source.where())
        self.has_refusal = True
        self._refusals[key] = (self.refused(output.topic, output.source)[0] + 1, error)
