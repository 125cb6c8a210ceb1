"""The lines of a file or a pipe as they arrive: compression, encoding, and lines of limited length."""

from __future__ import annotations

import codecs
import gzip
import sys
import zlib
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import BinaryIO

from fomo_stream.errors import ConfigError, FomoError, SchemaError, needs_extra
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.json_objects import OBJECTS, OneEachLine

Read = Callable[[int], bytes]
Note = Callable[[str], None]  # writes one line for the user

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
CHUNK_BYTES = 2**20  # asked of a stream in one read
BLANK_BYTES = b" \t\r\n"

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF8 = b"\xef\xbb\xbf"  # byte order mark
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# UTF-32, ZIP and Excel, PDF, bzip2, xz: also where a file is too short to be judged by its bytes.
_REFUSED = (codecs.BOM_UTF32_LE, b"PK\x03\x04", b"%PDF", b"BZh", b"\xfd7zX")
_MARKS = (_GZIP, _ZSTD, _UTF8, *_UTF16, *_REFUSED)
# Bytes that are rare in text; Hive has 1 between cells.
_CONTROL_BYTES = bytes({*range(32), 127} - set(b"\x01\t\n\v\f\r\x1a\x1b"))
_MAX_CONTROL_SHARE = 0.05  # in the beginning of a text; a logger that was cut off may leave some zeros
_MIN_JUDGED_BYTES = 256  # a shorter beginning is not judged by its bytes


def discard_note(_text: str) -> None:
    """Discard a note."""


def plain_text(stream: BinaryIO, name: str) -> Read:
    """Return a function that reads the text of `stream` as it arrives, in UTF-8 and without a byte order mark.

    Compressed text is decompressed, UTF-16 decoded, and JSON objects that are not one in each line become lines.

    Raises SchemaError for other formats, ConfigError if the compressed data is damaged, and, while it is read,
    FomoError if the system cannot read further.
    """
    # A pipe's read1 returns what is there now; a plain read would wait for the whole chunk.
    source = _PeekedStream(_with_named_errors(getattr(stream, "read1", stream.read), name))
    if source.first.startswith(_GZIP):
        source = _PeekedStream(_with_named_errors(gzip.GzipFile(fileobj=source, mode="rb").read1, name))  # type: ignore[call-overload]  # it only reads
    elif source.first.startswith(_ZSTD):
        with needs_extra(f"reading {name}"):
            file = import_module(ZSTD).ZstdFile(source)
        source = _PeekedStream(_with_named_errors(file.read1, name))
    if source.first.startswith(_UTF16) and not source.first.startswith(_REFUSED):
        source = _PeekedStream(_from_utf16(source.read))
    first = source.first
    controls = len(first) - len(first.translate(None, _CONTROL_BYTES))
    if first.startswith(_REFUSED) or (len(first) >= _MIN_JUDGED_BYTES and controls > _MAX_CONTROL_SHARE * len(first)):
        raise SchemaError(f"{name} is not text in UTF-8", "save or unpack it as CSV or JSON lines in UTF-8")
    if first.startswith(_UTF8):
        source.read(len(_UTF8))
    source = _PeekedStream(source.read, is_text=True)
    return OneEachLine(source.read, name).read if OBJECTS.match(source.first) else source.read


def _from_utf16(read: Read) -> Read:
    """Return a function that reads the same text in UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")

    def converted(size: int) -> bytes:
        while chunk := read(size):
            if text := decoder.decode(chunk):
                return text.encode(errors="replace")
        return decoder.decode(b"", final=True).encode()

    return converted


def _with_named_errors(read: Read, name: str) -> Read:
    """Return the same function, with errors that name the file."""

    def checked(size: int) -> bytes:
        try:
            return read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ConfigError(f"cannot read {name}: {error}", "the compressed file is damaged") from None
        except OSError as error:
            raise FomoError(f"cannot read {name}: {error.strerror}") from None
        except Exception as error:
            if type(error).__name__ == "ZstdError":
                raise ConfigError(f"cannot read {name}: {error}", "the compressed file is damaged") from None
            raise

    return checked


class _PeekedStream:
    """A stream whose first bytes are read already: as many as show its format.

    is_text: as many as show whether it has JSON objects that are not one in each line.
    """

    def __init__(self, read: Read, is_text: bool = False) -> None:
        self._read = read
        self.first = b""
        while self._is_open(is_text) and (chunk := read(CHUNK_BYTES)):
            self.first += chunk

    def _is_open(self, is_text: bool) -> bool:
        if is_text:
            return len(self.first) < CHUNK_BYTES and not self.first.strip(BLANK_BYTES + b"[{")
        return any(mark.startswith(self.first) for mark in _MARKS)

    def read(self, size: int) -> bytes:
        taken, self.first = self.first[:size], self.first[size:]
        return taken or self._read(size)


class LineSource:
    """The lines of what `read` returns, in memory bounded by one line of `MAX_RECORD_BYTES`.

    `drained` is True when the next line would have to wait for more input, so results should be written now.
    A line that is too long is cut just above the limit, so that decoding it reports `too_large`.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lines: deque[bytes] = deque()
        self._rest, self._skipping, self._ended = b"", False, False
        self.number = 0  # of the last line taken, counted from 1

    @property
    def drained(self) -> bool:
        return not self._lines

    def __iter__(self) -> LineSource:
        return self

    def __next__(self) -> bytes:
        self._fill()
        if not self._lines:
            raise StopIteration
        self.number += 1
        return self._lines.popleft()

    def peek(self) -> bytes:
        """Return the next line that is not blank, without taking it; empty at the end. Skip the blank lines before."""
        self._fill()
        while self._lines and not self._lines[0].strip(BLANK_BYTES):
            next(self)
            self._fill()
        return self._lines[0] if self._lines else b""

    def ahead(self, n: int, max_bytes: int) -> list[bytes]:
        """Return the next lines without taking them: at most n, and no further line after `max_bytes`."""
        lines: list[bytes] = []
        while len(lines) < n and max_bytes > 0:
            self._fill(len(lines) + 1)
            if len(lines) == len(self._lines):
                break
            lines.append(self._lines[len(lines)])
            max_bytes -= len(lines[-1])
        return lines

    def _fill(self, n: int = 1) -> None:
        while len(self._lines) < n and not self._ended:
            chunk = self._read(CHUNK_BYTES)
            self._ended = not chunk
            *complete, self._rest = (self._rest + chunk).split(b"\n")
            if self._ended and self._rest:
                complete.append(self._rest)
            if complete and self._skipping:
                complete.pop(0)
                self._skipping = False
            if self._skipping:
                self._rest = b""
            elif len(self._rest) > MAX_RECORD_BYTES and not self._ended:
                complete.append(self._rest[: MAX_RECORD_BYTES + 1])
                self._rest, self._skipping = b"", True
            self._lines.extend(complete)
