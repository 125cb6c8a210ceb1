"""The shipped detector on streams: how it ranks outliers, how often it alerts, and how clean its context stays.

    python tests/benchmarks/stream_report.py --data ../shared/data/streams ../shared/data/streams_more --out DIR
    python tests/benchmarks/stream_report.py --data ../shared/data/streams --generated --inliers-only --out DIR

Every record is scored before it is learned, 64 at a time. Writes DIR/results.csv; prints a Markdown table with a row
for each stream and, last, one JSON line about all. Alerts leave out the first 5,000 records, and count where at least
2,000 come after them. Their share should be the requested 1 % without outliers, give or take a factor of 2. Their
precision is the share of true outliers among them.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from event_streams import Run, Stream, drifting_streams, load_streams, ranking, run

from fomo_stream import Detector, DetectorConfig, load_model

SETTLED = 5000  # records after which alerts are counted ...
ENOUGH = 2000  # ... where at least so many come
SLACK = 2.0  # factor by which an honest alert rate may differ from the requested one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", default=[], metavar="DIR", help="folders of .npz files: X, y")
    parser.add_argument("--generated", action="store_true", help="also, or only, the generated drifting streams")
    parser.add_argument("--inliers-only", action="store_true", help="the streams without their outliers")
    parser.add_argument("--streams", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--feedback", type=int, metavar="DELAY", help="true labels, this many records late")
    parser.add_argument("--model", default="default")
    parser.add_argument("--seed", type=int, default=0, help="of the generated streams")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    torch.set_num_threads(1)  # CPU seconds are those of one core
    streams = selected(parser, options)
    model, config = load_model(options.model, "cpu"), DetectorConfig()
    options.out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for stream in streams:
        made = run(Detector(model, stream.rows.shape[1], config), stream, options.feedback)
        results.append(measured(stream, made))
        if len(results) == 1:
            print("|", " | ".join(results[0]), "|")
            print("|---" * len(results[0]) + "|")
        print("|", " | ".join(map(str, results[-1].values())), "|", flush=True)
    with (options.out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, results[0])
        writer.writeheader()
        writer.writerows(results)
    summary = means(results, config.alert_rate, options.inliers_only)
    print(json.dumps({**summary, "model": options.model, "feedback": options.feedback}))


def selected(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Stream]:
    """The streams that were asked for."""
    streams = []
    for folder in options.data:
        found = load_streams(folder, options.inliers_only)
        if not found:
            parser.error(f"no .npz file in {folder}; --data takes the folders of the streams")
        streams += found
    if options.generated:
        streams += drifting_streams(seed=options.seed, inliers_only=options.inliers_only)
    if not streams:
        parser.error("nothing to run: give --data, or --generated, or both")
    names = {stream.name for stream in streams}
    wanted = set(options.streams or names)
    if wanted - names:
        parser.error(f"no stream {', '.join(sorted(wanted - names))}; there are {', '.join(sorted(names))}")
    return [stream for stream in streams if stream.name in wanted]


def measured(stream: Stream, made: Run) -> dict[str, Any]:
    """One line of the results; NaN where a stream is too short, or has no outliers, to say."""
    auroc, ap = ranking(stream, made.score)
    alert, outlier = made.alert[SETTLED:], stream.outlier[SETTLED:]
    counts = len(alert) >= ENOUGH
    return {
        "stream": stream.name,
        "records": len(stream.rows),
        "features": stream.rows.shape[1],
        "outliers": round(float(stream.outlier.mean()), 4),
        "auroc": round(auroc, 4),
        "ap": round(ap, 4),
        "alert_rate": round(float(alert.mean()), 5) if counts else math.nan,
        "precision": round(float(outlier[alert].mean()), 4)
        if counts and alert.any() and stream.outlier.any()
        else math.nan,
        "contamination_mean": round(float(np.nanmean(made.contamination)), 4),
        "contamination_max": round(float(np.nanmax(made.contamination)), 4),
        "announced": len(made.announced),
        "records_per_cpu_s": round(len(stream.rows) / made.cpu_s),
    }


def means(results: list[dict[str, Any]], alert_rate: float, inliers_only: bool) -> dict[str, Any]:
    """Figures over all streams; those without outliers are about alerts alone."""

    def mean(name: str) -> float:
        values = [result[name] for result in results if not math.isnan(result[name])]
        return round(float(np.mean(values)), 5) if values else math.nan

    rates = [result["alert_rate"] for result in results if not math.isnan(result["alert_rate"])]
    summary: dict[str, Any] = {"streams": len(results), "with_alert_rate": len(rates)}
    summary |= {"mean_alert_rate": mean("alert_rate"), "min_alert_rate": min(rates, default=math.nan)}
    summary["max_alert_rate"] = max(rates, default=math.nan)
    if inliers_only:
        summary["outside_band"] = sum(not alert_rate / SLACK <= rate <= alert_rate * SLACK for rate in rates)
    else:
        summary |= {f"mean_{name}": mean(name) for name in ("precision", "auroc", "ap")}
        summary["mean_contamination"] = mean("contamination_mean")
    summary["median_records_per_cpu_s"] = round(float(np.median([r["records_per_cpu_s"] for r in results])))
    return summary


if __name__ == "__main__":
    main()
