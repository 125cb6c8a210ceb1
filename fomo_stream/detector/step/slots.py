"""Find the series of keys: digests in a table with open addressing, a power of 2 long and at most half full."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import exact_kernel

MIN_KEYED_RECORDS = 32  # records with a key that are needed to tell whether keys recur
# After so many records with a key no new series begin while fewer than this share of them had a known key: such keys
# do not recur, and a series for each would only cost memory.
MAX_KEYED_WITHOUT_RECURRENCE, MIN_RECURRING_SHARE = 10_000, 0.01
MIN_TABLE_SIZE = 64


def table_size(n: int) -> int:
    """Return the length of a table of n rows."""
    return max(MIN_TABLE_SIZE, 1 << (2 * n).bit_length())


def new_table(digests: NDArray[np.uint64], slots: NDArray[np.int64], room: int = 0) -> NDArray[np.int64]:
    """Make a table (size,) of some rows (n,) of digests (rows, 2), with room for more: numbers of rows; 0 = empty."""
    table = np.zeros(table_size(len(slots) + room), np.int64)
    fill_table(digests, slots, table)
    return table


@exact_kernel
def fill_table(digests, slots, table):
    """Put rows (n,) of digests (rows, 2) into a table."""
    for k in range(len(slots)):
        table[_table_position(digests[slots[k], 0], digests[slots[k], 1], table, digests)] = slots[k]


@exact_kernel
def _table_position(low, high, table, digests):
    """Return the position of a digest; it is empty if the table does not have the digest."""
    mask = len(table) - 1
    at = np.int64(low & np.uint64(mask))
    while table[at] and not (digests[table[at], 0] == low and digests[table[at], 1] == high):
        at = (at + 1) & mask
    return at


@exact_kernel
def find(keys, table, digests):
    """Return the rows (n,) of digests (rows, 2) that are equal to those of keys (n, 2); 0 = not found."""
    rows = np.zeros(len(keys), np.int64)
    for i in range(len(keys)):
        rows[i] = table[_table_position(keys[i, 0], keys[i, 1], table, digests)]
    return rows


@exact_kernel
def resolve(keys, is_keyed, counts, limits, table, new, digests, used, free, state, learn, moves, belongs):
    """Find the series that records (n,) are added to; returns the number of additions.

    Writes the record and the number of its series into moves (2, 2 n), and whether it belongs to it into belongs (2
    n,).

    keys: (n, 2) digests of the keys. counts: records so far, those with a key, and those with a known key; updated.
    limits: MIN_KEYED_RECORDS, MAX_KEYED_WITHOUT_RECURRENCE, MIN_RECURRING_SHARE. table, digests (rows, 2), used
    (rows,), free, state (the first unused number, numbers in `free`, keys): of `Keys`; updated with `learn`. Without it
    the new keys are found by `new`, a table of positions of records, as working memory.

    A record without a key is added to series 0. While fewer than half of the records had a known key, a record with a
    key is added to series 0, too, and belongs to it if its key is new: the key may be the id of the record.
    """
    k = 0
    for i in range(len(keys)):
        counts[0] += 1
        if not is_keyed[i]:
            moves[0, k], moves[1, k], belongs[k] = i, 0, True
            k += 1
            continue
        low, high = keys[i, 0], keys[i, 1]
        at = _table_position(low, high, table, digests)
        slot, at_new = table[at], np.int64(0)
        if slot == 0 and not learn:
            at_new = _new_table_position(low, high, new, keys)
            slot = len(used) + new[at_new] - 1 if new[at_new] else 0
        is_known = slot > 0
        counts[1] += 1
        counts[2] += is_known
        recur = 2 * counts[2] >= counts[1] or counts[1] < limits[0]
        if is_known or recur or counts[1] < limits[1] or counts[2] >= limits[2] * counts[1]:
            if slot == 0 and not learn:
                new[at_new], slot = i + 1, len(used) + i
            elif slot == 0:
                if state[1] > 0:
                    state[1] -= 1
                    slot = free[state[1]]
                else:
                    slot = state[0]
                    state[0] += 1
                state[2] += 1
                digests[slot, 0], digests[slot, 1] = low, high
                table[at] = slot
            if learn:
                used[slot] = counts[0]
            moves[0, k], moves[1, k], belongs[k] = i, slot, is_known or recur
            k += 1
        if not recur:
            moves[0, k], moves[1, k], belongs[k] = i, 0, not is_known
            k += 1
    return k


@exact_kernel
def _new_table_position(low, high, table, keys):
    """Return the position of a digest, as `_table_position`, in a table of positions, counted from 1, of keys (n,
    2)."""
    mask = len(table) - 1
    at = np.int64(low & np.uint64(mask))
    while table[at] and not (keys[table[at] - 1, 0] == low and keys[table[at] - 1, 1] == high):
        at = (at + 1) & mask
    return at


@exact_kernel
def first_of_series(slots):
    """Return the first record of the same series for each record (n,), by a hash table."""
    n, size = len(slots), 2
    while size < 2 * n:
        size *= 2
    table, first = np.full(size, -1), np.empty(n, np.int64)
    for i in range(n):
        at = (slots[i] ^ (slots[i] >> 32)) & (size - 1)  # of scopes of keys the upper half differs
        while table[at] >= 0 and slots[table[at]] != slots[i]:
            at = (at + 1) & (size - 1)
        if table[at] < 0:
            table[at] = i
        first[i] = table[at]
    return first
