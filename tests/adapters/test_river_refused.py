"""What `FoMoDetector` refuses: models, tables, records and parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fomo_stream import FoMoDetector
from fomo_stream.errors import CheckpointError, ConfigError, SchemaError


@pytest.mark.parametrize("model", ["nonsense", "missing.safetensors", "fusion-router "])
def test_a_model_that_is_not_there_is_refused_at_once(model: str, tmp_path: Path) -> None:
    for name in (model, str(tmp_path / "missing.safetensors")):
        with pytest.raises(CheckpointError, match="fusion-router") as caught:  # it names those that are
            FoMoDetector(model=name)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(CheckpointError):
        FoMoDetector().clone({"model": model})


def test_making_a_detector_opens_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("fomo_stream.model.checkpoint.safe_open", opened)
    FoMoDetector().clone()


@pytest.mark.parametrize(
    "given",
    [
        [[1.0, 2.0]],
        {"flow": 1.0},
        [1.0],
        np.zeros(3),
        np.zeros((1, 2, 3)),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        None,
        3,
        "flow",
        pd.Series([1.0]),
        pa.chunked_array([[1.0]]),
    ],
    ids=str,
)
def test_what_is_no_table_is_refused(given: Any) -> None:
    methods: list[Callable[[FoMoDetector], Any]] = [lambda d: d.score_many(given), lambda d: d.learn_many(given)]
    for method in methods:
        with pytest.raises(SchemaError):
            method(FoMoDetector())


@pytest.mark.parametrize(
    "record", [None, [1.0], ({"flow": 1.0}, 0), pd.Series({"flow": 1.0}), pd.DataFrame({"a": [1]})]
)
def test_what_is_no_dict_is_no_record(record: Any) -> None:
    with pytest.raises(SchemaError, match=f"a record is a dict .*, not {type(record).__name__}"):
        FoMoDetector().score_one(record)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("categorical", "mode"),
        ("categorical", 3),
        ("categorical", [["mode"]]),
        ("views", None),
        ("views", [1]),
        ("views", []),
        ("reasons", 1.5),
        ("reasons", 0),
        ("reasons", None),
        ("reasons", "3"),
        ("context_size", 100.5),
        ("min_context", "50"),
        ("lags", 1.5),
        ("seed", None),
        ("seed", 0.5),
        ("adapt_after", None),
        ("alert_rate", "0.1"),
        ("alert_rate", float("nan")),
    ],
)
def test_an_impossible_parameter_is_refused_at_once_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="view" if name == "views" else name) as caught:
        FoMoDetector(**{name: value})
    assert isinstance(caught.value, ValueError)
