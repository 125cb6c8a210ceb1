"""Pipelines over a delivery that sends nothing, with a cheap model; and one partition with the state that it writes."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from confluent_kafka import OFFSET_BEGINNING, KafkaError

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.kafka.delivery.base import Output
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.topics.watch import TopicsAnswer
from fomo_stream.model.architecture import CompiledModel, Model, ModelConfig
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.ops.monitor import ProgressLog
from fomo_stream.partition.position import POSITION, Restored, SavedPosition
from fomo_stream.partition.record import Record
from fomo_stream.partition.running import Running
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service_settings import ServiceSettings

CHEAP = ModelConfig(
    spaces="whitened",
    fusion=False,
    evidence=False,
    layers=1,
    width=8,
    feed_forward=8,
    routers=0,
    attention="kernel",
)


@cache
def cheap_model(name: str = "cheap") -> CompiledModel:
    """Untrained, for the kernels, and a small part of the work of a real one.

    Its scores say nothing, but depend on the record and on the context. With this seed it has alerts from the first
    generation on.
    """
    with torch.random.fork_rng():
        torch.manual_seed(11)
        arrays = ZeroShotModel(CHEAP).arrays()
    head = np.random.default_rng(11).normal(size=arrays["network.head.2.weight"].shape).astype(np.float32)
    # no densities, and a high bias: a model that finds nothing odd has no alerts
    arrays |= {"network.head.2.weight": head, "network.weight": 0 * arrays["network.weight"]}
    return CompiledModel(name, CHEAP, arrays | {"network.bias": np.array(3.0, np.float32)})


class QuickSettings(ServiceSettings):
    """Few records are enough for a generation, a regime, or to forget one."""

    def detector_config(self) -> DetectorConfig:
        return replace(super().detector_config(), lag=16, recent_every=32, calibration_size=50)


QUICK: dict[str, Any] = {
    "kind": QuickSettings,
    "min_context": 10,
    "context_size": 20,
    "adapt_after": 60,
    "alert_rate": 0.1,
    "batch_size": 8,
}


class Recording:
    """A delivery that sends nothing: a test says what the broker refuses."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.refusals = self  # as those of a real one
        self._refused: dict[tuple[str, int], tuple[int, KafkaError | None]] = {}  # by topic and offset of the source
        self.limits: dict[str, int] = {}
        self.is_committing = False

    @property
    def sent(self) -> int:
        return len(self.outputs)

    def send(self, *outputs: Output) -> None:
        self.outputs += outputs

    def refusal(self, output: Output) -> str:
        return "it is too large" if output.size() > self.limits.get(output.topic, output.size()) else ""

    def of(self, topic: str, source: Record) -> tuple[int, KafkaError | None]:
        return self._refused.get((topic, source.offset), (0, None))

    def refuse(self, topic: str, offset: int, times: int, code: int = KafkaError.MSG_SIZE_TOO_LARGE) -> None:
        self._refused[topic, offset] = (times, KafkaError(code))

    def to(self, topic: str) -> list[Output]:
        return [output for output in self.outputs if output.topic == topic]

    def reasons(self) -> list[tuple[int, str]]:
        """Source offset and reason of each dead letter."""
        headers = [dict(output.headers) for output in self.to("t-dead-letters")]
        return [(int(h["fomo-source-offset"] or b""), (h["fomo-reason"] or b"").decode()) for h in headers]


class Patient(Future[Any]):
    """A result that nobody may wait for before it is there."""

    def result(self, timeout: float | None = None) -> Any:
        assert self.done(), "somebody waits"
        return super().result(timeout)


class Lazy(Executor):
    """Runs submitted calls in `work`; waiting for a result before that is an error."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._waiting.append((Patient(), partial(fn, *args, **kwargs)))
        return self._waiting[-1][0]

    def work(self) -> None:
        while self._waiting:
            future, call = self._waiting.popleft()
            future.set_result(call())


class AtOnce(Executor):
    """Runs everything at once."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def make_pipeline(
    recording: Recording,
    executor: Executor | None = None,
    partitions: Mapping[str, int] | None = None,
    known: bool = True,
    model: Model | None = None,
    kind: type[ServiceSettings] = ServiceSettings,
    observer: Observer | None = None,
    **changes: Any,
) -> Pipeline:
    """A pipeline over topic `t` with partitions 0 and 1, warm after 20 rows, two records in a batch."""
    flags = {"topic": "t", "batch_size": 2, "min_context": 20, "context_size": 40, **changes}
    counts = {"t": 2, "t-scores": 2, "t-dead-letters": 2} if partitions is None else partitions
    sending: Any = recording
    pipeline = Pipeline(kind(**flags), model or cheap_model(), sending, executor or AtOnce(), lambda: counts, observer)
    for number in (0, 1):
        begin(pipeline, number)
    if known:
        pipeline.begin(Schema(("x", "y")))
    return pipeline


def begin(pipeline: Pipeline, number: int, start: int = 0) -> None:
    """A partition comes, of which nothing is known."""
    pipeline.activate(pipeline.add(number, {}), Restored(start, committed=start))


def commit(pipeline: Pipeline) -> dict[tuple[str, int], int]:
    """A commit succeeds; returns its offsets."""
    offsets = pipeline.stage(TopicsAnswer({"t": 2, "f": 2}, {}))
    pipeline.committed(offsets, 0.0, 0.0, 0.0)
    return {(found.topic, found.partition): found.offset for found in offsets}


def record(offset: int, partition: int = 0, key: bytes | None = None, value: bytes | None = b"") -> Record:
    rng = random.Random(offset)
    value = json.dumps({"x": rng.gauss(0, 1), "y": rng.gauss(5, 2)}).encode() if value == b"" else value
    return Record("t", partition, offset, 1_700_000_000_000, key, value, [])


def offsets(outputs: list[Output]) -> Iterator[int]:
    for output in outputs:
        assert output.value is not None
        yield json.loads(output.value)["fomo"]["offset"]


def sources(outputs: list[Output]) -> list[int]:
    """Offset of the record that each output is about."""
    return [output.source.offset for output in outputs if output.source is not None]


FLAGS: dict[str, Any] = {
    **QUICK,
    "feedback": "f",
    "feedback_memory": 30,
    "lags": 2,
    "views": ("trimmed", "recent"),
    "explain": "none",
}
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


def detector_of(pipeline: Pipeline, number: int = 0) -> Detector:
    running = pipeline.partitions[number]
    assert isinstance(running, Running)
    return running.detector


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
    position = SavedPosition.decode(entries[POSITION]).offset
    start, labels = committed.get(("t", 0), 0), committed.get(("f", 0), OFFSET_BEGINNING)
    return Restored(start, dict(entries), learned_until=position, feedback_start=labels, committed=start)
