"""Reasons: how often they name the guilty feature, beside two simple methods, and what they cost.

Hits: records that are odd because of known features, see `tests/guilty.py`. The methods are the robust z-scores of the
features, and the fall of the logit when one feature after the other is set to missing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from guilty import KINDS, METHODS, Hit, all_hits, misses

from fomo_stream import Detector, DetectorConfig, load_model

from .contenders import batches, sensor_rows
from .report import Measurement
from .scale import Scale

CONTEXT, FEATURES, BATCH = 1000, (10, 50), 64
SEED = 1000


def measure(scale: Scale) -> Iterator[Measurement]:
    """Hits of all methods, how far `expected` is from the truth, and costs.

    Costs: CPU time of an explained record, and the share of the throughput that explaining alerts takes.
    """
    hits = list(all_hits(scale.guilty_features, scale.guilty_cases, SEED))
    for kind in KINDS:
        yield from _hits(kind, [hit for hit in hits if hit.kind == kind])
    yield from _hits("all", hits)
    for features in scale.guilty_features:
        found = list(misses(features, scale.guilty_cases, SEED))
        for name, values in (("expected", [one.expected for one in found]), ("usual", [one.usual for one in found])):
            parameters: dict[str, str | int] = {"variant": name, "features": features, "cases": len(found)}
            yield Measurement(
                "distance from the true value", parameters, 100 * float(np.median(values)), "% of the range"
            )
    for features in FEATURES:
        for views in ("fast", "default"):
            yield from _costs(features, views, scale)


def _hits(kind: str, hits: list[Hit]) -> Iterator[Measurement]:
    for method in METHODS:
        of_method = [hit for hit in hits if hit.method == method]
        for name, found in (("first", [h.first for h in of_method]), ("three", [h.among_three for h in of_method])):
            if found:
                parameters: dict[str, str | int] = {"variant": method, "kind": kind, "cases": len(found)}
                yield Measurement(f"guilty {name}", parameters, 100 * float(np.mean(found)), "%")


def _costs(features: int, views: str, scale: Scale) -> Iterator[Measurement]:
    config = DetectorConfig(context_size=CONTEXT, min_context=CONTEXT, views=(views,))
    plain = Detector(load_model("default", "cpu"), features, config)
    plain.process(sensor_rows(2 * CONTEXT, features))
    explaining = Detector(plain.model, features, replace(config, explain="alerts"))
    explaining.recover({key: value for key, value in plain.changes().items() if value is not None}, plain)
    spent: dict[str, list[float]] = defaultdict(list)
    n_alerts = n = 0
    rows = sensor_rows(BATCH * scale.explained_batches, features, seed=1)
    for part in islice(batches(rows, BATCH), scale.explained_batches):
        for name, detector in (("plain", plain), ("explaining", explaining)):  # in turns
            began = time.thread_time()
            found = detector.process(part)
            spent[name].append(time.thread_time() - began)
        n, n_alerts = n + len(part), n_alerts + int(found.outlier.sum())
    for row in rows[: scale.explained_batches, None]:
        began = time.thread_time()
        plain.explain(row)
        spent["one"].append(time.thread_time() - began)
    parameters: dict[str, str | int] = {"variant": views, "context": CONTEXT, "features": features}
    low, median, high = np.quantile(spent["one"], [0.25, 0.5, 0.75]).tolist()
    yield Measurement("explained record", parameters, 1000 * median, "ms", 500 * (high - low))
    lost = 1 - sum(spent["plain"]) / sum(spent["explaining"])
    parameters = {**parameters, "alerts": n_alerts, "records": n}
    yield Measurement("throughput lost", parameters, 100 * max(lost, 1e-6), "%")
