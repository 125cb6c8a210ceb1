"""`fomo-stream group`: what a group has agreed on, which its state topic holds.

It is no member of the group, and only `update_group` writes anything.
"""

from __future__ import annotations

from contextlib import closing

from fomo_stream.errors import BrokerError, CheckpointError, ConfigError
from fomo_stream.kafka.broker.clients import explaining
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.broker.permissions import DESCRIBE, READ, WRITE, check_permissions
from fomo_stream.kafka.group.agreement import (
    CHANGEABLE_SETTINGS,
    DECIDED_BY,
    STATE_SETTINGS,
    Agreement,
    shown,
)
from fomo_stream.kafka.group.log import GroupLog, check_has_run
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.settings.commands import GroupSettings
from fomo_stream.settings.flags import BrokerFlags
from fomo_stream.settings.sources import option, settings_of_scope
from fomo_stream.wording import aligned, counted


def look_at_group(settings: GroupSettings) -> str:
    """What the group has agreed on, and which settings differ here. Raises FomoError."""
    _check_group_exists(settings, is_changing=False)
    log = GroupLog(settings)
    agreement, schema = _agreement(settings, log, only_given=False), GroupSchema(settings, log).stored()
    agreed, own = agreement.agreed(), settings.features
    here = {one.name: one.own for one in agreement.compare()}
    head, others = f"group {settings.group} on topic {settings.topic}", _about_others(settings)
    if not agreed and schema is None:
        return "\n".join([head, "", "the group has agreed on nothing yet: no instance has started", *others])
    if schema is not None:
        if own is not None and {*own, *agreed.get("categorical", ()), *settings.counter_names} != {*schema.features}:
            here["features"] = shown(list(own))
        agreed |= {"categorical": sorted(schema.categorical), "counters": sorted(schema.counters) or ["none"]}
    rows = [("features", "not inferred yet" if schema is None else shown(list(schema.features)))]
    rows += [(name, shown(agreed[name])) for name in (*STATE_SETTINGS, *CHANGEABLE_SETTINGS) if name in agreed]
    given = {name: any(map(settings.is_given, DECIDED_BY.get(name, (name,)))) for name in here}  # or by default
    table = aligned(
        [
            ("agreed setting", "group", "here"),
            *((*row, here.get(row[0], "") + ("" if given.get(row[0], True) else " (default)")) for row in rows),
        ]
    )
    verdict = "the settings given here agree with the group's"
    if here:
        lasting = [name for name in here if name not in CHANGEABLE_SETTINGS]
        when = f"({', '.join(lasting)})" if lasting else "while the group has members, and change them otherwise"
        verdict = f"{counted(len(here), 'setting')} of an instance here would be different: it would be refused {when}"
    return "\n".join([head, "", *table, verdict, *others])


def check_group(settings: GroupSettings) -> str:
    """Whether an instance with these settings could join now. Raises AgreementError if not, and other FomoErrors."""
    _check_group_exists(settings, is_changing=False)
    group_log = GroupLog(settings)
    GroupSchema(settings, group_log).check_flags()
    _agreement(settings, group_log, only_given=False).check_join()
    return f"group {settings.group} takes instances with these settings"


def update_group(settings: GroupSettings) -> str:
    """Change the group's agreement to the settings that are given; returns what has changed. Raises FomoError."""
    _check_group_exists(settings, is_changing=True)
    group_log = GroupLog(settings)
    GroupSchema(settings, group_log).check_flags()
    changes = _agreement(settings, group_log, only_given=True).update()
    rows = [(f"--{change.name}", f"{change.agreed} -> {change.own}") for change in changes]
    head = f"group {settings.group} has agreed on new settings:" if changes else "nothing was changed"
    return "\n".join([head, *aligned(rows), *_about_others(settings)])


def _check_group_exists(settings: GroupSettings, is_changing: bool) -> None:
    """Raises BrokerError, TopicError or NotPermittedError. is_changing: whether the state topic has to be writable."""
    needs = {settings.topic: [DESCRIBE], settings.state_topic: [READ, *([WRITE] if is_changing else [])]}
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        if not cluster.has_controller:
            raise BrokerError(f"the broker at {settings.bootstrap} does not describe groups; the embedded one does not")
        with explaining("the topics cannot be described"):
            check_permissions(settings, cluster.admin, needs, of_group=DESCRIBE)
            partitions, _ = cluster.partitions(needs)
    check_has_run(settings, partitions, "start an instance")


def _about_others(settings: GroupSettings) -> list[str]:
    """A line about the flags given here that are no part of an agreement, and not needed to find the group."""
    own = settings_of_scope(GroupSettings, "scores", "running")
    names = [name for name in own if name not in BrokerFlags.model_fields]
    flags = [option(name) for name in names if name != "topic" and settings.is_given(name)]
    return [f"the group does not hold {', '.join(flags)}: each instance has its own value"] if flags else []


def _agreement(settings: GroupSettings, log: GroupLog, only_given: bool) -> Agreement[GroupSettings]:
    """The agreement, compared with the settings given here, or with those that an instance here would have.

    The checkpoint and the kernel count only where this machine can tell them: a kernel that is chosen automatically
    depends on the machine of the instance.
    """
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    unknown = {"kernel"} if settings.kernel == "auto" else set()
    name = kernel = ""
    try:
        model = shared_model(settings.model, "cpu", settings.kernel)
        name, kernel = model.name, model.kernel
    except (CheckpointError, ConfigError):
        if only_given and (settings.is_given("model") or settings.is_given("kernel")):
            raise
        unknown |= {"model", "kernel"}

    def counts(flag: str) -> bool:
        return flag not in unknown and (not only_given or settings.is_given(flag))

    return Agreement(settings, name, kernel, log, counts)
