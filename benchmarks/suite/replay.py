"""Replay: its rate beside `Detector.process` on the same rows in memory, its memory, and its report.

    python -m suite.replay RECORDS

run in benchmarks, is the other side of the comparison: it scores the same rows from memory, in the same
micro-batches, and prints the seconds.

Reading, notes of records and the report's numbers are a part of the replay; starting Python, loading the model and
making the plan are in neither rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from .contenders import Float, sensor_rows
from .load import FEATURES, names
from .report import Absent, Measurement, Sizes
from .scale import Scale

CHUNK = 20_000
LABEL = "outlier"
FEW = 2000  # records, so that kernels are compiled before anything is measured
START_MS, STEP_MS = 1_759_276_800_000, 100  # times of the records
REPLAY = """
import sys
from pathlib import Path
from suite.memory import peak_mib
from fomo_stream.cli.main import main
code = main(sys.argv[2:])
Path(sys.argv[1]).write_text(str(peak_mib()))
sys.exit(code)
"""
FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True)
class Run:
    """One replay."""

    records: int
    seconds: float  # as the report says
    peak: float  # MiB
    html: Path


def measure(scale: Scale) -> Iterator[Measurement | Absent]:
    """From JSON lines and from npz."""
    if not Path("/proc/self/status").is_file():
        yield Absent("replay", "memory is read from /proc/self/status, which this system lacks")
        return
    records = scale.replay_records
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = write_files(folder, FEW)
        in_memory(FEW)
        replay(folder, ["--file", str(few["jsonl"])])
        smaller = write_files(folder, records // 10)
        small = replay(folder, ["--file", str(smaller["jsonl"])])
        files = write_files(folder, records)
        before = in_memory(records)
        runs = {kind: replay(folder, ["--file", str(path), "--time", "at"]) for kind, path in files.items()}
        yield from rates(runs, [before, in_memory(records)])
        for run in (small, runs["jsonl"]):
            yield Measurement("replay memory", {"of": "jsonl", "records": run.records}, run.peak, "MiB")
        yield Measurement("replay report", {"records": records}, runs["jsonl"].html.stat().st_size / 1e6, "MB")


def rates(runs: dict[str, Run], peers: Sequence[float]) -> Iterator[Measurement]:
    """Both sides, and the replay as a share of the other one. runs: by their source; peers: rates of `in_memory`."""
    rate, spread = float(np.mean(peers)), (max(peers) - min(peers)) / 2
    for kind, run in runs.items():
        sizes: Sizes = {"of": kind, "records": run.records}
        own, its = {"variant": "replay", **sizes}, {"variant": "Detector.process", **sizes}
        yield Measurement("replay", own, run.records / run.seconds, "records/s")
        yield Measurement("replay", its, rate, "records/s", spread)
        yield Measurement("replay against Detector.process", sizes, 100 * run.records / run.seconds / rate, "%")


# --- input


def rows_of(count: int) -> Iterator[tuple[Float, list[bool]]]:
    """Rows (n, d) in parts, with labels: the rows farthest from the middle."""
    for start in range(0, count, CHUNK):
        rows = sensor_rows(min(CHUNK, count - start), FEATURES, seed=start // CHUNK).round(4)
        far = np.abs((rows - rows.mean(0)) / (rows.std(0) + 1e-9)).max(1)
        yield rows, (far > np.quantile(far, 0.97)).tolist()


def bodies(count: int) -> Iterator[bytes]:
    """The same rows as JSON records, with a text field, a time and the label; about 240 bytes each."""
    fields, at = names(), START_MS
    for rows, labels in rows_of(count):
        for row, label in zip(rows.tolist(), labels, strict=True):
            record = {"site": "north", "at": at, **dict(zip(fields, row, strict=True)), LABEL: label}
            yield orjson.dumps(record)
            at += STEP_MS


def write_files(folder: Path, count: int) -> dict[str, Path]:
    """The rows as JSON lines and as npz."""
    jsonl, npz = folder / f"{count}.jsonl", folder / f"{count}.npz"
    with jsonl.open("wb") as file:
        file.writelines(body + b"\n" for body in bodies(count))
    parts = list(rows_of(count))
    times = START_MS + STEP_MS * np.arange(count)
    labels = np.concatenate([part for _, part in parts])
    np.savez(npz, X=np.concatenate([rows for rows, _ in parts]), names=np.array(names()), at=times, outlier=labels)
    return {"jsonl": jsonl, "npz": npz}


# --- the two sides


def replay(folder: Path, flags: Sequence[str]) -> Run:
    """Run `fomo-stream replay`."""
    html, document, peak = folder / "report.html", folder / "report.json", folder / "peak"
    fixed = ["--features", ",".join(names()), "--label", LABEL, "--report", str(html), "--json", str(document)]
    command = [sys.executable, "-c", REPLAY, str(peak), "replay", *flags, *fixed]
    done = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    report = json.loads(document.read_text())
    records, seconds = report["source"]["records"], report["timing"]["seconds"]
    return Run(records, seconds, float(peak.read_text()), html)


def in_memory(records: int) -> float:
    """Records a second of `Detector.process` on the same rows."""
    command = [sys.executable, "-m", "suite.replay", str(records)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True)
    return records / float(done.stdout)


def main(count: str) -> None:
    from fomo_stream import Detector
    from fomo_stream.loading import load_ready
    from fomo_stream.settings.service_settings import ServiceSettings
    from fomo_stream.threads import limit_threads

    limit_threads(1)
    settings = ServiceSettings(topic="t")
    rows = np.concatenate([part for part, _ in rows_of(int(count))])
    detector = Detector(load_ready(), FEATURES, settings.detector_config())
    began = time.perf_counter()
    for start in range(0, len(rows), settings.batch_size):
        detector.process(rows[start : start + settings.batch_size])
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
