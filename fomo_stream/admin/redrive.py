"""Sends dead letters back to the topics that they came from.

A letter goes back as the original record: key, value, headers, timestamp, and partition where that still exists. With
exactly-once each is sent once, however often this runs and for which reasons; with at-least-once a letter may be sent
twice after a crash. A `Position` for each partition of dead letters, committed together with the letters, says which
ones are done. One that its topic does not take keeps no other from being sent, and is left for later runs.

A header of the record counts how often it was sent back. The service keeps it when the record becomes a dead letter
again, so that a record that never works ends at --max-attempts.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import UNKNOWN, BrokerError, FencedError, TopicError
from fomo_stream.kafka.broker.clients import NOT_PERMITTED, broker_error, connect, make_producer
from fomo_stream.kafka.broker.permissions import READ, WRITE, check_permissions
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader, raise_partition_error, to_record
from fomo_stream.kafka.delivery.transactions import Commit, Transactions
from fomo_stream.kafka.outputs import (
    ATTEMPTS,
    REASON,
    SOURCE_PARTITION,
    SOURCE_TIMESTAMP,
    SOURCE_TOPIC,
    TRUNCATED_FROM,
    own_headers,
)
from fomo_stream.partition.record import Record
from fomo_stream.settings.commands import MAX_ATTEMPTS, RedriveSettings
from fomo_stream.wording import counted

TIMEOUT_S = 10.0  # to wait for an answer
STALLED_S = 30  # to wait for the next letter, or for an acknowledgement
BATCH_RECORDS = 1000  # in one transaction; fewer if they are large
BATCH_BYTES = 16 << 20
MOST_DIGITS = 18  # of a number that a client can send
AGAIN = "running it again continues where it stopped"
MOST_METADATA = 4000  # characters; the broker's own limit is 4096 bytes
NAMED = 5  # letters that could not be sent
GONE, REFUSED = "of topics that do not exist", "that their topics refuse"  # why a letter is left for later runs
LEFT = ""  # in the metadata of a position; no reason has this name


class RefusedError(TopicError):
    """A topic does not take a letter; others may be taken."""


@dataclass
class Summary:
    """How many letters were sent, by reason, and how many were left, by why."""

    topic: str
    dry_run: bool = False
    sent: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)  # why a topic did not get its letter, of the first ones

    def check(self) -> None:
        """Raise TopicError if topics did not take their letters; the others were sent."""
        if self.named:
            letters = counted(self.left[GONE] + self.left[REFUSED], "dead letter")
            what = f"{letters} could not be sent: {', '.join(self.named)}"
            raise TopicError(what, "create or change the topic, or name another one with --to, and run it again")

    def __str__(self) -> str:
        def parts(counts: Counter[str]) -> str:
            return f" ({', '.join(f'{count} {name}' for name, count in counts.most_common())})" if counts else ""

        sent, left = ("would send", "leave") if self.dry_run else ("sent", "left")
        sent_ones = f"{sent} {self.sent.total()} dead letters of {self.topic}{parts(self.sent)}"
        return f"{sent_ones}, {left} {self.left.total()}{parts(self.left)}"


@dataclass(frozen=True)
class Position:
    """The done letters of a partition: all below `offset`, and those of some reasons below the offset in `ahead`.

    left: offsets of letters below these that are not done.
    """

    offset: int
    ahead: Mapping[str, int] = field(default_factory=dict)
    left: frozenset[int] = frozenset()

    @classmethod
    def committed(cls, committed: TopicPartition, first: int, end: int) -> Position:
        """The group's committed position; `first` without one, or when the topic was created again and ends earlier."""
        try:
            ahead = json.loads(committed.metadata or "{}")
            steps = zlib.decompress(b64decode(ahead.pop(LEFT))) if LEFT in ahead else b"[]"
            left = frozenset(offset for offset in accumulate(json.loads(steps)) if offset >= first)
            ahead = {reason: int(to) for reason, to in ahead.items()}
        except (ValueError, TypeError, AttributeError, zlib.error):  # another tool has set the offset
            ahead, left = {}, frozenset()
        is_usable = committed.offset >= 0 and max(committed.offset, *ahead.values(), 0) <= end
        return cls(committed.offset, ahead, left) if is_usable else cls(first)

    def as_offset(self, topic: str, partition: int) -> TopicPartition:
        """The offset to commit; the rest is its metadata. Raises TopicError if that is too much for the broker."""
        rest: dict[str, int | str] = dict(self.ahead)
        if self.left:
            steps = [after - before for before, after in pairwise([0, *sorted(self.left)])]
            rest[LEFT] = b64encode(zlib.compress(json.dumps(steps).encode(), 9)).decode()
        metadata = json.dumps(rest) if rest else ""
        if len(metadata) > MOST_METADATA:
            what = f"more dead letters of {topic}[{partition}] cannot be sent than can be remembered"
            raise TopicError(what, "create the topics that they came from, or name another one with --to")
        return TopicPartition(topic, partition, self.offset, metadata)

    def _end(self, reason: str) -> int:
        return max(self.offset, self.ahead.get(reason, 0))

    def is_done(self, reason: str, offset: int) -> bool:
        """Whether an earlier run has handled the letter at `offset`, with this reason."""
        return offset < self._end(reason) and offset not in self.left

    def first(self, reasons: Sequence[str]) -> int:
        """Below it, all letters with one of these reasons (none: any) are done."""
        return min([min(map(self._end, reasons), default=self.offset), *self.left])

    def advanced(self, to: int, reasons: Sequence[str], left: frozenset[int] = frozenset()) -> Position:
        """The position when a run about these reasons (none: any) has handled all its letters below `to` but `left`."""
        offset = self.offset if reasons else to
        ahead = {**self.ahead, **{reason: max(to, self.ahead.get(reason, 0)) for reason in reasons}}
        return Position(offset, {reason: end for reason, end in ahead.items() if end > offset}, left)


