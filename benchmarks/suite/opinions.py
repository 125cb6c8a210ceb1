"""What comes with a score: how good reasons are and what they cost, and scores in drift."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from event_streams import drifting_streams
from guilty import KINDS, Stream, all_cases

from fomo_stream import Detector, DetectorConfig, load_model
from fomo_stream.detector.series import MOVEMENT_VECTORS, Series

from .contenders import Float, batches, sensor_rows
from .report import Measurement, Sizes
from .scale import Scale

WIDTHS = (10, 50)
VIEWS = ("default", "fast")


CONTEXT, BATCH = 1000, 64
SEED = 1000


def explaining(scale: Scale) -> Iterator[Measurement]:
    """Reasons: hits of all methods, and costs.

    Hits: records that are odd because of known features, see `tests/guilty.py`. The methods are the robust z-scores of
    the features, and the fall of the logit when one feature after the other is set to missing.

    Costs: CPU time of an explained record, and the share of the throughput that explaining alerts takes.
    """
    hits = [
        Hit(method, given.kind, bool(case.guilty & set(order[:1])), bool(case.guilty & set(order[:3])))
        for given, detector, case in all_cases(scale.guilty_features, scale.guilty_cases, SEED)
        for method, order in (
            ("reasons", [reason.feature for reason in detector.explain(case.rows)[-1]]),
            ("z-scores", by_z_scores(given, case.rows)),
        )
    ]
    for kind in KINDS:
        yield from _hits(kind, [hit for hit in hits if hit.kind == kind])
    yield from _hits("all", hits)
    for features in WIDTHS:
        for views in ("fast", "default"):
            yield from _explaining_costs(features, views, scale)


class Hit(NamedTuple):
    """Whether a method named a guilty feature of a case."""

    method: str
    kind: str
    first: bool  # as the first one
    among_three: bool  # as one of the first three


def by_z_scores(given: Stream, rows: Float) -> list[int]:
    """Features by the robust z-score of their value; of codes, by that of the rarity; in a case of movement also by
    those of level and spread. The one that counts most comes first."""
    series = Series(rows.shape[1], relative=False, categorical=given.categorical)
    usual, seen = series.follow(given.rows).vectors[-CONTEXT:], series.follow(rows).vectors[-1]
    vectors = [0, *range(len(seen) - MOVEMENT_VECTORS, len(seen))] if given.kind == "movement" else [0]
    score = np.zeros(len(seen[0]))
    for vector in vectors:
        values, value = usual[:, vector].copy(), seen[vector].copy()
        for column in given.categorical:
            counts = {code: int((values[:, column] == code).sum()) for code in {*values[:, column], value[column]}}
            rarity = {code: np.sqrt((CONTEXT + 1) / (count + 0.5) - 1) for code, count in counts.items()}
            values[:, column] = [rarity[code] for code in values[:, column]]
            value[column] = rarity[value[column]]
        middle = np.nanmedian(values, axis=0)
        spread = 1.4826 * np.nanmedian(np.abs(values - middle), axis=0)
        spread = np.where(spread > 0, spread, np.nanstd(values, axis=0) + 1e-12)
        score = np.fmax(score, np.nan_to_num(np.abs(value - middle) / spread))
    return [int(feature) for feature in np.argsort(-score, kind="stable")]


def _hits(kind: str, hits: list[Hit]) -> Iterator[Measurement]:
    for method in ("reasons", "z-scores"):
        of_method = [hit for hit in hits if hit.method == method]
        for name, found in (("first", [h.first for h in of_method]), ("three", [h.among_three for h in of_method])):
            if found:
                parameters: Sizes = {"variant": method, "kind": kind, "cases": len(found)}
                yield Measurement(f"guilty {name}", parameters, 100 * float(np.mean(found)), "%")


def _explaining_costs(features: int, views: str, scale: Scale) -> Iterator[Measurement]:
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
    parameters: Sizes = {"variant": views, "context": CONTEXT, "features": features}
    low, median, high = np.quantile(spent["one"], [0.25, 0.5, 0.75]).tolist()
    yield Measurement("explained record", parameters, 1000 * median, "ms", 500 * (high - low))
    lost = 1 - sum(spent["plain"]) / sum(spent["explaining"])
    parameters = {**parameters, "alerts": n_alerts, "records": n}
    yield Measurement("throughput lost", parameters, 100 * max(lost, 1e-6), "%")


SETTLED = 5000  # records, and those after which a share is counted


def drift(scale: Scale) -> Iterator[Measurement]:
    """Shares by kind of drift; the mean and, of high scores, also the largest one over the seeds."""
    model = load_model()
    for views in VIEWS:
        shares: dict[str, dict[str, list[float]]] = {}
        for seed in range(scale.drift_seeds):
            for stream in drifting_streams(scale.drift_records, seed, inliers_only=True):
                detector = Detector(model, stream.rows.shape[1], DetectorConfig(views=(views,)))
                found = detector.process(stream.rows)
                score, p, outlier = found.score[SETTLED:], found.p_value[SETTLED:], found.outlier[SETTLED:]
                high = {"score > 0.95": score > 0.95, "score > 0.99": score > 0.99, "p <= 0.05": p <= 0.05}
                for name, which in (high | {"alerts": outlier}).items():
                    shares.setdefault(stream.name, {}).setdefault(name, []).append(100 * float(which.mean()))
        for kind, named in shares.items():
            for name, values in named.items():
                parameters: Sizes = {"variant": views, "drift": kind}
                yield Measurement(name, parameters, sum(values) / len(values), "%")
        yield Measurement(
            "largest share of scores > 0.95",
            {"variant": views},
            max(max(named["score > 0.95"]) for named in shares.values()),
            "%",
        )
