"""Read the settings again when their file has changed, and use those that may change while an instance runs."""

from __future__ import annotations

import logging

from fomo_stream.detector.key_scopes import key_config
from fomo_stream.errors import ConfigError
from fomo_stream.kafka.watched_files import WatchedFiles
from fomo_stream.logs import kv, set_level
from fomo_stream.partition.rules import Rules
from fomo_stream.settings.flags import RecordFlags, RuleFlags
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import files_of, reload_settings

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two checks of the files; one that has changed is read when it has rested for so long
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
        self._used = settings
        self._files = WatchedFiles(files_of(settings))
        self._checked_at, self._is_changed = 0.0, True  # they may have changed while the instance started
        self.present = settings  # the settings in use, or those in the files if these count without a restart
        self.is_newer = False  # whether the instance has to join its group again with `present`

    def changed(self, now: float) -> Rules | None:
        """Return the rules in the files if these have changed since the last call. now: seconds, monotonic."""
        if not self._files or now < self._checked_at + CHECK_S:
            return None
        self._checked_at = now
        if self._files.changed():  # it may not be complete yet
            self._is_changed = True
            return None
        if not self._is_changed:
            return None
        self._is_changed = False
        try:
            settings = reload_settings(self._used)
            rules = Rules.of(settings)
        except ConfigError as error:
            log.error(kv("rules_not_read", reason=error, effect="the old ones are kept"))
            return None
        set_level(settings.log_level)
        names = [name for name in type(settings).model_fields if name not in {*RULE_SETTINGS, *NOT_COMPARED}]
        names = [name for name in names if getattr(settings, name) != getattr(self._used, name)]
        # all or none: only as a whole were the settings of the file checked
        # with another alert rate, a reference may have too few rows
        live = {*LIVE_SETTINGS} - ({"alert_rate"} if settings.reference is not None else set())
        self.is_newer = bool(names) and set(names) <= live and _sizes(settings) == _sizes(self._used)
        if names and not self.is_newer:
            log.warning(kv("settings_changed", names=",".join(names), effect="restart the instances to use them"))
            settings = self._used.model_copy(update={name: getattr(settings, name) for name in RULE_SETTINGS})
        elif names:
            log.info(kv("settings_taken", names=",".join(names), effect="joining the group again with them"))
        self.present = settings
        return rules


def _sizes(settings: ServiceSettings) -> tuple[int, int]:
    """Return how many scores are remembered, of a partition and of a key: a stored state has as many."""
    config = settings.detector_config()
    return config.history_scores, key_config(config).history_scores
