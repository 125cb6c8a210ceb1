"""Every metric of the service, with its type, unit and description.

`Metrics` counts while the service works, a micro-batch at a time. Values that the service holds anyway, such as the
positions of partitions, are read only when the metrics are requested.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from fomo_stream import __version__
from fomo_stream.errors import REASONS
from fomo_stream.kafka.observer import Observation, Observer
from fomo_stream.kafka.snapshot import Snapshot
from fomo_stream.ops.metric import PREFIX, Metric
from fomo_stream.partition.incidents import Notice
from fomo_stream.partition.labels import DueLabels
from fomo_stream.settings.flags import LEVELS

prometheus_client.disable_created_metrics()

PARTITION = ("partition",)
SILENCE_LABELS = ("level", "status")
INSTANCE_LABELS = ("version", "model", "kernel", "topic", "group")
METRICS = (
    Metric("info", "gauge", "Version, checkpoint, kernel, topic and group.", INSTANCE_LABELS),
    Metric("ready", "gauge", "1 while records are being scored, else 0; /readyz has the reasons."),
    Metric("partitions_assigned", "gauge", "Input partitions that the group has given to this instance."),
    Metric("partitions_restoring", "gauge", "Of these, partitions that wait for their state."),
    Metric("records", "counter", "Records scored."),
    Metric("records_calibrated", "counter", "Records scored with status ok: only these can be outliers."),
    Metric("score", "histogram", "Scores, from 0 to 1."),
    Metric("alerts", "counter", "Records by severity; warning and critical are outliers.", ("severity",)),
    Metric("suppressed", "counter", "Alerts less by a rule or a window of maintenance, by its name.", ("rule",)),
    Metric("incidents", "counter", "Incidents, by event: opened or closed.", ("event",)),
    Metric("silence", "counter", "Alerts of silence, by level and status.", SILENCE_LABELS),
    Metric("silent", "gauge", "Keys, partitions and topics that are silent now.", ("level",)),
    Metric("alert_rate_requested_ratio", "gauge", "The setting --alert-rate."),
    Metric("alert_rate_realised_ratio", "gauge", "Share of outliers among the last calibrated records, about 10,000."),
    Metric("dead_letters", "counter", "Records that could not be used, by reason.", ("reason",)),
    Metric("tombstones", "counter", "Records without a value that were passed over: --tombstones skip."),
    Metric("missing_values", "counter", "Feature values that scored records lack."),
    Metric("features", "gauge", "Features that are scored; 0 while they are not known."),
    Metric("schemas", "counter", "Schemas of writers that were not known before."),
    Metric("new_fields", "counter", "Fields of schemas, or of JSON, that were not there before and are not scored."),
    Metric("features_missing", "gauge", "Features that had values before and have none for long; the log names them."),
    Metric("labels", "counter", "Labels that took effect."),
    Metric("regimes", "counter", "Lasting shifts that were announced."),
    Metric("drift", "gauge", "How much of what announces a lasting shift was seen, from 0 to 1.", PARTITION),
    Metric("position", "gauge", "Offset before which every record of the partition is finished.", PARTITION),
    Metric("lag_records", "gauge", "Records from the committed offset to the end of the partition.", PARTITION),
    Metric("oldest_unscored_seconds", "gauge", "Age of the oldest record not scored yet; 0: none.", PARTITION),
    Metric("stalled_seconds", "gauge", "How long a partition with unread records has not moved.", PARTITION),
    Metric("open_transaction_seconds", "gauge", "How long readers wait for its end.", ("topic", "partition")),
    Metric("decode_seconds", "histogram", "Time to decode the records of one poll."),
    Metric("score_seconds", "histogram", "Time to score and learn one micro-batch."),
    Metric("produce_seconds", "histogram", "Time to encode and send the outputs of one micro-batch."),
    Metric("commit_seconds", "histogram", "Time of one commit."),
    Metric("end_to_end_seconds", "histogram", "Time from the timestamp of a record to the commit of its score."),
    Metric("commits", "counter", "Commits (with exactly-once: transactions), by outcome.", ("outcome",)),
    Metric("rebalances", "counter", "Partitions that the group has given or taken, by event.", ("event",)),
    Metric("restores", "counter", "Partitions whose state was restored."),
    Metric("restore_retries", "counter", "Attempts to restore a partition that have to be repeated."),
    Metric("restore_seconds", "histogram", "Time from the assignment of a partition until it is read."),
    Metric("generation_age_seconds", "gauge", "Time since the newest context took effect.", PARTITION),
    Metric("build_seconds", "histogram", "Time to build one context."),
    Metric("context_late_seconds", "gauge", "How long a partition has waited for its next context; 0: not.", PARTITION),
    Metric("keys", "gauge", "Keys whose usual values are known.", PARTITION),
    Metric("keys_forgotten", "counter", "Keys that were forgotten, as too many others were used since.", PARTITION),
    Metric("own_contexts", "gauge", "Keys that have contexts of their own.", PARTITION),
    Metric("context_rows", "gauge", "Rows of the history that contexts are made of.", PARTITION),
)

SECONDS_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_BOUNDS = (*SECONDS_BOUNDS, 30.0, 60.0, 300.0, 3600.0)
BOUNDS = {
    "score": (*(i / 20 for i in range(1, 20)), 0.99, 1.0),
    "end_to_end_seconds": LONG_BOUNDS,
    "restore_seconds": LONG_BOUNDS,
}
# Label values that are exposed from the start: then a rate is known from the first event on.
LABELS = {
    "dead_letters": REASONS,
    "alerts": ("info", "warning", "critical"),
    "incidents": ("opened", "closed"),
    "commits": ("committed", "aborted"),
    "rebalances": ("assigned", "revoked", "lost"),
}
BY_FEEDBACK = "feedback"  # stands for all windows that labels name: there may be any number
REALISED_RATE_RECORDS = 10_000  # calibrated records over which the realised alert rate is taken
MIN_REALISED_RATE_RECORDS = 1_000  # calibrated records for a meaningful rate


def merged(topics: Mapping[str, Sequence[Family]], has_one_topic: bool) -> list[Family]:
    """Return the metrics of the process, and those of all topics.

    has_one_topic: then samples keep their labels; else each has the label `topic`, also while there is only one.
    """
    families: dict[str, Family] = {}
    for topic, own in topics.items():
        label = {} if has_one_topic else {"topic": topic}
        for family in own:
            samples = [sample._replace(labels={**label, **sample.labels}) for sample in family.samples]
            if family.name in families:
                families[family.name].samples += samples
            else:
                family.samples = samples
                families[family.name] = family
    return [*ProcessCollector(registry=None).collect(), *families.values()]


def exposition(families: list[Family]) -> bytes:
    """Return metrics in the text format of Prometheus."""
    return generate_latest(_Merged(families))


class _Merged(Collector):
    """Families as a registry takes them."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


