"""Files that others may replace while a service runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class WatchedFiles:
    """Some files. One that cannot be read counts as empty."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._states = self._look()

    def __bool__(self) -> bool:
        return bool(self._paths)

    def changed(self) -> bool:
        """Return whether a file has changed since the last call."""
        before, self._states = self._states, self._look()
        return self._states != before

    def _look(self) -> list[tuple[int, int, int]]:
        return list(map(_state_of, self._paths))


def _state_of(path: Path) -> tuple[int, int, int]:
    """Return numbers that differ if a file has changed. The inode is one, as a volume of Kubernetes replaces files."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
