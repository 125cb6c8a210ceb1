"""The report of a replay as text for a terminal: the summary, and a ranked table of the detectors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fomo_stream.replaying.results import seconds_per_record
from fomo_stream.replaying.tally.summary import moment

WIDE, NARROW = 110, 76  # columns of a terminal from which, and below which, the table has more and less
EXPLAINED = 3  # alerts, at most
SMALLEST_NAME = 8  # columns of a detector's name, which is folded
CAPTION = "Precision and recall are of the alerts; the delay is the median of the segments that were detected."
INTERVAL = "Half of the 95 % interval is shown after "
# Units of time: in seconds, and up to how many seconds each is used.
UNITS = (("us", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 3.6e5))

Report = Mapping[str, Any]
Shown = Callable[[Report, Report], str]  # of a report and one of its detectors


def terminal_text(report: Report, written: Sequence[Path] = (), stream: TextIO | None = None) -> str:
    """The report as text for a stream, standard output by default.

    written: files with more, which the last lines name. Colours only on a terminal, and not with NO_COLOR; a stream
    that is no terminal gets plain text, and lines as wide as COLUMNS says, or 80 columns.
    """
    console = Console(file=stream or sys.stdout, highlight=False, soft_wrap=False)
    with console.capture() as capture:
        for line in _said(report):
            console.print(Text(_clean(line)))
        console.print()
        console.print(_table(report, console))
        if console.width >= NARROW and any(_metric(one, "alert_precision") for one in report["detectors"]):
            console.print(Text(f"{CAPTION} {INTERVAL}{_sign(console)}.", style="dim"))
        for line in _explained(report):
            console.print(Text(_clean(line)))
        for line in (report.get("notes") or [])[1:]:
            console.print(Text(f"Note: {_clean(line)}", style="dim"))
        for path in written:
            console.print(Text.assemble("Report: ", (_clean(str(path)), "bold")), soft_wrap=True)
    lines = (line.rstrip() for line in capture.get().splitlines())
    text = "\n".join(lines).strip("\n")
    encoding = console.encoding
    return text if encoding.lower().startswith("utf") else text.encode(encoding, "replace").decode(encoding)


def ranked(report: Report) -> list[Report]:
    """The detectors, best AUROC first, then average precision; in their own order where neither is known."""

    def rank(one: Report) -> tuple[float, float]:
        return tuple(-_value(one, name, 0.0) for name in ("auroc", "average_precision"))  # type: ignore[return-value]

    return sorted(report["detectors"], key=rank)


def _said(report: Report) -> list[str]:
    """The sentences: first whether results equal the live output, then the summary."""
    partial = [] if report["source"].get("is_complete", True) else ["Not complete: the replay was ended early."]
    return [*partial, *(report.get("notes") or [])[:1], *(report.get("summary") or [])]


def _explained(report: Report) -> list[str]:
    """The highest alerts with their explanations, if there are any."""
    alerts = [alert for alert in (report.get("alerts") or []) if alert.get("explanation")][:EXPLAINED]
    is_timed = report["source"].get("axis") == "time"
    lines = [f"  {_place(alert, is_timed)}: {alert['explanation']}" for alert in alerts]
    return ["", "Highest alerts:", *lines] if lines else []


def _place(alert: Report, is_timed: bool) -> str:
    """Partition and offset, and the time where records have one."""
    when = f" at {moment(alert['time'], alert['time'])}" if is_timed else ""
    return f"{alert['partition']}-{alert['offset']}{when}"


# --- the table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the table. The second line of its title says more."""

    title: str
    shown: Shown


def _table(report: Report, console: Console) -> Table:
    detectors = ranked(report)
    columns = [one for one in _columns(report, console) if any(one.shown(report, each) for each in detectors)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("detector", overflow="fold", min_width=SMALLEST_NAME, vertical="top")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for one in detectors:
        own = one.get("kind") == "own"
        cells = [Text(column.shown(report, one)) for column in columns]
        table.add_row(Text(_clean(one["name"])), *cells, style="bold" if own else "")
    return table


def _columns(report: Report, console: Console) -> list[Column]:
    is_wide, sign = console.width >= WIDE, _sign(console)
    if not any(_metric(one, "auroc") for one in report["detectors"]):
        alerts = [Column("alerts", _alerts), Column("alert rate", lambda _, one: _percent(one, "alert_rate"))]
        return [*alerts, Column("time per record", _speed)]
    if console.width < NARROW:
        quality = [Column("AUROC", _measure("auroc")), Column("AUPR", _measure("average_precision"))]
        return [*quality, Column("alerts", _alerts)]
    return [
        Column("AUROC", _measure("auroc", sign)),
        Column("average\nprecision" if is_wide else "AUPR", _measure("average_precision", sign if is_wide else "")),
        Column("precision\nof alerts" if is_wide else "prec.", _measure("alert_precision")),
        Column("recall\nof alerts" if is_wide else "recall", _measure("alert_recall")),
        Column("alerts", _alerts),
        Column("delay", _delay),
        Column("time per\nrecord" if is_wide else "time", _speed),
    ]


def _sign(console: Console) -> str:
    return "±" if console.encoding.lower().startswith("utf") else "+-"


def _measure(name: str, sign: str = "") -> Shown:
    """A measure with three digits, such as 0.912; with half of its interval after the sign, such as 0.912 ±.023."""

    def shown(_: Report, one: Report) -> str:
        found = _metric(one, name)
        if found is None:
            return ""
        low, high = found.get("low"), found.get("high")
        half = (
            "" if not sign or low is None or high is None else f" {sign}" + f"{(high - low) / 2:.3f}".removeprefix("0")
        )
        return f"{found['value']:.3f}{half}"

    return shown


def _metric(one: Report, name: str) -> Report | None:
    found = (one.get("metrics") or {}).get(name)
    return found if found and found.get("value") is not None else None


def _value(one: Report, name: str, otherwise: float) -> float:
    found = _metric(one, name)
    return float(found["value"]) if found else otherwise


def _alerts(_: Report, one: Report) -> str:
    count = (one.get("counts") or {}).get("alerts")
    return "" if count is None else f"{count:,}"


def _percent(one: Report, name: str) -> str:
    return f"{100 * _value(one, name, 0.0):.3g} %" if _metric(one, name) else ""


def _delay(_: Report, one: Report) -> str:
    """Of the alarm after the start of an anomaly: seconds where records have times, else records."""
    if _metric(one, "delay_s"):
        return in_units(_value(one, "delay_s", 0.0)) if _value(one, "delay_s", 0.0) else "at once"
    return f"{_value(one, 'delay_records', 0.0):g} rec." if _metric(one, "delay_records") else ""


def _speed(report: Report, one: Report) -> str:
    seconds = seconds_per_record(report, one["name"])
    return "" if seconds is None else in_units(seconds)


def in_units(seconds: float) -> str:
    """Seconds with two digits and a unit that suits them.

    >>> [in_units(seconds) for seconds in (0, 0.000187, 0.02, 7.25, 600, 90_000, 400_000)]
    ['0 us', '187 us', '20 ms', '7.2 s', '10 min', '25 h', '4.6 d']
    """
    for unit, size, most in UNITS:
        if seconds < most:
            number = seconds / size
            return f"{number:.0f} {unit}" if number >= 10 or not number else f"{number:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def _clean(text: str) -> str:
    """Without control characters: names and records come from others and could change the terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
