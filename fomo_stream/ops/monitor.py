"""Watches a service: its progress in the log, all that `--health-port` serves, and the metrics that `--otlp` sends."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import orjson
from prometheus_client.metrics_core import Metric as Family

from fomo_stream import __version__
from fomo_stream.errors import needs_extra
from fomo_stream.kafka.observer import Observation, Observer, Observers
from fomo_stream.logs import kv
from fomo_stream.ops.http import Endpoints, HttpServer
from fomo_stream.ops.metrics import Metrics, exposition, merged
from fomo_stream.ops.status import StatusBoard, topic_overview
from fomo_stream.partition.labels import DueLabels
from fomo_stream.settings.flags import HttpFlags
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.telemetry import push_interval_s

if TYPE_CHECKING:
    from fomo_stream.kafka.service import Service
    from fomo_stream.kafka.topic_services import TopicServices

log = logging.getLogger(__name__)

PROGRESS_S = 10.0
COUNTS = ("records", "outliers", "missing", "dead_letters", "labels", "regimes", "commits", "aborts")


class ProgressLog(Observer):
    """Counts what the service does and logs it every `PROGRESS_S` seconds."""

    def __init__(self, topic: str = "") -> None:
        self._place = {"topic": topic} if topic else {}
        self.counts: Counter[str] = Counter()  # since the last line of the log
        self._seconds: deque[float] = deque(maxlen=10_000)  # from poll to commit
        self._due: float | None = None

    def scored(self, observation: Observation) -> None:
        self.counts["records"] += observation.n_records
        self.counts["outliers"] += len(observation.outliers)
        self.counts["missing"] += observation.missing

    def dead_letter(self, reason: str) -> None:
        self.counts["dead_letters"] += 1

    def labelled(self, partition: int, due: DueLabels) -> None:
        self.counts["labels"] += len(due.labels)

    def regime_changed(self) -> None:
        self.counts["regimes"] += 1

    def committed(self, seconds: Sequence[float], ages: Sequence[float], took: float) -> None:
        self.counts["commits"] += 1
        self._seconds.extend(seconds)

    def aborted(self) -> None:
        self.counts["aborts"] += 1

    def turned(self, now: float) -> None:
        self._due = now + PROGRESS_S if self._due is None else self._due
        if now < self._due:
            return
        counts = {name: self.counts[name] for name in COUNTS}
        if counts["records"] or counts["dead_letters"] or counts["labels"]:
            records = counts.pop("records")
            rate = round(records / (now - self._due + PROGRESS_S), 1)
            latencies = sorted(self._seconds)
            p99 = latencies[int(0.99 * len(latencies))] * 1000 if latencies else None
            log.info(
                kv("progress", **self._place, records=records, per_second=rate, **counts, poll_to_commit_p99_ms=p99)
            )
        self.counts.clear()
        self._due = now + PROGRESS_S
        self._seconds.clear()


class Monitor(Observers):
    """Observes the service of one topic, for the log, and for what is served and sent."""

    def __init__(self, settings: ServiceSettings, is_read: bool) -> None:
        named = [table.name for table in (*settings.all_rules, *settings.windows)]
        self.metrics, self._board = Metrics(named), StatusBoard(show_keys=settings.show_keys)
        super().__init__([ProgressLog(settings.topic), *([self.metrics, self._board] if is_read else [])])

    def status(self, service: Service) -> dict[str, Any]:
        """Return the data of the page of this topic."""
        return self._board.data(service.snapshot(), self.metrics.realised_rate)


class Monitors:
    """The monitors of all topics of a process, and what it serves and sends of them."""

    def __init__(self, settings: HttpFlags) -> None:
        self._settings = settings
        self._monitors: dict[str, Monitor] = {}

    def of_topic(self, settings: ServiceSettings) -> Monitor:
        """Return the monitor of a topic: the same one for all services that the topic has had."""
        if settings.topic not in self._monitors:
            is_read = self._settings.health_port is not None or self._settings.otlp
            self._monitors[settings.topic] = Monitor(settings, is_read)
        return self._monitors[settings.topic]

    @contextmanager
    def serve(self, service: Service | TopicServices) -> Iterator[HttpServer | None]:
        """Answer requests, if there is a --health-port, and send metrics with --otlp. Raises ConfigError."""
        server = None
        with ExitStack() as stack:
            if self._settings.health_port is not None:
                server = HttpServer(self._settings.http_host, self._settings.health_port, self._endpoints(service))
                stack.enter_context(server)
            if self._settings.otlp:
                with needs_extra("--otlp", "otel"):
                    from fomo_stream.ops.otlp import OtlpSender
                stack.enter_context(OtlpSender(lambda: self._families(service), push_interval_s()))
            yield server

    def _families(self, service: Service | TopicServices) -> list[Family]:
        present = service.services.items()
        families = {name: self._monitors[name].metrics.families(own.snapshot()) for name, own in present}
        return merged(families, service.has_one_topic)

    def _endpoints(self, service: Service | TopicServices) -> Endpoints:
        def metrics() -> bytes:
            return exposition(self._families(service))

        def status(topic: str) -> bytes | None:
            present = service.services
            if service.has_one_topic and not topic:
                (topic,) = present
            if topic:
                return orjson.dumps(self._monitors[topic].status(present[topic])) if topic in present else None
            topics = [topic_overview(self._monitors[name].status(own)) for name, own in present.items()]
            return orjson.dumps({"version": __version__, "time": time.time(), "topics": topics})

        return Endpoints(live=service.not_live, ready=service.not_ready, metrics=metrics, status=status)
