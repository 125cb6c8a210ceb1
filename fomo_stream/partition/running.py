"""One partition's records, in one straight path: scored, learned, judged; its features are known. Pure."""

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

from fomo_stream.detector.changelog import Entries, Entry
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.errors import DamagedStateError, StateError
from fomo_stream.partition.gaps import SilenceConfig
from fomo_stream.partition.incidents import Incidents, Notice
from fomo_stream.partition.labels import DueLabels, RecordIndex
from fomo_stream.partition.partition import INDEX, RULES, Partition, Waiting
from fomo_stream.partition.record import Item, Pending
from fomo_stream.partition.rules import Open, Rules, skips
from fomo_stream.partition.silence import Silence
from fomo_stream.partition.verdicts import MAINTENANCE, Verdicts
from fomo_stream.records.derivations import derivations_of
from fomo_stream.records.derived import Derived
from fomo_stream.records.result import Result
from fomo_stream.records.schema import Schema, look_up, shown
from fomo_stream.records.times import cycles_of, known_time, places_at, to_milliseconds
from fomo_stream.records.writer import under_features
from fomo_stream.settings.rules import in_zone

DETECTOR, SCHEMA, INCIDENTS, SILENCE, DERIVED = "detector", "schema", "incidents", "silence", "derived"
__all__ = ["MAINTENANCE", "Process", "Running", "Scored"]

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
    shifts: int  # lasting shifts that are announced
    silence: list[Notice]  # of silence, in the order of the records that they come before

    @property
    def notices(self) -> list[Notice]:
        """The ends of incidents and what is told of silence, in the order of records."""
        return sorted(self.closed + self.silence, key=lambda one: one.offset or 0)


