"""Settings that all members of a group must have in common, because a record's result depends on them.

They are written to the group log before the first member joins, and every later instance compares them before it joins.
An instance with other settings is refused, and the other members are not disturbed. Each entry names the entry that it
replaces. If two entries replace the same one, the earlier is valid, so all readers get the same result. No setting that
could be a secret is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fomo_stream.errors import AgreementError, ConfigError
from fomo_stream.kafka.broker.cluster import count_members
from fomo_stream.kafka.group.log import Entry, GroupLog
from fomo_stream.logs import kv
from fomo_stream.settings.service import ServiceSettings, check_topics
from fomo_stream.settings.sources import AGREED, settings_of_scope
from fomo_stream.threads import usable_processors
from fomo_stream.wording import counted

log = logging.getLogger(__name__)

KIND = b"settings/"

# Settings of the state can only change when the state is reset; the others can change while the group has no members.
# The schema agrees on the features.
_FLAGS = {name.replace("_", "-"): name for name in settings_of_scope(ServiceSettings, *AGREED) if name != "features"}
_OF_STATE = settings_of_scope(ServiceSettings, "state")
STATE_SETTINGS = (*(name for name in _FLAGS if _FLAGS[name] in _OF_STATE), "remembered-rows", "remembered-scores")
CHANGEABLE_SETTINGS = tuple(name for name in _FLAGS if _FLAGS[name] not in _OF_STATE)
# These settings are compared by derived values; the texts are their names in messages.
DERIVED = {
    "remembered-rows": "the number of remembered rows (by --feedback-memory and --context-size)",
    "threads": "--threads (at most one for each processor that an instance may use)",
    "remembered-scores": "the number of remembered scores (by --alert-rate, --feedback-memory and --context-size)",
}

# The flags that decide about a setting, where that is not only the flag of the same name.
DECIDED_BY = {
    "views": ("views", "lags", "admit"),
    "remembered-rows": ("feedback-memory", "context-size", "feedback"),
    "remembered-scores": ("feedback-memory", "context-size", "feedback", "alert-rate"),
}

Values = dict[str, Any]
# Groups that agreed before there was a setting have its default.
_DEFAULTS: Values = {
    name: list(value) if isinstance(value := ServiceSettings.model_fields[field].default, tuple) else value
    for name, field in _FLAGS.items()
}


class Difference(NamedTuple):
    """A setting whose value in the group is another one than here, as a user would write them."""

    name: str
    agreed: str
    own: str


class Agreement:
    """Agrees with the group on the settings.

    model: name and digest of the checkpoint. kernel: what computes it, "numba" or "torch". is_given: whether a flag,
    by its name, is given; of settings whose flags are not given, the group's values are used. Calls raise BrokerError
    if the broker does not answer in time.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: str,
        kernel: str,
        group_log: GroupLog,
        is_given: Callable[[str], bool] = lambda _flag: True,
    ) -> None:
        self._settings = settings
        self._log = group_log
        self._model = model
        self._kernel = kernel
        self._is_given = is_given
        self.is_new = False  # the group has not run with these settings before

    def join(self) -> ServiceSettings:
        """Agree with the group before joining it; returns the settings, with the group's categorical fields.

        Raises AgreementError, which names the differences, when the group has agreed on other settings. While a group
        has no members, CHANGEABLE_SETTINGS can be changed.
        """
        entry, agreed = self._current()
        self.is_new = entry is None
        if entry is None:
            entry, agreed = self._propose(None, self._own(agreed))
        if differences := self._compare(agreed):
            agreed = self._change(entry, agreed)
            self.is_new = True
            changes = {one.name.replace("-", "_"): f"{one.agreed} -> {one.own}" for one in differences}
            log.warning(kv("group_settings_changed", group=self._settings.group, **changes))
        return self._settings.model_copy(update={"categorical": tuple(agreed["categorical"])})

    def update(self) -> list[Difference]:
        """Change the group's settings to these, for a group that has run before; returns what has changed.

        Raises AgreementError as `join` does, and if the group has not run before; ConfigError if a topic would have two
        roles, or no score would be written.
        """
        entry, agreed = self._current()
        if entry is None:
            raise AgreementError(f"group {self._settings.group} has agreed on nothing yet", "start an instance first")
        changes = self._compare(agreed)
        if changes:
            try:
                check_topics(with_agreed(self._settings, self._own(agreed)))
            except ValueError as error:
                raise ConfigError(f"with the other settings of the group: {error}") from None
            self._change(entry, agreed)
        return changes

    def agreed(self) -> Values:
        """The group's settings by name; empty if the group has agreed on nothing yet."""
        return self._current()[1]

    def compare(self) -> list[Difference]:
        """The settings that differ from the group's. They are none if the group has agreed on nothing yet."""
        return self._compare(agreed) if (agreed := self.agreed()) else []

    def check(self) -> None:
        """Raise AgreementError if the group has agreed on other settings since `join`.

        Until an instance is a member, others can still change them.
        """
        self._refuse(self.compare(), "they were changed while this instance started; use the group's")

    def check_join(self) -> None:
        """Raise AgreementError if `join` would be refused now. Writes nothing."""
        if differences := self.compare():
            self._check_change(differences)

    def _check_change(self, differences: list[Difference]) -> None:
        """Raise AgreementError unless this instance may change these settings."""
        lasting = [one for one in differences if one.name in STATE_SETTINGS]
        self._refuse(lasting, "use the group's, choose another --group, or forget what was learned with --reset-state")
        if members := count_members(self._settings):
            remedy = (
                f"use the group's, choose another --group, or stop the group first, which has "
                f"{counted(members, 'member')} (in Kubernetes: scale to 0; one that was killed leaves when its session "
                "times out)"
            )
            self._refuse(differences, remedy)

    def _change(self, replaced: Entry, agreed: Values) -> Values:
        """Change the group's settings to these; returns them. Raises AgreementError if they may not be changed."""
        self._check_change(self._compare(agreed))
        _, now = self._propose(replaced, {**self._own(agreed), "categorical": agreed["categorical"]})
        self._refuse(self._compare(now), "another instance was faster; use the group's, or choose another --group")
        return now

    def _refuse(self, differences: list[Difference], remedy: str) -> None:
        """Raise AgreementError if there are any."""
        if differences:
            named = "; ".join(
                f"{DERIVED.get(one.name, '--' + one.name)} is {one.agreed} in the group, {one.own} here"
                for one in differences
            )
            raise AgreementError(f"group {self._settings.group} has agreed on other settings: {named}", remedy)

    def _compare(self, agreed: Values) -> list[Difference]:
        own = self._own(agreed)  # without categorical fields here, the group's are used
        return [
            Difference(name, shown(agreed.get(name, _DEFAULTS.get(name, "not recorded"))), shown(own[name]))
            for name in (*STATE_SETTINGS, *CHANGEABLE_SETTINGS)
            if agreed.get(name, _DEFAULTS.get(name)) != own[name] and (name != "categorical" or own[name])
        ]

    def _propose(self, replaced: Entry | None, values: Values) -> tuple[Entry, Values]:
        """Record these settings in place of another entry; returns the valid entry and its settings."""
        self._log.append(KIND, {"replaces": replaced and replaced.key.decode(), "settings": values})
        entry, agreed = self._current()
        if entry is None:
            raise self._log.not_kept()
        return entry, agreed

    def _current(self) -> tuple[Entry | None, Values]:
        """The valid entry, and its settings: of those that replace the same one, the first is valid."""
        current, agreed = None, {}
        for entry in self._log.entries(KIND):
            with self._log.understanding():
                replaces, values = entry.content["replaces"], dict(entry.content["settings"])
            if replaces == (current and current.key.decode()):
                current, agreed = entry, values
        return current, agreed

    def _own(self, agreed: Mapping[str, Any]) -> Values:
        """This instance's values of all settings; the group's where no flag is given that decides about them."""
        names = (*STATE_SETTINGS, *CHANGEABLE_SETTINGS)
        flags = {name: DECIDED_BY.get(name, (name,)) for name in names}
        kept = {name: agreed[name] for name in names if name in agreed and not any(map(self._is_given, flags[name]))}
        settings = with_agreed(self._settings, {name: agreed[name] for name in agreed if not self._is_given(name)})
        config = settings.detector_config()
        values = {name: getattr(settings, name.replace("-", "_")) for name in names if name not in DERIVED}
        return {
            **values,
            "model": self._model,
            "views": list(config.wanted_views),
            "kernel": self._kernel,
            "categorical": sorted(settings.categorical),
            "mute-key": sorted(settings.mute_key),
            "exclude": sorted(settings.exclude),
            "counters": sorted(settings.counters),
            "time-features": list(settings.time_features),
            "silence-of": list(settings.silence_of),
            "threads": min(settings.threads, usable_processors()),  # the last digits of scores may depend on it
            "remembered-rows": config.history_rows,
            "remembered-scores": config.history_scores,
            **kept,
        }


def with_agreed(settings: ServiceSettings, agreed: Mapping[str, Any]) -> ServiceSettings:
    """`settings` with the group's values of these settings, where a field of the same name holds them."""
    fields = {name.replace("-", "_"): tuple(v) if isinstance(v, list) else v for name, v in agreed.items()}
    update = {name: value for name, value in fields.items() if name in type(settings).model_fields}
    if "context_size" in update:
        update["min_context"] = min(settings.min_context, update["context_size"])
    return settings.model_copy(update=update)


def shown(value: Any) -> str:
    """A value as a user would write it.

    >>> shown(["a", "b"]), shown(None), shown(True), shown("x")
    ('a,b', 'none', 'true', 'x')
    """
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