class Metrics(Observer):
    """Counts what the service does, for `exposition`.

    named: the rules and windows of maintenance whose names become label values; all others share one value.
    """

    def __init__(self, named: Collection[str] = ()) -> None:
        self._named = frozenset(named)
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, kind, text, labels in METRICS:
            if kind == "counter" and name != "restore_retries":  # the snapshot counts these
                counter = self._counters[name] = Counter(PREFIX + name, text, labels, registry=self._registry)
                for value in LABELS.get(name, ()):
                    counter.labels(value)
            elif kind == "histogram":
                bounds = BOUNDS.get(name, SECONDS_BOUNDS)
                self._histograms[name] = Histogram(PREFIX + name, text, buckets=bounds, registry=self._registry)
        self._recent: deque[tuple[int, int]] = deque()  # (calibrated records, outliers) of micro-batches
        self._recent_records = self._recent_outliers = 0
        self._working_s = 0.0  # scoring and producing since the last report of a poll

    def received(self, n: int, seconds: float) -> None:
        self._observe("decode_seconds", max(0.0, seconds - self._working_s))
        self._working_s = 0.0

    def scored(self, observation: Observation) -> None:
        self._count("records", n=observation.n_records)
        self._count("missing_values", n=observation.missing)
        self._observe("score", *[result["score"] for result in observation.results if result["score"] is not None])
        for name in [result["suppressed"] for result in observation.results if "suppressed" in result]:
            self._count("suppressed", name if name in self._named else BY_FEEDBACK)
        for severity in [result["severity"] for result in observation.results if result["severity"] is not None]:
            self._count("alerts", severity)
        self._count("incidents", "opened", n=observation.opened)
        self._count("incidents", "closed", n=len(observation.closed))
        self._calibrated(observation.calibrated, len(observation.outliers))
        self._observe("score_seconds", observation.score_s)
        self._observe("produce_seconds", observation.produce_s)
        self._working_s += observation.score_s + observation.produce_s

    def dead_letter(self, reason: str) -> None:
        self._count("dead_letters", reason)

    def tombstone(self) -> None:
        self._count("tombstones")

    def labelled(self, partition: int, due: DueLabels) -> None:
        self._count("labels", n=len(due.labels))

    def regime_changed(self) -> None:
        self._count("regimes")

    def silence(self, partition: int, notice: Notice) -> None:
        self._count("silence", notice.summary["of"], notice.summary["status"])

    def schema_seen(self, new_fields: int, schemas: int = 1) -> None:
        self._count("schemas", n=schemas)
        self._count("new_fields", n=new_fields)

    def committed(self, seconds: Sequence[float], ages: Sequence[float], took: float) -> None:
        self._count("commits", "committed")
        self._observe("end_to_end_seconds", *ages)
        self._observe("commit_seconds", took)

    def aborted(self) -> None:
        self._count("commits", "aborted")

    def rebalanced(self, event: str, n: int) -> None:
        self._count("rebalances", event, n=n)

    def restored(self, seconds: float) -> None:
        self._count("restores")
        self._observe("restore_seconds", seconds)

    def built(self, seconds: float) -> None:
        self._observe("build_seconds", seconds)

    def turned(self, now: float) -> None:
        self._working_s = 0.0  # micro-batches scored in this turn do not belong to the next poll

    def _count(self, name: str, *labels: str, n: int = 1) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(n)

    def _observe(self, name: str, *values: float) -> None:
        histogram = self._histograms[name]
        for value in values:
            histogram.observe(value)

    def _calibrated(self, records: int, outliers: int) -> None:
        if not records:
            return
        self._count("records_calibrated", n=records)
        self._recent.append((records, outliers))
        self._recent_records += records
        self._recent_outliers += outliers
        while self._recent_records - self._recent[0][0] >= REALISED_RATE_RECORDS:
            old_records, old_outliers = self._recent.popleft()
            self._recent_records -= old_records
            self._recent_outliers -= old_outliers

    def exposition(self, snapshot: Snapshot) -> bytes:
        """Return all metrics of a process with one topic, in the text format of Prometheus."""
        return exposition(merged({snapshot.topic: self.families(snapshot)}, has_one_topic=True))

    def families(self, snapshot: Snapshot) -> list[Family]:
        """Return the metrics of one topic. Safe from any thread."""
        registry = CollectorRegistry()
        values = self._of_snapshot(snapshot)
        for name, kind, text, labels in METRICS:
            if samples := values.get(name):
                metric = (Gauge if kind == "gauge" else Counter)(PREFIX + name, text, labels, registry=registry)
                for label_values, value in samples:
                    (metric.labels(*label_values) if labels else metric).inc(value)
        return [*self._registry.collect(), *registry.collect()]

    @property
    def realised_rate(self) -> float | None:
        """Share of outliers among the last calibrated records; None while there are too few."""
        records, outliers = self._recent_records, self._recent_outliers
        return outliers / records if records >= MIN_REALISED_RATE_RECORDS else None

    def _of_snapshot(self, snapshot: Snapshot) -> dict[str, list[tuple[tuple[str, ...], float]]]:
        """Return the values of metrics that the snapshot has: label values and number, by metric."""
        values: dict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)

        def note(name: str, value: float | None, *labels: str) -> None:
            if value is not None:
                values[name].append((labels, value))

        note("info", 1, __version__, snapshot.model, snapshot.kernel, snapshot.topic, snapshot.group)
        note("ready", not snapshot.not_ready)
        note("partitions_assigned", len(snapshot.partitions))
        note("partitions_restoring", sum(partition.position is None for partition in snapshot.partitions))
        note("alert_rate_requested_ratio", snapshot.alert_rate)
        note("alert_rate_realised_ratio", self.realised_rate)
        note("features", len(snapshot.features))
        note("features_missing", snapshot.features_missing)
        note("restore_retries", snapshot.restore_retries)
        for level in LEVELS:
            note("silent", sum(partition.silent.get(level, 0) for partition in snapshot.partitions), level)
        for partition in snapshot.partitions:
            number, detector = str(partition.number), partition.detector
            note("drift", detector.drift, number)
            note("position", partition.position, number)
            note("lag_records", partition.lag, number)
            note("oldest_unscored_seconds", partition.oldest_unscored_s, number)
            note("stalled_seconds", partition.stalled_s, number)
            note("generation_age_seconds", partition.generation_age_s, number)
            note("context_late_seconds", partition.context_late_s, number)
            note("keys", detector.keys, number)
            note("keys_forgotten", detector.forgotten, number)
            note("own_contexts", detector.own_contexts, number)
            note("context_rows", detector.context_rows, number)
            for topic, seconds in partition.open_transactions:
                note("open_transaction_seconds", seconds, topic, number)
        return values