def redrive(settings: RedriveSettings) -> Summary:
    """Send every dead letter that is in the topic now and was not sent yet; the settings choose them and the target.

    Raises BrokerError when the broker refuses or does not answer: TopicError for a topic that does not exist,
    NotPermittedError for a missing permission, FencedError when another run has begun. Letters committed before the
    error were sent, and another run continues after them.
    """
    partitions = _partitions(settings)
    with TopicReader(settings) as reader:
        try:
            return _Redrive(settings, reader, partitions).run()
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FENCED:
                what = "another run on the same dead letters has begun since, and continues with them"
                raise FencedError(what) from None
            what = f"topic {settings.dead_letters} cannot be redriven with group {settings.group}"
            raise broker_error(error, what, AGAIN, "check that the topic and the group may be read") from None


def _partitions(settings: RedriveSettings) -> dict[str, int]:
    """Number of partitions of each topic."""
    admin, metadata = connect(settings)
    if metadata.controller_id in metadata.brokers:  # the embedded broker has none, and does not know permissions
        needs = {settings.dead_letters: [READ], **({settings.to: [WRITE]} if settings.to else {})}
        check_permissions(settings, admin, needs)
    partitions = {topic: len(about.partitions) for topic, about in metadata.topics.items() if about.error is None}
    for role, topic in (("--dead-letters", settings.dead_letters), ("--to", settings.to)):
        if topic is not None and topic not in partitions:
            what = f"there is no topic {topic} on {settings.bootstrap}, or it may not be described"
            raise TopicError(what, f"check {role}")
    return partitions


