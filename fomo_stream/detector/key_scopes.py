"""Contexts of their own for the busiest keys: which keys have a scope of their own, and where records were learned.

Decisions are made every `DECISION_RECORDS` records, so that they depend on the records alone. The activity of a key is
the number of its records; the weight of a record halves every HALF_LIFE records of the partition. Its logarithm is kept
with time taken out (forward decay: Cormode et al. 2009), so that nothing needs to be updated while a key is silent.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import BlockTable, Entries, SingleEntry, State, StoredEntries
from fomo_stream.detector.config import MIN_CONTEXT_ROWS, DetectorConfig
from fomo_stream.detector.keys import UNKEYED, Keys
from fomo_stream.detector.results import Reason
from fomo_stream.detector.row_spec import RowSpec
from fomo_stream.detector.scope import Scope
from fomo_stream.detector.series import Series
from fomo_stream.detector.step.judge import N_ADDRESSES
from fomo_stream.detector.step.judge import SERIES as SERIES_OF_SEAT
from fomo_stream.detector.step.slots import find, new_table
from fomo_stream.detector.step.view_columns import PLAN_SIZE
from fomo_stream.detector.step.work import Visits
from fomo_stream.detector.views import OF_KEYS
from fomo_stream.errors import DamagedStateError
from fomo_stream.model.architecture import Model

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

DECISION_RECORDS = 256  # records between decisions
HALF_LIFE = 20_000  # records of the partition after which a record counts half in how busy its key is
MIN_ACTIVITY = 30.0  # so many records, counted like this, a key needs at least
MIN_ACTIVITY_RATIO = 2.0  # times as busy as another key: then it takes its place
MAX_KEY_ROWS = 300  # of a context, at most
# weight, in records, of the view `key` of the partition next to the key's own contexts: these have few rows at first
PRIOR_RECORDS = 200.0
FEEDBACK_RECORDS = 1000  # last records of the key that feedback can be about
NO_OWNERS: Int = np.zeros(0, np.int64)
SERIES_OFFSET = 2**32  # added to the number of such a key: in results it is the number of its series


def key_config(config: DetectorConfig) -> DetectorConfig:
    """The settings of a detector for one key of a partition with these settings."""
    rows = max(MIN_CONTEXT_ROWS, min(config.context_size, MAX_KEY_ROWS))
    return replace(
        config,
        context_size=rows,
        min_context=min(config.min_context, rows),
        views=tuple(view for view in config.wanted_views if view not in OF_KEYS),
        feedback_memory=min(config.feedback_memory, FEEDBACK_RECORDS),
        least_history=0,
        keys=1,
        own_contexts=0,
    )


def activity(records: Int, now: int) -> NDArray[np.float64]:
    """Return the activity of keys that had so many records (n,) just before record `now`."""
    return np.asarray(np.log(records) + now * math.log(2.0) / HALF_LIFE, dtype=np.float64)


def key_reasons(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """These reasons, of a detector for one key: its context is what is usual for the key."""
    return tuple(reason._replace(scope="key") for reason in reasons)


@dataclass
class KeyScope:
    """A key with a scope of its own. It is used once it `is_ready`; until then the partition's scores its records."""

    digest: bytes  # of the key
    number: int  # counts the keys that ever had one, from 1
    slot: int  # of the log; another key can have it later
    busy: float  # see `activity`
    counted: int  # its scope's records at the last decision
    is_ready: bool
    scope: Scope
    log: SingleEntry = field(default_factory=SingleEntry)

    ABOUT = struct.Struct("<16sqdq?")

    def about(self) -> bytes:
        """All but the scope, for the log."""
        return self.ABOUT.pack(self.digest, self.number, self.busy, self.counted, self.is_ready)


