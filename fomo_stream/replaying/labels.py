"""Labels of records: verdicts that people or other systems gave, to measure the scores by.

They come from a field of the records, from a file, or from a topic as the service reads it by `--feedback`. A label of
a file or a topic names its record by offset (in a file: by number), or by key. By key, a label in a file is about all
records with this key; a label in a topic is about the last record with this key that is not later than the label.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import RecordError, SchemaError
from fomo_stream.records.files import RecordFile, open_records
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, UNREADABLE, Sample
from fomo_stream.wording import counted

_VERDICTS = {0: INLIER, 1: OUTLIER, "0": INLIER, "1": OUTLIER, "false": INLIER, "true": OUTLIER}
NO_OFFSET = -1  # of a label by key whose record is not found yet


def verdict_of(value: Any) -> int:
    """OUTLIER, INLIER, UNKNOWN if there is no value, or UNREADABLE.

    >>> [verdict_of(value) for value in (True, 0, 1.0, "False", "1", None, 2, "yes", [])]
    [1, 0, 1, 0, 1, -1, -2, -2, -2]
    """
    if value is None:
        return UNKNOWN
    try:
        found = _VERDICTS.get(value.strip().lower() if isinstance(value, str) else value)
    except TypeError:  # a list or an object
        found = None
    return UNREADABLE if found is None else found


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of one partition: verdicts by offset and by the digest of a key, 9 bytes each."""

    offsets: NDArray[np.int64]  # (n,) ascending
    of_offsets: NDArray[np.int8]  # (n,)
    keys: NDArray[np.uint64]  # (m,) ascending
    of_keys: NDArray[np.int8]  # (m,)

    def __bool__(self) -> bool:
        return bool(len(self.offsets) or len(self.keys))

    def applied(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples with their labels. A label by offset counts more than one by key."""
        if not self:
            return samples
        verdicts = np.full(len(samples), UNKNOWN, dtype=np.int8)
        if len(self.keys):
            keyed = [at for at, sample in enumerate(samples) if sample.key is not None]
            digests = np.array([digest(samples[at].key or b"") for at in keyed], dtype=np.uint64)
            verdicts[keyed] = _found(self.keys, self.of_keys, digests)
        offsets = np.fromiter((sample.offset for sample in samples), np.int64, len(samples))
        by_offset = _found(self.offsets, self.of_offsets, offsets)
        verdicts = np.where(by_offset == UNKNOWN, verdicts, by_offset)
        return [
            sample if label == UNKNOWN else sample._replace(label=label)
            for sample, label in zip(samples, verdicts.tolist(), strict=True)
        ]


NO_LABELS = Labels(np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.uint64), np.zeros(0, np.int8))


def _found(places: NDArray[Any], verdicts: NDArray[np.int8], wanted: NDArray[Any]) -> NDArray[np.int8]:
    """The verdict at each wanted place, UNKNOWN where there is none."""
    if not len(places):
        return np.full(len(wanted), UNKNOWN, dtype=np.int8)
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    return np.where(places[at] == wanted, verdicts[at], UNKNOWN).astype(np.int8)


def digest(key: bytes | str) -> int:
    """A key of any length as 8 bytes, so that memory is bounded."""
    data = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


@dataclass
class _Column:
    """Verdicts about places, in the order in which they were given."""

    places: array[int]
    verdicts: array[int] = field(default_factory=lambda: array("b"))

    def add(self, place: int, verdict: int) -> None:
        self.places.append(place)
        self.verdicts.append(verdict)

    def final(self) -> tuple[NDArray[Any], NDArray[np.int8], int]:
        """Places, ascending, each with its last verdict, and how many places have contradicting verdicts.

        Labels whose place is not known are left out.
        """
        places = np.array(self.places, dtype=np.uint64 if self.places.typecode == "Q" else np.int64)
        verdicts = np.array(self.verdicts, dtype=np.int8)
        order = np.argsort(places, kind="stable")
        order = order[places[order] >= 0]
        places, verdicts = places[order], verdicts[order]
        is_same = places[1:] == places[:-1]
        differs = places[1:][is_same & (verdicts[1:] != verdicts[:-1])]
        is_last = np.append(~is_same, True) if len(places) else np.zeros(0, dtype=bool)
        return places[is_last], verdicts[is_last], len(np.unique(differs))


class LabelTable:
    """Collects the labels of all partitions. spans: the offsets of each partition that are replayed, start and end."""

    def __init__(self, source: str, spans: Mapping[int, tuple[int, int]]) -> None:
        self._source, self._spans = source, spans
        self._offsets: dict[int, _Column] = defaultdict(lambda: _Column(array("q")))
        self._keys = _Column(array("Q"))
        self._bad, self._first_bad = 0, ""

    def add(self, partition: int, offset: int, outlier: int) -> int:
        """A label of the record at an offset; returns the number of the label in its partition."""
        self._offsets[partition].add(offset, outlier)
        return len(self._offsets[partition].places) - 1

    def add_key(self, key: bytes | str, outlier: int) -> None:
        """A label of all records with a key."""
        self._keys.add(digest(key), outlier)

    def locate(self, partition: int, number: int, offset: int) -> None:
        """The record that a label is about is at this offset."""
        self._offsets[partition].places[number] = offset

    def refuse(self, place: str, reason: str) -> None:
        """A record that is no label."""
        self._bad += 1
        self._first_bad = self._first_bad or f"{place}: {reason}"

    def finish(self) -> tuple[dict[int, Labels], list[str]]:
        """The labels by partition, and sentences about anything unusual. Raises SchemaError if there is no label."""
        keys, of_keys, conflicts = self._keys.final()
        labels, outside, verdicts = {}, 0, [of_keys]
        if not len(keys) and not any(len(one.places) for one in self._offsets.values()):
            reason = f"; the first line that is none: {self._first_bad}" if self._bad else ""
            raise SchemaError(f"{self._source} has no labels{reason}")
        for partition in sorted({*self._spans, *self._offsets}):
            places, found, differ = self._offsets[partition].final()
            start, end = self._spans.get(partition, (0, 0))
            is_inside = (places >= start) & (places < end)
            outside += int((~is_inside).sum()) + self._offsets[partition].places.count(NO_OFFSET)
            conflicts += differ
            verdicts.append(found[is_inside])
            if partition in self._spans:
                labels[partition] = Labels(places[is_inside], found[is_inside], keys, of_keys)
        return labels, list(self._notes(conflicts, outside, np.concatenate(verdicts)))

    def _notes(self, conflicts: int, outside: int, verdicts: NDArray[np.int8]) -> Iterator[str]:
        if self._bad:
            records = counted(self._bad, "record")
            yield f"Not readable as labels, so left out: {records} of {self._source}, the first at {self._first_bad}."
        if conflicts:
            records = counted(conflicts, "record")
            yield f"{self._source} has labels that contradict each other about {records}: the last one counts."
        if outside:
            yield f"Left out of {self._source}: {counted(outside, 'label')} about no record of the range."
        classes = np.unique(verdicts)
        if len(classes) == 1:
            kind, other = ("outlier", "normal") if classes[0] == OUTLIER else ("normal", "outlying")
            yield (
                f"All {len(verdicts):,} labels of {self._source} call a record {kind}: without labels of {other} "
                "records, measures that compare the two are left out."
            )
        elif not len(classes):
            yield f"No label of {self._source} is about a record of the range: there is nothing to measure scores by."


def read_label_file(path: Path, spans: Mapping[int, tuple[int, int]]) -> tuple[dict[int, Labels], list[str]]:
    """The labels of a file of CSV or JSON lines, by partition, and notes.

    A record has `outlier`, and `offset` (and `partition`, if there are several) or `key`. Raises ConfigError if the
    file cannot be read, and SchemaError if it has no labels.
    """
    table = LabelTable(path.name, spans)
    with open_records(path) as stream:
        file = RecordFile(stream, name=str(path), text=("key",))
        if file.format == "csv" and not ("outlier" in file.header and {"offset", "key"} & set(file.header)):
            raise SchemaError(f"{path} needs the columns outlier, and offset or key; it has {', '.join(file.header)}")
        for line in file:
            try:
                _take(line.record, line.error, table, spans)
            except ValueError as error:  # also RecordError
                table.refuse(f"line {line.number}", str(error))
    return table.finish()


def _take(
    record: Mapping[str, Any] | None, error: RecordError | None, table: LabelTable, spans: Mapping[int, Any]
) -> None:
    """Put the label in one line of a file into the table. Raises ValueError if it is none."""
    if record is None:
        raise ValueError(str(error))
    outlier = verdict_of(record.get("outlier"))
    if outlier < 0:
        raise ValueError("outlier must be true or false, or 1 or 0")
    offset, key, partition = (record.get(name) for name in ("offset", "key", "partition"))
    if offset is not None:
        if partition is None and len(spans) > 1:
            raise ValueError("the topic has several partitions, so a label by offset needs the partition")
        table.add(0 if partition is None else _whole("partition", partition), _whole("offset", offset), outlier)
    elif key is not None:
        table.add_key(str(key), outlier)
    else:
        raise ValueError("it names no record by offset or key")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63 or value % 1:
        raise ValueError(f"{name} must be a whole number, 0 or more")
    return int(value)
