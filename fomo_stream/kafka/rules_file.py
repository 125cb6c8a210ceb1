"""Read rules and windows of maintenance again when their file has changed."""

from __future__ import annotations

import logging

from fomo_stream.errors import ConfigError
from fomo_stream.kafka.watched_files import WatchedFiles
from fomo_stream.logs import kv
from fomo_stream.partition.rules import Rules
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import files_of, reload_settings, settings_of_group

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two checks of the files
RULE_SETTINGS = settings_of_group(ServiceSettings, "Alerts")


class RulesFile:
    """The files of --config and --calendar. A file that cannot be read, or has a mistake, has no effect."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._files = WatchedFiles(files_of(settings))
        self._checked_at = 0.0

    def changed(self, now: float) -> Rules | None:
        """Return the rules in the files if these have changed since the last call. now: seconds, monotonic."""
        if not self._files or now < self._checked_at + CHECK_S:
            return None
        self._checked_at = now
        if not self._files.changed():
            return None
        try:
            settings = reload_settings(self._settings)
            rules = Rules.of(settings)
        except ConfigError as error:
            log.error(kv("rules_not_read", reason=error, effect="the old ones are kept"))
            return None
        old, self._settings = self._settings, settings
        others = [name for name in type(settings).model_fields if name not in RULE_SETTINGS]
        if others := [name for name in others if getattr(settings, name) != getattr(old, name)]:
            effect = "restart the instances to use them"
            log.warning(kv("settings_changed", names=",".join(others), effect=effect))
        return rules
