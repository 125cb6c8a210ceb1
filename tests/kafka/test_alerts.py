"""Alerts: outliers go to a topic of their own, and each incident is summed up there once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import KafkaError
from pipelines import FLAGS, Instance, Recording, as_record, make_pipeline, restored
from pydantic import ValidationError

from fomo_stream.kafka.delivery.output import Output
from fomo_stream.kafka.observer import Observation, Observer
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.partition.incidents import Closed
from fomo_stream.partition.record import Pending, Record
from fomo_stream.settings.service import ServiceSettings

N = 600
COUNTS = {"t": 2, "t-scores": 2, "t-dead-letters": 2, "a": 2}
ALERTS: dict[str, Any] = {"alerts": "a", "alert_rate": 0.05, "partitions": COUNTS}


class Counting(Observer):
    """Counts incidents."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def scored(self, seen: Observation) -> None:
        self.counts.update(opened=seen.opened, closed=seen.closed)


def value(output: Output) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(output.value or b"")["fomo"]
    return content


def split(outputs: list[Output]) -> tuple[list[Output], list[Output]]:
    """The alerts, and the records that sum up incidents."""
    sums = [output for output in outputs if value(output).get("status") == "closed"]
    return [output for output in outputs if output not in sums], sums


def run(batches: list[int], moves: bool = False, **changes: Any) -> list[Output]:
    """All outputs of N records, in batches; between two of them the partition may move to another instance."""
    one, at = Instance(**{**ALERTS, **changes}), 0
    outputs: list[Output] = []
    entries: dict[str, bytes] = {}
    committed: dict[tuple[str, int], int] = {}
    while at < N:
        stop = min(N, at + batches[at % len(batches)])
        one.score(at, stop)
        at = stop
        committed |= one.commit(entries)
        outputs += one.delivery.outputs
        one.delivery.outputs.clear()
        if moves:
            one = Instance(**{**ALERTS, **changes})
            one.restore(restored(entries, committed))
    return outputs


@pytest.fixture(scope="module")
def outputs() -> list[Output]:
    return run([64])


def to(outputs: list[Output], topic: str) -> list[Output]:
    return [output for output in outputs if output.topic == topic]


def test_alerts_are_the_outliers_of_the_output_and_each_incident_is_summed_up_once(outputs: list[Output]) -> None:
    alerts, sums = split(to(outputs, "a"))
    outliers = [output for output in to(outputs, "t-scores") if value(output)["outlier"]]
    assert [(one.key, one.value, one.headers, one.partition, one.timestamp) for one in alerts] == [
        (one.key, one.value, one.headers, one.partition, one.timestamp) for one in outliers
    ]
    assert not any("incident" in value(one) for one in to(outputs, "t-scores") if not value(one)["outlier"])
    incidents: dict[str, list[dict[str, Any]]] = {}
    for alert in alerts:
        incidents.setdefault(value(alert)["incident"], []).append(value(alert))
    assert all(name == f"0-{members[0]['offset']}" for name, members in incidents.items())
    assert len(sums) > 5
    assert len({value(one)["incident"] for one in sums}) == len(sums) >= len(incidents) - 3  # at most three are open
    assert any(one.key is None for one in sums)
    assert any(one.key is not None for one in sums)
    for one in sums:
        summary, members = value(one), incidents[value(one)["incident"]]
        assert one.key == as_record(members[0]["offset"]).key
        assert (one.partition, one.timestamp, one.headers) == (0, as_record(0).timestamp, [])
        assert summary["records"] == len(members) <= summary["span"]
        assert summary["from"]["offset"] == members[0]["offset"]
        assert summary["to"]["offset"] == members[-1]["offset"]
        worst = min(members, key=lambda alert: (alert["p_value"], -alert["remembered_logit"]))
        assert {name: worst[name] for name in summary["worst"]} == summary["worst"]
        assert summary.get("reasons") == worst.get("reasons")
        written = [value(output) for output in to(outputs, "a")]
        assert written.index(members[-1]) < written.index(summary)


def test_neither_batches_nor_moves_change_alerts(outputs: list[Output]) -> None:
    expected = [(one.key, one.value) for one in to(outputs, "a")]
    for moved in (False, True):
        found = run([1, 17, 3, 40, 80], moves=moved)
        assert [(one.key, one.value) for one in to(found, "a")] == expected


def test_incidents_are_counted(outputs: list[Output]) -> None:
    counting = Counting()
    pipeline = make_pipeline(Recording(), observer=counting, **{**FLAGS, **ALERTS})
    for offset in range(N):
        pipeline.receive(as_record(offset), 0.0)
    pipeline.finish([0])
    alerts, sums = split(to(outputs, "a"))
    assert counting.counts == {"opened": len({value(alert)["incident"] for alert in alerts}), "closed": len(sums)}


