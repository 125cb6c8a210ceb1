"""The settings and the features that a group has agreed on, for a replay. Reads only."""

from __future__ import annotations

from contextlib import closing
from typing import TypeVar, cast

from confluent_kafka import KafkaException

from fomo_stream.errors import AgreementError, BrokerError
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.group.agreement import DERIVED, STATE_SETTINGS, Agreement, with_agreed
from fomo_stream.kafka.group.log import GroupLog, check_has_run
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.records.schema import Schema, shown
from fomo_stream.settings.commands import GivenFlags
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import OF_RESULTS, settings_of_group

AnyFlags = TypeVar("AnyFlags", bound=GivenFlags)

# Agreed settings that results depend on.
MATTERS = (*STATE_SETTINGS, *(name.replace("_", "-") for name in settings_of_group(ServiceSettings, *OF_RESULTS)))


def recorded_group(settings: AnyFlags) -> tuple[AnyFlags, Schema | None, list[str]]:
    """The settings with what `settings.group` has agreed on; its schema, if it has one yet; and notes.

    A flag that is given wins over the group's value, and a note names the difference. Raises TopicError or
    AgreementError if the group never ran, and BrokerError, NotPermittedError or CheckpointError.
    """
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        try:
            partitions, _ = cluster.partitions([settings.topic, settings.state_topic])
        except KafkaException as error:
            raise BrokerError(f"the topics cannot be described ({error.args[0].str()}); try again") from None
    check_has_run(settings, partitions, "leave --group out")
    log = GroupLog(settings)
    effective, notes = _agreed(settings, log)
    schema, more = _schema(settings, GroupSchema(settings, log).stored())
    return effective, schema, [*notes, *more]


def _agreed(settings: AnyFlags, log: GroupLog) -> tuple[AnyFlags, list[str]]:
    """The settings with the agreed values, and notes on flags that differ from them."""
    agreed = Agreement(settings, "", "", log).agreed()
    if not agreed:
        raise AgreementError(
            f"group {settings.group} has agreed on nothing yet for topic {settings.topic}; check --group, or leave it "
            "out to replay with the settings given here"
        )
    taken = {name: value for name, value in agreed.items() if not settings.is_given(name)}
    taken.pop("model", None)  # its name and digest; the flag is a name or a path
    effective = cast(AnyFlags, with_agreed(settings, taken))
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
