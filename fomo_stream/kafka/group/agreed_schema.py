"""One schema for the whole group, agreed on in the group log.

Every instance that has inferred a schema proposes it, reads the log, and uses the earliest proposal in it. A replay
reads the schema and the settings, and writes nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from fomo_stream.errors import AgreementError
from fomo_stream.kafka.broker.clients import broker_errors
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.group.agreement import STATE_SETTINGS, Agreement, SettingDifference, with_agreed
from fomo_stream.kafka.group.group_log import GroupLog, check_has_run
from fomo_stream.records.inference import limited_to_model, named_schema
from fomo_stream.records.schema import Schema, shown_names
from fomo_stream.settings.sources import settings_that_affect
from fomo_stream.settings.topic_flags import GivenFlags, TopicFlags

KIND = b"schema/"

AnyFlags = TypeVar("AnyFlags", bound=GivenFlags)

# Agreed settings that results depend on.
RESULT_SETTINGS = (*STATE_SETTINGS, *(name.replace("_", "-") for name in settings_that_affect(TopicFlags, "group")))


class GroupSchema:
    """The schema of a group, to read and to propose. Calls raise BrokerError if the broker does not answer in time."""

    def __init__(self, settings: TopicFlags, log: GroupLog | None = None) -> None:
        self._settings = settings
        self._log = log or GroupLog(settings)

    def stored(self) -> Schema | None:
        """Return the group's schema, which is the earliest proposal in the state topic; None without a proposal."""
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
        """Return the group's schema: `proposal`, unless another instance was earlier."""
        schema = self.stored()
        if schema is None:
            kinds = {"categorical": sorted(proposal.categorical), "counters": sorted(proposal.counters)}
            self._log.append(KIND, {"features": list(proposal.features), **kinds})
            schema = self.stored()
        if schema is None:
            raise self._log.not_kept()
        return schema

    def agree_on_flags(self, names: tuple[str, ...]) -> Schema:
        """Return the schema that --features names. Raises AgreementError if the group uses another one."""
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
    """Return the settings with the group's agreed values, the group's schema, if it has one yet, and notes.

    A given flag wins over the group's value, and a note names the difference. Raises TopicError or
    AgreementError if the group never ran, and BrokerError, NotPermittedError or CheckpointError.
    """
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        with broker_errors("the topics cannot be described"):
            partitions, _ = cluster.partitions([settings.topic, settings.state_topic])
    check_has_run(settings, partitions, "leave --group out")
    log = GroupLog(settings)
    agreed = Agreement(settings, "", "", log).agreed()
    if not agreed:
        what = f"group {settings.group} has agreed on nothing yet for topic {settings.topic}"
        raise AgreementError(what, "check --group, or leave it out to replay with the settings given here")
    agreed_values = {name: value for name, value in agreed.items() if not settings.is_given(name)}
    agreed_values.pop("model", None)  # its name and digest; the flag is a name or a path
    effective = with_agreed(settings, agreed_values)
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    model = shared_model(effective.model, effective.device, effective.backend)
    differences = Agreement(effective, model.name, model.kernel, log).compare()
    differences_by_name = {item.in_words: item for item in differences if item.name in RESULT_SETTINGS}
    schema, notes = GroupSchema(effective, log).stored(), []
    if settings.features is not None:
        own = replace(named_schema(settings), marks=effective.marks)
        if schema is not None and set(own.features) != set(schema.features):
            names = (shown_names(each.features) for each in (schema, own))
            differences_by_name["--features"] = SettingDifference("features", *names)
            schema = None
        schema = schema or own
    elif schema is None:
        notes = [f"Group {settings.group} has not inferred its features yet: they are inferred from the records."]
    differing = [
        f"{name} is {item.own} here, {item.agreed} in the group: results differ from the live output."
        for name, item in differences_by_name.items()
    ]
    return effective, schema, [*differing, *notes]
