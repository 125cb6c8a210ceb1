"""`fomo-stream group`: what a group has agreed on, its members and its partitions, for people or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fomo_stream.admin.group_description import (
    GroupDescription,
    check_group_exists,
    describe_group,
)
from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.kafka.group.agreement import (
    CHANGEABLE_SETTINGS,
    DECIDED_BY,
    STATE_SETTINGS,
    Agreement,
    Difference,
    shown,
)
from fomo_stream.kafka.group.log import GroupLog
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.settings.broker import BrokerFlags
from fomo_stream.settings.commands import GroupSettings
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import option, settings_of_scope
from fomo_stream.wording import aligned, in_bytes, in_time, ranges

FEATURES_SHOWN = 20


@dataclass(frozen=True)
class Agreed:
    """What the group has agreed on, and which settings differ here."""

    features: tuple[str, ...] | None  # None: they are not inferred yet
    settings: dict[str, Any]
    differences: tuple[Difference, ...]
    is_given: dict[str, bool]  # by name of a setting that differs: by a flag, a variable or the file, or by default


def look_at_group(settings: GroupSettings) -> str:
    """The report. Raises FomoError."""
    partitions = check_group_exists(settings, is_changing=False)
    found = describe_group(settings, partitions)
    agreed = read_agreed(settings)
    return as_json(settings, found, agreed) if settings.json else as_text(settings, found, agreed, time.time())


def check_group(settings: GroupSettings) -> str:
    """Whether an instance with these settings could join now. Raises AgreementError if not, and other FomoErrors."""
    check_group_exists(settings, is_changing=False)
    group_log = GroupLog(settings)
    GroupSchema(settings, group_log).check_flags()
    _agreement(settings, only_given=False, log=group_log).check_join()
    return f"group {settings.group} takes instances with these settings"


def update_group(settings: GroupSettings) -> str:
    """Change the group's agreement to the settings that are given; returns what has changed. Raises FomoError."""
    check_group_exists(settings, is_changing=True)
    log = GroupLog(settings)
    GroupSchema(settings, log).check_flags()
    changes, others = _agreement(settings, log, only_given=True).update(), _not_held(settings)
    if settings.json:
        content = {"group": settings.group, "changes": [change._asdict() for change in changes], "not_held": others}
        return json.dumps(content, indent=2)
    rows = [(f"--{change.name}", f"{change.agreed} -> {change.own}") for change in changes]
    said = (
        [f"group {settings.group} has agreed on new settings:", *aligned(rows)] if changes else ["nothing was changed"]
    )
    if not changes and not others:
        said = [f"group {settings.group} has agreed on the settings given here already; nothing was changed"]
    return "\n".join([*said, *_about_others(others)])


def _not_held(settings: GroupSettings) -> list[str]:
    """The flags given here that are no part of an agreement, and not needed to find the group."""
    names = [name for name in settings_of_scope(ServiceSettings, "local") if name not in BrokerFlags.model_fields]
    return [option(name) for name in names if name != "topic" and settings.is_given(name)]


def _about_others(flags: Sequence[str]) -> list[str]:
    return [f"the group does not hold {', '.join(flags)}: each instance has its own value"] if flags else []


def read_agreed(settings: GroupSettings) -> Agreed:
    """What the group has agreed on. Raises BrokerError."""
    log = GroupLog(settings)
    agreement = _agreement(settings, log, only_given=False)
    schema = GroupSchema(settings, log).stored()
    agreed = agreement.agreed()
    differences = agreement.compare()
    if schema is not None:
        own = settings.features
        if own is not None and {*own, *agreed.get("categorical", ())} != {*schema.features}:
            differences.insert(0, Difference("features", shown(list(schema.features)), shown(list(own))))
        agreed = {**agreed, "categorical": sorted(schema.categorical)}
    given = {
        one.name: any(settings.is_given(flag) for flag in DECIDED_BY.get(one.name, (one.name,))) for one in differences
    }
    return Agreed(None if schema is None else schema.features, agreed, tuple(differences), given)


def _agreement(settings: GroupSettings, log: GroupLog, only_given: bool) -> Agreement:
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


# --- for people


