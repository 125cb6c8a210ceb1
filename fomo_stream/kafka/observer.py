"""What the service tells of what it does, for a log or a live display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Observation:
    """What a live display needs to know after each micro-batch."""

    topic: str
    partition: int
    n_records: int
    context_rows: int
    generation: int
    outliers: list[tuple[dict[str, Any], dict[str, Any]]]  # (record, result) of each outlier
