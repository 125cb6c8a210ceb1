"""A model that is ready to score."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from fomo_stream import loading
from fomo_stream.kafka.service import Service
from fomo_stream.model import scoring
from fomo_stream.model.checkpoint import load_model
from fomo_stream.settings.commands import DemoSettings, ScoreSettings
from fomo_stream.settings.service import ServiceSettings


def test_a_user_of_any_command_sees_that_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only with the log level of the service: `score` and `demo` show warnings."""
    seen = threading.Event()

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("compiling_kernels"):
                seen.set()

    levels = {settings.model_fields["log_level"].default for settings in (ServiceSettings, DemoSettings, ScoreSettings)}
    handlers = [Shown(level.upper()) for level in levels]
    encode = scoring.encode_rows

    def encode_after_a_while(*arguments: Any) -> Any:
        assert seen.wait(30)
        return encode(*arguments)

    monkeypatch.setattr(scoring, "encode_rows", encode_after_a_while)
    monkeypatch.setattr(loading, "SLOW_S", 0.0)
    for handler in handlers:
        seen.clear()
        loading.log.addHandler(handler)
        try:
            loading.load_ready(kernel="numba")
        finally:
            loading.log.removeHandler(handler)


def test_a_service_that_is_stopped_while_it_loads_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(ServiceSettings(topic="t", bootstrap="localhost:1"))  # no broker is there: a start raises

    def load(*_: object) -> Any:
        service.stop()
        return load_model()

    monkeypatch.setattr(loading, "load_ready", load)
    service.run()
    assert service.not_ready() == ["the service is stopped"]
