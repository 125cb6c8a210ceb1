"""Runs all checks of `fomo-stream doctor`, and writes their findings for people or as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence

from fomo_stream.admin.doctor import access, brokers, running, topics
from fomo_stream.admin.doctor.facts import Check, Facts, Finding, Level, unchecked
from fomo_stream.admin.doctor.inquiry import inquire
from fomo_stream.errors import BrokerError, FomoError
from fomo_stream.settings.commands import DoctorSettings

# In the order of the report; the exit code is that of the first problem.
CHECKS: dict[str, Check] = {
    "brokers": brokers.reachable,
    "permissions": access.permissions,
    "topics": topics.topics,
    "replicas": brokers.replicas,
    "broker settings": brokers.broker_settings,
    "transactions": access.transactions,
    "clock": running.clock,
    "settings": running.own_settings,
}
NEEDS_NO_BROKER = ("settings",)

Named = tuple[str, Finding]  # of a check


def examine(settings: DoctorSettings) -> tuple[str, int]:
    """The report and the exit code. Raises ConfigError."""
    try:
        facts = inquire(settings)
    except BrokerError as error:
        found = without_answer(settings, error)
    else:
        found = findings(settings, facts)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return (as_json(found) if settings.json else as_text(found, width)), exit_code(found)


def findings(settings: DoctorSettings, facts: Facts) -> list[Named]:
    """The findings of all checks."""
    return [(name, finding) for name, check in CHECKS.items() for finding in check(settings, facts)]


def without_answer(settings: DoctorSettings, error: FomoError) -> list[Named]:
    """The findings if the brokers do not answer."""
    what, _, remedy = str(error).partition("; ")
    found = [("brokers", Finding(Level.PROBLEM, what, remedy, error.exit_code))]
    for name, check in list(CHECKS.items())[1:]:
        if name in NEEDS_NO_BROKER:
            found += [(name, finding) for finding in check(settings, Facts(now=0.0))]
        else:
            found.append((name, unchecked("the brokers do not answer")))
    return found


def exit_code(found: Sequence[Named]) -> int:
    """0 without a problem, else the code of the first one."""
    return next((finding.code or 1 for _, finding in found if finding.level is Level.PROBLEM), 0)


def as_text(found: Sequence[Named], width: int | None = None) -> str:
    """A line for each finding, its remedy below it, and a summary. width: of a terminal; longer lines are broken."""
    levels, names = max(len(level) for level in Level), max(len(name) for name, _ in found)
    indent = levels + names + 4
    lines, before = [], ""
    for name, finding in found:
        head = f"{finding.level:<{levels}}  {'' if name == before else name:<{names}}  "
        lines += _broken(head + finding.what, indent, width)
        if finding.remedy:
            lines += _broken(f"{'':<{indent}}-> {finding.remedy}", indent + 3, width)
        before = name
    counts = Counter(finding.level for _, finding in found)
    parts = [_counted(counts[Level.PROBLEM], "problem"), _counted(counts[Level.WARNING], "warning")]
    parts.append(f"{counts[Level.UNCHECKED]} not checked")
    return "\n".join([*lines, "", ", ".join(parts)])


def _broken(line: str, indent: int, width: int | None) -> list[str]:
    if width is None or width < indent + 30:
        return [line]
    return textwrap.wrap(
        line,
        width,
        drop_whitespace=True,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counted(count: int, name: str) -> str:
    return f"{count or 'no'} {name}{'' if count == 1 else 's'}"


def as_json(found: Sequence[Named]) -> str:
    """One JSON object: the exit code and the findings."""
    content = [
        {"check": name, "level": finding.level, "what": finding.what, "remedy": finding.remedy, "code": finding.code}
        for name, finding in found
    ]
    return json.dumps({"exit_code": exit_code(found), "findings": content}, indent=2)
