"""The result of a replay: its report, as JSON, as DataFrames, and as it shows in a notebook."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.measures.quality import METRICS
from fomo_stream.replaying.output import json_text, plain, write_whole

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
COUNTS = ("records", "outliers", "alerts", "true_alerts", "segments")
PAGE = Path(__file__).parent / "report" / "page"
STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = (
    "text.js",
    "tables.js",
    "plots.js",
    "curves.js",
    "detectors.js",
    "timeline.js",
    "quality.js",
    "drift.js",
    "records.js",
    "report.js",
)
DRIFT = ("psi", "missing", "median")

Report = dict[str, Any]


def load_report(path: str | Path) -> Report:
    """The report in a file that `--json` or `ReplayResult.save` has written. Raises ConfigError, in one sentence."""
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
    """How well the detector would have done: the report of a replay.

    `report` has all of it, as plain data. The DataFrames have one row per ...
        `metrics`      detector; `auroc_low` and `auroc_high` are the ends of the interval, and so on
        `timeline`     span of time with records (up to 4,096 of them)
        `windows`      window and detector
        `alerts`       top alert, highest first
        `drift`        window and feature
        `calibration`  detector and requested alert rate
    A DataFrame is empty where the report has nothing on it. Times are UTC; without times they are record numbers.
    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.report: Report = plain(report)

    @classmethod
    def load(cls, path: str | Path) -> ReplayResult:
        """A result that was saved. Raises ConfigError if the file is no report, or of another format."""
        return cls(load_report(path))

    def save(self, path: str | Path) -> None:
        """Write the report as JSON; two of them can be compared with `fomo-stream compare`. Raises ConfigError."""
        write_whole(Path(path), f"{json_text(self.report)}\n".encode())

    def save_report(self, path: str | Path) -> None:
        """Write the report as one HTML file, which opens anywhere. Raises ConfigError if it cannot be written."""
        write_whole(Path(path), html_text(self.report).encode())

    @property
    def summary(self) -> str:
        """The result in words."""
        return "\n".join(self.report.get("summary", []))

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per detector: quality with intervals, counts, and seconds per record."""
        import pandas as pd

        rows = []
        for detector in self.report["detectors"]:
            row: dict[str, Any] = {"detector": detector["name"], "kind": detector.get("kind")}
            for name in METRICS:
                metric = (detector.get("metrics") or {}).get(name) or {}
                row |= {name: metric.get("value"), f"{name}_low": metric.get("low"), f"{name}_high": metric.get("high")}
            row |= {name: (detector.get("counts") or {}).get(name) for name in COUNTS}
            rows.append(row | {"seconds_per_record": seconds_per_record(self.report, detector["name"])})
        return pd.DataFrame(rows).set_index("detector") if rows else pd.DataFrame()

    @property
    def timeline(self) -> pd.DataFrame:
        """Records, highest and mean score, alerts and outliers of our own detector over time."""
        frame = self._frame([self.report.get("timeline") or {}])
        return frame.set_index("start") if len(frame) else frame

    @property
    def windows(self) -> pd.DataFrame:
        """Quality and alerts of every detector in windows of equal length."""
        windows = self.report.get("windows") or {}
        shared = {name: windows.get(name) for name in ("start", "end", "records", "outliers")}
        by_detector = windows.get("by_detector", {}).items()
        return self._frame([{**shared, "detector": name, **columns} for name, columns in by_detector])

    @property
    def alerts(self) -> pd.DataFrame:
        """The highest alerts with their records, as JSON texts."""
        alerts = self.report.get("alerts") or []
        return self._frame([{name: [alert[name] for alert in alerts] for name in alerts[0]}] if alerts else [])

    @property
    def drift(self) -> pd.DataFrame:
        """How far each feature has moved from the first records (PSI), its median and its missing share."""
        drift, windows = self.report.get("drift") or {}, self.report.get("windows") or {}
        shared, known = {name: windows.get(name) for name in ("start", "end")}, [k for k in DRIFT if drift.get(k)]
        return self._frame(
            [
                {**shared, "feature": name, **{key: drift[key][i] for key in known}}
                for i, name in enumerate(drift.get("features") or [])
            ]
        )

    @property
    def calibration(self) -> pd.DataFrame:
        """Requested and realised alert rates of every detector."""
        detectors = [one for one in self.report["detectors"] if one.get("calibration")]
        return self._frame([{"detector": one["name"], **one["calibration"]} for one in detectors])

    def __repr__(self) -> str:
        return f"<ReplayResult of {self.report.get('source', {}).get('name', 'records')}>\n{self.summary}"

    def _repr_html_(self) -> str:
        page = escape(html_text(self.report))
        lines = [*(self.report.get("notes") or [])[:1], *self.report.get("summary", [])]
        said = "".join(f"<p>{escape(line)}</p>" for line in lines)
        metrics = self.metrics.dropna(axis="columns", how="all")
        table = metrics[[name for name in metrics if not name.endswith(("_low", "_high"))]]
        shown = table.to_html(float_format="{:.4g}".format, na_rep="", border=0, index_names=False)
        # the frame may run the scripts of the page, but reaches neither the notebook nor its cookies
        frame = f'sandbox="allow-scripts" loading="lazy" style="width:100%;height:800px;border:0" srcdoc="{page}"'
        whole = f"<details><summary>Whole report</summary><iframe {frame}></iframe></details>"
        return f'<div>{said}<div style="overflow-x:auto">{shown}</div>{whole}</div>'

    def _frame(self, parts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        """One DataFrame of the columns of all parts, one below the other, with milliseconds as times."""
        import pandas as pd

        frames = []
        for columns in parts:
            lengths = [len(column) for column in columns.values() if isinstance(column, list)]
            frames += [pd.DataFrame(columns, index=range(lengths[0]))] if lengths else []
        frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        if self.report.get("source", {}).get("axis") == "time":
            for name in {"start", "end", "time"} & set(frame.columns):
                frame[name] = pd.to_datetime(frame[name], unit="ms", utc=True)
        return frame


def seconds_per_record(report: Mapping[str, Any], name: str) -> float | None:
    """Seconds that a detector took for one record; None if that is not known."""
    seconds: float | None = ((report.get("timing") or {}).get("seconds_per_record") or {}).get(name)
    return seconds


# --- the report as one HTML file, which loads nothing from elsewhere -------------------------------------------


def html_text(report: dict[str, Any]) -> str:
    """The report of a replay as an HTML page."""
    script = _script()
    parts = {
        "licence": (PAGE / "uPlot-LICENSE").read_text().strip(),
        "style": "\n".join((PAGE / name).read_text() for name in STYLES),
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": json_text(_shown(report)),
        "timing": json_text(report.get("timing")),
        "script": script,
    }
    template = (PAGE / "report.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)  # one pass: data may have braces, too


def _script() -> str:
    own = "\n".join((PAGE / name).read_text() for name in SCRIPTS)
    return f'{(PAGE / "uPlot.iife.min.js").read_text()}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def _shown(report: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of the report: not its times, which are apart, and not what only `compare` needs."""
    detectors = [{k: part for k, part in one.items() if k != "replicates"} for one in report.get("detectors", [])]
    return {name: part for name, part in report.items() if name != "timing"} | {"detectors": detectors}
