"""Read the settings again when their file has changed, and use those that may change while an instance runs."""

from __future__ import annotations

import logging

from fomo_stream.errors import ConfigError
from fomo_stream.kafka.watched_files import WatchedFiles
from fomo_stream.logs import kv, set_level
from fomo_stream.partition.rules import Rules
from fomo_stream.settings.flags import RecordFlags, RuleFlags
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import files_of, reload_settings

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two checks of the files
RULE_SETTINGS = RuleFlags.model_fields.keys() - RecordFlags.model_fields.keys()
# An instance joins its group again with these: no other instance has to have the same, and no start can fail by them.
LIVE_SETTINGS = (
    "alert_rate",
    "stuck_values",
    "adapt_after",
    "explain",
    "max_latency_ms",
    "tombstones",
    "on_lost_offset",
)
NOT_COMPARED = ("log_level", "reset_state")  # which is used at once; which counts for the first start


class SettingsFile:
    """The files of --config and --calendar. A file that cannot be read, or has a mistake, has no effect."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._used = self._read = settings
        self._files = WatchedFiles(files_of(settings))
        self._checked_at, self._has_read = 0.0, False
        self.present = settings  # the settings in use, with the rules and LIVE_SETTINGS that are in the files now

    def changed(self, now: float) -> Rules | None:
        """Return the rules in the files if these have changed since the last call. now: seconds, monotonic."""
        if not self._files or now < self._checked_at + CHECK_S:
            return None
        self._checked_at = now
        if not self._files.changed() and self._has_read:
            return None
        self._has_read = True  # the first time always: they may have changed while the instance started
        try:
            settings = reload_settings(self._read)
            rules = Rules.of(settings)
        except ConfigError as error:
            log.error(kv("rules_not_read", reason=error, effect="the old ones are kept"))
            return None
        old, self._read = self._read, settings
        before, self.present = self.present, _with_live(self.present, settings)
        set_level(settings.log_level)
        others = [name for name in type(settings).model_fields if name not in {*RULE_SETTINGS, *NOT_COMPARED}]
        others = [name for name in others if getattr(settings, name) != getattr(old, name)]
        taken = [name for name in others if getattr(self.present, name) != getattr(before, name)]
        if taken:
            log.info(kv("settings_taken", names=",".join(taken), effect="joining the group again with them"))
        if refused := [name for name in others if name not in taken]:
            log.warning(kv("settings_changed", names=",".join(refused), effect="restart the instances to use them"))
        return rules

    @property
    def is_newer(self) -> bool:
        """Return whether LIVE_SETTINGS have changed, so that the instance has to join its group again."""
        return any(getattr(self.present, name) != getattr(self._used, name) for name in LIVE_SETTINGS)


def _with_live(settings: ServiceSettings, read: ServiceSettings) -> ServiceSettings:
    """Return `settings` with the rules and LIVE_SETTINGS of others."""
    names = {*RULE_SETTINGS, *LIVE_SETTINGS}
    made = settings.model_copy(update={name: getattr(read, name) for name in names})
    if made.detector_config().history_scores != settings.detector_config().history_scores:  # the group agrees on it
        made.alert_rate = settings.alert_rate
    return made
