"""Every metric of `fomo-stream notify`, with its type and description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from fomo_stream.notify.messenger import Health
from fomo_stream.ops.metric import PREFIX, Metric

prometheus_client.disable_created_metrics()

TARGET = ("target",)
METRICS = (
    Metric("notify_ready", "gauge", "1 while messages can be sent, else 0; /readyz has the reasons."),
    Metric("notify_sent", "counter", "Messages that a target has taken.", TARGET),
    Metric("notify_failed", "counter", "Messages that a target has refused for good, or that were given up.", TARGET),
    Metric("notify_retried", "counter", "Tries that failed and are repeated.", TARGET),
    Metric("notify_waiting", "gauge", "Messages that wait for a target.", TARGET),
    Metric("notify_oldest_unsent_seconds", "gauge", "Age of the oldest message that waits; 0: none.", TARGET),
    Metric("notify_open_incidents", "gauge", "Incidents that are open."),
    Metric("notify_held", "gauge", "Messages to people that are held back, to be told together."),
    Metric(
        "notify_skipped", "counter", "Records of the topic that say nothing of an incident, by reason.", ("reason",)
    ),
)


def exposition(found: Sequence[Health], skipped: Mapping[str, int], n_open: int, n_held: int, is_ready: bool) -> bytes:
    """All metrics in the text format of Prometheus."""
    values: dict[str, Mapping[str, float]] = {
        "notify_ready": {"": float(is_ready)},
        "notify_sent": {one.name: one.sent for one in found},
        "notify_failed": {one.name: one.refused for one in found},
        "notify_retried": {one.name: one.retried for one in found},
        "notify_waiting": {one.name: one.waiting for one in found},
        "notify_oldest_unsent_seconds": {one.name: one.oldest_s for one in found},
        "notify_open_incidents": {"": n_open},
        "notify_held": {"": n_held},
        "notify_skipped": dict(skipped),
    }
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Values(values))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Values(Collector):
    def __init__(self, values: Mapping[str, Mapping[str, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.text, labels=metric.labels)
            for label, value in self._values[metric.name].items():
                family.add_metric([label] if metric.labels else [], value)
            yield family
