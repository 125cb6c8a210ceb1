"""A pipeline with one partition, and the state that it writes: for tests."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING
from pipelines import QUICK, Recording, commit, make_pipeline, record

from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.ops.progress import ProgressLog
from fomo_stream.partition.position import POSITION, Position, Restored
from fomo_stream.partition.record import Record
from fomo_stream.records.schema import Schema

FLAGS: dict[str, Any] = {**QUICK, "feedback": "f", "feedback_memory": 30, "lags": 2}
IDS = {"t": "T1", "f": "F1"}
SCHEMA = Schema(("x", "y"))


class Instance:
    """A pipeline with one partition, and what it has written since it began."""

    def __init__(self, schema: Schema = SCHEMA, **changes: Any) -> None:
        self.delivery = Recording()
        self.progress = ProgressLog()
        self.pipeline: Pipeline = make_pipeline(
            self.delivery, known=False, observer=self.progress, **{**FLAGS, **changes}
        )
        self.pipeline.drop(1)
        self.pipeline.begin(schema)
        self.restore(Restored(start=0))

    def restore(self, restored: Restored) -> None:
        self.pipeline.activate(self.pipeline.add(0, IDS), restored)

    def score(self, start: int, stop: int) -> None:
        for offset in range(start, stop):
            self.pipeline.receive(as_record(offset), 0.0)
        self.pipeline.finish([0])

    def label(self, at: int, outlier: bool, offset: int | None) -> None:
        """offset: None for a label that is none."""
        value = b"{" if offset is None else json.dumps({"offset": offset, "outlier": outlier}).encode()
        self.pipeline.receive_label(Record("f", 0, at, None, None, value, []), lambda *_: True)

    def commit(self, entries: dict[str, bytes]) -> dict[tuple[str, int], int]:
        """Commit, and bring `entries`, what a compacted log holds, up to date."""
        committed = commit(self.pipeline)
        for output in self.delivery.to("fomo-stream-t-state"):
            assert output.partition in (0, -1)
            key, value = (output.key or b"").decode(), output.value
            if key.startswith("state/"):
                name = key.removeprefix("state/")
                entries |= {name: value[1:]} if value is not None else {}
                if value is None:
                    entries.pop(name, None)
        self.delivery.outputs = [one for one in self.delivery.outputs if one.topic != "fomo-stream-t-state"]
        return committed

    def results(self) -> list[tuple[str, bytes | None]]:
        """What was sent about records since the last look."""
        sent = [(output.topic, output.value) for output in self.delivery.outputs if output.source]
        self.delivery.outputs.clear()
        return sent


def as_record(offset: int) -> Record:
    """Of three series; some are bad, some lack a feature, and after 90 all is different."""
    rng = random.Random(offset)
    key = rng.choice([b"p", b"q", None])
    shift = 20 if offset >= 90 else 0
    fields = {"x": rng.gauss(shift, 1), "y": rng.gauss(5 + shift, 2), "z": 0}
    if rng.random() < 0.1:
        return record(offset, key=key, value=rng.choice([b"{", b"{}", None]))
    del fields[rng.choice(["x", "z", "z", "z"])]
    return record(offset, key=key, value=json.dumps(fields).encode())


def restored(entries: Mapping[str, bytes], committed: Mapping[tuple[str, int], int]) -> Restored:
    position = Position.decode(entries[POSITION]).offset
    start, labels = committed.get(("t", 0), 0), committed.get(("f", 0), OFFSET_BEGINNING)
    return Restored(start, dict(entries), learned_until=position, feedback_start=labels)
