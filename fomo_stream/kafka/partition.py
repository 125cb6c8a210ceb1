"""One input partition: its waiting records, its detector, its labels, and the state that outlives the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from fomo_stream.detector.changelog import Entries
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.detector.series import Key
from fomo_stream.errors import DamagedStateError, RecordError, StateError
from fomo_stream.kafka.batching import MicroBatch
from fomo_stream.kafka.feedback.effects import Effects
from fomo_stream.kafka.feedback.labels import LabelQueue, RecordIndex
from fomo_stream.kafka.record import Record
from fomo_stream.kafka.state.position import POSITION, Position, Restored
from fomo_stream.records.incidents import Closed, Incidents
from fomo_stream.records.result import Result
from fomo_stream.records.rows import Float, RowReader
from fomo_stream.records.schema import Schema, shown
from fomo_stream.settings.service import ServiceSettings

DETECTOR, INDEX, LABELS, SCHEMA, INCIDENTS = "detector", "index", "labels", "schema", "incidents"


class Pending(NamedTuple):
    """A record that waits to be scored."""

    record: Record
    fields: dict[str, Any]
    polled_at: float  # seconds, monotonic
    error: RecordError | None = None  # why it cannot be scored
    is_strict: bool = False  # whether its bytes are strict JSON

    def size(self) -> int:
        """Approximate memory in bytes."""
        return 2 * len(self.record.value or b"")


class PartitionTask:
    """The state of one input partition in this instance.

    It is inactive until it is restored: records that arrive before that are read again. topic_ids: by topic, if known.
    """

    def __init__(self, number: int, settings: ServiceSettings, topic_ids: Mapping[str, str]) -> None:
        self.number = number
        self.batch = MicroBatch[Pending](settings.batch_size, settings.batch_age_ms / 1000)
        self.index = RecordIndex(settings.detector_config().feedback_memory)  # records that labels can be about
        # an index of another size has another name and is not restored
        self._index_name = f"{INDEX}/{settings.detector_config().feedback_memory}"
        self.labels = LabelQueue(topic_ids.get(settings.feedback or "", ""))
        self.incidents = self._no_incidents(settings, number)
        self.detector: Detector | None = None  # from the first batch on
        self.reader: RowReader | None = None  # from the first batch on
        self.is_active = False
        self.position: int | None = None  # offset before which every record is finished; None: nothing is known
        self.committed: int | None = None  # last position that the group has committed
        self.received = -1  # last offset received
        self.learned_until = 0  # records before this offset are learned already
        self.regime = 0  # of the last scored record
        self.generation = 0  # of the last scored record
        self.generation_since: float | None = None  # seconds, monotonic: when this instance first scored with it
        self.late_since: float | None = None  # seconds, monotonic: since then it waits for a context; None: it does not
        self.last_timestamp: int | None = None  # of the last scored record, milliseconds since 1970
        self.waits_since = 0.0  # seconds, monotonic: when its restore was requested
        self.effects = Effects()  # entries that say when labels took effect
        self._settings = settings
        self._topic_id = topic_ids.get(settings.topic, "")
        self.former: Detector | None = None  # of the same partition, before the rollback
        self._restored: Restored | None = None
        self._written_schema = b""

    def activate(self, restored: Restored) -> None:
        """Continue from `restored`. Raises StateError when its entries cannot be read."""
        self.is_active = True
        self._restored = restored
        self.position = self.committed = restored.start
        self.received = restored.start - 1
        self.learned_until = restored.learned_until
        self.effects = Effects(restored.effects)
        self._topic_id = restored.topic_id or self._topic_id  # perhaps the id of a topic that was deleted
        if self._settings.feedback is not None:
            self.labels.recover(restored.entries, LABELS)
            self.labels.begin(restored.feedback_start)

    def equip(self, prototype: Detector, schema: Schema) -> tuple[Detector, RowReader]:
        """The detector and the reader: restored, or new.

        Raises StateError if the state belongs to other features, another model or incompatible settings.
        """
        if self.detector is None or self.reader is None:
            self.detector, self.reader = prototype.copy(), RowReader(schema)
            entries = self._restored.entries if self._restored is not None else {}
            if SCHEMA in entries:
                self._check_schema(entries[SCHEMA], schema)
                self.detector.recover(_under(entries, DETECTOR), self.former)
                if any(name.startswith(f"{self._index_name}/") for name in entries):
                    self.index.recover(entries, self._index_name, self.detector.records)
                self.incidents.recover(_under(entries, INCIDENTS))
                self._written_schema = entries[SCHEMA]
                self.regime = self.detector.summary.regime
            self.former = None
            if self._restored is not None:  # its entries are now in the detector
                kept = f"{self._index_name}/"
                old = {name for name in entries if name.startswith(f"{INDEX}/") and not name.startswith(kept)}
                self._restored = Restored(self._restored.start, stale=self._restored.stale | old)
        return self.detector, self.reader

    def score(self, rows: Float, keys: list[Key], offsets: Iterable[int], learn: bool = True) -> Results:
        """Score rows (n, d), which come next, and learn them; then labels can be about their records.

        keys, offsets: (n,) of their records. learn: False for records that were learned before; then nothing changes.
        """
        assert self.detector is not None
        if not learn:
            return self.detector.score_rows(rows, keys)
        for number, (offset, key) in enumerate(zip(offsets, keys, strict=True), self.detector.records):
            self.index.add(number, offset, key)
        return self.detector.process(rows, keys)

    def note_incidents(
        self,
        results: Sequence[Result],
        scored: Results,
        keys: Sequence[Key],
        offsets: Sequence[int],
        learn: bool = True,
    ) -> list[Closed]:
        """Give the alerts of the records scored last their incidents; returns the incidents that have ended.

        results: (n,) made of `scored`; keys, offsets: (n,) of the records. learn: as for `score`; without it nothing
        changes and nothing ends.
        """
        assert self.detector is not None
        if not learn:
            self.incidents.copy().follow(results, scored, keys, offsets, self.detector.records)
            return []
        return self.incidents.follow(results, scored, keys, offsets, self.detector.records - len(results))

    def discard_state(self) -> None:
        """Forget the restored state: its entries will be deleted, and learning starts again."""
        assert self._restored is not None
        self.detector = self.reader = None
        self.learned_until = 0
        self.incidents = self._no_incidents(self._settings, self.number)
        self.index = RecordIndex(self._settings.detector_config().feedback_memory)
        stale = frozenset(self._restored.entries) | self._restored.stale
        stale -= {LABELS}  # labels that took effect are not applied again
        self._restored = Restored(self._restored.start, stale=stale)

    def changes(self) -> Entries:
        """The changes since the last call, as entries of the state topic; none if there was no record or label."""
        if not self.is_active or self.position is None:
            return {}
        entries: Entries = {}
        if self.detector is not None and self.reader is not None:
            entries |= _prefixed(self.detector.changes(), DETECTOR)
            entries |= self.index.changes(self._index_name)
            entries |= _prefixed(self.incidents.changes(), INCIDENTS)
            entries |= self._schema_changes(self.reader.schema)
        if self._settings.feedback is not None:
            entries |= self.labels.changes(LABELS)
        if entries or self.position != self.committed:
            entries[POSITION] = Position(max(self.position, self.learned_until), self._topic_id).encode()
        if entries and self._restored is not None and self._restored.stale:
            entries = {**dict.fromkeys(self._restored.stale), **entries}
            self._restored = Restored(self._restored.start)
        return entries

    @staticmethod
    def _no_incidents(settings: ServiceSettings, number: int) -> Incidents:
        place = (settings.topic, number) if settings.topic else ()  # of a file
        return Incidents(settings.quiet, *place)

    def _schema_changes(self, schema: Schema) -> Entries:
        content = {"features": schema.features, "categorical": sorted(schema.categorical), "lags": self._settings.lags}
        value = orjson.dumps(content)
        if value == self._written_schema:
            return {}
        self._written_schema = value
        return {SCHEMA: value}

    def _check_schema(self, value: bytes, schema: Schema) -> None:
        try:
            found = orjson.loads(value)
            features, categorical, lags = tuple(found["features"]), set(found["categorical"]), int(found["lags"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"{SCHEMA} is not readable ({error})") from None
        if lags != self._settings.lags:
            raise StateError(f"--lags was {lags} when the state was written, it is {self._settings.lags} now")
        for what, old, new in (
            ("features", features, schema.features),
            ("categorical fields", sorted(categorical), sorted(schema.categorical)),
        ):
            if old != new:
                raise StateError(f"the state has {what} {shown(old) or 'none'}, now they are {shown(new) or 'none'}")


def _under(entries: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    prefix = name + "/"
    return {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}


def _prefixed(entries: Entries, name: str) -> Entries:
    return {f"{name}/{key}": value for key, value in entries.items()}
