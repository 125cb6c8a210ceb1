"""Records as bytes on the wire, for what clients do not write: no time, and header names that are not UTF-8.

Formats as in the protocol guide of Kafka: a produce request of version 7 with one record batch of version 2.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple


class Raw(NamedTuple):
    """A record to write. time: milliseconds since 1970; -1: none."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    time: int = -1


def _remainders() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


REMAINDERS = _remainders()


def crc32c(data: bytes) -> int:
    """The checksum of Castagnoli, which Python does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ REMAINDERS[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _number(value: int) -> bytes:
    """A signed number of any length, as of Protobuf's sint64."""
    value = (value << 1 ^ value >> 63) & (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _sized(data: bytes | None) -> bytes:
    return _number(-1) if data is None else _number(len(data)) + data


def _batch(records: Sequence[Raw]) -> bytes:
    first = records[0].time
    body = bytearray()
    for at, record in enumerate(records):
        headers = b"".join(_sized(name) + _sized(value) for name, value in record.headers)
        content = b"\0" + _number(record.time - first) + _number(at) + _sized(record.key) + _sized(record.value)
        content += _number(len(record.headers)) + headers
        body += _number(len(content)) + content
    times = first, max(record.time for record in records)
    counted = struct.pack(">hiqqqhii", 0, len(records) - 1, *times, -1, -1, -1, len(records)) + body
    content = struct.pack(">ibI", -1, 2, crc32c(counted)) + counted
    return struct.pack(">qi", 0, len(content)) + content


def produce(bootstrap: str, topic: str, partition: int, records: Sequence[Raw]) -> None:
    """Write records in one batch, to the only broker. Raises AssertionError if it does not take them."""
    batch = _batch(records)
    name = topic.encode()
    request = struct.pack(">hhih3s", 0, 7, 1, 3, b"raw") + struct.pack(">hhii", -1, 1, 10_000, 1)
    request += struct.pack(f">h{len(name)}sii", len(name), name, 1, partition) + struct.pack(">i", len(batch)) + batch
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        answer = connection.recv(size, socket.MSG_WAITALL)
    (code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)  # after ids, names and counts
    assert code == 0, f"the broker refuses the batch: error {code}"
