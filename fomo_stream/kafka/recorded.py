"""The settings and the features that a group has agreed on, for a replay. Reads only."""

from __future__ import annotations

from contextlib import closing
from typing import TypeVar, cast

from fomo_stream.errors import AgreementError
from fomo_stream.kafka.broker.clients import explaining
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.group.agreement import DERIVED, STATE_SETTINGS, Agreement, Difference, with_agreed
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
        with explaining("the topics cannot be described"):
            partitions, _ = cluster.partitions([settings.topic, settings.state_topic])
    check_has_run(settings, partitions, "leave --group out")
    log = GroupLog(settings)
    agreed = Agreement(settings, "", "", log).agreed()
    if not agreed:
        what = f"group {settings.group} has agreed on nothing yet for topic {settings.topic}"
        raise AgreementError(what, "check --group, or leave it out to replay with the settings given here")
    taken = {name: value for name, value in agreed.items() if not settings.is_given(name)}
    taken.pop("model", None)  # its name and digest; the flag is a name or a path
    effective = cast(AnyFlags, with_agreed(settings, taken))
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    model = shared_model(effective.model, effective.device, effective.kernel)
    differences = Agreement(effective, model.name, model.kernel, log).compare()
    here = {DERIVED.get(one.name, f"--{one.name}"): one for one in differences if one.name in MATTERS}
    schema, notes = GroupSchema(settings, log).stored(), []
    if settings.features is not None:
        own = Schema.of(settings.features, settings.categorical)
        if schema is not None and set(own.features) != set(schema.features):
            here["--features"] = Difference("features", shown(schema.features), shown(own.features))
            schema = None
        schema = schema or own
    elif schema is None:
        notes = [f"Group {settings.group} has not inferred its features yet: they are inferred from the records."]
    differing = [
        f"{name} is {one.own} here, {one.agreed} in the group: results differ from the live output."
        for name, one in here.items()
    ]
    return effective, schema, [*differing, *notes]
