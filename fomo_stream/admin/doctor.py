"""Runs all checks of `fomo-stream doctor`, and writes their findings for people or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

from fomo_stream.admin import checks
from fomo_stream.admin.checks import Check, Finding, Level, problem, unchecked
from fomo_stream.admin.inquiry import Facts, inquire, inquire_registry
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
    "schema registry": checks.schema_registry,
    "settings": checks.own_settings,
}

NOT_OF_BROKERS = ("schema registry", "settings")

Named = tuple[str, Finding]  # of a check


def examine(settings: DoctorSettings) -> tuple[str, int]:
    """The report and the exit code. Raises ConfigError."""
    registry = inquire_registry(settings)
    try:
        findings = findings_of(settings, replace(inquire(settings), registry=registry))
    except BrokerError as error:
        findings = without_answer(settings, error, Facts(registry=registry))
    return (as_json(findings) if settings.json_ else as_text(findings)), exit_code(findings)


def findings_of(settings: DoctorSettings, facts: Facts) -> list[Named]:
    """The findings of all checks."""
    return [(name, finding) for name, check in CHECKS.items() for finding in check(settings, facts)]


def without_answer(settings: DoctorSettings, error: BrokerError, facts: Facts) -> list[Named]:
    """The findings if the brokers do not answer. facts: of the rest."""
    findings = [("brokers", problem(error))]
    for name, check in list(CHECKS.items())[1:]:
        found = check(settings, facts) if name in NOT_OF_BROKERS else [unchecked("the brokers do not answer")]
        findings += [(name, finding) for finding in found]
    return findings


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
