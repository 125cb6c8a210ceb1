from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fomo_stream.demo import demo
from fomo_stream.demo.board import Board, plain_event, plain_numbers, screen
from fomo_stream.demo.demo import Display
from fomo_stream.demo.report import demo_report, readings, report_path
from fomo_stream.errors import ConfigError
from fomo_stream.kafka.observer import Observation, Outlier
from fomo_stream.records.result import Result
from fomo_stream.replaying.results import ReplayResult
from fomo_stream.settings.commands import DemoSettings

SETTINGS = DemoSettings(sensors=3, min_context=50, alert_rate=0.01)


def board_after(readings: Sequence[tuple[str | None, float | None]], explanation: str | None = None) -> Board:
    """A board after 300 ordinary readings and these: (fault or None, score if flagged, else None)."""
    board = Board(SETTINGS, "127.0.0.1:9092", "sensors", "anomalies")
    every: list[tuple[str | None, float | None]] = [(None, None)] * 300 + list(readings)
    for number, (fault, score) in enumerate(every):
        record: dict[str, Any] = {"pump": "P-101", "reading": number, "pressure_bar": 6.0}
        board.sent(record, fault)
        result: Result = {"score": score, "p_value": 0.001, "timestamp": int(1000 * time.time())}
        result |= {} if explanation is None else {"explanation": explanation}
        board.observe(Observation("sensors", 0, [result], [Outlier(record, result)] if score else [], number, 1))
    return board


def drawn(board: Board, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=open("/dev/null", "w"), record=True)  # noqa: SIM115
    console.print(screen(board, width, height))
    return console.export_text().splitlines()


def test_a_fault_is_caught_when_any_of_its_readings_is_flagged() -> None:
    now = board_after([("drift", None), ("drift", 0.9), ("drift", 0.8), (None, None), ("spike", None)]).numbers()
    assert (now.injected, now.caught, now.false_alarms) == (2, 1, 0)
    assert now.by_fault == {"drift": (1, 1), "spike": (0, 1)}


def test_a_flag_without_a_fault_is_a_false_alarm() -> None:
    now = board_after([(None, 0.9), ("spike", 0.9), (None, 0.9)]).numbers()
    assert (now.injected, now.caught, now.false_alarms) == (1, 1, 2)


def test_two_faults_of_one_kind_count_as_two() -> None:
    assert board_after([("spike", 0.9), (None, None), ("spike", 0.9)]).numbers().by_fault == {"spike": (2, 2)}


def test_flags_of_one_fault_are_shown_as_one_by_the_worst() -> None:
    flags = board_after([("drift", 0.7), ("drift", 0.9), ("drift", 0.8), (None, 0.6)]).latest_flags(5)
    assert [(flag.fault, flag.count, flag.score) for flag in flags] == [(None, 1, 0.6), ("drift", 3, 0.9)]


def test_a_flag_is_shown_with_the_explanation_of_the_service() -> None:
    why = "pressure_bar is 9.5, usually 6.02 (6 to 6.04)"
    (flag,) = board_after([("spike", 0.9)], explanation=why).latest_flags(1)
    assert plain_event(flag).endswith(f"fault spike: {why}")
    shown = " ".join(line[44:] for line in drawn(board_after([("spike", 0.9)], explanation=why), 80, 24))
    assert why in " ".join(shown.split())
    (unexplained,) = board_after([("spike", 0.9)]).latest_flags(1)
    assert plain_event(unexplained).endswith("fault spike")


def test_new_flags_are_handed_out_once() -> None:
    board = board_after([("spike", 0.9)])
    assert len(board.take_new_flags()) == 1
    assert board.take_new_flags() == []


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 15)])
@pytest.mark.parametrize("n_flags", [0, 2, 60])
def test_the_screen_fits_the_terminal(width: int, height: int, n_flags: int) -> None:
    kinds = ["vibration burst", "broken correlation", "drift", "stuck", "spike"]
    readings = [(kinds[i % 5], 0.9) for i in range(n_flags)]
    why = "; ".join(["pressure_bar is 123.5, usually 6 (5.8 to 6.2)"] * 8)
    lines = drawn(board_after(readings, explanation=why), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "at least once" in text
    assert "127.0.0.1:9092" in text
    assert f"{n_flags} of {n_flags} caught" in text


def test_the_status_line_is_key_value_pairs() -> None:
    line = plain_numbers(board_after([("spike", 0.9)]).numbers())
    assert all(re.fullmatch(r"[a-z_]+=\S+", word) for word in line.split())
    assert "faults=1 caught=1" in line


def test_the_demo_scores_a_live_stream_and_ends_with_a_report(
    model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live: list[Result] = []
    replayed: list[dict[str, Any]] = []

    def observed(display: Display, seen: Observation) -> None:
        live.extend(seen.results)
        observe(display, seen)

    def reported(*given: Any) -> ReplayResult:
        result = demo_report(*given)
        replayed.append(result.report)
        return result

    observe = Display.scored
    monkeypatch.setattr(Display, "scored", observed)
    monkeypatch.setattr(demo, "demo_report", reported)
    path = tmp_path / "demo.html"
    flags: dict[str, Any] = {"rate": 400, "min_context": 100, "context_size": 300, "plain": True, "report": str(path)}
    settings = DemoSettings(model=str(model_path), seconds=4, **flags)
    assert demo.run_demo(settings) == 0
    output = capsys.readouterr().out
    assert "at least once" in output
    found = re.search(r"scored ([\d,]+) records", output)
    assert found is not None
    assert 100 < int(found[1].replace(",", "")) <= 2000
    assert f"report: {path}" in output
    assert "<html" in path.read_text()
    (report,) = replayed
    assert report["notes"][0].startswith("This is the end of a demonstration")
    assert report["source"]["scored"] == sum(result["score"] is not None for result in live)
    assert report["source"]["kind"] == "memory"  # no command can replay it again
    (own,) = report["detectors"]
    outliers = [result for result in live if result["outlier"]]
    assert own["counts"]["alerts"] == len(outliers) > 0
    assert own["counts"]["outliers"] == sum(fault is not None for _, fault in islice(readings(settings), len(live)))
    shown = {alert["offset"]: (alert["score"], alert["p_value"]) for alert in report["alerts"]}
    assert len(shown) == min(100, len(outliers))
    of_live = {result["offset"]: (result["score"], result["p_value"]) for result in outliers}
    assert shown == {offset: pytest.approx(of_live[offset], rel=1e-5) for offset in shown}


@pytest.mark.parametrize("given", [{}, {"report": "no/folder/demo.html"}, {"report": "none"}])
def test_a_report_that_cannot_be_written_is_refused_at_the_start_if_it_was_named(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fomo-demo.html").mkdir()
    if "folder" in given.get("report", ""):
        with pytest.raises(ConfigError, match="there is no folder"):
            report_path(DemoSettings(**given))
    else:
        assert report_path(DemoSettings(**given)) is None


def test_ctrl_c_ends_the_demo_cleanly(model_path: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fomo_stream.cli",
        "demo",
        f"--model={model_path}",
        "--min-context=50",
        "--plain",
        f"--report={tmp_path / 'demo.html'}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "phase=scoring" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
        assert "scored" in rest
        assert (tmp_path / "demo.html").is_file()
        assert "Traceback" not in process.stderr.read()
