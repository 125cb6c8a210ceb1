"""Writing the files of a replay: whole or not at all, and to places that were checked before the work began."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from fomo_stream.errors import ConfigError

# Characters that could end an element of HTML or start another one, line ends of JavaScript, and halves of characters,
# which have no bytes.
ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
HELPERS = r"\.partial|\.joined|\.part-\d+"  # endings of files that are written before the file itself


def check_outputs(outputs: Mapping[str, Path], inputs: Mapping[str, Path]) -> None:
    """Raise ConfigError if an output cannot be written, or would overwrite an input or another output.

    Both are paths by their flag.
    """
    for flag, path in outputs.items():
        check_writable(flag, path)
    pairs = [*combinations(outputs.items(), 2), *((one, other) for one in outputs.items() for other in inputs.items())]
    for (flag, path), (other_flag, other) in pairs:
        if _writes_over(path, other) or (other_flag in outputs and _writes_over(other, path)):
            raise ConfigError(f"{flag} {path} would overwrite {other_flag} {other}; name another file")


def _writes_over(output: Path, other: Path) -> bool:
    """Whether writing the output replaces the other file. A device such as /dev/null is only written to."""
    own, its = output.resolve(), other.resolve()
    if own.exists() and not own.is_file():
        return False
    return own.parent == its.parent and re.fullmatch(f"{re.escape(own.name)}({HELPERS})?", its.name) is not None


def check_writable(flag: str, path: Path) -> None:
    """Raise ConfigError, which names the flag, if a file could not be written at the end."""
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}; create it")
    needed = [path.parent] if not path.exists() else [path, path.parent] if path.is_file() else [path]
    if not all(os.access(one, os.W_OK) for one in needed):
        raise ConfigError(f"{flag} {path} may not be written; check its permissions")


def json_text(value: Any) -> str:
    """JSON for any reader: also inside HTML, and also with text that has no bytes, such as names of some files."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
