"""One schema for the whole group, agreed on in the group log.

Every instance that has inferred a schema proposes it, reads the log, and uses the earliest proposal in it. A replay
reads the schema and the settings, and writes nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from fomo_stream.errors import AgreementError
from fomo_stream.kafka.broker.clients import explaining
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.group.agreement import STATE_SETTINGS, Agreement, Difference, with_agreed
from fomo_stream.kafka.group.log import GroupLog, check_has_run
from fomo_stream.records.inference import limited_to_model, named_schema
from fomo_stream.records.schema import Schema, shown_names
from fomo_stream.settings.sources import settings_of_scope
from fomo_stream.settings.topics import GivenFlags, TopicFlags

KIND = b"schema/"

AnyFlags = TypeVar("AnyFlags", bound=GivenFlags)

# Agreed settings that results depend on.
MATTERS = (*STATE_SETTINGS, *(name.replace("_", "-") for name in settings_of_scope(TopicFlags, "group")))


class GroupSchema:
    """Reads and proposes the schema of a group; calls raise BrokerError if the broker does not answer in time."""

    def __init__(self, settings: TopicFlags, log: GroupLog | None = None) -> None:
        self._settings = settings
        self._log = log or GroupLog(settings)

    def stored(self) -> Schema | None:
        """The group's schema: the earliest proposal in the state topic, or None when there is none."""
        if not (proposals := self._log.entries(KIND)):
            return None
        with self._log.understanding():
            content = proposals[0].content
            features, categorical, counters = (
                tuple(content.get(name, ())) for name in ("features", "categorical", "counters")
            )
            if not all(isinstance(name, str) for name in (*features, *categorical, *counters)):
                raise TypeError("features must be a list of names")
            return Schema(features, frozenset(categorical), frozenset(counters), self._settings.marks)

    def agree(self, proposal: Schema) -> Schema:
        """The group's schema: `proposal`, unless another instance was earlier."""
        schema = self.stored()
        if schema is None:
            kinds = {"categorical": sorted(proposal.categorical), "counters": sorted(proposal.counters)}
            self._log.append(KIND, {"features": list(proposal.features), **kinds})
            schema = self.stored()
        if schema is None:
            raise self._log.not_kept()
        return schema

    def agree_on_flags(self, names: tuple[str, ...]) -> Schema:
        """The group's schema when --features names it; an AgreementError when the group uses another one."""
        own = named_schema(self._settings)
        schema = self.agree(own)
        self._check(names, schema)
        return replace(schema, untaken=own.untaken)

    def check_flags(self) -> None:
        """Raise AgreementError if --features is given and the group uses another schema. Writes nothing."""
        schema, names = self.stored(), self._settings.features
        if schema is not None and names is not None:
            self._check(names, schema)

    def _check(self, names: tuple[str, ...], schema: Schema) -> None:
        categorical = self._settings.categorical or sorted(schema.categorical)
        names = tuple(dict.fromkeys((*names, *self._settings.derive)))
        proposal = limited_to_model(self._settings.model, Schema.of(names, categorical, self._settings.counter_names))
        if set(schema.features) != set(proposal.features):
            raise AgreementError(
                f"--features {','.join(proposal.features)} differs from the features of group {self._settings.group}, "
                f"{','.join(schema.features)}; leave the flag out to use those, choose another --group, or forget what "
                "was learned with --reset-state"
            )


# --- for a replay


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
    effective = with_agreed(settings, taken)
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    model = shared_model(effective.model, effective.device, effective.kernel)
    differences = Agreement(effective, model.name, model.kernel, log).compare()
    here = {one.in_words: one for one in differences if one.name in MATTERS}
    schema, notes = GroupSchema(effective, log).stored(), []
    if settings.features is not None:
        own = replace(named_schema(settings), marks=effective.marks)
        if schema is not None and set(own.features) != set(schema.features):
            here["--features"] = Difference("features", shown_names(schema.features), shown_names(own.features))
            schema = None
        schema = schema or own
    elif schema is None:
        notes = [f"Group {settings.group} has not inferred its features yet: they are inferred from the records."]
    differing = [
        f"{name} is {one.own} here, {one.agreed} in the group: results differ from the live output."
        for name, one in here.items()
    ]
    return effective, schema, [*differing, *notes]
