"""Files as sources: every format gives the same samples, from any record on, and mistakes are explained."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError, FomoError, SchemaError
from fomo_stream.records.files import Line, RecordFile
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Sample
from fomo_stream.replaying.sources.file import FileSource
from fomo_stream.replaying.sources.tables import format_of

Records = Sequence[Mapping[str, Any]]
FIELDS = ("a", "n", "ok", "device", "at", "bad")
BASE_MS = 1_759_276_800_000


def write_csv(records: Records, path: Path) -> None:
    with open(path, "w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        writer.writerows(records)


def write_jsonl(records: Records, path: Path) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_jsonl_gz(records: Records, path: Path) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))


def write_parquet(records: Records, path: Path) -> None:
    types = zip(FIELDS, (pa.float64(), pa.int64(), pa.bool_(), pa.string(), pa.int64(), pa.int8()), strict=True)
    pq.write_table(pa.Table.from_pylist(list(records), pa.schema(list(types))), path, row_group_size=7)


def write_frame(records: Records, path: Path) -> None:
    """As pandas writes it: missing integers make a column of floats, and text is stored as a dictionary."""
    frame = pd.DataFrame(list(records), columns=FIELDS)
    frame["device"] = frame["device"].astype("category")
    frame.to_parquet(path, index=False)


WRITERS: dict[str, Callable[[Records, Path], None]] = {
    "rows.csv": write_csv,
    "rows.jsonl": write_jsonl,
    "rows.jsonl.gz": write_jsonl_gz,
    "rows.parquet": write_parquet,
    "frame.parquet": write_frame,
}


def source_of(path: Path, **options: Any) -> FileSource:
    return FileSource(path, format_of(path, "auto"), **options)


def read(source: FileSource, start: int = 0) -> list[Sample]:
    return list(source.read(0, start, lambda: False))


records = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "n": st.integers(-(2**50), 2**50),
            "ok": st.booleans(),
            "device": st.none() | st.sampled_from(["p7", "p 8", "ä"]),
            "at": st.integers(0, 10**7).map(lambda seconds: BASE_MS // 1000 + seconds),
            "bad": st.none() | st.sampled_from([0, 1]),
        }
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records, st.integers(0, 20))
def test_every_format_gives_the_same_samples_from_any_record_on(
    tmp_path: Path, rows: list[dict[str, Any]], start: int
) -> None:
    expected = [
        Sample(
            offset,
            row["at"] * 1000,
            row["device"],
            row,
            None,
            {None: UNKNOWN, 0: INLIER, 1: OUTLIER}[row["bad"]],
        )
        for offset, row in enumerate(rows)
    ]
    for name, write in WRITERS.items():
        write(rows, tmp_path / name)
        source = source_of(tmp_path / name, key="device", time="at", label="bad", unit=1000.0)
        found = [
            one._replace(fields={k: None if is_nan(v) else v for k, v in one.fields.items()})
            for one in read(source, start)
        ]
        assert found == expected[start:], name
        assert source.table().count >= len(rows)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and bool(np.isnan(value))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from(["<f8", ">f4", "<i2", "?"]), st.booleans(), st.booleans())
def test_an_archive_of_arrays_gives_their_rows(
    tmp_path: Path, n: int, d: int, dtype: str, is_fortran: bool, is_compressed: bool
) -> None:
    X = (np.arange(n * d).reshape(n, d) % 97).astype(dtype)
    stored = np.asfortranarray(X) if is_fortran else X
    times = np.datetime64("2025-10-01") + np.arange(n).astype("timedelta64[s]")
    save = np.savez_compressed if is_compressed else np.savez
    save(tmp_path / "rows.npz", X=stored, y=np.arange(n) % 2, time=times, names=np.array(list("abcd"[:d])))
    start = n // 3
    found = read(source_of(tmp_path / "rows.npz", time="time", label="y"), start)
    assert [[one.fields[name] for name in "abcd"[:d]] for one in found] == X[start:].tolist()
    assert [one.offset for one in found] == list(range(start, n))
    assert [one.label for one in found] == (np.arange(n) % 2)[start:].tolist()
    assert [one.timestamp for one in found] == [BASE_MS + 1000 * i for i in range(start, n)]
    unnamed = read(source_of(tmp_path / "rows.npz"))
    assert "y" not in unnamed[0].fields  # an array that no flag names is no feature


def test_numbers_are_those_that_pandas_reads(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    text = pd.DataFrame(rng.normal(size=(3000, 4)) * 10.0 ** rng.integers(-300, 300, (3000, 4))).to_csv(index=False)
    path = tmp_path / "rows.csv"
    path.write_text(text.replace("0,1,2,3", "p,q,r,s", 1))
    expected = pd.read_csv(path)
    assert [list(one.fields.values()) for one in read(source_of(path))] == expected.to_numpy().tolist()


def test_values_of_parquet_are_those_that_pyarrow_reads(tmp_path: Path) -> None:
    table = pa.table(
        {
            "x": pa.array([1, None, 3], pa.int32()),
            "half": pa.array(np.array([0.5, 1, 2], np.float16)),
            "motor": [{"rpm": 1.5, "tags": ["a"]}, None, {"rpm": None, "tags": []}],
            "list": [[1, 2], [], None],
            "text": pa.array(["a", "b", "a"]).dictionary_encode(),
            "nothing": pa.nulls(3),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    assert [one.fields for one in read(source_of(tmp_path / "rows.parquet"))] == table.to_pylist()


def test_values_of_parquet_that_json_lacks_become_text_and_numbers(tmp_path: Path) -> None:
    moment = datetime(2025, 10, 1, 0, 0, 0, 250_000, UTC)
    table = pa.table(
        {
            "at": pa.array([moment, None], pa.timestamp("ns", "Europe/Berlin")),
            "day": [moment.date(), None],
            "price": [Decimal("1.50"), None],
            "took": [timedelta(seconds=2), None],
            "raw": [b"\xffx", None],
            "deep": [{"at": moment, "price": Decimal("2.5"), "took": [timedelta(seconds=1)]}, None],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    first, second = read(source_of(tmp_path / "rows.parquet", time="at"))
    assert json.loads(json.dumps(first.fields)) == first.fields
    assert (first.timestamp, second.timestamp) == (BASE_MS + 250, None)
    assert (first.fields["price"], first.fields["raw"]) == (1.5, "�x")
    assert first.fields["deep"] == {"at": moment.isoformat(), "price": 2.5, "took": [1.0]}
    assert set(second.fields.values()) == {None}
    assert read(source_of(tmp_path / "rows.parquet", time="day"))[0].timestamp == BASE_MS
    nested = source_of(tmp_path / "rows.parquet", time="deep.at")
    assert [one.timestamp for one in read(nested)] == [BASE_MS + 250, None]


def test_a_line_that_cannot_be_read_keeps_its_number(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"x": 1}\n\n{bad\n[1]\n{"x": 2}\n')
    (tmp_path / "rows.csv").write_bytes(b"x,y\n1,1\n1,2,3\n1\n2,1\n")
    for name in ("rows.jsonl", "rows.csv"):
        found = read(source_of(tmp_path / name))
        assert [one.offset for one in found] == [0, 1, 2, 3]
        assert [one.error is None for one in found] == [True, False, False, True]
        assert "line 3: " in str(found[1].error)
        assert read(source_of(tmp_path / name), 2)[1:] == found[3:]


def test_decimal_commas_are_read_from_any_record_on(tmp_path: Path) -> None:
    X = np.random.default_rng(1).normal(size=(300, 2)).round(3) * 1000
    pd.DataFrame(X, columns=["a", "b"]).to_csv(tmp_path / "rows.csv", sep=";", decimal=",", index=False)
    for start in (0, 150):
        found = read(source_of(tmp_path / "rows.csv"), start)
        assert [list(one.fields.values()) for one in found] == X[start:].tolist()
    as_text = read(source_of(tmp_path / "rows.csv", decimal="point"))
    assert any(isinstance(one.fields["a"], str) for one in as_text)


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fomo_stream.records.lines.CHUNK_BYTES", 2**16)

    def peak(n: int) -> int:
        X = np.random.default_rng(0).normal(size=(n, 5))
        path = tmp_path / f"{n}.{name}"
        frame = pd.DataFrame(X, columns=list("abcde"))
        if name.endswith("csv"):
            frame.to_csv(path, index=False)
        elif name.endswith("jsonl"):
            frame.to_json(path, orient="records", lines=True)
        elif name.endswith("parquet"):
            frame.to_parquet(path, row_group_size=2000)
        else:
            np.savez_compressed(path, X=X)
        source = source_of(path)
        tracemalloc.start()
        for _ in source.read(0, 0, lambda: False):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1000)  # imports
    assert peak(40_000) < 1.5 * peak(8000) + 2**16


def test_reading_ends_when_it_is_stopped(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=np.zeros((5000, 2)))
    stops: Iterator[bool] = iter([False, True])
    assert 0 < len(list(source_of(tmp_path / "rows.npz").read(0, 0, lambda: next(stops)))) < 5000


def test_the_content_tells_the_format_where_the_name_does_not(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        path = tmp_path / "export"
        write([{"a": 1.0, "n": 1, "ok": True, "device": "p", "at": 1, "bad": 0}], path)
        assert len(read(source_of(path))) == 1, name
    buffer = io.BytesIO()
    np.savez(buffer, rows=np.zeros((3, 2)))
    path.write_bytes(buffer.getvalue())
    assert [one.fields for one in read(source_of(path))] == [{"column_1": 0.0, "column_2": 0.0}] * 3


NAMES = ["rows", "rows.csv", "ROWS.CSV", "rows.jsonl", "rows.dat", "rows.csv.gz", "rows.jsonl.gz", "rows.gz"]
TEXTS = [b'{"a": 1}\n{"a": 2}\n', b"a,b\n1,2\n", b"[a],b\n1,2\n", b'\n \n{"a": 1}\n', b"{a,b\n1,2\n"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_file_has_the_format_that_it_has_where_it_is_scored(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    encoded = [text, b"\xef\xbb\xbf" + text]
    for content in [*encoded, *map(gzip.compress, encoded)]:
        path.write_bytes(content)
        with open(path, "rb") as stream:
            scored = RecordFile(stream, name=str(path))
        found: list[str] = []
        assert format_of(path, "auto", found.append) == scored.format
        assert [sample.fields for sample in read(source_of(path))] == [
            line.record or {} for line in lines_of(path) if not line.is_blank
        ]


def lines_of(path: Path) -> list[Line]:
    with open(path, "rb") as stream:
        return list(RecordFile(stream, name=str(path)))


def test_json_lines_under_the_name_of_csv_are_replayed_and_noted(tmp_path: Path) -> None:
    for path, content in ((tmp_path / "js.csv", b'{"a": 1}\n'), (tmp_path / "js.csv.gz", gzip.compress(b'{"a": 1}\n'))):
        path.write_bytes(content)
        notes: list[str] = []
        assert format_of(path, "auto", notes.append) == "jsonl"
        assert notes == [f"{path} is read as JSON lines"]
        assert [sample.fields for sample in read(source_of(path))] == [{"a": 1}]


def save(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("rows.csv", b"", "empty"),
        ("rows.csv", b"1,2\n3,4\n", "names the columns"),
        ("rows.parquet", b"PAR1", "as Parquet"),
        ("rows.parquet", b"no parquet at all, but long enough for a footer", "as Parquet"),
        ("rows.npz", b"PK\x03\x04", "as npz"),
        ("rows.npz", save(X=np.array([[object()]])), "as npz: Object arrays cannot be loaded"),
        ("rows.npz", save(a=np.zeros((2, 2)), b=np.zeros((2, 2))), "2 arrays of two dimensions"),
        ("rows.npz", save(y=np.zeros(3)), "no array of two dimensions"),
        ("rows.npz", save(X=np.zeros((0, 3))), "no rows"),
        ("rows.npz", save(X=np.zeros((2, 3)), names=np.array(["a"])), "one text for each of the 3"),
        ("rows.npz", save(X=np.zeros((2, 2)), names=np.array(["a", "a"])), "two columns named 'a'"),
        ("rows.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 9000, mtime=0)[:-20], "cannot read"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FomoError, match=complaint) as caught:
        read(source_of(path))
    assert isinstance(caught.value, (ConfigError, SchemaError))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_a_regular_file_can_be_replayed(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for name, complaint in (("pipe", "regular file"), (".", "regular file"), ("absent", "there is no file")):
        with pytest.raises(ConfigError, match=complaint):
            format_of(tmp_path / name, "csv")


def test_without_pyarrow_the_way_to_install_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet([], tmp_path / "rows.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"pip install 'fomo-stream\[parquet\]'"):
        source_of(tmp_path / "rows.parquet").table()
