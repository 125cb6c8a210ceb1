"""`fomo-stream score`: reads CSV, JSON lines or Avro and writes it with scores, without Kafka.

Every line of the input is written, in its order. A record that cannot be scored is written with a null score and the
status `malformed` (its line is not a record) or `no_features` (it has no value of any feature); a blank line stays
blank. Memory does not grow with the input, and scores are written as soon as the input pauses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from fomo_stream.cli.output import STANDARD_OUTPUT, open_output
from fomo_stream.cli.scorers import Batch, FixedContextScorer, PrequentialScorer, note_texts
from fomo_stream.errors import ConfigError, FomoError, SkippedError
from fomo_stream.loading import load_ready
from fomo_stream.partition.running import MAINTENANCE
from fomo_stream.records.explanation import key_in_sentence
from fomo_stream.records.files import Line, RecordFile, count_cell, open_records
from fomo_stream.records.inference import MAX_NAMES_SHOWN, is_missing, key_of, text_columns
from fomo_stream.records.lines import Note
from fomo_stream.records.missing_values import MarkCandidates
from fomo_stream.records.presence import Presence
from fomo_stream.records.result import Result, unscored_result
from fomo_stream.records.result_writers import CsvWriter, JsonWriter, OutputForm
from fomo_stream.records.schema import is_number_text, look_up, shown_names
from fomo_stream.records.times import known_time, to_milliseconds
from fomo_stream.wording import clean, counted

if TYPE_CHECKING:
    from fomo_stream.settings.commands import ScoreSettings

LINES_SHOWN = 5  # of the lines that cannot be read
SILENCES_SHOWN = 20
ALWAYS_SHOWN = ("scored", "outliers", "skipped", "missing")  # counts that are shown even where they are 0
INCIDENTS_SHOWN = 3
MAX_SKIPPED = 0.1  # share of lines that could not be scored; a larger one is an error


def run_score(settings: ScoreSettings) -> int:
    """Score `settings.file` to `settings.output`, with a summary on standard error; return the exit code."""
    stdin = settings.file == "-"
    if stdin and sys.stdin is None:
        raise ConfigError("standard input is closed; open it, or name a file")
    name = "standard input" if stdin else settings.file
    trusted = [path for path in (settings.context, settings.reference) if isinstance(path, Path)]
    inputs = [sys.stdin.fileno() if stdin else Path(settings.file), *trusted]
    try:
        with (
            open_output(settings.output, inputs, _note) as out,
            nullcontext(sys.stdin.buffer) if stdin else open_records(settings.file) as stream,
        ):
            table = open_input(settings, stream, name, _note)
            scoring = Scoring(settings, table, out, _note)
            scoring.run()
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has ended
        if settings.output != STANDARD_OUTPUT:
            raise FomoError(f"the reader of {settings.output} has ended") from None
        return 0
    except OSError as error:  # of writing: reading raises other errors
        place = "standard output" if settings.output == STANDARD_OUTPUT else settings.output
        raise FomoError(f"cannot write the results to {place}: {error.strerror}") from None
    scoring.check_skipped()
    return 0


def open_input(settings: ScoreSettings, stream: BinaryIO, name: str, note: Note) -> RecordFile:
    """Open the input as the settings say. Raises SchemaError."""
    text = text_columns(settings, settings.key)
    return RecordFile(stream, settings.format, name, text, note=note, **settings.csv_settings())


def _note(text: str) -> None:
    print(f"fomo-stream: {clean(text)}", file=sys.stderr, flush=True)


class Scoring:
    """One run over one input: reads lines, scores them, and writes them in order."""

    def __init__(self, settings: ScoreSettings, table: RecordFile, out: BinaryIO, note: Note) -> None:
        self._settings, self._table, self._note = settings, table, note
        parts = settings.explain != "none", settings.outliers_only, settings.has_rules, bool(settings.reference)
        form = OutputForm(settings.result_field, settings.scores_only, *parts)
        self._writer = (CsvWriter if table.format == "csv" else JsonWriter)(out, table, form)
        model = load_ready(settings.model, settings.device, settings.backend)
        scorer = FixedContextScorer if settings.context else PrequentialScorer
        self._scorer: FixedContextScorer | PrequentialScorer = scorer(settings, model, table, note)
        self._counts = {"scored": 0, "outliers": 0, "skipped": 0, "unscored": 0, "missing": 0, "blank": 0}
        self._counts |= {MAINTENANCE: 0, "suppressed": 0, "silences": 0}
        # For each feature (d,) the last line of the last batch with a value, else 0.
        self._last: NDArray[np.int64] = np.zeros(1, np.int64)
        self._presence = Presence()
        self._suspects: MarkCandidates | None = None  # made from the first batch
        self._malformed = self._noted = 0  # lines that cannot be read, and how many of them were noted
        self._without = 0  # records without a value of any feature
        self._untimed, self._no_time = 0, ""  # records without a time, and the first text that stands for one
        self._unheard = set(settings.mute_key)  # keys that no record has had
        self._ended: list[Result] = []  # the most surprising incidents that have ended
        self._n_ended = 0
        self._is_calibrated = False  # True once a record could be called an outlier

    def run(self) -> None:
        """Score the whole input, and note the counts."""
        for lines in line_batches(self._table, self._settings.batch_size):
            self._note_errors(lines)
            self._write(self._scorer.add(lines))
        self._write(self._scorer.finish())
        counts = self._counts
        if self._malformed > self._noted:
            self._note(f"{counted(self._malformed - self._noted, 'more line')} could not be read")
        self._note_what_does_not_count()
        if counts["scored"] and not self._is_calibrated and not self._settings.context:
            rate = self._settings.alert_rate
            self._note(
                f"no record could be called an outlier: with --alert-rate {rate:g} that takes {math.ceil(1 / rate)} "
                "records; sort them by score, or give trusted records with --context FILE"
            )
        summary = [f"{name}={count}" for name, count in counts.items() if count or name in ALWAYS_SHOWN]
        self._note(" ".join(summary))
        if self._settings.output != STANDARD_OUTPUT and self._settings.explain != "none":
            self._note_incidents()

    def _note_incidents(self) -> None:
        still_open = self._scorer.partition.incidents.open
        if n := self._n_ended + len(still_open):
            self._note(f"{counted(n, 'incident')}, the most surprising first:")
        for incident in most_surprising_incidents([*self._ended, *still_open]):
            key = f", key {key_in_sentence(incident['key'])}" if "key" in incident else ""
            size = counted(incident["records"], "outlier")
            explanation = incident.get("explanation", "")
            self._note(f"incident at line {incident['from']['offset']}{key} ({size}): {explanation}")

    def check_skipped(self) -> None:
        """Raise SkippedError if too many lines could not be scored."""
        skipped = self._counts["skipped"]
        lines = skipped + self._counts["scored"] + self._counts["unscored"]
        if skipped > MAX_SKIPPED * lines:
            raise SkippedError(
                f"{skipped:,} of {counted(lines, 'line')} could not be scored, which is more than {MAX_SKIPPED:.0%}; "
                "the status of each says why"
            )

    def _note_what_does_not_count(self) -> None:
        """Note what does not count in the file, although the user may expect that it does."""
        counts, table, schema = self._counts, self._table, self._scorer.schema
        if self._without:
            names = shown_names(schema.features, MAX_NAMES_SHOWN)
            self._note(f"{counted(self._without, 'record')} of {table.name} without a value of any feature ({names})")
        if self._untimed:
            example = f", such as {self._no_time[:40]!r}" if self._no_time else ""
            records = f"{counted(self._untimed, 'record')} of {table.name}"
            self._note(f"{records} without a readable time in {self._settings.time}{example}")
        if self._unheard and counts["scored"]:
            keys = shown_names(sorted(self._unheard), MAX_NAMES_SHOWN)
            self._note(f"--mute-key: no record of {table.name} has the key {keys}; --key names the field with the keys")
        if counts["scored"] + counts["unscored"]:
            note_texts(table, schema, self._note)
            last = dict(zip(schema.features, self._last.tolist(), strict=True))
            absent = [name for name, line in last.items() if not line]
            if absent:
                self._note(
                    f"no row of {table.name} has a value of {shown_names(absent, MAX_NAMES_SHOWN)}: missing everywhere"
                )
            for (name, line), is_gone in zip(last.items(), self._presence.gone, strict=True):
                if line and is_gone:
                    self._note(f"{name} has no value after line {line}, or some lines before it")
            for source in (self._scorer.unused, self._suspects):
                for text in () if source is None else source.notes():
                    self._note(text)
        elif counts["skipped"]:
            self._note("nothing was scored; check --features, --format and --context")

    def _note_silence(self, notices: Sequence[Result]) -> None:
        for notice in notices:
            if notice["status"] != "closed":
                self._counts["silences"] += 1
            if self._counts["silences"] <= SILENCES_SHOWN:
                is_over = notice["status"] == "closed"
                time = datetime.fromtimestamp(notice["to" if is_over else "from"]["timestamp"] / 1000, UTC)
                prefix = "" if is_over else "last record "
                self._note(f"{notice['status']}: {notice['explanation']} ({prefix}{time:%Y-%m-%dT%H:%M:%SZ})")

    def _count_texts(self, lines: Sequence[Line], columns: Sequence[int]) -> None:
        """Count the texts in these features that are not numbers."""
        schema = self._scorer.schema
        names = [schema.features[column] for column in columns]
        for name in [name for name in names if name not in schema.categorical]:
            for value in (look_up(line.record, name) for line in lines if line.record is not None):
                if isinstance(value, str) and not is_missing(value) and not is_number_text(value):
                    count_cell(self._table.texts, name, value)

    def _follow_roles(self, lines: Sequence[Line]) -> None:
        """Follow the times and keys of records."""
        time, key, zone = self._settings.time, self._settings.key, ZoneInfo(self._settings.timezone)
        for record in (line.record for line in lines if line.record is not None):
            if time is not None and known_time(to_milliseconds(value := look_up(record, time), zone)) is None:
                self._untimed += 1
                self._no_time = self._no_time or ("" if is_missing(value) else str(value))
            if self._unheard:
                self._unheard.discard(key_of(record, key) or "")

    def _note_errors(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if line.error is not None:
                self._malformed += line.lines
                if self._noted < LINES_SHOWN:
                    self._noted += line.lines
                    self._note(f"{self._table.name} line {line.number}: {line.error}")

    def _write(self, batch: Batch | None) -> None:
        """Write the lines of a batch, with or without a score."""
        if batch is None:
            return
        lines, scored = batch
        self._n_ended += len(scored.closed)
        self._ended = most_surprising_incidents([*self._ended, *(notice.summary for notice in scored.closed)])
        self._note_silence([notice.summary for notice in scored.silence])
        self._last = np.where((~np.isnan(scored.rows)).any(axis=0), lines[-1].number, self._last)
        self._presence.follow(scored.rows, 0)
        if self._suspects is None:
            schema = self._scorer.schema
            self._suspects = MarkCandidates(schema.features, scored.rows, schema.categorical_columns)
            if not self._settings.context:
                list(self._suspects.notes())  # discarded: they were noted with the features
        else:
            self._suspects.follow(scored.rows)
        self._follow_roles(lines)
        if self._table.format != "csv":  # a CSV reader counts them while it reads
            self._count_texts(lines, np.flatnonzero(np.isnan(scored.rows).any(axis=0)).tolist())
        results = [
            result_without_score(line, missing) if result is None else result
            for line, result, missing in zip(lines, scored.results, scored.missing.tolist(), strict=True)
        ]
        for line, result in zip(lines, results, strict=True):
            if line.is_blank:
                self._counts["blank"] += 1
            elif result["status"] == MAINTENANCE:
                self._counts[MAINTENANCE] += line.lines
            elif result["score"] is None:
                self._counts["unscored" if result["status"] == "warming_up" else "skipped"] += line.lines
                self._without += result["status"] == "no_features"
            else:
                self._counts["scored"] += 1
                self._is_calibrated |= result["status"] == "ok"
                self._counts["outliers"] += result["outlier"]
                self._counts["missing"] += result["missing"]
                self._counts["suppressed"] += "suppressed" in result
        self._writer.write(lines, results)


def most_surprising_incidents(incidents: Sequence[Result]) -> list[Result]:
    """Return the INCIDENTS_SHOWN most surprising incidents; of equal ones the first to begin."""
    return sorted(incidents, key=lambda incident: (-incident["surprise"], incident["from"]["offset"]))[:INCIDENTS_SHOWN]


def line_batches(table: RecordFile, size: int) -> Iterator[list[Line]]:
    """Yield up to `size` lines at a time; fewer if the next line is not available yet."""
    batch = []
    for line in table:
        batch.append(line)
        if len(batch) >= size or table.drained:
            yield batch
            batch = []
    if batch:
        yield batch


def result_without_score(line: Line, missing: int) -> Result:
    """Return the result of a line that has no row for the detector."""
    result = unscored_result(missing if line.error is None else None)
    if line.error is None:
        return result | {"status": "no_features"}
    return result | {"status": "malformed", "reason": line.error.reason, "line": line.number}
