"""What made-up reports have in them, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Report = dict[str, Any]
Float = NDArray[np.float64]
Bools = NDArray[np.bool_]

START_MS, DAY_MS = 1_759_276_800_000, 86_400_000  # 2025-10-01
NAMES = ("flow", "pressure", "temperature", "vibration", "current", "voltage", "humidity", "speed", "torque", "noise")
RANKING = ("auroc", "average_precision", "f1", "precision_at_rate", "recall_at_rate")
OF_ALERTS = ("alert_precision", "alert_recall", "segments_detected", "delay_records", "delay_s")
HOSTILE = "<script>window.hacked=1</script></script><!--<script><img src=x onerror=window.hacked=1>&amp;\u2028'\""


@dataclass(frozen=True)
class Shape:
    """How large a made report is, and its parts that may be missing."""

    records: int = 1_000_000
    labels: bool = True
    rivals: Sequence[str] = ("river.HalfSpaceTrees", "river.OneClassSVM", "knn")
    variants: Sequence[str] = ("alert_rate=0.001 context_size=5000",)
    features: Sequence[str] = NAMES
    partitions: int = 4
    windows: int = 64
    bins: int = 2048
    segments: int = 60
    alerts: int = 100
    record_size: int = 160  # characters of a record of the top alerts
    generations: int = 400
    axis: str = "time"
    name: str = "sensors"
    replicates: int = 500
    seed: int = 0

    @property
    def end(self) -> int:
        """The end of the range, on its axis."""
        return START_MS + 31 * DAY_MS if self.axis == "time" else self.records


LARGEST = Shape(
    features=tuple(f"{NAMES[i % 10]}_{i:02d}" for i in range(100)),
    partitions=64,
    windows=128,
    bins=4096,
    segments=1000,
    record_size=2000,
    generations=2000,
)
SMALLEST = Shape(
    records=900,
    labels=False,
    rivals=(),
    variants=(),
    features=("value",),
    partitions=1,
    windows=1,
    bins=1,
    segments=0,
    alerts=0,
    generations=1,
    axis="record",
    name="rows.csv",
    replicates=0,
)
HOSTILE_SHAPE = Shape(
    features=(HOSTILE, "flow"), name=HOSTILE, rivals=(f"mine:{HOSTILE}",), variants=(), bins=200, windows=32, segments=5
)
