"""Sends the metrics to an OpenTelemetry collector, by OTLP over HTTP, with the library of OpenTelemetry.

They are those of `/metrics`, with the same names and labels: each push reads them as a request of Prometheus does. The
library cannot read metrics that others count, so they become its data points here, and only its exporter is used.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from fomo_stream import __version__
from fomo_stream.errors import ConfigError
from fomo_stream.logs import Throttle, kv, raised_at

log = logging.getLogger(__name__)

LAST_S = 3.0  # the end of the process waits so long for the last values to be sent
TROUBLE_S = 600.0  # between two log lines about a collector that takes nothing
MAX_REASON = 300  # characters
SUMS = export.AggregationTemporality.CUMULATIVE


class OtlpSender:
    """Sends metrics every `interval_s` seconds, and once more at the end, in a thread: no collector delays the scoring.

    read: returns the metrics. The variables OTEL_* say where they go. Raises ConfigError for those that are wrong.
    """

    def __init__(self, read: Callable[[], Iterable[Family]], interval_s: float) -> None:
        self._read, self._interval_s = read, interval_s
        self._began_ns = time.time_ns()
        self._throttle = Throttle(TROUBLE_S)
        library = logging.getLogger("opentelemetry")  # its other lines may hold a header with a password
        library.handlers[:], library.propagate = [logging.NullHandler()], False
        logging.getLogger("opentelemetry.exporter").handlers[:] = [_TroubleLog(self._throttle)]
        try:
            self._exporter = OTLPMetricExporter()
        except ValueError as error:
            raise ConfigError(f"--otlp: {error}", "correct the variables OTEL_*") from None
        own = {"service.name": "fomo-stream", "service.version": __version__}
        own["service.instance.id"] = f"{socket.gethostname()}:{os.getpid()}"
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fomo-otlp", daemon=True)

    def __enter__(self) -> OtlpSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(LAST_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._send()
        self._send()

    def _send(self) -> None:
        try:
            now_ns = time.time_ns()
            metrics = [_converted(family, self._began_ns, now_ns) for family in self._read() if family.samples]
            scope = export.ScopeMetrics(InstrumentationScope("fomo_stream", __version__), metrics, "")
            self._exporter.export(export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")]))
        except Exception as error:  # a defect of this program; the next push may succeed
            if self._throttle.allow("defect") is not None:
                log.error(kv("otlp_failed", error=type(error).__name__, at=raised_at(error)))


class _TroubleLog(logging.Handler):
    """Logs what the exporter reports, once in TROUBLE_S seconds: it reports every attempt that fails."""

    def __init__(self, throttle: Throttle) -> None:
        super().__init__(logging.WARNING)
        self._throttle = throttle

    def emit(self, record: logging.LogRecord) -> None:
        """Log the message of a record."""
        if (suppressed := self._throttle.allow("trouble")) is not None:
            log.warning(kv("otlp_trouble", reason=record.getMessage()[:MAX_REASON], suppressed=suppressed))


def _converted(family: Family, *times: int) -> export.Metric:
    """Return a metric of Prometheus as one of OpenTelemetry.

    A counter keeps its `_total`. No unit is given, as it is in the name, where backends would add it. times: of the
    first value and of this one, in nanoseconds since 1970.
    """
    if family.type == "histogram":
        labelled = groupby(family.samples, lambda sample: {**sample.labels, "le": ""})
        points = [_histogram_point(list(own), *times) for _, own in labelled]
        return export.Metric(family.name, family.documentation, "", export.Histogram(points, SUMS))
    numbers = [export.NumberDataPoint(one.labels, *times, one.value) for one in family.samples]
    if family.type == "counter":
        return export.Metric(f"{family.name}_total", family.documentation, "", export.Sum(numbers, SUMS, True))
    return export.Metric(family.name, family.documentation, "", export.Gauge(numbers))


def _histogram_point(samples: list[Sample], *times: int) -> export.HistogramDataPoint:
    """Return a series of a histogram, from its samples: buckets in the order of their bounds, the count, the sum."""
    *buckets, count, total = samples
    until = [0, *(int(bucket.value) for bucket in buckets)]  # Prometheus counts in a bucket also all smaller values
    counts = [after - before for before, after in pairwise(until)]
    bounds = [float(bucket.labels["le"]) for bucket in buckets[:-1]]  # the last one is infinite
    return export.HistogramDataPoint(count.labels, *times, int(count.value), total.value, counts, bounds, None, None)
