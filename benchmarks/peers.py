"""What other detectors alert on in a file with keys: the file as JSON lines, with results like ours.

    python benchmarks/peers.py plant.csv --key machine --time ts --detector hst --rate 0.001 --out scored.jsonl

Each key has a detector of its own (without `--key`, one for all rows). No labels are used. The threshold is what a user
without labels would take: the score that a share `--rate` of a detector's own scores exceeds. `hst` (Half-Space Trees of
River) and `loda` (PySAD) score each row before they learn it; their threshold is taken from their last 2,000 scores.
`iforest` (scikit-learn) and `ridge` (the largest residual of a regression of each feature on the others) learn the first
`--train` rows of a key, and take the threshold from these. Gaps are filled by the last value of the key. Alerts of a key
that are at most an hour apart share an incident.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Float = NDArray[np.float64]
LAST, FEWEST = 2_000, 300  # scores that a threshold is taken from
QUIET = pd.Timedelta(hours=1)


def one_by_one(score_and_learn: Callable[[Float], float]) -> Callable[[Float, int], Float]:
    return lambda rows, _: np.array([score_and_learn(row) for row in rows])


def half_space_trees() -> Callable[[Float, int], Float]:
    from river import anomaly, preprocessing

    model = preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=0)

    def score(row: Float) -> float:
        x = dict(enumerate(row.tolist()))
        found = float(model.score_one(x))
        model.learn_one(x)
        return found

    return one_by_one(score)


def loda() -> Callable[[Float, int], Float]:
    from pysad.models import LODA

    model = LODA()

    def score(row: Float) -> float:
        found = float(model.score_partial(row))
        model.fit_partial(row)
        return found

    return one_by_one(score)


def isolation_forest() -> Callable[[Float, int], Float]:
    from sklearn.ensemble import IsolationForest

    return lambda rows, train: -IsolationForest(random_state=0).fit(rows[:train]).score_samples(rows)


def ridge(rows: Float, train: int) -> Float:
    from sklearn.linear_model import Ridge

    spread = rows[:train].std(0)
    x = (rows - rows[:train].mean(0)) / np.where(spread > 0, spread, 1)
    residuals = np.empty_like(x)
    for column in range(x.shape[1]):
        others = np.delete(x, column, 1)
        found = x[:, column] - Ridge().fit(others[:train], x[:train, column]).predict(others)
        residuals[:, column] = np.abs(found) / (found[:train].std() + 1e-9)
    largest: Float = residuals.max(1)
    return largest


DETECTORS: dict[str, tuple[Callable[[], Callable[[Float, int], Float]], bool]] = {  # and whether it learns on the way
    "hst": (half_space_trees, True),
    "loda": (loda, True),
    "iforest": (isolation_forest, False),
    "ridge": (lambda: ridge, False),
}


def thresholds(scores: Float, rate: float) -> Float:
    """The score (n,) that a share `rate` of the scores before a row exceeds; infinite until there are enough."""
    limits = pd.Series(scores).rolling(LAST, min_periods=FEWEST).quantile(1 - rate).shift(1)
    return limits.fillna(np.inf).to_numpy()


def judged(table: pd.DataFrame, features: list[str], times: pd.Series, detector: str, rate: float, train: int) -> Any:
    """Results of the rows of one key."""
    rows = table[features].ffill().bfill().fillna(0.0).to_numpy(np.float64)
    make, on_the_way = DETECTORS[detector]
    scores = make()(rows, min(train, len(rows)))
    limits = thresholds(scores, rate) if on_the_way else np.full(len(rows), np.quantile(scores[:train], 1 - rate))
    outlier = scores > limits
    alerts = times[outlier]
    starts = (alerts.diff() > QUIET) | alerts.diff().isna()
    incident = pd.Series(table.index[outlier], alerts.index).where(starts).ffill()
    return pd.DataFrame({"score": scores, "outlier": outlier, "incident": incident}, index=table.index)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="CSV or JSON lines")
    parser.add_argument("--key", default="")
    parser.add_argument("--time", required=True)
    parser.add_argument("--features", help="all columns of numbers by default")
    parser.add_argument("--exclude", default="")
    parser.add_argument("--detector", choices=DETECTORS, required=True)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--train", type=int, default=7200, metavar="ROWS", help="of each key, for iforest and ridge")
    parser.add_argument("--out", required=True)
    options = parser.parse_args(arguments)
    table = pd.read_csv(options.file) if options.file.endswith(".csv") else pd.read_json(options.file, lines=True)
    excluded = {options.time, options.key, *options.exclude.split(",")}
    numbers = [str(name) for name in table.select_dtypes("number") if name not in excluded]
    features = options.features.split(",") if options.features else numbers
    times = pd.to_datetime(table[options.time])
    groups: Any = table.groupby(options.key) if options.key else [("", table)]
    results: Any = pd.concat(
        judged(rows, features, times[rows.index], options.detector, options.rate, options.train) for _, rows in groups
    ).loc[table.index]
    with open(options.out, "w") as out:
        records = table.astype(object).where(table.notna(), None).to_dict("records")
        for record, (score, outlier, incident) in zip(records, results.itertuples(index=False), strict=True):
            result: dict[str, Any] = {"score": score, "outlier": bool(outlier)}
            if outlier:
                result |= {"incident": str(int(incident)), "surprise": score, "severity": "warning", "explanation": ""}
            out.write(json.dumps({**record, options.time: str(record[options.time]), "fomo": result}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
