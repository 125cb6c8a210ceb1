"""Compares two replays: what changed, and whether by more than chance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.measures.intervals import difference
from fomo_stream.replaying.measures.quality import METRICS
from fomo_stream.replaying.measures.summary import moment
from fomo_stream.replaying.replay_result import Report, load_report
from fomo_stream.wording import clean, counted

_HEADER = ("metric", "before", "after", "difference", "95 % interval", "verdict")


def compare_files(before: Path, after: Path) -> str:
    """Return the comparison of two JSON reports, as text.

    Raises ConfigError if one of the files cannot be read, or is not a report.
    """
    first, second = load_report(before), load_report(after)
    try:
        lines = list(_lines(first, second, before, after))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(f"{before} or {after} is not a whole report ({type(error).__name__}: {error})") from None
    return "".join(clean(line) + "\n" for line in lines)


def is_paired(before: Report, after: Report, names: tuple[str, ...] = ("records", "outliers")) -> bool:
    """Return whether both have the same windows with the same counts, by default of records and of outliers."""
    return all(before["windows"][name] == after["windows"][name] for name in ("start", "end", *names))


def matching_detectors(before: Report, after: Report) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the pairs of detectors that both have: first fomo-stream itself, then the others by name."""
    others = {detector["name"]: detector for detector in after["detectors"][1:]}
    named = [(detector, others[detector["name"]]) for detector in before["detectors"][1:] if detector["name"] in others]
    return [(before["detectors"][0], after["detectors"][0]), *named]


def _lines(first: Report, second: Report, before: Path, after: Path) -> Iterator[str]:
    yield f"before: {before}: {_range_text(first)}"
    yield f"after:  {after}: {_range_text(second)}"
    yield from _about_inputs(first, second)
    paired: tuple[str, ...] = ()
    if is_paired(first, second):
        paired = METRICS
        yield "Both replays are of the same windows with as many records, so they are compared window by window."
    elif is_paired(first, second, ("records",)):
        paired = ("alert_rate",)
        yield "Both replays are of as many records, but of other labels, so differences include those of the labels."
    else:
        yield "The replays are of different records, so each difference includes what differs between the records."
    for old, new in matching_detectors(first, second):
        yield ""
        yield old["name"] if old["name"] == new["name"] else f"{old['name']} (after: {new['name']})"
        yield from _metric_lines(old, new, paired)
        alerts = old["counts"]["alerts"], new["counts"]["alerts"]
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
    old_speed, new_speed = ((report.get("timing") or {}).get("records_per_s") for report in (first, second))
    if old_speed and new_speed:
        change = 100 * (new_speed / old_speed - 1)
        yield f"Speed: {old_speed:,.0f} records/s before, {new_speed:,.0f} after ({change:+.0f} %)."


def _range_text(report: Report) -> str:
    source = report["source"]
    begin, end = source.get("from_ms"), source.get("to_ms")
    when = "" if begin is None or end is None else f", {moment(begin, end)} to {moment(end, begin)} UTC"
    incomplete = "" if source.get("is_complete", True) else ", stopped early"
    return f"{counted(source['records'], 'record')} of {source['name']}{when}{incomplete}"


def _about_inputs(first: Report, second: Report) -> Iterator[str]:
    """Yield sentences about settings, versions and labels that differ."""
    for what in ("settings", "versions"):
        old, new = first.get(what) or {}, second.get(what) or {}
        differing = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
        changes = [f"{name} {_json_or_none(old.get(name))} -> {_json_or_none(new.get(name))}" for name in differing]
        if changes:
            yield f"{what.capitalize()} that differ: {'; '.join(changes)}"
        elif what == "settings":
            yield "All settings are the same."
    outliers = [report["detectors"][0]["counts"]["outliers"] for report in (first, second)]
    if outliers[0] != outliers[1]:
        yield f"Labelled outliers: {_json_or_none(outliers[0])} before, {_json_or_none(outliers[1])} after."
    if not all(outliers):
        lacks = f"The report {'after' if outliers[0] else 'before'} lacks" if any(outliers) else "Both reports lack"
        yield f"{lacks} labelled outliers, so ranking, precision and recall cannot be compared."


def _metric_lines(before: dict[str, Any], after: dict[str, Any], paired: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each metric that one of two detectors has."""
    rows = [_HEADER]
    for name in METRICS:
        metrics = [detector["metrics"].get(name) for detector in (before, after)]
        if metrics == [None, None]:
            continue
        change = difference(before, after, name, name in paired)
        cells = ("-", "-", "not in both")
        if change is not None:
            ends = "-" if change.ends is None else f"{change.ends[0]:+.3g} to {change.ends[1]:+.3g}"
            cells = (f"{change.value:+.3g}", ends, change.verdict)
        numbers = ["-" if metric is None else f"{metric['value']:.4g}" for metric in metrics]
        rows.append((name.replace("_", " "), numbers[0], numbers[1], *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()


def _json_or_none(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value)
