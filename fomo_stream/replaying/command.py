"""Runs a replay, from settings to a report."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fomo_stream.errors import ConfigError
from fomo_stream.replaying import advice
from fomo_stream.replaying.advice import PartitionAlerts
from fomo_stream.replaying.assembly import make_report
from fomo_stream.replaying.blocks import IsStopped
from fomo_stream.replaying.detectors.rivals import check_rivals
from fomo_stream.replaying.detectors.variants import variants
from fomo_stream.replaying.partition_run import Job
from fomo_stream.replaying.plan import Plan, plan_of_file
from fomo_stream.replaying.progress import Progress, shown_progress
from fomo_stream.replaying.replay_result import ReplayResult
from fomo_stream.replaying.report.terminal import terminal_text
from fomo_stream.replaying.report_files import check_outputs, join_parts, write_whole
from fomo_stream.replaying.tables import InMemory
from fomo_stream.replaying.workers import replay_partitions, stopped_by_ctrl_c
from fomo_stream.settings.replay import NO_REPORT, ReplaySettings
from fomo_stream.threads import usable_processors
from fomo_stream.wording import clean

CTRL_C = 130  # exit code


def run_replay(settings: ReplaySettings) -> int:
    """Replay, write the report, and print a summary; return the exit code."""
    html = _html_path(settings)
    plan, progress = _checked_plan(settings, None), shown_progress()
    with stopped_by_ctrl_c() as is_stopped:  # also while the report is made and written
        if settings.suggest is not None:
            given = plan.settings.model_copy(update={"reference": settings.reference})
            report, next_lines = _replay_with_suggestions(plan, given, settings.suggest, progress, is_stopped)
        else:
            (report, _), next_lines = _replay(plan, progress, is_stopped), []
        result = ReplayResult(report)
        if settings.json_ is not None:
            result.save(settings.json_)
        if html is not None:
            result.save_report(html)
        paths = [path for path in (html, settings.json_) if path is not None]
        print(terminal_text(result.report, paths))
        if settings.suggest is not None:
            print(*(clean(line) for line in (f"Configuration: {settings.suggest}", *next_lines)), sep="\n")
    return 0 if result.is_complete else CTRL_C


def replay_settings(
    settings: ReplaySettings, progress: Progress | None = None, data: InMemory | None = None
) -> ReplayResult:
    """Replay as these settings say; the caller writes the reports that they name. Raises FomoError.

    data: records in memory, instead of those of a file.

    Ctrl-C ends it early, with the result so far: then `report["source"]["is_complete"]` is False.
    """
    plan = _checked_plan(settings, data)
    with stopped_by_ctrl_c() as is_stopped:
        return ReplayResult(_replay(plan, progress or Progress(), is_stopped)[0])


def _checked_plan(settings: ReplaySettings, data: InMemory | None) -> Plan:
    """Return the plan. Raises the errors of wrong settings before anything is read."""
    variants(settings)
    check_rivals(settings.compare)
    outputs = {"--report": _html_path(settings), "--json": settings.json_, "--scores-file": settings.scores_file}
    outputs["--suggest"] = settings.suggest
    inputs = {
        "--file": settings.file if data is None else None,
        "--labels-file": settings.labels_file,
        "--seed-context": settings.seed_context,
        "--reference": settings.reference if isinstance(settings.reference, Path) else None,
        "--model": Path(settings.model) if settings.model.endswith(".safetensors") else None,
        "--config": settings.config,
    }
    check_outputs(*({flag: path for flag, path in paths.items() if path} for paths in (outputs, inputs)))
    return make_plan(settings, data)


def make_plan(settings: ReplaySettings, data: InMemory | None = None) -> Plan:
    """Return the plan of a replay. Raises a FomoError if there is nothing to replay, or a setting is wrong.

    data: records in memory, instead of those of a file.
    """
    now_ms = time.time_ns() // 1_000_000
    named = (*(settings.features or ()), *settings.categorical, *settings.counter_names)
    if settings.label is not None and settings.label in named:
        raise ConfigError(f"{settings.label} is a feature and the --label, but scores may not see it; leave one out")
    if settings.file is not None:
        return plan_of_file(settings, now_ms, data)
    from fomo_stream.replaying.topic_source import plan_of_topic  # imports the Kafka client

    return plan_of_topic(settings, now_ms)


def _html_path(settings: ReplaySettings) -> Path | None:
    return None if settings.report == NO_REPORT else Path(settings.report)


def _replay_with_suggestions(
    plan: Plan, settings: ReplaySettings, path: Path, progress: Progress, is_stopped: IsStopped
) -> tuple[dict[str, Any], list[str]]:
    """Replay with the roles of fields that the records suggest; return the report, and lines about what to try next.

    Writes the configuration. settings: of the plan, as they were given.
    """
    suggestions = advice.suggest_roles(settings, plan.source)
    plan = make_plan(advice.with_found(settings, suggestions))
    report, parts = _replay(plan, progress, is_stopped)
    source, has_labels = report["source"], plan.has_labels
    changes = advice.advise(parts, settings, advice.days_of(source), has_labels)
    lines = advice.proposals(settings, suggestions, changes, has_labels)
    n = source["scored"] + source["warming_up"]
    text = advice.configuration(settings, suggestions, changes, lines, source["name"], n)
    write_whole(path, text.encode())
    return report, lines


def _replay(plan: Plan, progress: Progress, is_stopped: IsStopped) -> tuple[dict[str, Any], list[PartitionAlerts]]:
    """Replay; return the report, and with --suggest the records and alerts of each partition."""
    settings, source, started = plan.settings, plan.source, datetime.now(UTC)
    numbers = sorted(source.partitions)
    totals = [source.total(number) for number in numbers]
    n_workers = settings.jobs or usable_processors()
    with TemporaryDirectory(prefix="fomo-replay-") as folder:
        jobs = [Job(plan.part(number), number, Path(folder)) for number in numbers]
        progress.begin(source.name, None if None in totals else sum(filter(None, totals)))
        try:
            outcomes = replay_partitions(jobs, settings, n_workers, is_stopped, progress)
        finally:
            progress.end()
        if settings.scores_file is not None:
            join_parts(settings.scores_file, [job.scores for job in jobs])
        parts = []
        if settings.suggest is not None:  # the rows are copied, because the files are removed
            parts = [PartitionAlerts(outcome.recorded.rows.copy(), outcome.alerts) for outcome in outcomes]
        return make_report(plan, outcomes, started), parts
