"""Features that are computed by key as records come, from a record and the earlier ones of its key.

A window has the records of the time (time - duration, time], with the record itself, as in `RANGE ... PRECEDING` of
SQL, River and pandas. `new`, `share`, `change` and the others compare the record with those before it. A missing input
gives a missing value, and changes nothing.

The time of a key never goes back: a late record gets the time of the latest one before it. A record that is late by
more than MAX_LATENESS_MS and the longest window shows that an earlier time was wrong, such as one in the future. Then
all features that depend on times begin again; else they would stand still until that time.

The state of a key is bounded. A window has up to MAX_WINDOW_ENTRIES entries, at first one for each record. If there
are more, those in the same WINDOW_CELLS-th part of the window become one, which leaves the window with its last record.
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

MAX_WINDOW_ENTRIES, WINDOW_CELLS = 64, 32  # of a window
MAX_KNOWN_VALUES = 100  # different values that are kept of a key; the least recent ones are forgotten
MAX_SHARE_RECORDS = 1000  # records of a key in a share; from then on, each of them counts half
RATIO_DECAY = 0.99  # weight of a record of a ratio, relative to that of the next one
MAX_LATENESS_MS = 86_400_000
MIN_TRIP_MS = 360_000  # positions are not exact: in a shorter time, their error would look like a speed
EARTH_KM = 6371.0
MAX_INPUT = 1e280  # so that sums and differences stay finite; a product would have to be limited
LAST_USE, LATEST_TIME, FIRST_FEATURE = 0, 1, 2  # positions in the state of a key

Float = NDArray[np.float64]
Value = float | None
FeatureState = list[Any]  # of one feature and key: numbers, or lists of numbers


class DerivedFeatures(Copied):
    """Compute the derived features of a partition.

    max_keys: keys that are kept; the least recently used are forgotten. marks: numbers that mean "missing", by field.
    The features of a record depend on the records before it, never on how they are split over calls.

    >>> from fomo_stream.records.derivations import parse_derivations
    >>> derived = DerivedFeatures(parse_derivations(["count(10m)", "new(device)"]), max_keys=10)
    >>> derived.follow([{"device": "a"}, {"device": "b"}], ["u", "u"], [0, 500])
    [{'device': 'a', 'count(10m)': 1, 'new(device)': None}, {'device': 'b', 'count(10m)': 2, 'new(device)': 1}]
    """

    def __init__(self, derivations: Sequence[Derivation], max_keys: int, marks: Marks | None = None) -> None:
        self.names = tuple(spec.name for spec in derivations)
        self.inputs = tuple(dict.fromkeys(field for spec in derivations for field in spec.fields))
        self._max_keys, self._n = max_keys, 0
        self._patience = max(MAX_LATENESS_MS, *(spec.window_ms for spec in derivations), 0)
        # the inputs, each read once, and for each feature the positions of its own
        inputs = list(dict.fromkeys((path, spec.takes_categories) for spec in derivations for path in spec.fields))
        self._reads = [
            (_category_input if is_code else _number_input, path, frozenset(marks_of(path, marks or {}, is_code)))
            for path, is_code in inputs
        ]
        self._columns = [
            (
                spec.name,
                _FUNCTIONS[spec.function],
                [inputs.index((path, spec.takes_categories)) for path in spec.fields],
                spec.is_timed,
                spec.window_ms,
            )
            for spec in derivations
        ]
        self._timed = tuple(position for position, spec in enumerate(derivations, FIRST_FEATURE) if spec.is_timed)
        self._of_key: dict[bytes, FeatureState] = {}  # the least recently used first
        self._recovered()

    def __bool__(self) -> bool:
        """Return whether there are features."""
        return bool(self.names)

    def _recovered(self) -> None:
        """Start with an empty log."""
        self._logged: set[bytes] = set()
        self._written = set(self._of_key)

    def follow(
        self, records: Sequence[Mapping[Any, Any]], keys: Sequence[Key], times: Sequence[int | None], learn: bool = True
    ) -> list[dict[Any, Any]]:
        """Return the next records (n,), each with its derived features as more fields.

        times: milliseconds since 1970, None: not known. learn: False: nothing changes.
        """
        extended, unlearned = [], dict[bytes, FeatureState]()
        for record, key, time in zip(records, keys, times, strict=True):
            digest = b"" if key is None else digest_of(key)
            if learn:
                state = self._use_state(digest)
            else:
                stored = self._of_key.get(digest)
                state = unlearned.setdefault(digest, self._new_state() if stored is None else _copy_of_state(stored))
            extended.append({**record, **self._values(state, record, time)})
        return extended

    def limit(self, rows: Float, names: Sequence[Any]) -> None:
        """Clear the derived features of rows (n, d) that have no value of another feature, if there is any other.

        So a record without a value stays one: a `count` alone would give each record a value.
        """
        others = [name not in self.names for name in names]
        rows[np.isnan(rows[:, others]).all(axis=1) & any(others)] = np.nan

    def _new_state(self) -> FeatureState:
        return [0, None, *([] for _ in self._columns)]

    def _use_state(self, digest: bytes) -> FeatureState:
        """Return the state of a key that is used now. If there are too many keys, forget some of them together."""
        if (state := self._of_key.pop(digest, None)) is None:
            state = self._new_state()
        self._n += 1
        state[LAST_USE] = self._n
        self._of_key[digest] = state
        self._written.add(digest)
        if len(self._of_key) > self._max_keys:
            for old_digest in list(islice(self._of_key, 1 + self._max_keys // FORGET_DIVISOR)):
                del self._of_key[old_digest]
        return state

    def _values(self, state: FeatureState, record: Mapping[str, Any], time: int | None) -> dict[str, Value]:
        """Return the features of the next record of a key."""
        latest, is_late = state[LATEST_TIME], False
        if time is not None:
            if is_late := latest is not None and time < latest:
                if is_begun_again := latest - time > self._patience:
                    is_late = False
                    for position in self._timed:
                        state[position] = []
                time = time if is_begun_again else latest
            state[LATEST_TIME] = time
        inputs_read = [read(record, path, marks) for read, path, marks in self._reads]
        values: dict[str, Value] = {}
        for position, (name, function, input_positions, is_timed, window_ms) in enumerate(self._columns, FIRST_FEATURE):
            inputs = [inputs_read[input_position] for input_position in input_positions]
            is_missing = None in inputs or (is_timed and time is None)
            values[name] = None if is_missing else function(state[position], inputs, time, is_late, window_ms)
        return values

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Return the entries of keys that were used or forgotten since the last call; the first call returns all."""
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
            states = {bytes.fromhex(name.strip("-")): orjson.loads(value) for name, value in entries.items()}
            self._of_key = dict(sorted(states.items(), key=lambda entry: int(entry[1][LAST_USE])))
            if any(len(state) != FIRST_FEATURE + len(self._columns) for state in states.values()):
                raise ValueError("another number of features")
        except (ValueError, TypeError, LookupError) as error:
            raise DamagedStateError(f"the state of the derived features is not readable ({error})") from None
        self._n = max((state[LAST_USE] for state in self._of_key.values()), default=0)
        self._logged, self._written = set(self._of_key), set()


