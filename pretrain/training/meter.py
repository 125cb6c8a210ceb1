"""Measurements of a training run that do not slow it down: sums stay on the device between two log lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pretrain.training.auroc import auroc
from pretrain.training.roofline import Ceilings, synchronize

_RANKED_AT_ONCE = 64  # batches whose logits are kept until their AUROC is computed


class Clock:
    """Seconds by name. On CUDA: device time between two events on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        if self.device.type == "cuda":
            first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            first.record()
            yield
            last.record()
            self._events.append((name, first, last))
        else:
            began = time.perf_counter()
            yield
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def read(self) -> dict[str, float]:
        """Seconds measured since the last call. Waits for the device."""
        synchronize(self.device)
        found, self._seconds = self._seconds, {}
        for name, first, last in self._events:
            found[name] = found.get(name, 0.0) + first.elapsed_time(last) / 1e3
        self._events.clear()
        return found


class Interval:
    """Sums over the steps since the last log line."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)  # in the order of `add`
        self._auroc = 0.0
        self._unranked: list[tuple[Tensor, Tensor]] = []
        self._began = time.monotonic()
        self.steps = self._rows = 0
        self._flops = self._bytes = 0.0

    def add(self, logits: Tensor, labels: Tensor, loss: Tensor, norm: Tensor, kept: Tensor, good: Tensor) -> None:
        """Add one step. logits, labels: (B, q); kept: (B,) 0 or 1; good: whether loss and gradient were finite."""
        counted = good & kept.any()
        parts = [
            torch.where(counted, loss.detach(), 0.0), torch.where(good, norm, 0.0), torch.where(good, kept.mean(), 0.0),
            good, counted, torch.ones_like(loss),
        ]  # fmt: skip
        self._sums += torch.stack([part.double() for part in parts])
        self._unranked.append((logits.detach(), labels))
        self.steps += 1
        if len(self._unranked) >= _RANKED_AT_ONCE:
            self._rank()

    def add_cost(self, rows: int, flops: float, moved: float) -> None:
        """Add the rows, operations and bytes of one step."""
        self._rows += rows
        self._flops += flops
        self._bytes += moved

    def _rank(self) -> None:
        for logits, labels in self._unranked:
            self._auroc += float(auroc(logits, labels).mean())
        self._unranked.clear()

    def line(
        self, step: int, lr: float, elapsed: float, times: dict[str, float], ceilings: Ceilings
    ) -> dict[str, float]:
        """The log line: means over the steps since the last line. `kept` is the share of datasets in the loss.

        `synthesis`, `evidence`, `forward`, `backward` and `update` are shares of the time (on CUDA, data is drawn at
        the same time as the others run); `of_peak` and `of_bandwidth` are shares of the ceilings of the device.
        """
        self._rank()
        loss, norm, kept, good, counted, steps = self._sums.tolist()
        seconds = max(1e-9, time.monotonic() - self._began)
        data = times.pop("data", 0.0)
        if "synthesis" in times:
            times["evidence"] = max(0.0, data - times["synthesis"])
        return {
            "step": step,
            "loss": round(loss / counted, 5) if counted else float("nan"),
            "auroc": round(self._auroc / max(1, self.steps), 5),
            "kept": round(kept / max(1.0, good), 3),
            "grad_norm": round(norm / max(1.0, good), 4),
            "lr": float(f"{lr:.4g}"),
            "seconds": round(elapsed, 2),
            "rows_per_s": round(self._rows / seconds, 1),
            "skipped": round(steps - good),
            "ms_per_step": round(1e3 * seconds / max(1, self.steps), 3),
            **{name: round(value / seconds, 4) for name, value in times.items()},
            "gflop_per_s": round(self._flops / seconds / 1e9, 2),
            "gbyte_per_s": round(self._bytes / seconds / 1e9, 2),
            "of_peak": round(self._flops / seconds / ceilings.flops, 4),
            "of_bandwidth": round(self._bytes / seconds / ceilings.bytes, 4),
        }
