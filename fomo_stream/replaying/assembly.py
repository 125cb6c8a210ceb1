"""Makes the report of a replay from what was counted, with its source, settings, versions and timing."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from typing import Any

import fomo_stream
from fomo_stream.kafka.bounds import gap_notes
from fomo_stream.replaying.detectors.variants import variants
from fomo_stream.replaying.measures.measure import measure
from fomo_stream.replaying.measures.summary import summary
from fomo_stream.replaying.partition_run import OWN_DETECTOR, PartitionOutcome, measure_spec
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.report_files import json_value
from fomo_stream.settings.replay import ReplaySettings, option_values
from fomo_stream.settings.sources import settings_that_affect

# Settings that no number of a report depends on: locations, display, and the delivery of the service.
NOT_IN_REPORT = frozenset(settings_that_affect(ReplaySettings, "outputs", "running"))


def make_report(plan: Plan, outcomes: Sequence[PartitionOutcome], started: datetime) -> dict[str, Any]:
    """Return the report, which is the same for the same plan except for `timing`. outcomes: of all partitions."""
    measured = measure([outcome.recorded for outcome in outcomes], measure_spec(plan))
    source = {**_source_report(plan, outcomes), **measured.pop("source")}
    report = {
        "format": 2,
        "source": source,
        "notes": [*plan.notes, *_replay_notes(plan, outcomes, source["records"]), *measured.pop("notes")],
        "summary": [],
        "settings": report_settings(plan.settings),
        "versions": _versions(plan, outcomes),
        "timing": _timing(outcomes, started, source),
        **measured,
    }
    for detector in report["detectors"]:
        detector |= _kind_and_settings(detector["name"], plan)
    report["summary"] = summary(report)
    return report


def report_settings(settings: ReplaySettings) -> dict[str, Any]:
    """Return the settings that the numbers of a report depend on."""
    unused = NOT_IN_REPORT if settings.is_given("group") else NOT_IN_REPORT | {"group"}
    return {name: value for name, value in option_values(settings).items() if name not in unused}


def _source_report(plan: Plan, outcomes: Sequence[PartitionOutcome]) -> dict[str, Any]:
    source = plan.source
    return {
        "name": source.name,
        "kind": source.kind,
        "partitions": len(source.partitions),
        "ranges": [
            {"partition": outcome.partition, "from": source.start(outcome.partition), "to": outcome.position}
            for outcome in outcomes
        ],
        "axis": plan.axis,
        "features": list(plan.schema.features),
        "is_complete": all(outcome.is_complete for outcome in outcomes),
    }


def _replay_notes(plan: Plan, outcomes: Sequence[PartitionOutcome], records: int) -> list[str]:
    notes = []
    if plan.ranges:
        offsets = sum(outcome.position - plan.source.start(outcome.partition) for outcome in outcomes)
        notes += gap_notes(plan.source.name, offsets, records)
    if not all(outcome.is_complete for outcome in outcomes):
        notes.append("The replay was stopped before the end of the range; the report is about the records until then.")
    if left_out := outcomes[0].left_out:
        notes.append(f"The rows are too wide for some views, which are left out: {', '.join(left_out)}.")
    return notes


def _kind_and_settings(name: str, plan: Plan) -> dict[str, Any]:
    """Return the kind of a detector, and its settings; for a variant, those that differ."""
    own = asdict(plan.settings.detector_config())
    if name == OWN_DETECTOR:
        return {"kind": "own", "settings": own}
    variant = dict(variants(plan.settings)).get(name)
    if variant is None:
        return {"kind": "rival", "settings": None}
    differing = {key: value for key, value in asdict(variant.detector_config()).items() if value != own[key]}
    if variant.model != plan.settings.model:
        differing["model"] = variant.model
    return {"kind": "variant", "settings": differing}


def _versions(plan: Plan, outcomes: Sequence[PartitionOutcome]) -> dict[str, str | None]:
    has_river = any(name.startswith("river.") for name in plan.settings.compare)
    return {
        "fomo_stream": fomo_stream.__version__,
        "model": outcomes[0].model,
        "kernel": outcomes[0].kernel,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "torch": version("torch"),
        "river": version("river") if has_river else None,
    }


def _timing(outcomes: Sequence[PartitionOutcome], started: datetime, source: dict[str, Any]) -> dict[str, Any]:
    """Return how long the replay and each detector took."""
    spent: Counter[str] = Counter()
    for outcome in outcomes:
        spent.update(outcome.seconds)
    names = sorted(spent, key=lambda name: (name != OWN_DETECTOR, name))
    elapsed = sum(outcome.ended - outcome.began for outcome in outcomes)
    seconds = max(outcome.ended for outcome in outcomes) - min(outcome.began for outcome in outcomes)
    n = source["scored"] + source["warming_up"]
    timing: dict[str, Any] = json_value(
        {
            "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
            "seconds": seconds,
            "records_per_s": source["records"] / seconds,
            "detector_share": spent[OWN_DETECTOR] / elapsed if elapsed else None,
            "detectors": {name: spent[name] for name in names},
            "seconds_per_record": {name: spent[name] / n if n else None for name in names},
        }
    )
    return timing
