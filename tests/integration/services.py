"""Services to test: in a thread of this process, or as the command that users run."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from brokers import Broker, wait_for
from label_effects import RecordingService

from fomo_stream.errors import FomoError
from fomo_stream.kafka.member import GroupMember
from fomo_stream.model.architecture import Model
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.ops.monitor import Monitors
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import TABLES

# Short enough for a test to see a dead member leave; the minimum of Apache Kafka.
CLIENT = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "300", "topic.metadata.refresh.interval.ms": "1000"}

# `fomo-stream`, which looks at its files and topics more often.
QUICK = """
from fomo_stream.cli.main import program
from fomo_stream.kafka import settings_file, topic_services
from fomo_stream.kafka.topics import watch
settings_file.CHECK_S, watch.WATCH_INTERVAL_S, topic_services.LISTING_S = 0.1, 0.5, 0.5
program()
"""


def unique(name: str) -> str:
    """A topic or group name that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def readings(count: int, start: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    """Plausible sensor records, numbered by `n`."""
    rng = random.Random(seed)
    return [
        {"n": start + i, "temperature": rng.gauss(20, 2), "motor": {"rpm": rng.gauss(900, 30)}, "site": "north"}
        for i in range(count)
    ]


def make_settings(broker: Broker, topic: str, **changes: Any) -> ServiceSettings:
    """Settings for a quick test: warm after 50 rows, features known, exactly once where the broker can."""
    values: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "group": f"group-{topic}",
        "features": "temperature,motor.rpm",
        "min_context": 50,
        "context_size": 100,
        "alert_rate": 0.05,
        "delivery": "exactly-once" if broker.is_kafka else "at-least-once",
        "kafka": CLIENT,
    }
    return ServiceSettings(**{name: value for name, value in {**values, **changes}.items() if value is not None})


def sensors(
    broker: Broker, partitions: int = 1, config: Mapping[str, str] | None = None, **changes: Any
) -> ServiceSettings:
    """Settings for a quick test on a new topic."""
    topic = unique("sensors")
    broker.create_topic(topic, partitions, config)
    return make_settings(broker, topic, **changes)


def changed(settings: ServiceSettings, **changes: Any) -> ServiceSettings:
    values = {name: getattr(settings, name) for name in settings.model_fields_set}
    return ServiceSettings(**{**values, **changes})


class Running:
    """A service in a thread; its error is raised again by `stop`."""

    def __init__(self, settings: ServiceSettings, model: Model | None = None) -> None:
        self.settings = settings
        self._monitors = Monitors(settings)
        self.service = RecordingService(
            settings, model or shared_model(settings.model, backend=settings.backend), self._monitors.of_topic(settings)
        )
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    @property
    def began(self) -> bool:
        """Whether it was started."""
        return self._thread.ident is not None

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def member(self) -> GroupMember:
        """The instance at work; wait until the service is ready first."""
        assert self.service.member is not None
        return self.service.member

    def scores(self, partition: int) -> bool:
        """Whether records of this partition that arrive now are scored; ready is also a member without partitions."""
        task = self.member.pipeline.partitions.get(partition) if self.service.ready else None
        return task is not None and task.is_active

    def _run(self) -> None:
        try:
            with self._monitors.serve(self.service):
                self.service.run()
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        self.service.stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the service did not stop"
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def in_thread(service: Any) -> Iterator[list[BaseException]]:
    """Anything with `run` and `stop`, in a thread. Yields errors that end it; they are raised again at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    finally:
        service.stop()
        thread.join(60)
        assert not thread.is_alive(), "the service did not stop"
        for error in errors:
            raise error


def refusal(settings: ServiceSettings) -> FomoError:
    """The error of a service that cannot continue."""
    with pytest.raises(FomoError) as caught, Running(settings) as running:
        wait_for(lambda: running.has_ended, "the service to refuse", 60)
    return caught.value


class Command:
    """`fomo-stream` as a process of its own; program: another one that takes the same arguments."""

    def __init__(self, log: Path, *arguments: str, program: Sequence[str] = ("-m", "fomo_stream.cli")) -> None:
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def text(self) -> str:
        return self.log.read_text()

    def wait_for_log(self, words: str, seconds: float = 120.0) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, self.text()
            return words in self.text()

        wait_for(seen, f"the log to say {words!r}", seconds)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def command(log: Path, settings: ServiceSettings, **options: Any) -> Iterator[Command]:
    """The command with these settings; killed at the end if it still runs. options: of `Command`."""
    running = Command(log, *flags_of(settings), **options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def flags_of(settings: ServiceSettings) -> list[str]:
    """The flags that give these settings."""
    flags = []
    for name in sorted(settings.model_fields_set - set(TABLES)):
        value = getattr(settings, name)
        flags += [f"--{name.replace('_', '-')}", ",".join(value) if isinstance(value, tuple) else str(value)]
    for table in TABLES:
        flags += [f"--{table}.{key}={value}" for key, value in getattr(settings, table).items()]
    return flags


def handles(process_id: int, number: int) -> bool:
    """Whether a process handles this signal (Linux)."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return bool(int(re.findall(r"SigCgt:\s+(\w+)", status)[0], 16) >> (number - 1) & 1)


def results(messages: list[Any]) -> list[dict[str, Any]]:
    """The JSON values of messages."""
    return [json.loads(message.value()) for message in messages]


def content_of(message: Any) -> tuple[int, bytes, bytes]:
    """What can be compared of messages of two topics."""
    return message.partition(), message.key() or b"", message.value()
