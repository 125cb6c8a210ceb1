"""Encodings and compressions of files."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError, FomoError, SchemaError
from fomo_stream.records.lines import LineSource, plain_text

CODECS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")


class Trickle(io.BytesIO):
    """A pipe that gives a few bytes at a time."""

    chunk = 1

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(self.chunk)


def lines_of(data: bytes, chunk: int = 1, notes: list[str] | None = None) -> list[bytes]:
    stream = Trickle(data)
    stream.chunk = chunk
    return list(LineSource(plain_text(stream, "it", (notes if notes is not None else []).append)))


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=10), min_size=1, max_size=5),
    st.sampled_from(CODECS),
    st.booleans(),
    st.integers(1, 20),
)
def test_text_is_the_same_in_every_encoding(lines: list[str], codec: str, compressed: bool, chunk: int) -> None:
    lines = ["first", *lines, "last"]
    data = "\n".join(lines).encode(codec)
    assert lines_of(gzip.compress(data) if compressed else data, chunk) == [line.encode() for line in lines]


def test_bytes_of_other_encodings_stay_as_they_are() -> None:
    assert lines_of("größe\nß".encode("latin-1")) == ["größe".encode("latin-1"), b"\xdf"]


def test_another_encoding_is_noted() -> None:
    notes: list[str] = []
    lines_of("a".encode("utf-16"), notes=notes)
    assert notes == ["it is UTF-16; the results are UTF-8"]


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
        lines_of(data)


def test_compressed_files_may_follow_each_other() -> None:
    assert lines_of(gzip.compress(b"a\nb") + gzip.compress(b"c\nd") + bytes(9), 7) == [b"a", b"bc", b"d"]


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:20] + b"\xff\xff\xff\xff" + data[24:]])
def test_damaged_compressed_data_is_one_sentence(damage: Any) -> None:
    data = gzip.compress(b"\n".join(b"%d" % (i * i) for i in range(2000)))
    with pytest.raises(ConfigError, match=r"cannot read it: .* damaged"):
        lines_of(damage(data), 100)


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
        assert b"\n".join(lines_of(text.encode(codec), chunk=10**6)).decode() == text
