"""The shipped detector on streams: how it ranks outliers, how often it alerts, and how clean its context stays.

    python tests/benchmarks/stream_report.py --data ../shared/data/streams ../shared/data/streams_more --out DIR
    python tests/benchmarks/stream_report.py --data ../shared/data/streams --generated --inliers-only --out DIR

Every record is scored before it is learned, 64 at a time. Writes DIR/results.csv and DIR/report.png; prints a Markdown
table with a row for each stream and, last, one JSON line about all. Alerts leave out the first 5,000 records, and count
where at least 2,000 come after them. Their share should be the requested 1 % without outliers, give or take a factor of
2. Their precision is the share of true outliers among them.
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
from drift_inliers import Bool, Float
from drifting import Stream, drifting_streams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from prequential import Run, load_streams, ranking, run

from fomo_stream import Detector, DetectorConfig, load_model

SETTLED = 5000  # records after which alerts are counted ...
ENOUGH = 2000  # ... where at least so many come
SLACK = 2.0  # factor by which an honest alert rate may differ from the requested one
COLUMNS = 4  # panels in a row of the picture
SHARES = (0.01, 0.05, 0.2, 0.5, 1.0)  # ticks


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
    runs: list[Run] = []
    results: list[dict[str, Any]] = []
    for stream in streams:
        runs.append(run(Detector(model, stream.rows.shape[1], config), stream, options.feedback))
        results.append(measured(stream, runs[-1]))
        if len(results) == 1:
            print("|", " | ".join(results[0]), "|")
            print("|---" * len(results[0]) + "|")
        print("|", " | ".join(map(str, results[-1].values())), "|", flush=True)
    with (options.out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, results[0])
        writer.writeheader()
        writer.writerows(results)
    summary = means(results, config.alert_rate, options.inliers_only)
    late = "no labels" if options.feedback is None else f"true labels {options.feedback:,} records late"
    heading = f"model {options.model}, context of {config.context_size:,}, {late}; {in_words(summary)}"
    picture(streams, runs, results, config.alert_rate, heading).savefig(options.out / "report.png", dpi=110)
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
        summary["outside_band"] = sum(not honest(rate, alert_rate) for rate in rates)
    else:
        summary |= {f"mean_{name}": mean(name) for name in ("precision", "auroc", "ap")}
        summary["mean_contamination"] = mean("contamination_mean")
    summary["median_records_per_cpu_s"] = round(float(np.median([r["records_per_cpu_s"] for r in results])))
    return summary


def in_words(summary: dict[str, Any]) -> str:
    """The figures over all streams, for people."""
    number = summary["streams"]
    alerts = f"{100 * summary['mean_alert_rate']:.2f} % alerts in the mean"
    if "outside_band" in summary:
        far = f"{summary['outside_band']} of {summary['with_alert_rate']} streams"
        return f"{alerts}, {far} not within a factor of {SLACK:g} of the requested rate"
    ranks = f"mean AUROC {summary['mean_auroc']:.3f}, mean AP {summary['mean_ap']:.3f}"
    return f"{number} streams: {ranks}, {alerts}, {100 * summary['mean_contamination']:.2f} % outliers in the context"


def honest(rate: float, requested: float) -> bool:
    """Whether the realised alert rate on inliers is what was asked for, within the slack."""
    return requested / SLACK <= rate <= requested * SLACK


# -- the picture --------------------------------------------------------------------------------------------------


def picture(
    streams: list[Stream], runs: list[Run], results: list[dict[str, Any]], alert_rate: float, heading: str
) -> Figure:
    """One panel a stream: contamination of the context over its records, or alerts where there are no outliers."""
    n_columns = min(COLUMNS, len(streams))
    n_rows = math.ceil(len(streams) / n_columns)
    figure = Figure(figsize=(max(10.0, 4.2 * n_columns), 1.2 + 2.1 * n_rows), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).ravel()
    for ax, stream, made, result in zip(grid, streams, runs, results, strict=False):
        if stream.outlier.any():
            contamination_panel(ax, stream, made, result)
        else:
            alert_panel(ax, made, result, alert_rate)
        for change in stream.changes:
            ax.axvline(change, color="C0", linestyle=":", linewidth=1)
        for record in made.announced:
            ax.axvline(record, color="C1", linewidth=1)
        ax.set_xlim(0, len(stream.rows))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        ax.tick_params(labelsize=8)
    for ax in grid[len(streams) :]:
        ax.set_visible(False)
    figure.suptitle(heading, fontsize=11)
    figure.legend(handles=legend(streams, runs), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def contamination_panel(ax: Axes, stream: Stream, made: Run, result: dict[str, Any]) -> None:
    position = np.arange(len(stream.rows))
    ax.fill_between(position, running(stream.outlier, 500), color="0.82", linewidth=0)
    ax.plot(made.position, made.contamination, color="C3", linewidth=1.3, clip_on=False, zorder=3)
    ax.set_title(f"{result['stream']}   AUROC {result['auroc']:.3f}   AP {result['ap']:.3f}", fontsize=9, loc="left")
    # a root scale: one per cent of the context is worth seeing beside bursts of nothing but outliers
    ax.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    ax.set_ylim(0, 1)
    _percentages(ax, SHARES)


def alert_panel(ax: Axes, made: Run, result: dict[str, Any], alert_rate: float) -> None:
    window = 2000
    rate = running(made.alert, window)
    position = np.arange(len(rate))
    ax.axhspan(alert_rate / SLACK, alert_rate * SLACK, color="0.88", linewidth=0)
    ax.axhline(alert_rate, color="0.6", linewidth=0.8)
    lowest = alert_rate / 20  # a logarithmic axis has no place for none
    ax.plot(position[window:], np.maximum(rate[window:], lowest), color="C3", linewidth=1.3)
    ax.axvline(SETTLED, color="0.4", linewidth=0.6)
    share = result["alert_rate"]
    good = math.isnan(share) or honest(share, alert_rate)
    title = f"{result['stream']}   " + ("too short" if math.isnan(share) else f"alerts {100 * share:.2f} %")
    ax.set_title(title, fontsize=9, loc="left", color="black" if good else "C3")
    ax.set_yscale("log")
    ax.set_ylim(lowest, alert_rate * 50)
    _percentages(ax, alert_rate * np.array([0.1, 0.5, 1, 2, 5, 20]))


def _percentages(ax: Axes, ticks: Any) -> None:
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.3g} %"))


def running(flag: Bool, size: int) -> Float:
    """Share (n,) of the last size records, or of all so far, that have the flag (n,)."""
    total = np.cumsum(np.concatenate([[0.0], flag]))
    end = np.arange(1, len(flag) + 1)
    start = np.maximum(end - size, 0)
    return np.asarray((total[end] - total[start]) / (end - start))


def legend(streams: list[Stream], runs: list[Run]) -> list[Patch | Line2D]:
    """What the panels show."""
    changes: list[Patch | Line2D] = []
    if any(stream.changes for stream in streams):
        changes.append(Line2D([], [], color="C0", linestyle=":", label="another regime begins"))
    if any(len(made.announced) for made in runs):
        changes.append(Line2D([], [], color="C1", label="the detector adapts to one"))
    if any(stream.outlier.any() for stream in streams):
        return [
            Line2D([], [], color="C3", label="share of outliers in the context"),
            Patch(color="0.82", label="share among the last 500 records"),
            *changes,
        ]
    return [
        Line2D([], [], color="C3", label="alerts among the last 2,000 records"),
        Patch(color="0.88", label=f"requested rate, within a factor of {SLACK:g}"),
        Line2D([], [], color="0.4", linewidth=0.6, label=f"counted from here ({SETTLED:,} records)"),
        *changes,
    ]


if __name__ == "__main__":
    main()
