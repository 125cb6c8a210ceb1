"""The result of a replay: its report, as JSON, as DataFrames, and as it shows in a notebook."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fomo_stream.errors import ConfigError, needs_extra
from fomo_stream.replaying.measures.drift import MEASURES
from fomo_stream.replaying.measures.quality import METRICS
from fomo_stream.replaying.report_files import json_text, json_value, write_whole
from fomo_stream.wording import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

FORMAT = 2  # format 1 counted false incidents by another rule
COUNT_COLUMNS = ("records", "outliers", "alerts", "incidents", "true_incidents", "true_alerts", "segments")
PAGE = Path(__file__).parent / "report" / "page"
STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = (
    "text.js",
    "tables.js",
    "plots.js",
    "detectors.js",
    "timeline.js",
    "incidents.js",
    "drift.js",
    "records.js",
    "report.js",
)
ALERT_COLUMNS = (
    *("partition", "offset", "time", "score", "incident", "logit", "p_value", "severity", "label", "record"),
    *("reasons", "explanation"),
)
INCIDENT_COLUMNS = (
    *("partition", "key", "first", "last", "begin", "end", "records", "score", "surprise", "severity", "explanation"),
    "outliers",
)
EXTRA = "notebook"  # what pandas and matplotlib come with
HEIGHT = 700  # pixels of the report in a notebook
TICKS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)  # of scores

Report = dict[str, Any]
Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"


def load_report(path: str | Path) -> Report:
    """Return the report in a file of `--json` or `ReplayResult.save`. Raises ConfigError, in one sentence."""
    try:
        report = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from None
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or "format" not in report or not report.get("detectors"):
        raise ConfigError(f"{path} is not the report of a replay; give a file that `fomo-stream replay --json` wrote")
    if report["format"] != FORMAT:
        raise ConfigError(
            f"{path} has format {report['format']} and this version reads format {FORMAT}; replay again, or use the "
            "version that wrote it"
        )
    return report


class ReplayResult:
    """The result of a replay: a report of how well the detector would have done.

    `report` has everything, as plain data. The DataFrames, which need pandas, have one row per ...
        `metrics`      detector; `auroc_low` and `auroc_high` are the ends of the interval, and so on
        `timeline`     span of time with records (up to 4,096 of them)
        `alerts`       top alert, highest first
        `drift`        feature
        `incidents()`  incident, those of most surprise first

    A DataFrame is empty where the report has nothing on it. Times are UTC; without times they are record numbers.
    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        self._report: Report = json_value(report)

    @property
    def report(self) -> dict[str, Json]:
        """The report as plain data, as `save` writes it."""
        return self._report

    @property
    def is_complete(self) -> bool:
        """True if the replay came to its end: Ctrl-C ends it early."""
        return bool(self._report["source"]["is_complete"])

    @classmethod
    def load(cls, path: str | Path) -> ReplayResult:
        """Load a saved result. Raises ConfigError if the file is not a report, or of another format."""
        return cls(load_report(path))

    def save(self, path: str | Path) -> None:
        """Write the report as JSON; two of them can be compared with `fomo-stream compare`. Raises ConfigError."""
        write_whole(Path(path), f"{json_text(self._report)}\n".encode())

    def save_report(self, path: str | Path) -> None:
        """Write the report as one HTML file, which opens anywhere. Raises ConfigError if it cannot be written."""
        write_whole(Path(path), html_text(self._report).encode())

    @property
    def summary(self) -> str:
        """The result in sentences."""
        return "\n".join(self._report.get("summary", []))

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per detector: quality with intervals, counts, and seconds per record."""
        with needs_extra("a DataFrame", EXTRA):
            import pandas as pd

        rows = []
        for detector in self._report["detectors"]:
            row: dict[str, Any] = {"detector": detector["name"], "kind": detector.get("kind")}
            for name in METRICS:
                metric = detector["metrics"].get(name) or {}
                row |= {name: metric.get("value"), f"{name}_low": metric.get("low"), f"{name}_high": metric.get("high")}
            row |= {name: detector["counts"].get(name) for name in COUNT_COLUMNS}
            rows.append(row | {"seconds_per_record": seconds_per_record(self._report, detector["name"])})
        return pd.DataFrame(rows).set_index("detector")

    @property
    def timeline(self) -> pd.DataFrame:
        """Records, highest and mean score, alerts and outliers of our own detector over time."""
        frame = self._frame(self._report["timeline"])
        return frame.set_index("start") if len(frame) else frame

    @property
    def alerts(self) -> pd.DataFrame:
        """The highest alerts with their records, as JSON texts."""
        return self._frame({name: [alert.get(name) for alert in self._report["alerts"]] for name in ALERT_COLUMNS})

    @property
    def drift(self) -> pd.DataFrame:
        """The drift of each feature from the first records to the last (PSI), its medians and missing shares."""
        drift = self._report["drift"]
        return self._frame({"feature": drift["features"], **{k: drift[k] for k in MEASURES}})

    def incidents(self) -> pd.DataFrame:
        """Return the most surprising incidents, at most 20, the highest first; somebody would have to look at each.

        Columns: `partition` and `key` of the series (None: without a key); `first` and `last`, offsets of the first and
        last alert; `begin` and `end`, their times; `records`, the number of alerts; `score`, the highest; `surprise`,
        how unusual the incident is in total; `severity` and `explanation` of the highest alert; `outliers`, the number
        of its records that are labelled as outliers (None: no labels).
        """
        listed = self._report["incidents"]["worst"]
        return self._frame({name: [incident.get(name) for incident in listed] for name in INCIDENT_COLUMNS})

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the score over time, with the incidents of `incidents()` shaded and the spans with alerts dotted.

        ax: axes to draw on; None: a new figure. Returns the axes. Scores are drawn on a logistic scale, which separates
        0.99 and 0.999; each is the highest of its span of the `timeline`. Needs matplotlib.
        """
        with needs_extra("plot()", EXTRA):
            import matplotlib.pyplot as plt
            from matplotlib.dates import ConciseDateFormatter
        if ax is None:
            _, ax = plt.subplots(figsize=(10, 3), layout="constrained")
        spans, has_times = self._report["timeline"], self._report["source"]["axis"] == "time"

        def positions(x: list[int | None]) -> Any:
            return np.array(x, dtype="datetime64[ms]" if has_times else "float64")

        x_values, score = positions(spans["start"]), np.array(spans["max"], dtype=np.float64)
        is_alert = np.array(spans["alerts"], dtype=bool)
        ax.plot(x_values, score, linewidth=0.6, color="tab:blue", label="score")
        ax.plot(x_values[is_alert], score[is_alert], ".", color="tab:red", label="alert")
        listed = [incident for incident in self._report["incidents"]["worst"] if incident["begin"] is not None]
        for i, incident in enumerate(listed):
            begin, end = positions([incident["begin"], incident["end"] + spans["width"]])
            ax.axvspan(begin, end, color="tab:red", alpha=0.2, linewidth=0, label="" if i else "incident")
        ax.set(yscale="logit", ylabel="score", xlabel="time (UTC)" if has_times else "record", ylim=(0.1, None))
        ax.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        ax.minorticks_off()
        if has_times:
            ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator()))
        ax.set_title(
            f"{self._report['source']['name']}: {self._facts}", loc="left", fontsize="medium", parse_math=False
        )
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize="small", frameon=False)
        return ax

    def __repr__(self) -> str:
        source = self._report["source"]
        part = "" if self.is_complete else ", stopped early"
        return f"<ReplayResult of {source['name']!r}: {counted(source['records'], 'record')}{part}; {self._facts}>"

    def _repr_html_(self) -> str:
        # the sandbox lets the scripts of the page run, but not reach the notebook or its cookies
        page = escape(html_text(self._report))
        frame = f'sandbox="allow-scripts" style="width:100%;height:{HEIGHT}px;border:0" srcdoc="{page}"'
        return f"<iframe {frame}></iframe>"

    @property
    def _facts(self) -> str:
        own = self._report["detectors"][0]
        n, auroc = self._report["incidents"]["count"], own["metrics"].get("auroc")
        facts = f"{counted(own['counts']['alerts'], 'alert')} in {counted(n, 'incident')}"
        return facts + (f", AUROC {auroc['value']:.3f}" if auroc else "")

    def _frame(self, columns: Mapping[str, Any]) -> pd.DataFrame:
        """Return a DataFrame of these columns, with times for milliseconds; a single value fills its column."""
        with needs_extra("a DataFrame", EXTRA):
            import pandas as pd

        length = next((len(column) for column in columns.values() if isinstance(column, list)), None)
        frame = pd.DataFrame() if length is None else pd.DataFrame(columns, index=range(length))
        if self._report["source"]["axis"] == "time":
            for name in {"start", "begin", "end", "time"} & set(frame.columns):
                frame[name] = pd.to_datetime(frame[name], unit="ms", utc=True)
        return frame


def seconds_per_record(report: Mapping[str, Any], name: str) -> float | None:
    """Return the seconds that a detector took for one record; None if they are not known."""
    seconds: float | None = report["timing"]["seconds_per_record"].get(name)
    return seconds


def html_text(report: dict[str, Any]) -> str:
    """Return the report of a replay as an HTML page."""
    script = _script()
    parts = {
        "licence": (PAGE / "uPlot-LICENSE").read_text().strip(),
        "style": "\n".join((PAGE / name).read_text() for name in STYLES),
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": json_text(_page_data(report)),
        "timing": json_text(report.get("timing")),
        "script": script,
    }
    template = (PAGE / "report.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)  # one pass: data may also contain braces


def _script() -> str:
    own = "\n".join((PAGE / name).read_text() for name in SCRIPTS)
    return f'{(PAGE / "uPlot.iife.min.js").read_text()}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def _page_data(report: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the report that the page shows: without `timing`, and without what only `compare` needs."""
    detectors = [{k: v for k, v in detector.items() if k != "replicates"} for detector in report.get("detectors", [])]
    return {name: part for name, part in report.items() if name != "timing"} | {"detectors": detectors}
