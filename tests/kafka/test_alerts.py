"""Alerts: outliers go to a topic of their own, and each incident is summed up there once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from pipelines import Instance, Recording, as_record, restored

from fomo_stream.kafka.delivery.base import Output
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.outputs import Outputs
from fomo_stream.kafka.registry import codec_for
from fomo_stream.partition.incidents import Notice
from fomo_stream.partition.record import Pending, Record
from fomo_stream.settings.service_settings import ServiceSettings

N = 600
COUNTS = {"t": 2, "t-scores": 2, "t-dead-letters": 2, "a": 2}
ALERTS: dict[str, Any] = {"alerts": "a", "alert_rate": 0.1, "explain": "alerts", "partitions": COUNTS}


def value(output: Output) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(output.value or b"")["fomo"]
    return content


def split(outputs: list[Output]) -> tuple[list[Output], list[Output]]:
    """The alerts, and the records that sum up incidents."""
    sums = [output for output in outputs if value(output).get("status") == "closed"]
    return [output for output in outputs if output not in sums], sums


def run(**changes: Any) -> tuple[list[Output], Counter[str]]:
    """The outputs about N records, and how many incidents have been reported as opened and as closed."""
    counts: Counter[str] = Counter()
    one = Instance(**{**ALERTS, **changes})
    with patch.object(one.progress, "scored", lambda seen: counts.update(opened=seen.opened, closed=len(seen.closed))):
        one.score(0, N)
    return one.delivery.outputs, counts


def to(outputs: list[Output], topic: str) -> list[Output]:
    return [output for output in outputs if output.topic == topic]


def test_incidents_are_the_same_and_counted_whichever_topics_are_written() -> None:
    outputs, counts = run()
    alerts, sums = split(to(outputs, "a"))
    assert [replace(alert, topic="t-scores") for alert in alerts] == [
        output for output in to(outputs, "t-scores") if value(output)["outlier"]
    ]
    opened = len({value(alert)["incident"] for alert in alerts})
    assert counts == {"opened": opened, "closed": len(sums)}
    assert opened >= len(sums) > 3
    for summed in sums:
        (worst,) = [value(alert) for alert in alerts if value(alert)["offset"] == value(summed)["worst"]["offset"]]
        assert value(summed).get("reasons") == worst.get("reasons")
        assert (summed.partition, summed.timestamp, summed.headers) == (0, as_record(0).timestamp, [])
    alerts_alone, _ = run(out="none")
    assert {output.topic for output in alerts_alone} == {"a", "t-dead-letters"}
    assert to(alerts_alone, "a") == to(outputs, "a")
    without_alerts, _ = run(alerts=None)
    assert {output.topic for output in without_alerts} == {"t-scores", "t-dead-letters"}
    assert to(without_alerts, "t-scores") == to(outputs, "t-scores")


def test_records_that_are_scored_again_neither_open_nor_end_an_incident() -> None:
    entries: dict[str, bytes] = {}
    one = Instance(**ALERTS)
    one.score(0, N)
    one.commit(entries)
    before = {name: entry for name, entry in entries.items() if name.startswith("incidents/")}
    other = Instance(**ALERTS)
    other.restore(restored(entries, {("t", 0): 100}))
    other.score(100, N - 1)
    alerts, sums = split(other.delivery.to("a"))
    assert alerts
    assert not sums
    other.commit(entries)
    assert {name: entry for name, entry in entries.items() if name.startswith("incidents/")} == before
    one.delivery.outputs.clear()
    one.score(N, N + 200)
    other.delivery.outputs.clear()
    other.score(N - 1, N + 200)
    assert [o.value for o in other.delivery.to("a") if b'"closed"' in (o.value or b"")] == [
        o.value for o in one.delivery.to("a") if b'"closed"' in (o.value or b"")
    ]


# --- topics that refuse


CLOSED = Notice(7, b"k", 3, {"incident": "0-3", "status": "closed", "reasons": [{"feature": "x"}], "explanation": "y"})


def pending(offset: int, key: bytes | None = b"k") -> Pending:
    text = json.dumps({"x": 1, "y": 2}).encode()
    return Pending(Record("t", 0, offset, 5, key, text, []), json.loads(text), 0.0, None, key)


def sending() -> tuple[Recording, Outputs]:
    delivery, settings = Recording(), ServiceSettings(topic="t", alerts="a")
    its: Any = delivery
    return delivery, Outputs(settings, its, lambda: COUNTS, codec_for(settings, of_service=True)[0], Observer())


def test_a_sum_that_is_refused_loses_its_reasons_and_then_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def sent() -> list[Output]:
        outputs.send([pending(6), pending(7)], [None, {"outlier": True}], [CLOSED])
        made, delivery.outputs = delivery.outputs, []
        assert [one.topic for one in made if one.topic != "a"] == ["t-dead-letters", "t-scores"]
        alerts, sums = split(to(made, "a"))
        assert len(alerts) == 1
        return sums

    delivery, outputs = sending()
    (whole,) = sent()
    assert (whole.key, whole.partition, value(whole)) == (b"k", 0, CLOSED.summary)
    delivery.limits["a"] = whole.size() - 1
    (small,) = sent()
    assert value(small) == {"incident": "0-3", "status": "closed"}
    delivery.limits.clear()
    delivery.refuse("a", 3, 1)  # the place that only the sum has
    assert [value(one) for one in sent()] == [value(small)]
    delivery.refuse("a", 3, 2)
    assert sent() == []
    assert "incident_sum_refused topic=a incident=0-3" in caplog.text
