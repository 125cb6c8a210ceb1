from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from brokers import Embedded

from fomo_stream.demo import demo, producer
from fomo_stream.demo.embedded_broker import EmbeddedBroker
from fomo_stream.kafka.observer import Observation, Outlier
from fomo_stream.records.result import Result
from fomo_stream.replaying.replay_result import ReplayResult
from fomo_stream.settings.commands import DemoSettings


def tally_after(readings: Sequence[tuple[str | None, float | None]]) -> demo.Tally:
    """After 300 ordinary readings and these: (fault or None, score if flagged, else None)."""
    tally = demo.Tally()
    every: list[tuple[str | None, float | None]] = [(None, None)] * 300 + list(readings)
    for number, (fault, score) in enumerate(every):
        record: dict[str, Any] = {"pump": "P-101", "reading": number, "pressure_bar": 6.0}
        tally.sent(record, fault)
        result: Result = {"score": score, "p_value": 0.001, "explanation": "flow is 9.5"}
        tally.scored(Observation("sensors", 0, [result], [Outlier(record, result)] if score else [], number, 1))
    return tally


def test_each_fault_and_each_run_of_false_alarms_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [("drift", None), ("drift", 0.9), ("drift", 0.8), (None, 0.6), (None, 0.9), ("spike", 0.9), (None, 0.7)]
    tally = tally_after([*flags, ("spike", None)])
    assert capsys.readouterr().out.splitlines() == [
        "outlier score=0.9000 p=0.0010 fault drift: flow is 9.5",
        "outlier score=0.6000 p=0.0010 fault none (false alarm): flow is 9.5",
        "outlier score=0.9000 p=0.0010 fault spike: flow is 9.5",
        "outlier score=0.7000 p=0.0010 fault none (false alarm): flow is 9.5",
    ]
    assert "faults caught 2 of 3; false alarms 3 records (0.97%)" in tally.summary()


def test_the_demo_scores_a_live_stream_and_ends_with_a_report_of_the_same_results(
    model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live: list[Result] = []
    replayed: list[dict[str, Any]] = []

    def observed(tally: demo.Tally, seen: Observation) -> None:
        live.extend(seen.results)
        observe(tally, seen)

    def asked(line: str) -> None:
        for address in re.findall(r"status page (http\S+)", line):
            pages.append(urllib.request.urlopen(f"{address}/status.json", timeout=30).read())
        say(line)

    def reported(*given: Any) -> ReplayResult:
        replayed.append((result := make(*given)).report)
        return result

    observe, make, say = demo.Tally.scored, demo.demo_report, demo.say
    pages: list[bytes] = []
    monkeypatch.setattr(demo.Tally, "scored", observed)
    monkeypatch.setattr(demo, "say", asked)
    monkeypatch.setattr(demo, "demo_report", reported)
    path = tmp_path / "demo.html"
    flags: dict[str, Any] = {"min_context": 100, "context_size": 200, "views": "fast", "alert_rate": 0.05}
    settings = DemoSettings(model=str(model_path), seconds=3, report=str(path), **flags)
    assert demo.run_demo(settings) == 0
    output = capsys.readouterr().out
    assert re.search(r"scored [\d,]+ records", output)
    assert f"report: {path}" in output
    assert [json.loads(page)["instance"]["topic"] for page in pages] == ["sensors"]
    assert "<html" in path.read_text()
    (report,) = replayed
    assert report["source"]["scored"] == sum(result["score"] is not None for result in live)
    outliers = [result for result in live if result["outlier"]]
    counts = report["detectors"][0]["counts"]
    faults = [fault for _, fault in islice(demo.readings(settings), len(live))]
    assert (counts["alerts"], counts["outliers"]) == (len(outliers), sum(fault is not None for fault in faults))
    of_live = {result["offset"]: pytest.approx(result["p_value"], rel=1e-5) for result in outliers}
    shown = {alert["offset"]: alert["p_value"] for alert in report["alerts"]}
    assert shown == {offset: of_live[offset] for offset in shown}
    assert len(shown) == min(100, len({result["incident"] for result in outliers})) > 0  # one of each incident


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_cleanly(model_path: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "fomo_stream.cli", "demo", f"--model={model_path}"]
    command += ["--min-context=50", f"--report={tmp_path / 'demo.html'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("outlier "):
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
        producer.run_producer([*flags.split(), broker.bootstrap])
        messages = broker.read("sensors", at_least=600)
    records = [json.loads(message.value()) for message in messages]
    assert [message.key().decode() for message in messages] == [record["pump"] for record in records]
    for pump in ("P-101", "P-102", "P-103"):
        assert [record["reading"] for record in records if record["pump"] == pump] == list(range(200))
