"""Prepares a group that has never run, so that it goes on where a replay ended, as if it had read everything itself.

One transaction has it all: what the group has to agree on, the state of every partition, and the group's offsets. So
the group is prepared as a whole or not at all. An instance that starts before the commit waits for it a few seconds,
and then fails with the reason. If a replay is killed before the commit, its transaction ends when the next replay
prepares the group, or after TRANSACTION_MS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import orjson
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from fomo_stream.errors import AgreementError, BrokerError, ConfigError, TopicError
from fomo_stream.kafka.broker.topic_reader import TopicReader
from fomo_stream.kafka.delivery.output import Output
from fomo_stream.kafka.feedback.recorded_effects import LabelsRead, RecordedEffects
from fomo_stream.kafka.group import agreement as group_settings
from fomo_stream.kafka.group import schema as group_schema
from fomo_stream.kafka.group.agreement import Agreement
from fomo_stream.kafka.group.log import PARTITION, GroupLog
from fomo_stream.kafka.group.unused import (
    AGAIN,
    OTHER,
    check_agreement,
    check_offsets,
    check_unused,
    explained,
    members_of,
    start_producer,
)
from fomo_stream.kafka.restore import to_output
from fomo_stream.kafka.topics.setup import TopicSetup
from fomo_stream.kafka.topics.watch import TopicWatch
from fomo_stream.partition.effects import PREFIX
from fomo_stream.partition.partition import LABELS
from fomo_stream.partition.position import POSITION, Position
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.wording import counted, ranges

FLUSH_BYTES = 8 << 20  # sent before more is taken, so that memory does not grow with the state
FLUSH_S = 60.0
ANSWER_S = 10.0
COMMIT_S = 60.0


State = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


def prepare_group(
    settings: ServiceSettings,
    schema: Schema,
    model: str,
    kernel: str,
    tasks: Mapping[int, tuple[State, int]],
    effects: Mapping[int, Any] | None = None,
    topic_id: str = "",
) -> list[str]:
    """Write the end of a replay as the state of the group `settings.group`; returns notes.

    settings: those of the replay, with this group. model, kernel: name of the checkpoint, and what computed it. tasks:
    by partition of the topic, also of those without records: the state, as `Partition.changes` gives it (a mapping,
    or pairs), and the offset of the next record. effects: by partition, the label effects that were replayed
    (`recorded_group`). topic_id: of the topic that was replayed, if known. Constant memory, if the states are. Raises
    the errors of `check_unused`, and FencedError if another replay prepares the same group; then nothing is written.
    """
    settings = settings.model_copy(update={"reset_state": False, "categorical": tuple(sorted(schema.categorical))})
    check_unused(settings, schema)
    with ExitStack() as stack:
        watch = TopicWatch(settings)
        stack.callback(watch.stop)
        with explained(settings):
            TopicSetup(settings, watch).begin()
            watch.grow()
            _check_topics(settings, watch, tasks, topic_id)
            log = GroupLog(settings)
            known = log.of_instances()
            agreement = Agreement(settings, model, kernel, log)
            is_agreed = check_agreement(settings, agreement, schema)
            labels, notes = _labels_read(settings, watch, tasks, effects or {}, stack)
            preparation = stack.enter_context(_Preparation(settings, watch))
            for number in sorted(tasks):
                entries, position = tasks[number]
                preparation.write_state(number, entries, position, labels.get(number))
                if effects is not None and isinstance(found := effects.get(number), RecordedEffects):
                    preparation.write_effects(number, found.entries_until(position, number))
            if not is_agreed:
                preparation.write_log(group_settings.KIND, agreement.first_proposal())
            preparation.write_log(group_schema.KIND, group_schema.encode(schema))
            preparation.send_offsets({number: position for number, (_, position) in tasks.items()}, labels)
            # An instance that joins from now on waits for the commit before it reads its offsets.
            _check_still_unused(settings, watch, len(tasks), log.of_instances() == known)
            preparation.commit()
    return notes


def _check_still_unused(settings: ServiceSettings, watch: TopicWatch, count: int, is_same_log: bool) -> None:
    """Raise ConfigError or AgreementError if an instance of the group has started meanwhile.

    is_same_log: no instance has written to the group log, which has our own records by now. So an instance that agrees
    from now on does so after us, and the order of the log decides.
    """
    if members := members_of(settings):
        raise ConfigError(
            f"--prepare: group {settings.group} got {counted(members, 'member')} during the replay; nothing was "
            f"written; stop them, or {OTHER}"
        )
    if not is_same_log:
        raise AgreementError(
            f"--prepare: an instance of group {settings.group} started during the replay, and agreed on settings or "
            f"features; nothing was written; stop it and try again, or {OTHER}"
        )
    check_offsets(watch.cluster, settings, count)


def _check_topics(settings: ServiceSettings, watch: TopicWatch, tasks: Mapping[int, Any], topic_id: str) -> None:
    seen, topic = watch.seen, settings.topic
    if topic_id and seen.topic_ids.get(topic, topic_id) != topic_id:
        raise TopicError(f"--prepare: topic {topic} was created again during the replay; nothing was written")
    if seen.missing_partitions(settings.state_topic, topic):
        raise TopicError(
            f"--prepare: topic {settings.state_topic} has fewer partitions than {topic} and could not grow; add some "
            f"with kafka-topics.sh --alter --partitions {seen.partitions[topic]}"
        )
    if gone := [number for number in sorted(tasks) if number >= seen.partitions[topic]]:
        raise TopicError(f"--prepare: topic {topic} has no partition {ranges(gone)} any more; nothing was written")


def _labels_read(
    settings: ServiceSettings,
    watch: TopicWatch,
    tasks: Mapping[int, tuple[Any, int]],
    effects: Mapping[int, Any],
    stack: ExitStack,
) -> tuple[dict[int, LabelsRead], list[str]]:
    """Which labels the group has to count as finished, and notes about those that have no effect."""
    topic = settings.feedback
    if topic is None:
        return {}, []
    known, unknown = {}, []
    for number, (_, position) in tasks.items():
        found = effects.get(number)
        if isinstance(found, RecordedEffects) and found.place == PREFIX + f"{topic}/{number}".encode():
            known[number] = found.read_until(position)
        else:
            unknown.append(number)
    if not unknown:
        return known, []
    partitions, _ = watch.cluster.partitions([topic])
    reader = stack.enter_context(TopicReader(settings))
    ends = {n: reader.range_now(topic, n, ANSWER_S)[1] for n in unknown if n < partitions.get(topic, 0)}
    notes = []
    if any(ends.values()):
        notes.append(
            f"Labels that topic {topic} has now have no effect in group {settings.group}: only a group that has run, "
            "given by --group, says when they took effect."
        )
    return known | {number: LabelsRead(end) for number, end in ends.items()}, notes


class _Preparation:
    """The transaction that prepares a group. Calls raise KafkaException or BrokerError; it is aborted unless committed.

    watch: has looked at the topics.
    """

    def __init__(self, settings: ServiceSettings, watch: TopicWatch) -> None:
        self._settings = settings
        self._watch = watch
        self._refusals: list[KafkaError] = []
        self._bytes = 0  # since the last flush
        self._is_committed = False

    def __enter__(self) -> _Preparation:
        self._producer, self._transactions = start_producer(self._settings)
        self._transactions.begin(ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_committed:
            with suppress(KafkaException):
                self._producer.purge()
                self._transactions.abort(ANSWER_S)

    def write_state(self, number: int, entries: State, position: int, labels: LabelsRead | None) -> None:
        """Write the state of a partition."""
        topic, ids = self._settings.state_topic, self._watch.seen.topic_ids
        for name, value in entries.items() if isinstance(entries, Mapping) else entries:
            if value is not None and name not in (POSITION, LABELS):
                self._send(to_output(topic, number, name, value))
        if labels is not None and labels.finished:
            about = self._watch.cluster.partitions([self._settings.feedback or ""])[1]
            content = {"topic_id": about.get(self._settings.feedback or "", ""), "finished": sorted(labels.finished)}
            self._send(to_output(topic, number, LABELS, orjson.dumps(content)))
        of_topic = Position(position, ids.get(self._settings.topic, ""))
        self._send(to_output(topic, number, POSITION, of_topic.encode()))

    def write_effects(self, number: int, entries: Iterator[tuple[bytes, bytes]]) -> None:
        """Write when labels took effect, so that this group, too, can be replayed."""
        for key, value in entries:
            self._send(Output(self._settings.state_topic, key, value, [], number))

    def write_log(self, kind: bytes, value: bytes) -> None:
        """Write a record of the group log."""
        self._send(Output(self._settings.state_topic, GroupLog.key_in_transaction(kind), value, [], PARTITION))

    def send_offsets(self, positions: Mapping[int, int], labels: Mapping[int, LabelsRead]) -> None:
        """Add the offsets of all partitions; then the brokers have all of it."""
        settings = self._settings
        self._flush()
        offsets = [TopicPartition(settings.topic, number, position) for number, position in positions.items()]
        offsets += [TopicPartition(settings.feedback or "", number, read.start) for number, read in labels.items()]
        with TopicReader(settings) as reader:
            metadata = reader.client.consumer_group_metadata()
            self._retry(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, ANSWER_S))

    def commit(self) -> None:
        """Commit all of it."""
        self._retry(lambda: self._producer.commit_transaction(ANSWER_S))
        self._is_committed = True

    def _retry(self, call: Callable[[], object]) -> None:
        """Call until it succeeds; a call without an answer goes on where it stopped."""
        deadline = time.monotonic() + COMMIT_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                reason = error.args[0]
                is_temporary = reason.retriable() and not reason.txn_requires_abort() and not reason.fatal()
                if not is_temporary or time.monotonic() > deadline:
                    raise

    def _send(self, output: Output) -> None:
        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                self._refusals.append(error)

        self._producer.produce(
            output.topic, output.value, output.key, partition=output.partition, on_delivery=delivered
        )
        self._bytes += output.size()
        if self._bytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        left = self._producer.flush(FLUSH_S)
        self._bytes = 0
        if self._refusals:
            raise KafkaException(self._refusals[0])
        if left:
            raise BrokerError(f"topic {self._settings.state_topic} takes no records for {FLUSH_S:g} s; {AGAIN}")
