"""A detector whose features come and go: rows of dicts, frames and arrays, wider with each new feature.

A `Detector` has as many features as it began with. So with a new feature a wider one begins, and learns the last
records again, which have no value of the new feature.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from numbers import Real
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.adapters.columns import (
    DATES,
    Columns,
    has_values,
    is_column,
    is_frame,
    listed,
    note_of_misleading,
    plain,
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
from fomo_stream.records.inference import A_TIME, RARE_VALUES, READ_AS_NUMBERS, is_missing
from fomo_stream.records.missing_values import table_of_marks, without_marks
from fomo_stream.records.schema import is_number_text, numbers
from fomo_stream.records.times import is_time
from fomo_stream.wording import counted

Float = NDArray[np.float64]


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


_NO_MISTAKE = frozenset({float, np.float64, type(None)})  # types whose missing values are NaN, infinities and None


class OpenRows:
    """Makes rows of records whose features may come and go; the columns of a new feature come after all others.

    It knows up to MAX_FEATURES features and ignores further ones. A `Schema` is not used here, because features can be
    added later, and names are not paths.
    """

    _missing: Mapping[Hashable, tuple[float, ...]] = {}  # of pickles of before
    _last: tuple[list[Any], Float] | None = None

    def __init__(
        self,
        categorical: Collection[Hashable],
        key: Hashable | None = None,
        counters: Collection[Hashable] = (),
        missing: Mapping[Hashable, tuple[float, ...]] | None = None,
    ) -> None:
        """missing: see `missing_values`; key: the name of what tells series apart, which is no feature; None: all
        records are one series.
        """
        self._key, self._missing = key, missing or {}
        # Categorical features and counters come first, so that their columns are known before they are seen.
        self._columns: dict[Any, int] = {name: i for i, name in enumerate(dict.fromkeys((*categorical, *counters)))}
        self._n_codes = len(set(categorical))
        self._n_special = len(self._columns)
        self._warned: set[str] = set()
        self.has_learned = False  # whether any record was learned
        self._last = None  # the last record, if it was alone: names and values, row
        self._first: list[Float] | None = []  # rows of the first records learned; None: they are judged

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
        one = [*chain.from_iterable(X[0].items())] if self._is_one(X) else []
        last, rows = self._last or ([], np.empty((0, 0)))
        is_last = one and len(one) == len(last) and all(map(is_, one, last)) and rows.shape[1] == self.width
        if not is_last:  # a record is mostly scored, then learned
            rows = self._from_columns(Columns(X), learn) if _is_table(X) else self._from_dicts(_checked(X), learn)
            if self._missing:
                rows = without_marks(rows, table_of_marks(self.names, self._missing, self.categorical))
            self._last = (one, rows) if one else None
        if learn:
            self.has_learned |= len(rows) > 0
            self._judge(rows)
        elif self.has_learned and not has_values(rows).all():
            self._warn("none", "a record gets no score (NaN), as it has no value of any known feature")
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    def _is_one(self, X: Any) -> bool:
        """Whether X is a list of one dict, of known features alone."""
        is_one = type(X) is list and len(X) == 1 and type(X[0]) is dict
        return is_one and all(name in self._columns or name == self._key for name in X[0])

    def _judge(self, rows: Float) -> None:
        """Warn of categories that are none, and of columns that mislead, as soon as enough records are learned."""
        if self._first is None:
            return
        rows = rows[has_values(rows)][:INFER_RECORDS]
        self._first += [rows] if len(rows) else []
        if sum(map(len, self._first)) >= INFER_RECORDS:
            grown = [((0, 0), (0, self.width - part.shape[1])) for part in self._first]
            rows = np.concatenate(
                [np.pad(*part, constant_values=np.nan) for part in zip(self._first, grown, strict=True)]
            )
            names, self._first = self.names, None
            rare = [repr(names[at]) for at in self.categorical if is_mostly_rare(rows[:, at])]
            if rare:
                self._warn("rare", f"{RARE_VALUES}: {listed(rare)}; leave them out")
            remedy = "leave them out, or name totals in counters, so that their growth is scored"
            if note := note_of_misleading(names, rows, range(self._n_special), remedy):
                self._warn("misleading", note)

    def keys(self, X: Any) -> list[Key] | None:
        """The key of each record; None: all records are one series."""
        if self._key is None:
            return None
        if not _is_table(X):
            return [_key_of(record.get(self._key)) for record in _checked(X)]
        table = Columns(X)
        if self._key not in table.names:
            return [None] * table.rows
        return list(map(_key_of, table.cells(table.names.index(self._key))))

    def values(self, X: Any) -> list[Mapping[Any, Any]]:
        """The values of each record, by feature, as they were given."""
        if _is_table(X):
            table = Columns(X)
            cells = [table.cells(at) for at in range(len(table.names))]
            return [dict(zip(table.names, [column[i] for column in cells], strict=True)) for i in range(table.rows)]
        return list(_checked(X))

    def _from_dicts(self, records: Sequence[Mapping[Any, Any]], learn: bool) -> Float:
        if learn:
            self._add({name for record in records for name in record})
        cells: list[Any] = []
        for record in records:
            row = list(map(record.get, self._columns))
            row[: self._n_codes] = map(category_code, row[: self._n_codes])
            cells += row
        names = self.names
        self._warn_of_texts((names[at % self.width], cell) for at, cell in enumerate(cells) if isinstance(cell, str))
        rows = numbers(cells).reshape(len(records), len(self._columns))
        is_missing = np.isnan(rows)
        if is_missing.any():
            self._warn_of_dicts(records, cells, is_missing)
        return rows

    def _warn_of_dicts(
        self, records: Sequence[Mapping[Any, Any]], cells: list[Any], is_missing: NDArray[np.bool_]
    ) -> None:
        """cells: the values of the records, row by row; is_missing: (n, width), which of them do not count."""
        names = self.names
        places = (at for at in np.flatnonzero(is_missing).tolist() if type(cells[at]) not in _NO_MISTAKE)
        self._warn_of_values((names[at % self.width], cells[at]) for at in places)
        for at in np.flatnonzero(is_missing.all(axis=1)).tolist():
            if self.has_learned and records[at] and not self._columns.keys() & records[at].keys():
                self._warn_of_unknown(records[at])

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

    def _warn_of_unknown(self, names: Iterable[Hashable]) -> None:
        given, known = (listed(list(map(repr, some))) for some in (names, self.names))
        self._warn("none", f"a record gets no score (NaN), as all its features are unknown: {given}; known are {known}")

    def _warn(self, kind: str, message: str) -> None:
        """Warn once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            warn("FoMoDetector", message)

    def _from_columns(self, table: Columns, learn: bool) -> Float:
        if learn:
            self._add(table.names)
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
        if self.has_learned and table.rows and table.names and not self._columns.keys() & set(table.names):
            self._warn_of_unknown(table.names)
        return rows

    def _add(self, names: Iterable[Any]) -> None:
        for name in sorted(set(names) - self._columns.keys() - {self._key}, key=_sortable):
            if len(self._columns) < MAX_FEATURES:
                self._columns[name] = len(self._columns)


