"""How an instance is doing at one moment, for metrics and the status page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionSnapshot:
    """One input partition of this instance. None: not known yet."""

    number: int
    waits: str = ""  # why it is not read yet; empty while it is read
    position: int | None = None  # offset before which every record is finished
    committed: int | None = None  # the last position that is committed
    end: int | None = None  # offset of the next record that a producer writes, as the broker last said
    lag: int | None = None  # records from the committed offset to the end
    oldest_unscored_s: float | None = None  # age of the oldest record that is not scored; 0: all are
    open_transactions: tuple[tuple[str, float], ...] = ()  # (topic, seconds) that readers wait for a transaction to end
    records: int = 0  # learned by the detector
    context_rows: int = 0  # rows of the history that contexts are made of
    trimmed_rows: int = 0  # rows that the newest trimmed context left out
    generation: int = 0  # contexts that took effect so far
    generation_age_records: int = 0  # records since the newest context took effect
    generation_age_s: float | None = None  # and seconds, as seen by this instance
    regime: int = 0
    drift: float = 0.0  # 0 to 1: how much of what announces a new regime was seen


@dataclass(frozen=True)
class Snapshot:
    """One instance."""

    state: str  # starting, waiting, running, stopping, stopped or failed
    not_ready: tuple[str, ...]  # why records are not being scored; empty while they are
    topic: str
    out: str
    group: str
    instance_id: str | None
    model: str  # name and digest of the checkpoint; empty until it is loaded
    kernel: str  # what computes it: numba or torch
    features: tuple[str, ...]  # empty while they are not known
    alert_rate: float  # requested
    partitions: tuple[PartitionSnapshot, ...]
