"""Alerts of other detectors in a file, written like our results. The thresholds need no labels.

    python benchmarks/peers.py plant.csv --key machine --time ts --detector ridge --rate 0 0.001 --out DIR

Each key has a detector of its own; without `--key` there is one for all rows. A row is an alert if its score exceeds
all earlier scores of its detector except for a share `--rate`. DIR gets `DETECTOR.RATE.jsonl` for each rate.

- `hst` (Half-Space Trees of River, behind a min-max scaler) and `loda` (PySAD, standardised) score each row before they
  learn it. They have no alerts in their first 300 rows.
- `iforest` (scikit-learn) and `ridge` learn the first `--train` rows of a key. They have no alerts in these rows, and
  take the threshold from them. `ridge` predicts each feature from the others: the score is the largest residual, in
  standard deviations.

Only columns of numbers are used. A missing value gets the last value of the key. Alerts of a key that are at most an
hour apart share an incident.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from families import half_space_trees, loda, standardised
from numpy.typing import NDArray
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import Ridge

Float = NDArray[np.float64]
MIN_SCORES = 300  # before the first threshold
MAX_GAP = pd.Timedelta(hours=1)  # between alerts of an incident


def isolation_forest(rows: Float, train: int) -> Float:
    scores: Float = -IsolationForest(random_state=0).fit(rows[:train]).score_samples(rows)
    return scores


def ridge(rows: Float, train: int) -> Float:
    spread = rows[:train].std(0)
    rows = (rows - rows[:train].mean(0)) / np.where(spread > 0, spread, 1)
    residuals = np.empty_like(rows)
    for column in range(rows.shape[1]):
        others = np.delete(rows, column, 1)
        residual = rows[:, column] - Ridge().fit(others[:train], rows[:train, column]).predict(others)
        residuals[:, column] = np.abs(residual) / (residual[:train].std() + 1e-9)
    largest: Float = residuals.max(1)
    return largest


ON_THE_WAY: dict[str, Callable[[Float], Float]] = {
    "hst": half_space_trees,
    "loda": lambda rows: loda(standardised(rows)),
}
TRAINED: dict[str, Callable[[Float, int], Float]] = {"iforest": isolation_forest, "ridge": ridge}


def results(times: pd.Series[Any], scores: Float, rate: float, train: int | None) -> pd.Series[Any]:
    """The results of one key. times: of its rows; train: how many of them were learned first, None if on the way."""
    if train is None:
        earlier = pd.Series(scores).expanding(MIN_SCORES).quantile(1 - rate).shift()
        limits = earlier.fillna(np.inf).to_numpy()
    else:
        limits = np.where(np.arange(len(scores)) < train, np.inf, np.quantile(scores[:train], 1 - rate))
    outlier = scores > limits
    alerts = times[outlier].sort_values()
    begins = ~(alerts.diff() <= MAX_GAP)
    incidents = alerts.index.to_series().where(begins).ffill().reindex(times.index)
    return pd.Series(
        [
            {"score": score, "surprise": score, "severity": "warning", "explanation": ""}
            | {"outlier": bool(alert), "incident": str(int(incident)) if alert else None}
            for score, alert, incident in zip(scores.tolist(), outlier, incidents, strict=True)
        ],
        times.index,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="CSV or JSON lines")
    parser.add_argument("--key")
    parser.add_argument("--time", required=True)
    parser.add_argument("--exclude", default="", help="columns that are not features, with commas")
    parser.add_argument("--detector", choices=[*ON_THE_WAY, *TRAINED], required=True)
    parser.add_argument("--rate", type=float, nargs="+", default=[0.01])
    parser.add_argument("--train", type=int, default=7200, metavar="ROWS", help="of each key, for iforest and ridge")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(arguments)
    csv = options.file.endswith(".csv")
    table = pd.read_csv(options.file) if csv else pd.read_json(options.file, lines=True, dtype=False)
    times = pd.to_datetime(table[options.time])
    numbers = table.select_dtypes("number")
    features = numbers.drop(columns=[options.time, options.key, *options.exclude.split(",")], errors="ignore")
    made = []
    for _, part in features.groupby(table[options.key] if options.key else np.zeros(len(table))):
        rows = part.ffill().bfill().fillna(0.0).to_numpy(np.float64)
        train = None if options.detector in ON_THE_WAY else min(options.train, len(rows))
        scores = ON_THE_WAY[options.detector](rows) if train is None else TRAINED[options.detector](rows, train)
        made.append((times[part.index], scores, train))
    options.out.mkdir(parents=True, exist_ok=True)
    for rate in options.rate:
        found = pd.concat([results(key_times, scores, rate, train) for key_times, scores, train in made])
        table.assign(fomo=found).to_json(
            options.out / f"{options.detector}.{rate:g}.jsonl", orient="records", lines=True
        )


if __name__ == "__main__":
    main()