def readable_twice(X: Any) -> Any:
    """The same input as for `OpenRows.rows`; the records of an iterator as a list. Raises SchemaError."""
    X = plain(X)
    return X if _is_table(X) else _checked(X)


def _checked(records: Any) -> Sequence[Mapping[Any, Any]]:
    """Records, if they are dicts."""
    is_several = isinstance(records, Iterable) and not isinstance(records, (str, Mapping))
    if not isinstance(records, (list, tuple)) and (not is_several or is_column(records)):
        raise SchemaError(f"records are a frame, an array (n, d) or a list of dicts, not one {type(records).__name__}")
    found = list(records)
    for record in found:
        if not isinstance(record, Mapping):
            kind = f"{type(record).__name__}{'; its to_dict() is one' if is_column(record) else ''}"
            raise SchemaError(f"a record is a dict of values by feature, not {kind}")
    return found


def _is_table(X: Any) -> bool:
    return is_frame(X) or (isinstance(X, np.ndarray) and X.shape != (0,))


def _key_of(value: Any) -> Key:
    """The key that a value is; None where there is none. A whole number is the same as a float."""
    if is_missing(value) or value != value:
        return None
    if isinstance(value, (bytes, str)):
        return value
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)


def _sortable(name: Any) -> tuple[str, Any]:
    """A key that sorts names of all types."""
    return type(name).__name__, name if isinstance(name, (str, int, float)) else repr(name)


