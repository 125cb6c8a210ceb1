"""Incidents: the alerts of one series that belong together, and one record that sums them up.

An incident begins with an alert. It ends after some records of its series without an alert, or after some records of
its partition without one of that series, so that it also ends where a key does not come back. These are numbers of
records, never times, so a replay finds the same incidents.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Copied, Entries, StoredEntries
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.errors import DamagedStateError
from fomo_stream.records.result import Result

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

MAX_FIELD_BYTES = 16 << 10  # of a key, and of reasons: longer ones are left out, so that memory is bounded
WORST_FIELDS = ("score", "remembered_logit", "p_value", "severity")  # fields of the worst alert
REASON_FIELDS = ("reasons", "explanation")
CLOSED = "closed"


class Notice(NamedTuple):
    """What is told beside the alerts themselves: that an incident has ended, or of silence."""

    offset: int | None  # of the record that it comes before; None: no record came
    key: bytes | None  # of its series; None: the series of the whole partition
    first: int  # offset of its first alert, or of the last record before the silence
    summary: Result  # JSON-ready


class AlertGroups(Copied):
    """Which alerts of one partition belong together. All that counts incidents counts them by this.

    quiet: an incident ends after so many records of its series without an alert, or so many of the partition without
    one of its series. `open` has, by number of the series (see `Results.series`), the number of its last record in the
    partition, and how many records of it have come since its last alert; the series that was seen last is the last.
    """

    def __init__(self, quiet: tuple[int, int]) -> None:
        self._of_series, self._of_all = quiet
        self.open: dict[int, tuple[int, int]] = {}

    def follow(self, series: int, is_new: bool, is_alert: bool, number: int) -> tuple[list[int], bool]:
        """The series whose incidents end with the next record, in order, and whether one begins with it.

        is_new: whether `series` stood for another series until now; number: of the record in the partition.
        """
        ended = [series] if is_new and series in self.open else []
        before = None if ended else self.open.get(series)
        self.open.pop(series, None)
        if is_alert or before is not None:
            self.open[series] = number, 0 if is_alert or before is None else before[1] + 1
            if self.open[series][1] >= self._of_series:
                del self.open[series]
                ended.append(series)
        oldest = next(iter(self.open), None)
        if oldest is not None and number - self.open[oldest][0] >= self._of_all:
            del self.open[oldest]
            ended.append(oldest)
        return ended, is_alert and before is None


def incident_begins(series: Int, is_new: Bool, is_alert: Bool, quiet: tuple[int, int]) -> Bool:
    """Which of all n records of a partition begin an incident, if these alert. All (n,), as `Groups.follow` has them.

    >>> begins_of(np.zeros(5, int), np.zeros(5, bool), np.array([1, 1, 0, 0, 1], bool), (2, 1000)).tolist()
    [True, False, False, False, True]
    """
    groups, begins = AlertGroups(quiet), np.zeros(len(series), bool)
    for number, one in enumerate(zip(series.tolist(), is_new.tolist(), is_alert.tolist(), strict=True)):
        if one[2] or groups.open:
            begins[number] = groups.follow(*one, number)[1]
    return begins


class _OpenIncident(NamedTuple):
    """An incident that has not ended; never changed in place."""

    key: bytes | None
    summary: Result


class Incidents(Copied):
    """The open incidents of one partition, at most one for each number of a series (see `Results.series`).

    quiet: as of `Groups`. topic, partition: where the records come from; without them, an incident is named by the
    offset alone. What it says of a record depends on the records before it, never on how they are split over calls.
    """

    def __init__(self, quiet: tuple[int, int], topic: str | None = None, partition: int | None = None) -> None:
        self._groups = AlertGroups(quiet)
        self._source = {} if topic is None else {"topic": topic, "partition": partition}
        self._prefix = "" if partition is None else f"{partition}-"
        self._open: dict[int, _OpenIncident] = {}  # by number of the series, as in the groups
        self._recovered()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open(self) -> tuple[Result, ...]:
        """What is known so far of each open incident, as in the record that will sum it up."""
        return tuple(found.summary for found in self._open.values())

    def follow(
        self, results: Sequence[Result], scored: Results, keys: Sequence[Key], offsets: Sequence[int], first: int
    ) -> list[Notice]:
        """Give each alert among the next records its `incident` and how much `surprise` it has so far.

        Returns the incidents that have ended, in order.

        results: (n,) of the records, made from `scored`; keys, offsets: (n,) of the records; first: the first record's
        number in the partition, one more than the last record's of the call before.
        """
        if not self._open and not scored.outlier.any():
            return []
        closed: list[Notice] = []
        columns = (results, scored.series.tolist(), scored.begins.tolist(), keys, offsets)
        for number, (result, slot, is_new, key, offset) in enumerate(zip(*columns, strict=True), first):
            _, quiet = self._groups.open.get(slot, (0, 0))
            ended, is_first = self._groups.follow(slot, is_new, result["outlier"], number)
            closed += [self._close(one, offset) for one in ended]
            if result["outlier"]:
                self._alert(slot, key, offset, result, None if is_first else quiet)
            else:
                self._counted.add(slot)
        return closed

    def _alert(self, slot: int, key: Key, offset: int, result: Result, quiet: int | None) -> None:
        """An alert that begins an incident, or (quiet: records of its series since the last one) continues it."""
        place = {"offset": offset, "timestamp": result.get("timestamp")}
        if quiet is None:
            its_key = None if slot == 0 else _stored_key(key)
            named = {} if its_key is None else {"key": its_key.decode("utf-8", "replace")}
            begin = {"incident": f"{self._prefix}{offset}", "status": CLOSED, **self._source, **named, "from": place}
            summary = {**begin, "to": place, "records": 1, "span": 1, "surprise": 0.0, **_worst_alert(place, result)}
        else:
            its_key, before = self._open[slot]
            summary = {**before, "to": place, "records": before["records"] + 1, "span": before["span"] + quiet + 1}
            if _alert_rank(result) > _alert_rank(summary["worst"]):
                summary = {name: value for name, value in summary.items() if name not in REASON_FIELDS} | _worst_alert(
                    place, result
                )
        # 1 - score is the chance of such a record, so of unrelated records this is minus the logarithm of that of all
        summary["surprise"] = round(summary["surprise"] - math.log(1.0 - (result["score"] or 0.0)), 3)
        self._open[slot] = _OpenIncident(its_key, summary)
        self._changed.add(slot)
        result |= {name: summary[name] for name in ("incident", "surprise")}

    def _close(self, slot: int, offset: int) -> Notice:
        found = self._open.pop(slot)
        self._changed.add(slot)
        return Notice(offset, found.key, found.summary["from"]["offset"], found.summary)

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """The changes since the last call, as entries of a compacted log.

        Each open incident has two entries: its summary, and the small numbers that change with every record.
        """
        entries: Entries = {}
        for slot in self._changed | self._counted:
            if (found := self._open.get(slot)) is None:
                entries |= {f"{slot}/open": None, f"{slot}/quiet": None} if slot in self._logged else {}
                self._logged.discard(slot)
                continue
            seen, quiet = self._groups.open[slot]
            entries[f"{slot}/quiet"] = b"%d %d" % (quiet, seen)
            if slot in self._changed:
                entries[f"{slot}/open"] = _encode(found)
                self._logged.add(slot)
        self._changed.clear()
        self._counted.clear()
        return entries

    def recover(self, entries: StoredEntries) -> None:
        """Take the open incidents from the entries, in place of those here. Raises DamagedStateError."""
        try:
            found = [_decode(name, entries) for name in entries if name.endswith("/open")]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"the open incidents are not readable ({error})") from None
        self._open = {slot: incident for slot, incident, _ in found}
        self._groups.open = {slot: at for slot, _, at in sorted(found, key=lambda one: one[2])}
        self._recovered()
        self._changed.clear()
        self._logged.update(self._open)

    def _recovered(self) -> None:
        """Start with an empty log."""
        self._changed: set[int] = set(self._open)  # incidents that were opened, closed, or had an alert
        self._counted: set[int] = set()  # those whose series had other records
        self._logged: set[int] = set()  # those with entries


def without_reasons(summary: Mapping[str, Any]) -> Result:
    """The summary of an incident without its longest fields."""
    return {name: value for name, value in summary.items() if name not in REASON_FIELDS}


def _worst_alert(place: Mapping[str, Any], result: Result) -> Result:
    why = {name: result[name] for name in REASON_FIELDS if name in result}
    fits = not why or len(json.dumps(why)) <= MAX_FIELD_BYTES
    return {"worst": {**place, **{name: result[name] for name in WORST_FIELDS}}, **(why if fits else {})}


def _alert_rank(alert: Mapping[str, Any]) -> tuple[float, float]:
    """The higher, the worse: the rarer one in the long run."""
    return alert["score"] or 0.0, alert["remembered_logit"] or 0.0  # none while it warms up


def _stored_key(key: Key) -> bytes | None:
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return data if data is not None and len(data) <= MAX_FIELD_BYTES else None


def _encode(found: _OpenIncident) -> bytes:
    key = None if found.key is None else b64encode(found.key).decode()
    return json.dumps({"key": key, "summary": found.summary}, separators=(",", ":")).encode()


def _decode(name: str, entries: StoredEntries) -> tuple[int, _OpenIncident, tuple[int, int]]:
    """Number of the series, incident, and its place in `Groups.open`."""
    slot, content = int(name.removesuffix("/open")), json.loads(entries[name])
    key, summary = content["key"], content["summary"]
    (
        _alert_rank(summary["worst"]),
        summary["incident"],
        summary["surprise"] + 0.0,
        summary["from"]["offset"],
        summary["records"],
        summary["span"],
    )
    key = None if key is None else b64decode(key, validate=True)
    quiet, _, seen = entries[f"{slot}/quiet"].partition(b" ")
    return slot, _OpenIncident(key, summary), (int(seen), int(quiet))
