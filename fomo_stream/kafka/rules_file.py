"""Reads rules and windows of maintenance again when their file has changed."""

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

LOOK_S = 1.0  # seconds between looks at the files
OF_RULES = settings_of_group(ServiceSettings, "Alerts")


class RulesFile:
    """The files of --config and --calendar. A file that cannot be read, or has a mistake, changes nothing."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._paths = files_of(settings)
        self._seen = self._look()
        self._looked_at = 0.0

    def changed(self, now: float) -> Rules | None:
        """The rules that the files have now, if they have changed since the last call. now: seconds, monotonic."""
        if not self._paths or now < self._looked_at + LOOK_S:
            return None
        before, self._looked_at, self._seen = self._seen, now, self._look()
        if self._seen == before:
            return None
        try:
            settings = reload_settings(self._settings)
            rules = Rules.of(settings)
        except ConfigError as error:
            log.error(kv("rules_not_read", reason=error, effect="the old ones are kept"))
            return None
        old, self._settings = self._settings, settings
        others = [name for name in type(settings).model_fields if name not in OF_RULES]
        if others := [name for name in others if getattr(settings, name) != getattr(old, name)]:
            effect = "restart the instances to use them"
            log.warning(kv("settings_changed", names=",".join(others), effect=effect))
        return rules

    def _look(self) -> list[tuple[int, int, int]]:
        return list(map(_state_of, self._paths))


def _state_of(path: Path) -> tuple[int, int, int]:
    """What tells that a file has changed; a volume of Kubernetes replaces files."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns
