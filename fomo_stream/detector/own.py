"""Contexts of their own for the busiest keys: which keys have a detector of their own, and where records were learned.

Decisions are made every `DECIDE` records, so that they depend on the records alone. How busy a key is: the number of
its records, of which older ones count half every HALF_LIFE records of the partition. Its logarithm is kept with time
taken out (forward decay: Cormode et al. 2009), so that nothing needs to be updated while a key is silent.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries, Table
from fomo_stream.detector.config import LEAST_CONTEXT, DetectorConfig
from fomo_stream.detector.keys import Keys
from fomo_stream.detector.results import Reason, Results
from fomo_stream.detector.single import SingleDetector
from fomo_stream.detector.step.follow import Batch
from fomo_stream.errors import DamagedStateError
from fomo_stream.model.config import Model

Int = NDArray[np.int64]

DECIDE = 256  # records between decisions
HALF_LIFE = 20_000  # records of the partition after which a record counts half in how busy its key is
LEAST_BUSY = 30.0  # so many records, counted like this, a key needs at least
BUSIER = 2.0  # times as busy as another key: then it takes its place
ROWS = 300  # of a context, at most
PRIOR = 200.0  # records that what is usual for the key, on the scale of all keys, counts as beside its own contexts
FEEDBACK = 1000  # last records of the key that feedback can be about
SHARED = 8  # every 8th record of the key is learned by the shared contexts, too, so that these stay a sample of all
SERIES = 2**32  # added to the number of such a key: in results it is the number of its series


def own_config(config: DetectorConfig) -> DetectorConfig:
    """The settings of a detector for one key of a partition with these settings."""
    rows = max(LEAST_CONTEXT, min(config.context_size, ROWS))
    return replace(
        config,
        context_size=rows,
        min_context=min(config.min_context, rows),
        views=tuple(view for view in config.wanted_views if view != "key"),
        feedback_memory=min(config.feedback_memory, FEEDBACK),
        least_history=0,
        keys=1,
        own_contexts=0,
    )


def own_detector(
    model: Model,
    n_features: int,
    config: DetectorConfig,
    executor: Executor | None,
    categorical: tuple[int, ...],
    counters: tuple[int, ...] = (),
) -> SingleDetector:
    """A detector for one key of a partition with these settings."""
    config = own_config(config)
    return SingleDetector(model, n_features, config, executor, categorical, counters, False, PRIOR)


def activity(records: Int, now: int) -> NDArray[np.float64]:
    """How busy keys are that had so many records (n,) just before record `now`."""
    return np.asarray(np.log(records) + now * math.log(2.0) / HALF_LIFE, dtype=np.float64)


def own_reasons(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """These reasons, of a detector for one key: its context is what is usual for the key."""
    return tuple(reason._replace(scope="key") for reason in reasons)


@dataclass
class Own:
    """A key with a detector of its own. It is used once it `is_ready`; until then both it and the shared one learn."""

    digest: bytes  # of the key
    number: int  # counts the keys that ever had one, from 1
    slot: int  # of the log; another key can have it later
    busy: float  # see `activity`
    counted: int  # its detector's records at the last decision
    is_ready: bool
    detector: SingleDetector

    ABOUT = struct.Struct("<16sqdq?")

    def about(self) -> bytes:
        """All but the detector, for the log."""
        return self.ABOUT.pack(self.digest, self.number, self.busy, self.counted, self.is_ready)

    def batch(self, batch: Batch, at: Int) -> Batch:
        """Some records (m,) of a batch, as the next ones of its detector, to which all belong."""
        part, first = batch.part(at), self.detector.records
        return part._replace(slots=np.zeros(len(at), np.int64), begins=first + np.arange(len(at)) == 0)

    def is_shared(self, n: int) -> NDArray[np.bool_]:
        """Which of its next n records the shared contexts learn, too."""
        numbers = self.detector.records + np.arange(n)
        return np.asarray((numbers % SHARED == 0) | (not self.is_ready))

    def results(self, results: Results) -> Results:
        """Results of this detector, as those of one series of the partition."""
        reasons = [None if each is None else own_reasons(each) for each in results.reasons]
        return replace(results, reasons=reasons, series=np.full(len(results), SERIES + self.number))


class Owns:
    """The keys with detectors of their own. Arguments: see `Detector`."""

    def __init__(
        self,
        model: Model,
        n_features: int,
        config: DetectorConfig,
        executor: Executor | None,
        categorical: tuple[int, ...],
        counters: tuple[int, ...] = (),
    ) -> None:
        self.limit = config.own_contexts
        self._made_from = model, n_features, config, executor, categorical, counters
        self.entered = 0  # keys that ever had one
        self._by_digest: dict[bytes, Own] = {}
        self._touched: set[int] = set()  # slots with changes that the log does not have
        self._gone: Entries = {}  # entries of keys that have none any more

    def __len__(self) -> int:
        return len(self._by_digest)

    def __iter__(self) -> Iterator[Own]:
        return iter(self._by_digest.values())

    def find(self, digest: bytes) -> Own | None:
        """That of a key."""
        return self._by_digest.get(digest)

    def touch(self, own: Own) -> None:
        """It has learned something."""
        self._touched.add(own.slot)

    # -- decisions -----------------------------------------------------------------------------------------------

    def decide(self, shared: SingleDetector, slots: Int, now: int) -> None:
        """Let keys become ready, enter, and leave. slots: series of the shared records since the last decision."""
        keys = shared.keys
        for own in self:
            if (n := own.detector.records - own.counted) > 0:
                own.busy = float(np.logaddexp(own.busy, activity(np.array(n), now)))
                own.counted = own.detector.records
                self.touch(own)
            if not own.is_ready and own.detector.is_calibrated:
                own.is_ready = True
                own.detector.borrow(shared)
                self.touch(own)
        while len(self) > self.limit:  # it was lowered
            self._leave(self._least(), keys)
        if not self.limit:
            return
        slots, counts = np.unique(slots[slots > 0], return_counts=True)
        kept = keys.column("used", slots) > 0
        slots, counts = slots[kept], counts[kept]
        before = keys.column("busy", slots).astype(np.float64)
        busy = np.logaddexp(np.where(before > 0.0, before, -np.inf), activity(counts, now)).astype(np.float32)
        keys.write(slots, busy=busy)
        digests = keys.column("digest", slots)
        for at in np.lexsort((slots, -busy)).tolist():
            digest = digests[at].tobytes()
            if busy[at] < activity(np.array(LEAST_BUSY), now):
                break
            if digest in self._by_digest:
                continue
            if len(self) >= self.limit:
                least = self._least()
                if busy[at] <= least.busy + math.log(BUSIER):
                    break
                self._leave(least, keys)
            self._enter(digest, float(busy[at]))

    def _least(self) -> Own:
        return min(self, key=lambda own: (own.busy, own.number))

    def _enter(self, digest: bytes, busy: float) -> None:
        self.entered += 1
        slot = min(set(range(len(self) + 1)) - {own.slot for own in self})
        own = Own(digest, self.entered, slot, busy, 0, False, self._new(self.entered))
        self._by_digest[digest] = own
        self.touch(own)

    def _new(self, number: int) -> SingleDetector:
        return own_detector(*self._made_from).for_partition(number)

    def _leave(self, own: Own, keys: Keys) -> None:
        del self._by_digest[own.digest]
        if (slot := keys.find(own.digest)) is not None:  # what the shared detector remembers is of long ago
            keys.write(np.array([slot]), open=0, logits=0)
        # without this entry the others of its slot are not read, and the next key in it writes over them
        self._gone[f"{own.slot}/about"] = None

    def copy(self) -> Owns:
        """The same, independent."""
        twin = copy(self)
        twin._by_digest = {own.digest: replace(own, detector=own.detector.copy()) for own in self}
        twin._touched, twin._gone = {own.slot for own in self}, {}
        return twin

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries changed since the last call."""
        entries, self._gone = self._gone, {}
        for own in self:
            if own.slot in self._touched:
                entries |= {f"{own.slot}/{name}": value for name, value in own.detector.changes().items()}
                entries[f"{own.slot}/about"] = own.about()
        self._touched.clear()
        return entries

    def recover(self, entries: StoredEntries, entered: int, known: Owns | None) -> None:
        """Take the state from the entries. Raises StateError."""
        at_hand = {} if known is None else known._by_digest
        self.entered, self._by_digest, self._touched, self._gone = entered, {}, set(), {}
        by_slot: dict[int, dict[str, bytes]] = {}
        for name, value in entries.items():
            begin, _, rest = name.partition("/")
            if begin.isdigit():
                by_slot.setdefault(int(begin), {})[rest] = value
        for slot, of_slot in by_slot.items():
            if "about" not in of_slot:
                continue
            try:
                digest, number, busy, counted, is_ready = Own.ABOUT.unpack(of_slot["about"])
            except struct.error as error:
                raise DamagedStateError(f"the state is damaged: own/{slot}/about is not readable ({error})") from None
            detector, before = self._new(number), at_hand.get(digest)
            detector.recover(of_slot, None if before is None else before.detector)
            self._by_digest[digest] = Own(digest, number, slot, busy, counted, is_ready, detector)
        self._by_digest = dict(sorted(self._by_digest.items(), key=lambda item: item[1].number))


