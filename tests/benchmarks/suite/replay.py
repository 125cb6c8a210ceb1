"""Replay: its rate beside `Detector.process` on the same rows in memory, its memory, and its report.

    python -m suite.replay RECORDS PARTITIONS PARTITION

run in tests/benchmarks, is the other side of the comparison: it scores the rows of one partition from memory, in the
same micro-batches, and prints records and seconds as JSON.

As many processes as partitions run at the same time on either side, so there should be a core for each, and nothing
else at work. Reading, notes of records and the report's numbers are a part of the replay; starting Python, loading the
model and making the plan are in neither rate. CPU time is of whole programs on both sides, with all of these; compare
it where the machine is busy and the records are many.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from .contenders import Float, sensor_rows
from .load import FEATURES, names
from .memory import peak_mib
from .report import Absent, Measurement
from .scale import Scale

if TYPE_CHECKING:
    from browser import Browser

CHUNK = 20_000
LABEL = "outlier"
LOOK_S = 0.02  # between two looks at the memory of worker processes
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
Sizes = dict[str, str | int]


@dataclass(frozen=True)
class Run:
    """One replay."""

    records: int
    seconds: float  # as the report says
    cpu_s: float  # of the whole program
    peak: float  # MiB, of the main process
    worker_peak: float  # of the largest worker process; 0: there was none
    html: Path


def measure(scale: Scale) -> Iterator[Measurement | Absent]:
    """Files, then topics of one and of two partitions if there is a broker."""
    if not Path("/proc/self/status").is_file():
        yield Absent("replay", "memory is read from /proc/self/status, which this system lacks")
        return
    records = scale.replay_records
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = write_files(folder, FEW)
        in_memory(FEW, 1)
        replay(folder, ["--file", str(few["jsonl"])])
        smaller = write_files(folder, records // 10)
        small = replay(folder, ["--file", str(smaller["jsonl"])])
        files = write_files(folder, records)
        before = in_memory(records, 1)
        runs = {kind: replay(folder, ["--file", str(path), "--time", "at"]) for kind, path in files.items()}
        yield from rates(runs, [before, in_memory(records, 1)], 1)
        for run in (small, runs["jsonl"]):
            yield Measurement("replay memory", {"of": "jsonl", "records": run.records}, run.peak, "MiB")
        yield from _report(runs["jsonl"])
        if scale.load is None:
            yield Absent("replay of a topic", "left out of quick runs, because it needs a broker")
        else:
            yield from _topics(folder, records)


@dataclass(frozen=True)
class Peer:
    """`Detector.process` on the same rows."""

    records: int
    seconds: float  # of the slowest process, without its start
    cpu_s: float  # of all processes


def rates(runs: dict[str, Run], peers: Sequence[Peer], partitions: int) -> Iterator[Measurement]:
    """Both sides, and the replay as a share of the other one. runs: by their source."""
    every = [peer.records / peer.seconds for peer in peers]
    rate, spread = float(np.mean(every)), (max(every) - min(every)) / 2
    cpu = float(np.mean([peer.cpu_s / peer.records for peer in peers]))
    for kind, run in runs.items():
        sizes: Sizes = {"of": kind, "records": run.records, "partitions": partitions}
        own, its = {"variant": "replay", **sizes}, {"variant": "Detector.process", **sizes}
        yield Measurement("replay", own, run.records / run.seconds, "records/s")
        yield Measurement("replay", its, rate, "records/s", spread)
        yield Measurement("replay CPU", own, 1e6 * run.cpu_s / run.records, "us/record")
        yield Measurement("replay CPU", its, 1e6 * cpu, "us/record")
        yield Measurement("replay against Detector.process", sizes, 100 * run.records / run.seconds / rate, "%")
        share = 100 * cpu * run.records / run.cpu_s
        yield Measurement("replay against Detector.process, by CPU time", sizes, share, "%")


def _report(run: Run) -> Iterator[Measurement | Absent]:
    sizes: Sizes = {"records": run.records}
    yield Measurement("replay report", {"of": "size", **sizes}, run.html.stat().st_size / 1e6, "MB")
    if shutil.which("chromium") is None:
        yield Absent("replay report on screen", "chromium is not installed")
        return
    from browser import open_browser

    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        shown = [shown_ms(browser, run.html) for _ in range(6)][1:]  # the browser itself starts with the first one
    low, median, high = np.quantile(shown, [0.25, 0.5, 0.75]).tolist()
    yield Measurement("replay report", {"of": "on screen", **sizes}, median, "ms", (high - low) / 2)


def _topics(folder: Path, records: int) -> Iterator[Measurement | Absent]:
    from brokers import open_broker

    with open_broker() as broker:
        if not broker.is_kafka:
            yield Absent("replay of a topic", "it needs Apache Kafka: set KAFKA_HOME or TEST_BOOTSTRAP")
            return
        for partitions in (1, 2):
            topic = f"replayed-{partitions}"
            broker.create_topic(topic, partitions, {"retention.ms": "-1"})  # the times are of long ago
            fill(broker.bootstrap, topic, partitions, records)
            flags = ["--topic", topic, "--bootstrap", broker.bootstrap, "--jobs", str(partitions)]
            before = in_memory(records, partitions)
            run = replay(folder, flags)
            yield from rates({"a topic": run}, [before, in_memory(records, partitions)], partitions)
            for of, peak in (("main process", run.peak), ("worker", run.worker_peak)):
                if peak:
                    sizes: Sizes = {"of": f"topic, {of}", "records": records, "partitions": partitions}
                    yield Measurement("replay memory", sizes, peak, "MiB")


# --- input


def rows_of(partition: int, count: int) -> Iterator[tuple[Float, list[bool]]]:
    """Rows (n, d) of one partition in parts, with labels: the rows farthest from the middle."""
    for start in range(0, count, CHUNK):
        rows = sensor_rows(min(CHUNK, count - start), FEATURES, seed=1000 * partition + start // CHUNK).round(4)
        far = np.abs((rows - rows.mean(0)) / (rows.std(0) + 1e-9)).max(1)
        yield rows, (far > np.quantile(far, 0.97)).tolist()


def bodies(partition: int, count: int) -> Iterator[bytes]:
    """The same rows as JSON records, with a text field, a time and the label; about 240 bytes each."""
    fields, at = names(), START_MS
    for rows, labels in rows_of(partition, count):
        for row, label in zip(rows.tolist(), labels, strict=True):
            record = {"site": "north", "at": at, **dict(zip(fields, row, strict=True)), LABEL: label}
            yield orjson.dumps(record)
            at += STEP_MS


def write_files(folder: Path, count: int) -> dict[str, Path]:
    """The rows of partition 0 as JSON lines and as npz."""
    jsonl, npz = folder / f"{count}.jsonl", folder / f"{count}.npz"
    with jsonl.open("wb") as file:
        file.writelines(body + b"\n" for body in bodies(0, count))
    parts = list(rows_of(0, count))
    times = START_MS + STEP_MS * np.arange(count)
    labels = np.concatenate([part for _, part in parts])
    np.savez(npz, X=np.concatenate([rows for rows, _ in parts]), names=np.array(names()), at=times, outlier=labels)
    return {"jsonl": jsonl, "npz": npz}


def share(count: int, partitions: int, partition: int) -> int:
    """Records of one partition."""
    return count // partitions + (partition < count % partitions)


def fill(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Produce the rows of each partition."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 0})
    for partition in range(partitions):
        for number, body in enumerate(bodies(partition, share(count, partitions, partition))):
            while True:
                try:
                    producer.produce(topic, body, partition=partition, timestamp=START_MS + STEP_MS * number)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0, "records were not delivered"


# --- the two sides


def replay(folder: Path, flags: Sequence[str]) -> Run:
    """Run `fomo-stream replay`."""
    html, document, peak = folder / "report.html", folder / "report.json", folder / "peak"
    fixed = ["--features", ",".join(names()), "--label", LABEL, "--report", str(html), "--json", str(document)]
    command = [sys.executable, "-c", REPLAY, str(peak), "replay", *flags, *fixed]
    before, largest = _cpu_of_children(), 0.0
    with (folder / "replay.log").open("w+") as log:
        with subprocess.Popen(command, cwd=FOLDER, stdout=log, stderr=log) as process:
            while process.poll() is None:
                largest = max([largest, *_peaks_of_children(process.pid)])
                time.sleep(LOOK_S)
        log.seek(0)
        assert process.returncode == 0, log.read()[-3000:]
    cpu_s = _cpu_of_children() - before
    report = json.loads(document.read_text())
    records, seconds = report["source"]["records"], report["timing"]["seconds"]
    return Run(records, seconds, cpu_s, float(peak.read_text()), largest, html)


def _peaks_of_children(process: int) -> Iterator[float]:
    """MiB of the process's own processes. One that has just begun or ended may be missing."""
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in found:
        try:
            yield peak_mib(child)
        except (OSError, AssertionError):  # it has ended
            continue


