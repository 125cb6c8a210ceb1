"""`fomo-stream score`: files as they come, and only the outliers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from scoring import RECORDS, as_csv, as_jsonl, results, score

from fomo_stream.cli.score import run_score
from fomo_stream.errors import FomoError, SchemaError, SkippedError
from fomo_stream.settings.commands import ScoreSettings


def summary(notes: str) -> str:
    return next(line for line in notes.splitlines() if line.startswith("scored="))


def table(output: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(output.decode())))


def test_only_the_outliers_are_written_and_everything_is_counted(model_path: Path) -> None:
    everything, notes = score(model_path, as_csv(RECORDS))
    only, few_notes = score(model_path, as_csv(RECORDS), outliers_only=True)
    rows = enumerate(table(everything), 2)  # the header is line 1
    assert table(only) == [row | {"fomo_line": str(n)} for n, row in rows if row["fomo_outlier"] == "true"]
    assert 0 < len(table(only)) < 60
    assert summary(notes) == summary(few_notes) + " (to see only the outliers: --outliers-only)"
    lines, _ = score(model_path, as_jsonl(RECORDS), outliers_only=True)
    found = enumerate(results(score(model_path, as_jsonl(RECORDS))[0]), 1)
    assert results(lines) == [result | {"line": n} for n, result in found if result["outlier"]]
    assert len(results(lines)) == len(table(only))
    assert score(model_path, only, may_skip=True, outliers_only=True)[0].splitlines()[0] == only.splitlines()[0]


def test_reasons_of_csv_are_those_of_json_lines(model_path: Path) -> None:
    rows = table(score(model_path, as_csv(RECORDS))[0])
    found = results(score(model_path, as_jsonl(RECORDS))[0])
    for row, result in zip(rows, found, strict=True):
        assert row["fomo_explanation"] == result.get("explanation", "")
        names = [reason["feature"] for reason in result.get("reasons", [])]
        assert row["fomo_reasons"].split("; ") == (names or [""])
    assert any(row["fomo_reasons"] for row in rows)
    plain = table(score(model_path, as_csv(RECORDS[:60]), explain="none")[0])
    assert not {"fomo_reasons", "fomo_explanation"} & plain[0].keys()


def test_alerts_that_belong_together_have_the_line_of_the_first_one(model_path: Path) -> None:
    data = b"\n" + as_jsonl(RECORDS)  # the first record is in line 2
    found = results(score(model_path, data)[0].lstrip(b"\n"))
    expected: dict[int, str] = {}
    last = -100
    for number, result in enumerate(found, 2):
        if result["outlier"]:
            expected[number] = expected[last] if number - last <= 10 else str(number)
            last = number
    assert {number: result["incident"] for number, result in enumerate(found, 2) if "incident" in result} == expected
    assert len(set(expected.values())) < len(expected)
    rows = table(score(model_path, as_csv(RECORDS))[0])  # its header is line 1
    assert [row["fomo_incident"] for row in rows] == [result.get("incident", "") for result in found]


def test_decimal_commas_give_the_scores_of_decimal_points(model_path: Path) -> None:
    records = [{name: value for name, value in one.items() if name != "pump"} for one in RECORDS[:200]]
    with_points = as_csv(records).replace(b",", b";")
    with_commas = with_points.replace(b".", b",")
    assert with_points != with_commas
    expected, _ = score(model_path, with_points)
    found, notes = score(model_path, with_commas)
    assert "read with decimal commas" in notes
    header, *lines = [line.split(";") for line in found.decode().splitlines()]
    results_at = header.index("fomo_score")
    cells = [";".join(line[:results_at]) for line in lines]
    assert cells == with_commas.decode().splitlines()[1:]
    assert [line[results_at : results_at + 5] for line in lines] == [
        line.split(";")[results_at : results_at + 5] for line in expected.decode().splitlines()[1:]
    ]


def test_a_context_with_decimal_commas_is_read_too(model_path: Path, tmp_path: Path) -> None:
    records = [{name: value for name, value in one.items() if name != "pump"} for one in RECORDS[:200]]
    (tmp_path / "points.csv").write_bytes(as_csv(records).replace(b",", b";"))
    (tmp_path / "commas.csv").write_bytes(as_csv(records).replace(b",", b";").replace(b".", b","))
    data = as_jsonl(RECORDS[200:220])
    with_points, with_commas = (
        score(model_path, data, context=tmp_path / name)[0] for name in ("points.csv", "commas.csv")
    )
    assert with_points == with_commas


def test_columns_and_cells_that_do_not_count_are_named(model_path: Path) -> None:
    rows = [f"{i % 7},{i % 5}.5,{i % 3} %,{'x7' if i == 58 else i % 4}" for i in range(60)]
    _, notes = score(model_path, "\n".join(["a,b,load,d", *rows]).encode())
    assert "left out: load (text such as '0 %')" in notes
    assert "1 cell of the column d of the input is text, such as 'x7', and counts as missing" in notes
    assert "missing=1" in summary(notes)


def test_records_without_a_value_are_counted_with_the_line_of_the_first(model_path: Path) -> None:
    rows = [f"{i % 7},{i % 5}" for i in range(60)]
    rows[20] = rows[40] = ","
    _, notes = score(model_path, "\n".join(["a,b", *rows]).encode())
    assert "2 records of the input have no value of any feature (a,b), the first in line 22" in notes
    assert "no value of any feature" not in score(model_path, "\n".join(["a,b", *rows[:20]]).encode())[1]
    rows[20] = rows[40] = '"x\ny",'
    _, notes = score(model_path, "\n".join(["a,b", *rows]).encode(), may_skip=True)
    assert "2 records of the input have no value of any feature (a,b), the first in line 22" in notes
    assert "skipped=4 " in notes  # lines


@pytest.mark.parametrize("between", [" ", "\xa0", "\u202f", "'", "\u2019"])
@pytest.mark.parametrize("codec", ["utf-8", "cp1252"])
def test_thousands_of_spreadsheets_are_numbers(model_path: Path, between: str, codec: str) -> None:
    if codec == "cp1252" and between == "\u202f":
        between = "\xa0"  # which cp1252 has
    values = [(i * 7919 % 10_000 + 1000, i % 5) for i in range(200)]
    plain = "".join(["höhe;b\n", *(f"{a}.5;{b}.25\n" for a, b in values)])
    text = "".join(["höhe;b\n", *(f"{a // 1000}{between}{a % 1000:03d},5;{b},25\n" for a, b in values)])
    expected, _ = score(model_path, plain.encode())
    found, notes = score(model_path, text.encode(codec))
    assert "features: b, höhe\n" in notes
    scores = [[line.split(b";")[2:7] for line in output.splitlines()[1:]] for output in (expected, found)]
    assert scores[0] == scores[1]


def test_columns_of_an_excel_file_in_its_own_encoding_are_named_as_they_look(model_path: Path) -> None:
    rows = [f"{i % 7};{i % 5}" for i in range(150)]
    rows[130] = "900;3"
    data = "\r\n".join(["Größe °C;länge", *rows]).encode("cp1252")
    output, notes = score(model_path, data, features=("Größe °C",), explain="all")
    assert "cells" not in notes
    text = output.decode("cp1252")
    found = list(csv.DictReader(io.StringIO(text), delimiter=";"))
    assert [f"{row['Größe °C']};{row['länge']}" for row in found] == rows
    assert found[130]["fomo_reasons"] == "Größe °C"
    assert found[130]["fomo_explanation"].startswith("Größe °C is 900, usually")


def test_json_lines_under_the_name_of_csv_are_known_by_their_first_line(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_bytes(as_jsonl(RECORDS[:60]))
    out = tmp_path / "out.jsonl"
    run_score(ScoreSettings(file=str(path), model=str(model_path), min_context=50, output=str(out)))
    assert out.read_bytes() == score(model_path, as_jsonl(RECORDS[:60]))[0]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (bytes(range(256)) * 40, "is no text"),
        (b"%PDF-1.7\n", "PDF"),
        (as_csv(RECORDS[:20]).decode().encode("utf-16-le"), "UTF-16 without a byte order mark; .* iconv -f UTF-16LE"),
        (as_csv(RECORDS[:20]).decode().encode("utf-16-be"), "UTF-16 without a byte order mark; .* iconv -f UTF-16BE"),
        (as_csv(RECORDS[:20]).replace(b"\n", b"\r"), "carriage return alone"),
    ],
)
def test_a_file_that_cannot_be_read_as_text_is_one_plain_sentence(
    model_path: Path, data: bytes, complaint: str
) -> None:
    with pytest.raises(SchemaError, match=complaint) as caught:
        score(model_path, data)
    assert str(caught.value).isprintable()


def test_an_open_quote_costs_one_line(model_path: Path) -> None:
    lines = as_csv(RECORDS[:60]).splitlines()
    lines.insert(30, b'P-101,"7,1,2')
    output, notes = score(model_path, b"\n".join(lines))
    assert [row["fomo_status"] for row in table(output)].count("malformed") == 1
    assert table(output)[29]["fomo_status"] == "malformed"
    assert "line 31: the row is not CSV: a quote opens and is not closed" in notes
    assert "scored=60 " in notes
    assert "skipped=1 " in notes


@pytest.mark.parametrize(("bad", "passes"), [(0, True), (5, True), (6, False), (40, False)])
def test_too_many_skipped_lines_are_an_error(model_path: Path, bad: int, passes: bool) -> None:
    good = as_jsonl(RECORDS[: 50 - bad])
    data = good + b"{\n" * (bad - bad // 2) + b'{"other": 1}\n' * (bad // 2)
    context = context_file(model_path)
    if passes:
        assert f"skipped={bad} " in score(model_path, data, context=context)[1]
    else:
        with pytest.raises(SkippedError, match=f"{bad} of 50 lines could not be scored") as caught:
            score(model_path, data, context=context)
        assert caught.value.exit_code == 13


def context_file(model_path: Path) -> Path:
    path = model_path.parent / "few.jsonl"
    if not path.exists():
        path.write_bytes(as_jsonl(RECORDS[:50]))
    return path


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings_of_spreadsheets_are_read(model_path: Path, codec: str) -> None:
    rows = [f"{i % 7};{i % 5}" for i in range(60)]
    text = "\r\n".join(["sep=;", "größe;länge", *rows, ""])
    output, _ = score(model_path, text.encode(codec))
    found = output.decode("latin-1" if codec == "latin-1" else "utf-8").splitlines()
    assert found[0] == "sep=;"
    assert found[1].startswith("größe;länge;fomo_score;")
    assert [line.rsplit(";", 14)[0] for line in found[2:]] == rows


@pytest.mark.parametrize(
    "data",
    [
        b"a,b\n",
        b"a\n",
        b"\xff\xfe",
        b"\x1f\x8b",
        b"sep=;",
        b"\x00",
        b'"',
        b"{",
        b"[",
        b"a\n" + b"\n" * 5000,
    ],
)
def test_an_input_without_records_is_one_sentence(model_path: Path, data: bytes) -> None:
    with pytest.raises(FomoError) as caught:
        score(model_path, data)
    assert "\n" not in str(caught.value)
