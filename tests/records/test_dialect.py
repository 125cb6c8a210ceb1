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
from hypothesis import given
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


def read_or_refused(data: bytes) -> tuple[dict[str, list[Any]], list[str]]:
    """The same; no columns, if the file is refused by a sentence that names a flag."""
    try:
        return read(data)
    except SchemaError as error:
        refusal = str(error)
    assert "--" in refusal
    return {}, [refusal]


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
    return text.replace(",", "!").replace(".", decimal).replace("!", thousands)


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
    dialects, columns, st.integers(0, 2**32), st.integers(8, 60), st.sampled_from([0.0, 0.1, 0.6]),
    st.sampled_from(WORDS), st.booleans(), st.booleans(),
)  # fmt: skip
def test_what_is_written_is_read_or_refused_by_a_sentence_that_names_a_flag(
    dialect: Any, made: list[Any], seed: int, n: int, missing: float, word: str, has_time: bool, has_text: bool
) -> None:
    sep, (decimal, thousands), quoting, cuts, ends, above, newline = dialect
    if thousands == ".":  # 4.050 alone is a number with three decimals to everybody
        made = [(name, level, max(1, digits)) for name, level, digits in made]
    if len(made) == 1 and not has_time and not has_text:  # else a name and numbers with commas could be two columns
        made = [("load", *made[0][1:])]
    rng = np.random.default_rng(seed)
    numbers = {name: np.round(rng.normal(level, level / 10, n), digits).tolist() for name, level, digits in made}
    holes = {name: [*(rng.random(n - 1) < missing).tolist(), False] for name in numbers}
    cells: dict[str, list[str]] = {
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
    ends = ends if len(cells) > 1 else ""  # else nobody could tell which the columns are
    text = io.StringIO()
    if above in ("sep=", "# station 12, roof", "Logger;12"):
        text.write((above + sep if above == "sep=" else above) + newline)
    writer = csv.writer(text, delimiter=sep, quoting=quoting, lineterminator=newline)
    writer.writerow([*cells, *[""] * (ends in ("header", "both"))])
    if above == "units below":
        writer.writerow(["kW" if name in numbers else "" for name in cells] + [""] * (ends in ("rows", "both")))
    for row in zip(*cells.values(), strict=True):
        writer.writerow([*row, *[""] * (ends in ("rows", "both"))])
    found, notes = read_or_refused(text.getvalue().encode())
    wrong = [name for name in numbers if not same(found.get(name, []), numbers[name], holes[name])]
    # where a remark without a mark could as well be the name of the only column, the note names what to say
    flags = ("--decimal", "--skip-lines") if above == "Logger;12" and len(cells) == 1 else ("--decimal",)
    assert not found or not wrong or any(flag in note for note in notes for flag in flags), (wrong, notes)


ROWS = "".join(f"2024-03-30T20:{i:02}:00Z;{50 + i % 7}.5;{i % 5},25\n" for i in range(60))


@pytest.mark.parametrize(
    ("above", "below", "line"),
    [
        ("", "", 1),
        ("sep=;\n", "", 2),
        ("#group;false;true\n#default;_result;\n", "", 3),
        ("Logger;roof;12\n", "TS;kW;degC\n;Avg;Avg\n", 2),
        ("Station 12, roof\n\nmade by hand\n", "", 4),
        ("", "[s];[kW];[°C]\n", 1),
    ],
)
def test_the_header_is_found_between_remarks_and_units_and_shown(above: str, below: str, line: int) -> None:
    found, notes = read(f"{above}ts;load;temp\n{below}{ROWS}".encode())
    assert found["load"][:3] == [50.5, 51.5, 52.5]
    assert found["temp"][:3] == [0.25, 1.25, 2.25]
    assert len(found["ts"]) == 60
    assert any(f"line {line} of the input is taken as the header: ts;load;temp" in note for note in notes) == bool(
        (above or below) and above != "sep=;\n"
    )


def test_a_first_line_that_numbers_the_columns_is_the_header() -> None:
    """As pandas writes a frame without names."""
    for head in ("0,1,2", ",0,1"):
        rows = "".join(f"{i},{50 + i % 7}.5,{-i}.25\n" for i in range(40))
        found, _ = read(f"{head}\n{rows}".encode())
        assert list(found) == ([*"012"] if head[0] == "0" else ["column_1", *"01"])
        assert [len(column) for column in found.values()] == [40] * 3


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"skip_lines": 2}, ["c", "d"]),
        ({"delimiter": ";", "skip_lines": 1}, ["a", "b"]),
        ({"delimiter": "\x01"}, ["x:y"]),
    ],
)
def test_flags_say_what_the_lines_do_not_show(flags: dict[str, Any], names: list[str]) -> None:
    data = b"x:y\na;b\nc,d\n"
    file = RecordFile(io.BytesIO(data), "csv", **flags)
    assert file.header == names


