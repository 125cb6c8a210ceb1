"""Files of records: CSV and JSON lines, in any pieces and with any mistakes, read, and written with results."""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import io
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError, FomoError, SchemaError
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.records import json_objects
from fomo_stream.records.cells import number_in
from fomo_stream.records.csv_rows import CsvRows, Row
from fomo_stream.records.files import RecordFile, read_rows
from fomo_stream.records.lines import LineSource, plain_text
from fomo_stream.records.result_writers import (
    CSV_FIELDS,
    CsvWriter,
    JsonWriter,
    OutputForm,
    csv_columns,
)
from fomo_stream.records.schema import Schema


class Trickle(io.BytesIO):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data: bytes, chunk: int) -> None:
        super().__init__(data)
        self.chunk = chunk

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(min(self.chunk, size or 1))


def raw_lines(data: bytes, chunk: int = 1) -> list[bytes]:
    return list(LineSource(plain_text(Trickle(data, chunk), "it")))


# --- lines


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=10), min_size=1, max_size=5),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.booleans(),
    st.integers(1, 20),
)
def test_text_is_the_same_with_and_without_a_mark_and_compression(
    lines: list[str], codec: str, compressed: bool, chunk: int
) -> None:
    lines = ["first", *lines, "last"]
    data = "\n".join(lines).encode(codec)
    if compressed:  # files may follow each other
        data = gzip.compress(data[:chunk]) + gzip.compress(data[chunk:])
    assert raw_lines(data, chunk) == [line.encode() for line in lines]


ZIP = b"PK\3\4" + bytes(9)
REFUSED = {"zip": ZIP, "bzip2": bz2.compress(b"a,b"), "zip in gzip": gzip.compress(ZIP)}
REFUSED |= {"utf-16 without mark": "a,b\n".encode("utf-16-le") * 50, "utf-32": "a,b\n".encode("utf-32")}
REFUSED |= {"binary": bytes(range(256)) * 40}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(SchemaError, match="not text in UTF-8"):
        raw_lines(data, 512)


def test_damaged_compressed_data_is_one_sentence() -> None:
    data = gzip.compress(b"\n".join(b"%d" % (i * i) for i in range(2000)))
    for damaged in (data[:-9], data[:20] + b"\xff\xff\xff\xff" + data[24:]):
        with pytest.raises(ConfigError, match=r"cannot read it: .* damaged"):
            raw_lines(damaged, 100)


