"""Rows of CSV: quotes that are closed, and quotes that are not; every line is accounted for."""

from __future__ import annotations

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.records.csv_rows import CsvRows, Row
from fomo_stream.records.lines import LineSource


class Counting(CsvRows):
    """Counts how often a line is looked at."""

    looks = 0

    def _take(self) -> tuple[int, str] | None:
        self.looks += 1
        return super()._take()


def rows_of(data: bytes, width: int | None = None, delimiter: str = ",") -> list[Row]:
    found = Counting(LineSource(io.BytesIO(data).read), delimiter)
    found.width = width
    rows = list(found)
    assert found.looks <= 3 * (data.count(b"\n") + 2)
    return rows


cells = st.text(st.characters(codec="utf-8") | st.sampled_from('",;\n\r \t'), max_size=6)


@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=8), st.sampled_from(",;\t"))
def test_what_csv_writes_is_read_back(table: list[list[str]], delimiter: str) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(table)
    found = rows_of(text.getvalue().encode(), delimiter=delimiter)
    assert [row.cells for row in found] == table
    assert all(row.error is None for row in found)


@given(
    st.binary(max_size=60) | st.text('ab1,;"\n\r', max_size=60).map(str.encode),
    st.integers(1, 4),
    st.sampled_from(",;"),
)
def test_any_bytes_give_rows_that_cover_every_line_once(data: bytes, width: int, delimiter: str) -> None:
    lines = data.split(b"\n")
    n = len(lines) - (not lines[-1])
    rows = rows_of(data, width, delimiter)
    places = [(row.number, row.last) for row in rows]
    assert [place for first, last in places for place in range(first, last + 1)] == list(range(1, n + 1))
    assert all(last < first for (_, last), (first, _) in pairwise(places))
    for row in rows:
        assert row.error is not None or len(row.cells) in (0, width)


@pytest.mark.parametrize("broken", ['"1,2,3', '1,"2,3', '1,2,"3', '1,"2",3"4,"5'])
@pytest.mark.parametrize("after", ["4,5,6", '4,"5",6', '4,"5\n5",6', '4,"a ""b"" c",6', ""])
def test_a_quote_that_is_not_closed_costs_its_own_line_only(broken: str, after: str) -> None:
    good = [f"{i},{i},{i}" for i in range(50)]
    lines = [*good, broken, *good, after, *good]
    rows = rows_of("\n".join(lines).encode(), width=3)
    bad = [row for row in rows if row.error is not None]
    assert [(row.number, row.last, row.error.reason) for row in bad if row.error] == [(51, 51, "not_csv")]
    assert ",".join(bad[0].cells) == broken
    expected = next(csv.reader(io.StringIO(after)), [])
    assert [row.cells for row in rows if row.error is None] == [
        *csv.reader([*good, *good]),
        expected,
        *csv.reader(good),
    ]


def test_two_quotes_that_are_missing_far_apart_do_not_swallow_the_rows_between() -> None:
    good = [f"{i},{i}" for i in range(100)]
    rows = rows_of("\n".join(['1,"x', *good, '2,y"', *good]).encode(), width=2)
    assert sum(row.error is None for row in rows) == 201
    assert [row.number for row in rows if row.error] == [1]


def test_line_breaks_in_a_quoted_cell_are_kept() -> None:
    cell = "first, and\n\n second\r\nthird"
    (row,) = rows_of(f'1,"{cell}",2\n'.encode(), width=3)
    assert (row.cells, row.number, row.last, row.error) == (["1", cell, "2"], 1, 4, None)


def test_a_quoted_row_with_too_many_cells_is_one_error_of_all_its_lines() -> None:
    ragged, after = rows_of(b'1,"a\nb",2,3\n4,5,6\n', width=3)
    assert (ragged.number, ragged.last) == (1, 2)
    assert "it goes on to line 2" in str(ragged.error)
    assert after.cells == ["4", "5", "6"]


def test_open_quotes_in_every_line_are_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 5000
    rows = rows_of(b'x","y\n' * n, width=2)  # each line closes the quote of the line before, and opens one
    assert [row.number for row in rows] == list(range(1, n + 1))
    monkeypatch.setattr("fomo_stream.records.csv_rows.MAX_RECORD_BYTES", 500)
    rows_of(b'"x,1\n' + b"2,3\n" * n, width=2)


def test_a_row_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fomo_stream.records.csv_rows.MAX_RECORD_BYTES", 20)
    good, bad, after = rows_of(b"1,2\n1," + b"2" * 30 + b"\n3,4\n", width=2)
    assert (good.error, after.cells) == (None, ["3", "4"])
    assert bad.error is not None
    assert bad.error.reason == "too_large"
