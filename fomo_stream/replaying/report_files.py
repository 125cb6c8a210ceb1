"""Checks and writes the files of a replay: paths are checked before the work begins; files are written atomically."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fomo_stream.errors import ConfigError, FomoError

# Characters that could end or start an element of HTML, line ends of JavaScript, and lone surrogates, which cannot be
# encoded.
ESCAPED_CHARACTERS = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
DIGITS = 6  # of floats in a report: further digits are noise, and depend on the processor


def check_outputs(outputs: Mapping[str, Path], inputs: Mapping[str, Path]) -> None:
    """Raise ConfigError if an output cannot be written, or would overwrite an input or another output.

    Both are paths by their flag.
    """
    for flag, path in outputs.items():
        check_writable(flag, path)
    for flag, path in outputs.items():
        for other_flag, other in {**inputs, **outputs}.items():
            if flag != other_flag and path.resolve() == other.resolve() and not _is_device(path):
                raise ConfigError(f"{flag} {path} would overwrite {other_flag} {other}; name another file")


def check_writable(flag: str, path: Path) -> None:
    """Raise ConfigError, which names the flag, if a file could not be written at the end."""
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}; create it")
    needed = [path.parent] if not path.exists() else [path] if _is_device(path) else [path, path.parent]
    if not all(os.access(needed_path, os.W_OK) for needed_path in needed):
        raise ConfigError(f"{flag} {path} may not be written; check its permissions")


def _is_device(path: Path) -> bool:
    """Return whether a path is a device such as /dev/stdout, which is written to and never replaced."""
    return path.exists() and not path.is_file()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that readers see either the old or the new one, even after a crash. Raises ConfigError."""
    with _replaced(path) as file:
        file.write(data)


def join_parts(path: Path, parts: Iterable[Path]) -> None:
    """Join files to one, as `write_whole` writes it; missing files are left out. Raises ConfigError."""
    with _replaced(path) as file:
        for part in parts:
            if part.exists():
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, file, 1 << 20)


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write to, which replaces `path` when it is complete."""
    is_device = _is_device(path)
    partial = path if is_device else path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            if not is_device:
                os.fsync(file.fileno())
        if not is_device:
            os.replace(partial, path)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot write {path}: {reason}; check the folder, its permissions and its space") from None


@contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """Turn errors of writing to the folder for temporary files into a FomoError, in one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise FomoError(f"cannot write to {folder}: {reason}; let TMPDIR name a folder with more space") from None


def json_text(value: Any) -> str:
    """Return JSON that is also valid inside HTML, and with text that cannot be encoded, such as some file names."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return ESCAPED_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def rounded(value: float) -> float | None:
    """Return a float with DIGITS significant digits; None for NaN and infinities."""
    return float(f"{value:.{DIGITS}g}") + 0.0 if math.isfinite(value) else None  # + 0.0: no -0.0


def none_for_nan(value: float) -> float | None:
    """Return a float unchanged; None for NaN."""
    return value if value == value else None


def json_value(value: Any, number: Callable[[float], float | None] = rounded) -> Any:
    """Return a value that JSON can hold: None for a missing one, ISO 8601 text for a time, seconds for a duration.

    number: converts floats, `rounded` or `none_for_nan`.

    >>> json_value({"value": np.float64(1 / 3), "rows": np.arange(3), "none": float("nan")})
    {'value': 0.333333, 'rows': [0, 1, 2], 'none': None}
    >>> json_value([1 / 3, datetime(2026, 10, 1), timedelta(minutes=1)], none_for_nan)
    [0.3333333333333333, '2026-10-01T00:00:00', 60.0]
    """
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else str(np.datetime_as_string(value))
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(name): json_value(part, number) for name, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [json_value(part, number) for part in value]
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    if str(value) in ("NaT", "<NA>"):
        return None
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, Decimal) else str(value)
