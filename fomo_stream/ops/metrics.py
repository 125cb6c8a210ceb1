"""Every metric of the service, with its type, unit and description.

`Metrics` counts while the service works, a micro-batch at a time, in plain numbers. Everything else is done when the
metrics are asked for.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from fomo_stream import __version__
from fomo_stream.errors import REASONS
from fomo_stream.kafka.observer import Observation, Observer
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "fomo_"
Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """A metric. A counter is exposed as `<name>_total`, a histogram as `<name>_bucket`, `_sum` and `_count`."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


def _metric(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, kind, text, labels)


# The unit is the end of the name; numbers of things have none.
METRICS = (
    _metric(
        "info",
        "gauge",
        "Version, checkpoint, kernel, topic and group.",
        "version",
        "model",
        "kernel",
        "topic",
        "group",
    ),
    _metric("ready", "gauge", "1 while records are being scored, else 0; /readyz has the reasons."),
    _metric("partitions_assigned", "gauge", "Input partitions that the group has given to this instance."),
    _metric("partitions_restoring", "gauge", "Of these, partitions that wait for their state."),
    _metric("records", "counter", "Records scored."),
    _metric("records_calibrated", "counter", "Records scored with status ok: only these can be outliers."),
    _metric("score", "histogram", "Scores, from 0 to 1."),
    _metric("alerts", "counter", "Records by severity; warning and critical are outliers.", "severity"),
    _metric("incidents", "counter", "Incidents, by event: opened or closed.", "event"),
    _metric("alert_rate_requested_ratio", "gauge", "The setting --alert-rate."),
    _metric("alert_rate_realised_ratio", "gauge", "Share of outliers among the last calibrated records, about 10,000."),
    _metric("dead_letters", "counter", "Records that could not be used, by reason.", "reason"),
    _metric("missing_values", "counter", "Feature values that scored records lack."),
    _metric("features", "gauge", "Features that are scored; 0 while they are not known."),
    _metric("labels", "counter", "Labels that took effect."),
    _metric("rows_learned", "counter", "Rows that were learned."),
    _metric("trimmed_rows", "gauge", "Rows that the newest trimmed context has left out.", "partition"),
    _metric("regimes", "counter", "Lasting shifts that were announced."),
    _metric("drift", "gauge", "How much of what announces a new regime was seen, from 0 to 1.", "partition"),
    _metric("position", "gauge", "Offset before which every record of the partition is finished.", "partition"),
    _metric("lag_records", "gauge", "Records from the committed offset to the end of the partition.", "partition"),
    _metric(
        "oldest_unscored_seconds",
        "gauge",
        "Age of the oldest record not scored yet; 0: none.",
        "partition",
    ),
    _metric(
        "open_transaction_seconds",
        "gauge",
        "How long readers have waited for a transaction to end.",
        "topic",
        "partition",
    ),
    _metric("decode_seconds", "histogram", "Time to decode the records of one poll."),
    _metric("score_seconds", "histogram", "Time to score and learn one micro-batch."),
    _metric("produce_seconds", "histogram", "Time to encode and send the outputs of one micro-batch."),
    _metric("commit_seconds", "histogram", "Time of one commit."),
    _metric("end_to_end_seconds", "histogram", "Time from the timestamp of a record to the commit of its score."),
    _metric("commits", "counter", "Commits (with exactly-once: transactions), by outcome.", "outcome"),
    _metric("rebalances", "counter", "Partitions that the group has given or taken, by event.", "event"),
    _metric("restores", "counter", "Partitions whose state was restored."),
    _metric("restore_retries", "counter", "Attempts to restore a partition that have to be repeated."),
    _metric("restore_seconds", "histogram", "Time from the assignment of a partition until it is read."),
    _metric("generations", "counter", "Contexts that took effect."),
    _metric("generation_age_seconds", "gauge", "Time since the newest context took effect.", "partition"),
    _metric("generation_age_records", "gauge", "Records since the newest context took effect.", "partition"),
    _metric("build_seconds", "histogram", "Time to build one context."),
    _metric(
        "context_late_seconds",
        "gauge",
        "How long a partition has waited for a context that is not built yet; 0: it does not wait.",
        "partition",
    ),
    _metric("context_rows", "gauge", "Rows of the history of which contexts are made.", "partition"),
)

