"""The progress line: what the service did since the last one, and when it is due."""

from __future__ import annotations

import pytest

from fomo_stream.kafka.observer import Observation, Outlier
from fomo_stream.ops.progress import EVERY_S, ProgressLog
from fomo_stream.partition.labels import DueLabels
from fomo_stream.records.result import Result


def batch(n: int, outliers: int = 0, missing: int = 0) -> Observation:
    results: list[Result] = [{"missing": missing if i == 0 else 0} for i in range(n)]
    return Observation("t", 0, results, [Outlier({}, {})] * outliers, context_rows=100, generation=1)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith("progress ")]


def test_a_line_counts_what_was_done_since_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    progress = ProgressLog()
    progress.turned(1000.0)
    for _ in range(3):
        progress.scored(batch(40, outliers=1, missing=2))
    progress.dead_letter("not_json")
    progress.labelled(0, DueLabels(9, [1, 2, 3, 4], [(at, at, True) for at in range(4)], 0))
    progress.regime_changed()
    progress.committed([0.01] * 98 + [0.2, 0.3], [], 0.01)
    progress.aborted()
    progress.turned(1000.0 + EVERY_S - 0.1)
    assert lines(caplog) == []
    progress.turned(1000.0 + 2 * EVERY_S)  # late: the rate is over the whole time
    assert lines(caplog) == [
        "progress records=120 per_second=6 outliers=3 missing=6 dead_letters=1 labels=4 regimes=1 commits=1 aborts=1 "
        "poll_to_commit_p99_ms=300"
    ]
    progress.scored(batch(5))
    progress.turned(1000.0 + 3 * EVERY_S)
    assert lines(caplog)[1].startswith("progress records=5 per_second=0.5 outliers=0 missing=0 dead_letters=0")


def test_there_is_no_line_about_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    progress = ProgressLog()
    for at in range(5):
        progress.committed([], [], 0.0)
        progress.turned(at * EVERY_S)
    assert lines(caplog) == []
