"""Where results go: standard output, or a file that gets its name only when it is complete."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.records.lines import Note

STANDARD_OUTPUT = "-"
PART = ".part"  # added to the name of a file that is not complete


class Output:
    """A place for results, as a context that gives a stream.

    A file is written under its name and `.part`. At the end of the context it replaces the file of that name. After an
    error or Ctrl-C it stays as it is, with a note, and the file of that name is not touched. What is no regular file,
    such as /dev/null or a named pipe, is written directly. Raises ConfigError, before anything is written, if `path` is
    one of `inputs`, a folder, or cannot be written.
    """

    def __init__(self, path: str, inputs: Sequence[Path | int], note: Note) -> None:
        self._path, self._note = path, note
        self._target = Path(os.path.realpath(path))
        self._part = self._target.with_name(self._target.name + PART)
        self._is_direct = path == STANDARD_OUTPUT or (os.path.exists(path) and not os.path.isfile(path))
        if path != STANDARD_OUTPUT:
            self._check(inputs)

    def __enter__(self) -> BinaryIO:
        if self._path == STANDARD_OUTPUT:
            if sys.stdout is None:
                raise ConfigError("standard output is closed; open it, or name a file with --output")
            self.stream: BinaryIO = sys.stdout.buffer
            return self.stream
        try:
            self.stream = open(self._path if self._is_direct else self._part, "wb")
            if not self._is_direct and os.path.exists(self._target):
                shutil.copymode(self._target, self._part)
        except OSError as error:
            where = self._path if self._is_direct else self._part
            raise ConfigError(f"--output {self._path}: {where} cannot be written: {error.strerror}") from None
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._path == STANDARD_OUTPUT:
            if kind is not None and issubclass(kind, OSError):
                # keep the interpreter from flushing the rest again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        try:
            self.stream.close()
        except OSError:  # a full disk
            if kind is None:
                self._leave()
                raise
        if kind is not None:
            self._leave()
        elif not self._is_direct:
            try:
                os.replace(self._part, self._target)
            except OSError as error:
                raise FomoError(
                    f"the results are complete in {self._part}, but cannot replace {self._path}: {error.strerror}"
                ) from None

    def _leave(self) -> None:
        """End without all results."""
        if self._is_direct:
            self._note(f"not complete: {self._path} has the results so far")
        elif self._part.stat().st_size:
            state = "is as it was" if os.path.exists(self._target) else "was not written"
            self._note(f"not complete: the results so far are in {self._part}; {self._path} {state}")
        else:
            self._part.unlink()

    def _check(self, inputs: Sequence[Path | int]) -> None:
        if os.path.isdir(self._target):
            raise ConfigError(f"--output {self._path} is a folder; name a file in it")
        if not os.path.isdir(self._target.parent):
            raise ConfigError(f"--output {self._path}: there is no folder {self._target.parent}; create it first")
        for own in (self._target, self._part):
            for other in inputs:
                if os.path.isfile(own) and _is_same(own, other):
                    also = "" if own == self._target else f", which is written until {self._path} is complete,"
                    raise ConfigError(f"--output: {own}{also} is also read; write the results to another file")


def _is_same(path: Path, other: Path | int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.stat(other))
    except OSError:  # what cannot be read is reported where it is read
        return False
