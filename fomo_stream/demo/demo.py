"""`fomo-stream demo`: a simulated pump, an embedded broker and the real service, live in the terminal.

Sensor readings are sent to a topic in real time and scored by the service. The screen shows the flagged readings beside
the faults that were injected; the service does not know these faults. At the end a report says how good it was.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from rich.console import Console
from rich.live import Live

from fomo_stream.demo.board import Board, plain_event, plain_numbers, screen
from fomo_stream.demo.producer import send
from fomo_stream.demo.report import MOST, Scored, demo_report, readings, report_path
from fomo_stream.errors import BrokerError
from fomo_stream.kafka.embedded_broker import EmbeddedBroker
from fomo_stream.kafka.observer import Observation, Observer, Observers
from fomo_stream.kafka.service import Service
from fomo_stream.loading import load_ready
from fomo_stream.logs import ClientLog
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.ops.progress import ProgressLog
from fomo_stream.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.settings.commands import DemoSettings

TOPIC, OUT = "sensors", "anomalies"
START_S = 30.0  # for the service to join its group


def run_demo(settings: DemoSettings) -> int:
    """Run until Ctrl-C, SIGTERM or `settings.seconds`; returns the exit code. Raises an error of the service."""
    console = Console(highlight=False)
    console.print("fomo-stream demo: starting an embedded broker and the service ...", style="dim")
    stop = threading.Event()
    path = report_path(settings)
    model = load_ready(settings.model, settings.device, settings.kernel)
    with EmbeddedBroker() as broker, stopping_on_sigterm(stop):
        board = Board(settings, broker.bootstrap, TOPIC, OUT)
        with (
            contextlib.suppress(KeyboardInterrupt),
            Pump(settings, board, broker.bootstrap) as pump,
            DemoService(settings, model, board, broker.bootstrap) as service,
        ):
            service.wait_until_ready(stop)
            pump.start()
            show(console, board, service, stop, settings)
        console.print(board.summary(), soft_wrap=True)
        scored = service.scored(pump.times)
    if path is not None and scored is not None:
        write_report(console, settings, scored, path)
    return 0


def write_report(console: Console, settings: DemoSettings, scored: Scored, path: Path) -> None:
    """Replay what was scored, and write the report."""
    from fomo_stream.replaying.progress import shown_progress

    console.print(f"replaying {len(scored.times):,} readings for the report ...", style="dim")
    demo_report(settings, TOPIC, scored, shown_progress()).save_report(path)
    console.print(f"report: {path}", soft_wrap=True)


def show(console: Console, board: Board, service: DemoService, stop: threading.Event, settings: DemoSettings) -> None:
    """Show the board until `stop` is set or `settings.seconds` have passed."""
    end = time.monotonic() + (settings.seconds or float("inf"))
    if settings.plain or not console.is_terminal:
        console.print(
            f"broker {board.bootstrap}: records in topic {TOPIC}, scored records in topic {OUT}; "
            "delivery is at least once, because the embedded broker has no transactions",
            soft_wrap=True,
        )
        while not stop.wait(max(0.0, min(1.0, end - time.monotonic()))):
            service.check()
            for flag in board.take_new_flags():
                console.print(plain_event(flag), soft_wrap=True)
            console.print(plain_numbers(board.numbers()), soft_wrap=True)
            if time.monotonic() >= end:
                return
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while not stop.wait(0.2) and time.monotonic() < end:
            service.check()
            live.update(screen(board, console.size.width, console.size.height), refresh=True)


class Pump:
    """Sends sensor readings to the topic in real time, in its own thread."""

    def __init__(self, settings: DemoSettings, board: Board, bootstrap: str) -> None:
        self._rate = settings.rate
        self._board = board
        self.times = array("q")  # milliseconds since 1970, when readings were sent; of the first MOST
        self._readings = readings(settings)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, name="fomo-demo-pump", daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2}, logger=ClientLog("pump"))
        self._producer.list_topics(TOPIC, timeout=10)  # the embedded broker creates a topic on the first request for it

    def __enter__(self) -> Pump:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def start(self) -> None:
        """Start sending."""
        self._board.begin()
        self._thread.start()

    def _send(self) -> None:
        send(self._producer, TOPIC, self._noted(), self._rate, self._stopped)

    def _noted(self) -> Iterator[dict[str, Any]]:
        for record, fault in self._readings:
            self._board.sent(record, fault)
            if len(self.times) < MOST:
                self.times.append(time.time_ns() // 1_000_000)
            yield record


class Display(Observer):
    """Shows scored records on the board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.counts: Counter[int] = Counter()  # scored records by partition

    def scored(self, seen: Observation) -> None:
        self._board.observe(seen)
        self.counts[seen.partition] += seen.n_records


class DemoService:
    """The service of `fomo-stream run`, in a thread; `check` raises its errors."""

    def __init__(self, settings: DemoSettings, model: ZeroShotModel, board: Board, bootstrap: str) -> None:
        self._failure: BaseException | None = None
        # Not from the environment: FOMO_KAFKA_* and similar variables are for a real broker.
        service_settings = ServiceSettings.model_construct(
            topic=TOPIC,
            out=OUT,
            dead_letters="dead-letters",
            group="fomo-demo",
            bootstrap=bootstrap,
            # The embedded broker waits this long with the answer to a fetch, even if records arrive in the meantime.
            kafka={"fetch.wait.max.ms": "10"},
            **settings.of_detector(),
        )
        self._display = Display(board)
        self._service = Service(service_settings, model, Observers([ProgressLog(), self._display]))
        self._thread = threading.Thread(target=self._run, name="fomo-demo-service", daemon=True)

    def __enter__(self) -> DemoService:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.stop()
        self._thread.join()

    def wait_until_ready(self, stop: threading.Event) -> None:
        """Return when new records are scored, or `stop` is set."""
        end = time.monotonic() + START_S
        while not self._service.ready and not stop.wait(0.05):
            self.check()
            if time.monotonic() > end:
                raise BrokerError(f"the demo's service was not ready after {START_S:.0f} s; is this machine very busy?")

    def scored(self, times: array[int]) -> Scored | None:
        """What was scored of the readings that were sent at these times, which have one key; None: nothing."""
        features = self._service.snapshot().features
        for partition, count in self._display.counts.most_common(1):
            return Scored(partition, features, times[:count])
        return None

    def check(self) -> None:
        """Raise the error that ended the service, if any."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._service.run()
        except BaseException as error:
            self._failure = error


@contextlib.contextmanager
def stopping_on_sigterm(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM set `stop`. Does nothing outside the main thread, where signals cannot be handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
