"""What the service has done lately: for the log, and for a live display."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fomo_stream.logs import kv


@dataclass
class Progress:
    """What was done since the last look."""

    records: int = 0
    dead_letters: int = 0
    outliers: int = 0
    missing: int = 0  # values that scored records lack
    labels: int = 0  # labels about records that were still remembered
    regimes: int = 0  # shifts that became the new normal
    commits: int = 0
    aborts: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))  # from poll to commit

    def take_line(self, elapsed: float) -> str:
        """One log line about the last `elapsed` seconds, empty when nothing was done; then begin anew."""
        line = self._line(elapsed)
        vars(self).update(vars(Progress()))
        return line

    def _line(self, elapsed: float) -> str:
        if not (self.records or self.dead_letters or self.labels):
            return ""
        latencies = sorted(self.seconds)
        p99 = latencies[int(0.99 * len(latencies))] * 1000 if latencies else None
        return kv(
            "progress",
            records=self.records,
            per_second=round(self.records / elapsed, 1),
            outliers=self.outliers,
            missing=self.missing,
            dead_letters=self.dead_letters,
            labels=self.labels,
            regimes=self.regimes,
            commits=self.commits,
            aborts=self.aborts,
            poll_to_commit_p99_ms=p99,
        )
