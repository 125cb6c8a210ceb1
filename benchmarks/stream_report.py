"""The shipped detector on streams: how it ranks outliers, how good its alerts are, and how clean its context stays.

    python benchmarks/stream_report.py --data ../shared/data/streams ../shared/data/streams_more --out DIR
    python benchmarks/stream_report.py --data ../shared/data/streams --generated --inliers-only --out DIR

Every record is scored before it is learned, 64 at a time. Writes DIR/results.csv; prints a Markdown table with a row
for each stream and, last, one JSON line: means over families of streams (see `family_of`) of the means of each. AUROC
and average precision are of `score`; all figures of scores and alerts leave out the first max(500, 10 %) records. On
streams without their outliers, the share of alerts should be at most the requested one.
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
from event_streams import Run, Stream, alerting, drifting_streams, family_of, load_streams, ranking, run

from fomo_stream import Detector, DetectorConfig, load_model

ALERTING = ("alert_rate", "precision", "recall", "event_recall", "false_incidents", "delay")
MEANS = ("auroc", "ap", *ALERTING, "contamination_mean")


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
    """One line of the results; NaN where a stream has no outliers to say."""
    auroc, ap = ranking(stream, made.score)
    return {
        "stream": stream.name,
        "family": family_of(stream.name),
        "records": len(stream.rows),
        "features": stream.rows.shape[1],
        "outliers": round(float(stream.outlier.mean()), 4),
        "auroc": round(auroc, 4),
        "ap": round(ap, 4),
        **{name: round(value, 5) for name, value in alerting(stream, made.alert).items()},
        "contamination_mean": round(float(np.nanmean(made.contamination)), 4),
        "contamination_max": round(float(np.nanmax(made.contamination)), 4),
        "announced": len(made.announced),
        "records_per_cpu_s": round(len(stream.rows) / made.cpu_s),
    }


def means(results: list[dict[str, Any]], alert_rate: float, inliers_only: bool) -> dict[str, Any]:
    """Means over families; of streams without their outliers, also how many alert more often than requested."""
    families = sorted({result["family"] for result in results})
    summary: dict[str, Any] = {"streams": len(results), "families": len(families)}
    for name in MEANS:
        by_family = [[one[name] for one in results if one["family"] == family] for family in families]
        known = [np.mean(values) for its in by_family if (values := [x for x in its if not math.isnan(x)])]
        summary[f"mean_{name}"] = round(float(np.mean(known)), 5) if known else None
    if inliers_only:
        rates = [result["alert_rate"] for result in results]
        summary |= {"max_alert_rate": max(rates), "above_rate": sum(rate > alert_rate for rate in rates)}
    summary["median_records_per_cpu_s"] = round(float(np.median([r["records_per_cpu_s"] for r in results])))
    return summary


if __name__ == "__main__":
    main()
