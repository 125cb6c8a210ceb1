"""One partition's records: what is known of them before they can be scored, and its state as entries of a log. Pure.

Waiting: restore, offer -> begin -> Running (see `running`): offer, step
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from fomo_stream.detector.changelog import Entries, SingleEntry
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.errors import RecordError
from fomo_stream.partition.labels import BAD_FEEDBACK, MOST_MUTED, Label, LabelQueue, Mute, Muted, Verdict
from fomo_stream.partition.position import NOTHING, POSITION, Position, Restored
from fomo_stream.partition.record import Item, MicroBatch, Pending
from fomo_stream.partition.rules import Rules, RulesConfig, RulesLog

INDEX, LABELS, MUTED, RULES = "index", "labels", "muted", "rules"


class Config(RulesConfig, Protocol):
    """What a partition does with its records: the flags of the same names."""

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
    """What a partition has before and after its features are known.

    It is inactive until it is restored: records that arrive before that are read again.
    """

    number: int
    config: Config
    topic: str | None  # where its records come from; None: results and incidents do not name it
    feedback: str | None  # the topic of labels, if there is one
    topic_id: str  # empty: the broker has none
    feedback_id: str
    batch_size: int  # records that are scored at once, at most
    waiting: MicroBatch[Pending]
    labels: LabelQueue
    muted: Muted
    rules: RulesLog
    restored: Restored = NOTHING  # the entries of its state that are not read yet, and those to delete
    rules_log: SingleEntry = field(default_factory=SingleEntry)
    position: int | None = None  # offset before which every record is finished; None: it is inactive
    committed: int | None = None  # last position that is committed
    learned_until: int = 0  # records before this offset are learned already
    warm: range = range(0)  # offsets of its warm-up: nothing is written about records before its end
    last_timestamp: int | None = None  # of the last scored record, milliseconds since 1970

    @property
    def is_active(self) -> bool:
        """Whether it is restored."""
        return self.position is not None

    def offer(self, item: Pending, now: float) -> bool:
        """Take the next record; True when a micro-batch is full. One that was taken before is left out.

        now: seconds, monotonic.
        """
        if self.position is None:
            return False
        expected = self.waiting.items[-1].offset + 1 if len(self.waiting) else self.position
        return item.offset >= expected and self.waiting.add(item, now)  # else it began again after the fetch

    def skip(self, items: Sequence[Item]) -> None:
        """These records, which come next, are finished without a score."""
        if items:
            self.position = items[-1].offset + 1

    def set_rules(self, rules: Rules) -> bool:
        """Let these rules hold from the next record on, with the windows that feedback has told of; False: they do."""
        told = self.rules.now.told
        return self.rules.change(Rules(rules.rules, rules.windows, told), self.position or 0)

    def label(self, at: int, label: Label, exists: Callable[[int, int], bool]) -> None:
        """Queue a label, `at` an offset of its topic, until its record is scored. Raises RecordError.

        exists: whether the input has a record at (partition, offset); called only for offsets from `position` on.
        """
        offset = label.offset if isinstance(label, Verdict) else None
        is_ahead = offset is not None and (self.position is None or offset >= self.position)
        if offset is not None and is_ahead and not exists(self.number, offset):
            where = f"{self.topic}[{self.number}]@{offset}"
            raise RecordError(BAD_FEEDBACK, f"there is no record {where} yet; a label must come after its record")
        if isinstance(label, Mute) and label.muted and self.muted.is_full:
            raise RecordError(BAD_FEEDBACK, f"{MOST_MUTED:,} keys are muted by labels; end that for some first")
        self.labels.add(at, label)

    def changes(self) -> Entries:
        """The changes since the last call, as entries of a compacted log; none if there was no record or label."""
        if self.position is None:
            return {}
        entries = self._learned()
        if self.feedback is not None:
            entries |= self.labels.changes(LABELS) | self.muted.changes(MUTED)
        if entries or self.position != self.committed:
            until = max(self.position, self.learned_until)
            position = Position(until, self.topic_id, self.feedback_id, until < self.warm.stop)
            entries[POSITION] = position.encode()
        if entries and self.restored.stale:
            entries = {**dict.fromkeys(self.restored.stale), **entries}
            self.restored = replace(self.restored, stale=frozenset())
        return entries

    def _learned(self) -> Entries:
        """The changes of what records have taught."""
        return {}


class Waiting(Partition):
    """A partition that has to be restored, or whose features are not known yet.

    feedback: the topic of labels, if there is one; ids: of these topics, by name, where the broker has any.
    batch_size, age: how many records are scored at once, at most, and how many seconds one may wait for others.
    rules: that hold now; None: those of the config.
    """

    def __init__(
        self,
        number: int,
        config: Config,
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
            muted=Muted(config.mute_key),
            rules=RulesLog(Rules.of(config) if rules is None else rules),
        )

    def restore(self, restored: Restored) -> None:
        """Continue from `restored`; `Running` reads most of its entries. Raises DamagedStateError."""
        self.restored = restored
        self.position, self.committed = restored.start, restored.committed
        self.learned_until = restored.learned_until
        self.warm = restored.warm
        self.topic_id = restored.topic_id or self.topic_id  # perhaps the id of a topic that was deleted
        if self.feedback is not None:
            self.labels.recover(restored.entries, LABELS)
            self.labels.begin(restored.feedback_start)
            self.muted.recover(restored.entries, MUTED)
        if RULES in restored.entries:
            given = self.rules.now
            self.rules = RulesLog.decode(self.rules_log.recover(restored.entries, RULES))
            self.set_rules(given)

    def discard_state(self) -> None:
        """Forget the restored state: its entries will be deleted, and learning starts again."""
        stale = frozenset(self.restored.entries) | self.restored.stale
        stale -= {LABELS, MUTED, RULES}  # labels that took effect are not applied again
        self.restored = Restored(self.restored.start, stale=stale)
        self.learned_until = 0

    def handed_over(self) -> dict[str, Any]:
        """All that it has, for the partition that it becomes."""
        return {one.name: getattr(self, one.name) for one in fields(Partition)}
