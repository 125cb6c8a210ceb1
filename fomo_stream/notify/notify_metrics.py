"""Every metric of `fomo-stream notify`, with its type and description."""

from __future__ import annotations

from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from fomo_stream.ops.metric import PREFIX, Metric

prometheus_client.disable_created_metrics()

TARGET = ("target",)
READY = Metric("notify_ready", "gauge", "1 while messages can be sent, else 0; /readyz has the reasons.")
SENT = Metric("notify_sent", "counter", "Messages that a target has taken.", TARGET)
FAILED_FOR_GOOD = Metric("notify_failed", "counter", "Messages that a target has refused for good.", TARGET)
RETRIED = Metric("notify_retried", "counter", "Tries that failed and are repeated.", TARGET)
OLDEST = Metric("notify_oldest_unsent_seconds", "gauge", "For how long a message is tried; 0: none waits.", TARGET)
HELD = Metric("notify_held", "gauge", "Messages to people that are held back, to be told together.", TARGET)
SKIPPED = Metric("notify_skipped", "counter", "Records that tell of no incident, by reason.", (*TARGET, "reason"))
METRICS = (READY, SENT, FAILED_FOR_GOOD, RETRIED, OLDEST, HELD, SKIPPED)

registry = CollectorRegistry()
ProcessCollector(registry=registry)
_KINDS: dict[str, Any] = {"counter": Counter, "gauge": Gauge}
_values = {m: _KINDS[m.kind](PREFIX + m.name, m.text, m.labels, registry=registry) for m in METRICS}


def metric_value(metric: Metric, *labels: str) -> Any:
    """Return the counter or gauge of a metric with these labels."""
    return _values[metric].labels(*labels) if labels else _values[metric]
