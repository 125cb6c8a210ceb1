"""Where a replay writes scored records: a file of JSON lines."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fomo_stream.errors import ConfigError
from fomo_stream.records.json_codec import encode
from fomo_stream.records.result import Result
from fomo_stream.replaying.blocks import Sample
from fomo_stream.settings.replay import ReplaySettings


class Sink:
    """Writes the scored records of one partition, each with the bytes that the service would produce.

    path: the file of this partition, which is replaced; see `join_parts`. Calls raise ConfigError if they fail.
    """

    def __init__(self, settings: ReplaySettings, path: Path) -> None:
        self._written = settings.result_field, settings.scores_only
        self._path = path

    def __enter__(self) -> Sink:
        with _explained(self._path):
            self._file = open(self._path, "wb")
        return self

    def __exit__(self, *_: object) -> None:
        with _explained(self._path):
            self._file.close()

    def write(self, samples: Sequence[Sample], results: Sequence[Result]) -> None:
        """Write records with their results, in order."""
        values = (self._value(sample, result) for sample, result in zip(samples, results, strict=True))
        with _explained(self._path):
            self._file.writelines(value + b"\n" for value in values)

    def _value(self, sample: Sample, result: Result) -> bytes:
        return encode(sample.fields, result, *self._written, raw=sample.raw)


def part_of(path: Path, partition: int) -> Path:
    """The file that one partition writes, before all are joined to `path`."""
    return path.with_name(f"{path.name}.part-{partition}")


def join_parts(path: Path, partitions: Iterable[int]) -> None:
    """Join the parts of the partitions, in their order, to one file, and delete them. Raises ConfigError."""
    parts = [part for number in partitions if (part := part_of(path, number)).exists()]
    joined = path.with_name(f"{path.name}.joined")
    with _explained(path):
        with open(joined, "wb") as out:
            for part in parts:
                with open(part, "rb") as stream:
                    shutil.copyfileobj(stream, out, 1 << 20)
        joined.replace(path)
        for part in parts:
            part.unlink()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; check the folder, its permissions and its space"
        ) from None