def test_without_an_output_topic_only_alerts_are_written(outputs: list[Output]) -> None:
    found = run([64], out="none")
    assert {one.topic for one in found} == {"a", "t-dead-letters"}
    assert [one.value for one in to(found, "a")] == [one.value for one in to(outputs, "a")]


def test_without_a_topic_of_alerts_the_output_has_the_same_incidents(outputs: list[Output]) -> None:
    found = run([64], alerts=None)
    assert [one.value for one in to(found, "t-scores")] == [one.value for one in to(outputs, "t-scores")]
    assert {one.topic for one in found} == {"t-scores", "t-dead-letters"}


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


CLOSED = Closed(7, b"k", 3, {"incident": "0-3", "status": "closed", "reasons": [{"feature": "x"}], "explanation": "y"})


def pending(offset: int, key: bytes | None = b"k") -> Pending:
    text = json.dumps({"x": 1, "y": 2}).encode()
    return Pending(Record("t", 0, offset, 5, key, text, []), json.loads(text), 0.0)


def sending(**changes: Any) -> tuple[Recording, Pipeline]:
    delivery = Recording()
    return delivery, make_pipeline(delivery, partitions=COUNTS, **{"alerts": "a", **changes})


@pytest.mark.parametrize("topic", ["a", "t-scores"])
def test_an_alert_that_one_topic_refuses_is_a_dead_letter_and_in_neither(topic: str) -> None:
    delivery, pipeline = sending()
    delivery.refuse(topic, 7, 1)
    pipeline._outputs.send([pending(7), pending(8)], [{"outlier": True}, {"outlier": True}])
    assert delivery.reasons() == [(7, "output_refused")]
    assert [(one.topic, one.source.offset) for one in delivery.outputs[1:] if one.source] == [("t-scores", 8), ("a", 8)]


def test_only_the_output_that_is_refused_for_its_time_gets_the_present_one() -> None:
    delivery, pipeline = sending()
    delivery.refuse("a", 7, 1, KafkaError.INVALID_TIMESTAMP)
    pipeline._outputs.send([pending(7)], [{"outlier": True}])
    assert [(one.topic, one.timestamp) for one in delivery.outputs] == [("t-scores", 5), ("a", 0)]


def test_a_sum_that_is_refused_loses_its_reasons_and_then_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def sent(delivery: Recording, pipeline: Pipeline) -> list[Output]:
        pipeline._outputs.send([pending(6), pending(7)], [None, {"outlier": True}], [CLOSED])
        outputs, delivery.outputs = delivery.outputs, []
        assert [one.topic for one in outputs if one.topic != "a"] == ["t-dead-letters", "t-scores"]
        alerts, sums = split(to(outputs, "a"))
        assert len(alerts) == 1
        return sums

    delivery, pipeline = sending(result_field="fomo")
    (whole,) = sent(delivery, pipeline)
    assert (whole.key, whole.partition, value(whole)) == (b"k", 0, CLOSED.summary)
    delivery.limits["a"] = whole.size() - 1
    (small,) = sent(delivery, pipeline)
    assert value(small) == {"incident": "0-3", "status": "closed"}
    delivery.limits.clear()
    delivery.refuse("a", 3, 1)  # the place that only the sum has
    assert [value(one) for one in sent(delivery, pipeline)] == [value(small)]
    delivery.refuse("a", 3, 2)
    assert sent(delivery, pipeline) == []
    assert "incident_sum_refused topic=a incident=0-3" in caplog.text


# --- settings


def test_topics_of_the_service() -> None:
    assert ServiceSettings(topic="t").outputs == ("t-scores", "t-dead-letters")
    assert ServiceSettings(topic="t", alerts="a").outputs == ("t-scores", "a", "t-dead-letters")
    assert ServiceSettings(topic="t", alerts="a", out="none").outputs == ("a", "t-dead-letters")
    for flags, words in (
        ({"out": "none"}, "--out none needs --alerts"),
        ({"alerts": "t-scores"}, "--alerts t-scores, --dead-letters t-dead-letters and the state topic .* five"),
        ({"alerts": "t", "feedback": "f"}, "must be six different topics"),
        ({"out": "none", "alerts": "t-dead-letters"}, "must be four different topics"),
    ):
        with pytest.raises(ValidationError, match=words):
            ServiceSettings(topic="t", **flags)  # type: ignore[arg-type]
