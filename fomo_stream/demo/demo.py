"""`fomo-stream demo`: a simulated pump, an embedded broker and the real service, live in the terminal.

Sensor readings are sent to a topic in real time and scored by the service. The screen shows the flagged readings beside
the faults that were injected; the service does not know these faults. At the end a report says how good it was.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import Producer
from rich.console import Console
from rich.live import Live

from fomo_stream.demo.board import Board
from fomo_stream.demo.embedded_broker import EmbeddedBroker
from fomo_stream.demo.producer import send
from fomo_stream.demo.sensors import PUMP, Readings, sensor_stream
from fomo_stream.errors import needs_extra
from fomo_stream.kafka.observer import Observers
from fomo_stream.kafka.service import Service
from fomo_stream.loading import load_ready
from fomo_stream.logs import ClientLog
from fomo_stream.ops.monitor import ProgressLog
from fomo_stream.replaying.command import replay_settings
from fomo_stream.replaying.output import check_writable
from fomo_stream.replaying.progress import shown_progress
from fomo_stream.replaying.results import ReplayResult
from fomo_stream.replaying.tables import in_memory
from fomo_stream.settings.replay import NO_REPORT, ReplaySettings
from fomo_stream.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.settings.commands import DemoSettings

TOPIC, OUT = "sensors", "anomalies"
REGISTRY = "mock://demo"  # the client keeps its schemas in memory
PARTITION = 0  # as which a replay sees the records of a table
FAULTS_EVERY_S = 3.0  # on average
MOST = 60_000  # readings in a report: its replay takes about ten seconds


def run_demo(settings: DemoSettings) -> int:
    """Run until Ctrl-C or `settings.seconds`; returns the exit code. Raises an error of the service."""
    console = Console(highlight=False)
    console.print("fomo-stream demo: starting an embedded broker and the service ...", style="dim")
    serialize = in_avro() if settings.format == "avro" else orjson.dumps
    path = None if settings.report == NO_REPORT else Path(settings.report).absolute()
    if path is not None:
        check_writable("--report", path)
    model = load_ready(settings.model, settings.device, settings.kernel)
    sent: list[dict[str, Any]] = []  # the first MOST readings
    stop = threading.Event()
    with EmbeddedBroker() as broker:
        board = Board(settings, broker.bootstrap, TOPIC, OUT)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 2}, logger=ClientLog("pump"))
        producer.list_topics(TOPIC, timeout=10)  # the embedded broker creates a topic on the first request for it
        # Not from the environment: FOMO_KAFKA_* and similar variables are for a real broker.
        service_settings = ServiceSettings.model_construct(
            topic=TOPIC,
            out=OUT,
            dead_letters="dead-letters",
            group="fomo-demo",
            bootstrap=broker.bootstrap,
            # The embedded broker waits this long with the answer to a fetch, even if records arrive in the meantime.
            kafka={"fetch.wait.max.ms": "10"},
            registry={"url": REGISTRY} if settings.format == "avro" else {},
            **settings.of_detector(),
        )
        service = Service(service_settings, model, Observers([ProgressLog(), board]))
        with contextlib.suppress(KeyboardInterrupt), ThreadPoolExecutor(2, "fomo-demo") as threads:
            running = [threads.submit(service.run)]

            def check() -> None:
                """Raise the error that ended a thread, if any."""
                for thread in running:
                    if thread.done():
                        thread.result()

            try:
                while not service.ready and not stop.wait(0.05):
                    check()
                board.began = time.monotonic()
                sending = (noted(settings, board, sent), settings.rate, stop, PARTITION, serialize)
                running.append(threads.submit(send, producer, TOPIC, *sending))
                show(console, board, check, stop)
            finally:
                service.stop()
                stop.set()
        console.print(board.summary(), soft_wrap=True)
        features = service.snapshot().features
    if path is not None and board.scored_count:
        scored = sent[: board.scored_count]
        console.print(f"replaying {len(scored):,} readings for the report ...", style="dim")
        demo_report(settings, features, scored).save_report(path)
        console.print(f"report: {path}", soft_wrap=True)
    return 0


def in_avro() -> Callable[[dict[str, Any]], bytes]:
    """The client's own serializer for readings; it registers their schema when it sees the first."""
    with needs_extra("--format avro"):
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        from fomo_stream.kafka.registry.client import RegistryClient
    own = [{"name": "pump", "type": "string"}, {"name": "reading", "type": "long"}]
    sensors = [{"name": sensor.name, "type": ["null", "double"]} for sensor in PUMP]
    schema = json.dumps({"type": "record", "name": "Reading", "fields": [*own, *sensors]})
    serializer = AvroSerializer(RegistryClient({"url": REGISTRY}).client, schema)
    place = SerializationContext(TOPIC, MessageField.VALUE)
    return lambda reading: serializer(reading, place)


def readings(settings: DemoSettings) -> Readings:
    """The demo's readings, each with the name of the fault in it; the same for the same settings."""
    fault_every = max(300.0, FAULTS_EVERY_S * settings.rate)
    first_fault = settings.min_context + 500  # no fault in the first context
    return sensor_stream(settings.seed, fault_every=fault_every, first_fault=first_fault)


def noted(settings: DemoSettings, board: Board, sent: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The readings to send; the board and `sent` learn of each when it is taken."""
    for number, (record, fault) in enumerate(readings(settings)):
        board.sent(record, fault)
        if number < MOST:
            sent.append({**record, "sent": time.time_ns() // 1_000_000, "fault": fault is not None})
        yield record


def demo_report(settings: DemoSettings, features: tuple[str, ...], scored: list[dict[str, Any]]) -> ReplayResult:
    """The readings once more, by the replay, with the injected faults as labels. The results equal the live ones."""
    # Not from the environment, as for the demo's service.
    own = ReplaySettings.model_construct(
        file=Path(TOPIC),
        key="pump",
        time="sent",
        label="fault",
        features=features,
        report=NO_REPORT,
        **settings.of_detector(),
    )
    return replay_settings(own, shown_progress(), in_memory(scored))


def show(console: Console, board: Board, check: Callable[[], None], stop: threading.Event) -> None:
    """Show the board until `stop` is set or the demo's time has passed."""
    end = time.monotonic() + (board.settings.seconds or float("inf"))
    if board.settings.plain or not console.is_terminal:
        console.print(
            f"broker {board.bootstrap}: records in topic {TOPIC}, scored records in topic {OUT}; "
            "delivery is at least once, because the embedded broker has no transactions",
            soft_wrap=True,
        )
        while time.monotonic() < end and not stop.wait(max(0.0, min(1.0, end - time.monotonic()))):
            check()
            for line in board.new_lines():
                console.print(line, soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while not stop.wait(0.2) and time.monotonic() < end:
            check()
            live.update(board.screen(), refresh=True)
