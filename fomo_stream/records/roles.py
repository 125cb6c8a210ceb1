"""Find the fields whose values show their role: the time of a record, and the name of its series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

from fomo_stream.limits import INFER_RECORDS
from fomo_stream.records.inference import MAX_FIELD_NAMES, is_missing, is_time_field, leaves_of, words_of
from fomo_stream.records.times import to_milliseconds

KEY_WORDS = {"id", "device", "machine", "sensor", "user", "host", "station", "pump", "unit", "customer", "account"} | {
    *("line", "asset", "serial", "key", "name", "node", "instance", "vehicle", "meter", "client")
}
WORDS_OF_TEXTS = {"line", "unit", "key", "name"}  # of these, only in the names of texts: a number may count or measure
MIN_RECORDS_PER_KEY = 5  # records of a key, on average
MIN_RECORDS_PER_TIME = 1.5  # on average, if the texts of records of one time are keys


def known_values(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return by field the values that are not missing, in the order of the records; of the first MAX_FIELD_NAMES."""
    leaves = dict[str, list[Any]]()
    for record in records:
        for path, value in islice(leaves_of(record), MAX_FIELD_NAMES):
            if not is_missing(value) and (path in leaves or len(leaves) < MAX_FIELD_NAMES):
                leaves.setdefault(path, []).append(value)
    return leaves


def find_time(leaves: Mapping[str, Sequence[Any]]) -> tuple[str, bool] | None:
    """Return the first field with times that never descend, or else the first with times, and whether it is ordered."""
    times = [path for path, values in leaves.items() if is_time_field(path, values[:INFER_RECORDS])]
    ordered = next((path for path in times if _is_ascending(leaves[path])), None)
    return (ordered, True) if ordered is not None else (times[0], False) if times else None


def _is_ascending(values: Sequence[Any]) -> bool:  # the time zone does not matter
    stamps = [stamp for value in values if (stamp := to_milliseconds(value)) is not None]
    return all(a <= b for a, b in pairwise(stamps))


def find_key(leaves: Mapping[str, Sequence[Any]], n: int, times: Sequence[Any] = ()) -> tuple[str, int] | None:
    """Return the field that distinguishes series, and the number of its values.

    Its values repeat, and either its name is usual for keys, or each value comes once at each time. n: number of
    records; times: (n,) of the records, empty if they have none.
    """
    counts = {}
    for path, values in leaves.items():
        is_name = all(isinstance(value, str) or type(value) is int for value in values)
        words = KEY_WORDS if all(isinstance(value, str) for value in values) else KEY_WORDS - WORDS_OF_TEXTS
        if is_name and len(values) > n / 2 and (words & set(words_of(path)) or _take_turns(values, times)):
            distinct = len(set(map(str, values)))
            if 2 <= distinct <= len(values) / MIN_RECORDS_PER_KEY:
                counts[path] = distinct
    return max(counts.items(), key=lambda item: item[1], default=None)


def _take_turns(values: Sequence[Any], times: Sequence[Any]) -> bool:
    """Return whether several of these texts come at each time, and none of them twice."""
    pairs = list(zip(map(str, times), values, strict=True)) if len(times) == len(values) else []
    at_once = len(pairs) / max(1, len({time for time, _ in pairs}))
    return at_once >= MIN_RECORDS_PER_TIME and isinstance(values[0], str) and len(set(pairs)) == len(pairs)
