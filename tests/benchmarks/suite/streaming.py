"""Our River detector beside other streaming detectors: records that are scored and learned in a CPU second.

The figure is the mean over all records, because learning now and then builds a generation.
"""

from __future__ import annotations

from collections.abc import Iterator

from .contenders import (
    NO_PYSAD,
    many,
    one_by_one,
    records,
    repeated,
    river_detectors,
    sensor_rows,
    streaming_peers,
)
from .report import Absent, Measurement
from .scale import Scale
from .timing import Work, costs

FEATURES, BATCH = 10, 64
QUERIES = 8192


def measure(scale: Scale) -> Iterator[Measurement | Absent]:
    """Batches of 64, and one by one."""
    before = sensor_rows(scale.river_learned * scale.river_context, FEATURES)
    queries = sensor_rows(QUERIES, FEATURES, seed=1)
    variants: dict[tuple[str, int], Work] = {}
    for batch in (BATCH, 1):
        for name, detector in river_detectors(scale.river_context):
            detector.learn_many(before)
            work = many(detector, queries, batch) if batch > 1 else one_by_one(detector, records(queries))
            variants[name, batch] = repeated(work, scale.river_records // batch)
    for name, work in streaming_peers(before, queries):
        variants[name, 1] = repeated(work, scale.river_records)
    if ("PySAD LODA", 1) not in variants:
        yield NO_PYSAD
    found = costs({f"{name}|{batch}": work for (name, batch), work in variants.items()}, scale.repeats, 0.0)
    for (name, batch), cost in zip(variants, found.values(), strict=True):
        parameters: dict[str, str | int] = {
            "variant": name,
            "batch": batch,
            "context": scale.river_context,
            "features": FEATURES,
        }
        yield Measurement("river", parameters, 1 / cost.mean, "records/CPU-s", cost.spread / cost.mean**2)