class OpenDetector:
    """A `Detector` of records that are rows of a frame or an array, or dicts; see `OpenRows`. All are one series.

    model, device, kernel: as for `load_model`; the weights are loaded with the first features. categorical,
    counters: names of features. Raises CheckpointError for a model that is not there.

    With a new feature all begins again with the last `history_rows` records learned, and the verdicts on them; they
    count as the first ones.
    """

    _learned: deque[tuple[Float, Key]]  # the last rows and their keys
    _verdicts: dict[int, bool]  # by the number of the record in the detector
    _since: int  # records learned since the detector was made

    def __init__(
        self,
        model: str,
        device: str,
        kernel: str,
        config: DetectorConfig,
        categorical: Collection[Hashable],
        key: Hashable | None = None,
        counters: Collection[Hashable] = (),
        missing: Mapping[Hashable, tuple[float, ...]] | None = None,
    ) -> None:
        checkpoint_path(model)
        self.model, self.device, self.kernel = model, device, kernel
        self.config = config
        self.detector: Detector | None = None
        self._rows = OpenRows(categorical, key, counters, missing)
        self._begin()
        self._saved: tuple[int, StoredEntries] | None = None  # width and state, unpickled and not used yet
        # the last scored rows and their keys, so that nothing is scored twice
        self._scored: tuple[Float, list[Key] | None, Results] | None = None

    def results(self, X: Any, name: str, unknown: float) -> Float:
        """The field `name` (n,) of the results of X as the next n records; `unknown` where there is no score yet.

        NaN where there can be none, as a record has no value of any known feature.
        """
        rows, detector = self._known(self._rows.rows(X))
        found, usable = np.full(len(rows), unknown), has_values(rows)
        if self._rows.has_learned:
            found[~usable] = np.nan
        if detector is not None and usable.any():
            scored = self._score(detector, rows[usable], _chosen(self._rows.keys(X), usable))
            values = np.asarray(getattr(scored, name), dtype=np.float64)
            found[usable] = np.where(np.isnan(values), unknown, values)
        return found

    def explain(self, X: Any) -> list[Explanation]:
        """The explanation of each of X as the next records; empty where there is no score."""
        X = readable_twice(X)
        rows, detector = self._known(self._rows.rows(X))
        found, usable = [Explanation() for _ in rows], np.flatnonzero(has_values(rows))
        if detector is None or not len(usable):
            return found
        given, names = self._rows.values(X), self._rows.names
        codes, counters = self._rows.categorical, self._rows.counters
        keys = _chosen(self._rows.keys(X), usable)
        scored = self._score(detector, rows[usable], keys)
        earlier = (scored.remembered_logit - scored.logit).tolist()
        named = [None] * len(usable) if keys is None else keys
        columns = usable.tolist(), detector.explain(rows[usable], keys, scored), earlier, scored.outlier.tolist(), named
        for i, reasons, before, is_outlier, key in zip(*columns, strict=True):
            if before == before:  # else it has no score
                found[i] = Explanation.of(reasons, names, codes, given[i], before, is_outlier, key, counters)
        return found

    def learn(self, X: Any) -> None:
        """Learn X, in order. A record without any value is not learned."""
        X = readable_twice(X)
        whole = self._rows.rows(X, learn=True)
        rows, detector = self._known(whole)
        usable = np.flatnonzero(has_values(rows))
        rows, keys = rows[usable], _chosen(self._rows.keys(X), usable)
        if detector is None or not len(rows):
            return
        scored, self._scored = self._scored, None
        last = whole[usable][-self.config.history_rows :]
        self._since += len(rows)
        self._learned.extend(zip(last, [None] * len(last) if keys is None else keys[-len(last) :], strict=True))
        if scored is not None and np.array_equal(scored[0], rows, equal_nan=True) and scored[1] == keys:
            detector.learn_rows(rows, scored[2], keys)
        else:
            detector.process(rows, keys)

    def feedback(self, X: Any, is_outlier: Any) -> None:
        """See `FoMoDetector.feedback_many`."""
        rows, detector = self._known(self._rows.rows(X, learn=True))
        verdicts = _verdicts(is_outlier, len(rows)).tolist()
        if detector is None:
            return
        equal_to_each = detector.numbers_of(rows)
        for equal, verdict in zip(equal_to_each, verdicts, strict=True):
            open_ones = equal[~detector.has_verdict(equal)]
            meant = open_ones[:1] if len(open_ones) else equal[-1:]
            detector.feedback(meant, np.full(len(meant), verdict))
            self._verdicts |= dict.fromkeys(meant.tolist(), verdict)
        oldest = detector.records - len(self._learned)
        self._verdicts = {number: verdict for number, verdict in self._verdicts.items() if number >= oldest}
        self._scored = None

    def _score(self, detector: Detector, rows: Float, keys: list[Key] | None) -> Results:
        known = self._scored
        if known is None or not np.array_equal(known[0], rows, equal_nan=True) or known[1] != keys:
            known = self._scored = rows, keys, detector.score_rows(rows, keys)
        return known[2]

    def _known(self, rows: Float) -> tuple[Float, Detector | None]:
        """Rows (n, width) with the features that the detector knows; and the detector."""
        detector = self._wake()
        return (rows if detector is None else rows[:, : detector.n_features]), detector

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
            self.detector, self._saved = detector, None
        if self.detector is None and width:
            self.detector = self._make(width)
        elif self.detector is not None and self.detector.n_features < width and self._since >= len(self._learned) // 20:
            self.detector, self._scored, self._since = self._widened(self.detector.records, width), None, 0
        return self.detector

    def _widened(self, records: int, width: int) -> Detector:
        """A detector of rows of this width that has learned the last ones. records: how many the present one knows."""
        detector, first = self._make(width), records - len(self._learned)
        rows = np.full((len(self._learned), width), np.nan)
        for row, (known, _) in zip(rows, self._learned, strict=True):
            row[: len(known)] = known
        detector.process(rows, [key for _, key in self._learned])
        self._verdicts = {number - first: verdict for number, verdict in self._verdicts.items() if number >= first}
        detector.feedback(np.array([*self._verdicts], np.int64), np.array([*self._verdicts.values()], bool))
        return detector

    def _make(self, width: int) -> Detector:
        model = shared_model(self.model, self.device, self.kernel)
        return Detector(model, width, self.config, None, self._rows.categorical, self._rows.counters)

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
            state["_saved"] = self.detector.n_features, self.detector.copy().changes()
        state["detector"] = state["_scored"] = None
        return state


def _chosen(keys: list[Key] | None, usable: NDArray[Any]) -> list[Key] | None:
    """The keys of some records, by their positions or by whether they are chosen."""
    if keys is None:
        return None
    at = np.flatnonzero(usable) if usable.dtype == bool else usable
    return [keys[i] for i in at.tolist()]


def _verdicts(given: Any, n: int) -> NDArray[np.bool_]:
    """Verdicts (n,), if they are booleans, or 0 and 1. Raises SchemaError."""
    found = np.ravel(np.asarray(given, dtype=object)).tolist()
    if len(found) != n:
        raise SchemaError(f"{counted(len(found), 'verdict')} for {counted(n, 'record')}; give one for each")
    for one in found:
        if not (isinstance(one, (Real, np.bool_)) and one in (0, 1)):
            raise SchemaError(f"a verdict is True for an outlier, else False, not {one!r}")
    return np.array(found, dtype=bool)
