"""`fomo-stream group`: shows and changes what a group has agreed on, which its state topic holds.

The command does not join the group, and only `update_group` writes anything.
"""

from __future__ import annotations

from contextlib import closing

from fomo_stream.errors import BrokerError, CheckpointError, ConfigError
from fomo_stream.kafka.broker.clients import broker_errors
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.broker.permissions import DESCRIBE, READ, WRITE, check_permissions
from fomo_stream.kafka.group.agreed_schema import GroupSchema
from fomo_stream.kafka.group.agreement import CHANGEABLE_SETTINGS, GROUP_SETTINGS, Agreement, setting_text
from fomo_stream.kafka.group.group_log import GroupLog, check_has_run
from fomo_stream.partition.rules import Rules
from fomo_stream.settings.commands import GroupSettings
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import option, settings_as, settings_that_affect
from fomo_stream.wording import aligned, counted


def look_at_group(settings: GroupSettings) -> str:
    """Describe what the group has agreed on, and which settings differ here. Raises FomoError."""
    agreement, group_schema = _open(settings)
    agreed, schema, own = agreement.agreed(), group_schema.stored(), settings.features
    here = {difference.name: difference.own for difference in agreement.compare()}
    head, others = f"group {settings.group} on topic {settings.topic}", _unagreed_flags_note(settings)
    if not agreed and schema is None:
        return "\n".join([head, "", "the group has agreed on nothing yet: no instance has started", *others])
    if schema is not None:
        if own is not None and {*own, *agreed.get("categorical", ()), *settings.counter_names} != {*schema.features}:
            here["features"] = setting_text(list(own))
        agreed |= {"categorical": sorted(schema.categorical), "counters": sorted(schema.counters) or ["none"]}
    rows = [("features", "not inferred yet" if schema is None else setting_text(list(schema.features)))]
    rows += [(name, setting_text(agreed[name])) for name in GROUP_SETTINGS if name in agreed]
    by_default = {name for name in here if not any(map(settings.is_given, GROUP_SETTINGS.get(name, (name,))))}
    table = [(*row, here.get(row[0], "") + (" (default)" if row[0] in by_default else "")) for row in rows]
    verdict = "the settings given here agree with the group's"
    if here:
        lasting = [name for name in here if name not in CHANGEABLE_SETTINGS]
        when = f"({', '.join(lasting)})" if lasting else "while the group has members, and change them otherwise"
        verdict = f"{counted(len(here), 'setting')} of an instance here would be different: it would be refused {when}"
    return "\n".join([head, "", *aligned([("agreed setting", "group", "here"), *table]), verdict, *others])


def check_group(settings: GroupSettings) -> str:
    """Check that an instance with these settings could join now. Raises AgreementError if not, or another FomoError.

    ConfigError for mistakes in settings that the group does not hold, such as rules: no instance could start with them.
    """
    Rules.of(settings_as(ServiceSettings, settings))
    agreement, schema = _open(settings)
    schema.check_flags()
    agreement.check_join()
    return f"group {settings.group} takes instances with these settings"


def update_group(settings: GroupSettings) -> str:
    """Change the agreement of the group to the given settings; return what has changed. Raises FomoError."""
    agreement, schema = _open(settings, is_changing=True)
    schema.check_flags()
    changes = agreement.update()
    rows = [(f"--{change.name}", f"{change.agreed} -> {change.own}") for change in changes]
    head = f"group {settings.group} has agreed on new settings:" if changes else "nothing was changed"
    return "\n".join([head, *aligned(rows), *_unagreed_flags_note(settings)])


def _unagreed_flags_note(settings: GroupSettings) -> list[str]:
    """Return a line about given flags that are neither part of an agreement nor needed to find the group."""
    names = [name for name in settings_that_affect(GroupSettings, "scores") if name not in ("topic", "group")]
    flags = [option(name) for name in names if settings.is_given(name)]
    return [f"the group does not hold {', '.join(flags)}: each instance has its own value"] if flags else []


def _open(settings: GroupSettings, is_changing: bool = False) -> tuple[Agreement[GroupSettings], GroupSchema]:
    """Return the agreement and schema of an existing group. Raises BrokerError, TopicError or NotPermittedError.

    The agreement is compared with the settings that an instance here would have; is_changing: only with given ones.
    Checkpoint and backend count only if this machine can tell them: an automatically chosen backend depends on the
    machine of the instance.
    """
    needs = {settings.topic: [DESCRIBE], settings.state_topic: [READ, *([WRITE] if is_changing else [])]}
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        if not cluster.has_controller:
            raise BrokerError(f"the broker at {settings.bootstrap} does not describe groups; the embedded one does not")
        with broker_errors("the topics cannot be described"):
            check_permissions(settings, cluster.admin, needs, of_group=DESCRIBE)
            partitions, _ = cluster.partitions(needs)
    check_has_run(settings, partitions, "start an instance")
    from fomo_stream.model.checkpoint import shared_model  # imports torch

    unknown = {"backend"} if settings.backend == "auto" else set()
    name = kernel = ""
    try:
        model = shared_model(settings.model, "cpu", settings.backend)
        name, kernel = model.name, model.kernel
    except (CheckpointError, ConfigError):
        if is_changing and (settings.is_given("model") or settings.is_given("backend")):
            raise
        unknown |= {"model", "backend"}

    def counts(flag: str) -> bool:
        return flag not in unknown and (not is_changing or settings.is_given(flag))

    log = GroupLog(settings)
    return Agreement(settings, name, kernel, log, counts), GroupSchema(settings, log)