def _copy_of_state(state: FeatureState) -> FeatureState:
    """Return a copy, also of the lists inside."""
    return [_copy_of_state(item) if isinstance(item, list) else item for item in state]


# --- inputs


def _number_input(record: Mapping[str, Any], path: str, marks: frozenset[float]) -> Value:
    """Return the number in a field; None: it is missing."""
    value = record.get(path)
    if type(value) is not float:
        value = number_of(look_up(record, path) if value is None or isinstance(value, dict) else value)
    if value in marks or not isfinite(value):
        return None
    return value if -MAX_INPUT < value < MAX_INPUT else copysign(MAX_INPUT, value)


def _category_input(record: Mapping[str, Any], path: str, marks: frozenset[float]) -> Value:
    """Return the code of the category in a field; None: it is missing."""
    code = category_code(look_up(record, path))
    return None if code != code or code in marks else code


# --- functions: of the state of the feature, inputs, time (ms), whether the record is late, and window (ms)


def _add_to_window(state: FeatureState, time: int, window_ms: int, *numbers: float) -> None:
    """Add the numbers of a record to a window, which has lists of times and numbers in the order of time."""
    if not state:
        state += [[] for _ in range(1 + len(numbers))]
    times = state[0]
    if times and times[0] <= time - window_ms:
        _drop_before(state, time - window_ms)
    times.append(time)
    for i, number in enumerate(numbers, 1):
        state[i].append(number)
    if len(times) > MAX_WINDOW_ENTRIES:
        cell = max(1, window_ms // WINDOW_CELLS)
        is_first = [i for i in range(1, len(times)) if times[i] // cell != times[i - 1] // cell]
        parts = list(pairwise([0, *is_first, len(times)]))
        times[:] = [times[stop - 1] for _, stop in parts]
        for column in state[1:]:
            column[:] = [fsum(column[start:stop]) for start, stop in parts]


def _drop_before(state: FeatureState, begin: int, of_times: int = 0) -> None:
    """Remove the entries whose times are not after the begin of the window."""
    if gone := bisect_right(state[of_times], begin):
        for column in state:
            del column[:gone]


def _next_count(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    _add_to_window(state, time, window_ms, 1)
    return int(sum(state[1]))


def _next_gap(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    gap = (time - state[0]) / 1000.0 if state else None
    state[:] = [time]
    return gap


def _next_sum(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    _add_to_window(state, time, window_ms, *inputs)
    return fsum(state[1])


def _next_mean(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    _add_to_window(state, time, window_ms, *inputs, 1)
    return fsum(state[1]) / sum(state[2])


def _note_value(state: FeatureState, code: float, number: float, default: float = 0.0) -> float:
    """Note a value, with a number, as the last one. Return the number that it had before, or `default`."""
    if not state:
        state += [[], []]
    codes, numbers = state
    if code in codes:
        position = codes.index(code)
        default = numbers[position]
        del codes[position], numbers[position]
    codes.append(code)
    numbers.append(number)
    if len(codes) > MAX_KNOWN_VALUES:
        del codes[0], numbers[0]
    return default


def _next_distinct(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    _note_value(state, inputs[0], time)
    _drop_before(state, time - window_ms, of_times=1)
    return len(state[0])


def _next_new(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    is_first = not state
    was_seen = _note_value(state, inputs[0], 1)
    return None if is_first else 1 - int(was_seen)


def _next_share(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    total = fsum(state[1]) if state else 0.0
    before = _note_value(state, inputs[0], 0)
    state[1][-1] = before + 1
    if total >= MAX_SHARE_RECORDS:
        state[1][:] = [count / 2 for count in state[1]]
    return before / total if total else None


def _next_rate(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    """Return the growth per second, as of a counter: one that falls has begun again at 0."""
    if not state:
        state[:] = [inputs[0], time]
        return None
    (before, then), (now,) = state, inputs
    if is_late or time <= then:
        return None
    state[:] = [now, time]
    return float(1000.0 * (now - before if now >= before else max(now, 0.0)) / (time - then))


def _next_speed(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    """Return the speed in km/h on the great circle."""
    lat, lon = inputs
    if is_late or abs(lat) > 90.0 or abs(lon) > 180.0 or lat == lon == 0.0:
        return None
    before, state[:] = [*state], [lat, lon, time]
    if not before:
        return None
    north, east = radians(lat - before[0]), radians(lon - before[1])
    square = sin(north / 2) ** 2 + cos(radians(lat)) * cos(radians(before[0])) * sin(east / 2) ** 2
    km = 2.0 * EARTH_KM * asin(min(1.0, sqrt(square)))
    return float(km / (max(time - before[2], MIN_TRIP_MS) / 3_600_000))


def _next_change(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    change = inputs[0] - state[0] if state else None
    state[:] = inputs
    return change


def _next_ratio(state: FeatureState, inputs: FeatureState, time: int, is_late: bool, window_ms: int) -> Value:
    """Return a mean of the record's own ratio and that of its key, weighted by the record's number and the usual one.

    So 1 error of 1 request does not look like a ratio of 100 %.
    """
    part, whole = inputs
    if whole <= 0.0 or part < 0.0:
        return None
    parts, wholes, records = state or (0.0, 0.0, 0.0)
    state[:] = [RATIO_DECAY * parts + part, RATIO_DECAY * wholes + whole, RATIO_DECAY * records + 1.0]
    shrunk: float = (part + parts / max(records, 1.0)) / (whole + wholes / max(records, 1.0))
    return shrunk if records else None


_FUNCTIONS: dict[str, Callable[[FeatureState, FeatureState, Any, bool, int], Value]] = {
    "count": _next_count,
    "gap": _next_gap,
    "sum": _next_sum,
    "mean": _next_mean,
    "distinct": _next_distinct,
    "new": _next_new,
    "share": _next_share,
    "rate": _next_rate,
    "speed": _next_speed,
    "change": _next_change,
    "ratio": _next_ratio,
}


def inputs_without_value(
    derivations: Iterable[Derivation], records: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return the input fields that none of these records has, and what they lack: a number, or any value."""
    reads = [(path, derivation.takes_categories) for derivation in derivations for path in derivation.fields]
    return [
        (path, "value" if by_code else "number")
        for path, by_code in dict.fromkeys(reads)
        if all((_category_input if by_code else _number_input)(record, path, frozenset()) is None for record in records)
    ]
