"""Avro files: read their records in bounded memory, whatever sizes a file claims."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from typing import Any, BinaryIO, cast

from fastavro import schemaless_reader

from fomo_stream.errors import RecordError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records.avro import NOT_AVRO, AvroWriter
from fomo_stream.records.lines import ZSTD
from fomo_stream.records.writer_schema import Kind, SchemaText

MAX_PART_BYTES = 64 << 20  # of a part of the file, compressed or not
WINDOW_BYTES = 2 * MAX_RECORD_BYTES  # of a block is read at once, so that lists in records are bounded
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "deflate": lambda: zlib.decompressobj(-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
    "zstandard": lambda: import_module(ZSTD).ZstdDecompressor(),
}


def read_container(stream: BinaryIO) -> Iterator[dict[str, Any] | RecordError]:
    """Read the records of an Avro file, block by block. After an error in a block, go on with the next one.

    Raises RecordError if the file cannot be read at all, or while it is read, if it cannot be read further.
    """
    with _translated_errors():
        file = _File(stream)
        writer = AvroWriter(SchemaText(Kind.AVRO, file.about["avro.schema"].decode()), "")
    return _records_of(file, writer)


def count_in_container(stream: BinaryIO) -> int:
    """Return the number of records that an Avro file claims. Raises RecordError."""
    with _translated_errors():
        return sum(count for count, _ in _File(stream))


def _records_of(file: _File, writer: AvroWriter) -> Iterator[dict[str, Any] | RecordError]:
    with _translated_errors():
        for count, block in file:
            data = _decompressed(file.codec, block)
            begin, content = 0, BytesIO(data[:WINDOW_BYTES])
            for _ in range(count):
                if (position := content.tell()) > MAX_RECORD_BYTES:
                    begin, position = begin + position, 0
                    content = BytesIO(data[begin : begin + WINDOW_BYTES])
                try:
                    fields = writer.read_next(content)
                    if content.tell() == position:
                        raise RecordError(NOT_AVRO, "a record has no bytes, so that nothing bounds how many there are")
                except RecordError as error:
                    yield error
                    break
                yield fields if isinstance(fields, dict) else RecordError("not_an_object", "it is not a record")


class _File:
    """The blocks of a file or a pipe: the number of records of each, and its bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        if self.read(4) != b"Obj\1":
            raise ValueError
        about: Any = schemaless_reader(cast(BinaryIO, self), {"type": "map", "values": "bytes"}, None)
        self.about: dict[str, bytes] = about
        self.codec = self.about.get("avro.codec", b"null").decode()
        self._mark = self.read(16)

    def read(self, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end."""
        if size > MAX_PART_BYTES:
            raise RecordError(NOT_AVRO, f"a part of it has more than {MAX_PART_BYTES >> 20} MiB")
        return self._stream.read(size)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while first := self.read(1):
            count, block, mark = self._number(first), self.read(self._number(self.read(1))), self.read(16)
            if mark != self._mark:
                raise EOFError
            yield count, block

    def _number(self, data: bytes) -> int:
        while data[-1] > 127:
            if len(data) == 10 or not (next_byte := self.read(1)):
                raise EOFError
            data += next_byte
        return int(schemaless_reader(BytesIO(data), "long", None))  # type: ignore[arg-type]  # its types lack a bare long


def _decompressed(codec: str, block: bytes) -> bytes:
    """Decompress a block. Raises RecordError if it would become too large, and the errors of libraries."""
    if codec == "null":
        data: bytes | None = block
    elif codec == "snappy":  # the size comes first, a checksum is at the end
        snappy = import_module("cramjam").snappy
        is_small = snappy.decompress_raw_len(block[:-4]) <= MAX_PART_BYTES
        data = bytes(snappy.decompress_raw(block[:-4])) if is_small else None
    elif codec in _DECOMPRESSORS:
        data = _DECOMPRESSORS[codec]().decompress(block, MAX_PART_BYTES + 1)
    else:
        raise ValueError(f"it has the codec {codec[:60]}")
    if data is None or len(data) > MAX_PART_BYTES:
        raise RecordError(NOT_AVRO, f"a block of it has more than {MAX_PART_BYTES >> 20} MiB")
    return data


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn the errors of libraries into RecordError."""
    try:
        yield
    except (RecordError, OSError):
        raise
    except Exception as error:
        what = str(error) if isinstance(error, ImportError) or "codec" in str(error) else type(error).__name__
        raise RecordError(NOT_AVRO, f"it is not an Avro file, or is damaged ({what})") from None