SCORE_BOUNDS = (*tuple(i / 20 for i in range(1, 20)), 0.99, 1.0)
SECONDS_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_BOUNDS = (*SECONDS_BOUNDS, 30.0, 60.0, 300.0, 3600.0)
BOUNDS = {"score": SCORE_BOUNDS, "end_to_end_seconds": LONG_BOUNDS, "restore_seconds": LONG_BOUNDS}
COUNTED_TOGETHER = 1024  # values of a histogram
REALISED_OVER = 10_000  # calibrated records over which the realised alert rate is taken
REALISED_LEAST = 1_000  # fewer say too little


class Histogram:
    """Counts of values by bucket, and their sum.

    >>> histogram = Histogram((1.0, 2.0))
    >>> histogram.add([0.5, 1.0, 1.5, 9.0])
    >>> histogram.buckets()
    ([('1.0', 2.0), ('2.0', 3.0), ('+Inf', 4.0)], 12.0)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._new: list[float] = []  # values that are not counted yet: a thousand cost little more than one
        self._lock = threading.Lock()

    def add(self, values: Sequence[float]) -> None:
        """Count these values."""
        with self._lock:
            self._new += values
            if len(self._new) >= COUNTED_TOGETHER:
                self._count()

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Upper bound of each bucket, and how many values are not above it; then the sum of all values."""
        with self._lock:
            self._count()
            counts, total = self._counts.cumsum().astype(float), self._sum
        return list(zip((*map(str, self._bounds.tolist()), "+Inf"), counts.tolist(), strict=True)), total

    def _count(self) -> None:
        new, self._new = np.array(self._new), []
        self._counts += np.bincount(self._bounds.searchsorted(new), minlength=len(self._counts))
        self._sum += float(new.sum())


