"""Opens the output for results: standard output, or a file that gets its name only when it is complete."""

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
    """Open a stream for results.

    A file is written as `path` with the ending `.part`, which replaces `path` at the end of the context. After an error
    or Ctrl-C the `.part` file stays, with a note, and `path` is not touched. Other files than regular ones, such as
    /dev/null or a named pipe, are written directly. Raises ConfigError, before anything is written, if `path` is one of
    `inputs`, a folder, or cannot be written.
    """
    if path == STANDARD_OUTPUT:
        if sys.stdout is None:
            raise ConfigError("standard output is closed; open it, or name a file with --output")
        try:
            yield sys.stdout.buffer
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the rest would be flushed at exit
            raise
        return
    target = Path(os.path.realpath(path))
    is_direct = os.path.exists(path) and not os.path.isfile(path)
    written_path = Path(path) if is_direct else target.with_name(target.name + PART_ENDING)
    _check_target(path, target, written_path, inputs)
    try:
        stream = written_path.open("wb")
        if target.is_file():
            shutil.copymode(target, written_path)
    except OSError as error:
        raise ConfigError(f"--output {path}: {written_path} cannot be written: {error.strerror}") from None
    try:
        with stream:
            yield stream
    except BaseException:
        if is_direct:
            note(f"not complete: {path} has the results so far")
        elif written_path.stat().st_size:
            state = "is as it was" if target.exists() else "was not written"
            note(f"not complete: the results so far are in {written_path}; {path} {state}")
        else:
            written_path.unlink()
        raise
    if not is_direct:
        os.replace(written_path, target)


def _check_target(path: str, target: Path, written_path: Path, inputs: Sequence[Path | int]) -> None:
    if os.path.isdir(target):
        raise ConfigError(f"--output {path} is a folder; name a file in it")
    if not os.path.isdir(target.parent):
        raise ConfigError(f"--output {path}: there is no folder {target.parent}; create it first")
    for path_of_ours in (target, written_path):
        if os.path.isfile(path_of_ours) and any(_is_same(path_of_ours, other) for other in inputs):
            also = "" if path_of_ours == target else f", which is written until {path} is complete,"
            raise ConfigError(f"--output: {path_of_ours}{also} is also read; write the results to another file")


def _is_same(path: Path, other: Path | int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.stat(other))
    except OSError:  # what cannot be read is reported where it is read
        return False
