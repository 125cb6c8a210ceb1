"""Runs all checks of `fomo-stream doctor`, and writes their findings for people or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from fomo_stream.admin import checks
from fomo_stream.admin.checks import Check, Finding, Level, problem, unchecked
from fomo_stream.admin.inquiry import Facts, inquire
from fomo_stream.errors import BrokerError
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.wording import counted

# In the order of the report; the exit code is that of the first problem.
CHECKS: dict[str, Check] = {
    "brokers": checks.brokers,
    "permissions": checks.permissions,
    "topics": checks.topics,
    "replicas": checks.replicas,
    "broker settings": checks.broker_settings,
    "transactions": checks.transactions,
    "settings": checks.own_settings,
}

Named = tuple[str, Finding]  # of a check


def examine(settings: DoctorSettings) -> tuple[str, int]:
    """The report and the exit code. Raises ConfigError."""
    try:
        findings = findings_of(settings, inquire(settings))
    except BrokerError as error:
        findings = without_answer(settings, error)
    return (as_json(findings) if settings.json_ else as_text(findings)), exit_code(findings)


def findings_of(settings: DoctorSettings, facts: Facts) -> list[Named]:
    """The findings of all checks."""
    return [(name, finding) for name, check in CHECKS.items() for finding in check(settings, facts)]


def without_answer(settings: DoctorSettings, error: BrokerError) -> list[Named]:
    """The findings if the brokers do not answer."""
    others = [(name, unchecked("the brokers do not answer")) for name in list(CHECKS)[1:-1]]
    own = [("settings", finding) for finding in checks.own_settings(settings, Facts())]
    return [("brokers", problem(error)), *others, *own]


def exit_code(findings: Sequence[Named]) -> int:
    """0 without a problem, else the code of the first one."""
    return next((finding.code or 1 for _, finding in findings if finding.level is Level.PROBLEM), 0)


def as_text(findings: Sequence[Named]) -> str:
    """A line for each finding, its remedy below it, and a summary."""
    levels, names = max(len(level) for level in Level), max(len(name) for name, _ in findings)
    indent = levels + names + 4
    lines, before = [], ""
    for name, finding in findings:
        head = f"{finding.level:<{levels}}  {'' if name == before else name:<{names}}  "
        lines.append(head + finding.what)
        if finding.remedy:
            lines.append(f"{'':<{indent}}-> {finding.remedy}")
        before = name
    counts = Counter(finding.level for _, finding in findings)
    shown = [counted(counts[level], level.value) for level in (Level.PROBLEM, Level.WARNING)]
    return "\n".join([*lines, "", ", ".join([*shown, f"{counts[Level.UNCHECKED]} not checked"])])


def as_json(findings: Sequence[Named]) -> str:
    """One JSON object: the exit code and the findings."""
    content = [{"check": name, **asdict(finding)} for name, finding in findings]
    return json.dumps({"exit_code": exit_code(findings), "findings": content}, indent=2)
