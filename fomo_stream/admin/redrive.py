"""Sends dead letters back to the topics that they came from.

A letter goes back as the original record: key, value, headers, timestamp, and partition where that still exists. With
exactly-once each is sent once, however often this runs and for which reasons; with at-least-once a letter may be sent
twice after a crash. For each partition of dead letters, a `RedrivePosition` says which letters are done. It is
committed together with the letters.

A header of the record counts how often it was sent back. The service keeps it when the record becomes a dead letter
again, so that a record that never works ends at --max-attempts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.admin.redrive_position import RedrivePosition
from fomo_stream.errors import UNKNOWN, BrokerError, FencedError, NotPermittedError, TopicError
from fomo_stream.kafka.broker.clients import connect, make_producer
from fomo_stream.kafka.broker.permissions import READ, WRITE, check_permissions
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader, raise_partition_error
from fomo_stream.kafka.dead_letters import (
    ATTEMPTS,
    REASON,
    SOURCE_PARTITION,
    SOURCE_TIMESTAMP,
    SOURCE_TOPIC,
    TRUNCATED_FROM,
    own_headers,
)
from fomo_stream.kafka.delivery.transactions import NOT_PERMITTED, Commit, Transactions
from fomo_stream.kafka.record import Record, to_record
from fomo_stream.settings.commands import MAX_ATTEMPTS, RedriveSettings

TIMEOUT_S = 10.0  # to wait for an answer
STALLED_S = 30  # to wait for the next letter, or for an acknowledgement
BATCH_RECORDS = 1000  # in one transaction; fewer if they are large
BATCH_BYTES = 16 << 20
MOST_DIGITS = 18  # of a number that a client can send
AGAIN = "running it again continues where it stopped"
AT_LIMIT = "at the limit"


@dataclass
class Summary:
    """How many letters were sent, and how many were left."""

    topic: str
    dry_run: bool = False
    sent: Counter[str] = field(default_factory=Counter)  # by reason
    left: Counter[str] = field(default_factory=Counter)  # by the reason why they were left

    def __str__(self) -> str:
        """One line for people.

        >>> str(Summary("dead", sent=Counter(not_json=2, no_features=1), left=Counter({"cut": 1})))
        'sent 3 dead letters of dead (2 not_json, 1 no_features), left 1 (1 cut)'
        """
        sent, left = ("would send", "leave") if self.dry_run else ("sent", "left")
        sent_ones = f"{sent} {self.sent.total()} dead letters of {self.topic}{_parts(self.sent)}"
        return f"{sent_ones}, {left} {self.left.total()}{_parts(self.left)}"


def _parts(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{count} {name}' for name, count in counts.most_common())})" if counts else ""


def redrive(settings: RedriveSettings) -> Summary:
    """Send every dead letter that is in the topic now and was not sent yet; the settings choose them and the target.

    Raises BrokerError when the broker refuses or does not answer: TopicError for a topic that does not exist,
    NotPermittedError for a missing permission, FencedError when another run has begun. Letters committed before the
    error were sent, and another run continues after them.
    """
    partitions = _partitions(settings)
    with TopicReader(settings) as reader:
        # The sender first: it aborts the open transaction of another run, and only then are the offsets final.
        sender = None if settings.dry_run else _Sender(settings, reader, partitions)
        return _Redrive(settings, reader, partitions[settings.dead_letters], sender).run()


def _partitions(settings: RedriveSettings) -> dict[str, int]:
    """Number of partitions of each topic."""
    admin, found = connect(settings)
    if found.controller_id in found.brokers:  # the embedded broker has no controller, and does not know permissions
        needs = {settings.dead_letters: [READ], **({settings.to: [WRITE]} if settings.to else {})}
        check_permissions(settings, admin, needs)
    partitions = {topic: len(about.partitions) for topic, about in found.topics.items() if about.error is None}
    for role, topic in (("--dead-letters", settings.dead_letters), ("--to", settings.to)):
        if topic is not None and topic not in partitions:
            raise TopicError(
                f"there is no topic {topic} on {settings.bootstrap}, or it may not be described; check {role}"
            )
    return partitions


class _Redrive:
    """One run: reads the topic of dead letters, batch by batch, up to its end as of now."""

    def __init__(self, settings: RedriveSettings, reader: TopicReader, partitions: int, sender: _Sender | None) -> None:
        self._settings = settings
        self._reader = reader
        self._sender = sender
        self._summary = Summary(settings.dead_letters, settings.dry_run)
        self._ends: dict[int, int] = {}
        self._positions: dict[int, RedrivePosition] = {}
        topic, group = settings.dead_letters, settings.group
        with _explained(f"the offsets of group {group} cannot be read", f"check that group {group} may be read"):
            committed = reader.committed([TopicPartition(topic, n) for n in range(partitions)], TIMEOUT_S)
        with _explained(f"topic {topic} cannot be read", "check that it may be read"):
            for found in committed:
                first, end = reader.range_now(topic, found.partition, TIMEOUT_S)
                self._ends[found.partition] = end
                self._positions[found.partition] = RedrivePosition.committed(found, first, end)

    def run(self) -> Summary:
        batch: list[Record] = []
        size = 0
        for letter in self._letters():
            batch.append(letter)
            size += len(letter.value or b"")
            if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
                self._handle(batch, {one.partition: one.offset + 1 for one in batch})
                batch, size = [], 0
        self._handle(batch, self._ends)
        return self._summary

    def _letters(self) -> Iterator[Record]:
        """The letters that no earlier run has handled."""
        topic, reasons, limit = self._settings.dead_letters, self._settings.reason, self._settings.max_attempts
        ranges = {number: (at.first(reasons, limit), self._ends[number]) for number, at in self._positions.items()}
        try:
            with _explained(f"topic {topic} cannot be read", "check that it may be read"):
                for message in self._reader.read(topic, ranges, STALLED_S):
                    letter = to_record(message)
                    position = self._positions[letter.partition]
                    if not position.is_done(_reason(letter), _attempts(letter), letter.offset):
                        yield letter
        except NoProgressError:
            raise BrokerError(
                f"nothing came from topic {topic} for {STALLED_S} s, though there is more; {AGAIN}"
            ) from None

    def _handle(self, batch: Sequence[Record], reached: dict[int, int]) -> None:
        """Send the letters of a batch that can be sent; then all offsets below `reached`, by partition, are done."""
        whys = [self._why_left(letter) for letter in batch]
        outgoing = [letter for letter, why in zip(batch, whys, strict=True) if why is None]
        held: dict[int, int] = {}  # by partition, the first letter at the limit
        for letter, why in zip(batch, whys, strict=True):
            if why == AT_LIMIT:
                held.setdefault(letter.partition, letter.offset)
        run = self._settings.reason, self._settings.max_attempts
        positions = {
            number: self._positions[number].advanced(offset, *run, held.get(number))
            for number, offset in reached.items()
        }
        changed = {number: position for number, position in positions.items() if position != self._positions[number]}
        if changed and self._sender is not None:
            topic = self._settings.dead_letters
            self._sender.send(outgoing, [position.as_offset(topic, number) for number, position in changed.items()])
        self._positions |= changed
        self._summary.sent.update(map(_reason, outgoing))
        self._summary.left.update(why for why in whys if why is not None)

    def _why_left(self, letter: Record) -> str | None:
        headers = dict(letter.headers)
        reason = _reason(letter)
        if self._settings.reason and reason not in self._settings.reason:
            return f"{reason} for a later run"
        if TRUNCATED_FROM in headers:
            return "cut"
        if self._settings.to is None and not headers.get(SOURCE_TOPIC):
            return "without source topic"
        return AT_LIMIT if _attempts(letter) >= self._settings.max_attempts else None


class _Sender:
    """Sends letters and commits offsets; with transactions, either both take effect or neither."""

    def __init__(self, settings: RedriveSettings, reader: TopicReader, partitions: dict[str, int]) -> None:
        self._settings = settings
        self._reader = reader
        self._partitions = partitions
        self._refusals: list[BrokerError] = []
        self._transactions: Transactions | None = None
        if settings.delivery != "exactly-once":
            self._producer = make_producer(settings, None, **{"message.timeout.ms": STALLED_S * 1000})
            return
        name = settings.transactional_id
        self._producer = make_producer(settings, name)
        self._transactions = Transactions(self._producer)
        self._transactions.start_or_explain(STALLED_S, f"transactional id {name}", name)

    def send(self, letters: Sequence[Record], offsets: list[TopicPartition]) -> None:
        """Raises BrokerError, and aborts the transaction, when the broker has not accepted all of it."""
        group = self._settings.group
        try:
            if self._transactions is not None:
                with _explained("no transaction begins", AGAIN):
                    self._transactions.begin(TIMEOUT_S)
            for letter in letters:
                self._produce(letter)
            with _explained("letters cannot be sent", AGAIN):
                left = self._producer.flush(STALLED_S)
            if self._refusals or left:
                raise (self._refusals or [BrokerError(f"the broker does not answer; {AGAIN}")])[0]
            with _explained(
                f"the sent letters cannot be committed for group {group}", f"check that it may be read; {AGAIN}"
            ):
                self._commit(offsets)
        except BaseException:
            if self._transactions is not None:
                with suppress(KafkaException):
                    self._transactions.abort(TIMEOUT_S)
            raise

    def _commit(self, offsets: list[TopicPartition]) -> None:
        consumer = self._reader.client
        if self._transactions is not None:
            commit = Commit(offsets, consumer, consumer.consumer_group_metadata())
            self._transactions.commit(commit, TIMEOUT_S, STALLED_S)
        else:
            raise_partition_error(consumer.commit(offsets=offsets, asynchronous=False))

    def _produce(self, letter: Record) -> None:
        headers = dict(letter.headers)
        own = [header for header in own_headers(letter) if header[0] != ATTEMPTS]
        source = (headers.get(SOURCE_TOPIC) or b"").decode(errors="replace")
        topic = self._settings.to or source
        if topic not in self._partitions:
            raise TopicError(
                f"dead letter {letter.where()} came from topic {topic}, which does not exist or may not be described; "
                "create it, or name another one with --to"
            )
        number, timestamp = _number(headers.get(SOURCE_PARTITION)), _number(headers.get(SOURCE_TIMESTAMP))

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                text = f"topic {topic} does not take dead letter {letter.where()} ({error.str()}); {AGAIN}"
                self._refusals.append(_error(error, text))

        with _explained(f"dead letter {letter.where()} cannot be sent", AGAIN):
            self._producer.produce(
                topic,
                key=letter.key,
                value=letter.value,
                headers=[*own, (ATTEMPTS, str(_attempts(letter) + 1).encode())],
                partition=number if number is not None and number < self._partitions[topic] else -1,  # -1: by key
                timestamp=letter.timestamp_or_now if timestamp is None else timestamp,
                on_delivery=delivered,
            )
        self._producer.poll(0)


def _reason(letter: Record) -> str:
    return (dict(letter.headers).get(REASON) or UNKNOWN.encode()).decode(errors="replace")


def _attempts(letter: Record) -> int:
    """How often it was sent back; 0 if its header is no number. Anybody can write one, and the largest can be sent."""
    return min(_number(dict(letter.headers).get(ATTEMPTS)) or 0, MAX_ATTEMPTS - 1)


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= MOST_DIGITS else None


@contextmanager
def _explained(failure: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() == KafkaError._FENCED:
            raise FencedError("another run on the same dead letters has begun since, and continues with them") from None
        raise _error(reason, f"{failure} ({reason.str()}); {remedy}") from None


def _error(reason: KafkaError, text: str) -> BrokerError:
    return NotPermittedError(text) if reason.code() in NOT_PERMITTED else BrokerError(text)
