"""The flow of a replay, from settings to a report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.assembly import make_report, settings_of
from fomo_stream.replaying.checkpoints import check_same_replay, describe, open_folder, write_whole
from fomo_stream.replaying.progress import Progress, shown_progress
from fomo_stream.replaying.workers import replay_partitions, stopped_by_ctrl_c
from fomo_stream.settings.replay import NO_REPORT, ReplaySettings
from fomo_stream.threads import usable_processors

if TYPE_CHECKING:
    from fomo_stream.replaying.one_partition import Outcome
    from fomo_stream.replaying.plan import Plan
    from fomo_stream.replaying.results import ReplayResult
    from fomo_stream.replaying.sources.tables import Table

CTRL_C = 130  # exit code
RANGE = ("from_", "to", "last")  # settings that say the range


def run_replay(settings: ReplaySettings) -> int:
    """Replay, write the report, and print a summary; returns the exit code."""
    from fomo_stream.replaying.report.html import html_text
    from fomo_stream.replaying.report.terminal import terminal_text

    html = None if settings.report == NO_REPORT else Path(settings.report)
    for name, path in (("--report", html), ("--json", settings.json)):
        if path is not None:
            check_writable(name, path)
    plan = _plan_of(settings, None)
    outcomes, report = _replayed(plan, shown_progress())
    if settings.json is not None:
        write_whole(settings.json, json_bytes(report))
    if html is not None:
        write_whole(html, html_text(report).encode())
    print(terminal_text(report, [path for path in (html, settings.json) if path is not None]))
    for note in _prepared(plan, outcomes):  # after the report is safe
        print(note)
    return 0 if report["source"]["is_complete"] else CTRL_C


def replay_settings(
    settings: ReplaySettings, progress: Progress | None = None, table: Table | None = None
) -> ReplayResult:
    """Replay as these settings say; the reports that they name are left to the caller. Raises FomoError.

    table: records in memory, in place of those of a file.

    Ctrl-C ends it early, with the result so far: then `report["source"]["is_complete"]` is False.
    """
    return replay_plan(_plan_of(settings, table), progress)


def replay_plan(plan: Plan, progress: Progress | None = None) -> ReplayResult:
    """`replay_settings`, of a plan that is made already, perhaps of another source. Raises FomoError."""
    from fomo_stream.replaying.results import ReplayResult

    outcomes, report = _replayed(plan, progress or Progress())
    report["notes"] += _prepared(plan, outcomes)
    return ReplayResult(report)


def _plan_of(settings: ReplaySettings, table: Table | None) -> Plan:
    """The plan; mistakes in the settings are named before anything is read."""
    from fomo_stream.replaying.detectors.rivals import check_rivals
    from fomo_stream.replaying.detectors.variants import variants
    from fomo_stream.replaying.plan import make_plan

    variants(settings)
    check_rivals(settings.compare)
    plan = make_plan(settings, table) if settings.resume is None else _resumed_plan(settings, settings.resume)
    if settings.prepare is not None:
        from fomo_stream.kafka.group.unused import check_unused

        check_unused(plan.settings.model_copy(update={"group": settings.prepare}), plan.schema)
    return plan


def json_bytes(report: Mapping[str, Any]) -> bytes:
    """The report as JSON; the same report gives the same bytes."""
    return orjson.dumps(report, option=orjson.OPT_APPEND_NEWLINE)


def check_writable(flag: str, path: Path) -> None:
    """Raise ConfigError if a file could not be written at the end."""
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}; create it")
    needed = [path.parent] if not path.exists() else [path, path.parent] if path.is_file() else [path]
    if not all(os.access(one, os.W_OK) for one in needed):
        raise ConfigError(f"{flag} {path} may not be written; check its permissions")


def _replayed(plan: Plan, progress: Progress) -> tuple[list[Outcome], dict[str, Any]]:
    """The outcomes of all partitions, and the report."""
    from fomo_stream.replaying.one_partition import Job

    settings, source, started = plan.settings, plan.source, datetime.now(UTC)
    numbers = sorted(source.partitions)
    jobs = [Job(plan.part(number), number, settings.resume, settings.prepare is not None) for number in numbers]
    totals = [source.total(number) for number in numbers]
    n_workers = settings.jobs or usable_processors()
    with stopped_by_ctrl_c(progress) as is_stopped:
        progress.begin(source.name, None if None in totals else sum(filter(None, totals)))
        try:
            outcomes = replay_partitions(jobs, settings, n_workers, is_stopped, progress)
        finally:
            progress.end()
    plan.join_sinks(keep=settings.resume is not None)
    return outcomes, make_report(plan, outcomes, started)


# -- going on with an earlier replay -------------------------------------------------------------------------------


def _resumed_plan(settings: ReplaySettings, folder: Path) -> Plan:
    """The plan of the replay in this folder, or a new one if there is none. Raises ConfigError if it is another."""
    from fomo_stream.replaying.plan import make_plan

    outputs = {"scores_file": settings.scores_file and str(settings.scores_file), "scores_topic": settings.scores_topic}
    before, given = open_folder(folder), {**settings_of(settings), **outputs}
    if before is None:
        plan = make_plan(settings)
        describe(folder, _description(plan, given))
        return plan
    check_same_replay(folder, {"settings": before["settings"]}, {"settings": given})
    ranges: Sequence[Sequence[int]] = before["ranges"]
    asked = settings
    if settings.file is None:  # the topic may have grown, and time has passed
        starts, ends = (",".join(f"{one[0]}:{one[at]}" for one in ranges) for at in (1, 2))
        asked = settings.model_copy(update={"from_": starts, "to": ends, "last": ""})
    plan = make_plan(asked)
    now = _description(plan, given)
    parts = ("agreed", "features", "file")
    check_same_replay(folder, {name: before[name] for name in parts}, {name: now[name] for name in parts})
    own = plan.settings.model_copy(update={name: getattr(settings, name) for name in RANGE})
    return replace(plan, settings=own, notes=tuple(before["notes"]), now_ms=int(before["now_ms"]))


def _description(plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same, or is kept, when the replay goes on. given: the settings."""
    source, file = plan.source, plan.settings.file
    agreed = {name: value for name, value in settings_of(plan.settings).items() if name not in RANGE}
    found = None if file is None else file.stat()
    ends = {number: source.start(number) + (source.total(number) or 0) for number in source.partitions}
    categories = ",".join(sorted(plan.schema.categorical))
    return {
        "settings": given,
        "agreed": agreed,
        "features": {"features": ",".join(plan.schema.features), "categories": categories},
        "file": {} if found is None else {"size of the file": found.st_size, "time of the file": found.st_mtime_ns},
        "ranges": [[number, source.start(number), end] for number, end in ends.items()],
        "notes": list(plan.notes),
        "now_ms": plan.now_ms,
    }


# -- preparing a group -----------------------------------------------------------------------------------------------


def _prepared(plan: Plan, outcomes: Sequence[Outcome]) -> list[str]:
    """Write the state for the group of --prepare, if it is given; sentences about it."""
    group = plan.settings.prepare
    if group is None:
        return []
    if not all(outcome.is_complete for outcome in outcomes):
        return [f"Group {group} was not prepared, because the replay was stopped early."]
    from fomo_stream.kafka.prepare import prepare_group

    settings = plan.settings.model_copy(update={"group": group})
    tasks = {outcome.partition: (outcome.entries, outcome.position) for outcome in outcomes}
    topic_id = next((found.topic_id for found in plan.ranges.values()), "")
    one = outcomes[0]
    notes = prepare_group(settings, plan.schema, one.model, one.kernel, tasks, plan.effects, topic_id)
    return [*notes, f"Group {group} is prepared: it goes on after the records that were replayed."]
