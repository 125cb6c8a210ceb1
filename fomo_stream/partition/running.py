"""The records of a partition with known features, in one straight path: scored, learned, judged. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import orjson
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, SingleEntry
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.errors import DamagedStateError, StateError
from fomo_stream.partition.gaps import SilenceConfig
from fomo_stream.partition.incidents import Incidents, Notice
from fomo_stream.partition.labels import DueLabels, RecordIndex
from fomo_stream.partition.partition import INDEX, RULES, Partition, Waiting
from fomo_stream.partition.record import Item, Pending
from fomo_stream.partition.result_builder import MAINTENANCE, ResultBuilder
from fomo_stream.partition.rules import OpenWindows, Rules, skips
from fomo_stream.partition.silence import Silence
from fomo_stream.records.derivations import parse_derivations
from fomo_stream.records.derived import DerivedFeatures
from fomo_stream.records.result import Result
from fomo_stream.records.schema import Schema, look_up, shown_names
from fomo_stream.records.times import cycles_of, known_time, places_at, to_milliseconds
from fomo_stream.records.writer_schema import with_current_names
from fomo_stream.settings.rule_spec import in_zone

DETECTOR, SCHEMA, INCIDENTS, SILENCE, DERIVED = "detector", "schema", "incidents", "silence", "derived"
__all__ = ["MAINTENANCE", "Process", "Running", "ScoredBatch"]

Float = NDArray[np.float64]
Process = Callable[[Float, Sequence[Key]], Results]  # scores rows (n, d), each with the key of its series


class ScoredBatch(NamedTuple):
    """The results of n records. k of them are scored, as they have a value of any feature."""

    results: list[Result | None]  # (n,) None: it has an error, or no value of any feature
    closed: list[Notice]  # incidents that have ended, in the order of the records that ended them
    columns: Results  # (k,)
    rows: Float  # (k, d) values of the features
    detector_rows: Float  # (m, ...) the same, in the form for the detector
    keys: list[Key]  # (k,) series
    usable: NDArray[np.bool_]  # (n,) True for these k records
    before_rules: NDArray[np.bool_]  # (k,) outliers before rules and windows of maintenance
    missing: NDArray[np.int64]  # (n,) features without a value
    opened: int  # incidents that have begun
    shifts: int  # announced lasting shifts
    silence: list[Notice]  # of silence, in the order of the records that they precede

    @property
    def notices(self) -> list[Notice]:
        """Return the ends of incidents and the notices of silence, in the order of records."""
        return sorted(self.closed + self.silence, key=lambda notice: notice.offset or 0)


class Running(Partition):
    """A partition that scores: with a copy of the detector `first`, or with the restored state.

    A result depends on the records and labels before, never on how they are split over calls. former: an earlier
    detector of this partition, whose contexts need not be encoded again. follows_clock: silence is also noticed between
    two records (`Silence.poll`). Raises StateError if the state belongs to other features, another model or
    incompatible settings, or is damaged.
    """

    def __init__(
        self,
        waiting: Waiting,
        first: Detector,
        schema: Schema,
        *,
        former: Detector | None = None,
        follows_clock: bool = False,
    ) -> None:
        super().__init__(**waiting.handed_over())
        config, place = self.config, () if self.topic is None else (self.topic, self.number)
        memory = config.detector_config().feedback_memory
        self.detector, self.schema = first.staggered(self.number), schema
        self.derived = DerivedFeatures(parse_derivations(config.derive), config.keys, schema.marks)
        self.index = RecordIndex(memory)  # records that labels can be about
        self.incidents = Incidents(config.quiet, *place)
        self.silence = Silence(
            SilenceConfig(config.silence, config.least_silence_ms, config.silence_of, config.keys),
            *place,
            by_records=not follows_clock,
            is_muted=self._is_muted,
        )
        # Seconds, monotonic. None: not yet, and it does not wait.
        self.generation_since: float | None = None  # when this instance first scored with the newest context
        self.late_since: float | None = None  # since then records wait for a context
        self.batch: list[Pending] = []  # the records of the last step
        self._zone = ZoneInfo(config.timezone)
        self._has_learned = True  # since the last call of `changes`
        self._index_name = f"{INDEX}/{memory}"  # an index of another size has another name and is not restored
        self._schema_log = SingleEntry()
        self._generation = 0  # of the last scored record
        self._recover(self.restored.entries, former)
        self._next = self.detector.records  # number of the next record that is learned
        source = None if self.topic is None else (self.topic, self.number)
        self._builder = ResultBuilder(self.rules, self.muted, self.incidents, schema, self.detector.model.name, source)

    def _recover(self, entries: Mapping[str, bytes], former: Detector | None) -> None:
        if SCHEMA in entries:
            self._check_schema(self._schema_log.recover(entries, SCHEMA), self.schema)
            self.detector.recover(_entries_under(entries, DETECTOR), former)
            if any(name.startswith(f"{self._index_name}/") for name in entries):
                self.index.recover(entries, self._index_name, self.detector.records)
            self.incidents.recover(_entries_under(entries, INCIDENTS))
            self.silence.recover(_entries_under(entries, SILENCE))
            self.derived.recover(_entries_under(entries, DERIVED))
        kept = f"{self._index_name}/"
        old = {name for name in entries if name.startswith(f"{INDEX}/") and not name.startswith(kept)}
        # the entries are in the detector
        self.restored = replace(self.restored, entries={}, stale=self.restored.stale | old)

    # -- records -------------------------------------------------------------------------------------------------

    def step(
        self, now: float, clock: int | None = None, max_records: Callable[[Pending], int | None] = lambda first: None
    ) -> ScoredBatch | None:
        """Score and learn the first waiting records: as many as need no context that is being built, see
        `Detector.n_ready`.

        None: without waiting records, inactive, or the context for the records is not built yet. now: seconds,
        monotonic; clock: milliseconds since 1970. max_records: returns how many records may be taken together,
        from this one on; None: a whole batch. `batch` has the records, also after an error.
        """
        self.batch = self.waiting.items[:1]  # if an error prevents the choice of a batch, the first record is to blame
        self.batch = items = self._next_batch(now, max_records)
        return self.score(items, now=clock) if items else None

    def _next_batch(self, now: float, max_records: Callable[[Pending], int | None]) -> list[Pending]:
        if self.position is None:
            return []
        if self.detector.generation != self._generation:
            self._generation, self.generation_since = self.detector.generation, now
        if not len(self.waiting):
            return []
        self.batch = self.waiting.items[: max_records(self.waiting.items[0]) or self.batch_size]
        if not (n := self.detector.n_ready([item.key for item in self.batch])):
            self.late_since = self.late_since or now
            return []
        self.late_since = None
        return self.waiting.take(n)

    def score(self, items: Sequence[Item], process: Process | None = None, now: int | None = None) -> ScoredBatch:
        """Score the next records, in order, and learn them; those before `learned_until` are only scored.

        process: scores and learns rows (n, d) instead of the detector's own method. now: milliseconds since 1970; all
        records have arrived before.
        """
        self._has_learned = True
        fields = self._with_derived(items)
        values = self._values(fields)
        missing = np.isnan(values).sum(axis=1)
        usable = missing < values.shape[1]
        windows = self._windows(items)
        silenced = {i: opened for i, opened in windows.items() if skips(opened, "alerts") and usable[i]}
        passed = {i: opened for i, opened in silenced.items() if skips(opened, "learning")}
        usable[list(passed)] = False
        chosen = list(compress(items, usable.tolist()))
        windows = {row: windows[i] for row, i in enumerate(np.flatnonzero(usable).tolist()) if i in windows}
        rows, keys, offsets = values[usable], [item.key for item in chosen], [item.offset for item in chosen]
        n_again, first, opened = bisect_left(offsets, self.learned_until), self._next, len(self.incidents)
        detector_rows, shifts = self._with_places(rows, chosen), self.detector.shifts
        between: dict[int, list[int]] = {}  # by row: skipped records before it
        for i in passed if self.schema.counters else ():
            if items[i].offset >= self.learned_until:
                between.setdefault(int(usable[:i].sum()), []).append(i)
        skipped = {
            row: (self._with_places(values[numbers], [items[i] for i in numbers]), [items[i].key for i in numbers])
            for row, numbers in between.items()
        }
        columns = self._columns(detector_rows, keys, offsets, windows, skipped, process)
        of_chosen = keys, offsets, list(compress(fields, usable.tolist())), missing[usable].tolist()
        judged = self._builder.judge(columns, rows, chosen, *of_chosen, windows)
        closed = self._builder.follow(judged, keys, offsets, n_again, first)
        if items:
            self.position, self.last_timestamp = items[-1].offset + 1, items[-1].timestamp
        of_usable = iter(judged.results)
        of_passed = {i: self._builder.passed(items[i], int(missing[i]), opened) for i, opened in passed.items()}
        return ScoredBatch(
            [next(of_usable) if is_usable else of_passed.get(i) for i, is_usable in enumerate(usable.tolist())],
            closed,
            judged.columns,
            rows,
            detector_rows,
            keys,
            usable,
            judged.before_rules,
            missing,
            len(self.incidents) - opened + len(closed),
            self.detector.shifts - shifts,
            self._follow_silence(items, now) if self.silence.is_on or self.silence.has_news else [],
        )

    def _values(self, fields: Sequence[Mapping[str, Any]]) -> Float:
        """Return the values (n, d) of features in the fields of records."""
        values = self.schema.rows(fields)
        if self.derived:
            self.derived.limit(values, self.schema.features)
        return values

    def rows_of(self, items: Sequence[Item]) -> tuple[Float, list[Key]]:
        """Return the rows (k, ...) of records for the detector, and their keys, without records that have no value."""
        values = self._values(self._with_derived(items))
        usable = np.asarray(~np.isnan(values).all(axis=1), dtype=bool)
        chosen = list(compress(items, usable.tolist()))
        return self._with_places(values[usable], chosen), [item.key for item in chosen]

    def _columns(
        self,
        rows: Float,
        keys: list[Key],
        offsets: list[int],
        windows: Mapping[int, OpenWindows],
        skipped: Mapping[int, tuple[Float, list[Key]]],
        process: Process | None,
    ) -> Results:
        """Score rows (k, d) and learn them, but those before `learned_until` and those in windows without learning.

        A row that is not learned is scored by itself, so that the results do not depend on how records are split over
        calls. skipped: by row, rows and keys of records before it that are not even scored; the growth of counters
        continues from them.
        """
        n, n_again = len(rows), bisect_left(offsets, self.learned_until)
        is_indexed = process is None
        score, process = self.detector.score_rows, process or self.detector.process
        if process == self.detector.score_independent:  # it never learns
            return process(rows, keys)
        alone = {row for row in windows if row >= n_again and skips(windows[row], "learning")}
        parts = [score(rows[:n_again], keys[:n_again])] if n_again else []
        start = n_again
        if process != self.detector.process and (alone or skipped):  # it needs all rows of the warm-up together
            learned = [row for row in range(n) if row not in alone][: self.detector.config.min_context]
            start = learned[-1] + 1 if len(learned) == self.detector.config.min_context else n
            passed = sorted(row for row in alone if row < start)
            results = {row: score(rows[[row]], [keys[row]]) for row in passed}
            together = process(rows[learned], [keys[row] for row in learned])
            results |= {row: together.part(slice(i, i + 1)) for i, row in enumerate(learned)}
            parts.append(Results.concatenate([results[row] for row in range(start)]) if start else together)
            before = [part for row, part in skipped.items() if row < start]
            for part in (*before, (rows[passed], [keys[row] for row in passed])):
                self.detector.skip(*part)
            self._next += len(learned)
            process, alone = self.detector.process, {row for row in alone if row >= start}
            skipped = {row: part for row, part in skipped.items() if row >= start}
        for stop in sorted({*alone, *skipped, n}):
            if stop > start or (stop == n and not parts):
                for number, row in enumerate(range(start, stop) if is_indexed else (), self._next):
                    self.index.add(number, offsets[row], keys[row])
                parts.append(process(rows[start:stop], keys[start:stop]))
                self._next += stop - start
            if stop in skipped:
                self.detector.skip(*skipped[stop])
            start = stop
            if stop in alone:
                start = stop + 1
                parts.append(score(rows[stop:start], keys[stop:start]))
                self.detector.skip(rows[stop:start], keys[stop:start])
        return Results.concatenate(parts)

    def _with_derived(self, items: Sequence[Item]) -> list[Mapping[str, Any]]:
        """Return the fields of records, with their derived features.

        A record counts for those after it even if it is neither scored nor learned; one before `learned_until` has.
        """
        names = (*self.schema.features, *self.derived.inputs)
        fields = [with_current_names(item.fields, names) for item in items]
        if not self.derived:
            return fields
        sound = [i for i, item in enumerate(items) if item.error is None]
        n_again = bisect_left([items[i].offset for i in sound], self.learned_until)
        for part, learn in ((sound[:n_again], False), (sound[n_again:], True)):
            keys, times = [items[i].key for i in part], [self._time_of(items[i]) for i in part]
            extended = self.derived.follow([fields[i] for i in part], keys, times, learn)
            for i, with_derived in zip(part, extended, strict=True):
                fields[i] = with_derived
        return fields

    def _follow_silence(self, items: Sequence[Item], now: int | None) -> list[Notice]:
        """Return the notices of silence. Records with an error do not count: a notice needs the fields of a record."""
        records = [
            (item.key, item.offset, self._time_of(item) if item.timestamp is None else known_time(item.timestamp))
            for item in items
            if item.error is None and item.offset >= self.learned_until
        ]
        n_warm = bisect_left([offset for _, offset, _ in records], self.warm.stop)
        notices = self.silence.follow(records[:n_warm], now, is_notified=False) if n_warm else []
        return notices + self.silence.follow(records[n_warm:], now)

    def _is_muted(self, key: Key, time: int) -> bool:
        """Return whether silence of a key (None: of the whole partition) is muted at this time."""
        opened = self.rules.now.open_windows([time], [key])
        return self.muted.has(key) or (opened is not None and skips(opened[0], "alerts"))

    def _windows(self, items: Sequence[Item]) -> dict[int, OpenWindows]:
        """Return the open windows of maintenance of records, by position."""
        open_windows: dict[int, OpenWindows] = {}
        for part, rules in self.rules.parts([item.offset for item in items]):
            if not rules.windows and not rules.from_feedback:
                continue
            times = [None if item.error is not None else self._time_of(item) for item in items[part]]
            opened = rules.open_windows(times, [item.key for item in items[part]])
            open_windows |= {i: windows for i, windows in enumerate(opened or (), part.start) if windows}
        return open_windows

    def _with_places(self, rows: Float, items: Sequence[Item]) -> Float:
        """Return rows for the detector: with the positions of the records in its cycles, and times for counters."""
        names = self.config.time_features
        by_time = self.config.time is not None and bool(self.schema.counters)
        if not names and not by_time:
            return rows
        times = [self._time_of(item) for item in items]
        places = [places_at(time, names, self._zone) if names else [] for time in times]
        columns = [rows, np.reshape(places, (len(items), len(cycles_of(names)) if names else 0))]
        if by_time:
            columns.append(np.array([np.nan if time is None else time / 1000.0 for time in times])[:, None])
        return np.column_stack(columns)

    def _time_of(self, item: Item) -> int | None:
        field = self.config.time
        time = None if field is None else to_milliseconds(look_up(item.fields, field), self._zone)
        return known_time(item.timestamp if time is None else time)

    # -- labels --------------------------------------------------------------------------------------------------

    def due_labels(self) -> list[int]:
        """Return the own offsets of the due labels, in the order in which they are taken."""
        return self.labels.due(self.position)

    def apply_labels(self, max_labels: int | None = None) -> DueLabels:
        """Let the due labels, or at most `max_labels`, take effect before the next record is scored."""
        due = self.labels.take_due(self.index, self.position, max_labels)
        for key, muted in due.mutes:
            self.muted.set(key, muted)
        if due.windows or due.cancelled:
            announced = in_zone(due.windows, self.config.timezone)
            self.rules.change(self.rules.now.with_feedback(announced, due.cancelled), self.position or 0)
        outlier = np.array([is_outlier for _, _, is_outlier in due.labels], dtype=bool)
        self._has_learned = True
        changed = self.detector.feedback(np.array(due.numbers, dtype=np.int64), outlier)
        return replace(due, new_verdicts=changed)

    # -- state ---------------------------------------------------------------------------------------------------

    def _learned(self) -> Entries:
        # A partition without new records is asked at every commit of the others, too.
        entries = _prefixed(self.detector.changes(), DETECTOR) if self._has_learned else {}
        self._has_learned = False
        entries |= self.index.changes(self._index_name)
        entries |= _prefixed(self.incidents.changes(), INCIDENTS)
        entries |= _prefixed(self.silence.changes(), SILENCE)
        entries |= _prefixed(self.derived.changes(), DERIVED)
        names = {"categorical": sorted(self.schema.categorical), "counters": sorted(self.schema.counters)}
        schema = orjson.dumps({"features": self.schema.features, **names, "lags": self.config.lags})
        rules = self.rules.encode() if self.rules_log.value or self.rules.now != Rules() else b""
        return entries | self._schema_log.changes(SCHEMA, schema) | self.rules_log.changes(RULES, rules)

    def _check_schema(self, value: bytes, schema: Schema) -> None:
        try:
            stored = orjson.loads(value)
            features, lags = tuple(stored["features"]), int(stored["lags"])
            categorical, counters = set(stored["categorical"]), set(stored.get("counters", ()))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"{SCHEMA} is not readable ({error})") from None
        if lags != self.config.lags:
            raise StateError(f"the state was written with lags={lags}, now it is {self.config.lags}")
        for what, old, new in (
            ("features", features, schema.features),
            ("categorical fields", sorted(categorical), sorted(schema.categorical)),
            ("counters", sorted(counters), sorted(schema.counters)),
        ):
            if old != new:
                texts = [shown_names(names) or "none" for names in (old, new)]
                raise StateError(f"the state has {what} {texts[0]}, now they are {texts[1]}")


def _entries_under(entries: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    prefix = name + "/"
    return {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}


def _prefixed(entries: Entries, name: str) -> Entries:
    return {f"{name}/{key}": value for key, value in entries.items()}
