"""Sums up a report in a few plain sentences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fomo_stream.replaying.measures.intervals import difference
from fomo_stream.replaying.measures.quality import INLIERS_PER_RATE
from fomo_stream.wording import counted

DAY_MS = 86_400_000
NEAR_MS = 10 * 60_000
MIN_MOVED_PSI, STRONG_PSI = 0.1, 0.25  # PSI, see `drift`
MAX_NAMED = 3  # features that are named, at most


def summary(report: dict[str, Any]) -> list[str]:
    """Return sentences about a report that has "source", "detectors", "incidents", "reasons", "keys" and "drift"."""
    own = report["detectors"][0]
    return [
        *_about_alerts(report["source"], own, report.get("settings", {}).get("alert_rate")),
        *_about_incidents(report["incidents"], own, report["source"]),
        *_about_silence(report.get("silence") or {}),
        *_about_reasons(report["reasons"]),
        *_about_keys(report["keys"]),
        *_about_missing(report["source"]),
        *_about_quality(report["source"], own),
        *[_about_rival(own, other) for other in report["detectors"][1:] if own["metrics"]["auroc"]],
        *_about_drift(report["drift"]),
    ]


def _about_alerts(source: dict[str, Any], own: dict[str, Any], requested: float | None) -> list[str]:
    begin, end = source.get("from_ms") or 0, source.get("to_ms") or 0
    when = f" from {moment(begin, end)} to {moment(end, begin)} UTC" if end > begin else ""
    stopped = "" if source.get("is_complete", True) else ", before it was stopped"
    n = source["records"]
    replayed = f"{counted(n, 'record')} of {source['name']}{when} {_was(n)} replayed{stopped}"
    alerts, rate = own["counts"]["alerts"], own["metrics"]["alert_rate"]
    if rate is None:
        by_rules = f" {counted(alerts, 'alert')} {_was(alerts)} given by a valid range." if alerts else ""
        return [f"{replayed}; none of them got a score.{by_rules}"]
    limit_text = f"; {percent(requested)} of normal records, at most, was asked for" if requested else ""
    return [f"{replayed}; {percent(rate['value'])} of those with a score were alerts ({alerts:,}{limit_text})."]


def _about_incidents(incidents: dict[str, Any], own: dict[str, Any], source: dict[str, Any]) -> list[str]:
    """Say how many incidents there are, as somebody would have to look at each, and how many are labelled faults."""
    sentences, n, counts, metrics = [], incidents["count"], own["counts"], own["metrics"]
    if n:
        is_open = f"{incidents['open']:,} still open at the end; " if incidents["open"] else ""
        median, longest = incidents["median_records"], incidents["most_records"]
        half = f"half have {median:,} or fewer alerts, the longest {longest:,}."
        days = ((source.get("to_ms") or 0) - (source.get("from_ms") or 0)) / DAY_MS
        often = f", about {float(f'{n / days:.2g}'):,.12g} a day" if days >= 2 else ""
        sentences.append(f"The alerts are {counted(n, 'incident')}{often}: {is_open}{half}")
    if precision := metrics["incident_precision"]:
        judged = counts["true_incidents"] + counts["false_incidents"]
        which = counted(judged, "incident") + (" with labels" if judged < counts["incidents"] else "")
        rate = metrics["false_incidents"]
        others = (
            f"; the others are {rate['value']:.3g} in {INLIERS_PER_RATE:,} normal records"
            if rate and rate["value"]
            else ""
        )
        sentences.append(
            f"Precision by incident {percent(precision['value'])}: of {which} {counts['true_incidents']:,} "
            f"{_have(counts['true_incidents'])} a labelled fault in them{others}."
        )
    if detected := metrics["segments_detected"]:
        delay = metrics["delay_records"]
        after = f"within {counted(round(delay['value']), 'record')} of its first" if delay and delay["value"] else ""
        when = f"; half of these {after or 'at the first record'}" if counts["segments_detected"] else ""
        sentences.append(
            f"Recall by incident {percent(detected['value'])}: of {counted(counts['segments'], 'labelled fault')} "
            f"{counts['segments_detected']:,} {_was(counts['segments_detected'])} found{when}."
        )
    return sentences


def _about_silence(silence: dict[str, Any]) -> list[str]:
    levels = [(level, counts) for level, counts in silence.items() if level != "told"]
    silent = [counted(counts["silent"], f"{level}") for level, counts in levels if counts["silent"]]
    sentences = [f"Silent for a while: {', '.join(silent)}."] if silent else []
    longest = max(
        (notice for notice in silence.get("told", ()) if notice["status"] == "closed" and "quiet_s" in notice),
        key=lambda notice: notice["quiet_s"],
        default=None,
    )
    return sentences + ([f"The longest silence: {longest['explanation']}."] if longest is not None else [])


def _about_reasons(reasons: list[dict[str, Any]]) -> list[str]:
    named = ", ".join(f"{reason['feature']} ({reason['alerts']:,})" for reason in reasons[:MAX_NAMED])
    return [f"The features that are most often the first reason of an alert: {named}."] if named else []


def _about_keys(keys: list[dict[str, Any]]) -> list[str]:
    named = ", ".join(f"{key['key']} ({key['alerts']:,}, {percent(key['share'])})" for key in keys[:MAX_NAMED])
    return [f"The keys with most alerts: {named}."] if named else []


def _about_missing(source: dict[str, Any]) -> list[str]:
    skipped, warming = source["skipped"], source["warming_up"]
    sentences = []
    if suppressed := source.get("suppressed"):
        names = ", ".join(f"{name}: {n:,}" for name, n in sorted(suppressed.items(), key=lambda item: -item[1]))
        sentences.append(f"Rules and windows of maintenance left out alerts or records ({names}).")
    if skipped:
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in sorted(skipped.items(), key=lambda item: -item[1]))
        sentences.append(f"{counted(sum(skipped.values()), 'record')} could not be scored ({reasons}).")
    if warming:
        sentences.append(f"{counted(warming, 'record')} got no score, because the detector was warming up.")
    return sentences


def _about_quality(source: dict[str, Any], own: dict[str, Any]) -> list[str]:
    counts, metrics, n = own["counts"], own["metrics"], source["scored"] + source["warming_up"]
    if counts["labelled"] is None:
        return ["There are no labels, so the quality of the scores is not known."]
    if not counts["labelled"]:
        return ["No scored record has a label, so the quality of the scores is not known."]
    sentences = []
    if counts["labelled"] < n:
        sentences.append(f"Labels are known for {counts['labelled']:,} of {counted(n, 'record')} that could be scored.")
    if not counts["outliers"]:
        return [*sentences, "No record is labelled an outlier, so the quality of the scores is not known."]
    if auroc := metrics["auroc"]:
        digits = 3 if auroc["value"] >= 0.99 else 2
        ends = "" if auroc["low"] is None else f" ({auroc['low']:.{digits}f} to {auroc['high']:.{digits}f})"
        times, often = 10**digits, round(auroc["value"] * 10**digits)
        meaning = f"an outlier scores higher than a normal record {often:,} times in {times:,}."
        sentences.append(f"AUROC {auroc['value']:.{digits}f}{ends}: {meaning}")
    else:
        sentences.append("The labels that can be compared are of one class, so AUROC and the like are not known.")
    precision, recall = metrics["alert_precision"], metrics["alert_recall"]
    if precision and recall:
        right, caught = percent(precision["value"]), percent(recall["value"])
        sentences.append(
            f"{right} of its alerts on labelled records were outliers, and {caught} of the outliers were alerts."
        )
    return sentences


def _about_rival(own: dict[str, Any], other: dict[str, Any]) -> str:
    auroc = difference(other, own, "auroc", is_paired=True)
    if auroc is None:
        return f"{other['name']} cannot be compared: its AUROC is not known."
    sentence = f"{other['name']} has AUROC {other['metrics']['auroc']['value']:.3f}"
    if auroc.ends is None:
        return f"{sentence}; the range is too short to say whether the difference is more than chance."
    if auroc.ends[0] <= 0 <= auroc.ends[1]:
        return f"{sentence}, no difference from {own['name']} beyond chance."
    word = "lower" if auroc.value > 0 else "higher"
    return f"{sentence}, {abs(auroc.value):.3f} {word} than {own['name']}, which is more than chance."


def _about_drift(drift: dict[str, Any]) -> list[str]:
    """Name the features that have moved, and stayed there."""
    pairs = [pair for pair in zip(drift["features"], drift["psi"], strict=True) if (pair[1] or 0.0) >= MIN_MOVED_PSI]
    moved = [
        f"{name} (PSI {psi:.2g}, {'strongly' if psi > STRONG_PSI else 'somewhat'})"
        for name, psi in sorted(pairs, key=lambda pair: -pair[1])
    ]
    others = f", and {len(moved) - MAX_NAMED} more" if len(moved) > MAX_NAMED else ""
    named = ", ".join(moved[:MAX_NAMED])
    return [f"Features that have moved since the first records: {named}{others}."] if moved else []


def moment(ms: int, other: int) -> str:
    """Return a time in UTC, to the day if the other one is far away, and to the second if it is near.

    >>> moment(1759276800000, 1761955200000), moment(1759276800000, 1759280400000)
    ('2025-10-01', '2025-10-01 00:00')
    """
    try:
        time = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the years 1 to 9999
        return f"{ms} ms"
    span = abs(ms - other)
    return time.strftime("%Y-%m-%d" if span >= 2 * DAY_MS else f"%Y-%m-%d %H:%M{':%S' if span < NEAR_MS else ''}")


def percent(share: float) -> str:
    """Return a share as a percentage with three digits.

    >>> percent(0.00981), percent(0.5), percent(1e-5)
    ('0.981 %', '50 %', '0.001 %')
    """
    return f"{float(f'{100 * share:.3g}'):.15g} %"


def _have(n: int) -> str:
    return "has" if n == 1 else "have"


def _was(n: int) -> str:
    return "was" if n == 1 else "were"