class _Redrive:
    """One run: reads the topic of dead letters, batch by batch, up to its end as of now, and sends the letters.

    With transactions, the letters of a batch and the offsets after it take effect together.
    """

    def __init__(self, settings: RedriveSettings, reader: TopicReader, partitions: dict[str, int]) -> None:
        self._settings, self._reader, self._partitions = settings, reader, partitions
        self._summary = Summary(settings.dead_letters, settings.dry_run)
        self._delivered: set[tuple[int, int]] = set()  # without transactions: partition and offset of letters
        self._transactions: Transactions | None = None
        # The producer first: it aborts the open transaction of another run, and only then are the offsets final.
        if not settings.dry_run:
            self._open_producer()
        topic = settings.dead_letters
        numbers = range(partitions[topic])
        # Before the ends, which may grow: a position after the end is one of a topic that was created again.
        committed = reader.committed([TopicPartition(topic, number) for number in numbers], TIMEOUT_S)
        ranges = {number: reader.range_now(topic, number, TIMEOUT_S) for number in numbers}
        self._ends = {number: end for number, (_, end) in ranges.items()}
        self._positions = {one.partition: Position.committed(one, *ranges[one.partition]) for one in committed}

    def _open_producer(self) -> None:
        name = self._settings.transactional_id
        if self._settings.delivery == "exactly-once":
            self._producer = make_producer(self._settings, name)
            self._transactions = Transactions(self._producer)
            self._transactions.start_or_explain(STALLED_S, f"transactional id {name}", name)
        else:
            self._producer = make_producer(self._settings, None, **{"message.timeout.ms": STALLED_S * 1000})

    def run(self) -> Summary:
        batch: list[Record] = []
        size = 0
        for letter in self._letters():
            batch.append(letter)
            size += len(letter.value or b"")
            if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
                self._handle(batch, {letter.partition: letter.offset + 1 for letter in batch})
                batch, size = [], 0
        self._handle(batch, self._ends)
        return self._summary

    def _letters(self) -> Iterator[Record]:
        """The letters that no earlier run has handled."""
        topic, reasons = self._settings.dead_letters, self._settings.reason
        ranges = {number: (place.first(reasons), self._ends[number]) for number, place in self._positions.items()}
        try:
            for letter in map(to_record, self._reader.read(topic, ranges, STALLED_S)):
                if not self._positions[letter.partition].is_done(_reason(letter), letter.offset):
                    yield letter
        except NoProgressError:
            what = f"nothing came from topic {topic} for {STALLED_S} s, though there is more"
            raise BrokerError(what, AGAIN) from None

    def _handle(self, batch: Sequence[Record], reached: dict[int, int], refusal: RefusedError | None = None) -> None:
        """Send the letters of a batch that can be sent; then all offsets below `reached`, by partition, are done.

        refusal: why the only letter of this batch cannot be sent.
        """
        reasons = self._settings.reason
        fates = [(letter, self._why_left(letter) if refusal is None else REFUSED) for letter in batch]
        outgoing = [letter for letter, why in fates if why is None]
        asked = [(letter, why) for letter, why in fates if not reasons or _reason(letter) in reasons]
        changed = {}
        for number, offset in reached.items():
            before, here = self._positions[number], [(one.offset, why) for one, why in asked if one.partition == number]
            left = (before.left - {at for at, _ in here}) | {at for at, why in here if why in (GONE, REFUSED)}
            if (after := before.advanced(offset, reasons, left)) != before:
                changed[number] = after
        if changed and not self._settings.dry_run:
            places = [position.as_offset(self._settings.dead_letters, number) for number, position in changed.items()]
            try:
                self._send(outgoing, places)
            except RefusedError as error:
                self._open_producer()  # the next transaction of the old one would fail: it lacks a sequence number
                half = batch[: len(batch) // 2]
                self._handle(half, {letter.partition: letter.offset + 1 for letter in half})
                self._handle(batch[len(half) :], reached, None if half else error)
                return
        self._positions |= changed
        self._summary.sent.update(map(_reason, outgoing))
        self._summary.left.update(why for _, why in fates if why is not None)
        what = "{} came from topic {}, which does not exist or may not be described"
        gone = [what.format(letter.where(), self._target(letter)) for letter, why in fates if why == GONE]
        self._summary.named = [*self._summary.named, *(gone if refusal is None else [refusal.what])][:NAMED]

    def _target(self, letter: Record) -> str:
        return self._settings.to or (dict(letter.headers).get(SOURCE_TOPIC) or b"").decode(errors="replace")

    def _why_left(self, letter: Record) -> str | None:
        if self._settings.reason and _reason(letter) not in self._settings.reason:
            return f"{_reason(letter)} for a later run"
        if TRUNCATED_FROM in dict(letter.headers):
            return "cut"
        if not self._target(letter):
            return "without source topic"
        if _attempts(letter) >= self._settings.max_attempts:
            return "at the limit"
        return None if self._target(letter) in self._partitions else GONE

    def _send(self, letters: Sequence[Record], offsets: list[TopicPartition]) -> None:
        """Raises BrokerError or KafkaException, and aborts, when the broker has not accepted all of it.

        RefusedError is because of a letter: the others can be sent without it.
        """
        errors: list[BrokerError] = []  # of this try: reports of an earlier one can come late
        try:
            if self._transactions is not None:
                self._transactions.begin(TIMEOUT_S)
            for letter in letters:
                if (letter.partition, letter.offset) not in self._delivered:
                    self._produce(letter, errors)
            left = self._producer.flush(STALLED_S)
            if errors or left:  # in a transaction, other errors follow from a refusal
                refusals: list[BrokerError] = [error for error in errors if isinstance(error, RefusedError)]
                raise [*refusals, *errors, BrokerError("the broker does not answer", AGAIN)][0]
            consumer = self._reader.client
            if self._transactions is None:
                raise_partition_error(consumer.commit(offsets=offsets, asynchronous=False))
            else:
                commit = Commit(offsets, consumer, consumer.consumer_group_metadata())
                self._transactions.commit(commit, TIMEOUT_S, STALLED_S)
        except BaseException:
            if self._transactions is not None:
                with suppress(KafkaException):
                    self._transactions.abort(TIMEOUT_S)
            raise

    def _produce(self, letter: Record, errors: list[BrokerError]) -> None:
        headers = dict(letter.headers)
        own = [header for header in own_headers(letter) if header[0] != ATTEMPTS]
        topic = self._target(letter)
        number, timestamp = _number(headers.get(SOURCE_PARTITION)), _number(headers.get(SOURCE_TIMESTAMP))

        def delivered(error: KafkaError | None, _message: object = None) -> None:
            what = f"topic {topic} does not take dead letter {letter.where()}"
            if error is not None:
                code = error.code()  # what the broker refuses for good; a missing permission is for a person to mend
                is_refused = code not in NOT_PERMITTED and (code > 0 or code == KafkaError._INVALID_DIFFERENT_RECORD)
                errors.append(
                    RefusedError(f"{what} ({error.str()})") if is_refused else broker_error(error, what, AGAIN)
                )
            elif self._transactions is None:
                self._delivered.add((letter.partition, letter.offset))

        try:
            self._producer.produce(
                topic,
                key=letter.key,
                value=letter.value,
                headers=[*own, (ATTEMPTS, str(_attempts(letter) + 1).encode())],
                partition=number if number is not None and number < self._partitions[topic] else -1,  # -1: by key
                timestamp=letter.timestamp_or_now if timestamp is None else timestamp,
                on_delivery=delivered,
            )
        except KafkaException as error:
            delivered(error.args[0])
        self._producer.poll(0)


def _reason(letter: Record) -> str:
    return (dict(letter.headers).get(REASON) or UNKNOWN.encode()).decode(errors="replace")


def _attempts(letter: Record) -> int:
    """How often it was sent back; 0 if its header is no number. Anybody can write one, and the largest can be sent."""
    return min(_number(dict(letter.headers).get(ATTEMPTS)) or 0, MAX_ATTEMPTS - 1)


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= MOST_DIGITS else None
