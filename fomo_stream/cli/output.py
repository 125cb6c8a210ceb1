"""Where results go: standard output, or a file that gets its name only when it is complete."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fomo_stream.errors import ConfigError
from fomo_stream.records.lines import Note

STANDARD_OUTPUT = "-"
PART_ENDING = ".part"  # added to the name of a file that is not complete


@contextmanager
def open_output(path: str, inputs: Sequence[Path | int], note: Note) -> Iterator[BinaryIO]:
    """A stream for results.

    A file is written under its name and `.part`. At the end of the context it replaces the file of that name. After an
    error or Ctrl-C it stays as it is, with a note, and the file of that name is not touched. What is no regular file,
    such as /dev/null or a named pipe, is written directly. Raises ConfigError, before anything is written, if `path` is
    one of `inputs`, a folder, or cannot be written.
    """
    if path == STANDARD_OUTPUT:
        if sys.stdout is None:
            raise ConfigError("standard output is closed; open it, or name a file with --output")
        try:
            yield sys.stdout.buffer
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the rest would be flushed at exit
            raise
        return
    target = Path(os.path.realpath(path))
    is_direct = os.path.exists(path) and not os.path.isfile(path)
    place = Path(path) if is_direct else target.with_name(target.name + PART_ENDING)
    _check_target(path, target, place, inputs)
    try:
        stream = place.open("wb")
        if target.is_file():
            shutil.copymode(target, place)
    except OSError as error:
        raise ConfigError(f"--output {path}: {place} cannot be written: {error.strerror}") from None
    try:
        with stream:
            yield stream
    except BaseException:
        if is_direct:
            note(f"not complete: {path} has the results so far")
        elif place.stat().st_size:
            state = "is as it was" if target.exists() else "was not written"
            note(f"not complete: the results so far are in {place}; {path} {state}")
        else:
            place.unlink()
        raise
    if not is_direct:
        os.replace(place, target)


def _check_target(path: str, target: Path, place: Path, inputs: Sequence[Path | int]) -> None:
    if os.path.isdir(target):
        raise ConfigError(f"--output {path} is a folder; name a file in it")
    if not os.path.isdir(target.parent):
        raise ConfigError(f"--output {path}: there is no folder {target.parent}; create it first")
    for own in (target, place):
        if os.path.isfile(own) and any(_is_same(own, other) for other in inputs):
            also = "" if own == target else f", which is written until {path} is complete,"
            raise ConfigError(f"--output: {own}{also} is also read; write the results to another file")


def _is_same(path: Path, other: Path | int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.stat(other))
    except OSError:  # what cannot be read is reported where it is read
        return False
