"""`replay --suggest`: the configuration that it writes can be used as it is, and says what the records show."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from blocks import block
from memory_source import cheap_checkpoint

from fomo_stream.cli.main import main
from fomo_stream.replaying.advice import SMALL, Alerts, advise

N = 6000
pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two machines, with a counter, a state, a constant, and spikes of different sizes."""
    folder, rng = tmp_path_factory.mktemp("advice"), np.random.default_rng(0)
    cheap_checkpoint(folder)
    begin, energy = datetime(2026, 9, 1), {"m1": 0.0, "m2": 500.0}
    flow, temp = rng.normal(10, 1, N), rng.normal(50, 5, N)
    flow[600::211] += rng.choice([3.0, 5.0, 30.0], len(flow[600::211]))
    with (folder / "month.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["at", "machine", "flow", "temp", "energy", "state", "site", "noise"])
        for i in range(N):
            machine, state = ("m1", "m2")[i % 2], str(rng.choice(["on", "off", "idle"]))
            energy[machine] += float(rng.uniform(1, 3))
            at = (begin + timedelta(minutes=i)).isoformat()
            rows.writerow([at, machine, f"{flow[i]:.3f}", f"{temp[i]:.3f}", f"{energy[machine]:.3f}", state, 7, ""])
    return folder


def run(folder: Path, *more: str) -> int:
    model = str(folder / "cheap.safetensors")
    inputs = ["--file", str(folder / "month.csv"), "--model", model, "--report", "none", "--views", "fast"]
    return main(["replay", *inputs, "--context-size", "50", "--min-context", "50", *more])


def test_the_file_says_what_the_records_show_and_can_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, window = folder / "plant.yaml", folder / "window.yaml"
    window.write_text("maintenance:\n  - name: cleaning\n    from: 2026-09-02T00:00\n    to: 2026-09-02T02:00\n")
    assert run(folder, "--config", str(window), "--suggest", str(path), "--incidents-per-day", "3") == 0
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    content = yaml.safe_load(text)
    assert content["time"] == "at"
    assert content["key"] == "machine"
    assert content["counters"] == "energy"
    assert content["categorical"] == "state"
    assert content["exclude"] == "site"
    assert content["maintenance"][0]["name"] == "cleaning"
    assert "views" in content  # as it was given
    assert "site is always 7" in text
    rules = content.get("rules", [])
    assert {rule["features"] for rule in rules} <= {"flow", "temp", "energy"}
    assert main(["replay", "--file", str(folder / "month.csv"), "--config", str(path), "--report", "none"]) == 0
    scored = str(folder / "scored.csv")
    assert main(["score", str(folder / "month.csv"), "--config", str(path), "--output", scored]) == 0
    assert "maintenance=120" in capsys.readouterr().err


def test_what_is_written_is_not_what_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--suggest", str(folder / "month.csv")) != 0
    assert "--suggest" in capsys.readouterr().err
    assert run(folder, "--suggest", str(folder / "x.yaml"), "--explain", "none") != 0
    assert "--explain none" in capsys.readouterr().err


# --- rules


def alerts(deviations: list[float]) -> Alerts:
    """Alerts a hundred records apart, of one feature with a usual range of 10."""
    n = 100 * len(deviations)
    outputs: list[dict[str, Any]] = [{} for _ in range(n)]
    for i, deviation in enumerate(deviations):
        reason = {"feature": "a*", "cause": "value", "share": 1.0, "value": deviation, "expected": 0.0}
        outputs[100 * i] = {"reasons": [{**reason, "range": [0, 10]}], "severity": "warning"}
    found = Alerts()
    found.add(block(np.zeros(n), alerts=np.arange(n) % 100 == 0, outputs=outputs))
    return found


def test_the_smallest_share_that_leaves_few_incidents_is_taken() -> None:
    given = [0.4 + share * 10 for share in SMALL for _ in range(20)]  # each share leaves out 20 more
    made, quiet = [alerts(given[::2]), alerts(given[1::2])], (50, 1000)  # of two partitions
    for most in (2.0, 1.5, 0.85, 0.1):
        advice = advise(made, 0.01, most, quiet, days=100)
        left = [sum(one > share * 10 for one in given) / 100 for share in (0.0, *SMALL)]
        fits = [share for share, rate in zip((0.0, *SMALL), left, strict=True) if rate <= most]
        assert advice.share == (fits[0] if fits else SMALL[-1])
        assert advice.before == len(given) / 100
        assert advice.after == pytest.approx(left[(0.0, *SMALL).index(advice.share)])
    assert [rule.features for rule in advise(made, 0.01, 0.1, quiet, 100).rules] == [("a[*]",)]
