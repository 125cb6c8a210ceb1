"""Reads labels of records: verdicts of people or other systems, which scores are measured against.

They come from a field of the records, from a file, or from a topic as the service reads it by `--feedback`. A label of
a file or a topic names its record by offset (in a file: by number), or by key. By key, a label in a file is about all
records with this key; a label in a topic is about the last record with this key that is not later than the label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fomo_stream.errors import SchemaError
from fomo_stream.records.files import RecordFile, open_records
from fomo_stream.records.inference import is_missing, key_of
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, UNREADABLE, Sample
from fomo_stream.wording import counted

_VERDICTS: dict[Any, int] = {
    **dict.fromkeys((0, "0", "0.0", "false", "no", "normal", "inlier", "benign", "ok"), INLIER),
    **dict.fromkeys((1, "1", "1.0", "true", "yes", "anomaly", "anomalous", "abnormal", "outlier", "attack"), OUTLIER),
}
_SIGNED: dict[Any, int] = {**dict.fromkeys((1, "1", "1.0"), INLIER), **dict.fromkeys((-1, "-1", "-1.0"), OUTLIER)}


def verdict_of(value: Any, is_signed: bool = False) -> int:
    """Return OUTLIER, INLIER, UNKNOWN without a value, or UNREADABLE. is_signed: -1 is an outlier, and 1 an inlier.

    >>> [verdict_of(value) for value in (True, 0, 1.0, "False", "1", None, 2, "yes", [])]
    [1, 0, 1, 0, 1, -1, -2, 1, -2]
    >>> [verdict_of(value, is_signed=True) for value in (1, -1, "-1", 0)]
    [0, 1, 1, -2]
    """
    if is_missing(value) or value != value:
        return UNKNOWN
    try:
        verdict = (_SIGNED if is_signed else _VERDICTS).get(value.strip().lower() if isinstance(value, str) else value)
    except TypeError:  # a list or an object
        verdict = None
    return UNREADABLE if verdict is None else verdict


def is_signed(values: Collection[Any]) -> bool:
    """Return whether these are labels as in scikit-learn: -1 and 1, or -1 alone."""
    verdicts = {verdict_of(value, is_signed=True) for value in values} - {UNKNOWN}
    return OUTLIER in verdicts and UNREADABLE not in verdicts


def check_label_values(field: str, values: Collection[Any]) -> None:
    """Raise SchemaError if none of the values of a field is a label, or if it has other values and no normal record."""
    verdicts = set(map(verdict_of, values))
    is_known = INLIER in verdicts or (OUTLIER in verdicts and UNREADABLE not in verdicts)
    if values and not is_signed(values) and not is_known:
        other = next((str(value)[:40] for value in values if verdict_of(value) == UNREADABLE), None)
        has = "have no such field, or no value in it" if other is None else f"have other values, such as {other!r}"
        raise SchemaError(f"--label {field}: records {has}; name a field that is true or false, 1 or 0, or 1 or -1")


def label_notes(field: str, values: Collection[Any]) -> Iterator[str]:
    """Yield notes about labels with these values that a user may not expect."""
    if is_signed(values):
        yield f"-1 in {field} is an outlier, and 1 is normal, as scikit-learn has them"
    elif any(map(is_missing, values)):
        yield f"records whose label {field} is empty are neither outliers nor normal ones; 0 is a normal one"


@dataclass(frozen=True)
class Labels:
    """The labels of one partition: verdicts by offset, and by key."""

    offsets: dict[int, int]
    keys: Mapping[bytes, int]

    def applied(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples with their labels. A label by offset takes precedence over one by key."""
        for sample in samples:
            verdict = self.offsets.get(sample.offset)
            if verdict is None and sample.key is not None and self.keys:
                verdict = self.keys.get(key_bytes(sample.key))
            yield sample if verdict is None else sample._replace(label=verdict)


NO_LABELS = Labels({}, {})


def key_bytes(key: bytes | str) -> bytes:
    return key.encode(errors="surrogatepass") if isinstance(key, str) else key


