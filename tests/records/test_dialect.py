"""Files of CSV as people and programs write them: the values that are read are those that were written."""

from __future__ import annotations

import csv
import io
import math
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fomo_stream.errors import SchemaError
from fomo_stream.records.files import RecordFile

NAMES = ["load", "flow, l/min", "temp; C", "p|bar", "level"]
WORDS = ["", "NA", "n/a", "-", "NULL", "\\N", "NaN"]


def read(data: bytes, **how: Any) -> tuple[dict[str, list[Any]], list[str]]:
    """The columns of a file, and the notes about it."""
    notes: list[str] = []
    file = RecordFile(io.BytesIO(data), "csv", note=notes.append, **how)
    records = [line.record for line in file if line.record is not None]
    return {name: [record[name] for record in records] for name in file.header}, notes


def same(found: list[Any], written: list[float], holes: list[bool]) -> bool:
    """Whether these are the values; None and NaN are holes."""
    return len(found) == len(written) and all(
        value is None or (isinstance(value, float) and math.isnan(value))
        if hole
        else isinstance(value, float) and math.isclose(value, number, rel_tol=1e-9, abs_tol=1e-12)
        for value, number, hole in zip(found, written, holes, strict=True)
    )


def text_of(value: float, digits: int, decimal: str, thousands: str, cuts: bool) -> str:
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if cuts and digits else text
    return text.translate(str.maketrans({",": thousands, ".": decimal}))


dialects = st.tuples(
    st.sampled_from(",;\t|"),
    st.sampled_from([(".", ""), (",", ""), (",", "."), (",", " "), (".", ","), (".", "'")]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.booleans(),  # zeros at the end of a fraction are cut
    st.sampled_from(["", "rows", "header", "both"]),  # have a delimiter at the end
    st.sampled_from(["", "sep=", "# station 12, roof", "Logger;12", "units below"]),
    st.sampled_from(["\n", "\r\n"]),
)
columns = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([0.02, 3.0, 50.0, 4000.0, 9e5, 5e6]), st.integers(0, 4)),
    min_size=1,
    max_size=4,
    unique_by=lambda column: column[0],
)


@given(
    dialects, columns, st.integers(0, 2**32), st.integers(3, 60), st.sampled_from([0.0, 0.1, 0.6]),
    st.sampled_from(WORDS), st.booleans(), st.booleans(),
)  # fmt: skip
def test_what_is_written_is_read_or_refused_by_a_sentence_that_names_a_flag(
    dialect: Any, made: list[Any], seed: int, n: int, missing: float, word: str, has_time: bool, has_text: bool
) -> None:
    sep, (decimal, thousands), quoting, cuts, ends, above, newline = dialect
    rng = np.random.default_rng(seed)
    numbers = {name: np.round(rng.normal(level, level / 10, n), digits).tolist() for name, level, digits in made}
    holes = {name: (rng.random(n) < missing).tolist() for name in numbers}
    cells = {
        name: [
            word if hole else text_of(value, digits, decimal, thousands, cuts)
            for value, hole in zip(numbers[name], holes[name], strict=True)
        ]
        for name, _, digits in made
    }
    if has_time:
        cells = {"ts": [f"{datetime(2024, 3, 30) + timedelta(minutes=i)}" for i in range(n)]} | cells
    if has_text:
        cells["site"] = ["north" if i % 3 else "south" for i in range(n)]
    text = io.StringIO()
    if above in ("sep=", "# station 12, roof", "Logger;12"):
        text.write((above + sep if above == "sep=" else above) + newline)
    writer = csv.writer(text, delimiter=sep, quoting=quoting, lineterminator=newline)
    writer.writerow([*cells, *[""] * (ends in ("header", "both"))])
    if above == "units below":
        writer.writerow(["kW" if name in numbers else "" for name in cells] + [""] * (ends in ("rows", "both")))
    for row in zip(*cells.values(), strict=True):
        writer.writerow([*row, *[""] * (ends in ("rows", "both"))])
    try:
        found, notes = read(text.getvalue().encode())
    except SchemaError as refusal:
        assert "--" in str(refusal)
        return
    wrong = [name for name in numbers if not same(found.get(name, []), numbers[name], holes[name])]
    assert not wrong or any("--decimal" in note for note in notes), (wrong, notes)


@given(
    st.sampled_from(",;\t|"), st.sampled_from(".,"), st.sampled_from([None, "%.3f", "%.2e", "%g"]), st.booleans(),
    st.sampled_from(["", "NA", "null"]), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["utf-8", "utf-8-sig"]), st.booleans(), st.integers(0, 2**32),
)  # fmt: skip
def test_files_of_pandas_are_read_whatever_its_options(
    sep: str, decimal: str, form: str | None, index: bool, na: str, quoting: int, codec: str, numbered: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        rng.normal(50, 5, (40, 3)) if numbered else {"a": rng.normal(50, 5, 40), "b, c": rng.random(40)}
    )
    frame = frame.mask(rng.random(frame.shape) < 0.1)
    options: Any = {"sep": sep, "decimal": decimal, "float_format": form, "index": index, "na_rep": na}
    text = frame.to_csv(None, **options, quoting=quoting)
    try:
        found, notes = read(text.encode(codec))
    except SchemaError as refusal:
        assert "--" in str(refusal)
        return
    expected = pd.read_csv(io.StringIO(text), sep=sep, decimal=decimal, index_col=0 if index else None)
    for at, name in enumerate(frame.columns):
        column = found[str(name)]
        holes = expected.iloc[:, at].isna().tolist()
        assert same(column, expected.iloc[:, at].tolist(), holes) or any("--decimal" in note for note in notes), name
