"""What a group has left behind: its settings, its features, and when its labels took effect. Reads only.

A replay with these gives the results that the group gave.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

import orjson
from confluent_kafka import KafkaException, TopicPartition

from fomo_stream.detector.changelog import Document
from fomo_stream.errors import AgreementError, BrokerError, ConfigError, StateError
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader
from fomo_stream.kafka.feedback.recorded_effects import EffectLog, LabelsRead, RecordedEffects
from fomo_stream.kafka.group.agreement import DERIVED, STATE_SETTINGS, Agreement, Values, with_agreed
from fomo_stream.kafka.group.agreement import shown as shown_value
from fomo_stream.kafka.group.log import GroupLog, check_has_run
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.kafka.restore import KEY_PREFIX
from fomo_stream.partition.effects import PREFIX, Effect
from fomo_stream.partition.partition import DETECTOR, LABELS
from fomo_stream.partition.position import POSITION, Position
from fomo_stream.records.schema import Schema, shown
from fomo_stream.settings.commands import GivenFlags
from fomo_stream.settings.flags import DetectorFlags
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import OF_RESULTS, settings_of_group, settings_of_scope
from fomo_stream.wording import ranges

AnyFlags = TypeVar("AnyFlags", bound=GivenFlags)

STALLED_S = 5.0  # to wait for the next record
ANSWER_S = 5.0
# A group does not agree on these, but its state says with which values it was written.
WRITTEN = settings_of_scope(DetectorFlags, "local")
# Agreed settings that results depend on.
MATTERS = (*STATE_SETTINGS, *(name.replace("_", "-") for name in settings_of_group(ServiceSettings, *OF_RESULTS)))
FINGERPRINT, COUNTERS = f"{DETECTOR}/fingerprint", f"{DETECTOR}/counters"


class Learned(NamedTuple):
    """How far the state of a partition has come."""

    position: int  # records before this offset were learned, or could not be scored
    records: int  # that were learned, with those of a seed context; a replay from the first of them has as many


@dataclass(frozen=True)
class Recorded:
    """What a group has left behind. AnyFlags: the settings of the command."""

    settings: Any  # the command's, with the group's values where no flag is given
    schema: Schema | None  # None: the group has not inferred it yet
    effects: dict[int, RecordedEffects] = field(default_factory=dict)  # by partition
    learned: dict[int, Learned] = field(default_factory=dict)  # by partition, where it has a state
    notes: tuple[str, ...] = ()


def recorded_group(settings: AnyFlags) -> Recorded:
    """What `settings.group` has left behind on `settings.topic`.

    A flag that is given wins over the group's value, and a note names the difference. Raises TopicError or
    AgreementError if the group never ran, and BrokerError, NotPermittedError, CheckpointError or StateError.
    """
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        try:
            partitions, topic_ids = cluster.partitions([settings.topic, settings.state_topic])
        except KafkaException as error:
            raise BrokerError(f"the topics cannot be described ({error.args[0].str()}); try again") from None
    check_has_run(settings, partitions, "leave --group out")
    log = GroupLog(settings)
    agreed, differences = _agreed(settings, log)
    schema, more = _schema(settings, GroupSchema(settings, log).stored())
    found = dict(_read_states(settings, partitions[settings.state_topic]))
    topic_id = topic_ids.get(settings.topic, "")
    old = [number for number, state in found.items() if state.is_of_other_topic(topic_id)]
    if old:
        differences.append(
            f"Topic {settings.topic} was created again since the group scored its partitions {ranges(old)}: the labels "
            "and the state of those are left out."
        )
    states = {number: state for number, state in found.items() if number not in old}
    effective, notes = _as_written(agreed, [state.written for state in states.values() if state.written])
    _check_output(effective)
    return Recorded(
        effective,
        schema,
        _effects(effective, states),
        {number: state.learned for number, state in states.items() if state.learned is not None},
        (*differences, *more, *notes),
    )


def _agreed(settings: AnyFlags, log: GroupLog) -> tuple[AnyFlags, list[str]]:
    """The settings with the agreed values, and notes on flags that differ from them."""
    agreed = Agreement(settings, "", "", log).agreed()
    if not agreed:
        raise AgreementError(
            f"group {settings.group} has agreed on nothing yet for topic {settings.topic}; check --group, or leave it "
            "out to replay with the settings given here"
        )
    effective = cast(
        AnyFlags, with_agreed(settings, {name: agreed[name] for name in agreed if not settings.is_given(name)})
    )
    if "model" in agreed and not settings.is_given("model"):  # its name and digest; the flag is a name or a path
        effective = effective.model_copy(update={"model": settings.model})
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    model = shared_model(effective.model, effective.device, effective.kernel)
    compared = Agreement(effective, model.name, model.kernel, log)
    return effective, [
        f"{DERIVED.get(one.name, '--' + one.name)} is {one.own} here, {one.agreed} in the group: results differ from "
        "the live output."
        for one in compared.compare()
        if one.name in MATTERS
    ]


def _schema(settings: GivenFlags, stored: Schema | None) -> tuple[Schema | None, list[str]]:
    """The schema to replay with, and notes: --features wins over the group's."""
    if settings.features is None:
        missing = [f"Group {settings.group} has not inferred its features yet: they are inferred from the records."]
        return stored, missing if stored is None else []
    own = Schema.of(settings.features, settings.categorical)
    if stored is None or set(own.features) == set(stored.features):
        return stored or own, []
    return own, [
        f"--features is {shown(own.features)} here, {shown(stored.features)} in the group: results differ from the "
        "live output."
    ]