FORMS: list[tuple[list[str], list[Any]]] = [
    (["50.00-", "20.00", "(80.00)"], [-50.0, 20.0, -80.0]),
    (["30.1%", "29.9 %", "-1.5%"], [30.1, 29.9, -1.5]),
    (["45,00,000", "81,234", "1,23,45,678"], [4500000.0, 81234.0, 12345678.0]),
    (["1.2D+03", "-4.5d-01", "7.0E+01"], [1200.0, -0.45, 70.0]),
    (["0x1F", "0x0A", "0xff"], [31.0, 10.0, 255.0]),
    (["8.25 GiB", "7.5 GiB", "-1 GiB"], [8.25, 7.5, -1.0]),
    (["1.234,50 €", "-2,25 €", "3 €"], [1234.5, -2.25, 3.0]),
    (["4.7 kΩ", "0.5 MΩ", "1.5 kΩ", "220 Ω"], [4.7, 500.0, 1.5, 0.22]),
    (["512 MB", "1.5 GB", "8 MB", "3 kB"], [512.0, 1500.0, 8.0, 0.003]),
    (["950", "1.5K", "2.25M", "820"], [950.0, 1500.0, 2250000.0, 820.0]),
    (["$1.5K", "$2M", "$800K"], [1.5, 2000.0, 800.0]),
    (["21.5ºC", "7 ºC", "–3.5ºC"], [21.5, 7.0, -3.5]),
    (["–2.5", "3.5", "–"], [-2.5, 3.5, None]),
    (["293.5K", "300K", "301K"], [293.5, 300.0, 301.0]),
    # names are no numbers
    *((names, names) for names in (["192.168.100.200", "192.168.101.255"], ["12A", "7B"], ["P1", "P2"])),
    (["2,5 kW", "3,5 kW", "1,5 kW", "4,25 kW", "2,5"], [2.5, 3.5, 1.5, 4.25, 2.5]),  # the last one without its unit
]


@pytest.mark.parametrize(("cells", "values"), FORMS)
def test_numbers_as_people_and_programs_write_them(cells: list[str], values: list[Any]) -> None:
    data = "x;b\n" + "".join(f"{cell};{i}\n" for i, cell in enumerate(cells * 5))
    assert read(data.encode())[0]["x"] == values * 5


def test_a_cell_that_is_more_than_a_number_is_read_and_counted_and_another_unit_is_text() -> None:
    plain = [f"{i % 7}.5" for i in range(40)]
    data = "x,y\n" + "".join(f"{cell},{cell} kW\n" for cell in plain) + "<0.05,3.5 MPa\n44.1e,2.5\n"
    file = RecordFile(io.BytesIO(data.encode()), "csv")
    records = [line.record for line in file]
    assert [record["x"] for record in records[-2:] if record] == [0.05, 44.1]
    assert [record["y"] for record in records[-2:] if record] == ["3.5 MPa", 2.5]
    assert (file.with_more, file.texts) == ({"x": (2, "<0.05"), "y": (1, "2.5")}, {"y": (1, "3.5 MPa")})


@pytest.mark.parametrize(
    ("usual", "odd", "value"), [("2.5 ms", "3 s", 3000.0), ("2.5 kW", "3 MW", 3000.0), ("2.5", "1.059K", "1.059K")]
)
def test_a_unit_that_comes_late_is_converted_and_a_thousand_is_never_one(usual: str, odd: str, value: Any) -> None:
    """The odd value is that with the other unit, long after the first lines."""
    found, _ = read(("x,b\n" + f"{usual},1.5\n" * 300 + f"{odd},1.5\n").encode())
    assert (found["x"][0], found["x"][-1]) == (2.5, value)


numbers_of_a_column = st.lists(st.integers(-(10**7), 10**7), min_size=30, max_size=30)


