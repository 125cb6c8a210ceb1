"""Data in memory as records, and the Python function `replay`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fomo_stream
from fomo_stream.errors import ConfigError, FomoError, SchemaError
from fomo_stream.replaying import command
from fomo_stream.replaying.api import grid_words, replay
from fomo_stream.replaying.progress import Progress
from fomo_stream.replaying.sources.memory import CHUNK, MemoryTable
from fomo_stream.settings.replay import ReplaySettings


def records_of(table: MemoryTable, start: int = 0) -> list[Any]:
    return [record for chunk in table.chunks(start) for record in chunk]


@settings(max_examples=10)
@given(n=st.integers(1, 2 * CHUNK + 3), start=st.integers(0, 3 * CHUNK), seed=st.integers(0, 99))
def test_a_frame_an_array_and_a_list_are_the_same_records(n: int, start: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(n, 2))
    rows[rows > 1.5] = np.nan
    names = ["column_1", "column_2"]
    frame = pd.DataFrame(rows, columns=names)
    listed: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows.tolist()]
    labels = np.arange(n) % 2 == 0
    tables = [MemoryTable(data, labels) for data in (frame, rows, listed)]
    expected = [
        {**{name: value if value == value else None for name, value in row.items()}, "label": i % 2 == 0}
        for i, row in enumerate(listed)
    ]
    for table in tables:
        assert table.count == n
        assert table.label == "label"
        assert records_of(table) == expected
        assert records_of(table, start) == expected[start:]
        assert all(len(chunk) <= CHUNK for chunk in table.chunks(0))


def test_all_values_are_plain() -> None:
    frame = pd.DataFrame(
        {
            "i": np.array([1, 2], np.int8),
            "f": np.array([np.nan, 0.5], np.float32),
            "b": [True, False],
            "t": pd.to_datetime(["2026-10-01", None]),
            "z": pd.to_datetime(["2026-10-01T02:00+02:00", None]),
            "c": pd.Categorical(["x", None]),
            "n": pd.array([3, None], dtype="Int64"),
            "o": [{"a": np.float64(1), "l": (np.int64(1), None)}, pd.NA],
            7: ["text", None],
        }
    )
    first, second = records_of(MemoryTable(frame))
    orjson.dumps([first, second])
    assert {name: type(value) for name, value in first.items() if name in "ifb"} == {
        "i": int,
        "f": type(None),
        "b": bool,
    }
    assert first["t"].startswith("2026-10-01T00:00:00")
    assert pd.Timestamp(first["z"]) == pd.Timestamp("2026-10-01", tz="UTC")
    assert (first["c"], first["n"], first["o"], first["7"]) == ("x", 3, {"a": 1.0, "l": [1, None]}, "text")
    assert second == dict.fromkeys(first) | {"i": 2, "f": 0.5, "b": False}


def test_a_datetime_index_is_the_time_and_takes_no_name_of_a_column() -> None:
    index = pd.date_range("2026-10-01", periods=3, freq="h", tz="Europe/Berlin")
    table = MemoryTable(pd.DataFrame({"time": [1, 2, 3], "label": 0}, index=index), labels=[0, 1, None])
    assert (table.time, table.label) == ("time_", "label_")
    assert table.columns == ("time", "label", "time_", "label_")
    found = records_of(table)
    assert [pd.Timestamp(record["time_"]) for record in found] == list(index)
    assert [record["label_"] for record in found] == [0, 1, None]
    assert MemoryTable(pd.DataFrame({"a": [1]})).time is None


@pytest.mark.parametrize(
    ("data", "labels", "words"),
    [
        (np.zeros(3), None, "of shape (3,) has no rows of numbers"),
        (np.array([["a"]]), None, "has no rows of numbers"),
        (np.zeros((0, 3)), None, "has no rows; there is nothing to replay"),
        (pd.DataFrame(), None, "the DataFrame has no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), None, "two columns named 'a'"),
        ([{"a": 1}, 3], None, "records are dictionaries, not int"),
        (pd.Series([1.0]), None, "cannot replay a Series"),
        (7, None, "cannot replay a int"),
        (np.zeros((3, 2)), [0, 1], "labels have the shape (2,); the array needs (3,)"),
    ],
)
def test_other_data_is_refused_in_one_sentence(data: Any, labels: Any, words: str) -> None:
    with pytest.raises(SchemaError) as error:
        MemoryTable(data, labels)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


# --- replay() ------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings and the table that a call asks the engine to replay; the engine has tests of its own."""
    found: dict[str, Any] = {}

    def note(settings: ReplaySettings, progress: Progress | None, table: MemoryTable | None) -> None:
        found.update(settings=settings, table=table, progress=progress)

    monkeypatch.setattr(command, "replay_settings", note, raising=False)
    return found


