"""A detector whose features may come and go: rows of dicts, frames and arrays become wider with each new feature.

A `Detector` has a fixed number of features. So with a new feature a wider one begins, and learns the last records
again, in which the new feature is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, wraps
from itertools import chain, compress
from math import isfinite, isnan
from numbers import Real
from operator import is_
from threading import RLock
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fomo_stream.adapters.columns import (
    DATES,
    Columns,
    first_words,
    has_values,
    is_column,
    is_complete,
    is_frame,
    note_of_misleading,
    warn,
)
from fomo_stream.adapters.named_reasons import Explanation
from fomo_stream.detector.changelog import StoredEntries
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import MAX_WORK_RECORDS, Detector, DetectorCall
from fomo_stream.detector.keys import Key
from fomo_stream.errors import SchemaError
from fomo_stream.limits import INFER_RECORDS, MAX_FEATURES
from fomo_stream.model.checkpoint import checkpoint_path, shared_model
from fomo_stream.records.category_codes import MISSING_TEXTS, category_code, is_mostly_rare
from fomo_stream.records.derived import DerivedFeatures
from fomo_stream.records.inference import RARE_VALUES, READ_AS_NUMBERS, TIME_REASON
from fomo_stream.records.missing_values import ALL_FEATURES, table_of_marks, without_marks
from fomo_stream.records.schema import is_number_text, numbers, random_columns
from fomo_stream.records.times import is_time, known_time, to_milliseconds
from fomo_stream.wording import counted

Float = NDArray[np.float64]
Int = NDArray[np.int64]
OpenedData: TypeAlias = Columns | Sequence[Mapping[Any, Any]]  # a table, or records; see `open_data`


def _has_content(value: Any) -> bool:
    """Return whether a value that cannot be read has content, unlike None, NaN, NA, an infinity and blank text."""
    if value is None or isinstance(value, (Real, Decimal)):
        return False
    return str(value).strip() not in MISSING_TEXTS


def _type_in_words(value: Any) -> str:
    """Return in words what a value is that is not a number."""
    if is_time(value) or isinstance(value, DATES):
        return TIME_REASON
    return "text" if isinstance(value, str) else type(value).__name__


_NUMBER_TYPES = frozenset({float, int, bool, type(None)})  # immutable types that need no warning


class OpenRows:
    """Makes rows of records whose features may come and go; the column of a new feature comes after all others.

    It takes up to MAX_FEATURES features and ignores further ones. It is not a `Schema`, because features can be added
    later, and names are not paths.
    """

    _missing: Mapping[Hashable, tuple[float, ...]] = {}  # default for older pickles
    is_judged = True  # default for older pickles; whether `judge` has checked the first records
    _marks: Float | None = None  # see `table_of_marks`; for the features at its last use
    _ignored: frozenset[Hashable] = frozenset()  # names that are not features
    _quick: Float | None = None  # the last row of `quick_row`
    _cells: Sequence[Any] = ()  # the values of that row

    def __init__(
        self,
        categorical: Collection[Hashable],
        key: Hashable | None = None,
        counters: Collection[Hashable] = (),
        missing: Mapping[Hashable, tuple[float, ...]] | None = None,
        ignored: Collection[Hashable] = (),
    ) -> None:
        """Take the special features. missing: see `missing_values`; ignored: other names that are not features.

        key: name of the field that distinguishes series; None: all records are one series.
        """
        self._key, self._missing, self._ignored = key, missing or {}, frozenset(ignored)
        # Categorical features and counters come first, so that their columns are known before the first record.
        self._columns: dict[Any, int] = {name: i for i, name in enumerate(dict.fromkeys((*categorical, *counters)))}
        self._n_codes = len(set(categorical))
        self._n_special = len(self._columns)
        self._warned: set[str] = set()
        self.has_learned = False  # True once a record was learned
        self.is_judged = False

    @property
    def width(self) -> int:
        """The number of columns: the features known now."""
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
        """Return rows (n, width) of a frame, an array (n, d), or a sequence of dicts; NaN = missing.

        learn: whether new features become known. Raises SchemaError for other data.
        """
        data = open_data(X)
        if learn:
            self._add(data.names if isinstance(data, Columns) else chain.from_iterable(data))
        rows = self._from_columns(data) if isinstance(data, Columns) else self._from_dicts(data)
        if self._missing:
            if self._marks is None or self._marks.shape[1] != self.width:
                self._marks = table_of_marks(self.names, self._missing, self.categorical)
            rows = without_marks(rows, self._marks)
        if self.has_learned and "none" not in self._warned and not is_complete(rows):
            self._warn_of_nothing(data, np.flatnonzero(~has_values(rows)).tolist(), learn)
        self.has_learned |= learn and len(rows) > 0
        return rows

    def quick_row(self, data: OpenedData, learn: bool = False) -> Float | None:
        """Return what `rows` makes of one dict that has only known features, with plain numbers and missing values.

        It takes a tenth of the time, and returns the same array for the same values again, because a record is usually
        scored, then learned. None: `data` is something else, or has no value.
        """
        if type(data) is not list or len(data) != 1 or type(data[0]) is not dict or self._n_codes or self._missing:
            return None
        record = data[0]
        cells: list[Any] = [*map(record.get, self._columns)]
        is_last = len(cells) == len(self._cells) and all(map(is_, cells, self._cells))
        if not is_last and not _NUMBER_TYPES.issuperset(map(type, cells)):
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
            except OverflowError:  # an integer beyond the largest float
                return None
            self._cells, self._quick = cells, row
        if learn:
            self.has_learned = True
        return self._quick

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_cells", "_quick")}

    def judge(self, rows: Float, has_keys: bool = True, time: Hashable | None = None) -> None:
        """Warn about categories that seem to be none, misleading columns, and fields that are named but absent.

        rows: (n, d), the first learned ones; has_keys: whether they have keys; time: the field of a time that none has.
        """
        names, self.is_judged = self.names, True
        time = None if "times" in self._warned else time
        absent = [names[i] for i in range(self._n_special) if np.isnan(rows[:, i]).all()]
        absent += [name for name in self._missing if name != ALL_FEATURES and name not in self._columns]
        absent += [name for name in (self._key if not has_keys else None, time) if name is not None]
        if absent:
            fields = first_words(list(map(repr, absent)))
            self._warn("absent", f"no record so far has a value of {fields}; check the names of the fields")
        if rare := [repr(names[column]) for column in self.categorical if is_mostly_rare(rows[:, column])]:
            self._warn("rare", f"{RARE_VALUES}: {first_words(rare)}; leave them out")
        remedy = "leave them out, or name totals in counters, so that their growth is scored"
        if note := note_of_misleading(names, rows, range(self._n_special), remedy):
            self._warn("misleading", note)

    def keys(self, data: OpenedData) -> list[Key] | None:
        """Return the key of each record; None: all records are one series."""
        if self._key is None:
            return None
        if not isinstance(data, Columns):
            return [_key_of(record.get(self._key)) for record in data]
        if self._key not in data.names:
            return [None] * data.rows
        return list(map(_key_of, data.cells(data.names.index(self._key))))

    def _from_dicts(self, records: Sequence[Mapping[Any, Any]]) -> Float:
        cells: list[Any] = []
        for record in records:
            row = list(map(record.get, self._columns))
            row[: self._n_codes] = map(category_code, row[: self._n_codes])
            cells += row
        rows = numbers(cells).reshape(len(records), len(self._columns))
        if not _NUMBER_TYPES.issuperset(map(type, cells)):
            names = [*self._columns] * len(records)
            self._warn_of_texts(zip(names, cells, strict=True))
            missing = np.flatnonzero(np.isnan(rows)).tolist()
            self._warn_of_values((names[i], cells[i]) for i in missing)
        return rows

    def _warn_of_values(self, cells: Iterable[tuple[Hashable, Any]]) -> None:
        """Warn about values that count as missing, unless they are marks of missing values. cells: features, values."""
        if "values" in self._warned:
            return
        kind_of = {name: _type_in_words(value) for name, value in cells if _has_content(value)}
        if kind_of:
            named = first_words([f"{name!r} ({kind})" for name, kind in kind_of.items()])
            remedy = "turn them into numbers, name these features in categorical, or leave them out"
            self._warn("values", f"values that are not numbers count as missing, in {named}; {remedy}")

    def _warn_of_texts(self, cells: Iterable[tuple[Hashable, Any]]) -> None:
        if "texts" not in self._warned and (names := {name: None for name, cell in cells if is_number_text(cell)}):
            self._warn("texts", f"{READ_AS_NUMBERS}: {first_words(list(map(repr, names)))}")

    def _warn_of_nothing(self, data: OpenedData, rows: list[int], learn: bool) -> None:
        """Warn about the records at these positions, which have no value."""
        for names in (data.names if isinstance(data, Columns) else data[i] for i in rows):
            if names and not self._columns.keys() & set(names):
                features = first_words(list(map(repr, self.names)))
                unknown = f"all its features are unknown: {first_words(list(map(repr, names)))}; known are {features}"
                self._warn("none", f"a record gets no score (NaN), as {unknown}")
        if rows and not learn:
            self._warn("none", "a record gets no score (NaN), as it has no value of any known feature")

    def warn_of_times(self, field: Hashable, values: Iterable[Any]) -> None:
        """Warn about values that are not readable as times."""
        if bad := next((value for value in values if _has_content(value)), None):
            self._warn("times", f"a record has no time in {field!r}, as {str(bad)[:40]!r} is not readable as one")

    def warn_of_untaken(self, limit: int) -> None:
        """Warn that the model takes only `limit` features."""
        what = f"a fixed random subset of {limit:,} features is scored, as the model takes no more"
        self._warn("untaken", f"{what}; leave out those that matter least")

    def warn_of_reference(self, rows: Float, columns: Sequence[int], keys: Sequence[Key] | None) -> None:
        """Warn once of those of these columns, and of the key, that good records (n, d) lack."""
        absent = [self.names[column] for column in columns if np.isnan(rows[:, column]).all()]
        absent += [self._key] if keys is not None and all(key is None for key in keys) else []
        if absent:
            fields = first_words(list(map(repr, absent)))
            self._warn("reference", f"the reference has no value of {fields}, and judges no record by it")

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn("FoMoDetector", message)

    def _from_columns(self, table: Columns) -> Float:
        rows = np.full((table.rows, len(self._columns)), np.nan)
        read: list[tuple[int, list[Any]]] = []  # columns without a numeric type
        for position, name in enumerate(table.names):
            column = self._columns.get(name)
            if column is None:
                continue
            if column < self._n_codes:
                rows[:, column] = table.codes(position)
            else:
                numeric = table.numbers(position)
                if numeric is None:
                    read.append((column, table.cells(position)))
                    numeric = numbers(read[-1][1])
                rows[:, column] = numeric
        rows[np.isinf(rows)] = np.nan
        names = self.names
        self._warn_of_texts((names[column], cell) for column, cells in read for cell in cells)
        missing = ((c, cells, np.flatnonzero(np.isnan(rows[:, c])).tolist()) for c, cells in read)
        self._warn_of_values((names[c], cells[i]) for c, cells, row_numbers in missing for i in row_numbers)
        return rows

    def _add(self, names: Iterable[Any]) -> None:
        for name in sorted(set(names).difference(self._columns, (self._key,), self._ignored), key=_sort_key):
            if len(self._columns) < MAX_FEATURES:
                self._columns[name] = len(self._columns)


def open_data(X: Any) -> OpenedData:
    """Return a frame or an array as its columns, other records as a list of dicts, so that they can be read repeatedly.

    Raises SchemaError for other data.
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
    """Return a value as a key; None for a missing value. An integer gives the same key as the equal float."""
    if isinstance(value, (bytes, str)):
        return None if isinstance(value, str) and value.strip() in MISSING_TEXTS else value
    return _number_as_key(value) if isinstance(value, (int, float)) else _other_as_key(value)


