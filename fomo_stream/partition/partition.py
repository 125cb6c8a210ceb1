"""The state of a partition, before its records can be scored and after, as entries of a log. Pure.

Waiting: restore, offer -> begin -> Running (see `running`): offer, step
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from fomo_stream.detector.changelog import Entries, SingleEntry
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.errors import RecordError
from fomo_stream.partition.labels import BAD_FEEDBACK, MAX_MUTED_KEYS, Label, LabelQueue, Mute, MutedKeys, Verdict
from fomo_stream.partition.position import NOTHING_RESTORED, POSITION, Restored, SavedPosition
from fomo_stream.partition.record import Item, MicroBatch, Pending
from fomo_stream.partition.rules import Rules, RulesConfig, RulesLog

INDEX, LABELS, MUTED, RULES = "index", "labels", "muted", "rules"


class PartitionConfig(RulesConfig, Protocol):
    """The settings of a partition: the flags of the same names."""

    lags: int
    mute_key: tuple[str, ...]
    time: str | None
    time_features: tuple[str, ...]
    derive: tuple[str, ...]
    timezone: str
    silence: float | None
    silence_of: tuple[str, ...]
    keys: int

    @property
    def quiet(self) -> tuple[int, int]: ...

    @property
    def least_silence_ms(self) -> int: ...

    def detector_config(self) -> DetectorConfig: ...


@dataclass(eq=False, kw_only=True)
class Partition:
    """The state of a partition before and after its features are known.

    It is inactive until it is restored: records that arrive earlier are read again.
    """

    number: int
    config: PartitionConfig
    topic: str | None  # of its records; None: results and incidents do not name it
    feedback: str | None  # the topic of labels, if there is one
    topic_id: str  # empty: the broker does not have ids
    feedback_id: str
    batch_size: int  # most records that are scored together
    waiting: MicroBatch[Pending]
    labels: LabelQueue
    muted: MutedKeys
    rules: RulesLog
    restored: Restored = NOTHING_RESTORED  # the entries of its state that are not read yet, and those to delete
    rules_log: SingleEntry = field(default_factory=SingleEntry)
    position: int | None = None  # offset before which every record is finished; None: it is inactive
    committed: int | None = None  # last position that is committed
    learned_until: int = 0  # records before this offset are learned already
    warm: range = range(0)  # offsets of its warm-up: nothing is written about records before its end
    last_timestamp: int | None = None  # of the last scored record, milliseconds since 1970

    @property
    def is_active(self) -> bool:
        """Return whether it is restored."""
        return self.position is not None

    def offer(self, item: Pending, now: float) -> bool:
        """Take the next record. Return True when a micro-batch is full. Ignore a record that was taken before.

        now: seconds, monotonic.
        """
        if self.position is None:
            return False
        expected = self.waiting.items[-1].offset + 1 if len(self.waiting) else self.position
        return item.offset >= expected and self.waiting.add(item, now)  # else it was restored again after the fetch

    def skip(self, items: Sequence[Item]) -> None:
        """Finish these records, which come next, without a score."""
        if items:
            self.position = items[-1].offset + 1

    def set_rules(self, rules: Rules) -> bool:
        """Apply these rules from the next record on, with the windows from feedback. False: they apply already."""
        return self.rules.change(Rules(rules.rules, rules.windows, self.rules.now.from_feedback), self.position or 0)

    def label(self, label_offset: int, label: Label, exists: Callable[[int, int], bool]) -> None:
        """Queue a label, at this offset of its topic until its record is scored. Raises RecordError.

        exists: whether the input has a record at (partition, offset); called only for offsets from `position` on.
        """
        offset = label.offset if isinstance(label, Verdict) else None
        is_ahead = offset is not None and (self.position is None or offset >= self.position)
        if offset is not None and is_ahead and not exists(self.number, offset):
            where = f"{self.topic}[{self.number}]@{offset}"
            raise RecordError(BAD_FEEDBACK, f"there is no record {where} yet; a label must come after its record")
        if isinstance(label, Mute) and label.muted and self.muted.is_full:
            raise RecordError(BAD_FEEDBACK, f"{MAX_MUTED_KEYS:,} keys are muted by labels; end that for some first")
        self.labels.add(label_offset, label)

    def changes(self) -> Entries:
        """Return the changes since the last call, as entries of a compacted log; empty without a record or label."""
        if self.position is None:
            return {}
        entries = self._learned()
        if self.feedback is not None:
            entries |= self.labels.changes(LABELS) | self.muted.changes(MUTED)
        if entries or self.position != self.committed:
            until = max(self.position, self.learned_until)
            position = SavedPosition(until, self.topic_id, self.feedback_id, until < self.warm.stop)
            entries[POSITION] = position.encode()
        if entries and self.restored.stale:
            entries = {**dict.fromkeys(self.restored.stale), **entries}
            self.restored = replace(self.restored, stale=frozenset())
        return entries

    def _learned(self) -> Entries:
        """Return the changes of the learned state."""
        return {}


class Waiting(Partition):
    """A partition that has to be restored, or whose features are not known yet.

    feedback: the topic of labels, if there is one; ids: of these topics, by name, if the broker has ids.
    batch_size, age: most records that are scored together, and seconds that one may wait for others.
    rules: the current ones; None: those of the config.
    """

    def __init__(
        self,
        number: int,
        config: PartitionConfig,
        *,
        topic: str | None = None,
        feedback: str | None = None,
        ids: Mapping[str, str] | None = None,
        batch_size: int = 64,
        age: float = 0.0,
        rules: Rules | None = None,
    ) -> None:
        ids = ids or {}
        feedback_id = ids.get(feedback or "", "")
        super().__init__(
            number=number,
            config=config,
            topic=topic,
            feedback=feedback,
            topic_id=ids.get(topic or "", ""),
            feedback_id=feedback_id,
            batch_size=batch_size,
            waiting=MicroBatch[Pending](batch_size, age, Pending.size),
            labels=LabelQueue(feedback_id),
            muted=MutedKeys(config.mute_key),
            rules=RulesLog(Rules.of(config) if rules is None else rules),
        )

    def restore(self, restored: Restored) -> None:
        """Continue from `restored`; `Running` reads most of its entries. Raises DamagedStateError."""
        self.restored = restored
        self.position, self.committed = restored.start, restored.committed
        self.learned_until = restored.learned_until
        self.warm = restored.warm
        self.topic_id = restored.topic_id or self.topic_id  # which may be that of a deleted topic
        if self.feedback is not None:
            self.labels.recover(restored.entries, LABELS)
            self.labels.begin(restored.feedback_start)
            self.muted.recover(restored.entries, MUTED)
        newest = self.rules.now
        if RULES in restored.entries:
            self.rules = RulesLog.decode(self.rules_log.recover(restored.entries, RULES))
        elif POSITION in restored.entries and newest != Rules():  # it had none so far
            self.rules = RulesLog()
        self.set_rules(newest)

    def discard_state(self) -> None:
        """Forget the restored state: its entries will be deleted, and learning starts again."""
        stale = frozenset(self.restored.entries) | self.restored.stale
        stale -= {LABELS, MUTED, RULES}  # labels that took effect are not applied again
        self.restored = Restored(self.restored.start, stale=stale)
        self.learned_until = 0

    def handed_over(self) -> dict[str, Any]:
        """Return all fields, for the `Running` that it becomes."""
        return {item.name: getattr(self, item.name) for item in fields(Partition)}