class Running(Partition):
    """A partition that scores: with a copy of the detector `first`, or with the restored state.

    What it says of a record depends on the records and labels before it, never on how they are split over calls.
    known: a detector of the same partition, whose contexts need not be encoded again. follows_clock: silence is also
    noticed between two records (`Silence.look`). Raises StateError if the state belongs to other features, another
    model or incompatible settings, or is damaged.
    """

    def __init__(
        self,
        waiting: Waiting,
        first: Detector,
        schema: Schema,
        *,
        known: Detector | None = None,
        follows_clock: bool = False,
    ) -> None:
        super().__init__(**waiting.handed_over())
        config, place = self.config, () if self.topic is None else (self.topic, self.number)
        memory = config.detector_config().feedback_memory
        self.detector, self.schema = first.for_partition(self.number), schema
        self.derived = Derived(derivations_of(config.derive), config.keys, schema.marks)
        self.index = RecordIndex(memory)  # records that labels can be about
        self.incidents = Incidents(config.quiet, *place)
        self.silence = Silence(
            SilenceConfig(config.silence, config.least_silence_ms, config.silence_of, config.keys),
            *place,
            by_records=not follows_clock,
            is_muted=self._is_muted,
        )
        # Seconds, monotonic. None: not yet; it does not wait.
        self.generation_since: float | None = None  # when this instance first scored with the newest context
        self.late_since: float | None = None  # since then records wait for a context
        self.batch: list[Pending] = []  # the records of the last step
        self._zone = ZoneInfo(config.timezone)
        self._has_learned = True  # since the last call of `changes`
        self._index_name = f"{INDEX}/{memory}"  # an index of another size has another name and is not restored
        self._schema_log = Entry()
        self._generation = 0  # of the last scored record
        self._recover(self.restored.entries, known)
        self._next = self.detector.records  # number of the next record that is learned
        source = None if self.topic is None else (self.topic, self.number)
        self._verdicts = Verdicts(self.rules, self.muted, self.incidents, schema, self.detector.model.name, source)

    def _recover(self, entries: Mapping[str, bytes], known: Detector | None) -> None:
        if SCHEMA in entries:
            self._check_schema(self._schema_log.recover(entries, SCHEMA), self.schema)
            self.detector.recover(_under(entries, DETECTOR), known)
            if any(name.startswith(f"{self._index_name}/") for name in entries):
                self.index.recover(entries, self._index_name, self.detector.records)
            self.incidents.recover(_under(entries, INCIDENTS))
            self.silence.recover(_under(entries, SILENCE))
            self.derived.recover(_under(entries, DERIVED))
        kept = f"{self._index_name}/"
        old = {name for name in entries if name.startswith(f"{INDEX}/") and not name.startswith(kept)}
        # the entries are in the detector
        self.restored = replace(self.restored, entries={}, stale=self.restored.stale | old)

    # -- records -------------------------------------------------------------------------------------------------

    def step(
        self, now: float, clock: int | None = None, most: Callable[[Pending], int | None] = lambda first: None
    ) -> Scored | None:
        """Score and learn the first records that wait, so many that all are scored before any is learned.

        None: none wait, it is inactive, or a context is being built that they would have to wait for. now: seconds,
        monotonic; clock: milliseconds since 1970. most: returns how many may be taken after this one, with it; None: a
        whole batch. `batch` has the records, also if an error is raised.
        """
        self.batch = self.waiting.items[:1]  # the first is to blame if nothing can be taken
        self.batch = items = self._next_batch(now, most)
        return self.score(items, now=clock) if items else None

    def _next_batch(self, now: float, most: Callable[[Pending], int | None]) -> list[Pending]:
        if self.position is None:
            return []
        if self.detector.generation != self._generation:
            self._generation, self.generation_since = self.detector.generation, now
        if not len(self.waiting):
            return []
        n = min(len(self.waiting), most(self.waiting.items[0]) or self.batch_size, self.detector.ahead)
        self.batch = self.waiting.items[:n]
        if not self.detector.is_ready([item.key for item in self.batch]):
            self.late_since = self.late_since or now
            return []
        self.late_since = None
        return self.waiting.take(n)

    def score(self, items: Sequence[Item], process: Process | None = None, now: int | None = None) -> Scored:
        """Score the next records, in order, and learn them; those before `learned_until` are only scored.

        process: scores and learns rows (n, d) in place of the detector's own method. now: milliseconds since 1970,
        after which none of them has arrived.
        """
        self._has_learned = True
        fields = self._with_derived(items)
        values = self._values(fields)
        missing = np.isnan(values).sum(axis=1)
        usable = missing < values.shape[1]
        windows = self._windows(items)
        passed = {
            at: one for at, one in windows.items() if usable[at] and skips(one, "alerts") and skips(one, "learning")
        }
        usable[list(passed)] = False
        chosen = list(compress(items, usable.tolist()))
        windows = {at: windows[i] for at, i in enumerate(np.flatnonzero(usable).tolist()) if i in windows}
        rows, keys, offsets = values[usable], [item.key for item in chosen], [item.offset for item in chosen]
        n_again, first, opened = bisect_left(offsets, self.learned_until), self._next, len(self.incidents)
        seen, shifts = self._with_places(rows, chosen), self.detector.shifts
        between: dict[int, list[int]] = {}  # by place: records before it that are passed over
        for i in passed if self.schema.counters else ():
            if items[i].offset >= self.learned_until:
                between.setdefault(int(usable[:i].sum()), []).append(i)
        skipped = {
            at: (self._with_places(values[its], [items[i] for i in its]), [items[i].key for i in its])
            for at, its in between.items()
        }
        columns = self._columns(seen, keys, offsets, windows, skipped, process)
        judged = self._verdicts.judge(
            columns, rows, chosen, list(compress(fields, usable.tolist())), missing[usable].tolist(), windows
        )
        closed = self._verdicts.follow(judged, keys, offsets, n_again, first)
        if items:
            self.position, self.last_timestamp = items[-1].offset + 1, items[-1].timestamp
        of_usable = iter(judged.results)
        of_passed = {i: self._verdicts.passed(items[i], int(missing[i]), one) for i, one in passed.items()}
        return Scored(
            [next(of_usable) if is_usable else of_passed.get(i) for i, is_usable in enumerate(usable.tolist())],
            closed,
            judged.columns,
            rows,
            seen,
            keys,
            usable,
            judged.before_rules,
            missing,
            len(self.incidents) - opened + len(closed),
            self.detector.shifts - shifts,
            self._follow_silence(items, now) if self.silence.is_on or self.silence.has_news else [],
        )

    def _values(self, fields: Sequence[Mapping[str, Any]]) -> Float:
        """The values (n, d) of features in the fields of records."""
        values = self.schema.rows(fields)
        if self.derived:
            self.derived.limit(values, self.schema.features)
        return values

    def rows_of(self, items: Sequence[Item]) -> tuple[Float, list[Key]]:
        """The rows (k, ...) of records for the detector, and their keys. Those without a value are left out."""
        values = self._values(self._with_derived(items))
        usable = np.asarray(~np.isnan(values).all(axis=1), dtype=bool)
        chosen = list(compress(items, usable.tolist()))
        return self._with_places(values[usable], chosen), [item.key for item in chosen]

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
        n, n_again = len(rows), bisect_left(offsets, self.learned_until)
        is_indexed = process is None
        score, process = self.detector.score_rows, process or self.detector.process
        if process != self.detector.process and skipped:  # it needs all of its rows at once
            its_rows, its_keys = zip(*skipped.values(), strict=True)
            skipped = {len(rows): (np.concatenate(its_rows), [key for some in its_keys for key in some])}
        if process == self.detector.score_apart:  # it never learns
            return process(rows, keys)
        alone = {at for at in windows if at >= n_again and skips(windows[at], "learning")}
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

    def _with_derived(self, items: Sequence[Item]) -> list[Mapping[str, Any]]:
        """The fields of records, with their derived features.

        A record counts for those after it even if it is neither scored nor learned; one before `learned_until` has
        counted already.
        """
        names = (*self.schema.features, *self.derived.inputs)
        fields = [under_features(item.fields, names) for item in items]
        if not self.derived:
            return fields
        sound = [at for at, item in enumerate(items) if item.error is None]
        n_again = bisect_left([items[at].offset for at in sound], self.learned_until)
        for some, learn in ((sound[:n_again], False), (sound[n_again:], True)):
            keys, times = [items[at].key for at in some], [self._time_of(items[at]) for at in some]
            found = self.derived.follow([fields[at] for at in some], keys, times, learn)
            for at, one in zip(some, found, strict=True):
                fields[at] = one
        return fields

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
        return self.muted.has(key) or (opened is not None and skips(opened[0], "alerts"))

    def _windows(self, items: Sequence[Item]) -> dict[int, Open]:
        """By place: the windows of maintenance that records are in."""
        found: dict[int, Open] = {}
        for part, rules in self.rules.parts([item.offset for item in items]):
            if not rules.windows and not rules.told:
                continue
            its = items[part]
            times = [None if item.error is not None else self._time_of(item) for item in its]
            opened = rules.open_windows(times, [item.key for item in its])
            found |= {at: one for at, one in enumerate(opened or (), part.start) if one}
        return found

    def _with_places(self, rows: Float, items: Sequence[Item]) -> Float:
        """Rows as the detector takes them: with the places of these records in its cycles, and times for counters."""
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
        """The own offsets of the labels that are due, in the order in which they are taken."""
        return self.labels.due(self.position)

    def apply_labels(self, most: int | None = None) -> DueLabels:
        """Let the labels that are due, or `most` of them, take effect before the next record is scored."""
        due = self.labels.take_due(self.index, self.position, most)
        for key, muted in due.mutes:
            self.muted.set(key, muted)
        if due.windows or due.cancelled:
            told = in_zone(due.windows, self.config.timezone)
            self.rules.change(self.rules.now.telling(told, due.cancelled), self.position or 0)
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
                raise StateError(f"the state has {what} {shown(old) or 'none'}, now they are {shown(new) or 'none'}")


def _under(entries: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    prefix = name + "/"
    return {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}


def _prefixed(entries: Entries, name: str) -> Entries:
    return {f"{name}/{key}": value for key, value in entries.items()}
