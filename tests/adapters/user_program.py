"""A program of a user, for test_types.py: the type of every expression is known. It is checked, never run."""

from typing import assert_type

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fomo_stream import FoMoDetector, ReplayResult, ZeroShotDetector, replay
from fomo_stream.replaying.replay_result import Json


def program() -> None:
    frame = pd.DataFrame({"flow": [1.0, 2.0], "load": [3.0, 4.0]})
    rows: NDArray[np.float64] = np.zeros((2, 2))

    river = FoMoDetector(context_size=100, key="device")
    record = {"flow": 1.0, "load": 2.0}
    river.learn_one(record)
    assert_type(river.score_one(record), float)
    assert_type(river.p_value_one(record), float)
    assert_type(river.is_outlier_one(record), bool)
    assert_type(river.score_many([record]), NDArray[np.float64])
    assert_type(river.score_many(rows), NDArray[np.float64])
    assert_type(river.score_many(frame), "pd.Series[float]")
    assert_type(river.is_outlier_many(rows), NDArray[np.bool_])
    assert_type(river.is_outlier_many(frame), "pd.Series[bool]")
    reason = river.explain_one(record)[0]
    assert_type(reason["share"], float)
    assert_type(reason["cause"], str)

    table = ZeroShotDetector(contamination=0.01).fit(frame)
    assert_type(table, ZeroShotDetector)
    assert_type(table.predict(rows), NDArray[np.int64])
    assert_type(table.fit_predict([[1.0, 2.0], [3.0, 4.0]]), NDArray[np.int64])
    assert_type(table.score_samples(frame), NDArray[np.float64])
    assert_type(table.decision_function(frame), NDArray[np.float64])
    assert_type(table.decision_scores_, NDArray[np.float64])
    assert_type(table.labels_, NDArray[np.int64])
    assert_type(table.threshold_, float)
    assert_type(str(table.explain(frame, top=1)[0]), str)

    result = replay(frame, labels=[0, 1], grid={"alert_rate": [0.01]}, alert_rate=0.01)
    assert_type(result, ReplayResult)
    for part in (result.metrics, result.timeline, result.alerts, result.drift, result.incidents()):
        assert_type(part, pd.DataFrame)
    assert_type(result.plot(), Axes)
    assert_type(result.summary, str)
    assert_type(result.is_complete, bool)
    assert_type(result.report["source"], Json)
    from fomo_stream import NoSuchName  # type: ignore[attr-defined]  # noqa: F401  (an unknown name is an error)
