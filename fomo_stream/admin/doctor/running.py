"""Checks of the clock and of the settings of this instance. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fomo_stream.admin.doctor.facts import Facts, Finding, Level, ok, unchecked, warning
from fomo_stream.settings.commands import DoctorSettings
from fomo_stream.wording import in_time

MOST_AHEAD_S = 1.0


def clock(settings: DoctorSettings, facts: Facts) -> Iterator[Finding]:
    """Whether records are from the future.

    Kafka does not tell a broker's time. A record from the future shows that this clock is behind, or that the clock of
    the record's writer is ahead. A clock that is ahead here cannot be seen.
    """
    if not facts.newest:
        yield unchecked("no topic has a record whose timestamp could be compared with this clock")
        return
    ahead = {topic: newest - facts.now for topic, newest in facts.newest.items() if newest > facts.now + MOST_AHEAD_S}
    for topic, seconds in ahead.items():
        yield warning(
            f"the newest record of {topic} is {in_time(seconds)} in the future: {_writer(settings, facts, topic)}",
            "synchronise the clocks (NTP, chrony); latencies and ages are measured with them",
        )
    if not ahead:
        age = min(facts.now - newest for newest in facts.newest.values())
        shown = in_time(max(MOST_AHEAD_S, age))
        yield ok(f"no record is from the future; this clock is behind by less than {shown}, if at all")


def _writer(settings: DoctorSettings, facts: Facts, topic: str) -> str:
    config = facts.topics[topic].config if topic in facts.topics else None
    if config is not None and config.get("message.timestamp.type") == "LogAppendTime":
        return "the clock of this machine is behind the broker's"
    others = "an instance" if topic == settings.state_topic else "its producer"
    return f"the clock of this machine is behind, or that of {others} is ahead"


def own_settings(settings: DoctorSettings, _facts: Facts) -> Iterator[Finding]:
    """Settings without which a deployment works less well."""
    findings = [*_advice(settings)]
    yield from findings
    if all(finding.level is Level.OK for finding in findings):
        yield ok("the instance has a name and serves probes")


def _advice(settings: DoctorSettings) -> Iterator[Finding]:
    if settings.instance_id is None:
        yield warning(
            "no --instance-id: after a crash, partitions wait for the session timeout and then move",
            "give each instance a name that it keeps, for example that of its pod",
        )
    if settings.health_port is None:
        yield warning(
            "no --health-port: an instance that hangs is not noticed, and there are no metrics",
            "--health-port 8080, and probes on /livez and /readyz",
        )
    if settings.reset_state:
        yield warning(
            "--reset-state is set: every start deletes what was learned",
            "take it out of the configuration after the one start that needs it",
        )
    if settings.admit == "feedback" and settings.feedback is None and settings.seed_context is None:
        yield warning(
            "--admit feedback without --feedback or --seed-context: nothing is learned after the warm-up",
            "name a --feedback topic, or use another --admit",
        )
