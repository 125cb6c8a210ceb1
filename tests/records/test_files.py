"""Files of records: encodings, compressions, CSV and JSON lines, in any pieces and with any mistakes."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError, FomoError, SchemaError
from fomo_stream.records.files import RecordFile, read_rows, trusted_records
from fomo_stream.records.lines import LineSource, plain_text
from fomo_stream.records.schema import Schema

CODECS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")


class Trickle(io.BytesIO):
    """A pipe that gives a few bytes at a time."""

    chunk = 1

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(self.chunk)


def raw_lines(data: bytes, chunk: int = 1) -> list[bytes]:
    stream = Trickle(data)
    stream.chunk = chunk
    return list(LineSource(plain_text(stream, "it")))


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=10), min_size=1, max_size=5),
    st.sampled_from(CODECS),
    st.booleans(),
    st.integers(1, 20),
)
def test_text_is_the_same_in_every_encoding(lines: list[str], codec: str, compressed: bool, chunk: int) -> None:
    lines = ["first", *lines, "last"]
    data = "\n".join(lines).encode(codec)
    assert raw_lines(gzip.compress(data) if compressed else data, chunk) == [line.encode() for line in lines]


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("data.csv", "a,b\n1,2\n")
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (zipped(), "ZIP"),
        (bz2.compress(b"a,b"), "bzip2"),
        (lzma.compress(b"a,b"), "xz"),
        (b"PAR1....", "Parquet"),
        (b"\x28\xb5\x2f\xfd....", "Zstandard"),
        (b"\xd0\xcf\x11\xe0....", "Excel"),
        (gzip.compress(zipped()), "ZIP"),
    ],
    ids=["zip", "bzip2", "xz", "parquet", "zstandard", "excel", "zip in gzip"],
)
def test_other_formats_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        raw_lines(data)


def test_compressed_files_may_follow_each_other() -> None:
    assert raw_lines(gzip.compress(b"a\nb") + gzip.compress(b"c\nd") + bytes(9), 7) == [b"a", b"bc", b"d"]


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:20] + b"\xff\xff\xff\xff" + data[24:]])
def test_damaged_compressed_data_is_one_sentence(damage: Any) -> None:
    data = gzip.compress(b"\n".join(b"%d" % (i * i) for i in range(2000)))
    with pytest.raises(ConfigError, match=r"cannot read it: .* damaged"):
        raw_lines(damage(data), 100)


def test_an_error_of_the_system_names_the_file() -> None:
    class Breaking(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            found = super().read1(size)
            if not found:
                raise OSError(errno.EIO, "Input/output error")
            return found

    lines = LineSource(plain_text(Breaking(b"a\nb\n"), "it"))
    assert [next(lines), next(lines)] == [b"a", b"b"]
    with pytest.raises(FomoError, match="cannot read it: Input/output error") as caught:
        next(lines)
    assert caught.value.exit_code == 1


@given(st.lists(st.text(st.characters(categories=["L", "N", "P", "Zs"], codec="utf-8"), max_size=200), min_size=3))
def test_no_language_is_taken_for_another_format(lines: list[str]) -> None:
    text = "\n".join([*lines, "end"])
    for codec in ("utf-8", "utf-16"):
        assert b"\n".join(raw_lines(text.encode(codec), chunk=10**6)).decode() == text


def lines_of(data: bytes, **options: Any) -> list[Any]:
    return list(RecordFile(io.BytesIO(data), **options))


def test_csv_cells_become_numbers_booleans_text_or_missing() -> None:
    data = b'\xef\xbb\xbfa, b,,d\r\n1,x y,true,\r\n\r\nNaN,1_000,"2\n3",1e999\r\n'
    first, blank, second = lines_of(data)
    assert blank.is_blank
    assert first.record == {"a": 1.0, "b": "x y", "column_3": True, "d": None}
    assert (first.number, second.number) == (2, 4)
    assert second.raw == ["NaN", "1_000", "2\n3", "1e999"]
    assert Schema(("a", "b", "d")).rows([second.record]).tolist() == pytest.approx(np.full((1, 3), np.nan), nan_ok=True)


@pytest.mark.parametrize("mark", [b",", b";", b"\t"])
def test_the_header_shows_the_delimiter(mark: bytes) -> None:
    assert list(trusted_records(RecordFile(io.BytesIO(b"a|b\n1|2\n".replace(b"|", mark))))) == [{"a": 1.0, "b": 2.0}]


def test_a_ragged_row_is_reported_with_its_line_and_reading_goes_on() -> None:
    good, ragged, after = lines_of(b"a,b\n1,2\n1,2,3\n4,5\n")
    assert (good.error, after.record) == (None, {"a": 4.0, "b": 5.0})
    assert (ragged.number, ragged.error.reason) == (3, "ragged")


@given(
    st.binary(max_size=80) | st.text('ab1,;"{}:[]\n\r\t ', max_size=80).map(lambda text: text.encode()),
    st.sampled_from(["auto", "csv", "jsonl"]),
    st.sampled_from([b"", b"a,b\n", b"a;b\n", b"sep=;\nx\n", b"\x1f\x8b", b"\xff\xfe"]),
    st.sampled_from(["auto", "comma", "point"]),
)
def test_any_bytes_are_refused_or_every_line_is_a_record_an_error_or_blank(
    data: bytes, format: str, start: bytes, decimal: str
) -> None:
    data = start + data
    try:
        file = RecordFile(io.BytesIO(data), format, decimal=decimal)
        lines = list(file)
    except (SchemaError, ConfigError):
        return
    covered = [number for line in lines for number in range(line.number, max(line.number, line.last) + 1)]
    first = covered[0] if covered else 1
    assert covered == list(range(first, first + len(covered)))
    assert first == 1 or file.format == "csv"  # after the header
    if covered and not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
        assert covered[-1] == data.count(b"\n") + (not data.endswith(b"\n"))


def test_an_undecodable_json_line_is_reported_and_reading_goes_on() -> None:
    first, bad, blank, good = lines_of(b'\n{"a": \n\n{"a": 1}')
    assert [first.is_blank, bad.is_blank, blank.is_blank, good.is_blank] == [True, False, True, False]
    assert (bad.number, bad.error.reason, bad.raw) == (2, "not_json", b'{"a": ')
    assert (good.number, good.record) == (4, {"a": 1})


def test_a_line_beyond_the_limit_is_cut_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fomo_stream.records.lines.MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr("fomo_stream.records.lines.CHUNK_BYTES", 64)
    too_long = b'{"a": "' + b"x" * 5000 + b'"}'
    lines = lines_of(b'{"a": 1}\n' + too_long + b'\n{"a": 2}\n', format="jsonl")
    assert [line.number for line in lines] == [1, 2, 3]
    assert len(lines[1].raw) == 1001
    assert lines[2].record == {"a": 2}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"1,2\n3,4\n", "names the columns"),
        (b"a,b,a,c,b,a\n1,2,3,4,5,6\n", r"'a' \(columns 1, 3 and 6\), 'b' \(columns 2 and 5\)"),
        (b"1,5;2,7\n3,5;4,7\n", "names the columns"),
        (b'a,"b\n1,2\n', "a quote opens"),
        (b"sep=;\n", "no line of column names"),
        (b'[{"a": 1},\n{"a": 2}]\n', "one JSON array"),
        (b"PK\x03\x04...", "ZIP"),
        (b"PAR1...", "Parquet"),
    ],
)
def test_a_file_without_usable_header_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        lines_of(data)


def test_context_rows_come_in_the_order_of_the_schema(tmp_path: Any) -> None:
    path = tmp_path / "normal.csv"
    path.write_text("b,a,note\n1,2,x\n,,x\n3,,x\n")
    np.testing.assert_array_equal(read_rows(path, Schema(("a", "b"))), [[2, 1], [np.nan, 3]])


def test_a_context_file_that_does_not_fit_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "normal.jsonl"
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(SchemaError, match=r"normal\.jsonl line 2"):
        read_rows(path, Schema(("a",)))
    path.write_text('{"a": 1}\n')
    with pytest.raises(SchemaError, match="check their names"):
        read_rows(path, Schema(("b",)))
    with pytest.raises(ConfigError, match="cannot read"):
        read_rows(tmp_path / "absent.csv", Schema(("b",)))
