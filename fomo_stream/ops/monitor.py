"""Watches a service: its progress in the log, and with `--health-port` all that is served over HTTP."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from fomo_stream.kafka.observer import Observer, Observers
from fomo_stream.ops.http import HttpServer, Sources
from fomo_stream.ops.metrics import Metrics
from fomo_stream.ops.progress import ProgressLog
from fomo_stream.ops.status import StatusBoard
from fomo_stream.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.kafka.service import Service


class Monitor(Observers):
    """Observes one service, for the log and over HTTP."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._host, self._port = settings.http_host, settings.health_port
        self._metrics, self._board = Metrics(), StatusBoard()
        served: list[Observer] = [] if self._port is None else [self._metrics, self._board]
        super().__init__([ProgressLog(), *served])

    def serve(self, service: Service) -> AbstractContextManager[object]:
        """Answer requests about `service`, if there is a --health-port. Raises ConfigError when it cannot listen."""
        if self._port is None:
            return nullcontext()
        sources = Sources(
            live=service.not_live,
            ready=service.not_ready,
            metrics=lambda: self._metrics.exposition(service.snapshot()),
            status=lambda: self._board.status(service.snapshot(), self._metrics.realised_rate),
        )
        return HttpServer(self._host, self._port, sources)
