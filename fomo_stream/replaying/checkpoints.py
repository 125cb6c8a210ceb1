"""What `--resume` keeps: a file for the whole replay, and one for each partition, which is replaced as a whole.

`replay.json` describes the replay, see `resuming`. `scores.written` is there when the file of scored records is whole.
`partition-3.state` holds entries of a key and a value,
each with its length before it, and at the end a digest: `place` (JSON), `tally` (arrays, as NumPy stores them), and the
changelog entries of the detectors (`state/...`), as the state topic would have them. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fomo_stream.detector.changelog import Arrays, Entries
from fomo_stream.errors import ConfigError, StateError
from fomo_stream.replaying.writing import write_whole

MAGIC = b"fomo-stream replay 1\n"
LENGTHS = struct.Struct("<IQ")  # before an entry: of its key and its value
DIGEST_BYTES = 16
EVERY_S = 30.0
STATE = "state/"
WHOLE, WRITTEN = "replay.json", "scores.written"
ANOTHER = "use another folder to start a new replay"


class Saved(NamedTuple):
    """How far the replay of a partition was."""

    place: dict[str, Any]
    tally: Arrays
    entries: dict[str, bytes]


class Checkpoint:
    """The saved progress of one partition. Raises ConfigError where the folder cannot be written."""

    def __init__(self, folder: Path, partition: int) -> None:
        self._path = folder / f"partition-{partition}.state"
        self._entries: dict[str, bytes] = {}  # as a compacted log has them
        self._saved_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last one is old."""
        return time.monotonic() - self._saved_at >= EVERY_S

    @property
    def entries(self) -> Mapping[str, bytes]:
        """The entries that are saved."""
        return self._entries

    def load(self) -> Saved | None:
        """The saved progress; None if there is none. Raises StateError if the file is damaged."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"--resume: {self._path} cannot be read: {error.strerror}") from None
        try:
            found = dict(_parts(data))
            place = json.loads(found.pop("place"))
            with np.load(io.BytesIO(found.pop("tally")), allow_pickle=False) as arrays:
                tally = {name: arrays[name] for name in arrays.files}
        except (ValueError, KeyError, struct.error, OSError, EOFError) as error:
            raise StateError(
                f"{self._path} is damaged ({error}); delete it, and its partition is replayed from its start"
            ) from None
        self._entries = {key.removeprefix(STATE): value for key, value in found.items()}
        return Saved(place, tally, self._entries)

    def save(self, place: Mapping[str, Any], tally: Arrays, changes: Entries) -> None:
        """Replace the saved progress. changes: the entries that changed since it was saved or loaded last."""
        for key, value in changes.items():
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = value
        stream = io.BytesIO()
        np.savez(stream, **tally)  # type: ignore[arg-type]
        parts = {"place": json.dumps(place).encode(), "tally": stream.getvalue()}
        parts |= {STATE + key: value for key, value in self._entries.items()}
        write_whole(self._path, _joined(parts))
        self._saved_at = time.monotonic()


def _joined(parts: Mapping[str, bytes]) -> bytes:
    chunks = [MAGIC]
    for name, value in parts.items():
        key = name.encode()
        chunks += [LENGTHS.pack(len(key), len(value)), key, value]
    data = b"".join(chunks)
    return data + _digest(data)


def _parts(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The reverse of `_joined`. Raises ValueError, also for another digest."""
    content = data[:-DIGEST_BYTES]
    if not data.startswith(MAGIC) or _digest(content) != data[-DIGEST_BYTES:]:
        raise ValueError("it is not whole")
    at = len(MAGIC)
    while at < len(content):
        key_size, value_size = LENGTHS.unpack_from(content, at)
        start = at + LENGTHS.size + key_size
        yield content[start - key_size : start].decode(), content[start : start + value_size]
        at = start + value_size


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


# -- the whole replay ----------------------------------------------------------------------------------------------


def open_folder(folder: Path) -> dict[str, Any] | None:
    """The description of the replay in this folder, which is made; None if there is none. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = (folder / WHOLE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"--resume {folder}: {error.strerror}; name a folder that can be written") from None
    try:
        found = json.loads(text)
        if found["format"] != 1:
            raise ValueError(f"its format is {found['format']}")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--resume {folder}: {WHOLE} is not readable ({error}); {ANOTHER}") from None
    return dict(found)


def describe(folder: Path, description: Mapping[str, Any]) -> None:
    """Write the description of the replay into its folder."""
    write_whole(folder / WHOLE, json.dumps({"format": 1, **description}, indent=1).encode())


def has_scores(folder: Path, path: Path) -> bool:
    """Whether the replay in the folder was complete, with all scored records in this file. Raises ConfigError."""
    if not (folder / WRITTEN).exists():
        return False
    if not path.exists():
        raise ConfigError(f"{path} is gone, which the replay in {folder} had written; {ANOTHER}")
    return True


def mark_scores(folder: Path) -> None:
    """The file of all scored records is written; those of the partitions are no longer needed."""
    write_whole(folder / WRITTEN, b"")
