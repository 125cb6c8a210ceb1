"""The state of an instance at one moment, for probes, metrics and the status page. Safe from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fomo_stream.detector.results import DetectorSummary
from fomo_stream.kafka.assignment import STALLED_S
from fomo_stream.partition.gaps import LEVELS
from fomo_stream.partition.partition import Partition
from fomo_stream.partition.running import Running

if TYPE_CHECKING:
    from fomo_stream.kafka.member import GroupMember

EMPTY_SUMMARY = DetectorSummary(0, 0, 0, 0, 0, 0.0)  # of a partition without records


@dataclass(frozen=True)
class PartitionSnapshot:
    """One input partition of this instance. None: not known yet."""

    number: int
    waits: str = ""  # why records that arrive now are not scored; empty if they are scored
    position: int | None = None  # offset before which every record is finished
    committed: int | None = None  # offset before which every record is committed
    end: int | None = None  # offset of the next record that a producer writes, as the broker last said
    lag: int | None = None  # offsets from there to the end
    oldest_unscored_s: float | None = None  # age of the oldest record that is not scored; 0: all are
    open_transactions: tuple[tuple[str, float], ...] = ()  # (topic, seconds) that readers wait for a transaction to end
    generation_age_s: float | None = None  # since this instance first scored with the newest context
    context_late_s: float = 0.0  # how long it has waited for a context that is not built yet
    stalled_s: float = 0.0  # how long it has not moved although it has unread records
    detector: DetectorSummary = EMPTY_SUMMARY
    silent: Mapping[str, int] = field(default_factory=dict)  # by level: how many are silent


@dataclass(frozen=True)
class Snapshot:
    state: str  # starting, waiting, running, stopping, stopped or failed
    not_ready: tuple[str, ...]  # why records are not scored; empty while they are
    topic: str
    out: str | None  # topic; None: only alerts are written
    group: str
    instance_id: str | None
    model: str  # name and digest of the checkpoint; empty until it is loaded
    kernel: str  # numba or torch
    features: tuple[str, ...]  # empty while they are not known
    alert_rate: float  # requested
    partitions: tuple[PartitionSnapshot, ...]
    restore_retries: int = 0  # attempts to restore a partition that had to be repeated
    alerts: str | None = None  # topic of alerts
    features_missing: int = 0  # that had values before


def not_ready_reasons(member: GroupMember) -> list[str]:
    """Return the reasons why records are not scored; empty if they are."""
    reasons = [] if member.has_joined else ["not yet a member of the group"]
    reasons += member.topics.reasons()
    reasons += [reason for reason in (member.search.trouble, member.delivery.trouble) if reason]
    schemas, partitions = member.pipeline.schemas, dict(member.pipeline.partitions)
    places = {number: f"{member.settings.topic}[{number}]" for number in partitions}
    if schemas is not None and schemas.trouble:
        for number in sorted(filter(member.pipeline.decoder.waits, partitions)):
            reasons.append(f"{places[number]} waits for the schema of a record: {schemas.trouble}")
    for number, partition in partitions.items():
        if not partition.is_active:
            reasons.append(f"{places[number]} waits to be restored: {_waits(member, partition)}")
        elif (stalled_s := _stalled_s(member, partition)) > STALLED_S:
            reasons.append(f"{places[number]} has not moved for {stalled_s:.0f} s although it has unread records")
    if warming_up := [partition for partition in partitions.values() if _left_to_learn(member, partition)]:
        done = 1 - sum(_left_to_learn(member, partition) for partition in warming_up) / sum(
            len(partition.warm) for partition in warming_up
        )
        reasons.append(_warming_up(done))
    return reasons


def partition_snapshots(member: GroupMember, now: float, clock: float) -> tuple[PartitionSnapshot, ...]:
    """Return the partitions of an instance, by number. now: seconds, monotonic; clock: seconds since 1970."""
    ordered = sorted(member.pipeline.partitions.values(), key=lambda partition: partition.number)
    return tuple(_partition_snapshot(member, partition, now, clock) for partition in ordered)


def _partition_snapshot(member: GroupMember, partition: Partition, now: float, clock: float) -> PartitionSnapshot:
    settings, running = member.settings, partition if isinstance(partition, Running) else None
    topics, number = (settings.topic, settings.state_topic), partition.number
    answers = {topic: member.watch.ends.get((topic, number)) for topic in topics}
    input_ends = answers[settings.topic]
    known_ends = (input_ends and input_ends.ends.end, member.offsets.get(number, (None,))[0], partition.position)
    end = max((offset for offset in known_ends if offset is not None), default=None)
    position = _finished(member, partition)
    committed = position if partition.committed == partition.position else partition.committed
    waits = _waits(member, partition)
    return PartitionSnapshot(
        partition.number,
        waits,
        position,
        committed,
        end,
        None if end is None or committed is None else max(0, end - committed),
        0.0 if end is not None and position == end else _oldest_unscored_s(partition, clock),
        tuple((topic, 0.0 if e.open_since is None else now - e.open_since) for topic, e in answers.items() if e),
        None if running is None or running.generation_since is None else now - running.generation_since,
        0.0 if running is None or running.late_since is None else now - running.late_since,
        _stalled_s(member, partition),
        EMPTY_SUMMARY if running is None else running.detector.summary,
        dict.fromkeys(LEVELS, 0) if running is None else running.silence.open,
    )


def _finished(member: GroupMember, partition: Partition) -> int | None:
    """Return the offset that a partition has finished, with transaction markers as of the loop's last look."""
    if partition.position is None:
        return None
    return max(partition.position, member.offsets.get(partition.number, (None, None))[1] or 0)


def _waits(member: GroupMember, partition: Partition) -> str:
    if not partition.is_active:
        return member.restorer.waits.get(partition.number, "waiting for its turn")
    left = _left_to_learn(member, partition)
    return _warming_up(1 - left / len(partition.warm)) if left else ""


def _stalled_s(member: GroupMember, partition: Partition) -> float:
    return member.stalls.get(partition.number, (None, 0.0))[1]


def _warming_up(done: float) -> str:
    return f"warming up: {100 * done:.0f} %"


def _left_to_learn(member: GroupMember, partition: Partition) -> int:
    """Return the number of offsets of its warm-up that are not learned yet."""
    if partition.position is None or partition.position >= partition.warm.stop:
        return 0
    return max(0, partition.warm.stop - max(_finished(member, partition) or 0, partition.warm.start))


def _oldest_unscored_s(partition: Partition, clock: float) -> float | None:
    """Return the age of the first waiting record, or else of the last scored one, which is a little older."""
    try:
        timestamp = partition.waiting.items[0].record.timestamp
    except IndexError:
        timestamp = partition.last_timestamp
    return None if timestamp is None else max(0.0, clock - timestamp / 1000)
