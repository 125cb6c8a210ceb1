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
OF_TARGETS = {  # by field of Health
    "sent": Metric("notify_sent", "counter", "Messages that a target has taken.", TARGET),
    "refused": Metric("notify_failed", "counter", "Messages refused for good, or given up.", TARGET),
    "retried": Metric("notify_retried", "counter", "Tries that failed and are repeated.", TARGET),
    "waiting": Metric("notify_waiting", "gauge", "Messages that wait for a target.", TARGET),
    "oldest_s": Metric(
        "notify_oldest_unsent_seconds", "gauge", "Age of the oldest message that waits; 0: none.", TARGET
    ),
    "held": Metric("notify_held", "gauge", "Messages to people that are held back, to be told together.", TARGET),
}
READY = Metric("notify_ready", "gauge", "1 while messages can be sent, else 0; /readyz has the reasons.")
SKIPPED = Metric("notify_skipped", "counter", "Records that say nothing of an incident, by reason.", ("reason",))
METRICS = (READY, SKIPPED, *OF_TARGETS.values())


def exposition(found: Sequence[Health], skipped: Mapping[str, int], is_ready: bool) -> bytes:
    """All metrics in the text format of Prometheus."""
    values: dict[Metric, Mapping[str, float]] = {READY: {"": float(is_ready)}, SKIPPED: dict(skipped)}
    values |= {metric: {one.name: getattr(one, field) for one in found} for field, metric in OF_TARGETS.items()}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Values(values))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Values(Collector):
    def __init__(self, values: Mapping[Metric, Mapping[str, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        for metric, values in self._values.items():
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.text, labels=metric.labels)
            for label, value in values.items():
                family.add_metric([label] if metric.labels else [], value)
            yield family
