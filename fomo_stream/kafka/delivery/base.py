"""Delivery: outputs sent between two commits are committed together with the consumed offsets.

There are two kinds: `exactly_once` and `at_least_once`. `Delivery` has their common steps.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.broker.cluster import TopicLimits
from fomo_stream.kafka.delivery.transactions import SLICE_S, BlockingCall, Commit
from fomo_stream.logs import Throttle, kv
from fomo_stream.partition.record import Headers, Record

log = logging.getLogger(__name__)

MAX_COMMIT_BYTES = 64 << 20  # in one commit
OVERHEAD_BYTES = 200  # of a record without its headers, and of a batch that holds only this record
REPORT_TRIES = 10


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
        """Return its size in bytes in a batch of its own, or a little less."""
        size = len(self.value or b"") + len(self.key or b"") + OVERHEAD_BYTES
        for name, value in self.headers:
            size += len(name) + len(value or b"") + 10
        return size


class CommitOutcome(Enum):
    COMMITTED = auto()
    PENDING = auto()  # not known yet: call `proceed` again
    FAILED = auto()  # the offsets were not committed: `abort`, and read again
    REFUSED = auto()  # as FAILED, because the broker does not accept the membership


# After these errors the broker will never accept the same bytes. After any other error they may succeed later.
PERMANENT = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)


class Refusals:
    """The outputs that were refused permanently since the last commit, and how the next producer has to send.

    A broker accepts or rejects a whole batch. Of a record that it finds invalid it says which one. After any other
    refusal each output is sent in its own batch, until a commit succeeds; the next refusal then identifies the output.
    """

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str], tuple[int, KafkaError]] = {}  # by topic and place of the source
        self.is_searching = False  # a batch was refused; searching for the output
        self.sends_singly = False  # the producer in use sends each output in a batch of its own
        self.has_found = False  # a refused output was identified since the last commit or abort

    def of(self, topic: str, source: Record) -> tuple[int, KafkaError | None]:
        """Return how often `topic` refused an output of this record since the last commit, and the last reason."""
        return self._refused.get((topic, source.where()), (0, None)) if self._refused else (0, None)

    def add(self, output: Output, error: KafkaError) -> None:
        """Note that a batch with this output failed.

        Raises BrokerError if the output is refused permanently and has no source record: only a person can repair that.
        """
        if error.code() not in PERMANENT:
            return
        if not self.sends_singly and error.code() != KafkaError.INVALID_RECORD:
            self.is_searching = True
            return
        if output.source is None:
            what = f"topic {output.topic} refuses a record ({error.str()})"
            raise BrokerError(what, "check that topic's configuration")
        self.has_found = True
        self._refused[output.topic, output.source.where()] = (self.of(output.topic, output.source)[0] + 1, error)

    def committed(self) -> bool:
        """Note a commit. Return whether the search is over, so that a producer that sends batches is needed."""
        self._refused.clear()
        if self.sends_singly:
            self.is_searching = False
        return self.sends_singly


class Delivery(ABC):
    """Send outputs through one producer, and commit, as a state machine.

    1. **Open.** `send` produces outputs; the first of a commit begins it (`begin`).
    2. **Commit.** `commit`, then `proceed` while the outcome is PENDING: each call takes the next `_step`. Outputs sent
       meanwhile belong to the next commit, and wait. If an output has failed before, the outcome is FAILED at once.
    3. **COMMITTED.** The outputs that have waited are sent. Back to 1.
    4. **FAILED** or **REFUSED.** `abort`, until it returns True: everything since the last commit is undone (`_undo`);
       its records must be read again. Back to 1. `abort` can come instead of 2, too.

    make_producer: called with additional settings; returns a Producer. limits: of topics, where known; they may
    change. max_outputs: in a commit. compresses: batches may be smaller than their records, so only the broker knows
    which sizes it accepts.
    """

    _producer: Any

    def __init__(
        self,
        make_producer: Callable[..., Any],
        limits: Mapping[str, TopicLimits],
        max_outputs: int = 10_000,
        compresses: bool = False,
    ) -> None:
        self._make_producer, self._limits = make_producer, limits
        self._max_outputs, self._compresses = max_outputs, compresses
        self._round = 0
        self._failure: KafkaError | None = None  # of the first output since the last commit that failed
        self.refusals = Refusals()
        self._commit: Commit | None = None  # under way
        self._call: BlockingCall | None = None  # a step of the commit in its own thread
        self._later: list[Output] = []  # sent during a commit
        self._bytes = 0
        self._throttle = Throttle()
        self.sent = 0  # outputs since the last commit
        self.trouble = ""  # why commits fail at the moment; empty: they work
        self._use_new_producer()

    def send(self, *outputs: Output) -> None:
        """Produce outputs, in their order, as part of the next commit; during a commit, of the one after it."""
        if not outputs:
            return
        self._bytes += sum(map(Output.size, outputs))
        if self.is_committing:
            self._later += outputs
            return
        self.begin()
        self.sent += len(outputs)
        now_ms = time.time() * 1000
        for output in outputs:
            if self._failure is not None:  # this commit will fail anyway
                return
            if output.timestamp and (limits := self._limits.get(output.topic)) is not None:
                is_taken = -limits.before_ms < output.timestamp - now_ms < limits.after_ms
                output.timestamp = output.timestamp if is_taken else 0
            try:
                self._produce(output)
            except KafkaException as error:
                self._failed(self._round, output, error.args[0])

    def _produce(self, output: Output) -> None:
        """Hand an output to the client, and wait while its queue is full. Raises KafkaException if it refuses."""
        on_delivery = partial(self._failed, self._round, output)
        # the client takes positional arguments in half the time, and the fewer the better
        options: dict[str, Any] = {}
        if output.timestamp:
            options["timestamp"] = output.timestamp
        if output.headers:
            options["headers"] = output.headers
        for _ in range(100):
            try:
                self._producer.produce(output.topic, output.value, output.key, output.partition, on_delivery, **options)
                return
            except BufferError:
                self._producer.poll(SLICE_S / 10)
        raise KafkaException(KafkaError(KafkaError._QUEUE_FULL))

    @property
    def is_full(self) -> bool:
        """Return whether enough was sent for one commit."""
        return self.sent + len(self._later) >= self._max_outputs or self._bytes >= MAX_COMMIT_BYTES

    @property
    def has_failed(self) -> bool:
        """Return whether the next commit will fail for certain."""
        return self._failure is not None

    @property
    def is_committing(self) -> bool:
        """Return whether a commit has begun whose outcome is not known."""
        return self._commit is not None

    def refusal(self, output: Output) -> str:
        """Return why its topic will refuse an output; empty if it will accept it, as far as known.

        An output that is known to be refused costs a dead letter; a refusal by the broker costs an abort of the commit.
        """
        if (limits := self._limits.get(output.topic)) is None:
            return ""
        if limits.needs_key and output.key is None:
            return "it is compacted, so it takes no records without a key"
        if not self._compresses and output.size() > limits.max_bytes:
            return f"it takes no records of {output.size()} bytes"
        return ""

    def learn_partitions(self, topic: str) -> None:
        """Refresh the client's number of partitions of a topic after it has changed; else outputs are refused."""
        try:
            self._producer.list_topics(topic, timeout=SLICE_S)
        except KafkaException as error:  # then a commit fails, and is repeated
            log.debug(kv("partitions_unknown", topic=topic, reason=error.args[0].str()))

    def commit(self, offsets: Sequence[TopicPartition], consumer: Any, member: Any) -> CommitOutcome:
        """Commit the outputs sent, with these offsets of the group of `consumer`.

        member: the membership under which it owns the partitions (`Membership.now`).
        """
        self.begin()
        self._commit = Commit(list(offsets), consumer, member)
        return self.proceed()

    def proceed(self, seconds: float = 0.0) -> CommitOutcome:
        """Continue the commit under way, and wait at most `seconds` for its outcome. Raises FencedError when fenced."""
        assert self._commit is not None
        if self._failure is not None and self._call is None and not self._commit.offsets_sent:
            outcome = CommitOutcome.FAILED  # after the offsets were sent, only the client can end the commit
        else:
            outcome = self._step(self._commit, seconds)
        if outcome is not CommitOutcome.PENDING:
            self._commit = self._call = None
        if outcome is CommitOutcome.COMMITTED:
            if self.refusals.committed():
                self._use_new_producer()
            later = self._forget()
            self.send(*later)
        return outcome

    def abort(self) -> bool:
        """Abort everything sent since the last commit, within about a second; False: not done yet, call it again.

        With at-least-once, outputs that are not sent yet are dropped; those that were sent stay. Raises FencedError.
        """
        with suppress(KafkaException):  # a fatal error, which `_undo` gets, too
            self._producer.poll(0)
            # _STATE only means that an earlier output failed. Its report, with the reason, is still on its way. Without
            # this wait, the abort would drop it, the refused output would stay unknown, and every commit would fail.
            for _ in range(REPORT_TRIES):
                if self._failure is None or self._failure.code() != KafkaError._STATE:
                    break
                self._producer.poll(SLICE_S / REPORT_TRIES)
        self._round += 1
        try:
            self._undo()
        except KafkaException as error:
            self._report(error.args[0])
            return False
        self._forget()
        return True

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction, if there are transactions."""

    @abstractmethod
    def close(self) -> None:
        """Give up everything that is not committed."""

    @abstractmethod
    def _step(self, commit: Commit, seconds: float) -> CommitOutcome:
        """Take the next step of a commit, and wait at most `seconds` for it. Raises FencedError."""

    @abstractmethod
    def _undo(self) -> None:
        """Undo everything since the last commit. Raises FencedError; KafkaException if it has to be tried again."""

    def _use_new_producer(self) -> None:
        self.refusals.sends_singly = self.refusals.is_searching
        options = {"batch.num.messages": 1} if self.refusals.sends_singly else {}
        self._producer = self._make_producer(error_cb=self._log, **{"delivery.report.only.error": True, **options})

    def _log(self, error: KafkaError) -> None:
        """Log an error of the whole client: it recovers by itself, or the next commit fails."""
        if self._throttle.allow(error.name()) is not None:
            log.warning(kv("delivery_trouble", name=error.name(), reason=error.str()))

    def _not_a_member(self, error: KafkaError) -> CommitOutcome:
        """Return the outcome for a membership that the broker refuses, which is normal while a group rebalances."""
        log.info(kv("commit_refused", reason=error.str(), effect="no commit until the group has assigned partitions"))
        return CommitOutcome.REFUSED

    def _report(self, error: KafkaError) -> None:
        self.trouble = f"nothing can be committed: {error.str()}"
        self._log(error)

    def _forget(self) -> list[Output]:
        """Begin the next commit. Return the outputs that were sent during the last one."""
        self._round += 1  # delivery reports of outputs sent before are ignored
        self._failure = None
        self.refusals.has_found = False
        self.trouble, self.sent, self._bytes = "", 0, 0
        later, self._later = self._later, []
        return later

    def _failed(self, round_: int, output: Output, error: KafkaError | None, _message: Any = None) -> None:
        """Take the client's report of an output that was sent in this round."""
        if error is None or round_ != self._round:
            return
        if self._failure is None or self._failure.code() == KafkaError._STATE:
            self._failure = error
            if error.code() != KafkaError._STATE and self._throttle.allow(output.topic) is not None:
                log.warning(kv("delivery_failed", topic=output.topic, reason=error.str()))
        self.refusals.add(output, error)