def _other_as_key(value: Any) -> Key:
    """Return a value that is not text as a key."""
    if value is None or str(value) in MISSING_TEXTS:  # NA of pandas cannot be compared
        return None
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)


_number_as_key = lru_cache(maxsize=2**14, typed=True)(_other_as_key)  # a key comes often, and takes a fifth of a score


def _time_of(value: Any) -> int | None:
    """Return a time in milliseconds since 1970; None for a value that is not a time."""
    return known_time(to_milliseconds(str(value) if isinstance(value, DATES) else value))


def _sort_key(name: Any) -> tuple[str, Any]:
    """Return a key that sorts names of all types."""
    return type(name).__name__, name if isinstance(name, (str, int, float)) else repr(name)


class _Request(NamedTuple):
    """The records of one call, and those of them that have a value, as the detector takes them."""

    whole: Float  # (n, width) of all records, with all known features
    rows: Float  # (m, d) of the records that have a value
    places: Int | slice  # positions of these among all
    keys: list[Key] | None  # (m,)

    def is_same(self, other: _Request) -> bool:
        """Return whether these are the same rows, bit for bit, with the same keys."""
        if self is other:
            return True
        is_same_shape = self.rows.shape == other.rows.shape and self.keys == other.keys
        return is_same_shape and self.rows.tobytes() == other.rows.tobytes()