def test_keywords_are_the_flags(asked: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a\n1\n")
    replay(
        str(path),
        label="y",
        compare=["knn"],
        grid={"alert_rate": [0.01, 0.001], "views": ["fast", ("trimmed", "recent")]},
        context_size=500,
        progress=True,
    )
    made = asked["settings"]
    assert (made.file, made.label, made.compare, made.context_size) == (path, "y", ("knn",), 500)
    assert made.grid == ("alert_rate=0.01,0.001", "views=fast,trimmed+recent")
    assert made.report == "none"
    assert made.is_given("context_size")
    assert not made.is_given("group")
    assert asked["table"] is None
    assert isinstance(asked["progress"], Progress)


def test_a_topic_is_replayed_by_name(asked: dict[str, Any]) -> None:
    replay(topic="sensors", from_="2026-10-01", group="g", kafka={"client.id": "x"})
    made = asked["settings"]
    assert asked["progress"] is None
    assert (made.topic, made.from_, made.group, made.kafka) == ("sensors", "2026-10-01", "g", {"client.id": "x"})
    assert made.is_given("group")


def test_data_in_memory_is_replayed_whatever_the_environment_names(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOMO_TOPIC", "sensors")
    index = pd.date_range("2026-10-01", periods=4, freq="s")
    replay(pd.DataFrame({"a": range(4)}, index=index), labels=[0, 0, 1, 0])
    made = asked["settings"]
    assert (made.topic, made.file, made.time, made.label) == ("", Path("DataFrame"), "time", "label")
    assert asked["table"].count == 4
    replay([{"a": 1, "at": 5, "y": 1}], time="at", label="y")
    assert (asked["settings"].time, asked["settings"].label) == ("at", "y")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": "t", "contex_size": 5}, "replay() takes no contex_size; did you mean context_size?"),
        ({"topic": "t", "report": "x.html"}, "write it with save_report(path) of the result"),
        ({"topic": "t", "json": "x.json"}, "write it with save(path)"),
        ({"topic": "t", "context_size": 1}, "--context-size 1: input should be greater"),
        ({}, "name what to replay"),
        ({"data": "sensors"}, "there is no file sensors; to replay a topic, write topic='sensors'"),
        ({"data": np.zeros((2, 1)), "topic": "t"}, "name what to replay"),
        ({"data": np.zeros((2, 1)), "from_": "0"}, "--from needs --topic"),
        ({"data": np.zeros((2, 1)), "labels": [0, 1], "label": "column_1"}, "label= and labels= name different labels"),
        ({"data": __file__, "labels": [0, 1]}, "for a file use label= or labels_file="),
        ({"topic": "t", "labels": [0, 1]}, "labels= goes with data in memory"),
    ],
)
def test_mistakes_are_explained_in_one_sentence(asked: dict[str, Any], arguments: dict[str, Any], words: str) -> None:
    positional = [arguments.pop("data")] if "data" in (arguments := dict(arguments)) else []
    with pytest.raises(FomoError) as error:
        replay(*positional, **arguments)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not asked


def test_a_frame_gives_the_report_that_its_file_gives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(600, 2)), columns=["a", "b"])
    frame.index = pd.date_range("2026-10-01", periods=len(frame), freq="s", name="at")
    outlier = rng.random(len(frame)) < 0.05
    frame[outlier] += 6.0
    path = tmp_path / "rows.csv"
    frame.assign(y=outlier.astype(int)).to_csv(path, date_format="%Y-%m-%dT%H:%M:%S")
    small: dict[str, Any] = {"context_size": 100, "min_context": 20, "views": "fast", "compare": "knn"}
    small["grid"] = {"context_size": [50]}
    of_frame, of_file = replay(frame, labels=outlier, **small), replay(path, time="at", label="y", **small)
    assert of_frame.metrics.index.tolist() == ["fomo-stream", "context_size=50", "knn"]
    assert of_frame.metrics["auroc"].min() > 0.8
    for name in ("detectors", "windows", "timeline", "generations", "segments", "drift", "context", "partitions"):
        assert of_frame.report[name] == of_file.report[name]
    assert [one.report["source"]["kind"] for one in (of_frame, of_file)] == ["memory", "file"]
    timing = of_file.report["timing"]
    assert timing["seconds_per_record"] == {  # of all records, also those before a detector has a score
        name: pytest.approx(seconds / len(frame), rel=1e-4) for name, seconds in timing["detectors"].items()
    }
    assert of_file.metrics["seconds_per_record"].to_dict() == timing["seconds_per_record"]
    assert of_frame.alerts["offset"].tolist() == of_file.alerts["offset"].tolist()


def test_a_grid_may_be_written_as_for_the_flag() -> None:
    assert grid_words("alert_rate=0.1 seed=1,2") == ("alert_rate=0.1", "seed=1,2")
    assert grid_words(["seed=1"]) == ("seed=1",)
    assert grid_words({"lags": 3}) == ("lags=3",)


def test_it_is_a_function_of_the_package_and_its_keywords_are_flags() -> None:
    assert fomo_stream.replay is replay
    names = set(inspect.signature(replay).parameters) - {"data", "labels", "progress", "settings"}
    assert names <= set(ReplaySettings.model_fields)
    with pytest.raises(ConfigError):
        fomo_stream.replay()
