"""How much the suite measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What the service gets. Counts are records."""

    partitions: int = 4
    other_partitions: tuple[int, ...] = (1, 8)  # of further services, which are measured while young
    young: int = 40_000
    established: int = 100_000  # of each partition, before the measured stretch
    stretch: int = 60_000
    warm: int = 40_000  # before latencies are measured
    rates: tuple[float, ...] = (100.0, 1000.0)  # records/s ...
    seconds: float = 30.0  # ... each for so long


@dataclass(frozen=True)
class Scale:
    """Sizes and repeats of a run."""

    contexts: tuple[int, ...] = (1000, 5000)  # rows
    features: tuple[int, ...] = (10, 50, 500)
    batches: tuple[int, ...] = (1, 64)  # rows of a scoring call
    builds: tuple[tuple[int, int], ...] = ((1000, 10), (5000, 10), (1000, 50))  # context rows, features
    codec_features: tuple[int, ...] = (10, 50)
    repeats: int = 7
    seconds: float = 0.05  # CPU time of a repeat, at least
    river_context: int = 1000  # rows
    river_learned: int = 100  # contexts' worth of records before the measurement: the stream is established
    river_records: int = 640  # of a repeat
    metrics_records: int = 60_000
    memory_contexts: tuple[int, int] = (5000, 1000)  # one large context; contexts of further partitions
    memory_records: int = 12_000  # of each partition; the history is full then
    more_partitions: int = 8
    replay_records: int = 40_000
    guilty_features: tuple[int, ...] = (5, 10, 20, 50)
    guilty_cases: int = 10  # at most, of each kind, family of streams and number of features
    explained_batches: int = 200  # of 64 records
    drift_seeds: int = 3
    drift_records: int = 12_000
    load: Load | None = Load()  # None: the service, which takes minutes, is left out
