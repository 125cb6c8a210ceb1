"""A detector whose features come and go: rows of dicts, frames and arrays, wider with each new feature.

A `Detector` has as many features as it began with. So with a new feature a wider one begins, and learns the last
records again, which have no value of the new feature.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain, compress
from math import isfinite, isnan
from numbers import Real
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fomo_stream.adapters.columns import (
    DATES,
    Columns,
    has_values,
    is_column,
    is_complete,
    is_frame,
    listed,
    note_of_misleading,
    warn,
)
from fomo_stream.adapters.named_reasons import Explanation
from fomo_stream.detector.changelog import StoredEntries
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.errors import SchemaError
from fomo_stream.limits import INFER_RECORDS, MAX_FEATURES
from fomo_stream.model.checkpoint import checkpoint_path, shared_model
from fomo_stream.records.category_codes import MISSING_TEXTS, category_code, is_mostly_rare
from fomo_stream.records.derived import Derived
from fomo_stream.records.inference import A_TIME, RARE_VALUES, READ_AS_NUMBERS, is_missing
from fomo_stream.records.missing_values import table_of_marks, without_marks
from fomo_stream.records.schema import is_number_text, numbers, subset
from fomo_stream.records.times import is_time, known_time, to_milliseconds
from fomo_stream.wording import counted

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Opened: TypeAlias = Columns | Sequence[Mapping[Any, Any]]  # a table, or records; see `opened`


def _is_given(value: Any) -> bool:
    """Whether a value that is not read is more than a mark of a missing one: None, NaN, NA, an infinity, blank text."""
    if value is None or isinstance(value, (Real, Decimal)):
        return False
    return str(value).strip() not in MISSING_TEXTS


def _kind(value: Any) -> str:
    """What a value is that is no number, in words."""
    if is_time(value) or isinstance(value, DATES):
        return A_TIME
    return "text" if isinstance(value, str) else type(value).__name__


_PLAIN = frozenset({float, int, bool, type(None)})  # types of values that never change, and need no warning


class OpenRows:
    """Makes rows of records whose features may come and go; the columns of a new feature come after all others.

    It knows up to MAX_FEATURES features and ignores further ones. A `Schema` is not used here, because features can be
    added later, and names are not paths.
    """

    _missing: Mapping[Hashable, tuple[float, ...]] = {}  # of pickles of before
    is_judged = True  # of pickles of before; whether it was said what seems wrong with the first records
    _marks: Float | None = None  # see `table_of_marks`; of the features that were known when it was used last
    _ignored: frozenset[Hashable] = frozenset()  # names of what is no feature
    _quick: Float | None = None  # the last row of `quick_row`
    _cells: Sequence[Any] = ()  # the values that it was made of

    def __init__(
        self,
        categorical: Collection[Hashable],
        key: Hashable | None = None,
        counters: Collection[Hashable] = (),
        missing: Mapping[Hashable, tuple[float, ...]] | None = None,
        ignored: Collection[Hashable] = (),
    ) -> None:
        """missing: see `missing_values`; key: the name of what tells series apart; None: all records are one series.

        ignored: other names that are no features.
        """
        self._key, self._missing, self._ignored = key, missing or {}, frozenset(ignored)
        # Categorical features and counters come first, so that their columns are known before they are seen.
        self._columns: dict[Any, int] = {name: i for i, name in enumerate(dict.fromkeys((*categorical, *counters)))}
        self._n_codes = len(set(categorical))
        self._n_special = len(self._columns)
        self._warned: set[str] = set()
        self.has_learned = False  # whether any record was learned
        self.is_judged = False

    @property
    def width(self) -> int:
        """Columns of a row: the features known now."""
        return len(self._columns)

    @property
    def names(self) -> list[Any]:
        """The feature of each column."""
        return list(self._columns)

    @property
    def categorical(self) -> tuple[int, ...]:
        """The columns that hold category codes."""
        return tuple(range(self._n_codes))

    @property
    def counters(self) -> tuple[int, ...]:
        """The columns that hold totals of counters."""
        return tuple(range(self._n_codes, self._n_special))

    def rows(self, X: Any, learn: bool = False) -> Float:
        """Rows (n, width) of a frame, an array (n, d), or a sequence of dicts; NaN = missing.

        learn: whether features not seen before become known. Raises SchemaError for anything else.
        """
        given = opened(X)
        if learn:
            self._add(given.names if isinstance(given, Columns) else chain.from_iterable(given))
        rows = self._from_columns(given) if isinstance(given, Columns) else self._from_dicts(given)
        if self._missing:
            if self._marks is None or self._marks.shape[1] != self.width:
                self._marks = table_of_marks(self.names, self._missing, self.categorical)
            rows = without_marks(rows, self._marks)
        if self.has_learned and "none" not in self._warned and not is_complete(rows):
            self._warn_of_nothing(given, np.flatnonzero(~has_values(rows)).tolist(), learn)
        self.has_learned |= learn and len(rows) > 0
        return rows

    def quick_row(self, given: Opened, learn: bool = False) -> Float | None:
        """What `rows` makes of one dict of plain numbers and missing values, of known features alone, with any value.

        In a tenth of the time; and the same array for the same values again, as a record is mostly scored, then
        learned. None: `given` is something else.
        """
        if type(given) is not list or len(given) != 1 or type(given[0]) is not dict or self._n_codes or self._missing:
            return None
        record = given[0]
        cells: list[Any] = [*map(record.get, self._columns)]
        is_last = len(cells) == len(self._cells) and all(map(is_, cells, self._cells))
        if not is_last and not _PLAIN.issuperset(map(type, cells)):
            return None
        is_full = len(record) == len(cells) and None not in cells
        if not is_full and not record.keys() - self._columns.keys() <= {self._key, *self._ignored}:
            return None
        if not is_last:
            try:
                row = np.array([cells], dtype=np.float64)
                if None in cells or not isfinite(sum(cells)):
                    row[np.isinf(row)] = np.nan
                    if np.isnan(row).all():
                        return None
            except OverflowError:  # of an integer beyond the largest float
                return None
            self._cells, self._quick = cells, row
        if learn:
            self.has_learned = True
        return self._quick

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_cells", "_quick")}

    def judge(self, rows: Float) -> None:
        """Warn of categories that are none, and of columns that mislead, by the first rows (n, d) that were learned."""
        names, self.is_judged = self.names, True
        if rare := [repr(names[at]) for at in self.categorical if is_mostly_rare(rows[:, at])]:
            self._warn("rare", f"{RARE_VALUES}: {listed(rare)}; leave them out")
        remedy = "leave them out, or name totals in counters, so that their growth is scored"
        if note := note_of_misleading(names, rows, range(self._n_special), remedy):
            self._warn("misleading", note)

    def keys(self, given: Opened) -> list[Key] | None:
        """The key of each record; None: all records are one series."""
        if self._key is None:
            return None
        if not isinstance(given, Columns):
            return [_key_of(record.get(self._key)) for record in given]
        if self._key not in given.names:
            return [None] * given.rows
        return list(map(_key_of, given.cells(given.names.index(self._key))))

    def _from_dicts(self, records: Sequence[Mapping[Any, Any]]) -> Float:
        cells: list[Any] = []
        for record in records:
            row = list(map(record.get, self._columns))
            row[: self._n_codes] = map(category_code, row[: self._n_codes])
            cells += row
        rows = numbers(cells).reshape(len(records), len(self._columns))
        if not _PLAIN.issuperset(map(type, cells)):
            names = [*self._columns] * len(records)
            self._warn_of_texts(zip(names, cells, strict=True))
            places = np.flatnonzero(np.isnan(rows)).tolist()
            self._warn_of_values((names[at], cells[at]) for at in places)
        return rows

    def _warn_of_values(self, cells: Iterable[tuple[Hashable, Any]]) -> None:
        """cells: features and values that count as missing; those that mean to say so are passed over."""
        if "values" in self._warned:
            return
        kind_of = {name: _kind(value) for name, value in cells if _is_given(value)}
        if kind_of:
            named = listed([f"{name!r} ({kind})" for name, kind in kind_of.items()])
            remedy = "turn them into numbers, name these features in categorical, or leave them out"
            self._warn("values", f"values that are no numbers count as missing, in {named}; {remedy}")

    def _warn_of_texts(self, cells: Iterable[tuple[Hashable, Any]]) -> None:
        if "texts" not in self._warned and (names := {name: None for name, cell in cells if is_number_text(cell)}):
            self._warn("texts", f"{READ_AS_NUMBERS}: {listed(list(map(repr, names)))}")

    def _warn_of_nothing(self, given: Opened, places: list[int], learn: bool) -> None:
        """Warn of the records at these places, if there are some, as none of them has a value."""
        for names in (given.names if isinstance(given, Columns) else given[at] for at in places):
            if names and not self._columns.keys() & set(names):
                known = listed(list(map(repr, self.names)))
                unknown = f"all its features are unknown: {listed(list(map(repr, names)))}; known are {known}"
                self._warn("none", f"a record gets no score (NaN), as {unknown}")
        if places and not learn:
            self._warn("none", "a record gets no score (NaN), as it has no value of any known feature")

    def warn_of_untaken(self, most: int) -> None:
        """Warn that the model takes only so many features."""
        what = f"a fixed random subset of {most:,} features is scored, as the model takes no more"
        self._warn("untaken", f"{what}; leave out those that matter least")

    def _warn(self, kind: str, message: str) -> None:
        """Warn once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            warn("FoMoDetector", message)

    def _from_columns(self, table: Columns) -> Float:
        rows = np.full((table.rows, len(self._columns)), np.nan)
        read: list[tuple[int, list[Any]]] = []  # columns whose type is not one of numbers
        for at, name in enumerate(table.names):
            column = self._columns.get(name)
            if column is None:
                continue
            if column < self._n_codes:
                rows[:, column] = table.codes(at)
            else:
                given = table.numbers(at)
                if given is None:
                    read.append((column, table.cells(at)))
                    given = numbers(read[-1][1])
                rows[:, column] = given
        rows[np.isinf(rows)] = np.nan
        names = self.names
        self._warn_of_texts((names[at], cell) for at, cells in read for cell in cells)
        missing = ((at, cells, np.flatnonzero(np.isnan(rows[:, at])).tolist()) for at, cells in read)
        self._warn_of_values((names[at], cells[i]) for at, cells, places in missing for i in places)
        return rows

    def _add(self, names: Iterable[Any]) -> None:
        for name in sorted(set(names).difference(self._columns, (self._key,), self._ignored), key=_sortable):
            if len(self._columns) < MAX_FEATURES:
                self._columns[name] = len(self._columns)


