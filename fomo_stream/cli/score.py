"""`fomo-stream score`: CSV or JSON lines in, the same with scores out; no Kafka.

Every record that comes in goes out, in its place. One that cannot be scored goes out with a null score and a
status that says so: `malformed` (its line is no record) or `no_features` (it has no value of any feature).
History stays constant however long the input is, and scores are written as soon as the input pauses.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.config import LEAST_CONTEXT, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results, Status
from fomo_stream.errors import ConfigError, FomoError, SchemaError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.checkpoint import load_model
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.records.files import Line, RecordFile, open_records, read_records
from fomo_stream.records.inference import infer_schema
from fomo_stream.records.json_codec import encode
from fomo_stream.records.result import result_of
from fomo_stream.records.rows import RowReader, Rows
from fomo_stream.records.schema import Schema, look_up, shown

if TYPE_CHECKING:
    from fomo_stream.settings.commands import ScoreSettings

Float = NDArray[np.float64]
Result = dict[str, Any]
CSV_COLUMNS = ("score", "logit", "p_value", "outlier", "severity", "missing", "generation", "regime", "status")
LINES_SHOWN = 5  # of those that cannot be read
BLOCK = 1000  # rows of a context file that are read at once; features are inferred from the first ones


def run_score(settings: ScoreSettings) -> int:
    """Score `settings.file` onto standard output, with a summary on standard error; returns the exit code."""
    stdin = settings.file == "-"
    if sys.stdout is None or (stdin and sys.stdin is None):
        raise ConfigError("standard input or output is closed; open it, or name a file")
    name = "standard input" if stdin else settings.file
    with nullcontext(sys.stdin.buffer) if stdin else open_records(settings.file) as stream:
        table = RecordFile(stream, settings.format, name, text_columns(settings))
        try:
            Scoring(settings, table, sys.stdout.buffer, sys.stderr).run()
        except OSError as error:  # keep the interpreter from flushing what is left once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # `| head` has seen enough
                raise FomoError(f"cannot read {name} or write its scores: {error.strerror}") from None
    return 0


class Scoring:
    """One run over one input: reads lines, scores them, writes them in order."""

    def __init__(self, settings: ScoreSettings, table: RecordFile, out: BinaryIO, notes: TextIO) -> None:
        self.settings = settings
        self.table = table
        self.notes = notes
        writer = CsvWriter if table.format == "csv" else JsonWriter
        self.writer = writer(out, table, settings.result_field, settings.scores_only)
        self.model = load_model(settings.model, settings.device)
        self.counts = {"scored": 0, "outliers": 0, "skipped": 0, "unscored": 0, "missing": 0}
        self.malformed = 0

    def run(self) -> None:
        """Score the whole input."""
        strategy: FixedContext | Prequential = (FixedContext if self.settings.context else Prequential)(self)
        for lines in batches(self.table, self.settings.batch_size):
            self._complain(lines)
            self.write(strategy.add(lines))
        self.write(strategy.finish())
        if self.malformed > LINES_SHOWN:
            self.note(f"{self.malformed - LINES_SHOWN} more lines could not be read")
        if self.counts["skipped"] and not self.counts["scored"] + self.counts["unscored"]:
            self.note(f"nothing was scored: no row of {self.table.name} has a value of any feature; check --features")
        self.note(" ".join(f"{name}={count}" for name, count in self.counts.items() if count or name != "unscored"))

    def note(self, text: str) -> None:
        print(f"fomo-stream: {text}", file=self.notes, flush=True)

    def write(self, batch: Batch) -> None:
        """Write the lines of a batch, those that are not scored too."""
        if not batch.lines:
            return
        rank = np.cumsum(batch.usable) - 1
        results = [
            result_of(batch.scored, rank[i], self.model.name, None, int(batch.missing[i]))
            if batch.usable[i]
            else unscored(line, int(batch.missing[i]))
            for i, line in enumerate(batch.lines)
        ]
        for result in results:
            if result["score"] is None:
                self.counts["unscored" if result["status"] == "warming_up" else "skipped"] += 1
            else:
                self.counts["scored"] += 1
                self.counts["outliers"] += result["outlier"]
                self.counts["missing"] += result["missing"]
        self.writer.write(batch.lines, results)

    def announce(self, schema: Schema, left_out: dict[str, str]) -> None:
        """Say which fields are scored and which are not, and why."""
        names = ", ".join(schema.features[:20]) + (", ..." if len(schema.features) > 20 else "")
        reasons = ", ".join(f"{path} ({reason})" for path, reason in list(left_out.items())[:20])
        self.note(f"features: {names}" + (f"; left out: {reasons}" if reasons else ""))

    def choose_features(self, records: Sequence[dict[str, Any]], source: str) -> Schema:
        """The schema asked for, or else inferred from `records`; SchemaError when they do not fit."""
        if not records:
            raise SchemaError(f"no line of {source} is a record; see --format for the formats that are read")
        if self.settings.features is None:
            earlier = set(result_columns(self.settings.result_field))
            if self.table.format == "csv":
                records = [{k: v for k, v in record.items() if k not in earlier} for record in records]
            schema, left_out = infer_schema(
                records, self.settings.result_field, self.settings.categorical, self.settings.key
            )
            self.announce(schema, left_out)
        else:
            schema = Schema.of(self.settings.features, self.settings.categorical)
        absent = np.array(schema.features)[np.isnan(schema.rows(records)).all(axis=0)].tolist()
        key = self.settings.key
        for what, names, flag in (
            ("number", [name for name in absent if name not in schema.categorical], "--features"),
            ("value", [name for name in absent if name in schema.categorical], "--categorical"),
            ("value", [key] if key and not any(key_of(record, key) for record in records) else [], "--key"),
        ):
            if names:
                raise SchemaError(
                    f"the first {len(records)} records of {source} have no {what} in {shown(names)}; check {flag}"
                )
        return schema

    def _complain(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if line.error is not None:
                self.malformed += 1
                if self.malformed <= LINES_SHOWN:
                    self.note(f"{self.table.name} line {line.number}: {line.error}")


class Batch(NamedTuple):
    """Lines on their way out."""

    lines: list[Line]
    usable: NDArray[np.bool_]  # (n_lines,) whether any feature has a value
    missing: NDArray[np.int64]  # (n_lines,) how many have none
    scored: Results  # of the usable ones


NOTHING = Batch([], np.empty(0, dtype=bool), np.empty(0, dtype=np.int64), Results.nothing(0))


class FileReader(RowReader):
    """Makes rows of the records of a file."""

    def __init__(self, schema: Schema, settings: ScoreSettings) -> None:
        super().__init__(schema, settings.lags)
        self.key = settings.key

    def detector(self, model: ZeroShotModel, config: DetectorConfig) -> Detector:
        """A detector of such rows."""
        self.past.check(model.config.raw_features, model.name)
        return Detector(model, self.width, config, categorical=self.categorical)

    def read_records(self, records: Sequence[Mapping[str, Any]]) -> Rows:
        """Rows of the next records, whose keys are in a field of theirs."""
        return self.read(records, [key_of(record, self.key) for record in records])

    def batch(self, lines: list[Line], score: Callable[[Float], Results]) -> Batch:
        """The next lines with their scores."""
        rows, usable, missing = self.read_records([line.record or {} for line in lines])
        return Batch(lines, usable, missing, score(rows))

    def count_usable(self, lines: Sequence[Line]) -> int:
        """How many of these lines have a value of any feature; they are not read yet."""
        values = self.schema.rows([line.record or {} for line in lines])
        return len(lines) - int(np.isnan(values).all(axis=1).sum())


class FixedContext:
    """Scores against the rows of one file; learns nothing."""

    def __init__(self, run: Scoring) -> None:
        path, config = run.settings.context, run.settings.detector_config()
        assert path is not None
        with open_records(path) as stream:  # once: it may be a pipe
            records = read_records(stream, name=str(path), text=text_columns(run.settings))
            sample = list(islice(records, BLOCK))
            schema = run.choose_features(sample, str(path))
            reader, blocks = FileReader(schema, run.settings), []
            while sample:
                blocks.append(reader.read_records(sample).rows)
                sample = list(islice(records, BLOCK))
        rows = np.concatenate(blocks)
        if "context_size" not in run.settings.model_fields_set:
            config = replace(config, context_size=min(MAX_CONTEXT, max(config.context_size, len(rows))))
        self.reader = FileReader(schema, run.settings)  # the input does not go on where the context ends
        self.detector = self.reader.detector(run.model, config)
        self.detector.seed_context(rows)
        if self.detector.score_rows(rows[:1]).status[0] is Status.CALIBRATING:
            run.note(
                f"nothing will be flagged: {self.detector.context_rows} rows of {path} are too few for an alert rate "
                f"of {config.alert_rate:g}; give more rows, or raise --alert-rate"
            )

    def add(self, lines: list[Line]) -> Batch:
        return self.reader.batch(lines, self.detector.score_rows)

    def finish(self) -> Batch:
        return NOTHING


class Prequential:
    """Scores each record against those before it, then learns it; the first ones score each other.

    Lines are held back until `min_context` of them can be scored, or the input ends.
    """

    def __init__(self, run: Scoring) -> None:
        self.run = run
        self.min_context = run.settings.min_context
        self.held: list[Line] = []
        self.wanted = self.min_context  # records to hold before looking again whether there are enough
        self.n_records = 0
        self.reader: FileReader | None = None
        self.detector: Detector | None = None

    def add(self, lines: list[Line]) -> Batch:
        if self.reader is not None and self.detector is not None:
            return self.reader.batch(lines, self.detector.process)
        self.held += lines
        self.n_records += sum(line.record is not None for line in lines)
        if len(self.held) - self.n_records > 20 * self.min_context:  # memory must stay bounded
            raise SchemaError(
                f"only {self.n_records} of the first {len(self.held)} lines of {self.run.table.name} are records; "
                "see --format for the formats that are read"
            )
        return NOTHING if self.n_records < self.wanted else self._try_to_begin(at_end=False)

    def finish(self) -> Batch:
        return NOTHING if self.detector is not None else self._try_to_begin(at_end=True)

    def _try_to_begin(self, at_end: bool) -> Batch:
        name = self.run.table.name
        if self.reader is None:
            records = [line.record for line in self.held if line.record is not None]
            self.reader = FileReader(self.run.choose_features(records, name), self.run.settings)
        n_usable = self.reader.count_usable(self.held)
        if n_usable < self.min_context and not at_end:
            if self.n_records > 20 * self.min_context:  # memory must stay bounded
                raise SchemaError(
                    f"only {n_usable} of the first {self.n_records} records of {name} have a value of any "
                    "feature; name other ones with --features"
                )
            self.wanted = self.n_records + self.min_context - n_usable
            return NOTHING
        self.detector = self.reader.detector(self.run.model, self.run.settings.detector_config())
        held, self.held = self.held, []
        return self.reader.batch(held, partial(self._first_scores, self.detector))

    def _first_scores(self, detector: Detector, rows: np.ndarray) -> Results:
        warm_up = detector.process(rows[: self.min_context])
        if len(warm_up) < self.min_context:
            if len(warm_up) < LEAST_CONTEXT:
                self.run.note(
                    f"{len(rows)} records are too few to be compared with each other; "
                    "give trusted ones with --context FILE"
                )
                return warm_up
            detector.flush_warm_up()
        return Results.concatenate([detector.cross_scored(), detector.process(rows[self.min_context :])])


def text_columns(settings: ScoreSettings) -> set[str]:
    """Columns of a CSV file whose cells are names, not numbers."""
    return {*settings.categorical, *({settings.key or ""} - set(settings.features or ()))}


def key_of(record: Mapping[str, Any], field: str | None) -> str | None:
    """The series that a record belongs to; None where it does not say."""
    value = None if field is None else look_up(record, field)
    return None if value is None else str(value)


def batches(table: RecordFile, size: int) -> Iterator[list[Line]]:
    """Up to `size` lines at a time; fewer when the next one would have to be waited for."""
    batch = []
    for line in table:
        batch.append(line)
        if len(batch) >= size or table.drained:
            yield batch
            batch = []
    if batch:
        yield batch


def unscored(line: Line, missing: int) -> Result:
    """The result of a line that never reached the detector."""
    result: Result = dict.fromkeys(("score", "logit", "p_value", "severity"))
    result |= {"outlier": False, "missing": missing if line.error is None else None, "generation": 0, "regime": 0}
    if line.error is None:
        return result | {"status": "no_features"}
    return result | {"status": "malformed", "reason": line.error.reason, "line": line.number}


# --- output


def result_columns(field: str) -> list[str]:
    return [f"{field}_{name}" for name in CSV_COLUMNS]


class JsonWriter:
    """Each record with its result nested under the result field; a malformed line becomes the text `raw`."""

    def __init__(self, out: BinaryIO, table: RecordFile, field: str, scores_only: bool) -> None:
        self.out, self.field, self.scores_only = out, field, scores_only

    def write(self, lines: Sequence[Line], results: Sequence[Result]) -> None:
        for line, result in zip(lines, results, strict=True):
            record = line.record
            if record is None:
                record = {"raw": bytes(line.raw).decode(errors="replace")} if isinstance(line.raw, bytes) else {}
            self.out.write(encode(record, result, self.field, self.scores_only) + b"\n")
        self.out.flush()


class CsvWriter:
    """Each row's cells as they were, then the result's; a malformed row is cut or filled to fit the header.

    Result columns of an earlier run are replaced.
    """

    def __init__(self, out: BinaryIO, table: RecordFile, field: str, scores_only: bool) -> None:
        self.out = out
        columns = result_columns(field)
        self.kept = [] if scores_only else [i for i, name in enumerate(table.header) if name not in columns]
        self.text = io.StringIO()
        self.csv = csv.writer(self.text, delimiter=table.delimiter, lineterminator="\n")
        self.csv.writerow([table.header[i] for i in self.kept] + columns)

    def write(self, lines: Sequence[Line], results: Sequence[Result]) -> None:
        for line, result in zip(lines, results, strict=True):
            cells = [str(line.raw[i]) if i < len(line.raw) else "" for i in self.kept]
            self.csv.writerow(cells + [_csv_cell(result[name]) for name in CSV_COLUMNS])
        self.out.write(self.text.getvalue().encode("utf-8", "surrogateescape"))
        self.out.flush()
        self.text.seek(0)
        self.text.truncate()


def _csv_cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)
