"""How `fomo-stream score` compares records: with a fixed context, or with the records before them.

A scorer takes lines and gives them back with results, in the same order. `add` may hold lines back; `finish` gives
back the rest at the end of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.cli.remarks import note_texts
from fomo_stream.detector.config import LEAST_CONTEXT
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results, Scores, Status
from fomo_stream.detector.series import Key, Series
from fomo_stream.detector.views import VIEWS
from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_CONTEXT, MAX_FEATURES
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.records.choice import choose_features, key_of, text_columns
from fomo_stream.records.files import BLOCK, Line, RecordFile, open_records, trusted_records
from fomo_stream.records.lines import Note
from fomo_stream.records.rows import RowReader, Rows
from fomo_stream.records.schema import Schema
from fomo_stream.wording import counted

if TYPE_CHECKING:
    from fomo_stream.settings.commands import ScoreSettings

Float = NDArray[np.float64]
MAX_HELD = 20  # times min_context: maximum number of unusable lines, and of records, held in memory


class Batch(NamedTuple):
    """Lines with their scores."""

    lines: list[Line]
    usable: NDArray[np.bool_]  # (n_lines,) whether any feature has a value
    missing: NDArray[np.int64]  # (n_lines,) how many features have no value
    scored: Results  # of the usable lines
    keys: list[Key]  # (n_usable,) the series of each usable line


NOTHING = Batch([], np.empty(0, dtype=bool), np.empty(0, dtype=np.int64), Results.nothing(Scores.unknown(0, 1)), [])


class LineReader(RowReader):
    """Makes rows of the lines of a file."""

    def __init__(self, schema: Schema, settings: ScoreSettings) -> None:
        super().__init__(schema)
        self.key = settings.key
        self._has_values = np.zeros(self.width, dtype=bool)  # features with a value in any line scored so far

    def read_records(self, records: Sequence[Mapping[str, Any]]) -> Rows:
        """Rows of the next records; the key of each is in its field `key`."""
        return self.read(records, [key_of(record, self.key) for record in records])

    @property
    def absent(self) -> list[str]:
        """The features that no line scored so far has a value of."""
        return [name for name, has in zip(self.schema.features, self._has_values.tolist(), strict=True) if not has]

    def batch(self, lines: list[Line], score: Callable[[Float, list[Key]], Results]) -> Batch:
        """The next lines with their scores."""
        rows, keys, usable, missing = self.read_records([line.record or {} for line in lines])
        if not self._has_values.all():
            self._has_values |= (~np.isnan(rows)).any(axis=0)
        return Batch(lines, usable, missing, score(rows, keys), keys)

    def count_usable(self, lines: Sequence[Line]) -> int:
        """How many of these lines have a value of any feature. The lines do not become part of their series."""
        values = self.schema.rows([line.record or {} for line in lines])
        return len(lines) - int(np.isnan(values).all(axis=1).sum())


class FixedContextScorer:
    """Scores records against the rows of the file `settings.context`; learns nothing."""

    def __init__(self, settings: ScoreSettings, model: ZeroShotModel, table: RecordFile, note: Note) -> None:
        path, config = settings.context, settings.detector_config()
        assert path is not None
        with open_records(path) as stream:  # read once, because it may be a pipe
            text = text_columns(settings, settings.key)
            file = RecordFile(stream, "auto", str(path), text, settings.decimal, note)
            records = trusted_records(file)
            sample = list(islice(records, BLOCK))
            if not sample:
                raise no_records(file, has_errors=False)
            schema = choose_features(settings, file.format, sample, str(path), special(settings), note)
            self.reader, blocks = LineReader(schema, settings), []
            self._series = Series(self.reader.width, settings.lags, movement=False)
            while sample:
                blocks.append(self._with_past(*self.reader.read_records(sample)[:2]))
                sample = list(islice(records, BLOCK))
        note_texts(file, schema, note)
        rows = np.concatenate(blocks)
        if len(rows) < LEAST_CONTEXT:
            has = f"{counted(len(rows), 'row')} with a value of any feature"
            raise SchemaError(f"--context {path} has {has}; at least {LEAST_CONTEXT} are needed")
        if "context_size" not in settings.model_fields_set:
            config = replace(config, context_size=min(MAX_CONTEXT, max(config.context_size, len(rows))))
        # the input does not continue the series of the context
        self._series = Series(self.reader.width, settings.lags, movement=False)
        # one view, and no memory: the input need not be a stream
        config = replace(config, views=("all",), lags=0, memory=0.0)
        codes = VIEWS["past"].codes(self.reader.width, settings.lags, self.reader.categorical)
        self._detector = Detector(model, rows.shape[1], config, categorical=codes, n_past=settings.lags)
        self._detector.seed_context(rows)
        if self._detector.score_rows(rows[:1]).status[0] is Status.CALIBRATING:
            few = counted(self._detector.context_rows, "row")
            note(
                f"nothing will be flagged: {few} of {path} are too few for an alert rate of "
                f"{config.alert_rate:g}; give more rows, or raise --alert-rate"
            )

    def add(self, lines: list[Line]) -> Batch:
        return self.reader.batch(lines, self._score)

    def _score(self, values: Float, keys: list[Key]) -> Results:
        return self._detector.score_rows(self._with_past(values, keys))

    def _with_past(self, values: Float, keys: list[Key]) -> Float:
        """Rows (n, d * (lags + 1)) of the next values (n, d) of their series."""
        vectors = self._series.follow(values, keys).vectors
        width = vectors.shape[1] * vectors.shape[2]
        if width > MAX_FEATURES:
            raise SchemaError(
                f"{values.shape[1]} features with {self._series.lags} earlier values of each make {width} columns, at "
                f"most {MAX_FEATURES} are taken; name fewer with --features, or lower --lags"
            )
        return vectors.reshape(len(vectors), width)

    def finish(self) -> Batch:
        return NOTHING


class PrequentialScorer:
    """Scores each record against the records before it, then learns it; the first ones are scored against each other.

    Lines are held back until `min_context` of them can be scored, or the input ends.
    """

    def __init__(self, settings: ScoreSettings, model: ZeroShotModel, table: RecordFile, note: Note) -> None:
        self._settings, self._model, self._table, self._note = settings, model, table, note
        self._min_context = settings.min_context
        self._held: list[Line] = []
        self._wanted = self._min_context  # records to hold before the next attempt to begin
        self._n_records = 0
        self._reader: LineReader | None = None
        self._detector: Detector | None = None

    @property
    def reader(self) -> LineReader:
        """It knows the features that are scored; there once there is a batch."""
        assert self._reader is not None
        return self._reader

    def add(self, lines: list[Line]) -> Batch:
        if self._reader is not None and self._detector is not None:
            return self._reader.batch(lines, self._detector.process)
        self._held += lines
        self._n_records += sum(line.record is not None for line in lines)
        if len(self._held) - self._n_records > MAX_HELD * self._min_context:
            raise SchemaError(
                f"only {self._n_records} of the first {len(self._held)} lines of {self._table.name} are records; "
                f"{self._table.advice}"
            )
        return NOTHING if self._n_records < self._wanted else self._try_to_begin(at_end=False)

    def finish(self) -> Batch:
        return NOTHING if self._detector is not None else self._try_to_begin(at_end=True)

    def _try_to_begin(self, at_end: bool) -> Batch:
        name = self._table.name
        if self._reader is None:
            records = [line.record for line in self._held if line.record is not None]
            if not records:
                raise no_records(self._table, any(line.error for line in self._held))
            schema = choose_features(
                self._settings, self._table.format, records, name, special(self._settings), self._note
            )
            self._reader = LineReader(schema, self._settings)
        n_usable = self._reader.count_usable(self._held)
        if n_usable < self._min_context and not at_end:
            if self._n_records > MAX_HELD * self._min_context:
                raise SchemaError(
                    f"only {n_usable} of the first {self._n_records} records of {name} have a value of any "
                    "feature; name other features with --features"
                )
            self._wanted = self._n_records + self._min_context - n_usable
            return NOTHING
        reader = self._reader
        config = self._settings.detector_config()
        self._detector = Detector(self._model, reader.width, config, categorical=reader.categorical)
        for view in self._detector.left_out:
            self._note(f"left out: the view {view}")
        held, self._held = self._held, []
        return self._reader.batch(held, partial(self._first_scores, self._detector))

    def _first_scores(self, detector: Detector, rows: Float, keys: list[Key]) -> Results:
        n = self._min_context
        warm_up = detector.process(rows[:n], keys[:n])
        if len(warm_up) < self._min_context:
            if len(warm_up) < LEAST_CONTEXT:
                has = f"{self._table.name} has {counted(len(rows), 'record')} to score"
                self._note(
                    f"nothing was scored: {has}, and at least {LEAST_CONTEXT} are needed to compare them with each "
                    "other; give trusted records with --context FILE"
                )
                return warm_up
            detector.flush_warm_up()
        return Results.concatenate([detector.cross_scored(), detector.process(rows[n:], keys[n:])])


def no_records(file: RecordFile, has_errors: bool) -> SchemaError:
    """The error for a file without any record. has_errors: whether it has other lines."""
    if has_errors:
        return SchemaError(f"no line of {file.name} is a record; {file.advice}")
    return SchemaError(f"{file.name} has only a line of column names, and no rows under it")


def special(settings: ScoreSettings) -> dict[str, str]:
    """The fields that have another role than to be a feature, by name, with the flags that name them."""
    return {settings.key: "--key"} if settings.key is not None else {}
