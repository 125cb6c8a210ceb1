"""The report of a replay, put together: what was counted, and where it came from."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import fomo_stream
from fomo_stream.replaying.partition import OWN
from fomo_stream.replaying.sources.file import FileSource
from fomo_stream.replaying.tally.plain import plain
from fomo_stream.settings.replay import ReplaySettings, option_values

if TYPE_CHECKING:
    from fomo_stream.replaying.one_partition import Outcome
    from fomo_stream.replaying.plan import Plan

# Settings on which no number of a report depends: where things are, how they are shown, and how the service delivers.
ELSEWHERE = frozenset(
    (
        *("bootstrap", "jobs", "json", "log_level", "report", "scores_file"),
        *("out", "alerts", "dead_letters", "start", "delivery", "instance_id", "on_lost_offset", "reset_state", "wait"),
        *("max_latency_ms", "health_port", "http_host"),
    )
)


def make_report(plan: Plan, outcomes: Sequence[Outcome], started: datetime) -> dict[str, Any]:
    """The report: the same for the same plan, except `timing`. outcomes: of all partitions, in their order."""
    from fomo_stream.replaying.tally.summary import summary

    tally = reduce(lambda one, other: one.merge(other), (outcome.tally for outcome in outcomes))
    counted = tally.report()
    records = counted["source"]["records"]
    timing = _timing(outcomes, started, records, counted["source"]["scored"] + counted["source"]["warming_up"])
    report = {
        "format": 1,
        "source": {**_source(plan, outcomes), **counted.pop("source")},
        "notes": [*plan.notes, *_notes(plan, outcomes, records), *counted.pop("notes", [])],
        "summary": [],
        "settings": settings_of(plan.settings),
        "versions": _versions(plan, outcomes),
        "timing": {**timing, "batch_ms": tally.batch_ms()},
        **counted,
    }
    for detector in report["detectors"]:
        detector |= _kind(detector["name"], plan)
    report["summary"] = summary(report)
    return report


def settings_of(settings: ReplaySettings) -> dict[str, Any]:
    """The settings that numbers of a report depend on."""
    unused = ELSEWHERE if settings.is_given("group") else ELSEWHERE | {"group"}
    return {name: value for name, value in option_values(settings).items() if name not in unused}


def _source(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    source = plan.source
    ends = {outcome.partition: outcome.position for outcome in outcomes}
    return {
        "name": source.name,
        "kind": _kind_of_source(plan),
        "partitions": len(source.partitions),
        "ranges": [
            {"partition": number, "from": source.start(number), "to": ends[number]}
            for number in sorted(source.partitions)
            if number in ends
        ],
        "axis": plan.axis,
        "features": list(plan.schema.features),
        "is_complete": all(outcome.is_complete for outcome in outcomes),
    }


def _kind_of_source(plan: Plan) -> str:
    """topic, file, or memory: of records that no command can read again."""
    if plan.ranges:
        return "topic"
    is_file = isinstance(plan.source, FileSource) and plan.source.in_memory is None
    return "file" if is_file else "memory"


def _notes(plan: Plan, outcomes: Sequence[Outcome], records: int) -> list[str]:
    from fomo_stream.kafka.ranges import gap_note

    notes = []
    if plan.ranges and (gaps := gap_note(plan.source.name, _offsets(plan, outcomes), records)):
        notes.append(gaps)
    if not all(outcome.is_complete for outcome in outcomes):
        notes.append("The replay was stopped before the end of the range; the report is about the records until then.")
    if left_out := outcomes[0].left_out:
        notes.append(f"The rows are too wide for some views, which are left out: {', '.join(left_out)}.")
    return notes


def _offsets(plan: Plan, outcomes: Sequence[Outcome]) -> int:
    """How many offsets were replayed, with and without a record."""
    return sum(outcome.position - plan.source.start(outcome.partition) for outcome in outcomes)


def _kind(name: str, plan: Plan) -> dict[str, Any]:
    """What kind of detector it is, and its settings."""
    from fomo_stream.replaying.detectors.variants import variants

    own = asdict(plan.settings.detector_config())
    if name == OWN:
        return {"kind": "own", "settings": own}
    for variant, settings in variants(plan.settings):
        if name == variant:
            its = asdict(settings.detector_config())
            differing = {key: value for key, value in its.items() if value != own[key]}
            if settings.model != plan.settings.model:
                differing["model"] = settings.model
            return {"kind": "variant", "settings": differing}
    return {"kind": "rival", "settings": None}


def _versions(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, str | None]:
    has_river = any(name.startswith("river.") for name in plan.settings.compare)
    return {
        "fomo_stream": fomo_stream.__version__,
        "model": outcomes[0].model,
        "kernel": outcomes[0].kernel,
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "torch": _version("torch"),
        "river": _version("river") if has_river else None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _timing(outcomes: Sequence[Outcome], started: datetime, records: int, seen: int) -> dict[str, Any]:
    """How long it took. seen: by a detector, also while it warms up."""
    spent: Counter[str] = Counter()
    for outcome in outcomes:
        spent.update(outcome.seconds)
    elapsed = sum(outcome.ended - outcome.began for outcome in outcomes)
    names = sorted(spent, key=lambda name: (name != OWN, name))
    seconds = max(one.ended for one in outcomes) - min(one.began for one in outcomes)
    return {
        "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": plain(seconds),
        "records_per_s": plain(records / seconds),
        "detector_share": plain(spent[OWN] / elapsed) if elapsed else None,
        "detectors": {name: plain(spent[name]) for name in names},
        "seconds_per_record": {name: plain(spent[name] / seen) if seen else None for name in names},
    }