Method = TypeVar("Method", bound=Callable[..., Any])


def _locked(method: Method) -> Method:
    """Return a method that one thread at a time is in: another one could change what the compiled step reads."""

    @wraps(method)
    def alone(self: OpenDetector, *arguments: Any) -> Any:
        with self._lock:
            return method(self, *arguments)

    return cast(Method, alone)


class OpenDetector:
    """A `Detector` of records that are rows of a frame or an array, or dicts; see `OpenRows`.

    model, device, backend: as for `load_model`; the weights are loaded with the first features. rows: makes its rows.
    derived: computes features by key; time: name of the field with the time of a record. reference: good records, see
    `Detector.set_reference`. Raises CheckpointError for a model that does not exist.

    With a new feature the detector begins again with the last `history_rows` learned records and their verdicts; they
    count as the first ones.
    """

    _learned: deque[tuple[Float, Key]]  # the last rows and their keys
    _verdicts: dict[int, bool]  # by the number of a record in the detector
    _since: int  # learned records since the detector was made
    _width: int = 0  # features that were known when the detector was made
    _taken: Sequence[int] = ()  # columns that the detector has: all, or a fixed random subset, see `random_columns`
    _reference: tuple[Float, list[Key] | None] | None = None  # rows and keys

    _derived: DerivedFeatures | None = None  # default for older pickles
    _has_time: bool = False  # whether a learned record had a time; default for older pickles
    # the last records that were scored, so that nothing is scored twice
    _scored: tuple[_Request, DetectorCall] | None = None

    def __init__(
        self,
        model: str,
        device: str,
        backend: str,
        config: DetectorConfig,
        rows: OpenRows,
        derived: DerivedFeatures | None = None,
        time: Hashable | None = None,
        reference: OpenedData | None = None,
    ) -> None:
        checkpoint_path(model)
        self._lock = RLock()
        self._derived, self._time = derived, time
        self.model, self.device, self.kernel = model, device, backend  # `kernel`: the name in pickles
        self.config = config
        self.detector: Detector | None = None
        self._rows = rows
        self._begin()
        self._saved: tuple[int, StoredEntries] | None = None  # width and state of a pickle, until the first use
        if reference is not None:
            self._derived = None if derived is None else derived.copy()  # good records do not count as learned
            data = self._with_derived(reference, learn=True)
            whole = rows.rows(data, learn=True)
            if derived is not None:
                derived.limit(whole, rows.names)
            kept, keys = has_values(whole), rows.keys(data)
            keys = None if keys is None else list(compress(keys, kept.tolist()))
            if not kept.any():
                raise SchemaError("the reference has no record with a value", "give good records in the order of time")
            self._derived, self._reference = derived, (whole[kept], keys)
            self._current_detector()

    @_locked
    def result(self, x: Mapping[Any, Any], name: str, unknown: float) -> float:
        """Return the field `name` of the result of x as the next record; `unknown` if there is no score yet.

        NaN if x has no value of any known feature.
        """
        request, detector = self._request([x])
        if detector is None or not len(request.rows):
            return np.nan if self._rows.has_learned else unknown
        value = float(getattr(self._score(detector, request).work.judged, name)[0])
        return unknown if isnan(value) else value

    @_locked
    def results(self, data: OpenedData, name: str, unknown: float) -> Float:
        """Return the field `name` (n,) of the results of the next n records, as `result` does."""
        request, detector = self._request(data)
        result = np.full(len(request.whole), np.nan if self._rows.has_learned else unknown)
        if detector is not None and len(request.rows):
            values = getattr(self._score(detector, request).judged, name)
            result[request.places] = np.where(np.isnan(values), unknown, values)
            self._forget_large()
        return result

    @_locked
    def explain(self, data: OpenedData) -> list[Explanation]:
        """Return the explanation of each of the next records; empty where there is no score."""
        request, detector = self._request(data)
        explanations = [Explanation() for _ in request.whole]
        if detector is None or not len(request.rows):
            return explanations
        data = self._with_derived(data)
        records = data.records() if isinstance(data, Columns) else data
        names, codes, counters = [self._rows.names[column] for column in self._taken], *self._special()
        call = self._score(detector, request)
        scored = call.results()
        columns = (
            np.arange(len(explanations))[request.places].tolist(),
            detector.reasons(call),
            np.where(np.isnan(scored.by_reference), scored.remembered_logit - scored.logit, 0.0).tolist(),
            scored.outlier.tolist(),
            request.keys or [None] * len(request.rows),
        )
        self._forget_large()
        for i, reasons, earlier, is_outlier, key in zip(*columns, strict=True):
            if earlier == earlier:  # NaN: no score
                explanations[i] = Explanation.of(reasons, names, codes, records[i], earlier, is_outlier, key, counters)
        return explanations

    @_locked
    def learn(self, data: OpenedData) -> None:
        """Learn records, in order. A record without any value is not learned."""
        request, detector = self._request(data, learn=True)
        n = len(request.rows)
        if detector is None or not n:
            return
        kept, self._scored = self._scored, None
        self._since += n
        for i, row in enumerate(request.whole[request.places]):
            self._learned.append((row, None if request.keys is None else request.keys[i]))
        if not self._rows.is_judged and len(self._learned) >= INFER_RECORDS:
            has_keys = any(key is not None for _, key in self._learned)
            lacking = None if self._has_time or self._derived is None else self._time
            self._rows.judge(self._last_rows(self._rows.width)[:INFER_RECORDS], has_keys, lacking)
        if kept is not None and request.is_same(kept[0]):
            detector.learn(kept[1])
        else:
            detector.process(request.rows, request.keys)

    @_locked
    def feedback(self, X: Any, is_outlier: Any) -> None:
        """Take verdicts; see `FoMoDetector.feedback_many`."""
        whole, detector = self._rows.rows(X, learn=True), self._current_detector()
        verdicts = _checked_verdicts(is_outlier, len(whole)).tolist()
        if detector is None:
            return
        has_derived = self._derived is not None
        equal_to_each = self._equal_records(whole) if has_derived else detector.numbers_of(self._taken_of(whole))
        for equal, verdict in zip(equal_to_each, verdicts, strict=True):
            undecided = equal[~detector.has_verdict(equal)]
            meant = undecided[:1] if len(undecided) else equal[-1:]
            detector.feedback(meant, np.full(len(meant), verdict))
            self._verdicts |= dict.fromkeys(meant.tolist(), verdict)
        oldest = detector.records - len(self._learned)
        self._verdicts = {number: verdict for number, verdict in self._verdicts.items() if number >= oldest}
        self._scored = None

    def _equal_records(self, whole: Float) -> list[Int]:
        """Return for each of rows (n, width) the numbers of the last records with equal values, except derived ones."""
        assert self._derived is not None
        assert self.detector is not None
        own = [name not in self._derived.names for name in self._rows.names]
        learned, first = self._last_rows(self._rows.width)[:, own], self.detector.records - len(self._learned)
        equal = [(learned == row) | (np.isnan(learned) & np.isnan(row)) for row in whole[:, own]]
        return [first + np.flatnonzero(is_equal.all(axis=1)) for is_equal in equal]

    def _with_derived(self, data: OpenedData, learn: bool = False) -> OpenedData:
        """Return records with their derived features, if there are any."""
        if self._derived is None:
            return data
        records = data.records() if isinstance(data, Columns) else data
        keys: Sequence[Key] = self._rows.keys(records) or [None] * len(records)
        values = [] if self._time is None else [record.get(self._time) for record in records]
        times = list(map(_time_of, values)) or [None] * len(records)
        if learn and values:
            self._has_time |= any(time is not None for time in times)
            self._rows.warn_of_times(self._time, compress(values, (time is None for time in times)))
        return self._derived.follow(records, keys, times, learn)

    def _score(self, detector: Detector, request: _Request) -> DetectorCall:
        """Return the scored records. The next call may end this one."""
        if (scored := self._scored) is not None:
            if request.is_same(scored[0]):
                return scored[1]
            detector.release(scored[1])
        self._scored = None
        self._scored = request, (call := detector.peek(request.rows, request.keys))
        return call

    def _forget_large(self) -> None:
        """Forget what was scored last if it takes much memory."""
        if self._scored is not None and self._scored[1].n > MAX_WORK_RECORDS:
            self._scored = None

    def _request(self, data: OpenedData, learn: bool = False) -> tuple[_Request, Detector | None]:
        """Return the rows of records, and the detector. learn: see `OpenRows.rows`.

        The detector may know fewer features, see `_current_detector`.
        """
        data = self._with_derived(data, learn)
        quick = self._rows.quick_row(data, learn) if self._derived is None else None
        whole = self._rows.rows(data, learn) if quick is None else quick
        if self._derived is not None:
            self._derived.limit(whole, self._rows.names)
        detector, rows, keys = self.detector, whole, self._rows.keys(data)
        if self._width < whole.shape[1] or detector is None:
            detector = self._current_detector()
        if len(self._taken) < whole.shape[1]:
            rows = self._taken_of(whole)
        if self._scored is not None and whole is self._scored[0].whole and keys == self._scored[0].keys:
            return self._scored[0], detector
        if rows is quick or is_complete(rows):
            return _Request(whole, rows, slice(None), keys), detector
        places = np.flatnonzero(has_values(rows))
        keys = None if keys is None else [keys[i] for i in places.tolist()]
        return _Request(whole, rows[places], places, keys), detector

    def _current_detector(self) -> Detector | None:
        """Return the detector; None before any feature is known.

        It has all known features, unless it was widened a few records ago: widening learns all the last records again,
        so new features have to wait where nearly every record has one.
        """
        width = self._rows.width
        if self._saved is not None:
            saved_width, entries = self._saved
            detector = self._make(saved_width)
            detector.recover(entries)  # a refused state stays in `_saved`, and is refused again
            self.detector, self._saved, self._width = detector, None, saved_width
        if self.detector is None and width:
            self.detector, self._width = self._make(width), width
        elif self.detector is not None and self._width < width and self._since >= len(self._learned) // 20:
            self.detector, self._scored, self._since = self._widened(self.detector.records, width), None, 0
            self._width = width
        return self.detector

    def _widened(self, records: int, width: int) -> Detector:
        """Make a detector of rows of this width, with the last records learned. records: number in the present one."""
        detector, first = self._make(width), records - len(self._learned)
        detector.process(self._taken_of(self._last_rows(width)), [key for _, key in self._learned])
        self._verdicts = {number - first: verdict for number, verdict in self._verdicts.items() if number >= first}
        detector.feedback(np.array([*self._verdicts], np.int64), np.array([*self._verdicts.values()], bool))
        return detector

    def _last_rows(self, width: int) -> Float:
        """Return the last learned rows (n, width), with NaN for features that were not known at their time."""
        rows = np.full((len(self._learned), width), np.nan)
        for row, (learned, _) in zip(rows, self._learned, strict=True):
            row[: len(learned)] = learned
        return rows

    def _make(self, width: int) -> Detector:
        model = shared_model(self.model, self.device, self.kernel)
        limit = model.config.max_features(len(self._rows.categorical))
        self._taken = random_columns(self._rows.names[:width], limit)
        if len(self._taken) < width:
            self._rows.warn_of_untaken(len(self._taken))
        detector = Detector(model, len(self._taken), self.config, None, *self._special())
        if self._reference is not None:
            rows, keys = self._reference
            whole = np.pad(rows, [(0, 0), (0, width - rows.shape[1])], constant_values=np.nan)
            self._rows.warn_of_reference(whole, self._taken, keys)
            detector.set_reference(self._taken_of(whole), keys)
        return detector

    def _special(self) -> list[tuple[int, ...]]:
        """Return the columns of the detector with category codes, and those with totals of counters."""
        special = self._rows.categorical, self._rows.counters
        return [tuple(i for i, column in enumerate(self._taken) if column in columns) for columns in special]

    def _taken_of(self, whole: Float) -> Float:
        """Return the columns that the detector has, from rows with all features."""
        return whole[:, self._taken]

    def _begin(self) -> None:
        self._learned, self._verdicts, self._since = deque(maxlen=self.config.history_rows), {}, 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = RLock()
        if "_learned" not in state:  # an older pickle: a new feature can only learn records from now on again
            self._begin()

    @_locked
    def __getstate__(self) -> dict[str, Any]:
        """Return settings, features and the state of the detector, without the weights, which are loaded by name."""
        state = self.__dict__.copy()
        if self.detector is not None:
            state["_saved"] = self._width, self.detector.copy().changes()
        state["detector"] = None
        state["_scored"] = None
        return {name: value for name, value in state.items() if name != "_lock"}


def _checked_verdicts(values: Any, n: int) -> NDArray[np.bool_]:
    """Return verdicts (n,), which have to be booleans, or 0 and 1. Raises SchemaError."""
    verdicts = np.ravel(np.asarray(values, dtype=object)).tolist()
    if len(verdicts) != n:
        raise SchemaError(f"{counted(len(verdicts), 'verdict')} for {counted(n, 'record')}; give one for each")
    for verdict in verdicts:
        if not (isinstance(verdict, (Real, np.bool_)) and verdict in (0, 1)):
            raise SchemaError(f"a verdict is True for an outlier, else False, not {verdict!r}")
    return np.array(verdicts, dtype=bool)
