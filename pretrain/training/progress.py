"""A progress bar without dependencies: one line on a terminal, a line per log interval anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

WIDTH = 24


class ProgressBar:
    """Draws to stderr; with `report`, lines go there instead."""

    def __init__(self, total: int, done: int, report: Callable[[str], None] | None = None) -> None:
        self.total, self.first = total, done
        self.report = report
        self.live = report is None and sys.stderr.isatty()
        self.began = self.drawn = time.monotonic()
        self.last = ""

    def log(self, line: Mapping[str, float]) -> None:
        """Take in the newest log line."""
        self.last = f"loss {line['loss']:.4f}  auroc {line['auroc']:.4f}  lr {line['lr']:.1e}"
        if not self.live:
            text = (
                f"step={line['step']} loss={line['loss']:.4f} auroc={line['auroc']:.4f} seconds={line['seconds']:.0f}"
                f" ms_per_step={line['ms_per_step']:.1f} synthesis={line.get('synthesis', 0.0):.0%}"
                f" gflop_per_s={line['gflop_per_s']:.0f} of_peak={line['of_peak']:.1%}"
                f" of_bandwidth={line['of_bandwidth']:.1%}"
            )
            (self.report or _to_stderr)(text)

    def step(self, done: int) -> None:
        """Redraw, at most ten times a second."""
        now = time.monotonic()
        if not self.live or (now - self.drawn < 0.1 and done < self.total):
            return
        self.drawn = now
        rate = (done - self.first) / max(1e-9, now - self.began)
        left = int((self.total - done) / rate) if rate else 0
        filled = "#" * (WIDTH * done // self.total)
        speed = f"{rate:.1f} steps/s  {left // 60}:{left % 60:02} left"
        text = f"[{filled:<{WIDTH}}] {done}/{self.total}  {speed}  {self.last}"
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def close(self) -> None:
        if self.live:
            sys.stderr.write("\n")


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
