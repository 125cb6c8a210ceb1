"""Where a replay writes scored records: a file of JSON lines, a topic, or both."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from fomo_stream.errors import ConfigError
from fomo_stream.kafka.scored_topic import ScoredTopic
from fomo_stream.records.json_codec import encode
from fomo_stream.records.result import Result
from fomo_stream.replaying.blocks import Sample
from fomo_stream.settings.replay import ReplaySettings


class Sink:
    """Writes the scored records of one partition, each with the bytes that the service would produce.

    file: the part of this partition, see `join_parts`; topic: to send them to.
    """

    def __init__(self, settings: ReplaySettings, file: Path | None, topic: ScoredTopic | None) -> None:
        self._written = settings.result_field, settings.scores_only
        self._path, self._topic = file, topic
        self._file: BinaryIO | None = None

    def write(self, samples: Sequence[Sample], results: Sequence[Result]) -> None:
        """Write records with their results, in order. Raises ConfigError or BrokerError if that fails."""
        values = [self._value(sample, result) for sample, result in zip(samples, results, strict=True)]
        if self._path is not None:
            try:
                self._opened(self._path).write(b"".join(value + b"\n" for value in values))
            except OSError as error:
                raise _cannot_write(self._path, error) from None
        if self._topic is not None:
            for sample, value in zip(samples, values, strict=True):
                key = sample.key.encode(errors="surrogatepass") if isinstance(sample.key, str) else sample.key
                self._topic.send(key, value, sample.headers, sample.timestamp)

    def size(self) -> int:
        """Bytes of the file, which are then safe on the disk; all records sent to the topic are acknowledged."""
        if self._topic is not None:
            self._topic.flush()
        if self._path is None:
            return 0
        try:
            file = self._opened(self._path)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
        except OSError as error:
            raise _cannot_write(self._path, error) from None

    def resume(self, size: int) -> None:
        """Go on behind that many bytes of the file. Raises ConfigError if it has fewer."""
        if self._path is None:
            return
        try:
            self._file = open(self._path, "r+b" if size else "wb")  # noqa: SIM115 - until `close`
            if self._file.seek(0, os.SEEK_END) < size:
                raise ConfigError(f"{self._path} is shorter than when the replay was stopped; replay without --resume")
            self._file.truncate(size)
            self._file.seek(size)
        except FileNotFoundError:
            raise ConfigError(
                f"{self._path} is gone, which the replay had written before it was stopped; replay without --resume"
            ) from None
        except OSError as error:
            raise _cannot_write(self._path, error) from None

    def close(self) -> None:
        """Finish writing."""
        if self._topic is not None:
            self._topic.flush()
        if self._file is not None and self._path is not None:
            try:
                self._file.close()
            except OSError as error:
                raise _cannot_write(self._path, error) from None

    def begin(self) -> None:
        """Forget the file of an earlier replay. Raises ConfigError if it cannot be deleted."""
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                raise _cannot_write(self._path, error) from None

    def _opened(self, path: Path) -> BinaryIO:
        if self._file is None:
            self._file = open(path, "wb")  # noqa: SIM115 - until `close`
        return self._file

    def _value(self, sample: Sample, result: Result) -> bytes:
        return encode(sample.fields, result, *self._written, raw=sample.raw)


def part_of(path: Path, partition: int) -> Path:
    """The file that one partition writes, before all are joined to `path`."""
    return path.with_name(f"{path.name}.part-{partition}")


def join_parts(path: Path, partitions: Iterable[int], keep: bool = False) -> None:
    """Join the parts of the partitions, in their order, to one file, and delete them, or `keep` them to go on later."""
    parts = existing_parts(path, partitions)
    try:
        if len(parts) == 1 and not keep:
            parts[0].replace(path)
            return
        joined = path.with_name(f"{path.name}.joined")
        with open(joined, "wb") as out:
            for part in parts:
                with open(part, "rb") as stream:
                    shutil.copyfileobj(stream, out, 1 << 20)
        joined.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from None
    if not keep:
        delete_parts(path, partitions)


def existing_parts(path: Path, partitions: Iterable[int]) -> list[Path]:
    """The files of these partitions, where they are still there."""
    return [part for number in partitions if (part := part_of(path, number)).exists()]


def delete_parts(path: Path, partitions: Iterable[int]) -> None:
    """Delete the files of the partitions."""
    try:
        for part in existing_parts(path, partitions):
            part.unlink()
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write {path}: {error.strerror}; check the folder, its permissions and its space")