def test_an_error_of_the_system_names_the_file() -> None:
    class Breaking(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            data = super().read1(size)
            if not data:
                raise OSError(errno.EIO, "Input/output error")
            return data

    lines = LineSource(plain_text(Breaking(b"a\nb\n"), "it"))
    assert [next(lines), next(lines)] == [b"a", b"b"]
    with pytest.raises(FomoError, match="cannot read it: Input/output error"):
        next(lines)


def test_a_line_beyond_the_limit_is_cut_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fomo_stream.records.lines.MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr("fomo_stream.records.lines.CHUNK_BYTES", 64)
    too_long = b'{"a": "' + b"x" * 5000 + b'"}'
    lines = lines_of(b'{"a": 1}\n' + too_long + b'\n{"a": 2}\n', format="jsonl")
    assert [line.number for line in lines] == [1, 2, 3]
    assert len(lines[1].raw) == 1001
    assert lines[2].record == {"a": 2}


OBJECTS = st.lists(
    st.dictionaries(
        st.text(max_size=3), st.none() | st.text(max_size=4) | st.lists(st.dictionaries(st.text("{}"), st.text('["],')))
    ),
    min_size=1,
    max_size=4,
)


@given(OBJECTS, st.sampled_from([None, 2]), st.booleans(), st.integers(1, 9), st.sampled_from(["utf-8", "utf-16"]))
def test_an_array_and_objects_of_several_lines_are_read_as_one_object_in_each_line(
    objects: list[dict[str, Any]], indent: int | None, is_array: bool, chunk: int, codec: str
) -> None:
    objects = [{"first": "\r"}, *objects]
    texts = [json.dumps(one, indent=indent, ensure_ascii=False) for one in objects]
    text = json.dumps(objects, indent=indent) if is_array else "\n".join(texts)
    lines = list(RecordFile(Trickle(text.encode(codec), chunk)))
    assert [line.record for line in lines if not line.is_blank] == objects


def test_what_is_odd_in_an_array_costs_only_its_place() -> None:
    half = MAX_RECORD_BYTES * 6 // 10
    long = ['{"b": "' + "x" * half + '",\n "c": "' + "y" * half + '"}', '{"b": [' + "[1],\n" * half + "2]}"]
    texts = ['{"a": 1}', "null", '{"a": }', *long, '"{[", 5', '{"a": 2}}', '{"a": 3}', '"a": 1']
    lines = list(RecordFile(Trickle(("[\n" + ",\n".join(texts)).encode(), 1 << 16)))
    found = [line.error.reason if line.error else (line.record or {}).get("a") for line in lines if not line.is_blank]
    reasons = ["not_an_object", "not_json", "too_large", "too_large", "not_json", "not_json", "not_json"]
    assert found == [1, *reasons[:5], 2, reasons[5], 3, reasons[6]]
    with pytest.raises(SchemaError, match="its quote is missing"):
        lines_of(b'[{"a": "' + b"x" * 2 * MAX_RECORD_BYTES)
    for text in (b'[{"a": 1}, {"a": 2, {"a": 3}]', b'[{"a": "1}, {"a": "2"}, {"a": "3"}]', b'[{"a": 1}, {"a": '):
        with pytest.raises(SchemaError, match=r"object \d has no end"):
            lines_of(text)


# --- rows of CSV


class Counting(CsvRows):
    """Counts how often a line is looked at."""

    looks = 0

    def _take(self) -> tuple[int, str] | None:
        self.looks += 1
        return super()._take()


def rows_of(data: bytes, width: int | None = None, delimiter: str = ",") -> list[Row]:
    rows = Counting(LineSource(io.BytesIO(data).read), delimiter)
    rows.width = width
    listed = list(rows)
    assert rows.looks <= 3 * (data.count(b"\n") + 2)
    return listed


@pytest.mark.parametrize("broken", ['"1,2,3', '1,"2,3', '1,2,"3', '1,"2",3"4,"5'])
@pytest.mark.parametrize("after", ['4,"5\n5",6', '4,"a ""b"" c",6', ""])
def test_a_quote_that_is_not_closed_costs_its_own_line_only(broken: str, after: str) -> None:
    good = [f"{i},{i},{i}" for i in range(50)]
    lines = [*good, broken, *good, after, *good]
    rows = rows_of("\n".join(lines).encode(), width=3)
    bad = [row for row in rows if row.error is not None]
    assert [(row.number, row.last, row.error.reason) for row in bad if row.error] == [(51, 51, "not_csv")]
    assert ",".join(bad[0].cells) == broken
    expected = [*csv.reader([*good, *good]), next(csv.reader(io.StringIO(after)), []), *csv.reader(good)]
    assert [row.cells for row in rows if row.error is None] == expected


def test_open_quotes_and_rows_that_are_too_long_are_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 5000
    rows = rows_of(b'x","y\n' * n, width=2)  # each line closes the quote of the line before, and opens one
    assert [row.number for row in rows] == list(range(1, n + 1))
    monkeypatch.setattr("fomo_stream.records.csv_rows.MAX_RECORD_BYTES", 500)
    rows_of(b'"x,1\n' + b"2,3\n" * n, width=2)
    good, bad, after = rows_of(b"1,2\n1," + b"2" * 501 + b"\n3,4\n", width=2)
    assert (good.error, bad.error and bad.error.reason, after.cells) == (None, "too_large", ["3", "4"])


# --- cells

DIGITS = "0123456789"


def reference(text: str, decimal: str, thousands: str) -> float | None:
    """The number in `text`, read character by character; None if it is none."""
    text = text.strip()
    if text[-1:] == "-":  # as accountants write what is below 0
        value = None if set("+-") & set(text[:-1]) else reference(text[:-1], decimal, thousands)
        return None if value is None else -value
    for mark in " '":
        if mark in text and thousands != mark:
            has_end = text[-1:] in DIGITS and "e" not in text
            return reference(text, decimal, mark) if has_end and thousands not in text else None
    sign = -1 if text[:1] == "-" else 1
    text = text[1:] if text[:1] in ("-", "+") else text
    text, has_exponent, exponent = text.replace("E", "e").partition("e")
    power = exponent[1:] if exponent[:1] in ("-", "+") else exponent
    if has_exponent and not (power and all(digit in DIGITS for digit in power)):
        return None
    whole, has_fraction, fraction = text.partition(decimal)
    groups = whole.split(thousands)
    *lengths, last = map(len, groups)
    is_usual = not lengths or (1 <= lengths[0] <= 3 and {*lengths[1:], last} == {3})
    is_indian = thousands == "," and lengths and 1 <= lengths[0] <= 2 and {*lengths[1:]} == {2} and last == 3
    if not (is_usual or is_indian):
        return None
    if len(groups) > 1 and groups[0][0] == "0":
        return None
    digits = "".join(groups)
    if not all(digit in DIGITS for digit in digits + fraction) or not digits + fraction:
        return None
    if decimal == "," and has_fraction and not fraction:
        return None
    return float(sign * Fraction(int(digits + fraction), 10 ** len(fraction)) * Fraction(10) ** int(exponent or 0))


numbers = st.from_regex(r"-?[0-9]{1,3}([., '][0-9]{3}){0,2}[.,]?[0-9]{0,3}", fullmatch=True)


@given(st.text("0159.,+-e '", max_size=12) | numbers)
def test_numbers_are_those_of_a_reference(text: str) -> None:
    has_large_exponent = len(text.partition("e")[2].lstrip("+-")) > 2
    if not has_large_exponent:
        assert number_in(text, "point") == reference(text, ".", ",")
        assert number_in(text, "comma") == reference(text, ",", ".")


def lines_of(data: bytes, **options: Any) -> list[Any]:
    return list(RecordFile(io.BytesIO(data), **options))


def read(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return [line.record for line in lines_of(data, **options) if line.record is not None]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"a;b\n1,234;1\n", 1.234),  # semicolons separate cells because of decimal commas
        (b"a;b\n1.234;1\n1,5;1\n", 1234.0),
        (b"a;b\n\xe2\x88\x921,5;1\n", -1.5),  # the minus sign of typography
        (b'a,b\n"1,234",1\n', 1234.0),
        (b"a;b\n1\x92234,5;1\n", 1234.5),  # an apostrophe of Windows-1252
        (b"a;b\n01.02.2024;1,5\n", "01.02.2024"),
        (b"a;b\n12 %;1,5\n", "12 %"),
        (b"a;b\n1_000;1,5\n", "1_000"),
    ],
)
def test_semicolons_and_a_number_with_a_comma_show_decimal_commas(data: bytes, value: Any) -> None:
    assert read(data)[0]["a"] == value


