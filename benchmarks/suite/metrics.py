"""The cost of metrics and of the status page: their share of the time of the service's thread, and one scrape.

The share is of decoding, scoring and encoding only. With the Kafka client's work, which is not measured here, it is
smaller. What the clock costs that measures it is left out.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fomo_stream import load_model
from fomo_stream.detector.results import DetectorSummary
from fomo_stream.kafka.background import BackgroundExecutor
from fomo_stream.kafka.delivery.base import Output
from fomo_stream.kafka.observer import Observer, Observers
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot
from fomo_stream.kafka.topics.watch import TopicsAnswer
from fomo_stream.ops.metrics import Metrics
from fomo_stream.ops.status import StatusBoard
from fomo_stream.partition.position import Restored
from fomo_stream.partition.record import Record
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service_settings import ServiceSettings

from .contenders import sensor_rows
from .load import FEATURES, bodies, names
from .report import Measurement
from .scale import Scale

POLL = 256  # records of one poll
COMMIT = 750  # records of one commit
PARTITIONS = 100  # of the instance that is scraped


def measure(scale: Scale) -> Iterator[Measurement]:
    """Both, of the default views and with every metric."""
    metrics, board = Metrics(), StatusBoard()
    clock = share_of(Observer(), scale.metrics_records)
    for of, observers in (("metrics", [metrics]), ("metrics and status page", [Metrics(), board])):
        share = share_of(Observers(observers), scale.metrics_records) - clock
        yield Measurement("share of the thread", {"of": of, "features": FEATURES}, 100 * max(share, 1e-6), "%")
    partitions = tuple(_partition(number) for number in range(PARTITIONS))
    snapshot = Snapshot("running", (), "t", "o", "g", None, "m", "numba", names(), 0.01, partitions)
    spent = []
    for _ in range(20):
        began = time.perf_counter()
        metrics.exposition(snapshot)
        spent.append(1000 * (time.perf_counter() - began))
    low, median, high = np.quantile(spent, [0.25, 0.5, 0.75]).tolist()
    yield Measurement("scrape", {"partitions": PARTITIONS}, median, "ms", (high - low) / 2)


def share_of(observer: Observer, records: int) -> float:
    """Share of the time of a thread that scores so many records, half of them to warm up, that an observer takes."""
    spent = [0.0]
    settings = ServiceSettings(topic="t", features=names())
    sink: Any = _Sink()
    with BackgroundExecutor("builds") as executor:
        timed = _timed(observer, spent)
        pipeline = Pipeline(settings, load_model(device="cpu"), sink, executor, lambda: {}, timed)
        pipeline.begin(Schema(names()))
        pipeline.activate(pipeline.add(0, {}), Restored(0))
        began = 0.0
        for offset, body in enumerate(bodies(sensor_rows(records, FEATURES))):
            if offset == records // 2:
                spent[0], began = 0.0, time.thread_time()
            pipeline.receive(Record("t", 0, offset, 1, None, body, []), 0.0)
            while len(pipeline.partitions[0].waiting) >= settings.batch_size:  # its context is not built yet
                time.sleep(0.001)
                pipeline.score_due(0.0)
            if offset % POLL == 0:
                timed.received(POLL, 0.1)
            if offset % COMMIT == 0:
                pipeline.committed(pipeline.stage(TopicsAnswer({}, {})), 0.0, 0.1, 0.1)
        return spent[0] / (time.thread_time() - began)


class _Sink:
    """A delivery that sends nothing."""

    def send(self, *outputs: Output) -> None: ...

    def refusal(self, output: Output) -> str:
        return ""

    def refused(self, topic: str, record: Record) -> tuple[int, None]:
        return 0, None


def _timed(observer: Observer, spent: list[float]) -> Observer:
    """The same observer; the CPU time of its calls is added up in spent[0]."""
    twin = Observer()

    def timed(call: Callable[..., None]) -> Callable[..., None]:
        def work(*given: object) -> None:
            began = time.thread_time()
            call(*given)
            spent[0] += time.thread_time() - began

        return work

    for name, _ in inspect.getmembers(Observer, inspect.isfunction):
        if name != "built":  # runs in another thread
            setattr(twin, name, timed(getattr(observer, name)))
    return twin


def _partition(number: int) -> PartitionSnapshot:
    summary = DetectorSummary(100_000, 1000, 200, 400, 17, 0.0)
    return PartitionSnapshot(number, "", 100, 100, 120, 20, 0.2, (("t", 0.0), ("s", 0.0)), 3.0, 0.0, 0.0, summary)
