"""Read rules and windows of maintenance again when their file has changed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fomo_stream.errors import ConfigError
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
        self._paths = files_of(settings)
        self._last_states = self._file_states()
        self._checked_at = 0.0

    def changed(self, now: float) -> Rules | None:
        """Return the rules in the files if these have changed since the last call. now: seconds, monotonic."""
        if not self._paths or now < self._checked_at + CHECK_S:
            return None
        before, self._checked_at, self._last_states = self._last_states, now, self._file_states()
        if self._last_states == before:
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

    def _file_states(self) -> list[tuple[int, int, int]]:
        return list(map(_state_of, self._paths))


def _state_of(path: Path) -> tuple[int, int, int]:
    """Return numbers that differ if a file has changed. The inode is one, as a volume of Kubernetes replaces files."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
