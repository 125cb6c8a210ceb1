"""What changed between two replays, and whether by more than chance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.results import Report, load_report
from fomo_stream.replaying.tally.intervals import Difference, difference
from fomo_stream.replaying.tally.quality import METRICS
from fomo_stream.replaying.tally.summary import moment
from fomo_stream.wording import counted

_HEADER = ("metric", "before", "after", "difference", "95 % interval", "verdict")


def compare_files(before: Path, after: Path) -> str:
    """The comparison of two JSON reports, as text.

    Raises ConfigError if one of the files cannot be read, or is not a report.
    """
    first, second = load_report(before), load_report(after)
    try:
        lines = list(_lines(first, second, before, after))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(f"{before} or {after} is not a whole report ({type(error).__name__}: {error})") from None
    return "".join("".join(c if c.isprintable() else "?" for c in line) + "\n" for line in lines)


def is_paired(before: Report, after: Report, names: tuple[str, ...] = ("records", "outliers")) -> bool:
    """Whether both have the same windows, with the same numbers of records and of outliers, or of what `names` says."""
    return all(before["windows"][name] == after["windows"][name] for name in ("start", "end", *names))


def matches(before: Report, after: Report) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The detectors that both have: the first ones, which are fomo-stream itself, and the others by name."""
    others = {detector["name"]: detector for detector in after["detectors"][1:]}
    named = [(detector, others[detector["name"]]) for detector in before["detectors"][1:] if detector["name"] in others]
    return [(before["detectors"][0], after["detectors"][0]), *named]


def _lines(first: Report, second: Report, before: Path, after: Path) -> Iterator[str]:
    yield f"before: {before}: {_range(first)}"
    yield f"after:  {after}: {_range(second)}"
    yield from _about_inputs(first, second)
    paired = frozenset(METRICS) if is_paired(first, second) else frozenset[str]()
    if paired:
        yield "Both replays are of the same windows with as many records, so they are compared window by window."
    elif is_paired(first, second, ("records",)):
        paired = frozenset({"alert_rate"})
        yield "Both replays are of as many records, but of other labels, so differences include those of the labels."
    else:
        yield "The replays are of different records, so each difference includes what differs between the records."
    for one, other in matches(first, second):
        yield ""
        yield one["name"] if one["name"] == other["name"] else f"{one['name']} (after: {other['name']})"
        yield from _table([_HEADER, *_rows(one, other, paired)])
        alerts = one["counts"]["alerts"], other["counts"]["alerts"]
        yield f"  alerts: {alerts[0]:,} before, {alerts[1]:,} after ({alerts[1] - alerts[0]:+,})"
    incidents = [(report.get("incidents") or {}).get("count") for report in (first, second)]
    if None not in incidents:
        yield f"Incidents of fomo-stream: {incidents[0]:,} before, {incidents[1]:,} after."
    names = [{detector["name"] for detector in report["detectors"][1:]} for report in (first, second)]
    yield ""
    for where, only in (("before", names[0] - names[1]), ("after", names[1] - names[0])):
        if only:
            yield f"Only {where}: {', '.join(sorted(only))}."
    yield "Without any real change, about 1 in 20 metrics differs by more than chance would explain."
    yield from _about_speed(first, second)


def _range(report: Report) -> str:
    source = report["source"]
    begin, end = source.get("from_ms"), source.get("to_ms")
    when = "" if begin is None or end is None else f", {moment(begin, end)} to {moment(end, begin)} UTC"
    incomplete = "" if source.get("is_complete", True) else ", stopped early"
    return f"{counted(source['records'], 'record')} of {source['name']}{when}{incomplete}"


def _about_inputs(first: Report, second: Report) -> Iterator[str]:
    """Sentences about settings, versions, records and labels that differ."""
    for what in ("settings", "versions"):
        old, new = first.get(what) or {}, second.get(what) or {}
        differing = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
        if differing:
            changes = [f"{name} {_value(old.get(name))} -> {_value(new.get(name))}" for name in differing]
            yield f"{what.capitalize()} that differ: {'; '.join(changes)}"
        elif what == "settings":
            yield "All settings are the same."
    more = second["source"]["records"] - first["source"]["records"]
    if more:
        yield f"Records: {counted(abs(more), 'record')} {'more' if more > 0 else 'fewer'} after than before."
    outliers = [report["detectors"][0]["counts"]["outliers"] for report in (first, second)]
    if outliers[0] != outliers[1]:
        yield f"Labelled outliers: {_value(outliers[0])} before, {_value(outliers[1])} after."
    if not all(outliers):
        lacks = f"The report {'after' if outliers[0] else 'before'} lacks" if any(outliers) else "Both reports lack"
        yield f"{lacks} labelled outliers, so only the alert rate can be compared."


def _rows(before: dict[str, Any], after: dict[str, Any], paired: frozenset[str]) -> Iterator[tuple[str, ...]]:
    for name in METRICS:
        values = [detector["metrics"].get(name) for detector in (before, after)]
        if values == [None, None]:
            continue
        found = difference(before, after, name, name in paired)
        numbers = ["-" if value is None else f"{value['value']:.4g}" for value in values]
        yield (name.replace("_", " "), *numbers, *_cells(found))


def _cells(found: Difference | None) -> tuple[str, str, str]:
    if found is None:
        return "-", "-", "not in both"
    ends = "-" if found.ends is None else f"{found.ends[0]:+.3g} to {found.ends[1]:+.3g}"
    return f"{found.value:+.3g}", ends, found.verdict


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()


def _about_speed(first: Report, second: Report) -> Iterator[str]:
    old, new = ((report.get("timing") or {}).get("records_per_s") for report in (first, second))
    if old and new:
        yield f"Speed: {old:,.0f} records/s before, {new:,.0f} after ({100 * (new / old - 1):+.0f} %)."


def _value(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value)
