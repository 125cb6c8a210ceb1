from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.detector.changelog import PART_BYTES, Document, Table

puts = st.lists(st.lists(st.integers(0, 10), max_size=4), max_size=12)


@given(st.integers(1, 12), puts)
def test_a_table_is_what_its_blocks_say(block: int, puts: list[list[int]]) -> None:
    def fresh() -> Table:
        return Table(block, number=np.full(11, 5), pair=np.zeros((11, 2)))

    table, number, pair = fresh(), np.full(11, 5), np.zeros((11, 2))
    log = table.changes("t")
    for i, slots in enumerate(puts):
        at = np.array(slots, dtype=np.int64)
        number[at], pair[at, :] = i, [i, -i]
        table.put(at, number=i, pair=[i, -i])
        entries = table.changes("t")
        assert entries.keys() - {"t/blocks"} == {f"t/{slot // block}" for slot in slots}
        assert ("t/blocks" in entries) == bool(entries.keys() - log.keys())
        log |= entries
        recovered = fresh()
        recovered.recover(cast(dict[str, bytes], log), "t")
        assert recovered.changes("t") == {}
        for found in (table, recovered):
            np.testing.assert_array_equal(found["number"], number)
            np.testing.assert_array_equal(found["pair"], pair)


def test_columns_of_a_table_are_written_through_put_alone() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Table(2, number=np.zeros(3))["number"][1] = 5


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0, 1, PART_BYTES - 20, PART_BYTES - 19, 2 * PART_BYTES + 5, 10**6]), min_size=1))
def test_a_document_is_found_whole_whatever_it_was_before(sizes: list[int]) -> None:
    document, log = Document(), dict[str, bytes]()
    for i, size in enumerate(sizes):
        data = bytes([i % 256]) * size
        for key, value in document.changes("d", data).items():
            log.pop(key, None)
            if value is not None:
                log[key] = value
        assert len(log) == -(-(size + 20) // PART_BYTES)
        assert max(map(len, log.values())) <= PART_BYTES
        other = Document()
        assert other.recover(log, "d") == data
        assert other.changes("d", data) == document.changes("d", data) == {}
        if i % 3 == 2:
            document = other