class KeyScopes:
    """The keys with scopes of their own, and `shared`, the scope of the partition. Other arguments: see `Scope`."""

    def __init__(
        self, shared: Scope, model: Model, spec: RowSpec, config: DetectorConfig, executor: Executor | None
    ) -> None:
        self.limit = config.own_contexts
        self._shared, self._made_from = shared, (model, spec, key_config(config), executor)
        # what is usual at a time stays, however many records the key has
        self.prior = 0.0 if config.cycles else PRIOR_RECORDS
        self.entered = 0  # keys that ever had one
        self._by_digest: dict[bytes, KeyScope] = {}
        self._touched: set[int] = set()  # slots with changes that the log does not have
        self._gone: Entries = {}  # entries of keys that have none any more
        self._lock = Lock()
        self._list()

    def __len__(self) -> int:
        return len(self._by_digest)

    def __iter__(self) -> Iterator[KeyScope]:
        return iter(self._by_digest.values())

    def _list(self) -> None:
        """Number the scopes after a change: 0 is that of the partition."""
        own = [*self]
        digests = bytearray().join([bytes(16), *self._by_digest])
        self._digests = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        self._table = new_table(self._digests, np.arange(1, len(self._digests)))
        self.scopes = [self._shared, *(key_scope.scope for key_scope in own)]
        self.numbers = np.array([0, *(key_scope.number for key_scope in own)])  # as `KeyScope` counts them
        self._slots = [-1, *(key_scope.slot for key_scope in own)]
        self.are_ready = np.array([False, *(key_scope.is_ready for key_scope in own)])
        self.scope_addresses = np.zeros((len(self.scopes), N_ADDRESSES), np.int64)  # for the compiled step
        self.scope_addresses[1:, SERIES_OF_SEAT] = SERIES_OFFSET + self.numbers[1:]
        self.tallies = np.array([scope.history.tally.ctypes.data for scope in self.scopes])  # addresses
        self.plans = np.zeros((len(self.scopes), len(self._shared.views), PLAN_SIZE), np.int64)
        for scope in self.scopes:
            scope.drop_addresses()

    def owners(self, digests: NDArray[np.uint64]) -> Int:
        """The numbers (n,) of the scopes of keys with these digests (n, 2); 0: it has none of its own; (0,): none
        has."""
        if not self._by_digest:
            return NO_OWNERS
        return np.asarray(find(digests, self._table, self._digests), dtype=np.int64)

    def prepare(self, s: int, n: int) -> None:
        """Prepare scope s for the compiled step with n of its records. Several threads may score at once."""
        scope = self.scopes[s]
        if not scope.has_addresses(n):
            with self._lock:
                if not scope.has_addresses(n):
                    scope.write_addresses(self.scope_addresses[s], self.plans[s], n)

    def touch(self, s: int) -> None:
        """Mark scope s as changed."""
        self.scopes[s].series.keys.mark(UNKEYED)
        self._touched.add(self._slots[s])

    # -- decisions -----------------------------------------------------------------------------------------------

    def decide(self, slots: Int, now: int) -> None:
        """Let keys become ready, enter, and leave. slots: series of the shared records since the last decision."""
        keys = self._shared.series.keys
        for own in self:
            if (n := own.scope.records - own.counted) > 0:
                own.busy = float(np.logaddexp(own.busy, activity(np.array(n), now)))
                own.counted = own.scope.records
                self._touched.add(own.slot)
            if not own.is_ready and own.scope.is_calibrated:
                own.is_ready = True
                own.scope.start_from_shared(self._shared)
                self._touched.add(own.slot)
                self._list()
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
            if busy[at] < activity(np.array(MIN_ACTIVITY), now):
                break
            if digest in self._by_digest:
                continue
            if len(self) >= self.limit:
                least = self._least()
                if busy[at] <= least.busy + math.log(MIN_ACTIVITY_RATIO):
                    break
                self._leave(least, keys)
            self._enter(digest, float(busy[at]))

    def _least(self) -> KeyScope:
        return min(self, key=lambda own: (own.busy, own.number))

    def _enter(self, digest: bytes, busy: float) -> None:
        self.entered += 1
        slot = min(set(range(len(self) + 1)) - {own.slot for own in self})
        own = KeyScope(digest, self.entered, slot, busy, 0, False, self._new(self.entered))
        self._by_digest[digest] = own
        self._touched.add(own.slot)
        self._list()

    def _new(self, number: int) -> Scope:
        nothing = Series(0, 0, movement=False, max_keys=1, relative=False)  # the partition's series follow its records
        scope = Scope(*self._made_from, nothing, keeps_encodings=False, prior=PRIOR_RECORDS)
        scope.stagger(number)
        return scope

    def _leave(self, own: KeyScope, keys: Keys) -> None:
        del self._by_digest[own.digest]
        if (slot := keys.find(own.digest)) is not None:  # what the partition's scope remembers of the key is old
            keys.write(np.array([slot]), open=0, logits=0)
        # without this entry the others of its slot are not read, and the next key in it writes over them
        self._gone[f"{own.slot}/about"] = None
        self._list()

    def copy(self, shared: Scope) -> KeyScopes:
        """Return an independent copy, with this scope of the partition."""
        twin = copy(self)
        twin._shared = shared
        twin._by_digest = {
            own.digest: replace(own, scope=own.scope.copy(own.scope.series.copy()), log=SingleEntry()) for own in self
        }
        twin._touched, twin._gone = {own.slot for own in self}, {}
        twin._list()
        return twin

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """Entries changed since the last call."""
        entries, self._gone = self._gone, {}
        for own in self:
            if own.slot in self._touched:
                entries |= {f"{own.slot}/{name}": value for name, value in own.scope.changes().items()}
                entries |= own.log.changes(f"{own.slot}/about", own.about())
        self._touched.clear()
        return entries

    def recover(self, entries: StoredEntries, entered: int, reusable: KeyScopes | None) -> None:
        """Take the state from the entries. Raises StateError."""
        at_hand = {} if reusable is None else reusable._by_digest
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
                digest, number, busy, counted, is_ready = KeyScope.ABOUT.unpack(of_slot["about"])
            except struct.error as error:
                raise DamagedStateError(f"the state is damaged: own/{slot}/about is not readable ({error})") from None
            scope, before = self._new(number), at_hand.get(digest)
            scope.recover(of_slot, None if before is None else before.scope)
            self._by_digest[digest] = own = KeyScope(digest, number, slot, busy, counted, is_ready, scope)
            own.log.recover(of_slot, "about")
        self._by_digest = dict(sorted(self._by_digest.items(), key=lambda item: item[1].number))
        self._list()