def test_cells_that_are_text_are_counted_by_column_and_points_do_not_count_among_commas() -> None:
    file = RecordFile(io.BytesIO(b"a;b\n1,5;1\n2.5;x\n3.5;\n"), decimal="comma")
    records = [line.record for line in file]
    assert records == [{"a": 1.5, "b": 1.0}, {"a": None, "b": "x"}, {"a": None, "b": None}]
    assert file.texts == {"a": (2, "2.5"), "b": (1, "x")}


def test_marks_of_missing_values_are_missing() -> None:
    for mark in ("", " ", "NA", "n/a", "#N/A", "null", "NULL", "None", "-", "--", "?", "#DIV/0!", "<NA>"):
        assert read(f"a,b\n{mark},1\n".encode())[0]["a"] is None, mark
    assert math.isnan(read(b"a,b\nNaN,1\n")[0]["a"])
    assert read(b"a,b\nNA,1\n", text=("a",))[0]["a"] == "NA"  # a country
    assert read(b"a;b\n1,5;2.5\n", text=("a",)) == [{"a": "1,5", "b": 2.5}]  # says nothing about the decimal mark


# --- files


def test_csv_cells_become_numbers_booleans_text_or_missing() -> None:
    data = b'\xef\xbb\xbfa, b,,d\r\n1,x y,true,\r\n\r\nNaN,1_000,"2\n3",1e999\r\n'
    first, blank, second = lines_of(data)
    assert blank.is_blank
    assert first.record == {"a": 1.0, "b": "x y", "column_3": True, "d": None}
    assert (first.number, second.number) == (2, 4)
    assert second.raw == ["NaN", "1_000", "2\n3", "1e999"]
    assert np.isnan(Schema(("a", "b", "d")).rows([second.record])).all()


