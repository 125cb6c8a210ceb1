"""Several detectors on the same labelled streams, in one run, by family of streams.

    python benchmarks/families.py --data ../shared/data/streams ../shared/data/streams_more --out families.json
    python benchmarks/families.py --data DIR --out peers.json --detectors "River HalfSpaceTrees" "kNN window"

A family is a source of data: the part of a stream's name before "__", or before the first "_". Many streams of one
source say little more than one, so the mean over families is the figure that counts. Every record is scored before it
is learned. All detectors get the raw rows. Those that take no missing values get the mean of the values before them.

- fomo-stream: the River adapter as it comes, 64 records at a time; and with the two history views only (`fast`).
- River HalfSpaceTrees: behind a MinMaxScaler, as River's documentation recommends, record by record.
- PySAD LODA: record by record, on raw rows and on rows standardised with the mean and standard deviation of the
  records up to each; the table has the mean of both. It is left out where pysad (extra `bench`) is not installed.
- kNN window: mean distance to the 5 nearest of the last 1,000 records, standardised with them, 64 records at a time.

Prints a Markdown table of AUROC/average precision, less the first max(500, 10 %) records of each stream. --out gets one
JSON document with the figures of every stream and the means.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from event_streams import BATCH, Float, Stream, family_of, load_stream, ranking
from suite.contenders import NO_PYSAD, records

from fomo_stream import FoMoDetector

WINDOW, NEIGHBOURS = 1000, 5
METRICS = ("auroc", "ap")
Figures = list[dict[str, Any]]  # one for each stream, detector and variant of it
Scorer = Callable[[Float], Float]  # rows (n, d) of a whole stream to scores (n,), each from the rows before it


def main() -> None:
    everyone = detectors()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="DIR", help="folders of .npz: X, y")
    parser.add_argument("--streams", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--detectors", nargs="+", choices=list(everyone), default=list(everyone), help="only these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="streams at a time")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    paths = [path for folder in options.data for path in sorted(folder.glob("*.npz"))]
    paths = [path for path in paths if not options.streams or path.stem in options.streams]
    if not paths or not options.out.parent.is_dir():
        parser.error("--data takes folders with the streams as .npz files, --out a file in a folder that exists")
    if find_spec("pysad") is None:
        print(f"{NO_PYSAD.name} is left out: {NO_PYSAD.why}")
    figures: Figures = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for path, found in zip(paths, pool.map(measured, paths, [options.detectors] * len(paths)), strict=True):
            print(f"{path.stem} ({len(figures) // len(found) + 1} of {len(paths)})", file=sys.stderr, flush=True)
            figures += found
    means = {name: summary([row for row in figures if row["detector"] == name]) for name in options.detectors}
    document = {"means": means, "streams": figures}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(means, figures))


def detectors() -> dict[str, dict[str, Scorer]]:
    """The detectors that can run here, by name; each in one or more variants, of which the mean is taken."""
    found: dict[str, dict[str, Scorer]] = {
        "fomo-stream": {"default": ours()},
        "fomo-stream fast": {"fast": ours(views="fast")},
        "River HalfSpaceTrees": {"min-max": half_space_trees},
    }
    if find_spec("pysad") is not None:
        found["PySAD LODA"] = {"raw": loda, "standardised": lambda rows: loda(standardised(rows))}
    found["kNN window"] = {"standardised": nearest_of_window}
    return found


def measured(path: Path, names: Iterable[str]) -> Figures:
    """Every variant of the named detectors on the stream in a file. Runs in a process of its own."""
    torch.set_num_threads(1)  # CPU seconds are those of one core
    stream = load_stream(path)
    return [
        {"stream": stream.name, "family": family_of(stream.name), "detector": name, "variant": variant}
        | judged(stream, score)
        for name in names
        for variant, score in detectors()[name].items()
    ]


def judged(stream: Stream, score: Scorer) -> dict[str, Any]:
    """How well a detector ranks the outliers of a stream, and how fast."""
    began = time.process_time()
    made = score(stream.rows)
    cpu_s = time.process_time() - began
    auroc, ap = ranking(stream, np.nan_to_num(made, nan=0.0, posinf=1e12, neginf=-1e12))
    n, features = stream.rows.shape
    return {
        "records": n,
        "features": features,
        "auroc": round(auroc, 4),
        "ap": round(ap, 4),
        "records_per_cpu_s": round(n / cpu_s),
    }


# -- the detectors ------------------------------------------------------------------------------------------------


def ours(**chosen: Any) -> Scorer:
    """The River adapter with some of its parameters chosen."""

    def score(rows: Float) -> Float:
        detector, made = FoMoDetector(device="cpu", **chosen), []
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            made.append(detector.score_many(part))
            detector.learn_many(part)
        return np.concatenate(made)

    return score


def half_space_trees(rows: Float) -> Float:
    from river.anomaly import HalfSpaceTrees
    from river.preprocessing import MinMaxScaler

    detector, made = MinMaxScaler() | HalfSpaceTrees(seed=0), []
    for record in records(complete(rows)):
        made.append(detector.score_one(record))
        detector.learn_one(record)
    return np.array(made)


def loda(rows: Float) -> Float:
    from pysad.models import LODA

    detector = LODA(random_state=0)
    return np.array([detector.fit_score_partial(row) for row in complete(rows)])


def nearest_of_window(rows: Float) -> Float:
    rows, made = complete(rows), np.zeros(len(rows))
    for start in range(BATCH, len(rows), BATCH):
        window, part = rows[max(0, start - WINDOW) : start], slice(start, start + BATCH)
        mean, spread = window.mean(0), window.std(0)
        scale = np.where(spread > 0, spread, 1.0)
        known, new = (window - mean) / scale, (rows[part] - mean) / scale
        square = (new**2).sum(1)[:, None] + (known**2).sum(1) - 2 * new @ known.T
        made[part] = np.sqrt(np.maximum(np.partition(square, NEIGHBOURS)[:, :NEIGHBOURS], 0.0)).mean(1)
    return made


def complete(rows: Float) -> Float:
    """rows (n, d) with the mean of the values before in the place of each missing one; 0 where there are none."""
    missing = np.isnan(rows)
    return np.where(missing, moments(rows)[0], rows) if missing.any() else rows


def standardised(rows: Float) -> Float:
    """rows (n, d) less the mean of the rows so far, divided by their standard deviation (1 where that is 0)."""
    mean, spread = moments(rows)
    return (rows - mean) / np.where(spread > 0, spread, 1.0)


def moments(rows: Float) -> tuple[Float, Float]:
    """Mean and standard deviation (n, d) of the values up to each row, less the missing ones (Welford's method)."""
    means, spreads = np.zeros_like(rows), np.zeros_like(rows)
    count, mean, squares = np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for i, row in enumerate(rows):
        count = count + ~np.isnan(row)
        step = np.nan_to_num(row - mean, nan=0.0)
        mean = mean + step / np.maximum(count, 1)
        squares = squares + step * np.nan_to_num(row - mean, nan=0.0)
        means[i], spreads[i] = mean, np.sqrt(squares / np.maximum(count, 1))
    return means, spreads


# -- what is printed ----------------------------------------------------------------------------------------------


def summary(figures: Figures) -> dict[str, Any]:
    """Means of one detector's AUROC and average precision: of each family, over families, and over streams."""

    def mean(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
        rows = list(rows)
        return {metric: round(float(np.mean([row[metric] for row in rows])), 4) for metric in METRICS}

    names = sorted({row["family"] for row in figures})
    families = {name: mean(row for row in figures if row["family"] == name) for name in names}
    speed = float(np.median([row["records_per_cpu_s"] for row in figures]))
    return {
        "families": families,
        "over_families": mean(families.values()),
        "over_streams": mean(figures),
        "median_records_per_cpu_s": round(speed),
    }


def table(means: dict[str, dict[str, Any]], figures: Figures) -> str:
    """A Markdown table: a row for each family and two of means, a column for each detector."""

    def line(name: str, streams: int, found: Iterable[dict[str, float]]) -> str:
        cells = (" / ".join(f"{one[metric]:.3f}" for metric in METRICS) for one in found)
        return f"| {' | '.join([name, str(streams), *cells])} |"

    family = {row["stream"]: row["family"] for row in figures}
    names = sorted(set(family.values()))
    of_family = (
        line(name, list(family.values()).count(name), [made["families"][name] for made in means.values()])
        for name in names
    )
    return "\n".join(
        [
            f"| family | streams | {' | '.join(means)} |",
            "|---" * (len(means) + 2) + "|",
            *of_family,
            line(f"mean over {len(names)} families", len(family), [made["over_families"] for made in means.values()]),
            line("mean over streams", len(family), [made["over_streams"] for made in means.values()]),
        ]
    )


if __name__ == "__main__":
    main()
