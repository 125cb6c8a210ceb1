"""JSON fields that go away, become text or are renamed while the service runs: told once each, and counted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from pipelines import Recording, make_pipeline, record

from fomo_stream.ops.metrics import Metrics

Fields = dict[str, Any]


def good(x: float) -> Fields:
    return {"x": x, "y": 2 * x, "site": "north"}


@pytest.mark.parametrize(
    ("batch_size", "change", "told"),
    [
        (64, lambda x: {"x": x, "site": "north"}, ["features_missing fields=y now=absent"]),
        (8, lambda x: {**good(x), "y": f"{x} bar"}, ["features_missing fields=y now=text"]),
        (64, lambda x: {**good(x), "y": [x]}, ["features_missing fields=y now=list"]),
        (64, lambda x: {**good(x), "more": x, "note": "text"}, ["new_fields fields=more"]),
        (8, lambda x: {"x": x, "y_mm": x}, ["features_missing fields=y now=absent", "new_fields fields=y_mm"]),
        (1, lambda x: {"a": {"x": x}}, ["features_missing fields=x,y now=absent", "new_fields fields=a.x"]),
        (64, lambda x: {**good(x), f"odd{x}": x, "site": x > 0}, []),
        (64, lambda x: None, []),  # records that cannot be read are no news of fields
    ],
)
def test_a_change_is_told_once(
    batch_size: int, change: Callable[[float], Fields | None], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    metrics, delivery, rng = Metrics(), Recording(), random.Random(1)
    pipeline = make_pipeline(delivery, batch_size=batch_size, observer=metrics)
    offset = 0

    def feed(n: int, make: Callable[[float], Fields | None]) -> list[str]:
        nonlocal offset
        caplog.clear()
        for _ in range(n):
            fields = make(rng.gauss(0, 1))
            value = b"{broken" if fields is None else json.dumps(fields).encode()
            pipeline.receive(record(offset, 0, None, value), 0.0)
            offset += 1
        pipeline.finish([0])
        lines = [one.getMessage().replace("topic=t partition=0 ", "") for one in caplog.records]
        return sorted(line for line in lines if line.startswith(("features_", "new_fields")))

    assert feed(300, good) == []
    lines = feed(400, change)
    assert len(lines) == len(told)
    assert all(line.startswith(f"{what} ") for line, what in zip(lines, sorted(told), strict=True))
    gone = sum(line.count(",") + 1 for line in told if line.startswith("features_missing"))
    assert pipeline.presence.gone.sum() == gone
    assert feed(100, change) == []
    caplog.set_level("INFO", "fomo_stream")
    assert [line.split(" ")[0] for line in feed(100, good)] == ["features_back"] * min(gone, 1)
    assert not pipeline.presence.gone.any()
