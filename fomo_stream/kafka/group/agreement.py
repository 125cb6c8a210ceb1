"""Settings that all members of a group must have in common, because a record's result depends on them.

They are written to the group log before the first member joins, and every later instance compares them before it joins.
An instance with other settings is refused, and the other members are not disturbed. Each entry names the entry that it
replaces. If two entries replace the same one, the earlier is valid, so all readers get the same result. No setting that
could be a secret is recorded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fomo_stream.errors import AgreementError, BrokerError
from fomo_stream.kafka.group.log import Entry, GroupLog
from fomo_stream.kafka.group.members import count_members
from fomo_stream.logs import kv
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.threads import usable_processors

log = logging.getLogger(__name__)

KIND = b"settings/"

# Settings of the state can only change when the state is reset; the others can change while the group has no members.
STATE_SETTINGS = (
    "model",
    "kernel",
    "categorical",
    "views",
    "lags",
    "context-size",
    "seed",
    "remembered-rows",
    "remembered-scores",
)
CHANGEABLE_SETTINGS = (
    "feedback-memory",
    "out",
    "dead-letters",
    "feedback",
    "result-field",
    "scores-only",
    "delivery",
    "threads",
)
# These settings are compared by derived values; the texts are their names in messages.
DERIVED = {
    "remembered-rows": "the number of remembered rows (by --feedback-memory and --context-size)",
    "threads": "--threads (at most one for each processor that an instance may use)",
    "remembered-scores": "the number of remembered scores (by --alert-rate, --feedback-memory and --context-size)",
}

Values = dict[str, Any]


class Agreement:
    """Agrees with the group on the settings.

    model: name and digest of the checkpoint. kernel: what computes it, "numba" or "torch". Calls raise BrokerError if
    the broker does not answer in time.
    """

    def __init__(self, settings: ServiceSettings, model: str, kernel: str, group_log: GroupLog) -> None:
        self._settings = settings
        self._log = group_log
        self._own = self._values(model, kernel)
        self.is_new = False  # the group has not run with these settings before

    def join(self) -> ServiceSettings:
        """Agree with the group before joining it; returns the settings, with the group's categorical fields.

        Raises AgreementError, which names the differences, when the group has agreed on other settings. While a group
        has no members, CHANGEABLE_SETTINGS can be changed.
        """
        found, agreed = self._current()
        self.is_new = found is None
        if found is None:
            found, agreed = self._propose(None, self._own)
        differing = self._differing(agreed)
        if differing:
            self._check_change(agreed, differing)
            agreed = self._change(found, agreed, differing)
            self.is_new = True
        return self._settings.model_copy(update={"categorical": tuple(agreed["categorical"])})

    def check(self) -> None:
        """Raise AgreementError if the group has agreed on other settings since `join`.

        Until an instance is a member, others can still change them.
        """
        _, agreed = self._current()
        differing = self._differing(agreed)
        if differing:
            raise self._refusal(agreed, differing, "they were changed while this instance started; use the group's")

    def _check_change(self, agreed: Values, differing: list[str]) -> None:
        """Raise AgreementError unless this instance may change these settings."""
        if lasting := [name for name in differing if name in STATE_SETTINGS]:
            remedy = "use the group's, choose another --group, or forget what was learned with --reset-state"
            raise self._refusal(agreed, lasting, remedy)
        if members := count_members(self._settings):
            raise self._refusal(agreed, differing, self._stop_first(members))

    @staticmethod
    def _stop_first(members: int) -> str:
        return (
            f"use the group's, choose another --group, or stop the group first, which has {members} members (one that "
            "was killed or has an --instance-id leaves when its session times out)"
        )

    def _change(self, found: Entry | None, agreed: Values, differing: list[str]) -> Values:
        changed, now = self._propose(found, {**self._own, "categorical": agreed["categorical"]})
        if still := self._differing(now):
            raise self._refusal(now, still, "another instance was faster; use the group's, or choose another --group")
        if members := count_members(self._settings):  # an instance has joined meanwhile, with the former settings
            self._propose(changed, agreed)
            raise self._refusal(agreed, differing, self._stop_first(members))
        changes = {name.replace("-", "_"): f"{_shown(agreed.get(name))} -> {_shown(now[name])}" for name in differing}
        log.warning(kv("group_settings_changed", group=self._settings.group, **changes))
        return now

    def _refusal(self, agreed: Values, differing: list[str], remedy: str) -> AgreementError:
        group, own = self._settings.group, self._own
        named = "; ".join(
            f"{DERIVED.get(name, '--' + name)} is {_shown(agreed.get(name, 'not recorded'))} in the group, "
            f"{_shown(own[name])} here"
            for name in differing
        )
        return AgreementError(f"group {group} has agreed on other settings: {named}; {remedy}")

    def _differing(self, agreed: Mapping[str, Any]) -> list[str]:
        names = [name for name in (*STATE_SETTINGS, *CHANGEABLE_SETTINGS) if agreed.get(name) != self._own[name]]
        if not self._own["categorical"]:  # then the group's are used
            names = [name for name in names if name != "categorical"]
        return names

    def _propose(self, former: Entry | None, values: Values) -> tuple[Entry | None, Values]:
        """Record these settings in place of `former`; returns the valid entry and its settings."""
        replaced = former.key.decode() if former is not None else None
        self._log.append(KIND, json.dumps({"replaces": replaced, "settings": values}).encode())
        found, agreed = self._current()
        if found is None:
            raise self._log.not_kept()
        return found, agreed

    def _current(self) -> tuple[Entry | None, Values]:
        """The valid entry, and its settings."""
        found, agreed = None, {}
        for entry in self._log.entries(KIND):
            try:
                content = json.loads(entry.value)
                replaces, values = content["replaces"], dict(content["settings"])
            except (ValueError, KeyError, TypeError) as error:
                raise BrokerError(
                    f"the settings of group {self._settings.group} in topic {self._settings.state_topic} are not "
                    f"readable ({error}); choose another --group, or start over with --reset-state"
                ) from None
            if replaces == (found.key.decode() if found is not None else None):
                found, agreed = entry, values
        return found, agreed

    def _values(self, model: str, kernel: str) -> Values:
        settings, config = self._settings, self._settings.detector_config()
        flags = (*STATE_SETTINGS, *CHANGEABLE_SETTINGS)
        values = {name: getattr(settings, name.replace("-", "_")) for name in flags if name not in DERIVED}
        return {
            **values,
            "model": model,
            "views": list(config.wanted_views),
            "kernel": kernel,
            "categorical": sorted(settings.categorical),
            "threads": min(settings.threads, usable_processors()),  # the last digits of scores may depend on it
            "remembered-rows": config.history_rows,
            "remembered-scores": config.history_scores,
        }


def _shown(value: Any) -> str:
    """A value as a user would write it.

    >>> _shown(["a", "b"]), _shown(None), _shown(True), _shown("x")
    ('a,b', 'none', 'true', 'x')
    """
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
