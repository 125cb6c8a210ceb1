"""Numbers with decimal points and commas: read as a plain reference reads them, and which of them a file has."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.records.decimals import comma_number, point_number
from fomo_stream.records.files import SAMPLE, RecordFile

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


def test_a_flag_says_the_mark_whatever_the_file_looks_like() -> None:
    assert read(b"a\tb\n1,5\t2\n", decimal="comma")[0]["a"] == 1.5
    assert read(b"a;b\n1,234;2\n", decimal="point")[0]["a"] == 1234.0


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
