"""The Python function `replay`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fomo_stream
from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.replaying import command
from fomo_stream.replaying.api import grid_words, replay
from fomo_stream.replaying.progress import Progress
from fomo_stream.replaying.tables import InMemory
from fomo_stream.settings.replay import ReplaySettings


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings and the data that a call asks the engine to replay; the engine has tests of its own."""
    found: dict[str, Any] = {}

    def note(settings: ReplaySettings, progress: Progress | None, data: InMemory | None) -> None:
        found.update(settings=settings, data=data, progress=progress)

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
    assert asked["data"] is None
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
    assert asked["data"].table.count == 4
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
