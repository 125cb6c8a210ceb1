"""Progress of the service: a line in the log every few seconds."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fomo_stream.kafka.observer import Observation, Observer
from fomo_stream.logs import kv
from fomo_stream.partition.labels import DueLabels

log = logging.getLogger(__name__)

EVERY_S = 10.0


@dataclass
class Progress:
    """Counts since the last log line."""

    records: int = 0
    outliers: int = 0
    missing: int = 0  # values that scored records lack
    dead_letters: int = 0
    labels: int = 0  # labels about records that were still remembered
    regimes: int = 0  # lasting shifts that were announced
    commits: int = 0
    aborts: int = 0


class ProgressLog(Observer):
    """Counts what the service does and logs it every `EVERY_S` seconds."""

    def __init__(self) -> None:
        self.counts = Progress()
        self._seconds: deque[float] = deque(maxlen=10_000)  # from poll to commit
        self._due: float | None = None

    def scored(self, seen: Observation) -> None:
        self.counts.records += seen.n_records
        self.counts.outliers += len(seen.outliers)
        self.counts.missing += seen.missing

    def dead_letter(self, reason: str) -> None:
        self.counts.dead_letters += 1

    def labelled(self, partition: int, due: DueLabels) -> None:
        self.counts.labels += len(due.labels)

    def regime_changed(self) -> None:
        self.counts.regimes += 1

    def committed(self, seconds: Sequence[float], ages: Sequence[float], took: float) -> None:
        self.counts.commits += 1
        self._seconds.extend(seconds)

    def aborted(self) -> None:
        self.counts.aborts += 1

    def turned(self, now: float) -> None:
        self._due = now + EVERY_S if self._due is None else self._due
        if now < self._due:
            return
        counts = asdict(self.counts)
        if counts["records"] or counts["dead_letters"] or counts["labels"]:
            rate = round(counts.pop("records") / (now - self._due + EVERY_S), 1)
            latencies = sorted(self._seconds)
            p99 = latencies[int(0.99 * len(latencies))] * 1000 if latencies else None
            log.info(kv("progress", records=self.counts.records, per_second=rate, **counts, poll_to_commit_p99_ms=p99))
        self.counts, self._due = Progress(), now + EVERY_S
        self._seconds.clear()
