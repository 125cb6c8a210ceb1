"""Feedback on records: verdicts that wait for the next record, and the records that it calls normal."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.detector.history import INLIER, OUTLIER, History

Int = NDArray[np.int64]


class Verdicts:
    """Verdicts given since the last record, and the records of the context that feedback has confirmed."""

    def __init__(self) -> None:
        self.confirmed: Int = np.zeros(0, dtype=np.int64)  # ascending numbers; replaced, never written in place
        self._pending: dict[int, int] = {}  # by record with a new verdict: the verdict before it
        self._log = Document()

    def __len__(self) -> int:
        """Records with a new verdict."""
        return len(self._pending)

    def note(self, verdicts: Mapping[int, bool], history: History) -> int:
        """Write verdicts by record number (True: outlier) into the history; returns how many changed something."""
        known = [number for number in verdicts if history.oldest <= number < history.records]
        given = np.array(known, dtype=np.int64)
        verdict = np.array([OUTLIER if verdicts[number] else INLIER for number in known], dtype=np.int8)
        before = history.verdict(given)
        new = before != verdict
        history.judge(given[new], verdict[new])
        for number, old, now in zip(given[new].tolist(), before[new].tolist(), verdict[new].tolist(), strict=True):
            if self._pending.setdefault(number, old) == now:
                del self._pending[number]  # back to the verdict before: nothing has changed
        return int(new.sum())

    def take(self, history: History) -> tuple[Int, Int]:
        """Take the new verdicts: record numbers of outliers and of normal records, ascending; then none are waiting."""
        given = np.array(sorted(self._pending), dtype=np.int64)
        self._pending = {}
        verdict = history.verdict(given)
        outliers, normal = given[verdict == OUTLIER], given[verdict == INLIER]
        self.confirmed = np.union1d(np.setdiff1d(self.confirmed, outliers), normal)
        return outliers, normal

    def confirm(self, numbers: Int) -> None:
        """These records are normal."""
        self.confirmed = np.union1d(self.confirmed, numbers)

    def keep(self, numbers: Int) -> None:
        """Forget the confirmed records except these."""
        self.confirmed = np.intersect1d(self.confirmed, numbers)

    def copy(self) -> Verdicts:
        """Independent verdicts, the same now."""
        twin = copy(self)
        twin._pending, twin._log = self._pending.copy(), Document()
        return twin

    def counters(self) -> dict[str, Any]:
        """The part of the state that is plain numbers."""
        return {"pending": sorted(self._pending.items())}

    def changes(self) -> Entries:
        """Entries that the log does not have yet; not the counters."""
        return self._log.changes("confirmed", self.confirmed.tobytes())

    def recover(self, entries: StoredEntries, counters: Mapping[str, Any]) -> None:
        """Take the state from entries and counters. Raises StateError when they do not fit."""
        self.confirmed = np.frombuffer(self._log.recover(entries, "confirmed"), np.int64)
        self._pending = dict(counters["pending"])
