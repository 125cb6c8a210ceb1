"""Confidence: what it adds to the CPU time of a record that is scored and learned, builds of contexts included.

Two detectors have the same records in turns: one as it is, and one whose contexts say nothing but their logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from fomo_stream import Detector, DetectorConfig, load_model
from fomo_stream.detector.generation import Generation, Samples

from .contenders import Float, batches, sensor_rows
from .report import Measurement
from .scale import Scale
from .timing import Work, costs

FEATURES = (10, 50)
BATCHES = (64, 1)  # records of a call
VIEWS = ("default", "fast")


def measure(scale: Scale) -> Iterator[Measurement]:
    """With confidence and without it, and the share that it adds."""
    least = min(200, scale.river_context)
    for features in FEATURES:
        rows = sensor_rows(10 * scale.river_context, features)
        queries = sensor_rows(scale.confidence_records, features, seed=1)
        for views in VIEWS:
            config = DetectorConfig(context_size=scale.river_context, min_context=least, views=(views,))
            for batch in BATCHES:
                found = costs(_variants(config, rows, queries, batch), scale.repeats, 0.0)
                sizes: dict[str, str | int] = {"batch": batch, "features": features}
                for name, cost in found.items():
                    variant = {"variant": f"{views}, {name}"} | sizes
                    yield Measurement("confidence", variant, 1e6 * cost.mean, "us/record", 1e6 * cost.spread)
                share = found["with"].mean / found["without"].mean - 1
                yield Measurement("confidence", {"variant": f"{views}, share"} | sizes, 100 * share, "%")


def _variants(config: DetectorConfig, rows: Float, queries: Float, batch: int) -> dict[str, Work]:
    model = load_model()
    whole, bare = (Detector(model, rows.shape[1], config) for _ in range(2))
    whole.process(rows)
    with _silent():
        bare.process(rows)
    parts = {name: batches(queries, batch) for name in ("with", "without")}
    n = len(queries) if batch > 1 else len(queries) // 4  # still several builds

    def with_confidence() -> int:
        for _ in range(n // batch):
            whole.process(next(parts["with"]))
        return n

    def without() -> int:
        with _silent():
            for _ in range(n // batch):
                bare.process(next(parts["without"]))
        return n

    return {"with": with_confidence, "without": without}


@contextmanager
def _silent() -> Iterator[None]:
    """Contexts have no samples, and their vote is their logit."""
    with (
        patch.object(Samples, "of", lambda *_: None),
        patch.object(Generation, "votes", lambda _self, _model, _rows, logits: [logits]),
    ):
        yield
