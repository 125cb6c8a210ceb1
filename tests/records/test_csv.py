"""CSV: rows with quotes that are closed or not, and cells with decimal points and commas."""

from __future__ import annotations

import csv
import io
import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.records.csv_rows import CsvRows, Row
from fomo_stream.records.decimals import comma_number, point_number
from fomo_stream.records.files import SAMPLE, RecordFile
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


DIGITS = "0123456789"


def reference(text: str, decimal: str, thousands: str) -> float | None:
    """The number in `text`, read character by character; None if it is none."""
    text = text.strip()
    for mark in " '":
        if mark in text and thousands != mark:
            has_end = text[-1:] in DIGITS and "e" not in text
            return reference(text, decimal, mark) if has_end and thousands not in text else None
    sign = -1 if text[:1] == "-" else 1
    text = text[1:] if text[:1] in ("-", "+") else text
    text, has_exponent, exponent = text.replace("E", "e").partition("e")
    power = exponent[1:] if exponent[:1] in ("-", "+") else exponent
    if has_exponent and not (power and all(one in DIGITS for one in power)):
        return None
    whole, has_fraction, fraction = text.partition(decimal)
    groups = whole.split(thousands)
    if len(groups) > 1 and (not 1 <= len(groups[0]) <= 3 or any(len(group) != 3 for group in groups[1:])):
        return None
    if len(groups) > 1 and groups[0][0] == "0":
        return None
    digits = "".join(groups)
    if not all(one in DIGITS for one in digits + fraction) or not digits + fraction:
        return None
    if decimal == "," and has_fraction and not fraction:
        return None
    return float(sign * Fraction(int(digits + fraction), 10 ** len(fraction)) * Fraction(10) ** int(exponent or 0))


numbers = st.from_regex(r"-?[0-9]{1,3}([., '][0-9]{3}){0,2}[.,]?[0-9]{0,3}", fullmatch=True)


@given(st.text("0159.,+-e '", max_size=12) | numbers)
def test_numbers_are_those_of_a_reference(text: str) -> None:
    has_large_exponent = "e" in text and len(text.partition("e")[2]) > 3
    if not has_large_exponent:
        assert point_number(text) == reference(text, ".", ",")
        assert comma_number(text) == reference(text, ",", ".")


def read(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return [line.record for line in RecordFile(io.BytesIO(data), **options) if line.record is not None]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"a;b\n1,5;2.5\n", 1.5),
        (b"a;b\n1.5;2.5\n", 1.5),
        (b"a;b\n1,234;1\n", 1.234),  # semicolons separate cells because of decimal commas
        (b"a;b\n1.234;1\n", 1.234),
        (b"a;b\n1.234;1\n1,5;1\n", 1234.0),
        (b"a;b\n1 234,5;1\n", 1234.5),
        (b"a;b\n\xe2\x88\x921,5;1\n", -1.5),  # the minus sign of typography
        (b'a,b\n"1,234",1\n', 1234.0),
        (b'a,b\n"1,5",2.5\n', "1,5"),
        (b"a\tb\n1,5\t2\n", "1,5"),
        (b"a\tb\n1'234.5\t2\n", 1234.5),
        (b"a;b\n01.02.2024;1,5\n", "01.02.2024"),
        (b"a;b\nx, y;1.5\n", "x, y"),
        (b"a;b\nNA;1,5\n", None),
        (b"a;b\n12 %;1,5\n", "12 %"),
        (b"a;b\n1_000;1,5\n", "1_000"),
    ],
)
def test_semicolons_and_a_number_with_a_comma_show_decimal_commas(data: bytes, value: Any) -> None:
    assert read(data)[0]["a"] == value


def test_columns_that_stay_text_say_nothing_about_the_mark() -> None:
    assert read(b"a;b\n1,5;2.5\n", text=("a",)) == [{"a": "1,5", "b": 2.5}]


cell = st.sampled_from(["1,5", "1.5", "1,234", "1.234", "12", "x", "", "NA", "1.234,5", "1,234.5"])


@given(
    st.lists(st.lists(cell, min_size=2, max_size=2), min_size=1, max_size=30),
    st.sampled_from(";\t|"),
    st.integers(1, 9),
)
def test_what_is_read_does_not_depend_on_how_the_input_arrives(rows: list[list[str]], mark: str, chunk: int) -> None:
    class Trickle(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(chunk)

    def outcome(stream: io.BytesIO) -> Any:
        return [(line.number, line.raw, line.record) for line in RecordFile(stream)]

    data = "\n".join([mark.join("ab"), *map(mark.join, rows)]).encode()
    assert outcome(Trickle(data)) == outcome(io.BytesIO(data))


def test_only_so_many_rows_are_held_for_the_decision() -> None:
    class Endless(io.RawIOBase):
        def __init__(self) -> None:
            self.rows = 0

        def read1(self, size: int = -1) -> bytes:
            self.rows += 1
            return b"a;b\n" if self.rows == 1 else b"1,5;%d\n" % self.rows

    stream: Any = Endless()
    file = RecordFile(stream)
    assert next(iter(file)).record == {"a": 1.5, "b": 2.0}
    assert stream.rows == SAMPLE + 1
    assert not file.drained


def test_cells_that_are_text_are_counted_by_column() -> None:
    file = RecordFile(io.BytesIO(b"a;b\n1,5;1\n2.5;x\n3.5;\n"), decimal="comma")
    records = [line.record for line in file]
    assert records == [{"a": 1.5, "b": 1.0}, {"a": "2.5", "b": "x"}, {"a": "3.5", "b": None}]
    assert {name: (texts.count, texts.first) for name, texts in file.texts.items()} == {"a": (2, "2.5"), "b": (1, "x")}


def test_marks_of_missing_values_are_missing() -> None:
    for mark in ("", " ", "NA", "n/a", "#N/A", "null", "NULL", "None", "-", "--", "?", "#DIV/0!", "<NA>"):
        assert read(f"a,b\n{mark},1\n".encode())[0]["a"] is None, mark
    assert math.isnan(read(b"a,b\nNaN,1\n")[0]["a"])
    assert read(b"a,b\nNA,1\n", text=("a",))[0]["a"] == "NA"  # a country
