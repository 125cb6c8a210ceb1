"""`fomo-stream demo`: a simulated pump, an embedded broker and the real service with its status page.

Sensor readings are sent to a topic in real time and scored by the service. Lines name the flagged readings with the
faults that were injected; the service does not know these faults. At the end a report says how good the scores were.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from fomo_stream.demo.embedded_broker import EmbeddedBroker
from fomo_stream.demo.producer import send
from fomo_stream.demo.sensors import Readings, sensor_stream
from fomo_stream.kafka.observer import Observation, Observer, Observers
from fomo_stream.kafka.service import Service
from fomo_stream.loading import load_ready
from fomo_stream.logs import ClientLog
from fomo_stream.ops.monitor import Monitors
from fomo_stream.replaying.command import replay_settings
from fomo_stream.replaying.progress import shown_progress
from fomo_stream.replaying.replay_result import ReplayResult
from fomo_stream.replaying.report_files import check_writable
from fomo_stream.replaying.tables import in_memory
from fomo_stream.settings.replay import NO_REPORT, ReplaySettings
from fomo_stream.settings.service_settings import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.settings.commands import DemoSettings

TOPIC, OUT = "sensors", "anomalies"
PARTITION = 0  # number of the partition, as a replay of a table has it
RATE = 500.0  # readings a second
FAULTS_EVERY_S = 3.0  # on average
MAX_REPORT_READINGS = 60_000  # their replay takes about ten seconds


class Tally(Observer):
    """Compares injected faults with flagged readings; the threads of the pump and of the service report to it.

    It prints a line about the first outlier of each fault, and of each run of false alarms.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.scored_count = self.false_alarms = self.faults = 0
        self._fault_of: dict[int, tuple[int, str]] = {}  # by reading: number and name of its fault, from 1
        self._sent_last: str | None = None
        self._caught: set[int] = set()
        self._flagged_last: int | None = None  # fault of the newest outlier; 0: a false alarm

    def sent(self, record: dict[str, Any], fault: str | None) -> None:
        """Note a reading that is sent, with this injected fault."""
        if fault is not None:
            self.faults += fault != self._sent_last
            self._fault_of[record["reading"]] = self.faults, fault
        self._sent_last = fault

    def scored(self, observation: Observation) -> None:
        self.scored_count += observation.n_records
        for record, result, _ in observation.outliers:
            number, fault = self._fault_of.get(record["reading"], (0, "none (false alarm)"))
            if number != self._flagged_last and number not in self._caught:
                why = f": {result['explanation']}" if "explanation" in result else ""
                say(f"outlier score={result['score']:.4f} p={result['p_value']:.4f} fault {fault}{why}")
            self._flagged_last = number
            self.false_alarms += not number
            self._caught |= {number} - {0}

    def summary(self) -> str:
        """Return one line about the run so far."""
        share = self.false_alarms / max(1, self.scored_count)
        return (
            f"scored {self.scored_count:,} records in {time.monotonic() - self.began:.0f} s; faults caught "
            f"{len(self._caught)} of {self.faults}; false alarms {self.false_alarms:,} records ({share:.2%})"
        )


def run_demo(settings: DemoSettings) -> int:
    """Run until Ctrl-C or `settings.seconds`; return the exit code. Raises the errors of the service."""
    say("fomo-stream demo: starting an embedded broker and the service ...")
    path = None if settings.report == NO_REPORT else Path(settings.report).absolute()
    if path is not None:
        check_writable("--report", path)
    model = load_ready(settings.model, settings.device, settings.backend)
    sent: list[dict[str, Any]] = []  # the first MOST readings
    stop = threading.Event()
    with EmbeddedBroker() as broker:
        tally = Tally()
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
            health_port=0,  # any free one
            show_keys=True,
            **settings.detector_settings(),
        )
        monitors = Monitors(service_settings)
        service = Service(service_settings, model, Observers([monitors.of_topic(service_settings), tally]))
        with (
            contextlib.suppress(KeyboardInterrupt),
            monitors.serve(service) as server,
            ThreadPoolExecutor(2, "fomo-demo") as threads,
        ):
            running = [threads.submit(service.run)]

            def check() -> None:
                """Raise the error that ended a thread, if any."""
                for thread in running:
                    if thread.done():
                        thread.result()

            try:
                while not service.ready and not stop.wait(0.05):
                    check()
                if server is not None:
                    say(f"status page http://127.0.0.1:{server.port} (Ctrl-C ends the demo)")
                say(f"broker {broker.bootstrap}: records in topic {TOPIC}, scored records in topic {OUT}")
                say("delivery is at least once, because the embedded broker has no transactions")
                tally.began = time.monotonic()
                pump = noted_readings(settings, tally, sent)
                running.append(threads.submit(send, producer, TOPIC, pump, RATE, stop, PARTITION))
                end = tally.began + (settings.seconds or float("inf"))
                while time.monotonic() < end and not stop.wait(max(0.0, min(1.0, end - time.monotonic()))):
                    check()
                    say(tally.summary())
            finally:
                service.stop()
                stop.set()
        say(tally.summary())
        features = service.snapshot().features
    if path is not None and tally.scored_count:
        scored = sent[: tally.scored_count]
        say(f"replaying {len(scored):,} readings for the report ...")
        demo_report(settings, features, scored).save_report(path)
        say(f"report: {path}")
    return 0


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def readings(settings: DemoSettings) -> Readings:
    """Return the readings of the demo, each with the name of its fault; the same for the same settings."""
    fault_every = max(300.0, FAULTS_EVERY_S * RATE)
    first_fault = settings.min_context + 500  # no fault in the first context
    return sensor_stream(settings.seed, fault_every=fault_every, first_fault=first_fault)


def noted_readings(settings: DemoSettings, tally: Tally, sent: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the readings to send, and note each in the tally and in `sent` when it is taken."""
    for number, (record, fault) in enumerate(readings(settings)):
        tally.sent(record, fault)
        if number < MAX_REPORT_READINGS:
            sent.append({**record, "sent": time.time_ns() // 1_000_000, "fault": fault is not None})
        yield record


def demo_report(settings: DemoSettings, features: tuple[str, ...], scored: list[dict[str, Any]]) -> ReplayResult:
    """Replay the readings with the injected faults as labels. The results equal the live ones."""
    # Not from the environment, as for the service of the demo.
    replay = ReplaySettings.model_construct(
        file=Path(TOPIC),
        key="pump",
        time="sent",
        label="fault",
        features=features,
        report=NO_REPORT,
        **settings.detector_settings(),
    )
    return replay_settings(replay, shown_progress(), in_memory(scored))
