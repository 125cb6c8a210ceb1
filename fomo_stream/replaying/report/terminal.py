"""Shows the report of a replay as text for a terminal: the summary, and a ranked table of the detectors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fomo_stream.replaying.measures.summary import moment
from fomo_stream.replaying.replay_result import seconds_per_record
from fomo_stream.wording import clean, counted

WITH_LABELS = ["AUROC", "AUPR", "prec.", "recall", "false", "incid.", "delay", "time"]
NARROW_COLUMNS = 76  # a narrower terminal gets a smaller table
MAX_EXPLAINED = 3  # incidents
CAPTION = (
    "incid. is how often somebody would have been called; the precision is the share of these incidents with a "
    "labelled fault, the recall that of the labelled faults that were found, and the delay their median; false is the "
    "number of incidents without a fault in 10,000 normal records. Half of the 95 % interval is shown after "
)
# units of time: their length in seconds, and up to how many seconds each is used
UNITS = (("us", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, float("inf")))

Report = Mapping[str, Any]


def terminal_text(report: Report, written: Sequence[Path] = (), stream: TextIO | None = None) -> str:
    """Return the report as text for a stream, standard output by default.

    written: files that the last lines name. Colours are used only on a terminal, and not with NO_COLOR; another stream
    gets plain text, with lines as wide as COLUMNS says, or 80 columns.
    """
    console = Console(file=stream or sys.stdout, highlight=False, soft_wrap=False)
    with console.capture() as capture:
        partial = [] if report["source"].get("is_complete", True) else ["Not complete: the replay was ended early."]
        for line in [*partial, *(report.get("notes") or [])[:1], *(report.get("summary") or [])]:
            console.print(Text(clean(line)))
        console.print()
        console.print(_detector_table(report, console))
        if console.width >= NARROW_COLUMNS and any(_metric(d, "segments_detected") for d in report["detectors"]):
            console.print(Text(f"{CAPTION}{_plus_minus(console)}.", style="dim"))
        for line in _incident_lines(report):
            console.print(Text(clean(line)))
        for line in (report.get("notes") or [])[1:]:
            console.print(Text(f"Note: {clean(line)}", style="dim"))
        for path in written:
            console.print(Text.assemble("Report: ", (clean(str(path)), "bold")), soft_wrap=True)
    lines = (line.rstrip() for line in capture.get().splitlines())
    text = "\n".join(lines).strip("\n")
    encoding = console.encoding
    return text if encoding.lower().startswith("utf") else text.encode(encoding, "replace").decode(encoding)


def ranked(report: Report) -> list[Report]:
    """Return the detectors, best AUROC first, then average precision; in their own order if neither is known."""
    return sorted(report["detectors"], key=lambda d: (-_value(d, "auroc"), -_value(d, "average_precision")))


def _incident_lines(report: Report) -> list[str]:
    """Return lines about the worst incidents with their explanations, if there are any."""
    is_timed = report["source"].get("axis") == "time"
    worst = (report.get("incidents") or {}).get("worst", ())
    worst = [incident for incident in worst if incident.get("explanation")][:MAX_EXPLAINED]
    lines = ["", "Worst incidents:"] if worst else []
    for incident in worst:
        begin = incident.get("begin")
        when = f"{incident['partition']}-{incident['first']}" if not is_timed or begin is None else moment(begin, begin)
        key = f", {incident['key']}" if incident.get("key") else ""
        lines.append(f"  {when}{key} ({counted(incident['records'], 'alert')}): {incident['explanation']}")
    return lines


def _detector_table(report: Report, console: Console) -> Table:
    detectors = ranked(report)
    is_narrow = console.width < NARROW_COLUMNS
    rows = [_column_texts(report, detector, "" if is_narrow else _plus_minus(console)) for detector in detectors]
    columns = ["AUROC", "AUPR", "alerts"] if is_narrow else WITH_LABELS
    if not any(row["AUROC"] for row in rows):
        columns = ["alerts", "alert rate", "incid.", "time"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    table.add_column("detector", overflow="fold", min_width=8, vertical="top")
    shown = [title for title in columns if any(row[title] for row in rows)]
    for title in shown:
        table.add_column(title, justify="right", no_wrap=True)
    for detector, row in zip(detectors, rows, strict=True):
        texts = [Text(clean(detector["name"])), *(Text(row[title]) for title in shown)]
        table.add_row(*texts, style="bold" if detector.get("kind") == "own" else "")
    return table


def _column_texts(report: Report, detector: Report, sign: str) -> dict[str, str]:
    """Return the texts of a detector for each column, or "". sign: before half of an interval; "": no interval."""

    def text(name: str, as_text: Callable[[float], str] = "{:.3f}".format) -> str:
        return as_text(_value(detector, name)) if _metric(detector, name) else ""

    auroc, counts = _metric(detector, "auroc") or {}, detector.get("counts") or {}
    alerts, incidents = counts.get("alerts"), counts.get("incidents")
    low, high, seconds = auroc.get("low"), auroc.get("high"), seconds_per_record(report, detector["name"])
    half = "" if not sign or low is None or high is None else f" {sign}" + f"{(high - low) / 2:.3f}".removeprefix("0")
    return {
        "AUROC": text("auroc") + half,
        "AUPR": text("average_precision"),
        "prec.": text("incident_precision"),
        "recall": text("segments_detected"),
        "false": text("false_incidents", "{:.3g}".format),
        "alerts": "" if alerts is None else f"{alerts:,}",
        "incid.": "" if incidents is None else f"{incidents:,}",
        "alert rate": text("alert_rate", lambda rate: f"{100 * rate:.3g} %"),
        "delay": text("delay_s", lambda delay: in_units(delay) if delay else "at once")
        or text("delay_records", "{:g} rec.".format),
        "time": "" if seconds is None else in_units(seconds),
    }


def _plus_minus(console: Console) -> str:
    return "±" if console.encoding.lower().startswith("utf") else "+-"


def _metric(detector: Report, name: str) -> Report | None:
    metric = (detector.get("metrics") or {}).get(name)
    return metric if metric and metric.get("value") is not None else None


def _value(detector: Report, name: str) -> float:
    metric = _metric(detector, name)
    return float(metric["value"]) if metric else 0.0


def in_units(seconds: float) -> str:
    """Return seconds with two digits and a suitable unit.

    >>> [in_units(seconds) for seconds in (0, 0.000187, 0.02, 7.25, 600, 90_000)]
    ['0 us', '187 us', '20 ms', '7.2 s', '10 min', '25 h']
    """
    unit, size, _ = next(unit for unit in UNITS if seconds < unit[2])
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 or not number else f"{number:.1f} {unit}"
