"""Features that are computed by key as records come, from the record and those of its key before it.

A window of a duration has the records whose times are after its begin, up to the record itself, which counts: (time -
duration, time], as `RANGE ... PRECEDING` of SQL, River and pandas have it. `new`, `share`, `change` and the others
compare the record with those before it. A missing input gives a missing value, and changes nothing.

The time of a key never goes back: a record that is late has the time of the latest before it. One that is later than
PATIENCE_MS, and than the longest window, shows that a time was wrong: all that depends on times begins again.

What is kept of a key is bounded. A window has up to MOST_ENTRIES entries, records at first. If there are more, those in
the same CELLS-th part of the window become one, which leaves the window with its last record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from math import asin, copysign, cos, fsum, isfinite, radians, sin, sqrt
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Copied, Entries, StoredEntries
from fomo_stream.detector.keys import FORGET_DIVISOR, Key, digest_of
from fomo_stream.errors import DamagedStateError
from fomo_stream.records.category_codes import category_code
from fomo_stream.records.derivations import Derivation
from fomo_stream.records.missing_values import Marks, marks_of
from fomo_stream.records.schema import look_up, number_of

MOST_ENTRIES, CELLS = 64, 32  # of a window
MOST_VALUES = 100  # different values of a key that are known; those seen least recently are forgotten
MOST_COUNTED = 1000  # records of a key that a share is of: then each counts half
MEMORY = 0.99  # weight of a record of a ratio, relative to that of the next one
PATIENCE_MS = 86_400_000
LEAST_TRIP_MS = 360_000  # positions are not exact: a shorter time would make a speed of the error
EARTH_KM = 6371.0
LARGEST = 1e280  # so that sums are finite
USED, LATEST, FIRST = 0, 1, 2  # places in what is kept of a key: when it was used, its time, the first of the features

Float = NDArray[np.float64]
Value = float | None
State = list[Any]  # of one feature and key: numbers, or lists of numbers


class Derived(Copied):
    """Computes the features of a partition.

    max_keys: keys that are known; those used least recently are forgotten. marks: numbers that mean "missing", by
    field. What it says of a record depends on the records before it, never on how they are split over calls.

    >>> from fomo_stream.records.derivations import derivations_of
    >>> derived = Derived(derivations_of(["count(10m)", "new(device)"]), max_keys=10)
    >>> derived.follow([{"device": "a"}, {"device": "b"}], ["u", "u"], [0, 500])
    [{'device': 'a', 'count(10m)': 1, 'new(device)': None}, {'device': 'b', 'count(10m)': 2, 'new(device)': 1}]
    """

    def __init__(self, derivations: Sequence[Derivation], max_keys: int, marks: Marks | None = None) -> None:
        self.names = tuple(one.name for one in derivations)
        self.inputs = tuple(dict.fromkeys(field for one in derivations for field in one.fields))
        self._max_keys, self._n = max_keys, 0
        self._patience = max(PATIENCE_MS, *(one.window_ms for one in derivations), 0)
        # the inputs, each read once, and for each feature the places of its own
        inputs = list(dict.fromkeys((path, one.of_categories) for one in derivations for path in one.fields))
        self._reads = [
            (_code if is_code else _number, path, frozenset(marks_of(path, marks or {}, is_code)))
            for path, is_code in inputs
        ]
        self._columns = [
            (
                one.name,
                _FUNCTIONS[one.function],
                [inputs.index((path, one.of_categories)) for path in one.fields],
                one.is_timed,
                one.window_ms,
            )
            for one in derivations
        ]
        self._timed = tuple(at for at, one in enumerate(derivations, FIRST) if one.is_timed)
        self._of_key: dict[bytes, State] = {}  # those used least recently first
        self._recovered()

    def __bool__(self) -> bool:
        """Whether there are features."""
        return bool(self.names)

    def _recovered(self) -> None:
        """Start with an empty log."""
        self._logged: set[bytes] = set()
        self._written = set(self._of_key)

    def follow(
        self,
        records: Sequence[Mapping[Any, Any]],
        keys: Sequence[Key],
        times: Sequence[int | None],
        learn: bool = True,
    ) -> list[dict[Any, Any]]:
        """The next records (n,), each with its derived features as more fields.

        times: milliseconds since 1970, None: not known. learn: else nothing changes.
        """
        found, only_looked_at = [], dict[bytes, State]()
        for record, key, time in zip(records, keys, times, strict=True):
            digest = b"" if key is None else digest_of(key)
            if learn:
                state = self._use(digest)
            else:
                known = self._of_key.get(digest)
                state = only_looked_at.setdefault(digest, self._nothing() if known is None else _independent(known))
            found.append({**record, **self._values(state, record, time)})
        return found

    def limit(self, rows: Float, names: Sequence[Any]) -> None:
        """Take the derived features of rows (n, d) that have no value of another feature, if there is any other.

        So a record without a value stays one.
        """
        others = [name not in self.names for name in names]
        rows[np.isnan(rows[:, others]).all(axis=1) & any(others)] = np.nan

    def _nothing(self) -> State:
        """What is known of a new key."""
        return [0, None, *([] for _ in self._columns)]

    def _use(self, digest: bytes) -> State:
        """What is known of a key that is used now. If there are too many keys, some are forgotten at once."""
        if (state := self._of_key.pop(digest, None)) is None:
            state = self._nothing()
        self._n += 1
        state[USED] = self._n
        self._of_key[digest] = state
        self._written.add(digest)
        if len(self._of_key) > self._max_keys:
            for one in list(islice(self._of_key, 1 + self._max_keys // FORGET_DIVISOR)):
                del self._of_key[one]
        return state

    def _values(self, state: State, record: Mapping[str, Any], time: int | None) -> dict[str, Value]:
        """The features of the next record of a key."""
        latest, is_late = state[LATEST], False
        if time is not None:
            if is_late := latest is not None and time < latest:
                if is_begun_again := latest - time > self._patience:
                    is_late = False
                    for at in self._timed:
                        state[at] = []
                time = time if is_begun_again else latest
            state[LATEST] = time
        given = [read(record, path, marks) for read, path, marks in self._reads]
        values: dict[str, Value] = {}
        for at, (name, function, places, is_timed, window_ms) in enumerate(self._columns, FIRST):
            inputs = [given[place] for place in places]
            is_missing = None in inputs or (is_timed and time is None)
            values[name] = None if is_missing else function(state[at], inputs, time, is_late, window_ms)
        return values

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """The entries of keys that were used or forgotten since the last call; at first of all."""
        entries: Entries = {}
        for digest in sorted(self._written | (self._logged - self._of_key.keys())):
            if (state := self._of_key.get(digest)) is not None:
                entries[digest.hex() or "-"] = orjson.dumps(state)
                self._logged.add(digest)
            elif digest in self._logged:
                entries[digest.hex() or "-"] = None
                self._logged.remove(digest)
        self._written.clear()
        return entries

    def recover(self, entries: StoredEntries) -> None:
        """Take the state from the entries. Raises DamagedStateError."""
        try:
            found = {bytes.fromhex(name.strip("-")): orjson.loads(value) for name, value in entries.items()}
            self._of_key = dict(sorted(found.items(), key=lambda one: int(one[1][USED])))
            if any(len(state) != FIRST + len(self._columns) for state in found.values()):
                raise ValueError("another number of features")
        except (ValueError, TypeError, LookupError) as error:
            raise DamagedStateError(f"the state of the derived features is not readable ({error})") from None
        self._n = max((state[USED] for state in self._of_key.values()), default=0)
        self._logged, self._written = set(self._of_key), set()


def _independent(state: State) -> State:
    """A copy."""
    return [_independent(one) if isinstance(one, list) else one for one in state]


# --- inputs


def _number(record: Mapping[str, Any], path: str, marks: frozenset[float]) -> Value:
    """The number in a field; None: it is missing."""
    value = record.get(path)
    if type(value) is not float:
        value = number_of(look_up(record, path) if value is None or isinstance(value, dict) else value)
    if value in marks or not isfinite(value):
        return None
    return value if -LARGEST < value < LARGEST else copysign(LARGEST, value)


def _code(record: Mapping[str, Any], path: str, marks: frozenset[float]) -> Value:
    """The code of the category in a field; None: it is missing."""
    code = category_code(look_up(record, path))
    return None if code != code or code in marks else code


# --- functions: of what is kept of the feature, inputs, time (ms), whether the record is late, and window (ms)


def _enter(state: State, time: int, window_ms: int, *numbers: float) -> None:
    """Add the numbers of a record to a window: lists of times and numbers of its entries, in the order of time."""
    if not state:
        state += [[] for _ in range(1 + len(numbers))]
    times = state[0]
    if times and times[0] <= time - window_ms:
        _leave(state, time - window_ms)
    times.append(time)
    for at, number in enumerate(numbers, 1):
        state[at].append(number)
    if len(times) > MOST_ENTRIES:
        cell = max(1, window_ms // CELLS)
        is_first = [at for at in range(1, len(times)) if times[at] // cell != times[at - 1] // cell]
        parts = list(pairwise([0, *is_first, len(times)]))
        times[:] = [times[stop - 1] for _, stop in parts]
        for column in state[1:]:
            column[:] = [fsum(column[start:stop]) for start, stop in parts]


def _leave(state: State, begin: int, of_times: int = 0) -> None:
    """Remove the entries whose times are not after the begin of the window."""
    if gone := bisect_right(state[of_times], begin):
        for column in state:
            del column[:gone]


def _count(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    _enter(state, time, window_ms, 1)
    return int(sum(state[1]))


def _gap(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    gap = (time - state[0]) / 1000.0 if state else None
    state[:] = [time]
    return gap


def _sum(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    _enter(state, time, window_ms, *inputs)
    return fsum(state[1])


def _mean(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    _enter(state, time, window_ms, *inputs, 1)
    return fsum(state[1]) / sum(state[2])


def _seen(state: State, code: float, number: float, known: float = 0.0) -> float:
    """Note a value, with a number, as the one that was seen last; returns the number that it had, or `known`."""
    if not state:
        state += [[], []]
    codes, numbers = state
    if code in codes:
        at = codes.index(code)
        known = numbers[at]
        del codes[at], numbers[at]
    codes.append(code)
    numbers.append(number)
    if len(codes) > MOST_VALUES:
        del codes[0], numbers[0]
    return known


def _distinct(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    _seen(state, inputs[0], time)
    _leave(state, time - window_ms, of_times=1)
    return len(state[0])


def _new(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    is_first = not state
    was_seen = _seen(state, inputs[0], 1)
    return None if is_first else 1 - int(was_seen)


def _share(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    total = fsum(state[1]) if state else 0.0
    before = _seen(state, inputs[0], 0)
    state[1][-1] = before + 1
    if total >= MOST_COUNTED:
        state[1][:] = [count / 2 for count in state[1]]
    return before / total if total else None


def _rate(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    """Per second, as of a counter: one that falls has begun again at 0."""
    if not state:
        state[:] = [inputs[0], time]
        return None
    (before, then), (now,) = state, inputs
    if is_late or time <= then:
        return None
    state[:] = [now, time]
    return float(1000.0 * (now - before if now >= before else max(now, 0.0)) / (time - then))


def _speed(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    """km/h on the great circle."""
    lat, lon = inputs
    if is_late or abs(lat) > 90.0 or abs(lon) > 180.0 or lat == lon == 0.0:
        return None
    before, state[:] = [*state], [lat, lon, time]
    if not before:
        return None
    north, east = radians(lat - before[0]), radians(lon - before[1])
    square = sin(north / 2) ** 2 + cos(radians(lat)) * cos(radians(before[0])) * sin(east / 2) ** 2
    km = 2.0 * EARTH_KM * asin(min(1.0, sqrt(square)))
    return float(km / (max(time - before[2], LEAST_TRIP_MS) / 3_600_000))


def _change(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    change = inputs[0] - state[0] if state else None
    state[:] = inputs
    return change


def _ratio(state: State, inputs: State, time: int, is_late: bool, window_ms: int) -> Value:
    """Between the record's own ratio and that of its key: the number of the record is its weight, and the usual number
    that of the key.
    """
    part, whole = inputs
    if whole <= 0.0 or part < 0.0:
        return None
    parts, wholes, records = state or (0.0, 0.0, 0.0)
    state[:] = [MEMORY * parts + part, MEMORY * wholes + whole, MEMORY * records + 1.0]
    shrunk: float = (part + parts / max(records, 1.0)) / (whole + wholes / max(records, 1.0))
    return shrunk if records else None


_FUNCTIONS: dict[str, Callable[[State, State, Any, bool, int], Value]] = {
    "count": _count,
    "gap": _gap,
    "sum": _sum,
    "mean": _mean,
    "distinct": _distinct,
    "new": _new,
    "share": _share,
    "rate": _rate,
    "speed": _speed,
    "change": _change,
    "ratio": _ratio,
}


def inputs_without_value(
    derivations: Iterable[Derivation], records: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """The fields that none of these records has as an input, and what is missing there: a number, or any value."""
    reads = [(path, one.of_categories) for one in derivations for path in one.fields]
    return [
        (path, "value" if of_categories else "number")
        for path, of_categories in dict.fromkeys(reads)
        if all((_code if of_categories else _number)(record, path, frozenset()) is None for record in records)
    ]
