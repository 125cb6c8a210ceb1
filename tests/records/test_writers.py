"""What is written of lines and their results: cells stay, blank lines stay, and lines keep their numbers."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.records.files import RecordFile
from fomo_stream.records.writers import CSV_FIELDS, EXPLAINED_FIELDS, CsvWriter, Form, JsonWriter, csv_columns

UNSCORED: dict[str, Any] = dict.fromkeys(CSV_FIELDS) | {"outlier": False}


def written(data: bytes, form: Form, outliers: tuple[int, ...] = (), **more: Any) -> bytes:
    """The output for a file whose lines of these indices are outliers."""
    out = io.BytesIO()
    table = RecordFile(io.BytesIO(data))
    writer = (CsvWriter if table.format == "csv" else JsonWriter)(out, table, form)
    lines = list(table)
    writer.write(lines, [UNSCORED | {"outlier": i in outliers} | more for i in range(len(lines))])
    return out.getvalue()


cells = st.text(st.characters(codec="utf-8") | st.sampled_from('",;\n\r \t'), max_size=6)


@given(st.lists(st.lists(cells, min_size=2, max_size=2), max_size=8), st.sampled_from(",;\t|"))
def test_cells_are_the_same_and_in_the_same_lines(rows: list[list[str]], delimiter: str) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["a", "b"], *rows])
    output = written(text.getvalue().encode(), Form()).decode()
    found = list(csv.reader(io.StringIO(output, newline=""), delimiter=delimiter))
    assert [row[:2] for row in found] == [["a", "b"], *rows]
    assert {len(row) for row in found} == {2 + len(CSV_FIELDS)}
    assert output.count("\n") == text.getvalue().count("\n")


lines = st.lists(st.sampled_from(["1,2", "", "  ", "3,4,5", "6", '"', "NA,-", 'x"y,1', '"a,1', "\r"]), max_size=12)


@given(lines, st.integers(0, 2))
def test_output_lines_have_the_numbers_of_input_lines(rows: list[str], blank: int) -> None:
    data = "\n".join([*[""] * blank, "a,b", *rows]).encode()
    output = written(data, Form()).decode().split("\n")[:-1]
    n = data.count(b"\n") + (not data.endswith(b"\n"))
    assert len(output) == n
    for line, source in zip(output, data.decode().split("\n"), strict=False):
        assert (not line.strip()) == (not source.strip()), (line, source)


def test_blank_json_lines_keep_their_place() -> None:
    output = written(b'\n{"a": 1}\n\n \n{"a": 2}\n', Form(scores_only=True))
    assert [bool(line) for line in output.split(b"\n")] == [False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("data", "outlier", "number"),
    [
        (b"\na,b\n1,2\n\n3,4\nbad\n", 2, 5),
        (b'a,b\n"1\n\n",2\n"x\ny",4\n', 1, 5),  # its first line
        (b'\n{"a": 1}\n\n{"a": 2}\n{bad\n', 3, 4),
    ],
)
@pytest.mark.parametrize("scores_only", [True, False])
def test_only_outliers_are_written_with_the_header_and_their_lines(
    data: bytes, outlier: int, number: int, scores_only: bool
) -> None:
    output = written(data, Form(scores_only=scores_only, outliers_only=True), outliers=(outlier,)).decode()
    if data.lstrip().startswith(b"a,b"):
        (found,) = csv.DictReader(io.StringIO(output, newline=""))
        assert (found["fomo_outlier"], found["fomo_line"]) == ("true", str(number))
    else:
        (result,) = (json.loads(line)["fomo"] for line in output.splitlines())
        assert (result["outlier"], result["line"]) == (True, number)


def test_the_line_that_names_the_delimiter_is_kept() -> None:
    assert written(b"sep=;\r\na;b\r\n1;2\r\n", Form()).startswith(b"sep=;\na;b;fomo_score;")


def test_a_row_with_too_many_cells_loses_none() -> None:
    output = written(b"a,b\n1,2,3,4\n1\n", Form())
    _, long, short = csv.reader(io.StringIO(output.decode()))
    assert (long[:2], short[:2]) == (["1", "2,3,4"], ["1", ""])
    assert len(long) == len(short)


def test_reasons_are_names_and_a_sentence() -> None:
    reasons = [{"feature": "flow", "with": "rpm"}, {"feature": "rpm"}, {"feature": "load"}]
    output = written(b"a\n1\n", Form(is_explained=True), reasons=reasons, explanation="flow is 3, usually 5")
    (row,) = csv.DictReader(io.StringIO(output.decode()))
    assert (row["fomo_reasons"], row["fomo_explanation"]) == ("flow; rpm; load", "flow is 3, usually 5")
    plain = written(b"a\n1\n", Form(), reasons=reasons).decode().partition("\n")[0]
    assert not {f"fomo_{name}" for name in EXPLAINED_FIELDS} & set(plain.split(","))


FORMS = [Form(is_explained=True), Form(), Form(outliers_only=True)]


@pytest.mark.parametrize("earlier", FORMS)
@pytest.mark.parametrize("now", FORMS)
def test_results_of_an_earlier_run_are_replaced_whatever_its_flags_were(earlier: Form, now: Form) -> None:
    once = written(b"a,b\n1,2\n", earlier, outliers=(0,))
    assert written(once, now, outliers=(0,)) == written(b"a,b\n1,2\n", now, outliers=(0,))
    assert set(once.decode().partition("\n")[0].split(",")) <= {"a", "b", *csv_columns("fomo")}
