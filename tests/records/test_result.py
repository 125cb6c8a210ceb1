"""The result object of an output record."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from fomo_stream.detector.calibration import AlertThreshold
from fomo_stream.detector.results import Cause, Reason, Results, Scores
from fomo_stream.records.json_codec import encode
from fomo_stream.records.result import results_of
from fomo_stream.records.schema import Schema


def test_a_result_names_its_severity() -> None:
    threshold = AlertThreshold(0.01, 2000)
    p = np.array([0.5, 0.02, 0.01, 0.0001])
    scores = Scores.of(np.zeros((4, 2)), np.ones(4, np.int64), np.ones(4))
    scored = Results.of(scores, np.zeros(4), 1 - p, p, 2, 100_000, threshold)
    results = results_of(scored, "m", Schema(("flow",)), [{}] * 4, [0] * 4)
    assert [result["severity"] for result in results] == [None, "info", "warning", "critical"]
    assert [result["outlier"] for result in results] == [False, False, True, True]
    assert {result["regime"] for result in results} == {2}


def test_a_result_has_null_where_there_is_no_score() -> None:
    nan = np.array([np.nan])
    scored: Any = SimpleNamespace(
        score=nan,
        remembered_logit=nan,
        logit=nan,
        p_value=nan,
        outlier=np.array([False]),
        generation=np.array([0]),
        regime=np.array([0]),
        severity=np.array([0], dtype=np.int8),
        confidence=nan,
        status=["warming_up"],
        reasons=[None],
    )
    (result,) = results_of(scored, "m", Schema(("flow",)), [{}], [2], [("sensors", 3, 812, None)])
    assert json.loads(encode({}, result))["fomo"] == {
        "topic": "sensors",
        "partition": 3,
        "offset": 812,
        "timestamp": None,
        "score": None,
        "remembered_logit": None,
        "logit": None,
        "p_value": None,
        "outlier": False,
        "severity": None,
        "confidence": None,
        "missing": 2,
        "model": "m",
        "generation": 0,
        "regime": 0,
        "status": "warming_up",
    }


def test_explained_records_have_reasons_perhaps_none_and_a_sentence() -> None:
    p = np.array([0.001, 0.001, 0.5, 0.5, 0.001, 0.5])
    scores = Scores.of(np.array([[5.0], [1.0], [1.0], [1.0], [1.0], [1.0]]), np.ones(6, np.int64), np.ones(6))
    scored = Results.of(
        scores, np.array([5.0, 3.0, 3.0, 1.0, 3.0, 3.0]), 1.0 - p, p, 1, 100_000, AlertThreshold(0.01, 2000)
    )
    why = (Reason(0, Cause.VALUE, 1.0, 9.0, 3.0, 2.0, 4.0, np.nan),)
    records = [{"flow": 9}] * 6
    explained = scored.explained([why, why, why, None, (), ()])
    with_words = results_of(explained, "m", Schema(("flow",)), records, [0] * 6)
    words = "flow is 9, usually 3 (2 to 4)"
    assert [result.get("explanation") for result in with_words] == [
        words,
        f"the records before it were odd, which raises its score; most unusual: {words}",
        f"no outlier; most unusual: {words}",
        None,
        "the records before it were odd, which raises its score; no feature stands out",
        "no outlier; no feature stands out",
    ]
    assert [len(result.get("reasons", "none")) for result in with_words] == [1, 1, 1, 4, 0, 0]
    without = results_of(scored, "m", Schema(("flow",)), records, [0] * 6)
    assert [
        {name: value for name, value in one.items() if name not in ("reasons", "explanation")} for one in with_words
    ] == without
