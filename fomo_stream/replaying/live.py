"""Whether the results of a replay equal the live output of the group of --group.

The group's state says how many records of each partition it had learned before some offset. Only a replay that begins
with the same record as the group has learned as many there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fomo_stream.kafka.recorded import Learned
from fomo_stream.wording import ranges

if TYPE_CHECKING:
    from fomo_stream.replaying.one_partition import Outcome
    from fomo_stream.replaying.plan import LiveGroup, Plan

Finding = Literal["earlier", "later", "unknown", "equal"]  # where the group began, compared with the replay


def compared_with_live(live: LiveGroup, plan: Plan, outcomes: Sequence[Outcome]) -> str:
    """A sentence for the report: whether results equal the live output. outcomes: of all partitions."""
    settings, name = plan.settings, plan.settings.group
    found: dict[Finding, list[int]] = {}
    for outcome in outcomes:
        span = plan.ranges[outcome.partition]
        if span.records:
            finding = _where_it_began(live.learned.get(span.partition), span.start, outcome.position, outcome.learned)
            found.setdefault(finding, []).append(span.partition)
    places = {finding: f"{settings.topic}[{ranges(numbers)}]" for finding, numbers in found.items()}
    if "earlier" in found:
        warm_up = ""
        if settings.seed_context is None:
            warm_up = f"Warms up: the first {settings.min_context:,} records of each partition have no score. "
        return (
            f"{warm_up}At the same offset of {places['earlier']}, group {name} had learned more records than this "
            "replay, so contexts and results may differ from those of the live run."
        )
    if "later" in found:
        return (
            f"At the same offset of {places['later']}, group {name} had learned fewer records than this replay: it "
            "began later, so results may differ from its live output."
        )
    if "unknown" in found:
        return (
            f"It is not known whether group {name} began with the first record of {places['unknown']} that is "
            "replayed, so results may differ from its live output."
        )
    same = f"Each partition is replayed from the first record that group {name} learned"
    if not live.is_same:
        return f"{same}, but results may differ from its live output: the next notes say why."
    seed = "" if settings.seed_context is None else " if it began with the same --seed-context"
    return f"{same}, so results equal its live output{seed}."


def _where_it_began(group: Learned | None, start: int, end: int, learned: int | None) -> Finding:
    """start, end: offsets that were replayed. learned: records that the replay learned before the group's position."""
    if group is None or learned is None:
        return "unknown"
    left = max(0, group.position - end)  # offsets that only the group has read; each has one record at most
    if group.records > learned + left:
        return "earlier"
    if group.records < learned:
        return "later"
    if left:
        # Each of these offsets has a record, and the group has learned all that there ever were.
        return "equal" if start == 0 and group.records == learned + left else "unknown"
    return "equal" if group.position >= start else "unknown"
