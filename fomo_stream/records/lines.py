"""The lines of a file or a pipe as they arrive: compression, encoding, and lines of limited length."""

from __future__ import annotations

import codecs
import zlib
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from fomo_stream.errors import ConfigError, FomoError, SchemaError
from fomo_stream.limits import MAX_RECORD_BYTES

Read = Callable[[int], bytes]
Note = Callable[[str], None]  # writes one line for the user

CHUNK_BYTES = 2**20  # asked of a stream in one read
BLANK = b" \t\r\n"

_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31  # of zlib
_UTF8 = b"\xef\xbb\xbf"
# UTF-32 comes first, because its mark begins as that of UTF-16.
_ENCODINGS = {
    b"\xff\xfe\x00\x00": "utf-32", b"\x00\x00\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"
}  # fmt: skip
_REFUSED = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; save the sheet as CSV",
    b"%PDF": "a PDF document; save its table as CSV",
    b"PAR1": "a Parquet file; convert it to CSV or JSON lines",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard; decompress it, for example with zstd -dc",
    b"BZh": "compressed by bzip2; decompress it, for example with bzip2 -dc",
    b"\xfd7zX": "compressed by xz; decompress it, for example with xz -dc",
}
_MARKS = (_GZIP, _UTF8, *_ENCODINGS, *_REFUSED)
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1a\x1b"))  # bytes that text hardly ever has
_MOST_CONTROLS = 0.05  # share of them in the beginning of a text; a logger that was cut off may leave some zeros
_LEAST_BYTES = 256  # of a beginning that is judged by its bytes


def silent(_text: str) -> None:
    """A note that nobody reads."""


def plain_text(stream: BinaryIO, name: str, note: Note = silent) -> Read:
    """A function that reads the text of `stream` as UTF-8 without a byte order mark, as it arrives.

    gzip is decompressed; UTF-16 and UTF-32 are known by their byte order mark. Bytes of other encodings stay as they
    are. Raises SchemaError for other formats, ConfigError if the compressed data is damaged, and, while it is read,
    FomoError if the system cannot read on.
    """
    # A pipe's read1 returns what is there now; a plain read would wait for the whole chunk.
    source = _Begun(_checked(getattr(stream, "read1", stream.read), name))
    if source.first.startswith(_GZIP):
        source = _Begun(_decompressed(source, name))
    for mark, kind in _REFUSED.items():
        if source.first.startswith(mark):
            raise SchemaError(f"{name} is {kind}")
    for mark, encoding in _ENCODINGS.items():
        if source.first.startswith(mark):
            note(f"{name} is {encoding.upper()}; the results are UTF-8")
            return _decoded(source, encoding)
    if source.first.startswith(_UTF8):
        source.read(len(_UTF8))
    _check_text(source.first, name)
    return source.read


def _check_text(first: bytes, name: str) -> None:
    """Raise SchemaError if a file that begins with these bytes is no text."""
    if len(first) < _LEAST_BYTES:
        return
    for high, low, encoding in ((first[1::2], first[::2], "UTF-16LE"), (first[::2], first[1::2], "UTF-16BE")):
        if high.count(0) > 0.5 * len(high) and not low.count(0):
            remedy = f"save it as UTF-8, for example with iconv -f {encoding} -t UTF-8"
            raise SchemaError(f"{name} is UTF-16 without a byte order mark; {remedy}")
    if len(first) - len(first.translate(None, _CONTROLS)) > _MOST_CONTROLS * len(first):
        raise SchemaError(f"{name} is no text; it must be CSV or JSON lines")


def _checked(read: Read, name: str) -> Read:
    """The same function; errors of the system name the file."""

    def checked(size: int) -> bytes:
        try:
            return read(size)
        except OSError as error:
            if error.errno is None:  # not of the system, but of damaged data
                raise
            raise FomoError(f"cannot read {name}: {error.strerror}") from None

    return checked


class _Begun:
    """A stream whose first bytes are known."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.first = b""
        while any(mark.startswith(self.first) for mark in _MARKS) and (more := read(CHUNK_BYTES)):
            self.first += more

    def read(self, size: int = -1) -> bytes:
        if not self.first:
            return self._read(size)
        found, self.first = (self.first, b"") if size < 0 else (self.first[:size], self.first[size:])
        return found


def _decompressed(source: _Begun, name: str) -> Read:
    decoder = zlib.decompressobj(_GZIP_FORMAT)
    rest = b""

    def read(size: int) -> bytes:
        nonlocal decoder, rest
        while True:
            raw = rest or source.read(size)
            try:
                if decoder.eof:  # another compressed file may follow, after zeros
                    raw = raw.lstrip(b"\0") if raw else raw
                    decoder = zlib.decompressobj(_GZIP_FORMAT) if raw else decoder
                text = decoder.decompress(raw, size)
            except zlib.error as error:
                raise ConfigError(f"cannot read {name}: {error}; the compressed file is damaged") from None
            rest = decoder.unconsumed_tail or (decoder.unused_data if raw else b"")
            if text or (not raw and decoder.eof):
                return text
            if not raw:
                raise ConfigError(f"cannot read {name}: it ends too early; the compressed file is damaged")

    return read


def _decoded(source: _Begun, encoding: str) -> Read:
    decoder = codecs.getincrementaldecoder(encoding)("replace")

    def read(size: int) -> bytes:
        while True:
            raw = source.read(size)
            text = decoder.decode(raw, final=not raw)
            if text or not raw:
                return text.encode()

    return read


class LineSource:
    """The lines that `read` gives, in memory bounded by one line of `MAX_RECORD_BYTES`.

    `drained` is True when the next line would have to wait for more input, so results should be written now.
    A line that is too long is cut just above the limit, so that decoding it reports `too_large`.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._skipping = False
        self._ended = False
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
        """The next line that is not blank, without taking it; empty at the end. Blank lines before it are taken."""
        self._fill()
        while self._lines and not self._lines[0].strip(BLANK):
            next(self)
            self._fill()
        return self._lines[0] if self._lines else b""

    def _fill(self) -> None:
        while not self._lines and not self._ended:
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
