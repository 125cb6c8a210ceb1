"""Makes the plan of a replay before anything is scored: its records, settings, features and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from itertools import chain, islice, repeat
from typing import Any, Literal

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.reference import Reference
from fomo_stream.errors import RecordError
from fomo_stream.kafka.bounds import Range, parse_bounds
from fomo_stream.limits import INFER_RECORDS
from fomo_stream.loading import set_reference, unpack_reference
from fomo_stream.partition.rules import Rules
from fomo_stream.records.inference import choose_features, key_of, roles_of, text_columns
from fomo_stream.records.schema import Schema, look_up
from fomo_stream.records.times import END_MS, known_time, to_milliseconds
from fomo_stream.replaying.blocks import INLIER, UNKNOWN, IsStopped, Sample, Source
from fomo_stream.replaying.ground_truth import (
    NO_LABELS,
    Labels,
    check_label_values,
    is_signed,
    label_notes,
    read_label_file,
    verdict_of,
)
from fomo_stream.replaying.tables import InMemory, Table, TextTable, check_columns, format_of, open_table
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.rule_spec import zone

MAX_LABEL_VALUES = 1000  # different values of a label that are examined
MAX_SAMPLE_BATCHES = 20  # of INFER_RECORDS records: the search for features ends after so many


@dataclass(frozen=True)
class Plan:
    """The records to replay, and the settings. It can be sent to other processes; see `part`."""

    settings: ReplaySettings  # with those that the group agreed on
    schema: Schema
    source: Source
    has_labels: bool
    axis: Literal["time", "record"]
    notes: tuple[str, ...]  # sentences; the first says whether results equal the live output
    now_ms: int  # when the plan was made, milliseconds since 1970; END_MS for records of the future
    good: Source | bytes | None = None  # with the records of a range of --reference, or what a group keeps of them
    ranges: Mapping[int, Range] = field(default_factory=dict)  # of a topic

    @property
    def begin_ms(self) -> int:
        """The begin of the range, milliseconds since 1970, if it is given as a time; else 0."""
        begin, _ = parse_bounds(self.settings.from_, "", self.settings.last, self.now_ms)
        return begin.time_ms or 0

    def refer(self, settings: ReplaySettings, detector: Detector, schema: Schema) -> Reference:
        """Give a detector the reference."""
        span = settings.reference_span
        if span is None or self.good is None:
            return set_reference(settings, detector, schema)
        if isinstance(self.good, bytes):
            return unpack_reference(settings, detector, self.good)
        is_whole, samples = self.good.kind == "topic", map(self.good.read, self.good.partitions, repeat(lambda: False))
        good = (sample for sample in chain.from_iterable(samples) if is_whole or sample.timestamp in span)
        return set_reference(settings, detector, schema, good)

    def part(self, partition: int) -> Plan:
        """Return the plan with only the parts that are needed to replay this partition."""
        return replace(self, source=self.source.part(partition))


@dataclass(frozen=True)
class FileSource:
    """The records of a file or of data in memory, numbered from 0; lines that cannot be read are numbered, too.

    key, time, label: fields with the series, the time and the label of a record. zone: of times without one. is_signed:
    whether labels are -1 and 1, as in scikit-learn.
    """

    name: str
    table: Table
    key: str | None = None
    time: str | None = None
    label: str | None = None
    zone: tzinfo = UTC
    is_signed: bool = False
    labels: Labels = NO_LABELS
    partitions: tuple[int, ...] = (0,)
    kind: Literal["file", "memory"] = "file"

    def start(self, partition: int) -> int:
        return 0

    def total(self, partition: int) -> int | None:
        return self.table.count

    def part(self, partition: int) -> FileSource:
        return self

    def read(self, partition: int, is_stopped: IsStopped) -> Iterator[Sample]:
        start = 0
        for chunk in self.table.chunks():
            if is_stopped():
                return
            yield from self.labels.applied([self._sample(offset, row) for offset, row in enumerate(chunk, start)])
            start += len(chunk)

    def _sample(self, offset: int, row: dict[str, Any] | RecordError) -> Sample:
        if isinstance(row, RecordError):
            return Sample(offset, None, None, {}, row)
        return Sample(
            offset,
            None if self.time is None else known_time(to_milliseconds(look_up(row, self.time), self.zone)),
            None if self.key is None else key_of(row, self.key),
            row,
            None,
            UNKNOWN if self.label is None else verdict_of(look_up(row, self.label), self.is_signed),
        )


def plan_of_file(settings: ReplaySettings, now_ms: int, data: InMemory | None) -> Plan:
    """Return the plan for a file, or for data in memory instead of it. Raises ConfigError or SchemaError."""
    path = settings.file
    assert path is not None
    notes: list[str] = [_file_start(settings)]
    roles = roles_of(settings, settings.label)
    format = format_of(path, settings.format, notes.append) if data is None else "jsonl"
    if data is None:
        table = open_table(path, format, text_columns(settings, settings.key), roles, **settings.csv_settings())
        notes += table.notes if isinstance(table, TextTable) else ()
    else:
        table = data.table
    check_columns(table, path.name, [*roles, *(settings.features or ()), *settings.categorical])
    kind: Literal["file", "memory"] = "file" if data is None else "memory"
    place = zone(settings.timezone)
    source = FileSource(path.name, table, settings.key, settings.time, settings.label, place, kind=kind)
    sample = _first_records(source, INFER_RECORDS)
    schema, _ = choose_features(settings, format, sample, source.name, roles, notes.append, settings.time is None)
    if settings.time is not None:
        times = [known_time(to_milliseconds(look_up(record, settings.time), place)) for record in sample]
        if 2 * sum(time is not None and time > now_ms for time in times) > len(times):  # simulated, or made anonymous
            now_ms = END_MS
            notes.append(f"the times in {settings.time} are in the future, and count as they are")
    if settings.labels_file is not None:
        labels, label_file_notes = read_label_file(settings.labels_file, {0: (0, table.count)})
        source = replace(source, labels=labels[0])
        notes += label_file_notes
    if settings.label is not None:
        values = _label_values(source, settings.label)
        check_label_values(settings.label, values)
        source = replace(source, is_signed=is_signed(values))
        notes += label_notes(settings.label, values)
    if settings.is_given("group"):
        notes.append("--group has no effect on a file: the settings given here count.")
    notes += Rules.of(settings).warnings(schema, settings.key is not None, settings.time is not None)
    if settings.mute_key and settings.key is None:
        notes.append("--mute-key mutes nothing: records of a file have keys only by --key.")
    settings = settings.with_reference_of(sample.timestamp for sample in source.read(0, lambda: False))
    axis: Literal["time", "record"] = "record" if settings.time is None else "time"
    return Plan(settings, schema, source, has_labels(settings), axis, tuple(map(as_sentence, notes)), now_ms, source)


def _file_start(settings: ReplaySettings) -> str:
    start = "The file is replayed from its first record."
    if settings.seed_context is not None or settings.reference is not None:
        return start
    return f"{start} The first {settings.min_context:,} records only warm the detector up and have no score."


def _first_records(source: FileSource, n: int) -> list[dict[str, Any]]:
    """Return the first n records that can be read."""
    samples = islice(source.read(0, lambda: False), MAX_SAMPLE_BATCHES * n)
    return [sample.fields for sample in islice((sample for sample in samples if sample.error is None), n)]


def _label_values(source: FileSource, label: str) -> list[Any]:
    """Return different values of the labels, up to the chunk with the first normal one."""
    distinct: dict[str, Any] = {}
    for chunk in source.table.chunks():
        values = [look_up(row, label) for row in chunk if not isinstance(row, RecordError)]
        distinct |= {str(value): value for value in values[: MAX_LABEL_VALUES - len(distinct)]}
        if INLIER in map(verdict_of, values):
            break
    return list(distinct.values())


def check_label(settings: ReplaySettings, records: Iterable[Mapping[str, Any]]) -> None:
    """Raise SchemaError if none of the first records has a label in the field of --label."""
    if settings.label is not None:
        labels = [look_up(record, settings.label) for record in islice(records, INFER_RECORDS)]
        check_label_values(settings.label, labels)


def has_labels(settings: ReplaySettings) -> bool:
    return any(source is not None for source in (settings.label, settings.labels_file, settings.labels_topic))


def as_sentence(text: str) -> str:
    """Return a text with a capital letter at its begin (a flag stays) and a full stop at its end."""
    return text[:1].upper() + text[1:].rstrip(".") + ("" if text.endswith("?") else ".")