class Metrics(Observer):
    """Counts what the service does, for `exposition`."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)  # by metric and labels
        self._histograms = {
            metric.name: Histogram(BOUNDS.get(metric.name.removeprefix(PREFIX), SECONDS_BOUNDS))
            for metric in METRICS
            if metric.kind == "histogram"
        }
        self._generations: dict[int, int] = {}  # by partition, as last seen
        self._recent: deque[tuple[int, int]] = deque()  # (calibrated records, outliers) of micro-batches
        self._recent_records = self._recent_outliers = 0
        self._working_s = 0.0  # scoring and producing since the last report of a poll
        for name, label, values in (
            ("dead_letters", "reason", REASONS),
            ("alerts", "severity", ("info", "warning", "critical")),
            ("incidents", "event", ("opened", "closed")),
            ("commits", "outcome", ("committed", "aborted")),
            ("rebalances", "event", ("assigned", "revoked", "lost")),
        ):
            assert label in next(metric.labels for metric in METRICS if metric.name == PREFIX + name)
            for value in values:  # so that a rate is known from the first event on
                self._counts[name][value,] = 0

    # --- reports ------------------------------------------------------------------------------------------------

    def received(self, n: int, seconds: float) -> None:
        self._time("decode_seconds", max(0.0, seconds - self._working_s))
        self._working_s = 0.0

    def scored(self, seen: Observation) -> None:
        self._count("records", seen.n_records)
        self._count("rows_learned", seen.learned)
        self._count("missing_values", seen.missing)
        scores = [result["score"] for result in seen.results if result["score"] is not None]
        self._histograms[PREFIX + "score"].add(scores)
        for severity in [result["severity"] for result in seen.results if result["severity"] is not None]:
            self._counts["alerts"][severity,] += 1
        self._counts["incidents"]["opened",] += seen.opened
        self._counts["incidents"]["closed",] += seen.closed
        self._calibrated(seen.calibrated, len(seen.outliers))
        self._time("score_seconds", seen.score_s)
        self._time("produce_seconds", seen.produce_s)
        self._working_s += seen.score_s + seen.produce_s
        known = self._generations.get(seen.partition)
        if known is not None and seen.generation > known:
            self._count("generations", seen.generation - known)
        self._generations[seen.partition] = seen.generation

    def dead_letter(self, reason: str) -> None:
        self._counts["dead_letters"][reason,] += 1

    def labelled(self, n: int) -> None:
        self._count("labels", n)

    def regime_changed(self) -> None:
        self._count("regimes")

    def committed(self, seconds: Sequence[float], ages: Sequence[float], took: float) -> None:
        self._counts["commits"]["committed",] += 1
        self._histograms[PREFIX + "end_to_end_seconds"].add(ages)
        self._time("commit_seconds", took)

    def aborted(self) -> None:
        self._counts["commits"]["aborted",] += 1
        self._generations.clear()

    def rebalanced(self, event: str, n: int) -> None:
        self._counts["rebalances"][event,] += n
        self._generations.clear()  # an older state may come back

    def restored(self, seconds: float) -> None:
        self._count("restores")
        self._time("restore_seconds", seconds)

    def built(self, seconds: float) -> None:
        self._time("build_seconds", seconds)

    def turned(self, now: float) -> None:
        self._working_s = 0.0  # micro-batches that a turn scored are no part of the next poll

    def _count(self, name: str, n: int = 1) -> None:
        self._counts[name][()] += n

    def _time(self, name: str, seconds: float) -> None:
        self._histograms[PREFIX + name].add((seconds,))

    def _calibrated(self, records: int, outliers: int) -> None:
        if not records:
            return
        self._count("records_calibrated", records)
        self._recent.append((records, outliers))
        self._recent_records += records
        self._recent_outliers += outliers
        while self._recent_records - self._recent[0][0] >= REALISED_OVER:
            old_records, old_outliers = self._recent.popleft()
            self._recent_records -= old_records
            self._recent_outliers -= old_outliers

    # --- exposition ---------------------------------------------------------------------------------------------

    def exposition(self, snapshot: Snapshot) -> bytes:
        """All metrics in the text format of Prometheus. Safe from any thread."""
        registry = CollectorRegistry()
        registry.register(_Families(list(self._families(snapshot))))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    @property
    def realised_rate(self) -> float | None:
        """Share of outliers among the last calibrated records; None while there are too few."""
        records, outliers = self._recent_records, self._recent_outliers
        return outliers / records if records >= REALISED_LEAST else None

    def _families(self, snapshot: Snapshot) -> Iterator[Family]:
        gauges = {PREFIX + name: values for name, values in self._gauges(snapshot).items()}
        retries = {"restore_retries": Counter({(): snapshot.restore_retries})}
        counts = {PREFIX + name: dict(values) for name, values in (list(self._counts.items()) + list(retries.items()))}
        for metric in METRICS:
            if metric.kind == "histogram":
                histogram = self._histograms[metric.name]
                yield HistogramMetricFamily(metric.name, metric.text, *histogram.buckets())
                continue
            is_counter = metric.kind == "counter"
            family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
                metric.name, metric.text, labels=metric.labels
            )
            found = counts.get(metric.name, {} if metric.labels else {(): 0}) if is_counter else gauges[metric.name]
            for labels, value in found.items():
                if value is not None:
                    family.add_metric(labels, value)
            yield family

    def _gauges(self, snapshot: Snapshot) -> dict[str, dict[tuple[str, ...], float | None]]:
        waiting = sum(bool(one.waits) for one in snapshot.partitions)
        alone: dict[str, float | None] = {
            "ready": not snapshot.not_ready,
            "partitions_assigned": len(snapshot.partitions),
            "partitions_restoring": waiting,
            "alert_rate_requested_ratio": snapshot.alert_rate,
            "alert_rate_realised_ratio": self.realised_rate,
            "features": len(snapshot.features),
        }
        found: dict[str, dict[tuple[str, ...], float | None]] = {name: {(): value} for name, value in alone.items()}
        found["info"] = {(__version__, snapshot.model, snapshot.kernel, snapshot.topic, snapshot.group): 1}
        found["open_transaction_seconds"] = {
            (topic, str(one.number)): seconds for one in snapshot.partitions for topic, seconds in one.open_transactions
        }
        for name, value_of in _OF_PARTITION.items():
            found[name] = {(str(one.number),): value_of(one) for one in snapshot.partitions}
        return found


_OF_PARTITION: dict[str, Callable[[PartitionSnapshot], float | None]] = {
    "trimmed_rows": lambda one: one.detector.trimmed_rows,
    "drift": lambda one: one.detector.drift,
    "position": lambda one: one.position,
    "lag_records": lambda one: one.lag,
    "oldest_unscored_seconds": lambda one: one.oldest_unscored_s,
    "generation_age_seconds": lambda one: one.generation_age_s,
    "generation_age_records": lambda one: one.detector.generation_age,
    "context_late_seconds": lambda one: one.context_late_s,
    "context_rows": lambda one: one.detector.context_rows,
}


class _Families(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families