def as_text(settings: GroupSettings, found: GroupDescription, agreed: Agreed, now: float) -> str:
    """The report as text. now: seconds since 1970."""
    count = len(found.members)
    members = f"{count or 'no'} member{'' if count == 1 else 's'}"
    head = f"group {settings.group} on topic {settings.topic}: {found.status}, {members}"
    parts = [[head], [*_settings_lines(agreed), *_about_others(_not_held(settings))]]
    if found.members:
        parts.append(_member_lines(found))
    parts.append(_partition_lines(found, now))
    if found.notes:
        parts.append([f"note: {note}" for note in found.notes])
    return "\n\n".join("\n".join(part) for part in parts)


def _settings_lines(agreed: Agreed) -> list[str]:
    if not agreed.settings and agreed.features is None:
        return ["the group has agreed on nothing yet: no instance has started"]
    rows = [("agreed setting", "group", "here"), ("features", _features(agreed.features), "")]
    rows += [(name, shown(agreed.settings.get(name, "not recorded")), "") for name in _names(agreed)]
    here = {one.name: one.own + ("" if agreed.is_given[one.name] else " (default)") for one in agreed.differences}
    if not here:
        return [*aligned([row[:2] for row in rows]), "the settings given here agree with the group's"]
    lines = aligned([(name, group, here.get(name, own)) for name, group, own in rows])
    lasting = [name for name in here if name not in CHANGEABLE_SETTINGS]
    count = f"{len(here)} settings differ" if len(here) > 1 else "1 setting differs"
    verdict = f"{count} here: an instance with the settings given here "
    if lasting:
        return [*lines, f"{verdict}would be refused ({', '.join(lasting)})"]
    return [*lines, f"{verdict}would be refused while the group has members, and change them otherwise"]


def _names(agreed: Agreed) -> list[str]:
    return [name for name in (*STATE_SETTINGS, *CHANGEABLE_SETTINGS) if name in agreed.settings]


def _features(names: Sequence[str] | None) -> str:
    if names is None:
        return "not inferred yet"
    more = f", and {len(names) - FEATURES_SHOWN} more" if len(names) > FEATURES_SHOWN else ""
    return ", ".join(names[:FEATURES_SHOWN]) + more


def _member_lines(found: GroupDescription) -> list[str]:
    lags = {one.number: one.lag or 0 for one in found.partitions}
    rows = [("member", "client", "host", "lag", "partitions")]
    for member in found.members:
        lag = sum(lags.get(number, 0) for number in member.partitions)
        rows.append((member.name, member.client_id, member.host, str(lag), ranges(member.partitions) or "none"))
    return aligned(rows, right=[3])


def _partition_lines(found: GroupDescription, now: float) -> list[str]:
    owners = {number: member.name for member in found.members for number in member.partitions}
    rows = [("partition", "member", "committed", "end", "lag", "state", "to restore", "state written")]
    for one in found.partitions:
        rows.append(
            (
                str(one.number),
                owners.get(one.number, "-"),
                _or_dash(one.committed),
                _or_dash(one.end),
                _or_dash(one.lag),
                "-" if one.state is None else in_bytes(one.state.bytes),
                "-" if one.state is None else in_bytes(one.state.log_bytes),
                "-" if one.state_written is None else f"{in_time(max(0.0, now - one.state_written))} ago",
            )
        )
    sizes = [one.state for one in found.partitions if one.state is not None]
    state, log = sum(size.bytes for size in sizes), sum(size.log_bytes for size in sizes)
    shown_sizes = (in_bytes(state), in_bytes(log)) if sizes else ("-", "-")
    rows.append(("all", "", "", "", str(sum(one.lag or 0 for one in found.partitions)), *shown_sizes, ""))
    return aligned(rows, right=[0, 2, 3, 4, 5, 6, 7])


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


# --- for programs


def as_json(settings: GroupSettings, found: GroupDescription, agreed: Agreed) -> str:
    """The report as one JSON object."""
    content = {
        "group": settings.group,
        "topic": settings.topic,
        "state_topic": settings.state_topic,
        "status": found.status,
        "agreement": {
            "features": agreed.features,
            "settings": agreed.settings,
            "differences": [
                {**one._asdict(), "given": agreed.is_given[one.name], "changeable": one.name in CHANGEABLE_SETTINGS}
                for one in agreed.differences
            ],
            "not_held": _not_held(settings),
        },
        "members": [asdict(member) for member in found.members],
        "partitions": [{**asdict(one), "lag": one.lag} for one in found.partitions],
        "notes": found.notes,
    }
    return json.dumps(content, indent=2)