@given(
    st.lists(numbers_of_a_column, min_size=2, max_size=5), st.sampled_from(["aligned", "savetxt", "units", "quoted"])
)
def test_columns_between_blanks_are_read_as_other_programs_write_them(thousandths: list[list[int]], how: str) -> None:
    values = [[number / 1000 for number in column] for column in thousandths]
    names = [f"c{i}" for i in range(len(values))]
    frame = pd.DataFrame(dict(zip(names, values, strict=True)))
    if how == "savetxt":
        out = io.StringIO()
        np.savetxt(out, frame.to_numpy(), fmt="%.3f", header=" ".join(names))
        text = out.getvalue()
    elif how == "quoted":
        text = frame.to_csv(sep=" ", index=False, quoting=csv.QUOTE_ALL)
    else:
        head, _, rows = (frame.to_string(index=False) + "\n").partition("\n")
        units = f"#{'   '.join(['m/s'] * len(names))}\n"
        text = f"#{head.lstrip()}\n{units}{rows}" if how == "units" else f"{head}\n{rows}"
    found, _ = read(text.encode())
    assert [name.lstrip("#") for name in found] == names
    for column, expected in zip(found.values(), values, strict=True):
        assert column == pytest.approx(expected, abs=1e-3)


def test_one_blank_may_separate_cells_of_which_some_are_empty() -> None:
    rows = "".join(f"{i} {'' if i % 5 == 0 else i * 2} {i * 3}\n" for i in range(50))
    found, _ = read(f"a b c\n{rows}".encode(), delimiter=" ")
    assert found["b"] == [None if i % 5 == 0 else i * 2 for i in range(50)]


@pytest.mark.parametrize(
    ("above", "row", "names", "first"),
    [
        ("t a b", "{i} {h} {h}", ["t", "a", "b"], 0.0),  # not one number with blanks between thousands
        ("date load", "2026-10-01 {i}", ["date", "load"], "2026-10-01"),
        ("Total load", "1 {h}", ["Total load"], 1100.0),
        ("my load", "{i} kg", ["my load"], 0.0),
        ("Date time\tload", "2026-10-01 12:00:00\t{i}", ["Date time", "load"], "2026-10-01 12:00:00"),
        ("total load,net power", "1 234,5 {h}", ["total load", "net power"], 1234.0),
        ("min max,from to", "{i} 4,5 6", ["min max", "from to"], "0 4"),
        ("sep=;\nmin max;load", "{i} 4;5", ["min max", "load"], "0 4"),
        ("a b", "\f\n{i} {h}", ["a", "b"], 0.0),  # lines of other blanks
        ("a,b", "\u3000\n{i},{h}", ["a", "b"], 0.0),
        ("Data from a station\nTime Load Temp", "{i} {h} 3", ["Time", "Load", "Temp"], 0.0),
        ("# Time Load Temp\n# s kW C", "{i} {h} 3", ["Time", "Load", "Temp"], 0.0),
        ("Sensor;01.10.2026;2 Oct 2026", "s1;{i};{h}", ["Sensor", "01.10.2026", "2 Oct 2026"], "s1"),  # dates are names
        ("Sensor,2026-10-01", "s1,{i}", ["Sensor", "2026-10-01"], "s1"),
        ("Created;01.10.2026\nSensor;Load", "s1;{i}", ["Sensor", "Load"], "s1"),
    ],
)
def test_blanks_and_dates_count_for_as_much_as_a_reader_sees(
    above: str, row: str, names: list[str], first: object
) -> None:
    rows = "".join(row.format(i=i, h=100 + i) + "\n" for i in range(50))
    found, _ = read(f"{above}\n{rows}".encode())
    assert list(found) == names
    assert {len(column) for column in found.values()} == {50}
    assert found[names[0]][0] == first


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("1 2\n3 4\n5 6\n", "starts with numbers, not with a header"), ("sep=;\n", "no line of column names; add one")],
)
def test_a_file_without_names_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        read(text.encode())


def test_a_quote_may_follow_a_delimiter_and_blanks() -> None:
    for sep in (", ", "|  "):
        rows = "".join(sep.join(f'"{cell}"' for cell in (f"{i}.5", f"a{sep}b\nc", i)) + "\n" for i in range(40))
        found, _ = read((sep.join(('"load"', '"note"', '"n"')) + "\n" + rows).encode())
        assert found["load"] == [i + 0.5 for i in range(40)]
        assert found["note"] == [f"a{sep}b\nc"] * 40
    found, _ = read(b"a,b,c\n" + b'1, "hello" world,2\n' * 40)  # or belong to a text
    assert [found["a"][0], found["b"][0].strip(), found["c"][0]] == [1, '"hello" world', 2]


def test_more_lines_than_the_first_ones_can_be_skipped() -> None:
    data = "".join(f"remark {i}; of a logger\n" for i in range(300)) + "a,b\n1,2\n3,4\n"
    assert read(data.encode(), skip_lines=300)[0] == {"a": [1.0, 3.0], "b": [2.0, 4.0]}
    with pytest.raises(SchemaError, match="the input has 303 lines; --skip-lines 999 leaves none"):
        read(data.encode(), skip_lines=999)