def opened(X: Any) -> Opened:
    """A frame or an array as its columns, other records as a list of dicts; once opened, it is read as often as needed.

    Raises SchemaError for anything else.
    """
    if isinstance(X, Columns):
        return X
    if not isinstance(X, (list, tuple)):
        if is_frame(X) or (isinstance(X, np.ndarray) and X.shape != (0,)):
            return Columns(X)
        if not isinstance(X, Iterable) or isinstance(X, (str, Mapping)) or is_column(X):
            raise SchemaError(f"records are a frame, an array (n, d) or a list of dicts, not one {type(X).__name__}")
        X = list(X)
    records: Sequence[Mapping[Any, Any]] = X
    for record in records:
        if not isinstance(record, Mapping):
            kind = f"{type(record).__name__}{'; its to_dict() is one' if is_column(record) else ''}"
            raise SchemaError(f"a record is a dict of values by feature, not {kind}")
    return records


def _key_of(value: Any) -> Key:
    """The key that a value is; None where there is none. A whole number is the same as a float."""
    if is_missing(value) or value != value:
        return None
    if isinstance(value, (bytes, str)):
        return value
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)


def _time_of(value: Any) -> int | None:
    """Milliseconds since 1970; None: it is no time."""
    return known_time(to_milliseconds(str(value) if isinstance(value, DATES) else value))


