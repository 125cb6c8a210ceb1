"""Writing the files of a replay: whole or not at all, and to places that were checked before the work began."""

from __future__ import annotations

import os
from pathlib import Path

from fomo_stream.errors import ConfigError


def check_writable(flag: str, path: Path) -> None:
    """Raise ConfigError, which names the flag, if a file could not be written at the end."""
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}; create it")
    needed = [path.parent] if not path.exists() else [path, path.parent] if path.is_file() else [path]
    if not all(os.access(one, os.W_OK) for one in needed):
        raise ConfigError(f"{flag} {path} may not be written; check its permissions")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old one or the new one, also after a crash. Raises ConfigError.

    A device such as /dev/stdout is written to, not replaced.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; check the folder, its permissions and its space"
        ) from None
