"""One partition's records, in one straight path: taken, scored, learned, and its state as entries of a log. Pure.

take -> next_batch -> score -> (results, closed incidents)        label -> apply_labels
changes -> entries of the log -> restore, begin
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import compress
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import orjson
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries
from fomo_stream.detector.config import LEAST_CONTEXT, DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.errors import DamagedStateError, RecordError, SchemaError, StateError
from fomo_stream.model.config import Model
from fomo_stream.partition.incidents import Incidents, Notice
from fomo_stream.partition.labels import BAD_FEEDBACK, MOST_MUTED, DueLabels, Label, LabelQueue, Muted, RecordIndex
from fomo_stream.partition.position import POSITION, Position, Restored
from fomo_stream.partition.record import Item, MicroBatch, Pending
from fomo_stream.partition.rules import Open, Rules, RulesLog, forced, suppressed
from fomo_stream.partition.silence import Silence, SilenceConfig
from fomo_stream.records.files import read_rows
from fomo_stream.records.result import Result, Source, nothing, results_of
from fomo_stream.records.schema import Schema, look_up, shown
from fomo_stream.records.times import cycles_of, known_time, places_at, to_milliseconds
from fomo_stream.records.writer import under_features
from fomo_stream.settings.flags import RecordFlags, seconds_of
from fomo_stream.settings.rules import in_zone
from fomo_stream.settings.service import ServiceSettings

DETECTOR, INDEX, LABELS, SCHEMA, INCIDENTS = "detector", "index", "labels", "schema", "incidents"
MUTED, RULES, SILENCE = "muted", "rules", "silence"
MAINTENANCE = "maintenance"  # status of a record that is neither scored nor learned

Float = NDArray[np.float64]
Process = Callable[[Float, Sequence[Key]], Results]  # scores rows (n, d), each with the key of its series


class Scored(NamedTuple):
    """What scoring n records has given. k of them have a value of any feature."""

    results: list[Result | None]  # (n,) None: it cannot be scored, see its error, or has no value of any feature
    closed: list[Notice]  # incidents that have ended, in the order of the records that ended them
    columns: Results  # (k,)
    rows: Float  # (k, d) values of the features
    seen: Float  # (m, ...) the same, as the detector takes them
    keys: list[Key]  # (k,) series
    usable: NDArray[np.bool_]  # (n,) which records these k are
    before_rules: NDArray[np.bool_]  # (k,) which were outliers before rules and windows of maintenance were looked at
    missing: NDArray[np.int64]  # (n,) features without a value
    opened: int  # incidents that have begun
    regimes: list[tuple[int, int]]  # offset and number of each regime that is announced
    silence: list[Notice]  # of silence, in the order of the records that they come before

    @property
    def notices(self) -> list[Notice]:
        """The ends of incidents and what is told of silence, in the order of records."""
        return sorted(self.closed + self.silence, key=lambda one: one.offset or 0)


class Partition:
    """The records of one partition and all that is known of them.

    topic, number: where they come from; without a topic, results and incidents do not name it. feedback: the topic of
    labels, if there is one; ids: of these topics, by name, where the broker has any. batch_size, age: how many records
    are scored at once, at most, and how many seconds one may wait for others. known: a detector of the same partition,
    whose contexts need not be encoded again. rules: that hold now; None: those of the settings. follows_clock: silence
    is also noticed between two records (`Silence.look`).

    It is inactive until `restore`, and scores from `begin` on. What it says of a record depends on the records and
    labels before it, never on how they are split over calls.
    """

    def __init__(
        self,
        number: int,
        settings: RecordFlags,
        *,
        topic: str | None = None,
        feedback: str | None = None,
        ids: Mapping[str, str] | None = None,
        batch_size: int = 64,
        age: float = 0.0,
        known: Detector | None = None,
        rules: Rules | None = None,
        follows_clock: bool = False,
    ) -> None:
        ids = ids or {}
        self._follows_clock = follows_clock
        self.number = number
        self.waiting = MicroBatch[Pending](batch_size, age, Pending.size)
        self.detector: Detector | None = None  # from `begin` on, as the schema
        self.schema: Schema | None = None
        self._feedback_id = ids.get(feedback or "", "")
        self.labels = LabelQueue(self._feedback_id)
        self.muted = Muted(settings.mute_key)
        self.rules = RulesLog(rules_of(settings) if rules is None else rules)
        self._written_rules = b""
        self.position: int | None = None  # offset before which every record is finished; None: it is inactive
        self.committed: int | None = None  # last position that is committed
        self.learned_until = 0  # records before this offset are learned already
        self.warm = range(0)  # offsets of its warm-up: nothing is written about records before its end
        self.last_timestamp: int | None = None  # of the last scored record, milliseconds since 1970
        # Seconds, monotonic. None: not yet; it does not wait.
        self.generation_since: float | None = None  # when this instance first scored with the newest context
        self.late_since: float | None = None  # since then records wait for a context
        self._settings = settings
        self._zone = ZoneInfo(settings.timezone)
        self._batch_size = batch_size
        self._topic, self._feedback = topic, feedback
        self._topic_id = ids.get(topic or "", "")
        self._known = known
        memory = settings.detector_config().feedback_memory
        self._index_name = f"{INDEX}/{memory}"  # an index of another size has another name and is not restored
        self._restored: Restored | None = None
        self._written_schema = b""
        self._forget()

    def _forget(self) -> None:
        place = () if self._topic is None else (self._topic, self.number)
        self.index = RecordIndex(self._settings.detector_config().feedback_memory)  # records that labels can be about
        self.incidents = Incidents(self._settings.quiet, *place)
        config, by_records = _silence_config(self._settings), not self._follows_clock
        self.silence = Silence(config, *place, by_records=by_records, is_muted=self._is_muted)
        self._next = 0  # number of the next record that is learned
        self._regime = self._generation = 0  # of the last scored record

    @property
    def is_active(self) -> bool:
        """Whether it is restored; records that arrive before that are read again."""
        return self.position is not None

    # -- records -------------------------------------------------------------------------------------------------

    def take(self, item: Pending, now: float) -> bool:
        """Take the next record; True when another batch waits for `next_batch`. One that was taken before is left out.

        now: seconds, monotonic.
        """
        if self.position is None or item.offset < self._expected(self.position):
            return False  # it began again after the record was fetched
        return self.waiting.add(item, now)

    def next_batch(self, now: float, most: Callable[[Pending], int | None] = lambda first: None) -> list[Pending]:
        """The first records that wait, so many that all are scored before any is learned; none if none wait.

        None, too, while a context is being built that they would have to wait for, and while it is inactive. now:
        seconds, monotonic. most: returns how many may be taken after this one, with it; None: a whole batch.
        """
        if self.detector is None or self.position is None:
            return []
        if self.detector.generation != self._generation:
            self._generation, self.generation_since = self.detector.generation, now
        if not len(self.waiting):
            return []
        n = min(len(self.waiting), most(self.waiting.items[0]) or self._batch_size, self.detector.room)
        if not self.detector.is_ready([item.key for item in self.waiting.items[:n]]):
            self.late_since = self.late_since or now
            return []
        self.late_since = None
        return self.waiting.take(n)

    def score(self, items: Sequence[Item], process: Process | None = None, now: int | None = None) -> Scored:
        """Score the next records, in order, and learn them; those before `learned_until` are only scored.

        process: scores and learns rows (n, d) in place of the detector's own method. now: milliseconds since 1970,
        after which none of them has arrived.
        """
        assert self.detector is not None
        assert self.schema is not None
        features = self.schema.features
        fields = [under_features(item.fields, features) for item in items]
        values = self.schema.rows(fields)
        missing = np.isnan(values).sum(axis=1)
        usable = missing < values.shape[1]
        windows = self._windows(items)
        passed = self._passed(items, windows, usable, missing)
        usable[list(passed)] = False
        chosen = list(compress(items, usable.tolist()))
        windows = {at: windows[i] for at, i in enumerate(np.flatnonzero(usable).tolist()) if i in windows}
        rows, keys, offsets = values[usable], [item.key for item in chosen], [item.offset for item in chosen]
        n_again, first, opened = bisect_left(offsets, self.learned_until), self._next, len(self.incidents)
        seen = self._with_places(rows, chosen)
        between: dict[int, list[int]] = {}  # by place: records before it that are passed over
        for i in passed if self.schema.counters else ():
            if items[i].offset >= self.learned_until:
                between.setdefault(int(usable[:i].sum()), []).append(i)
        skipped = {at: (values[its], [items[i].key for i in its]) for at, its in between.items()}
        columns = self._columns(seen, keys, offsets, windows, skipped, process)
        muted = [at for at in np.flatnonzero(columns.outlier).tolist() if self.muted.has(keys[at])]
        columns = columns.with_alerts((), muted)
        results = results_of(
            columns,
            self.detector.model.name,
            self.schema,
            list(compress(fields, usable.tolist())),
            missing[usable].tolist(),
            self._sources(chosen),
            keys,
        )
        for at in muted:
            results[at]["muted"] = True
        before_rules = columns.outlier
        columns = self._ruled(columns, results, rows, keys, offsets, windows)
        closed: list[Notice] = []
        again, new = slice(0, n_again), slice(n_again, None)
        if n_again:  # they belong to incidents, but change nothing
            self.incidents.copy().follow(results[again], columns.part(again), keys[again], offsets[again], first)
        if n_again < len(rows):
            closed = self.incidents.follow(results[new], columns.part(new), keys[new], offsets[new], first)
        if items:
            self.position, self.last_timestamp = items[-1].offset + 1, items[-1].timestamp
        of_usable = iter(results)
        return Scored(
            [next(of_usable) if is_usable else passed.get(i) for i, is_usable in enumerate(usable.tolist())],
            closed,
            columns,
            rows,
            seen,
            keys,
            usable,
            before_rules,
            missing,
            len(self.incidents) - opened + len(closed),
            self._new_regimes(results, offsets),
            self._follow_silence(items, now) if self.silence.is_on or self.silence.has_news else [],
        )

    def _columns(
        self,
        rows: Float,
        keys: list[Key],
        offsets: list[int],
        windows: Mapping[int, Open],
        skipped: Mapping[int, tuple[Float, list[Key]]],
        process: Process | None,
    ) -> Results:
        """Score rows (k, d) and learn them, but those before `learned_until` and those in windows without learning.

        One that is not learned is scored by itself, so that nothing depends on how records are split over calls.
        skipped: by place, rows and keys of records before it that are not even scored; counters go on from them.
        """
        assert self.detector is not None
        n, n_again = len(rows), bisect_left(offsets, self.learned_until)
        is_indexed = process is None
        score, process = self.detector.score_rows, process or self.detector.process
        if process != self.detector.process and skipped:  # it needs all of its rows at once
            its_rows, its_keys = zip(*skipped.values(), strict=True)
            skipped = {len(rows): (np.concatenate(its_rows), [key for some in its_keys for key in some])}
        if process == self.detector.score_apart:  # it never learns
            return process(rows, keys)
        alone = {at for at in windows if at >= n_again and _skips(windows[at], "learning")}
        parts = [score(rows[:n_again], keys[:n_again])] if n_again else []
        start = n_again
        for stop in sorted({*alone, *skipped, n}):
            if stop > start or (stop == n and not parts):
                for number, at in enumerate(range(start, stop) if is_indexed else (), self._next):
                    self.index.add(number, offsets[at], keys[at])
                parts.append(process(rows[start:stop], keys[start:stop]))
                self._next += stop - start
            if stop in skipped:
                self.detector.pass_over(*skipped[stop])
            start = stop
            if stop in alone:
                start = stop + 1
                parts.append(score(rows[stop:start], keys[stop:start]))
                self.detector.pass_over(rows[stop:start], keys[stop:start])
        return Results.concatenate(parts)

    def _follow_silence(self, items: Sequence[Item], now: int | None) -> list[Notice]:
        """A record that cannot be read is none: a notice is written like the record that it comes before."""
        records = [
            (one.key, one.offset, self._time_of(one) if one.timestamp is None else known_time(one.timestamp))
            for one in items
            if one.error is None and one.offset >= self.learned_until
        ]
        n_warm = bisect_left([offset for _, offset, _ in records], self.warm.stop)
        notices = self.silence.follow(records[:n_warm], now, is_told=False) if n_warm else []
        return notices + self.silence.follow(records[n_warm:], now)

    def _is_muted(self, key: Key, time: int) -> bool:
        """Whether nobody wants an alert of silence of a key (None: of the whole partition) at this time."""
        opened = self.rules.now.open_windows([time], [key])
        return self.muted.has(key) or (opened is not None and _skips(opened[0], "alerts"))

    # -- rules and maintenance -------------------------------------------------------------------------------

    def set_rules(self, rules: Rules) -> bool:
        """Let these rules hold from the next record on, with the windows that feedback has told of; False: they do."""
        told = self.rules.now.told
        return self.rules.change(Rules(rules.rules, rules.windows, told), self.position or 0)

    def _windows(self, items: Sequence[Item]) -> dict[int, Open]:
        """By place: the windows of maintenance that records are in."""
        found: dict[int, Open] = {}
        for part, rules in self.rules.parts([item.offset for item in items]):
            if not rules.windows and not rules.told:
                continue
            its = items[part]
            opened = rules.open_windows(list(map(self._time_of, its)), [item.key for item in its])
            found |= {at: one for at, one in enumerate(opened or (), part.start) if one}
        return found

    def _with_places(self, rows: Float, items: Sequence[Item]) -> Float:
        """Rows as the detector takes them: with the places of these records in its cycles."""
        names = self._settings.time_features
        if not names:
            return rows
        places = [places_at(self._time_of(item), names, self._zone) for item in items]
        return np.column_stack([rows, np.reshape(places, (len(items), len(cycles_of(names))))])

    def _time_of(self, item: Item) -> int | None:
        field = self._settings.time
        time = None if field is None else to_milliseconds(look_up(item.fields, field))
        return known_time(item.timestamp if time is None else time)

    def _passed(
        self, items: Sequence[Item], windows: Mapping[int, Open], usable: NDArray[np.bool_], missing: NDArray[np.int64]
    ) -> dict[int, Result]:
        """By place: the results of records that are neither scored nor learned, because of maintenance."""
        assert self.detector is not None
        found: dict[int, Result] = {}
        for at, opened in windows.items():
            if usable[at] and _skips(opened, "alerts") and _skips(opened, "learning"):
                about = {"status": MAINTENANCE, "suppressed": opened[0].name}
                sources = self._sources([items[at]])
                source = None if sources is None else sources[0]
                found[at] = nothing(int(missing[at]), self.detector.model.name, source) | about
        return found

    def _ruled(
        self,
        columns: Results,
        results: list[Result],
        rows: Float,
        keys: list[Key],
        offsets: list[int],
        windows: Mapping[int, Open],
    ) -> Results:
        """Results of records, and `results` likewise, with the alerts that rules and windows leave, and force."""
        assert self.schema is not None
        without, forcing = [], []
        for part, rules in self.rules.parts(offsets):
            if not rules.rules and not windows:
                continue
            outside = rules.outside(rows[part], keys[part], self.schema)
            at_rules = {at + part.start: found for at, found in outside.items()}
            alerts = np.flatnonzero(columns.outlier[part]) + part.start
            for at in sorted({*at_rules, *alerts.tolist()}):
                result, name = results[at], None
                if _skips(windows.get(at, ()), "alerts"):
                    name = windows[at][0].name
                elif self.muted.has(keys[at]):
                    continue
                elif at in at_rules:
                    forced(result, at_rules[at], rows[at], self.schema, DetectorConfig.reasons)
                    forcing.append(at)
                    continue
                else:
                    name = rules.suppressing(result, keys[at])
                if name is not None and result["outlier"]:
                    suppressed(result, name)
                    without.append(at)
        return columns.with_alerts(forcing, without)

    def skip(self, items: Sequence[Item]) -> None:
        """These records, which come next, are finished without a score."""
        if items:
            self.position = items[-1].offset + 1

    def _expected(self, position: int) -> int:
        return self.waiting.items[-1].offset + 1 if len(self.waiting) else position

    def _sources(self, items: Sequence[Item]) -> list[Source] | None:
        if self._topic is None:
            return None
        return [(self._topic, self.number, item.offset, item.timestamp) for item in items]

    def _new_regimes(self, results: Sequence[Result], offsets: Sequence[int]) -> list[tuple[int, int]]:
        found = []
        for result, offset in zip(results, offsets, strict=True):
            if result["regime"] > max(self._regime, 1):  # the first is no change
                found.append((offset, result["regime"]))
            self._regime = result["regime"]
        return found

    # -- labels --------------------------------------------------------------------------------------------------

    def label(self, at: int, label: Label, exists: Callable[[int, int], bool]) -> None:
        """Queue a label, `at` an offset of its topic, until its record is scored. Raises RecordError.

        exists: whether the input has a record at (partition, offset); called only for offsets from `position` on.
        """
        is_ahead = label.offset is not None and (self.position is None or label.offset >= self.position)
        if label.offset is not None and is_ahead and not exists(self.number, label.offset):
            where = f"{self._topic}[{self.number}]@{label.offset}"
            raise RecordError(BAD_FEEDBACK, f"there is no record {where} yet; a label must come after its record")
        if label.is_about_key and label.outlier and self.muted.is_full:
            raise RecordError(BAD_FEEDBACK, f"{MOST_MUTED:,} keys are muted by labels; end that for some first")
        self.labels.add(at, label)

    def due_labels(self) -> list[int]:
        """The own offsets of the labels that are due, in the order in which they are taken."""
        return [] if self.detector is None else self.labels.due(self.position)

    def apply_labels(self, most: int | None = None) -> DueLabels:
        """Let the labels that are due, or `most` of them, take effect before the next record is scored."""
        assert self.detector is not None
        due = self.labels.take_due(self.index, self.position, most)
        for key, muted in due.mutes:
            self.muted.set(key, muted)
        if due.windows or due.cancelled:
            told = in_zone(due.windows, self._settings.timezone)
            self.rules.change(self.rules.now.telling(told, due.cancelled), self.position or 0)
        outlier = np.array([is_outlier for _, _, is_outlier in due.labels], dtype=bool)
        changed = self.detector.feedback(np.array(due.numbers, dtype=np.int64), outlier)
        return replace(due, new_verdicts=changed)

    # -- state ---------------------------------------------------------------------------------------------------

    def restore(self, restored: Restored) -> None:
        """Continue from `restored`; `begin` reads most of its entries. Raises DamagedStateError."""
        self._restored = restored
        self.position, self.committed = restored.start, restored.committed
        self.learned_until = restored.learned_until
        self.warm = restored.warm
        self._topic_id = restored.topic_id or self._topic_id  # perhaps the id of a topic that was deleted
        if self._feedback is not None:
            self.labels.recover(restored.entries, LABELS)
            self.labels.begin(restored.feedback_start)
            self.muted.recover(restored.entries, MUTED)
        if RULES in restored.entries:
            given, self._written_rules = self.rules.now, restored.entries[RULES]
            self.rules = RulesLog.decode(self._written_rules)
            self.set_rules(given)

    def begin(self, first: Detector, schema: Schema) -> None:
        """Score from now on with these features: with a copy of the detector `first`, or with the restored state.

        Raises StateError if that belongs to other features, another model or incompatible settings, or is damaged.
        """
        restored = self._restored or Restored(0)
        entries, detector = restored.entries, first.for_partition(self.number)
        if SCHEMA in entries:
            self._check_schema(entries[SCHEMA], schema)
            detector.recover(_under(entries, DETECTOR), self._known)
            if any(name.startswith(f"{self._index_name}/") for name in entries):
                self.index.recover(entries, self._index_name, detector.records)
            self.incidents.recover(_under(entries, INCIDENTS))
            self.silence.recover(_under(entries, SILENCE))
            self._written_schema = entries[SCHEMA]
            self._regime = detector.summary.regime
        kept = f"{self._index_name}/"
        old = {name for name in entries if name.startswith(f"{INDEX}/") and not name.startswith(kept)}
        self._restored = replace(restored, entries={}, stale=restored.stale | old)  # the entries are in the detector
        self.detector, self.schema, self._known, self._next = detector, schema, None, detector.records

    def discard_state(self) -> None:
        """Forget the restored state, before `begin`: its entries will be deleted, and learning starts again."""
        assert self._restored is not None
        stale = frozenset(self._restored.entries) | self._restored.stale
        stale -= {LABELS, MUTED, RULES}  # labels that took effect are not applied again
        self._restored = Restored(self._restored.start, stale=stale)
        self.learned_until, self._written_schema = 0, b""
        self._forget()

    def changes(self) -> Entries:
        """The changes since the last call, as entries of a compacted log; none if there was no record or label."""
        if self.position is None:
            return {}
        entries: Entries = {}
        if self.detector is not None and self.schema is not None:
            entries |= _prefixed(self.detector.changes(), DETECTOR)
            entries |= self.index.changes(self._index_name)
            entries |= _prefixed(self.incidents.changes(), INCIDENTS)
            entries |= _prefixed(self.silence.changes(), SILENCE)
            entries |= self._schema_changes(self.schema) | self._rules_changes()
        if self._feedback is not None:
            entries |= self.labels.changes(LABELS) | self.muted.changes(MUTED)
        if entries or self.position != self.committed:
            until = max(self.position, self.learned_until)
            position = Position(until, self._topic_id, self._feedback_id, until < self.warm.stop)
            entries[POSITION] = position.encode()
        if entries and self._restored is not None and self._restored.stale:
            entries = {**dict.fromkeys(self._restored.stale), **entries}
            self._restored = replace(self._restored, stale=frozenset())
        return entries

    def _schema_changes(self, schema: Schema) -> Entries:
        names = {"categorical": sorted(schema.categorical), "counters": sorted(schema.counters)}
        value = orjson.dumps({"features": schema.features, **names, "lags": self._settings.lags})
        if value == self._written_schema:
            return {}
        self._written_schema = value
        return {SCHEMA: value}

    def _rules_changes(self) -> Entries:
        if not self._written_rules and self.rules.now == Rules():
            return {}
        value = self.rules.encode()
        if value == self._written_rules:
            return {}
        self._written_rules = value
        return {RULES: value}

    def _check_schema(self, value: bytes, schema: Schema) -> None:
        try:
            stored = orjson.loads(value)
            features, lags = tuple(stored["features"]), int(stored["lags"])
            categorical, counters = set(stored["categorical"]), set(stored.get("counters", ()))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"{SCHEMA} is not readable ({error})") from None
        if lags != self._settings.lags:
            raise StateError(f"the state was written with lags={lags}, now it is {self._settings.lags}")
        for what, old, new in (
            ("features", features, schema.features),
            ("categorical fields", sorted(categorical), sorted(schema.categorical)),
            ("counters", sorted(counters), sorted(schema.counters)),
        ):
            if old != new:
                raise StateError(f"the state has {what} {shown(old) or 'none'}, now they are {shown(new) or 'none'}")


def rules_of(settings: RecordFlags) -> Rules:
    """The rules and windows of maintenance that the settings have."""
    return Rules(settings.all_rules, settings.windows)


def _silence_config(settings: RecordFlags) -> SilenceConfig:
    least_ms = round(1000 * seconds_of(settings.silence_min))
    return SilenceConfig(settings.silence, least_ms, settings.silence_of, settings.keys)


def _skips(windows: Open, what: str) -> bool:
    return any(one.skip in ("both", what) for one in windows)


def _under(entries: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    prefix = name + "/"
    return {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}


def _prefixed(entries: Entries, name: str) -> Entries:
    return {f"{name}/{key}": value for key, value in entries.items()}


# --- the detector that every partition begins with a copy of


def first_detector(
    settings: ServiceSettings, model: Model, schema: Schema, executor: Executor | None = None
) -> Detector:
    """The detector before the first record; it knows the seed context, which is encoded once for all partitions.

    executor: encodes contexts. Raises SchemaError when the model cannot take as many features, or the seed context has
    none of them.
    """
    detector = _detector(settings, model, schema, executor)
    rows = _seed(settings, schema)
    if rows is not None:
        detector.seed_context(rows)
    return detector


def check_schema(settings: ServiceSettings, model: Model, schema: Schema) -> None:
    """Raise the errors of `first_detector`, without its work."""
    _detector(settings, model, schema, None)
    _seed(settings, schema)


def _detector(settings: ServiceSettings, model: Model, schema: Schema, executor: Executor | None) -> Detector:
    config, columns = settings.detector_config(), (schema.categorical_columns, schema.counter_columns)
    return Detector(model, len(schema.features), config, executor, *columns)


def _seed(settings: ServiceSettings, schema: Schema) -> np.ndarray | None:
    path = settings.seed_context
    if path is None:
        return None
    rows = read_rows(path, schema)
    if len(rows) < LEAST_CONTEXT:
        raise SchemaError(f"the seed context {path} has {len(rows)} usable rows; at least {LEAST_CONTEXT} are needed")
    return rows
