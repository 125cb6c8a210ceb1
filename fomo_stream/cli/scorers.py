"""The scorers of `fomo-stream score`: they compare records with a fixed context, or with the records before them.

A scorer takes lines and returns them with results, in the same order. `add` may hold lines back; `finish` returns the
rest at the end of the input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.config import MIN_CONTEXT_ROWS
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results, Status
from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.loading import set_reference
from fomo_stream.model.architecture import Model
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.record import FileItem
from fomo_stream.partition.rules import Rules, skips
from fomo_stream.partition.running import Process, Running, ScoredBatch
from fomo_stream.records.cells import DECIMAL_MARKS, number_in
from fomo_stream.records.files import BLOCK_RECORDS, FORMAT_HINT, Line, RecordFile, open_records, trusted_records
from fomo_stream.records.inference import (
    MAX_NAMES_SHOWN,
    NoFeaturesError,
    choose_features,
    infer_from_file,
    key_of,
    leaves_of,
    roles_of,
    text_columns,
)
from fomo_stream.records.lines import Note
from fomo_stream.records.presence import UnusedFields
from fomo_stream.records.schema import Schema, look_up, shown_names
from fomo_stream.records.times import known_time, to_milliseconds
from fomo_stream.settings.rule_spec import zone
from fomo_stream.wording import counted, did_you_mean

if TYPE_CHECKING:
    from fomo_stream.settings.commands import ScoreSettings

Float = NDArray[np.float64]
MAX_HELD = 20  # times min_context: limit of unusable lines, and of records, held in memory


Batch = tuple[list[Line], ScoredBatch]


class _LineScorer:
    """The parts that both scorers share."""

    def __init__(self, settings: ScoreSettings, note: Note) -> None:
        self._settings, self._note = settings, note
        self._partition: Running | None = None
        self.unused: UnusedFields | None = None  # only if features are inferred from the input
        self._now = round(time.time() * 1000)  # no record is later

    @property
    def partition(self) -> Running:
        """The partition; it exists from the first batch on."""
        assert self._partition is not None
        return self._partition

    @property
    def schema(self) -> Schema:
        """The schema of the features that are scored."""
        return self.partition.schema

    def _begin(self, first: Detector, schema: Schema) -> None:
        self._partition = Running(Waiting(0, self._settings), first, schema)
        has = self._settings.key is not None, self._settings.time is not None
        for text in self.partition.rules.now.warnings(self.schema, *has):
            self._note(text)

    def _batch(self, lines: list[Line], process: Process) -> Batch:
        key = self._settings.key
        items = [FileItem(line.number, line.record or {}, key_of(line.record or {}, key), line.error) for line in lines]
        return lines, self.partition.score(items, process, self._now)


class FixedContextScorer(_LineScorer):
    """Scores records against the rows of the file `settings.context`; learns nothing."""

    def __init__(self, settings: ScoreSettings, model: Model, table: RecordFile, note: Note) -> None:
        super().__init__(settings, note)
        path, config = settings.context, settings.detector_config()
        assert path is not None
        with open_records(path) as stream:  # read once, because it may be a pipe
            text = text_columns(settings, settings.key)
            file = RecordFile(stream, "auto", str(path), text, note=note, **settings.csv_settings())
            records = trusted_records(file)
            sample = list(islice(records, BLOCK_RECORDS))
            # used to check the first records of the input
            self._fields: set[str] | None = {path for record in sample for path, _ in leaves_of(record)}
            self._table, self._source = table, f"the first {counted(len(sample), 'record')} of --context {path}"
            schema, _ = choose_features(settings, file.format, sample, str(path), roles_of(settings), note)
            blocks = []
            while sample:
                values = schema.rows(sample)
                blocks.append(values[~np.isnan(values).all(axis=1)])
                sample = list(islice(records, BLOCK_RECORDS))
        note_texts(file, schema, note)
        rows = np.concatenate(blocks)
        if len(rows) < MIN_CONTEXT_ROWS:
            has = f"{counted(len(rows), 'row')} with a value of any feature"
            raise SchemaError(f"--context {path} has {has}; at least {MIN_CONTEXT_ROWS} are needed")
        if "context_size" not in settings.model_fields_set:
            config = replace(config, context_size=min(MAX_CONTEXT, max(config.context_size, len(rows))))
        # one view, and no memory: the input may be unordered
        config = replace(config, views=("all",), memory=0.0)
        self._detector = Detector(model, rows.shape[1], config, categorical=schema.categorical_columns)
        self._detector.seed_context(rows)
        self._begin(self._detector, schema)
        if self._detector.score_independent(rows[:1]).status[0] is Status.CALIBRATING:
            rows_text = counted(self._detector.context_rows, "row")
            note(
                f"nothing will be flagged: {rows_text} of {path} are too few for an alert rate of "
                f"{config.alert_rate:g}; give more rows, or raise --alert-rate"
            )

    def add(self, lines: list[Line]) -> Batch | None:
        if self._settings.features is None and (records := [line.record for line in lines if line.record is not None]):
            self._check_fields(records)
        return self._batch(lines, self._detector.score_independent)

    def _check_fields(self, records: list[dict[str, Any]]) -> None:
        """Raise SchemaError if the first records have a feature that the context has no field for."""
        if self._fields is None:
            return
        fields, self._fields, table = self._fields, None, self._table
        try:
            schema, _ = infer_from_file(self._settings, table.format, records, table.name, roles_of(self._settings))
        except NoFeaturesError:
            return
        if lacking := [name for name in schema.features if name not in fields]:
            hint = did_you_mean(lacking[0], sorted(fields))
            raise SchemaError(
                f"{self._source} have no field {shown_names(lacking, MAX_NAMES_SHOWN)}, which {table.name} has{hint}",
                f"add it to that file, or name the features to compare: --features {shown_names(self.schema.features)}",
            )

    def finish(self) -> Batch | None:
        return None


class PrequentialScorer(_LineScorer):
    """Scores each record against the records before it, then learns it; the first ones are scored against each other.

    Lines are held back until `min_context` of them can be scored, or the input ends.
    """

    def __init__(self, settings: ScoreSettings, model: Model, table: RecordFile, note: Note) -> None:
        super().__init__(settings, note)
        self._model, self._table = model, table
        self._min_context = settings.min_context
        self._held: list[Line] = []
        self._needed = self._min_context  # records to hold before the next attempt to begin
        self._n_records = 0
        self._features: Schema | None = None

    def add(self, lines: list[Line]) -> Batch | None:
        if self.unused is not None:
            self.unused.follow(numbered_records(lines), are_first=False)
        if self._partition is not None:
            return self._batch(lines, self._partition.detector.process)
        self._held += lines
        self._n_records += sum(line.record is not None for line in lines)
        if len(self._held) - self._n_records > MAX_HELD * self._min_context:
            raise SchemaError(
                f"only {self._n_records} of the first {len(self._held)} lines of {self._table.name} are records",
                FORMAT_HINT,
            )
        return None if self._n_records < self._needed else self._try_to_begin(at_end=False)

    def finish(self) -> Batch | None:
        return None if self._partition is not None else self._try_to_begin(at_end=True)

    def _try_to_begin(self, at_end: bool) -> Batch | None:
        name = self._table.name
        if self._features is None:
            records = [line.record for line in self._held if line.record is not None]
            self._features, left_out = choose_features(
                self._settings, self._table.format, records, name, roles_of(self._settings), self._note
            )
            if self._settings.features is None:
                names = (*self._features.features, *self._features.untaken, self._settings.result_field)
                self.unused = UnusedFields(names, left_out, self._settings.marks)
                self.unused.follow(numbered_records(self._held), are_first=True)
        values = self._features.rows([line.record or {} for line in self._held])
        usable = ~np.isnan(values).all(axis=1)
        if {*self._features.features} <= {*self._settings.derive}:  # their values are known only after this
            usable = np.array([line.record is not None for line in self._held])
        n_usable, is_full = int(usable.sum()), self._n_records > MAX_HELD * self._min_context
        if n_usable < self._min_context and not at_end and is_full:
            raise SchemaError(
                f"only {n_usable} of the first {self._n_records} records of {name} have a value of any "
                "feature; name other features with --features"
            )
        n_learned = int((usable & ~self._are_skipped()).sum())
        if n_learned < self._min_context and not at_end and not is_full:
            self._needed = self._n_records + self._min_context - n_learned
            return None
        schema, config = self._features, self._settings.detector_config()
        columns = schema.categorical_columns, schema.counter_columns
        first = Detector(self._model, len(schema.features), config, None, *columns)
        for view in first.left_out:
            self._note(f"left out: the view {view}")
        if self._settings.reference is not None:
            settings = self._settings.with_reference_of(time for time, _ in _timed(self._settings))
            span, which = settings.reference_span, "" if settings is self._settings else f" {settings.reference}"
            good = None if span is None else (item for time, item in _timed(settings) if time in span)
            reference = set_reference(settings, first, schema, good)
            keys = f"{counted(reference.keys, 'key')} with enough of their own"
            self._note(f"--reference{which}: {counted(reference.records, 'good record')}, {keys}")
        self._begin(first, schema)
        held, self._held = self._held, []
        has_reference = self._settings.reference is not None  # it scores from the first record on
        batch = self._batch(held, self.partition.detector.process if has_reference else self._first_scores)
        if at_end and (n := self.partition.detector.records) < MIN_CONTEXT_ROWS and not has_reference:
            self._note(
                f"nothing was scored: {name} has {counted(n, 'record')} to score, and at least {MIN_CONTEXT_ROWS} are "
                "needed to compare them with each other; give trusted records with --context FILE"
            )
        return batch

    def _are_skipped(self) -> NDArray[np.bool_]:
        """Return which of the held lines are in windows of maintenance, and will not be learned."""
        place, field, rules = zone(self._settings.timezone), self._settings.time, Rules.of(self._settings)
        if field is None or not rules.windows:
            return np.zeros(len(self._held), dtype=bool)
        records = [line.record or {} for line in self._held]
        times = [known_time(to_milliseconds(look_up(record, field), place)) for record in records]
        opened = rules.open_windows(times, [key_of(record, self._settings.key) for record in records])
        return np.array([skips(windows, "learning") for windows in opened or [()] * len(records)], dtype=bool)

    def _first_scores(self, rows: Float, keys: Sequence[Key]) -> Results:
        """Score the first records against each other, and those after them as usual."""
        detector, n = self.partition.detector, self._min_context
        warm_up = detector.process(rows[:n], keys[:n])
        if len(warm_up) < MIN_CONTEXT_ROWS:
            return warm_up
        detector.flush_warm_up()
        return Results.concatenate([detector.cross_scored(), detector.process(rows[n:], keys[n:])])


def _timed(settings: ScoreSettings) -> Iterator[tuple[int | None, FileItem]]:
    """Yield the records of the input, with their times."""
    place, field = zone(settings.timezone), settings.time or ""
    with open_records(settings.file) as stream:
        text = text_columns(settings, settings.key)
        for line in RecordFile(stream, settings.format, settings.file, text, **settings.csv_settings()):
            if line.record is not None:
                item = FileItem(line.number, line.record, key_of(line.record, settings.key))
                yield known_time(to_milliseconds(look_up(line.record, field), place)), item


def numbered_records(lines: Sequence[Line]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the records of lines, with the line numbers."""
    return ((line.number, line.record) for line in lines if line.record is not None)


def note_texts(table: RecordFile, schema: Schema, note: Note) -> None:
    """Note the features with cells that are text and therefore count as missing."""
    for name, (count, first) in table.texts.items():
        if name in schema.features and name not in schema.categorical:
            other = next((mark for mark in reversed(DECIMAL_MARKS) if number_in(first, mark) is not None), "")
            remedy = f"; --decimal {other} reads such numbers" if other else ""
            cells = f"{counted(count, 'cell')} of the column {name} of {table.name}"
            note(f"{cells} counted as missing: text such as {first[:40]!r}{remedy}")
    for name, (count, first) in table.with_more.items():
        if name in schema.features and name not in schema.categorical:
            cells = f"{counted(count, 'cell')} of the column {name} of {table.name}"
            note(f"{cells} read as numbers, although most look different: such as {first[:40]!r}")
