"""`fomo-stream score`: read CSV or JSON lines and write them with scores, without Kafka.

Every record of the input is written, in its place. A record that cannot be scored is written with a null score and the
status `malformed` (its line is not a record) or `no_features` (it has no value of any feature). Memory stays constant
however long the input is, and scores are written as soon as the input pauses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import compress
from typing import TYPE_CHECKING, BinaryIO, TextIO

from fomo_stream.cli.scorers import Batch, FixedContextScorer, PrequentialScorer
from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.loading import load_ready
from fomo_stream.records.choice import text_columns
from fomo_stream.records.files import Line, RecordFile, open_records
from fomo_stream.records.result import Result, results_of
from fomo_stream.records.writers import CsvWriter, JsonWriter

if TYPE_CHECKING:
    from fomo_stream.settings.commands import ScoreSettings

LINES_SHOWN = 5  # of those that cannot be read


def run_score(settings: ScoreSettings) -> int:
    """Score `settings.file` to standard output, with a summary on standard error; returns the exit code."""
    stdin = settings.file == "-"
    if sys.stdout is None or (stdin and sys.stdin is None):
        raise ConfigError("standard input or output is closed; open it, or name a file")
    name = "standard input" if stdin else settings.file
    with nullcontext(sys.stdin.buffer) if stdin else open_records(settings.file) as stream:
        table = RecordFile(stream, settings.format, name, text_columns(settings, settings.key))
        try:
            Scoring(settings, table, sys.stdout.buffer, sys.stderr).run()
        except OSError as error:  # keep the interpreter from flushing the rest again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # the reader of a pipe, such as `head`, has ended
                raise FomoError(f"cannot read {name} or write its scores: {error.strerror}") from None
    return 0


class Scoring:
    """One run over one input: reads lines, has them scored, and writes them in order."""

    def __init__(self, settings: ScoreSettings, table: RecordFile, out: BinaryIO, notes: TextIO) -> None:
        self._table, self._notes, self._batch_size = table, notes, settings.batch_size
        writer = CsvWriter if table.format == "csv" else JsonWriter
        self._lags = settings.lags
        self._writer = writer(out, table, settings.result_field, settings.scores_only)
        self._model = load_ready(settings.model, settings.device, settings.kernel)
        scorer = FixedContextScorer if settings.context else PrequentialScorer
        self._scorer: FixedContextScorer | PrequentialScorer = scorer(settings, self._model, table, self._note)
        self._counts = {"scored": 0, "outliers": 0, "skipped": 0, "unscored": 0, "missing": 0}
        self._malformed = 0

    def run(self) -> None:
        """Score the whole input, and note the counts."""
        for lines in batches(self._table, self._batch_size):
            self._note_errors(lines)
            self._write(self._scorer.add(lines))
        self._write(self._scorer.finish())
        counts = self._counts
        if self._malformed > LINES_SHOWN:
            self._note(f"{self._malformed - LINES_SHOWN} more lines could not be read")
        if counts["skipped"] and not counts["scored"] + counts["unscored"]:
            self._note(f"nothing was scored: no row of {self._table.name} has a value of any feature; check --features")
        self._note(" ".join(f"{name}={count}" for name, count in counts.items() if count or name != "unscored"))

    def _note(self, text: str) -> None:
        print(f"fomo-stream: {text}", file=self._notes, flush=True)

    def _note_errors(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if line.error is not None:
                self._malformed += 1
                if self._malformed <= LINES_SHOWN:
                    self._note(f"{self._table.name} line {line.number}: {line.error}")

    def _write(self, batch: Batch) -> None:
        """Write the lines of a batch, with or without a score."""
        if not batch.lines:
            return
        missing = batch.missing.tolist()
        records = [line.record or {} for line in compress(batch.lines, batch.usable)]
        lacking = batch.missing[batch.usable].tolist()
        schema, lags = self._scorer.schema, self._lags
        scored = iter(results_of(batch.scored, self._model.name, schema, records, lacking, lags=lags))
        results = [
            next(scored) if usable else unscored(line, lacking)
            for line, usable, lacking in zip(batch.lines, batch.usable, missing, strict=True)
        ]
        for result in results:
            if result["score"] is None:
                self._counts["unscored" if result["status"] == "warming_up" else "skipped"] += 1
            else:
                self._counts["scored"] += 1
                self._counts["outliers"] += result["outlier"]
                self._counts["missing"] += result["missing"]
        self._writer.write(batch.lines, results)


def batches(table: RecordFile, size: int) -> Iterator[list[Line]]:
    """Up to `size` lines at a time; fewer if the next line is not available yet."""
    batch = []
    for line in table:
        batch.append(line)
        if len(batch) >= size or table.drained:
            yield batch
            batch = []
    if batch:
        yield batch


def unscored(line: Line, missing: int) -> Result:
    """The result of a line that has no row for the detector."""
    result: Result = dict.fromkeys(("score", "remembered_logit", "logit", "p_value", "severity", "confidence"))
    result |= {"outlier": False, "missing": missing if line.error is None else None, "generation": 0, "regime": 0}
    if line.error is None:
        return result | {"status": "no_features"}
    return result | {"status": "malformed", "reason": line.error.reason, "line": line.number}