def _as_written(settings: AnyFlags, written: Sequence[Values]) -> tuple[AnyFlags, list[str]]:
    """The settings with those values that the states were written with, and notes where these differ."""
    update, notes = {}, []
    for name in WRITTEN:
        values = {json.dumps(state[name]): state[name] for state in written if name in state}
        flag = "--" + name.replace("_", "-")
        if len(values) > 1:
            texts = ", ".join(sorted(map(shown_value, values.values())))
            notes.append(f"The group has run with different values of {flag}: {texts}; results may differ from these.")
        elif values and not settings.is_given(name):
            (update[name],) = values.values()
        elif values and (own := getattr(settings, name)) not in values.values():
            (value,) = values.values()
            notes.append(
                f"{flag} is {shown_value(own)} here, {shown_value(value)} in the group: results differ from the live "
                "output."
            )
    if "min_context" in update:
        update["min_context"] = min(update["min_context"], settings.context_size)
    return settings.model_copy(update=update), notes


def _effects(settings: GivenFlags, states: Mapping[int, _State]) -> dict[int, RecordedEffects]:
    """When labels took effect, by partition, and which labels are finished now."""
    starts: dict[int, int] = {}
    if settings.feedback is not None and states:
        places = [TopicPartition(settings.feedback, number) for number in states]
        with TopicReader(settings) as reader:
            try:
                starts = {one.partition: max(0, one.offset) for one in reader.committed(places, ANSWER_S)}
            except KafkaException as error:
                raise BrokerError(
                    f"the offsets of group {settings.group} on topic {settings.feedback} cannot be read "
                    f"({error.args[0].str()}); try again"
                ) from None
    return {
        number: state.effects.effects(
            PREFIX + f"{settings.feedback}/{number}".encode(), LabelsRead(starts.get(number, 0), state.finished)
        )
        for number, state in states.items()
    }


def _check_output(settings: GivenFlags) -> None:
    """Nothing may be written to the topics that the group has agreed on."""
    own = getattr(settings, "scores_topic", None)
    if own is not None and own in (*settings.outputs, settings.feedback):
        raise ConfigError(f"--scores-topic {own} is a topic of group {settings.group}; name one of its own")


# --- the state topic ------------------------------------------------------------------------------------------


@dataclass
class _State:
    """What is kept of one partition of the state topic."""

    effects: EffectLog = field(default_factory=EffectLog)
    entries: dict[str, bytes] = field(default_factory=dict)  # a few small ones

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take one record. Raises StateError when it is not readable."""
        effect = Effect.parse(key)
        if effect is not None:
            self.effects.add(effect, value)
        elif key.startswith(KEY_PREFIX):
            name = key[len(KEY_PREFIX) :].decode(errors="replace")
            if name in (POSITION, LABELS) or name.rpartition("/")[0] in (FINGERPRINT, COUNTERS):
                self.entries.pop(name, None)
                if value is not None:
                    self.entries[name] = value[1:]  # without the version

    @property
    def finished(self) -> frozenset[int]:
        """Labels that are finished, though an earlier one is not."""
        return frozenset(orjson.loads(self.entries[LABELS])["finished"]) if LABELS in self.entries else frozenset()

    @property
    def position(self) -> Position | None:
        return Position.decode(self.entries[POSITION]) if POSITION in self.entries else None

    def is_of_other_topic(self, topic_id: str) -> bool:
        """Whether it was written about a topic that was deleted. topic_id: of the present one."""
        position = self.position
        return bool(position and position.topic_id and topic_id and position.topic_id != topic_id)

    @property
    def written(self) -> Values:
        """The detector's fingerprint; empty if there is none."""
        return cast(Values, self._document(FINGERPRINT) or {})

    @property
    def learned(self) -> Learned | None:
        counters, position = self._document(COUNTERS), self.position
        return None if position is None else Learned(position.offset, int(counters[0]) if counters else 0)

    def _document(self, name: str) -> Any:
        return json.loads(Document().recover(self.entries, name)) if f"{name}/0" in self.entries else None


def _read_states(settings: GivenFlags, count: int) -> Iterator[tuple[int, _State]]:
    """The kept part of each partition of the state topic, one after the other."""
    topic = settings.state_topic
    with TopicReader(settings) as reader:
        for number in range(count):
            state = _State()
            try:
                span = reader.range_now(topic, number, ANSWER_S)
                for message in reader.read(topic, {number: span}, STALLED_S, retry_errors=True):
                    state.apply(message.key() or b"", message.value())
                state.learned, state.written  # noqa: B018 - they must be readable
            except (NoProgressError, KafkaException) as error:
                reason = error.args[0].str() if isinstance(error, KafkaException) else error
                raise BrokerError(f"{topic}[{number}] cannot be read ({reason}); try again") from None
            except (StateError, ValueError) as error:
                raise StateError(f"{topic}[{number}]: {error}; replay without --group") from None
            yield number, state
