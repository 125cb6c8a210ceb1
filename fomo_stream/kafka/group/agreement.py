"""Settings that all members of a group must have in common, because a record's result depends on them.

They are written to the group log before the first member joins, and every later instance compares them before it joins.
An instance with other settings is refused, and the other members are not disturbed. Each entry names the entry that it
replaces. If two entries replace the same one, the earlier is valid, so all readers get the same result. No setting that
could be a secret is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fomo_stream.errors import AgreementError, ConfigError
from fomo_stream.kafka.broker.cluster import count_members
from fomo_stream.kafka.group.group_log import GroupLog, LogEntry
from fomo_stream.logs import kv
from fomo_stream.settings.flags import REMEMBERED
from fomo_stream.settings.sources import AGREED, extra_of, option
from fomo_stream.settings.topic_flags import OutputFlags, TopicFlags
from fomo_stream.threads import usable_processors
from fomo_stream.wording import counted

log = logging.getLogger(__name__)

KIND = b"settings/"

# Names in entries of settings that were renamed: members of earlier versions write and read these.
_STORED_NAMES = {"backend": "kernel"}
_PRESENT_NAMES = {stored: name for name, stored in _STORED_NAMES.items()}

_FLAGS = {option(field)[2:]: extra_of(about) for field, about in OutputFlags.model_fields.items()}
# Settings of the state can only change when the state is reset; the others can change while the group has no members.
# The schema agrees on the features.
STATE_SETTINGS = (*(n for n, about in _FLAGS.items() if about["affects"] == "state" and n != "features"), *REMEMBERED)
CHANGEABLE_SETTINGS = tuple(n for n, about in _FLAGS.items() if about["affects"] in AGREED[1:])
# By setting: the flags that decide it, which are its own and those whose `decides` names it.
GROUP_SETTINGS = {
    name: {name, *(flag for flag, about in _FLAGS.items() if name in about["decides"])}
    for name in (*STATE_SETTINGS, *CHANGEABLE_SETTINGS)
}
# A group that agreed before a setting existed has its default.
_DEFAULTS = {
    option(field)[2:]: list(about.default) if isinstance(about.default, tuple) else about.default
    for field, about in OutputFlags.model_fields.items()
}
# Names in messages of settings that are more than the value of a flag.
_IN_WORDS = {
    "remembered-rows": "the number of remembered rows (by --feedback-memory and --context-size)",
    "remembered-scores": "the number of remembered scores (by --alert-rate, --feedback-memory and --context-size)",
    "threads": "--threads (at most one for each processor that an instance may use)",
}

Values = dict[str, Any]
AnyTopic = TypeVar("AnyTopic", bound=TopicFlags)


class SettingDifference(NamedTuple):
    """A setting with one value in the group and another one here, as a user would write them."""

    name: str
    agreed: str
    own: str

    @property
    def in_words(self) -> str:
        return _IN_WORDS.get(self.name, f"--{self.name}")


class Agreement(Generic[AnyTopic]):
    """Agree with the group on the settings.

    model: name and digest of the checkpoint. backend: "numba" or "torch". is_given: returns whether the user gave a
    flag; settings without a given flag take the group's values. Calls raise BrokerError
    if the broker does not answer in time.
    """

    def __init__(
        self,
        settings: AnyTopic,
        model: str,
        backend: str,
        group_log: GroupLog,
        is_given: Callable[[str], bool] = lambda _flag: True,
    ) -> None:
        self._settings = settings
        self._log = group_log
        self._model = model
        self._backend = backend
        self._is_given = is_given
        self.is_new = False  # the group has not run with these settings before

    def join(self) -> AnyTopic:
        """Agree with the group before joining it. Return the settings, with the group's categorical fields.

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
            changes = {item.name.replace("-", "_"): f"{item.agreed} -> {item.own}" for item in differences}
            log.warning(kv("group_settings_changed", group=self._settings.group, **changes))
        return self._settings.model_copy(update={"categorical": tuple(agreed["categorical"])})

    def update(self) -> list[SettingDifference]:
        """Change the settings of a group that has run before to these, and return the changes.

        Raises AgreementError as `join` does, and if the group has not run before; ConfigError if a topic would have two
        roles, or no score would be written.
        """
        entry, agreed = self._current()
        if entry is None:
            raise AgreementError(f"group {self._settings.group} has agreed on nothing yet", "start an instance first")
        changes = self._compare(agreed)
        if changes:
            settings = with_agreed(self._settings, self._own(agreed))
            try:
                if isinstance(settings, OutputFlags):
                    settings.check_topics()
            except ValueError as error:
                raise ConfigError(f"with the other settings of the group: {error}") from None
            self._change(entry, agreed)
        return changes

    def agreed(self) -> Values:
        """Return the group's settings by name; empty if the group has not agreed on any yet."""
        return self._current()[1]

    def compare(self) -> list[SettingDifference]:
        """Return the settings that differ from the group's; empty if the group has not agreed on any yet."""
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

    def _check_change(self, differences: list[SettingDifference]) -> None:
        """Raise AgreementError unless this instance may change these settings."""
        lasting = [item for item in differences if item.name in STATE_SETTINGS]
        self._refuse(lasting, "use the group's, choose another --group, or forget what was learned with --reset-state")
        if members := count_members(self._settings):
            remedy = (
                f"use the group's, choose another --group, or stop the group first, which has "
                f"{counted(members, 'member')} (in Kubernetes: scale to 0; one that was killed leaves when its session "
                "times out)"
            )
            self._refuse(differences, remedy)

    def _change(self, replaced: LogEntry, agreed: Values) -> Values:
        """Change the group's settings to these, and return them. Raises AgreementError if they may not be changed."""
        self._check_change(self._compare(agreed))
        _, now = self._propose(replaced, {**self._own(agreed), "categorical": agreed["categorical"]})
        self._refuse(self._compare(now), "another instance was faster; use the group's, or choose another --group")
        return now

    def _refuse(self, differences: list[SettingDifference], remedy: str) -> None:
        """Raise AgreementError if there are differences."""
        if differences:
            what = "; ".join(f"{item.in_words} is {item.agreed} in the group, {item.own} here" for item in differences)
            raise AgreementError(f"group {self._settings.group} has agreed on other settings: {what}", remedy)

    def _compare(self, agreed: Values) -> list[SettingDifference]:
        before = _DEFAULTS | agreed
        return [
            SettingDifference(name, setting_text(before.get(name, "not recorded")), setting_text(own))
            for name, own in self._own(agreed).items()
            # without categorical fields here, the group's are used
            if own != before.get(name) and (name != "categorical" or own)
        ]

    def _propose(self, replaced: LogEntry | None, values: Values) -> tuple[LogEntry, Values]:
        """Record these settings as the successor of an entry. Return the valid entry and its settings."""
        stored = {_STORED_NAMES.get(name, name): value for name, value in values.items()}
        self._log.append(KIND, {"replaces": replaced and replaced.key.decode(), "settings": stored})
        entry, agreed = self._current()
        if entry is None:
            raise self._log.not_kept()
        return entry, agreed

    def _current(self) -> tuple[LogEntry | None, Values]:
        """Return the valid entry, and its settings. If several replace the same entry, the first is valid.

        Kafka orders the log, so all instances choose the same entry without a lock.
        """
        current: LogEntry | None = None
        agreed: Values = {}
        for entry in self._log.entries(KIND):
            with self._log.understanding():
                replaces = entry.content["replaces"]
                values: Values = dict(entry.content["settings"])
            if replaces == (current and current.key.decode()):
                current, agreed = entry, {_PRESENT_NAMES.get(name, name): value for name, value in values.items()}
        return current, agreed

    def _own(self, agreed: Mapping[str, Any]) -> Values:
        """Return this instance's values of its settings; the group's where no deciding flag is given."""
        settings = with_agreed(self._settings, {name: agreed[name] for name in agreed if not self._is_given(name)})
        config = settings.detector_config()
        computed = {
            "model": self._model,
            "backend": self._backend,
            "views": list(config.wanted_views),
            "time-features": list(settings.time_features),  # in the order of the cycles
            "threads": min(settings.threads, usable_processors()),  # the last digits of scores may depend on it
            "remembered-rows": config.history_rows,
            "remembered-scores": config.history_scores,
        }
        flags = {option(field)[2:]: getattr(settings, field) for field in type(settings).model_fields}
        agreeable = {name: value for name, value in flags.items() if name in GROUP_SETTINGS}  # rules may differ
        own = {name: sorted(v) if isinstance(v, tuple) else v for name, v in agreeable.items()} | computed
        kept = {name for name in agreed if not any(map(self._is_given, GROUP_SETTINGS.get(name, ())))}
        return {name: agreed[name] if name in kept else own[name] for name in GROUP_SETTINGS if name in own}


def with_agreed(settings: AnyTopic, agreed: Mapping[str, Any]) -> AnyTopic:
    """Return `settings` with the group's values, where a field has the name of a setting."""
    fields = {name.replace("-", "_"): tuple(v) if isinstance(v, list) else v for name, v in agreed.items()}
    update = {name: value for name, value in fields.items() if name in type(settings).model_fields}
    if "context_size" in update:
        update["min_context"] = min(settings.min_context, update["context_size"])
    return settings.model_copy(update=update)


def setting_text(value: Any) -> str:
    """Return a value as a user would write it.

    >>> setting_text(["a", "b"]), setting_text(None), setting_text(True), setting_text("x")
    ('a,b', 'none', 'true', 'x')
    """
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