def in_memory(records: int, partitions: int) -> Peer:
    """`Detector.process` of all partitions at the same time."""
    before, started = _cpu_of_children(), []
    for partition in range(partitions):
        arguments = [str(records), str(partitions), str(partition)]
        command = [sys.executable, "-m", "suite.replay", *arguments]
        started.append(subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in started]
    assert not any(process.returncode for process in started), "a process of the comparison failed"
    found = [json.loads(output) for output in outputs]
    seconds = max(one["seconds"] for one in found)
    return Peer(sum(one["records"] for one in found), seconds, _cpu_of_children() - before)


def _cpu_of_children() -> float:
    """CPU seconds of the processes that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown_ms(browser: Browser, path: Path) -> int:
    """Milliseconds from the navigation until the report is shown, as the page itself notes."""
    page = browser.open(path.as_uri())
    page.until("document.documentElement.dataset.shownMs")
    found = page.run("Number(document.documentElement.dataset.shownMs)")
    page.close()
    return int(found)


def main(count: str, partitions: str, partition: str) -> None:
    from fomo_stream import Detector
    from fomo_stream.loading import load_ready
    from fomo_stream.settings.service import ServiceSettings
    from fomo_stream.threads import limit_threads

    limit_threads(1)
    settings = ServiceSettings(topic="t")
    own = share(int(count), int(partitions), int(partition))
    rows = np.concatenate([part for part, _ in rows_of(int(partition), own)])
    detector = Detector(load_ready(), FEATURES, settings.detector_config())
    began = time.perf_counter()
    for start in range(0, own, settings.batch_size):
        detector.process(rows[start : start + settings.batch_size])
    print(json.dumps({"records": own, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main(*sys.argv[1:])
