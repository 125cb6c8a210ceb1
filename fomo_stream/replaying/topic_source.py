"""Topics as sources of a replay: ranges of offsets, features and labels. Only this module of the folder needs Kafka."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Literal

from fomo_stream.errors import ConfigError, RecordError, SchemaError, TopicError
from fomo_stream.kafka.bounds import Range
from fomo_stream.kafka.group.agreed_reference import GroupReference
from fomo_stream.kafka.group.agreed_schema import recorded_group
from fomo_stream.kafka.ranges import read_items, read_range, reference_ranges, resolve_ranges, with_first_range
from fomo_stream.limits import INFER_RECORDS
from fomo_stream.partition.labels import Verdict, parse_label
from fomo_stream.partition.record import Pending
from fomo_stream.partition.rules import Rules
from fomo_stream.records import inference
from fomo_stream.records.schema import Schema, look_up
from fomo_stream.records.writer_schema import WrittenFields
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, IsStopped, Sample
from fomo_stream.replaying.ground_truth import NO_LABELS, Labels, LabelTable, key_bytes, read_label_file, verdict_of
from fomo_stream.replaying.plan import MAX_SAMPLE_BATCHES, Plan, as_sentence, check_label, has_labels
from fomo_stream.settings.replay import ReplaySettings

SAME_AS_LIVE = (
    "Each partition is replayed from its beginning, so results equal the live output of a group that began there, read "
    "the same records with the same settings, and has no labels."
)


@dataclass(frozen=True)
class TopicSource:
    """The records of a range of `settings.topic`, read as the service reads them. labels: by partition."""

    settings: ReplaySettings
    ranges: Mapping[int, Range]
    labels: Mapping[int, Labels] = field(default_factory=dict)
    kind: Literal["topic"] = "topic"

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(self.ranges)

    @property
    def name(self) -> str:
        return self.settings.topic

    def start(self, partition: int) -> int:
        return self.ranges[partition].start

    def total(self, partition: int) -> int | None:
        return self.ranges[partition].records

    def part(self, partition: int) -> TopicSource:
        labels = {partition: self.labels[partition]} if partition in self.labels else {}
        return replace(self, ranges={partition: self.ranges[partition]}, labels=labels)

    def read(self, partition: int, is_stopped: IsStopped) -> Iterator[Sample]:
        items = read_items(self.settings, self.ranges[partition], is_stopped)
        return self.labels.get(partition, NO_LABELS).applied(map(self._sample, items))

    def _sample(self, item: Pending) -> Sample:
        field, fields = self.settings.label, item.fields
        label = UNKNOWN if field is None or item.error is not None else verdict_of(look_up(fields, field))
        raw = fields.json if isinstance(fields, WrittenFields) else item.record.value
        return Sample(item.offset, item.timestamp, item.key, fields, item.error, label, raw)


def plan_of_topic(settings: ReplaySettings, now_ms: int) -> Plan:
    """Return the plan for a topic, with the settings of its group if one is given. Raises FomoError."""
    agreed: Schema | None = None
    group_notes: list[str] = []
    if settings.is_given("group"):
        settings, agreed, group_notes = recorded_group(settings)
    input_ranges, notes = resolve_ranges(settings, settings.from_, settings.to, settings.last, now_ms)
    ranges = {span.partition: span for span in input_ranges}
    source = TopicSource(settings, ranges)
    schema, note = _schema_of_topic(settings, agreed, source)
    notes += [*note, *Rules.of(settings).warnings(schema, has_keys=True)]
    check_label(settings, (sample.fields for sample in _samples(source) if sample.error is None))
    labels: dict[int, Labels] = {}
    if settings.labels_file is not None:
        spans = {span.partition: (span.start, span.end) for span in input_ranges}
        labels, label_notes = read_label_file(settings.labels_file, spans)
        notes += label_notes
    elif settings.labels_topic is not None:
        labels, label_notes = read_label_topic(settings, label_topic_ranges(settings, now_ms), ranges, now_ms)
        notes += label_notes
    source = replace(source, labels=labels)
    good: TopicSource | bytes | None = None
    if settings.reference_span is not None:
        good = GroupReference(settings, schema).stored() if settings.is_given("group") else None
        if good is None:
            settings = with_first_range(settings, now_ms)
            good_ranges, good_notes = reference_ranges(settings, now_ms)
            notes += good_notes
            good = TopicSource(settings, {span.partition: span for span in good_ranges})
    sentences = tuple(map(as_sentence, (topic_start(settings, ranges), *group_notes, *notes)))
    return Plan(settings, schema, source, has_labels(settings), "time", sentences, now_ms, good, ranges)


def _schema_of_topic(settings: ReplaySettings, agreed: Schema | None, source: TopicSource) -> tuple[Schema, list[str]]:
    """Return the features, and notes about them. agreed: the features of the group."""
    if agreed is not None:
        if settings.label in agreed.features:
            raise ConfigError(
                f"group {settings.group} scores the field {settings.label}, which is the --label here; give another "
                "label, or leave --group out and name the --features"
            )
        return agreed, []
    if settings.features is not None:
        schema, notes = inference.named_schema(settings), []
    else:
        schema, note = _infer(settings, source)
        notes = [note]
    first = [sample.fields for sample in islice(_samples(source), INFER_RECORDS) if sample.error is None]
    notes += inference.unnamed_note(schema, first) if settings.features is None else []
    return schema, [*notes, *inference.input_notes(schema, first)]


def topic_start(settings: ReplaySettings, ranges: Mapping[int, Range]) -> str:
    """Return a sentence that says whether results equal the live output of a group."""
    if all(span.start == 0 for span in ranges.values() if span.records):
        return SAME_AS_LIVE
    late = "contexts differ from those of a group that read earlier records"
    if settings.seed_context is not None or settings.reference is not None:
        return f"Starts later than a group would have: {late}."
    return f"Warms up: the first {settings.min_context:,} records of each partition have no score, and {late}."


def _infer(settings: ReplaySettings, source: TopicSource) -> tuple[Schema, str]:
    """Infer the features from the first records of the range that have any, as the service does; add a note about them.

    Like the service, it skips records without features (there, they become dead letters) and reads the next ones.
    """
    roles = inference.roles_of(settings, settings.label)
    samples = _samples(source)
    failure: SchemaError | None = None
    bad: Counter[str] = Counter()
    for _ in range(MAX_SAMPLE_BATCHES):
        taken = list(islice(samples, INFER_RECORDS))
        if not taken:
            break
        bad.update(sample.error.reason for sample in taken if sample.error is not None)
        usable = [sample for sample in taken if sample.error is None]
        records = [sample.fields for sample in usable]
        if not records:
            continue
        try:
            series = [sample.key for sample in usable]
            schema, left_out = inference.infer_from_records(settings, records, roles, series)
            return schema, inference.features_note(schema, left_out)
        except inference.TooManyFeaturesError:
            raise
        except SchemaError as error:
            failure = failure or error
    if bad and failure is None:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in bad.most_common())
        raise SchemaError(f"none of the first {bad.total():,} records of {source.name} can be read ({reasons})")
    raise failure or SchemaError(f"the range of {source.name} has no records, only marks of transactions")


def _samples(source: TopicSource) -> Iterator[Sample]:
    """Return the records of all partitions, one partition after the other, so that counters are recognised."""
    return chain.from_iterable(source.read(number, lambda: False) for number in source.partitions)


def label_topic_ranges(settings: ReplaySettings, now_ms: int) -> dict[int, Range]:
    """Return the present ranges of `settings.labels_topic`, by partition. Raises the errors of `resolve_ranges`."""
    label_settings = settings.model_copy(update={"topic": settings.labels_topic})
    try:
        return {span.partition: span for span in resolve_ranges(label_settings, "", "", "", now_ms)[0]}
    except TopicError as error:
        raise TopicError(f"--labels-topic: {error}") from None


def read_label_topic(
    settings: ReplaySettings, label_ranges: Mapping[int, Range], ranges: Mapping[int, Range], now_ms: int
) -> tuple[dict[int, Labels], list[str]]:
    """Return the labels of `settings.labels_topic`, by partition of the input, and notes.

    label_ranges: of the labels; ranges: of the input. If labels name their records by key, the input is read once more,
    to find these records. Raises SchemaError if there are no labels, and the errors of `read_range`.
    """
    topic = settings.labels_topic or ""
    label_settings = settings.model_copy(update={"topic": topic})
    table = LabelTable(f"topic {topic}", {number: (span.start, span.end) for number, span in ranges.items()})
    for partition, label_range in label_ranges.items():
        verdicts: list[int] = []
        offsets: list[int | None] = []
        keyed: dict[bytes, list[tuple[int, int]]] = defaultdict(list)  # by key: time and number of each label
        for record in read_range(label_settings, topic, label_range, label_range.start):
            rules = partition, settings.topic, settings.result_field, settings.max_record_bytes
            try:
                label = parse_label(record.value, record.key, *rules)
            except RecordError as error:
                table.refuse(record.where(), str(error))
                continue
            if not isinstance(label, Verdict):
                continue  # it mutes a key, or is about a window of maintenance
            if label.offset is None:
                time = now_ms if record.timestamp is None else record.timestamp
                keyed[label.key or b""].append((time, len(offsets)))
            offsets.append(label.offset)
            verdicts.append(OUTLIER if label.outlier else INLIER)
        if keyed and partition in ranges:
            samples = TopicSource(settings, ranges).read(partition, lambda: False)
            keys = ((s.offset, s.timestamp, None if s.key is None else key_bytes(s.key)) for s in samples)
            for number, offset in last_before(keyed, keys):
                offsets[number] = offset
        for record_offset, verdict in zip(offsets, verdicts, strict=True):
            table.add(None if record_offset is None else (partition, record_offset), verdict)
    return table.finish()


def last_before(
    labels: Mapping[bytes, list[tuple[int, int]]], records: Iterable[tuple[int, int | None, bytes | None]]
) -> Iterator[tuple[int, int]]:
    """Yield for each label by key its number, and the offset of the last record with its key that is not later.

    labels: time and number of each label, by key; records: offset, time and key of each, in order. A record without a
    time counts as the earliest. A label without such a record is left out.
    """
    ordered = {key: sorted(pairs) for key, pairs in labels.items()}
    last: dict[bytes, dict[int, int]] = defaultdict(dict)  # by key: offset by the first label that is not earlier
    for offset, time, key in records:
        if key is not None and key in ordered:
            last[key][bisect_left(ordered[key], (time or 0, -1))] = offset
    for key, pairs in ordered.items():
        newest = -1
        for i, (_, number) in enumerate(pairs):
            newest = max(newest, last[key].get(i, -1))
            if newest >= 0:
                yield number, newest