class LabelTable:
    """Collects the labels of all partitions; the last label of a record or a key counts.

    spans: first and end offset of the replayed range of each partition.
    """

    def __init__(self, source: str, spans: Mapping[int, tuple[int, int]]) -> None:
        self._source, self._spans = source, spans
        self._verdicts: dict[tuple[int, int] | bytes, int] = {}  # by partition and offset, or by key
        self._contradicted: set[tuple[int, int] | bytes] = set()
        self._nowhere, self._bad, self._first_bad = 0, 0, ""

    def add(self, record: tuple[int, int] | bytes | None, verdict: int) -> None:
        """Add a label of the record at a partition and offset, or of all records with a key; None: of no record."""
        if record is None:
            self._nowhere += 1
        elif self._verdicts.pop(record, verdict) != verdict:
            self._contradicted.add(record)
        if record is not None:
            self._verdicts[record] = verdict

    def refuse(self, place: str, reason: str) -> None:
        """Note a record that is not a label."""
        self._bad += 1
        self._first_bad = self._first_bad or f"{place}: {reason}"

    def finish(self) -> tuple[dict[int, Labels], list[str]]:
        """Return the labels by partition, and sentences about anything unusual. Raises SchemaError without labels."""
        if not (self._verdicts or self._nowhere):
            reason = f"; the first line that is not a label: {self._first_bad}" if self._bad else ""
            raise SchemaError(f"{self._source} has no labels{reason}")
        keys = {record: verdict for record, verdict in self._verdicts.items() if isinstance(record, bytes)}
        labels = {partition: Labels({}, keys) for partition in self._spans}
        counts = Counter(keys.values())
        for record, verdict in self._verdicts.items():
            start, end = (0, 0) if isinstance(record, bytes) else self._spans.get(record[0], (0, 0))
            if not isinstance(record, bytes) and start <= record[1] < end:
                labels[record[0]].offsets[record[1]] = verdict
                counts[verdict] += 1
        return labels, list(self._notes(len(self._verdicts) - counts.total() + self._nowhere, counts))

    def _notes(self, outside: int, verdicts: Counter[int]) -> Iterator[str]:
        if self._bad:
            records = counted(self._bad, "record")
            yield f"Not readable as labels, so left out: {records} of {self._source}, the first at {self._first_bad}."
        if self._contradicted:
            records = counted(len(self._contradicted), "record")
            yield f"{self._source} has labels that contradict each other about {records}: the last one counts."
        if outside:
            yield f"Left out of {self._source}: {counted(outside, 'label')} about no record of the range."
        if len(verdicts) == 1:
            kind, other = ("outlier", "normal") if OUTLIER in verdicts else ("normal", "outlying")
            yield (
                f"All {verdicts.total():,} labels of {self._source} call a record {kind}: without labels of {other} "
                "records, measures that compare the two are left out."
            )
        elif not verdicts:
            yield f"No label of {self._source} is about a record of the range: there is nothing to measure scores by."


def read_label_file(path: Path, spans: Mapping[int, tuple[int, int]]) -> tuple[dict[int, Labels], list[str]]:
    """Return the labels of a file of CSV or JSON lines, by partition, and notes.

    A record has `outlier`, and `offset` (and `partition`, if there are several) or `key`. Raises ConfigError if the
    file cannot be read, and SchemaError if it has no labels.
    """
    table = LabelTable(path.name, spans)
    with open_records(path) as stream:
        file = RecordFile(stream, name=str(path), text=("key",))
        if file.format == "csv" and not ("outlier" in file.header and {"offset", "key"} & set(file.header)):
            raise SchemaError(f"{path} needs the columns outlier, and offset or key; it has {', '.join(file.header)}")
        lines = list(file)
    signed = is_signed([line.record.get("outlier") for line in lines if line.record is not None])
    for line in lines:
        try:
            if line.record is None:
                raise ValueError(str(line.error))
            table.add(*_parse_label_line(line.record, len(spans), signed))
        except ValueError as error:  # also RecordError
            table.refuse(f"line {line.number}", str(error))
    labels, notes = table.finish()
    return labels, [*(label_notes(path.name, [-1]) if signed else ()), *notes]


def _parse_label_line(
    record: Mapping[str, Any], n_partitions: int, signed: bool
) -> tuple[tuple[int, int] | bytes, int]:
    """Return the record or key that a line of a file is about, and the verdict. Raises ValueError for other lines."""
    outlier = verdict_of(record.get("outlier"), signed)
    if outlier < 0:
        raise ValueError("outlier must be true or false, or 1 or 0")
    offset, key, partition = record.get("offset"), key_of(record, "key"), record.get("partition")
    if offset is not None:
        if partition is None and n_partitions > 1:
            raise ValueError("the topic has several partitions, so a label by offset needs the partition")
        number = 0 if partition is None else _whole_number("partition", partition)
        return (number, _whole_number("offset", offset)), outlier
    if key is None:
        raise ValueError("it names no record by offset or key")
    return key_bytes(key), outlier


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63 or value % 1:
        raise ValueError(f"{name} must be a whole number, 0 or more")
    return int(value)
