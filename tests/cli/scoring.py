"""Runs `fomo-stream score` in this process, on bytes."""

from __future__ import annotations

import csv
import io
import json
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fastavro

from fomo_stream.cli.score import Scoring, open_input
from fomo_stream.demo.sensors import sensor_stream
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.settings.commands import ScoreSettings

N = 420
FIELDS = ("pump", "reading", "temperature_c", "pressure_bar", "vibration_x_mm_s", "flow_m3_h", "vibration_y_mm_s")
READINGS = islice(sensor_stream(0, fault_every=100, first_fault=200), N)
RECORDS = [{name: record[name] for name in FIELDS} for record, _ in READINGS]


def as_jsonl(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def as_csv(records: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def as_avro(records: list[dict[str, Any]]) -> bytes:
    kinds = {str: "string", int: "long", float: "double", type(None): "null"}
    fields = []
    for name in records[0]:
        found = {kinds[type(record[name])] for record in records}
        fields.append({"name": name, "type": sorted(found, key=lambda kind: kind != "null")})
    stream = io.BytesIO()
    fastavro.writer(stream, {"type": "record", "name": "R", "fields": fields}, records)
    return stream.getvalue()


def score(model_path: Path, data: bytes, **flags: Any) -> tuple[bytes, str]:
    """The text for standard output and for standard error. may_skip: any number of lines.

    All calls share the model: to load it takes longer than to score.
    """
    out, notes, may_skip = io.BytesIO(), io.StringIO(), flags.pop("may_skip", False)
    settings = ScoreSettings(**{"model": str(model_path), "device": "cpu", "min_context": 50, **flags})

    def note(text: str) -> None:
        print(text, file=notes)

    with patch("fomo_stream.cli.score.load_ready", shared_model):
        scoring = Scoring(settings, open_input(settings, io.BytesIO(data), "the input", note), out, note)
    scoring.run()
    if not may_skip:
        scoring.check_skipped()
    return out.getvalue(), notes.getvalue()


def results(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line)["fomo"] for line in output.splitlines()]


def table(output: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(output.decode())))