def _sortable(name: Any) -> tuple[str, Any]:
    """A key that sorts names of all types."""
    return type(name).__name__, name if isinstance(name, (str, int, float)) else repr(name)


class _Asked(NamedTuple):
    """The records of one call; those that have a value, as the detector takes them."""

    whole: Float  # (n, width) of all records, with all features known
    rows: Float  # (m, d) of those that have a value
    places: Int | slice  # of these among all
    keys: list[Key] | None  # (m,)

    def is_same(self, other: _Asked) -> bool:
        """Whether these are the same rows, bit for bit, of the same keys."""
        is_same_shape = self.rows.shape == other.rows.shape and self.keys == other.keys
        return is_same_shape and self.rows.tobytes() == other.rows.tobytes()


class OpenDetector:
    """A `Detector` of records that are rows of a frame or an array, or dicts; see `OpenRows`. All are one series.

    model, device, kernel: as for `load_model`; the weights are loaded with the first features. rows: makes its rows.
    derived: computes features by key; time: the name of a record's time. reference: good records, see
    `Detector.set_reference`. Raises CheckpointError for a model that is not there.

    With a new feature all begins again with the last `history_rows` records learned, and the verdicts on them; they
    count as the first ones.
    """

    _learned: deque[tuple[Float, Key]]  # the last rows and their keys
    _verdicts: dict[int, bool]  # by the number of the record in the detector
    _since: int  # records learned since the detector was made
    _width: int = 0  # features that were known when the detector was made
    _taken: Sequence[int] = ()  # columns that it has: all of these, or a fixed random subset, see `subset`
    _reference: tuple[Float, list[Key] | None] | None = None  # rows and keys

    _derived: Derived | None = None  # of pickles of before

    def __init__(
        self,
        model: str,
        device: str,
        kernel: str,
        config: DetectorConfig,
        rows: OpenRows,
        derived: Derived | None = None,
        time: Hashable | None = None,
        reference: Opened | None = None,
    ) -> None:
        checkpoint_path(model)
        self._derived, self._time = derived, time
        self.model, self.device, self.kernel = model, device, kernel
        self.config = config
        self.detector: Detector | None = None
        self._rows = rows
        self._begin()
        self._saved: tuple[int, StoredEntries] | None = None  # width and state, unpickled and not used yet
        self._scored: tuple[_Asked, Results] | None = None  # the last ones, so that nothing is scored twice
        if reference is not None:
            self._derived = None if derived is None else derived.copy()  # good records are not among the learned ones
            given = self._with_derived(reference, learn=True)
            whole = rows.rows(given, learn=True)
            if derived is not None:
                derived.limit(whole, rows.names)
            kept, keys = has_values(whole), rows.keys(given)
            keys = None if keys is None else list(compress(keys, kept.tolist()))
            if not kept.any():
                raise SchemaError("the reference has no record with a value", "give good records in the order of time")
            self._derived, self._reference = derived, (whole[kept], keys)
            self._wake()

    def result(self, x: Mapping[Any, Any], name: str, unknown: float) -> float:
        """The field `name` of the result of x as the next record; `unknown` where there is no score yet.

        NaN where there can be none, as it has no value of any known feature.
        """
        asked, detector = self._ask([x])
        if detector is None or not len(asked.rows):
            return np.nan if self._rows.has_learned else unknown
        value = float(getattr(self._score(detector, asked), name)[0])
        return unknown if isnan(value) else value

    def results(self, given: Opened, name: str, unknown: float) -> Float:
        """The same (n,) of the next n records."""
        asked, detector = self._ask(given)
        found = np.full(len(asked.whole), np.nan if self._rows.has_learned else unknown)
        if detector is not None and len(asked.rows):
            values = getattr(self._score(detector, asked), name)
            found[asked.places] = np.where(np.isnan(values), unknown, values)
        return found

    def explain(self, given: Opened) -> list[Explanation]:
        """The explanation of each of the next records; empty where there is no score."""
        asked, detector = self._ask(given)
        found = [Explanation() for _ in asked.whole]
        if detector is None or not len(asked.rows):
            return found
        given = self._with_derived(given)
        records = given.records() if isinstance(given, Columns) else given
        names, codes, counters = [self._rows.names[at] for at in self._taken], *self._special()
        scored = self._score(detector, asked)
        columns = (
            np.arange(len(found))[asked.places].tolist(),
            detector.explain(asked.rows, asked.keys, scored),
            np.where(np.isnan(scored.by_reference), scored.remembered_logit - scored.logit, 0.0).tolist(),
            scored.outlier.tolist(),
            asked.keys or [None] * len(asked.rows),
        )
        for i, reasons, before, is_outlier, key in zip(*columns, strict=True):
            if before == before:  # else it has no score
                found[i] = Explanation.of(reasons, names, codes, records[i], before, is_outlier, key, counters)
        return found

    def learn(self, given: Opened) -> None:
        """Learn records, in order. One without any value is not learned."""
        asked, detector = self._ask(given, learn=True)
        n = len(asked.rows)
        if detector is None or not n:
            return
        scored, self._scored = self._scored, None
        self._since += n
        for i, row in enumerate(asked.whole[asked.places]):
            self._learned.append((row, None if asked.keys is None else asked.keys[i]))
        if not self._rows.is_judged and len(self._learned) >= INFER_RECORDS:
            self._rows.judge(self._last_rows(self._rows.width)[:INFER_RECORDS])
        if scored is not None and (asked is scored[0] or asked.is_same(scored[0])):
            detector.learn_rows(asked.rows, scored[1], asked.keys)
        else:
            detector.process(asked.rows, asked.keys)

    def feedback(self, X: Any, is_outlier: Any) -> None:
        """See `FoMoDetector.feedback_many`."""
        whole, detector = self._rows.rows(X, learn=True), self._wake()
        verdicts = _verdicts(is_outlier, len(whole)).tolist()
        if detector is None:
            return
        equal_to_each = detector.numbers_of(self._taken_of(whole)) if self._derived is None else self._alike(whole)
        for equal, verdict in zip(equal_to_each, verdicts, strict=True):
            open_ones = equal[~detector.has_verdict(equal)]
            meant = open_ones[:1] if len(open_ones) else equal[-1:]
            detector.feedback(meant, np.full(len(meant), verdict))
            self._verdicts |= dict.fromkeys(meant.tolist(), verdict)
        oldest = detector.records - len(self._learned)
        self._verdicts = {number: verdict for number, verdict in self._verdicts.items() if number >= oldest}
        self._scored = None

    def _alike(self, whole: Float) -> list[Int]:
        """For each of rows (n, width) the numbers of the last records with these values, whatever is derived."""
        assert self._derived is not None
        assert self.detector is not None
        own = [name not in self._derived.names for name in self._rows.names]
        known, first = self._last_rows(self._rows.width)[:, own], self.detector.records - len(self._learned)
        equal = [(known == row) | (np.isnan(known) & np.isnan(row)) for row in whole[:, own]]
        return [first + np.flatnonzero(one.all(axis=1)) for one in equal]

    def _with_derived(self, given: Opened, learn: bool = False) -> Opened:
        """Records with their derived features, if there are any."""
        if self._derived is None:
            return given
        records = given.records() if isinstance(given, Columns) else given
        keys: Sequence[Key] = self._rows.keys(records) or [None] * len(records)
        return self._derived.follow(records, keys, [_time_of(one.get(self._time)) for one in records], learn)

    def _score(self, detector: Detector, asked: _Asked) -> Results:
        scored = self._scored
        if scored is None or not (asked is scored[0] or asked.is_same(scored[0])):
            scored = self._scored = asked, detector.score_rows(asked.rows, asked.keys)
        return scored[1]

    def _ask(self, given: Opened, learn: bool = False) -> tuple[_Asked, Detector | None]:
        """The rows of records, and the detector. learn: see `OpenRows.rows`.

        The detector may know fewer features, see `_wake`.
        """
        given = self._with_derived(given, learn)
        quick = self._rows.quick_row(given, learn) if self._derived is None else None
        whole = self._rows.rows(given, learn) if quick is None else quick
        if self._derived is not None:
            self._derived.limit(whole, self._rows.names)
        detector, rows, keys = self.detector, whole, self._rows.keys(given)
        if self._width < whole.shape[1] or detector is None:
            detector = self._wake()
        if len(self._taken) < whole.shape[1]:
            rows = self._taken_of(whole)
        if self._scored is not None and whole is self._scored[0].whole and keys == self._scored[0].keys:
            return self._scored[0], detector
        if rows is quick or is_complete(rows):
            return _Asked(whole, rows, slice(None), keys), detector
        places = np.flatnonzero(has_values(rows))
        keys = None if keys is None else [keys[i] for i in places.tolist()]
        return _Asked(whole, rows[places], places, keys), detector

    def _wake(self) -> Detector | None:
        """The detector; None before any feature is known.

        As wide as the features known now, unless it was widened a few records ago: it then learns all its last records
        again, so where nearly every record has a new feature, these wait.
        """
        width = self._rows.width
        if self._saved is not None:
            saved_width, entries = self._saved
            detector = self._make(saved_width)
            detector.recover(entries)  # a state that is refused stays, and is refused again
            self.detector, self._saved, self._width = detector, None, saved_width
        if self.detector is None and width:
            self.detector, self._width = self._make(width), width
        elif self.detector is not None and self._width < width and self._since >= len(self._learned) // 20:
            self.detector, self._scored, self._since = self._widened(self.detector.records, width), None, 0
            self._width = width
        return self.detector

    def _widened(self, records: int, width: int) -> Detector:
        """A detector of rows of this width that has learned the last ones. records: how many the present one knows."""
        detector, first = self._make(width), records - len(self._learned)
        detector.process(self._taken_of(self._last_rows(width)), [key for _, key in self._learned])
        self._verdicts = {number - first: verdict for number, verdict in self._verdicts.items() if number >= first}
        detector.feedback(np.array([*self._verdicts], np.int64), np.array([*self._verdicts.values()], bool))
        return detector

    def _last_rows(self, width: int) -> Float:
        """The last rows learned (n, width), also those of before all these features were known."""
        rows = np.full((len(self._learned), width), np.nan)
        for row, (known, _) in zip(rows, self._learned, strict=True):
            row[: len(known)] = known
        return rows

    def _make(self, width: int) -> Detector:
        model = shared_model(self.model, self.device, self.kernel)
        most = model.config.max_features(len(self._rows.categorical))
        self._taken = subset(self._rows.names[:width], most)
        if len(self._taken) < width:
            self._rows.warn_of_untaken(len(self._taken))
        detector = Detector(model, len(self._taken), self.config, None, *self._special())
        if self._reference is not None:
            rows, keys = self._reference
            whole = np.pad(rows, [(0, 0), (0, width - rows.shape[1])], constant_values=np.nan)
            detector.set_reference(self._taken_of(whole), keys)
        return detector

    def _special(self) -> list[tuple[int, ...]]:
        """The columns of the detector that hold category codes, and totals of counters."""
        special = self._rows.categorical, self._rows.counters
        return [tuple(place for place, at in enumerate(self._taken) if at in columns) for columns in special]

    def _taken_of(self, whole: Float) -> Float:
        """The columns that the detector has, of rows with all features."""
        return whole[:, self._taken]

    def _begin(self) -> None:
        self._learned, self._verdicts, self._since = deque(maxlen=self.config.history_rows), {}, 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_learned" not in state:  # of before: with a new feature only what comes from now on is learned again
            self._begin()

    def __getstate__(self) -> dict[str, Any]:
        """Settings, features and the detector's state; not the weights, which are loaded again by name."""
        state = self.__dict__.copy()
        if self.detector is not None:
            state["_saved"] = self._width, self.detector.copy().changes()
        state["detector"] = state["_scored"] = None
        return state


def _verdicts(given: Any, n: int) -> NDArray[np.bool_]:
    """Verdicts (n,), if they are booleans, or 0 and 1. Raises SchemaError."""
    found = np.ravel(np.asarray(given, dtype=object)).tolist()
    if len(found) != n:
        raise SchemaError(f"{counted(len(found), 'verdict')} for {counted(n, 'record')}; give one for each")
    for one in found:
        if not (isinstance(one, (Real, np.bool_)) and one in (0, 1)):
            raise SchemaError(f"a verdict is True for an outlier, else False, not {one!r}")
    return np.array(found, dtype=bool)
