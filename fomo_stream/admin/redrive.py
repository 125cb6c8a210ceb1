"""Sends dead letters back to the topics that they came from.

A letter goes back as the original record: key, value, headers, timestamp, and partition where that still exists. With
exactly-once each letter is sent once, over all runs and reasons; with at-least-once a letter may be sent twice after a
crash. A `RedriveProgress` for each partition of dead letters is committed with the letters and says which are done. A
letter that its topic refuses does not stop the others, and is left for later runs.

A header of the record counts how often it was sent back. The service keeps the header when the record becomes a dead
letter again, so a record that always fails stops at --max-attempts.
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
from fomo_stream.kafka import outputs
from fomo_stream.kafka.broker.clients import NOT_PERMITTED, broker_error, connect, make_producer
from fomo_stream.kafka.broker.permissions import READ, WRITE, check_permissions
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader, raise_partition_error, to_record
from fomo_stream.kafka.delivery.transactions import Commit, Transactions
from fomo_stream.partition.record import Record
from fomo_stream.settings.commands import MAX_ATTEMPTS, RedriveSettings
from fomo_stream.wording import counted

TIMEOUT_S = 10.0  # to wait for an answer
STALLED_S = 30  # to wait for the next letter, or for an acknowledgement
BATCH_RECORDS = 1000  # in one transaction; fewer if they are large
BATCH_BYTES = 16 << 20
MAX_HEADER_DIGITS = 18  # of a number in a header; larger numbers do not fit into 64 bits
RUN_AGAIN = "running it again continues where it stopped"
MAX_METADATA_CHARACTERS = 4000  # the default limit of a broker is 4096 bytes
MAX_NAMED_LETTERS = 5  # letters that could not be sent and that the error names
GONE, REFUSED = "of topics that do not exist", "that their topics refuse"  # why a letter is left for later runs
LEFT_KEY = ""  # key in the metadata of an offset; no reason has this name


class RefusedError(TopicError):
    """A topic does not take a letter; others may be taken."""


@dataclass
class Summary:
    """Numbers of letters that were sent, by reason, and that were left, by the cause."""

    topic: str
    dry_run: bool = False
    sent: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)  # why the first refused letters were not sent

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
        sent_text = f"{sent} {self.sent.total()} dead letters of {self.topic}{parts(self.sent)}"
        return f"{sent_text}, {left} {self.left.total()}{parts(self.left)}"


@dataclass(frozen=True)
class RedriveProgress:
    """Which letters of a partition are done: all below `offset`, and those of a reason below its offset in `ahead`.

    left: offsets below these of letters that are not done.
    """

    offset: int
    ahead: Mapping[str, int] = field(default_factory=dict)
    left: frozenset[int] = frozenset()

    @classmethod
    def committed(cls, committed: TopicPartition, first: int, end: int) -> RedriveProgress:
        """Return the committed progress; that at `first` without one, or if the topic is a new, shorter one."""
        try:
            ahead = json.loads(committed.metadata or "{}")
            steps = zlib.decompress(b64decode(ahead.pop(LEFT_KEY))) if LEFT_KEY in ahead else b"[]"
            left = frozenset(offset for offset in accumulate(json.loads(steps)) if offset >= first)
            ahead = {reason: int(to) for reason, to in ahead.items()}
        except (ValueError, TypeError, AttributeError, zlib.error):  # another tool has committed the offset
            ahead, left = {}, frozenset()
        is_usable = committed.offset >= 0 and max(committed.offset, *ahead.values(), 0) <= end
        return cls(committed.offset, ahead, left) if is_usable else cls(first)

    def as_offset(self, topic: str, partition: int) -> TopicPartition:
        """Return the offset to commit, with the rest as metadata. Raises TopicError if the metadata is too long."""
        rest: dict[str, int | str] = dict(self.ahead)
        if self.left:
            steps = [after - before for before, after in pairwise([0, *sorted(self.left)])]
            rest[LEFT_KEY] = b64encode(zlib.compress(json.dumps(steps).encode(), 9)).decode()
        metadata = json.dumps(rest) if rest else ""
        if len(metadata) > MAX_METADATA_CHARACTERS:
            what = f"more dead letters of {topic}[{partition}] cannot be sent than can be remembered"
            raise TopicError(what, "create the topics that they came from, or name another one with --to")
        return TopicPartition(topic, partition, self.offset, metadata)

    def _end(self, reason: str) -> int:
        return max(self.offset, self.ahead.get(reason, 0))

    def is_done(self, reason: str, offset: int) -> bool:
        """Return whether an earlier run has handled the letter at `offset`, with this reason."""
        return offset < self._end(reason) and offset not in self.left

    def first(self, reasons: Sequence[str]) -> int:
        """Return the offset below which all letters with one of these reasons (none: any) are done."""
        return min([min(map(self._end, reasons), default=self.offset), *self.left])

    def advanced(self, to: int, reasons: Sequence[str], left: frozenset[int] = frozenset()) -> RedriveProgress:
        """Return the progress after a run for these reasons (none: any) that has left only `left` below `to`."""
        offset = self.offset if reasons else to
        ahead = {**self.ahead, **{reason: max(to, self.ahead.get(reason, 0)) for reason in reasons}}
        return RedriveProgress(offset, {reason: end for reason, end in ahead.items() if end > offset}, left)


def send_dead_letters(settings: RedriveSettings) -> Summary:
    """Send every dead letter that is in the topic now and was not sent yet; the settings choose letters and target.

    Raises BrokerError when the broker refuses or does not answer: TopicError for a topic that does not exist,
    NotPermittedError for a missing permission, FencedError when another run has begun. Letters that were committed
    before the error are sent, and another run continues after them.
    """
    partitions = _partition_counts(settings)
    with TopicReader(settings) as reader:
        try:
            return _Redrive(settings, reader, partitions).run()
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FENCED:
                what = "another run on the same dead letters has begun since, and continues with them"
                raise FencedError(what) from None
            what = f"topic {settings.dead_letters} cannot be redriven with group {settings.group}"
            raise broker_error(error, what, RUN_AGAIN, "check that the topic and the group may be read") from None


def _partition_counts(settings: RedriveSettings) -> dict[str, int]:
    """Return the number of partitions of each topic."""
    admin, metadata = connect(settings)
    if metadata.controller_id in metadata.brokers:  # the embedded broker has none, and does not know permissions
        needs = {settings.dead_letters: [READ], **({settings.to: [WRITE]} if settings.to else {})}
        check_permissions(settings, admin, needs)
    partitions = {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}
    for role, topic in (("--dead-letters", settings.dead_letters), ("--to", settings.to)):
        if topic is not None and topic not in partitions:
            what = f"there is no topic {topic} on {settings.bootstrap}, or it may not be described"
            raise TopicError(what, f"check {role}")
    return partitions


class _Redrive:
    """One run: reads the topic of dead letters in batches, up to its present end, and sends the letters.

    With transactions, the letters of a batch and its offsets take effect together.
    """

    def __init__(self, settings: RedriveSettings, reader: TopicReader, partitions: dict[str, int]) -> None:
        self._settings, self._reader, self._partitions = settings, reader, partitions
        self._summary = Summary(settings.dead_letters, settings.dry_run)
        self._delivered: set[tuple[int, int]] = set()  # without transactions: partition and offset of sent letters
        self._transactions: Transactions | None = None
        # The producer first: it aborts the open transaction of another run, and only then are the offsets final.
        if not settings.dry_run:
            self._open_producer()
        topic = settings.dead_letters
        numbers = range(partitions[topic])
        # Read the offsets before the ends, which may grow: an offset beyond the end means a topic created again.
        committed = reader.committed([TopicPartition(topic, number) for number in numbers], TIMEOUT_S)
        ranges = {number: reader.range_now(topic, number, TIMEOUT_S) for number in numbers}
        self._ends = {number: end for number, (_, end) in ranges.items()}
        self._positions = {p.partition: RedriveProgress.committed(p, *ranges[p.partition]) for p in committed}

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
        """Yield the letters that no earlier run has handled."""
        topic, reasons = self._settings.dead_letters, self._settings.reason
        ranges = {number: (progress.first(reasons), self._ends[number]) for number, progress in self._positions.items()}
        try:
            for letter in map(to_record, self._reader.read(topic, ranges, STALLED_S)):
                if not self._positions[letter.partition].is_done(_letter_reason(letter), letter.offset):
                    yield letter
        except NoProgressError:
            what = f"nothing came from topic {topic} for {STALLED_S} s, though there is more"
            raise BrokerError(what, RUN_AGAIN) from None

    def _handle(self, batch: Sequence[Record], reached: dict[int, int], refusal: RefusedError | None = None) -> None:
        """Send the letters of a batch that can be sent, and mark all offsets below `reached`, by partition, as done.

        A refused batch is halved until its refused letters are found. refusal: why its only letter cannot be sent.
        """
        reasons = self._settings.reason
        fates = [(letter, self._why_left(letter) if refusal is None else REFUSED) for letter in batch]
        outgoing = [letter for letter, why in fates if why is None]
        chosen = [(letter, why) for letter, why in fates if not reasons or _letter_reason(letter) in reasons]
        changed = {}
        for number, end in reached.items():
            before = self._positions[number]
            here = [(letter.offset, why) for letter, why in chosen if letter.partition == number]
            handled = {offset for offset, _ in here}
            left = (before.left - handled) | {offset for offset, why in here if why in (GONE, REFUSED)}
            if (after := before.advanced(end, reasons, left)) != before:
                changed[number] = after
        if changed and not self._settings.dry_run:
            offsets = [position.as_offset(self._settings.dead_letters, number) for number, position in changed.items()]
            try:
                self._send(outgoing, offsets)
            except RefusedError as error:
                self._open_producer()  # the old producer cannot begin another transaction: it lacks a sequence number
                half = batch[: len(batch) // 2]
                self._handle(half, {letter.partition: letter.offset + 1 for letter in half})
                self._handle(batch[len(half) :], reached, None if half else error)
                return
        self._positions |= changed
        self._summary.sent.update(map(_letter_reason, outgoing))
        self._summary.left.update(why for _, why in fates if why is not None)
        what = "{} came from topic {}, which does not exist or may not be described"
        gone = [what.format(letter.where(), self._target(letter)) for letter, why in fates if why == GONE]
        self._summary.named = [*self._summary.named, *(gone if refusal is None else [refusal.what])][:MAX_NAMED_LETTERS]

    def _target(self, letter: Record) -> str:
        return self._settings.to or (dict(letter.headers).get(outputs.SOURCE_TOPIC) or b"").decode(errors="replace")

    def _why_left(self, letter: Record) -> str | None:
        if self._settings.reason and _letter_reason(letter) not in self._settings.reason:
            return f"{_letter_reason(letter)} for a later run"
        if outputs.TRUNCATED_FROM in dict(letter.headers):
            return "cut"
        if not self._target(letter):
            return "without source topic"
        if _letter_attempts(letter) >= self._settings.max_attempts:
            return "at the limit"
        return None if self._target(letter) in self._partitions else GONE

    def _send(self, letters: Sequence[Record], offsets: list[TopicPartition]) -> None:
        """Send letters and commit offsets. Raises BrokerError or KafkaException, and aborts, unless all is accepted.

        RefusedError is about one letter: the others can be sent without it.
        """
        errors: list[BrokerError] = []  # of this attempt only: reports of an earlier one can come late
        try:
            if self._transactions is not None:
                self._transactions.begin(TIMEOUT_S)
            for letter in letters:
                if (letter.partition, letter.offset) not in self._delivered:
                    self._produce(letter, errors)
            left = self._producer.flush(STALLED_S)
            if errors or left:  # a refusal comes first: in a transaction, other errors follow from it
                refusals: list[BrokerError] = [error for error in errors if isinstance(error, RefusedError)]
                raise [*refusals, *errors, BrokerError("the broker does not answer", RUN_AGAIN)][0]
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
        kept = [header for header in outputs.own_headers(letter) if header[0] != outputs.ATTEMPTS]
        topic = self._target(letter)
        number = _header_number(headers.get(outputs.SOURCE_PARTITION))
        timestamp = _header_number(headers.get(outputs.SOURCE_TIMESTAMP))

        def delivered(error: KafkaError | None, _message: object = None) -> None:
            what = f"topic {topic} does not take dead letter {letter.where()}"
            if error is not None:
                code = error.code()  # a positive code is a refusal; permissions are not the letter's fault
                is_refused = code not in NOT_PERMITTED and (code > 0 or code == KafkaError._INVALID_DIFFERENT_RECORD)
                refusal = RefusedError(f"{what} ({error.str()})")
                errors.append(refusal if is_refused else broker_error(error, what, RUN_AGAIN))
            elif self._transactions is None:
                self._delivered.add((letter.partition, letter.offset))

        try:
            self._producer.produce(
                topic,
                key=letter.key,
                value=letter.value,
                headers=[*kept, (outputs.ATTEMPTS, str(_letter_attempts(letter) + 1).encode())],
                partition=number if number is not None and number < self._partitions[topic] else -1,  # -1: by key
                timestamp=letter.timestamp_or_now if timestamp is None else timestamp,
                on_delivery=delivered,
            )
        except KafkaException as error:
            delivered(error.args[0])
        self._producer.poll(0)


def _letter_reason(letter: Record) -> str:
    return (dict(letter.headers).get(outputs.REASON) or UNKNOWN.encode()).decode(errors="replace")


def _letter_attempts(letter: Record) -> int:
    """Return how often a letter was sent back; 0 without a number. Anybody can write the header, so it is limited."""
    return min(_header_number(dict(letter.headers).get(outputs.ATTEMPTS)) or 0, MAX_ATTEMPTS - 1)


def _header_number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= MAX_HEADER_DIGITS else None