@given(
    st.binary(max_size=80) | st.text('ab1,;"{}:[]\n\r\t ', max_size=80).map(lambda text: text.encode()),
    st.sampled_from(["auto", "csv", "jsonl"]),
    st.sampled_from([b"", b"a,b\n", b"a;b\n1,5;1.5\n", b"\x1f\x8b", b"\xff\xfe", b"[{", b'{\n"']),
    st.sampled_from(["auto", "comma", "point"]),
    st.integers(1, 9),
)
def test_any_bytes_in_any_pieces_are_refused_or_every_line_is_a_record_an_error_or_blank(
    data: bytes, format: str, start: bytes, decimal: str, chunk: int
) -> None:
    data = start + data
    try:
        file = RecordFile(io.BytesIO(data), format, decimal=decimal)
        lines = list(file)
    except (SchemaError, ConfigError) as error:
        with pytest.raises(type(error)):
            list(RecordFile(Trickle(data, chunk), format, decimal=decimal))
        return
    again = list(RecordFile(Trickle(data, chunk), format, decimal=decimal))
    assert [(line.number, line.raw, str(line.record)) for line in again] == [
        (line.number, line.raw, str(line.record)) for line in lines
    ]
    covered = [number for line in lines for number in range(line.number, max(line.number, line.last) + 1)]
    first = covered[0] if covered else 1
    assert covered == list(range(first, first + len(covered)))
    assert first == 1 or file.format == "csv"  # after the header
    text = data.decode("utf-16", "replace").encode() if data.startswith(b"\xff\xfe") else data
    if covered and not json_objects.OBJECTS.match(text):
        assert covered[-1] == text.count(b"\n") + (not text.endswith(b"\n"))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty"),
        (b"1,2\n3,4\n", "names the columns"),
        (b"a,b,a,c,b,a\n1,2,3,4,5,6\n", "several columns named 'a', 'b' in line 1.* give each"),
        (b'a,"b\n1,2\n', "a quote is missing"),
        (b"a,b\r1,2\r", "a carriage return inside"),
    ],
)
def test_a_file_without_usable_header_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        lines_of(data)


def test_rows_of_a_file_are_in_the_order_of_the_schema_and_a_file_that_does_not_fit_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "normal.jsonl"
    path.write_text('{"b": 1, "a": 2}\n{"c": 1}\n{"b": 3}\n')
    np.testing.assert_array_equal(read_rows(path, Schema(("a", "b"))), [[2, 1], [np.nan, 3]])
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(SchemaError, match=r"normal\.jsonl line 2"):
        read_rows(path, Schema(("a",)))
    path.write_text('{"a": 1}\n')
    with pytest.raises(SchemaError, match="check their names"):
        read_rows(path, Schema(("b",)))
    with pytest.raises(ConfigError, match="cannot read"):
        read_rows(tmp_path / "absent.csv", Schema(("b",)))


# --- writing

UNSCORED: dict[str, Any] = dict.fromkeys(CSV_FIELDS) | {"outlier": False}


