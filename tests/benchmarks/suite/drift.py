"""Drift: the share of ordinary records with a high score, a small p-value and an alert, while a stream moves."""

from __future__ import annotations

from collections.abc import Iterator

from drifting import drifting_streams

from fomo_stream import Detector, DetectorConfig, load_model

from .report import Measurement
from .scale import Scale

SETTLED = 5000  # records, and those after which a share is counted
VIEWS = ("default", "fast")


def measure(scale: Scale) -> Iterator[Measurement]:
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
                parameters: dict[str, str | int] = {"variant": views, "drift": kind}
                yield Measurement(name, parameters, sum(values) / len(values), "%")
        yield Measurement(
            "largest share of scores > 0.95",
            {"variant": views},
            max(max(named["score > 0.95"]) for named in shares.values()),
            "%",
        )
