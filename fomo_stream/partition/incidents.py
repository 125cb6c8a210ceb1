"""Incidents: the alerts of one series that belong together, and the record that summarizes them.

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

MAX_FIELD_BYTES = 16 << 10  # of a key, and of reasons; longer ones are left out, so that memory is bounded
WORST_FIELDS = ("score", "remembered_logit", "p_value", "severity")  # fields of the worst alert
REASON_FIELDS = ("reasons", "explanation")
CLOSED = "closed"


class Notice(NamedTuple):
    """A notice in addition to alerts: the end of an incident, or silence."""

    offset: int | None  # of the record that it comes before; None: no record came
    key: bytes | None  # of its series; None: the series of the whole partition
    first: int  # offset of its first alert, or of the last record before the silence
    summary: Result  # JSON-ready


class AlertGroups(Copied):
    """Group the alerts of one partition into incidents. Everything that counts incidents uses this.

    quiet: an incident ends after so many records of its series without an alert, or so many of the partition without
    a record of its series. `open` has, by number of the series (see `Results.series`), the number of its last record in
    the partition, and the number of its records since its last alert. The most recent series is the last.
    """

    def __init__(self, quiet: tuple[int, int]) -> None:
        self._of_series, self._of_all = quiet
        self.open: dict[int, tuple[int, int]] = {}

    def follow(self, series: int, is_new: bool, is_alert: bool, number: int) -> tuple[list[int], bool]:
        """Return the series whose incidents end with the next record, in order, and whether one begins with it.

        is_new: the number `series` stood for another series until now; number: of the record in the partition.
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
    """Return which of all n records of a partition begin an incident. Arguments (n,): as in `AlertGroups.follow`.

    >>> incident_begins(np.zeros(5, int), np.zeros(5, bool), np.array([1, 1, 0, 0, 1], bool), (2, 1000)).tolist()
    [True, False, False, False, True]
    """
    groups, begins = AlertGroups(quiet), np.zeros(len(series), bool)
    for number, record in enumerate(zip(series.tolist(), is_new.tolist(), is_alert.tolist(), strict=True)):
        if record[2] or groups.open:
            begins[number] = groups.follow(*record, number)[1]
    return begins


class _OpenIncident(NamedTuple):
    """An incident that has not ended; never changed in place."""

    key: bytes | None
    summary: Result


