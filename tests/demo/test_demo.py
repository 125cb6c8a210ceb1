from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from brokers import Embedded
from confluent_kafka.schema_registry.avro import AvroDeserializer
from rich.console import Console

from fomo_stream.demo import demo, producer
from fomo_stream.demo.board import Board
from fomo_stream.demo.embedded_broker import EmbeddedBroker
from fomo_stream.errors import ConfigError
from fomo_stream.kafka.observer import Observation, Outlier
from fomo_stream.kafka.registry.client import RegistryClient
from fomo_stream.records.result import Result
from fomo_stream.replaying.results import ReplayResult
from fomo_stream.settings.commands import DemoSettings

SETTINGS = DemoSettings(min_context=50, alert_rate=0.01)


def board_after(readings: Sequence[tuple[str | None, float | None]], explanation: str | None = None) -> Board:
    """A board after 300 ordinary readings and these: (fault or None, score if flagged, else None)."""
    board = Board(SETTINGS, "127.0.0.1:9092", "sensors", "anomalies")
    every: list[tuple[str | None, float | None]] = [(None, None)] * 300 + list(readings)
    for number, (fault, score) in enumerate(every):
        record: dict[str, Any] = {"pump": "P-101", "reading": number, "pressure_bar": 6.0}
        board.sent(record, fault)
        result: Result = {"score": score, "p_value": 0.001, "timestamp": int(1000 * time.time())}
        result |= {} if explanation is None else {"explanation": explanation}
        board.scored(Observation("sensors", 0, [result], [Outlier(record, result)] if score else [], number, 1))
    return board


def test_outliers_of_one_fault_are_one_line_with_the_worst_and_its_explanation_given_once() -> None:
    board = board_after([("drift", 0.7), ("drift", 0.9), ("drift", 0.8), (None, 0.6)], explanation="flow is 9.5")
    drift, alarm, numbers = board.new_lines()
    assert drift == "outlier score=0.9000 p=0.0010 fault drift: flow is 9.5"
    assert alarm.startswith("outlier score=0.6000 p=0.0010 no fault (false alarm)")
    assert all(re.fullmatch(r"[a-z_]+=\S+", word) for word in numbers.split())
    assert "faults=1 caught=1" in numbers
    assert len(board.new_lines()) == 1
    flags = [("drift", None), ("drift", 0.9), ("drift", 0.8), (None, 0.9), ("spike", 0.9), (None, 0.9), ("spike", None)]
    board = board_after(flags)
    assert (len(board.faults), board.caught, board.false_alarms) == (3, 2, 2)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 15)])
@pytest.mark.parametrize("n_flags", [0, 2, 60])
def test_the_screen_fits_the_terminal(width: int, height: int, n_flags: int) -> None:
    kinds = ["vibration burst", "broken correlation", "drift", "stuck", "spike"]
    readings = [(kinds[i % 5], 0.9) for i in range(n_flags)]
    why = "; ".join(["pressure_bar is 123.5, usually 6 (5.8 to 6.2)"] * 8)
    console = Console(width=width, height=height, file=StringIO(), record=True)
    console.print(board_after(readings, explanation=why).screen())
    text = console.export_text()
    lines = text.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "at least once" in text
    assert "127.0.0.1:9092" in text
    assert f"{n_flags} of {n_flags} caught" in text
    assert ("pressure_bar is 123.5" in text) == (n_flags > 0)


@pytest.mark.parametrize("form", ["json", "avro"])
def test_the_demo_scores_a_live_stream_and_ends_with_a_report_of_the_same_results(
    form: str, model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live: list[Result] = []
    replayed: list[dict[str, Any]] = []

    def observed(board: Board, seen: Observation) -> None:
        live.extend(seen.results)
        observe(board, seen)

    def reported(*given: Any) -> ReplayResult:
        replayed.append((result := make(*given)).report)
        return result

    observe, make = Board.scored, demo.demo_report
    monkeypatch.setattr(Board, "scored", observed)
    monkeypatch.setattr(demo, "demo_report", reported)
    path = tmp_path / "demo.html"
    flags: dict[str, Any] = {
        "format": form,
        "rate": 400,
        "min_context": 100,
        "context_size": 200,
        "plain": True,
        "views": "fast",
        "alert_rate": 0.05,
    }
    settings = DemoSettings(model=str(model_path), seconds=3, report=str(path), **flags)
    assert demo.run_demo(settings) == 0
    output = capsys.readouterr().out
    assert re.search(r"scored [\d,]+ records", output)
    assert f"report: {path}" in output
    assert "<html" in path.read_text()
    (report,) = replayed
    assert report["source"]["scored"] == sum(result["score"] is not None for result in live)
    outliers = [result for result in live if result["outlier"]]
    counts, faults = (
        report["detectors"][0]["counts"],
        [fault for _, fault in islice(demo.readings(settings), len(live))],
    )
    assert (counts["alerts"], counts["outliers"]) == (len(outliers), sum(fault is not None for fault in faults))
    of_live = {result["offset"]: pytest.approx(result["p_value"], rel=1e-5) for result in outliers}
    shown = {alert["offset"]: alert["p_value"] for alert in report["alerts"]}
    assert shown == {offset: of_live[offset] for offset in shown}
    assert len(shown) == min(100, len({result["incident"] for result in outliers})) > 0  # one of each incident


def test_readings_in_avro_have_all_that_they_have_in_json() -> None:
    serialize, read = demo.in_avro(), AvroDeserializer(RegistryClient({"url": demo.REGISTRY}).client)
    for record, _ in islice(demo.readings(SETTINGS), 1000):
        assert read(serialize(record), None) == record


def test_the_demo_names_the_extra_that_avro_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "confluent_kafka.schema_registry.avro")
    monkeypatch.delitem(sys.modules, "confluent_kafka.schema_registry._sync.avro")
    with pytest.raises(ConfigError, match=r"--format avro needs fastavro.*fomo-stream\[registry\]"):
        demo.run_demo(DemoSettings(format="avro"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_cleanly(model_path: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "fomo_stream.cli", "demo", f"--model={model_path}", "--plain"]
    command += ["--min-context=50", f"--report={tmp_path / 'demo.html'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "phase=scoring" in line:
                break
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(60) == 0
        assert "scored" in rest
        assert (tmp_path / "demo.html").is_file()
        assert "Traceback" not in process.stderr.read()


def test_readings_of_every_pump_arrive_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with EmbeddedBroker() as running:
        broker = Embedded(running.bootstrap)
        broker.create_topic("sensors")
        flags = "--topic sensors --rate 2000 --pumps 3 --count 600 --bootstrap"
        producer.main([*flags.split(), broker.bootstrap])
        messages = broker.read("sensors", at_least=600)
    records = [json.loads(message.value()) for message in messages]
    assert [message.key().decode() for message in messages] == [record["pump"] for record in records]
    for pump in ("P-101", "P-102", "P-103"):
        assert [record["reading"] for record in records if record["pump"] == pump] == list(range(200))