def written(data: bytes, form: OutputForm, outliers: tuple[int, ...] = (), **more: Any) -> bytes:
    """The output for a file whose lines of these indices are outliers."""
    out = io.BytesIO()
    table = RecordFile(io.BytesIO(data), skip_lines=0)
    writer = (CsvWriter if table.format == "csv" else JsonWriter)(out, table, form)
    lines = list(table)
    writer.write(lines, [UNSCORED | {"outlier": i in outliers} | more for i in range(len(lines))])
    return out.getvalue()


cells = st.text(st.characters(codec="utf-8") | st.sampled_from('",;\n\r \t'), max_size=6)


@given(st.lists(st.lists(cells, min_size=2, max_size=2), max_size=8), st.sampled_from(",;\t|"))
def test_cells_are_the_same_and_in_the_same_lines(rows: list[list[str]], delimiter: str) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["a", "b"], *rows])
    output = written(text.getvalue().encode(), OutputForm()).decode()
    again = list(csv.reader(io.StringIO(output, newline=""), delimiter=delimiter))
    assert [row[:2] for row in again] == [["a", "b"], *rows]
    assert {len(row) for row in again} == {2 + len(CSV_FIELDS)}
    assert output.count("\n") == text.getvalue().count("\n")


odd_lines = st.lists(st.sampled_from(["1,2", "", "  ", "3,4,5", "6", '"', "NA,-", 'x"y,1', '"a,1', "\r"]), max_size=12)


@given(odd_lines, st.integers(0, 2))
def test_output_lines_have_the_numbers_of_input_lines(rows: list[str], blank: int) -> None:
    data = "\n".join([*[""] * blank, "a,b", *rows, *["1,2"] * 13]).encode()
    output = written(data, OutputForm()).decode().split("\n")[:-1]
    n = data.count(b"\n") + (not data.endswith(b"\n"))
    assert len(output) == n
    for line, source in zip(output, data.decode().split("\n"), strict=False):
        assert (not line.strip()) == (not source.strip()), (line, source)


def test_only_outliers_are_written_with_the_header_and_their_lines() -> None:
    form = OutputForm(scores_only=True, outliers_only=True)
    for data, outlier, number in (
        (b"\na,b\n1,2\n\n3,4\nbad\n", 2, 5),
        (b'a,b\n"1\n\n",2\n"x\ny",4\n', 1, 5),  # its first line
    ):
        (row,) = csv.DictReader(io.StringIO(written(data, form, outliers=(outlier,)).decode(), newline=""))
        assert (row["fomo_outlier"], row["fomo_line"]) == ("true", str(number))
    data = b'\n{"a": 1}\n\n{"a": 2}\n{bad\n'
    result = json.loads(written(data, form, outliers=(3,)))["fomo"]
    assert (result["outlier"], result["line"]) == (True, 4)
    every = written(data, OutputForm(scores_only=True))  # blank lines keep their place
    assert [bool(line) for line in every.split(b"\n")] == [False, True, False, True, True, False]


def test_the_output_is_utf_8_and_a_row_with_too_many_cells_loses_none() -> None:
    output = written("höhe;b\r\n1;ü\r\n".encode("cp1252"), OutputForm()).decode()
    assert output.startswith("höhe;b;fomo_score;")
    assert "\n1;ü;" in output
    _, long, short = csv.reader(io.StringIO(written(b"a,b\n1,2,3,4\n1\n", OutputForm()).decode()))
    assert (long[:2], short[:2]) == (["1", "2,3,4"], ["1", ""])
    assert len(long) == len(short)


FORMS = [OutputForm(is_explained=True), OutputForm(), OutputForm(outliers_only=True)]


@pytest.mark.parametrize("earlier", FORMS)
@pytest.mark.parametrize("now", FORMS)
def test_results_of_an_earlier_run_are_replaced_whatever_its_flags_were(earlier: OutputForm, now: OutputForm) -> None:
    once = written(b"a,b\n1,2\n", earlier, outliers=(0,))
    assert written(once, now, outliers=(0,)) == written(b"a,b\n1,2\n", now, outliers=(0,))
    assert set(once.decode().partition("\n")[0].split(",")) <= {"a", "b", *csv_columns("fomo")}