class Incidents(Copied):
    """The open incidents of one partition, at most one for each number of a series (see `Results.series`).

    quiet: as in `AlertGroups`. topic, partition: of the records; without them, the offset alone names an incident.
    The incident of a record depends on the records before it, never on how they are split over calls.
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
        """Return the summary of each open incident so far, as in the record that will report its end."""
        return tuple(incident.summary for incident in self._open.values())

    def follow(
        self, results: Sequence[Result], scored: Results, keys: Sequence[Key], offsets: Sequence[int], first: int
    ) -> list[Notice]:
        """Give each alert among the next records its `incident` and how much `surprise` it has so far.

        Returns the ended incidents, in order.

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
            closed += [self._close(series, offset) for series in ended]
            if result["outlier"]:
                self._alert(slot, key, offset, result, None if is_first else quiet)
            else:
                self._counted.add(slot)
        return closed

    def _alert(self, slot: int, key: Key, offset: int, result: Result, quiet: int | None) -> None:
        """Begin an incident with an alert, or continue it. quiet: records of its series since the last alert."""
        place = {"offset": offset, "timestamp": result.get("timestamp")}
        if quiet is None:
            stored_key = None if slot == 0 else _stored_key(key)
            named = {} if stored_key is None else {"key": stored_key.decode("utf-8", "replace")}
            begin = {"incident": f"{self._prefix}{offset}", "status": CLOSED, **self._source, **named, "from": place}
            summary = {**begin, "to": place, "records": 1, "span": 1, "surprise": 0.0, **_worst_alert(place, result)}
        else:
            stored_key, before = self._open[slot]
            summary = {**before, "to": place, "records": before["records"] + 1, "span": before["span"] + quiet + 1}
            if _alert_rank(result) > _alert_rank(summary["worst"]):
                summary = without_reasons(summary) | _worst_alert(place, result)
        # 1 - score is the chance of such a record. So the sum is minus the logarithm of that of unrelated records.
        summary["surprise"] = round(summary["surprise"] - math.log(1.0 - (result["score"] or 0.0)), 3)
        self._open[slot] = _OpenIncident(stored_key, summary)
        self._changed.add(slot)
        result |= {name: summary[name] for name in ("incident", "surprise")}

    def _close(self, slot: int, offset: int) -> Notice:
        incident = self._open.pop(slot)
        self._changed.add(slot)
        return Notice(offset, incident.key, incident.summary["from"]["offset"], incident.summary)

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Return the changes since the last call, as entries of a compacted log.

        Each open incident has two entries: its summary, and the counts that change with every record. So a record
        without an alert rewrites a few bytes, not the summary.
        """
        entries: Entries = {}
        for slot in self._changed | self._counted:
            if (incident := self._open.get(slot)) is None:
                entries |= {f"{slot}/open": None, f"{slot}/quiet": None} if slot in self._logged else {}
                self._logged.discard(slot)
                continue
            last_number, quiet = self._groups.open[slot]
            entries[f"{slot}/quiet"] = b"%d %d" % (quiet, last_number)
            if slot in self._changed:
                entries[f"{slot}/open"] = _encode(incident)
                self._logged.add(slot)
        self._changed.clear()
        self._counted.clear()
        return entries

    def recover(self, entries: StoredEntries) -> None:
        """Replace the open incidents by those of the entries. Raises DamagedStateError."""
        try:
            decoded = [_decode(name, entries) for name in entries if name.endswith("/open")]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(f"the open incidents are not readable ({error})") from None
        self._open = {slot: incident for slot, incident, _ in decoded}
        self._groups.open = {slot: counts for slot, _, counts in sorted(decoded, key=lambda incident: incident[2])}
        self._recovered()
        self._changed.clear()
        self._logged.update(self._open)

    def _recovered(self) -> None:
        """Start with an empty log."""
        self._changed: set[int] = set(self._open)  # incidents that were opened, closed, or had an alert
        self._counted: set[int] = set()  # incidents whose series had other records
        self._logged: set[int] = set()  # incidents with entries


def without_reasons(summary: Mapping[str, Any]) -> Result:
    """Return the summary of an incident without its longest fields."""
    return {name: value for name, value in summary.items() if name not in REASON_FIELDS}


def _worst_alert(place: Mapping[str, Any], result: Result) -> Result:
    why = {name: result[name] for name in REASON_FIELDS if name in result}
    fits = not why or len(json.dumps(why)) <= MAX_FIELD_BYTES
    return {"worst": {**place, **{name: result[name] for name in WORST_FIELDS}}, **(why if fits else {})}


def _alert_rank(alert: Mapping[str, Any]) -> tuple[float, float]:
    """Return a rank that is higher for a worse alert: one that is rarer in the long run."""
    return alert["score"] or 0.0, alert["remembered_logit"] or 0.0  # None during the warm-up


def _stored_key(key: Key) -> bytes | None:
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return data if data is not None and len(data) <= MAX_FIELD_BYTES else None


def _encode(incident: _OpenIncident) -> bytes:
    key = None if incident.key is None else b64encode(incident.key).decode()
    return json.dumps({"key": key, "summary": incident.summary}, separators=(",", ":")).encode()


def _decode(name: str, entries: StoredEntries) -> tuple[int, _OpenIncident, tuple[int, int]]:
    """Return the number of the series, the incident, and its counts in `AlertGroups.open`."""
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
    quiet, _, last_number = entries[f"{slot}/quiet"].partition(b" ")
    return slot, _OpenIncident(key, summary), (int(last_number), int(quiet))