NOWHERE = -1
BLOCK = 8  # records of `Routes` that are written together


class Routes:
    """Where each of the last `size` records was learned: its number in the shared detector and in its key's own."""

    def __init__(self, size: int) -> None:
        none = np.full(size, NOWHERE)
        self.size = size
        self._table = Table(BLOCK, shared=none, own=np.zeros(size, np.int64), number=none)

    def begin(self, records: int) -> None:
        """All records so far were learned by the shared detector alone."""
        numbers = np.arange(max(0, records - self.size), records)
        self._table.put(numbers % self.size, shared=numbers)

    def note(self, first: int, shared: Int, own: Int, number: Int) -> None:
        """The records from number `first` on: their numbers (n,) in the shared detector, in that of the key `own`."""
        shared, own, number = (one[-self.size :] for one in (shared, own, number))
        at = (first + np.arange(len(shared))) % self.size
        self._table.put(at, shared=shared, own=own, number=number)

    def find(self, numbers: Int) -> tuple[Int, Int, Int]:
        """Of records of these numbers (k,): as in `note`."""
        at = numbers % self.size
        return self._table["shared"][at], self._table["own"][at], self._table["number"][at]

    def numbers(self, records: int, own: int, numbers: Int) -> Int:
        """The numbers of those of the last records that have one of these in the detector of a key; 0: the shared."""
        column = self._table["number"] if own else self._table["shared"]
        found = np.isin(column, numbers) & (self._table["own"] == own if own else column != NOWHERE)
        at = np.flatnonzero(found)
        return np.sort(records - 1 - (records - 1 - at) % self.size)

    def copy(self) -> Routes:
        """The same, independent."""
        twin = Routes(self.size)
        twin._table.put(np.arange(self.size), **{name: self._table[name] for name in self._table})
        return twin

    def changes(self, name: str) -> Entries:
        """Entries changed since the last call."""
        return self._table.changes(name)

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Take the state from the entries. Raises StateError when they do not fit."""
        self._table.recover(entries, name)
