"""Files and data in memory as sources: every format gives the same samples, and mistakes are explained."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Sample
from fomo_stream.replaying.plan import FileSource
from fomo_stream.replaying.tables import CHUNK, Table, format_of, in_memory, open_table

Records = Sequence[Mapping[str, Any]]
FIELDS = ("a", "n", "ok", "device", "at", "bad")
BASE_MS = 1_759_276_800_000
IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_csv(records: Records, path: Path) -> None:
    with open(path, "w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        writer.writerows(records)


def write_jsonl(records: Records, path: Path) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_parquet(records: Records, path: Path) -> None:
    types = zip(FIELDS, (pa.float64(), pa.int64(), pa.bool_(), pa.string(), pa.int64(), pa.int8()), strict=True)
    pq.write_table(pa.Table.from_pylist(list(records), pa.schema(list(types))), path, row_group_size=7)


def write_avro(records: Records, path: Path) -> None:
    """In several blocks, each with as many records as fit."""
    kinds = ("double", "long", "boolean", "string", "long", "int")
    fields = [{"name": name, "type": ["null", kind]} for name, kind in zip(FIELDS, kinds, strict=True)]
    with open(path, "wb") as stream:
        fastavro.writer(stream, {"type": "record", "name": "R", "fields": fields}, records, "deflate", sync_interval=64)


def write_frame(records: Records, path: Path) -> None:
    """As pandas writes it: missing integers make a column of floats, and text is stored as a dictionary."""
    frame = pd.DataFrame(list(records), columns=FIELDS)
    frame["device"] = frame["device"].astype("category")
    frame.to_parquet(path, index=False)


WRITERS: dict[str, Callable[[Records, Path], None]] = {
    "rows.csv": write_csv,
    "rows.jsonl": write_jsonl,
    "rows.parquet": write_parquet,
    "rows.avro": write_avro,
    "frame.parquet": write_frame,
}


def table_of(path: Path, *extra: str) -> Table:
    return open_table(path, format_of(path, "auto"), (), extra)


def read(table: Table, **fields: Any) -> list[Sample]:
    extra = fields
    return list(FileSource("rows", table, **extra).read(0, lambda: False))


def read_file(path: Path, **fields: Any) -> list[Sample]:
    return read(table_of(path, *fields.values()), **fields)


def fields_of(table: Table) -> list[dict[str, Any]]:
    return [one.fields for one in read(table)]


# --- files ---------------------------------------------------------------------------------------------------

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


@IN_A_FOLDER
@given(records)
def test_every_format_gives_the_same_samples(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    verdicts = {None: UNKNOWN, 0: INLIER, 1: OUTLIER}
    expected = [
        Sample(offset, row["at"] * 1000, row["device"], row, None, verdicts[row["bad"]])
        for offset, row in enumerate(rows)
    ]
    roles = {"key": "device", "time": "at", "label": "bad"}
    for name, write in WRITERS.items():
        write(rows, tmp_path / name)
        assert read_file(tmp_path / name, **roles) == expected, name
        assert table_of(tmp_path / name).count >= len(rows)
    assert read(in_memory(rows).table, **roles) == expected
    assert read(in_memory(pd.DataFrame(rows)).table, **roles) == expected
    assert read(in_memory(pq.read_table(tmp_path / "rows.parquet")).table, **roles) == expected


@IN_A_FOLDER
@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from(["<f8", ">f4", "<i2", "?"]), st.booleans(), st.booleans())
def test_an_archive_of_arrays_gives_their_rows(
    tmp_path: Path, n: int, d: int, dtype: str, is_fortran: bool, is_compressed: bool
) -> None:
    X = (np.arange(n * d).reshape(n, d) % 97).astype(dtype)
    times = np.datetime64("2025-10-01") + np.arange(n).astype("timedelta64[s]")
    save = np.savez_compressed if is_compressed else np.savez
    stored, names = np.asfortranarray(X) if is_fortran else X, list("abcd"[:d])
    save(tmp_path / "rows.npz", X=stored, y=np.arange(n) % 2, time=times, names=np.array(names))
    found = read_file(tmp_path / "rows.npz", time="time", label="y")
    assert [[one.fields[name] for name in names] for one in found] == X.tolist()
    assert [(one.offset, one.label, one.timestamp) for one in found] == [
        (i, i % 2, BASE_MS + 1000 * i) for i in range(n)
    ]
    assert table_of(tmp_path / "rows.npz").columns == tuple(names)  # an array that no flag names is no feature


def test_values_of_parquet_that_json_lacks_become_text_and_numbers(tmp_path: Path) -> None:
    moment = datetime(2025, 10, 1, 0, 0, 0, 250_000, UTC)
    columns = {
        "at": pa.array([moment, None], pa.timestamp("ns", "Europe/Berlin")),
        "day": [moment.date(), None],
        "price": [Decimal("1.50"), None],
        "took": pa.array([2_000_000_001, None], pa.duration("ns")),
        "raw": [b"\xffx", None],
        "deep": [{"at": moment, "price": Decimal("2.5"), "took": [timedelta(seconds=1)]}, None],
        "half": pa.array(np.array([0.5, np.nan], np.float16)),
        "text": pa.array(["a", None]).dictionary_encode(),
        "nothing": pa.nulls(2),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    first, second = read_file(tmp_path / "rows.parquet", time="at")
    assert json.loads(json.dumps(first.fields)) == first.fields
    assert (first.timestamp, second.timestamp) == (BASE_MS + 250, None)
    assert (first.fields["price"], first.fields["took"], first.fields["raw"]) == (1.5, 2.0, "�x")
    assert first.fields["deep"] == {"at": moment.isoformat(), "price": 2.5, "took": [1.0]}
    assert (first.fields["half"], first.fields["text"]) == (0.5, "a")
    assert set(second.fields.values()) == {None}
    assert read_file(tmp_path / "rows.parquet", time="day")[0].timestamp == BASE_MS
    assert [one.timestamp for one in read_file(tmp_path / "rows.parquet", time="deep.at")] == [BASE_MS + 250, None]


def test_a_line_that_cannot_be_read_keeps_its_number(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"x": 1}\n\n{bad\n[1]\n{"x": 2}\n')
    (tmp_path / "rows.csv").write_bytes(b"x,y\n1,1\n1,2,3\n1\n2,1\n")
    for name in ("rows.jsonl", "rows.csv"):
        found = read_file(tmp_path / name)
        assert [(one.offset, one.error is None) for one in found] == [(0, True), (1, False), (2, False), (3, True)]
        assert "line 3: " in str(found[1].error)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fomo_stream.records.lines.CHUNK_BYTES", 2**16)

    def peak(n: int) -> int:
        path = tmp_path / f"{n}.{name}"
        WRITERS[name]([{"a": i / 7, "n": i, "ok": True, "device": "p", "at": i, "bad": 0} for i in range(n)], path)
        source = FileSource(name, table_of(path))
        tracemalloc.start()
        for _ in source.read(0, lambda: False):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1000)  # imports
    assert peak(40_000) < 1.5 * peak(8000) + 2**16


def test_the_content_tells_the_format_where_the_name_does_not(tmp_path: Path) -> None:
    path = tmp_path / "export"
    for name, write in WRITERS.items():
        write([{"a": 1.0, "n": 1, "ok": True, "device": "p", "at": 1, "bad": 0}], path)
        assert len(read_file(path)) == 1, name
    path.write_bytes(saved(rows=np.zeros((3, 2))))
    assert fields_of(table_of(path)) == [{"column_1": 0.0, "column_2": 0.0}] * 3


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, "a,b\n1,2\n")
    return buffer.getvalue()


def saved(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("rows.csv", b"", "empty"),
        ("rows.parquet", b"no parquet at all, but long enough for a footer", "as Parquet"),
        ("rows.npz", saved(X=np.array([[object()]])), "as npz: Object arrays cannot be loaded"),
        ("rows.npz", saved(a=np.zeros((2, 2)), b=np.zeros((2, 2))), "2 arrays of two dimensions"),
        ("rows.npz", saved(y=np.zeros(3)), "no array of two dimensions"),
        ("rows.npz", saved(X=np.zeros((0, 3))), "no rows"),
        ("rows.npz", saved(X=np.array([["a"]])), "has the type"),
        ("rows.npz", saved(X=np.zeros((2, 3)), names=np.array(["a"])), "one text for each of the 3"),
        ("rows.npz", saved(X=np.zeros((2, 2)), names=np.array(["a", "a"])), "two columns named 'a'"),
        ("rows.xlsx", zipped("xl/workbook.xml"), "it holds xl/workbook.xml; save a spreadsheet as CSV"),
        ("rows.avro", b"text", "it is not an Avro file"),
        ("rows.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 9000, mtime=0)[:-20], "cannot read"),
        ("absent.csv", None, "there is no file"),
        ("", None, "regular file"),  # but a folder
    ],
)
def test_a_file_that_cannot_be_used_is_explained(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ConfigError, SchemaError), match=complaint) as caught:
        read_file(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_pyarrow_the_way_to_install_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet([], tmp_path / "rows.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"pip install 'fomo-stream\[parquet\]'"):
        table_of(tmp_path / "rows.parquet")


# --- memory --------------------------------------------------------------------------------------------------


def test_an_array_gives_its_rows_with_their_labels() -> None:
    rows = np.arange(2.0 * (2 * CHUNK + 3)).reshape(-1, 2)
    rows[5, 1] = np.nan
    made = in_memory(rows, rows[:, 0] % 4 == 0)
    expected = [{"column_1": a, "column_2": b if b == b else None, "label": a % 4 == 0} for a, b in rows.tolist()]
    assert (made.table.count, made.label, fields_of(made.table)) == (len(rows), "label", expected)


def test_all_values_are_plain() -> None:
    columns: dict[Any, Any] = {
        "i": np.array([1, 2], np.int8),
        "f": np.array([np.nan, 0.5], np.float32),
        "b": [True, False],
        "t": pd.to_datetime(["2026-10-01", "NaT"]),
        "z": pd.to_datetime(["2026-10-01T02:00+02:00", "NaT"]),
        "c": pd.Categorical(["x", None]),
        "n": pd.array([3, None], dtype="Int64"),
        "o": [{"a": np.float64(1), "l": (np.int64(1), None)}, pd.NA],
        7: ["text", None],
    }
    first, second = fields_of(in_memory(pd.DataFrame(columns)).table)
    orjson.dumps([first, second])
    assert (type(first["i"]), first["f"], first["b"]) == (int, None, True)
    assert first["t"].startswith("2026-10-01T00:00:00")
    assert pd.Timestamp(first["z"]) == pd.Timestamp("2026-10-01", tz="UTC")
    assert (first["c"], first["n"], first["o"], first["7"]) == ("x", 3, {"a": 1.0, "l": [1, None]}, "text")
    assert second == dict.fromkeys(first) | {"i": 2, "f": 0.5, "b": False}


def test_a_datetime_index_is_the_time_and_takes_no_name_of_a_column() -> None:
    index = pd.date_range("2026-10-01", periods=3, freq="h", tz="Europe/Berlin")
    made = in_memory(pd.DataFrame({"time": [1, 2, 3], "label": 0}, index=index), labels=[0, 1, None])
    assert (made.time, made.label) == ("time_", "label_")
    assert made.table.columns == ("time", "label", "time_", "label_")
    found = fields_of(made.table)
    assert [pd.Timestamp(record["time_"]) for record in found] == list(index)
    assert [record["label_"] for record in found] == [0, 1, None]
    assert in_memory(pd.DataFrame({"a": [1]})).time is None


@pytest.mark.parametrize(
    ("data", "labels", "words"),
    [
        (np.array([["a"]]), None, "has no rows of numbers"),
        (pd.DataFrame(), None, "the DataFrame has no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), None, "two columns of one name"),
        ([{"a": 1}, 3], None, "records are dictionaries, not int"),
        (pd.Series([1.0]), None, "cannot replay a Series"),
        (np.zeros((3, 2)), [0, 1], "labels have the shape (2,); the array needs (3,)"),
    ],
)
def test_other_data_is_refused_in_one_sentence(data: Any, labels: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=rf"^[^\n]*{re.escape(words)}[^\n]*$"):
        in_memory(data, labels)