NOT_LEARNED = -1
BLOCK_RECORDS = 8  # records of `Routes` in an entry of the log


class Routes(State):
    """The places where the last `size` records were learned: numbers in the shared scope and in that of their key."""

    parts: ClassVar = {"_table": ""}

    def __init__(self, size: int) -> None:
        none = np.full(size, NOT_LEARNED)
        self.size = size
        self._table = BlockTable(BLOCK_RECORDS, shared=none, own=np.zeros(size, np.int64), number=none)

    def begin(self, records: int) -> None:
        """All records so far were learned by the shared detector alone."""
        numbers = np.arange(max(0, records - self.size), records)
        self._table.put(numbers % self.size, shared=numbers)

    def note(self, first: int, visits: Visits, own: Int) -> None:
        """The records from number `first` on were learned in these visits. own: of each scope, the number of its key,
        0 of the partition's."""
        if not len(visits.at):
            return
        n, of_own = int(visits.at[-1]) + 1, visits.scope > 0
        numbers, keys = np.full((2, n), NOT_LEARNED), np.zeros(n, np.int64)
        numbers[0, visits.at[~of_own]] = visits.number[~of_own]
        numbers[1, visits.at[of_own]] = visits.number[of_own]
        keys[visits.at[of_own]] = own[visits.scope[of_own]]
        last = slice(-self.size, None)
        at = (first + np.arange(n))[last] % self.size
        self._table.put(at, shared=numbers[0, last], own=keys[last], number=numbers[1, last])

    def find(self, numbers: Int) -> tuple[Int, Int, Int]:
        """Return for records of these numbers (k,) their shared number, the number of their key, and that there."""
        at = numbers % self.size
        return self._table["shared"][at], self._table["own"][at], self._table["number"][at]

    def numbers(self, records: int, own: int, numbers: Int) -> Int:
        """The numbers of those of the last records that have one of these in the detector of a key; 0: the shared."""
        column = self._table["number"] if own else self._table["shared"]
        is_same = np.isin(column, numbers) & (self._table["own"] == own if own else column != NOT_LEARNED)
        at = np.flatnonzero(is_same)
        return np.sort(records - 1 - (records - 1 - at) % self.size)
