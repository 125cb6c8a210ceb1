"""Topics as sources of a replay, labels of topics, and topics for scored records, on a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker
from services import unique

from fomo_stream.errors import FomoError, TopicError
from fomo_stream.kafka.scored_topic import ScoredTopic
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Sample
from fomo_stream.replaying.plan import Plan, make_plan
from fomo_stream.replaying.resuming import resumed_plan
from fomo_stream.settings.replay import ReplaySettings

BEGAN = 1_759_276_800_000  # 2025-10-01T00:00Z
VALUES = [{"flow": i * 37 % 11 / 7, "rpm": i % 5, "bad": i % 9 == 8} for i in range(40)]
ODD: list[Any] = [b"{bad", None, b'{"flow": NaN, "rpm": 1}', b'{"flow": 1.50, "rpm": 2}']


pytestmark = pytest.mark.usefixtures("real_kafka")


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """Two partitions; the records of partition 0 end with odd ones."""
    topic = unique("sensors")
    broker.create_topic(topic, 2, {"retention.ms": "-1"})
    for at, value in enumerate(VALUES + ODD):
        options = {"timestamp": BEGAN + 1000 * at, "headers": [("site", b"north"), ("fomo-attempts", b"1")]}
        broker.produce(topic, [value], keys=[f"k{at % 4}"], partition=0, **options)
    broker.produce(topic, VALUES[:10], partition=1, timestamp=BEGAN)
    return topic


def plan_of(broker: Broker, topic: str, **options: Any) -> Plan:
    return make_plan(ReplaySettings(bootstrap=broker.bootstrap, topic=topic, **options))


def read(plan: Plan, partition: int = 0, start: int = 0) -> list[Sample]:
    return list(plan.source.read(partition, start, lambda: False))


def test_records_are_decoded_as_the_service_decodes_them(broker: Broker, topic: str) -> None:
    plan = plan_of(broker, topic, label="bad")
    assert plan.schema.features == ("flow", "rpm")
    assert (plan.source.partitions, plan.source.total(0), plan.axis) == ((0, 1), 44, "time")
    assert plan.notes[0].startswith("Each partition is replayed from its beginning")
    found = read(plan)
    assert [one.offset for one in found] == list(range(44))
    assert [one.fields for one in found[:40]] == VALUES
    assert [one.label for one in found[:40]] == [OUTLIER if value["bad"] else INLIER for value in VALUES]
    assert [one.timestamp for one in found] == [BEGAN + 1000 * at for at in range(44)]
    assert found[5].key == b"k1"
    assert [one.error.reason if one.error else None for one in found[40:]] == ["not_json", "tombstone", None, None]
    assert [one.raw for one in found[42:]] == [None, ODD[3]]  # bytes with NaN are no strict JSON
    assert [one[:4] for one in read(plan, 0, 30)] == [one[:4] for one in found[30:]]
    assert len(read(plan.part(1), 1)) == 10


def test_a_later_start_warms_up_and_says_so(broker: Broker, topic: str) -> None:
    plan = plan_of(broker, topic, from_="5", features=("flow",))
    assert plan.notes[0].startswith("Warms up: the first 200 records of each partition have no score")
    assert plan.schema.features == ("flow",)
    assert read(plan, 0, 5)[0].offset == plan.source.start(0) == 5


def test_features_are_inferred_from_the_first_records_that_have_any(broker: Broker) -> None:
    topic = unique("late")
    broker.create_topic(topic, 1)
    broker.produce(topic, [b"{bad", None, {"text": "x"}] * 10 + VALUES)
    plan = plan_of(broker, topic, infer_records=15)
    assert plan.schema.features == ("bad", "flow", "rpm")
    words = unique("words")
    broker.create_topic(words, 1)
    broker.produce(words, [{"text": "x"}] * 20)
    with pytest.raises(FomoError, match="no numeric field") as caught:
        plan_of(broker, words)
    assert "\n" not in str(caught.value)


def test_labels_of_a_topic_are_about_the_records_that_they_name(broker: Broker, topic: str) -> None:
    labels = unique("labels")
    broker.create_topic(labels, 2, {"retention.ms": "-1"})
    about: list[tuple[dict[str, Any], int]] = [
        ({"offset": 3, "outlier": True}, 0),
        ({"offset": 3, "outlier": False}, 0),  # counts more, as it is later
        ({"key": "k2", "outlier": True}, BEGAN + 11_500),  # the last record with this key until then is 10
        ({"offset": 9999, "outlier": True}, 0),
        ({"offset": 4, "outlier": "perhaps"}, 0),
        ({"key": "nobody", "outlier": True}, 0),
    ]
    for value, timestamp in about:
        broker.produce(labels, [value], partition=0, timestamp=timestamp or BEGAN)
    broker.produce(labels, [{"offset": 9, "outlier": True}], partition=1)
    plan = plan_of(broker, topic, labels_topic=labels, features=("flow",))
    assert {one.offset: one.label for one in read(plan) if one.label != UNKNOWN} == {3: INLIER, 10: OUTLIER}
    assert [one.offset for one in read(plan, 1) if one.label == OUTLIER] == [9]
    notes = " ".join(plan.notes)
    assert f"so left out: 1 record of topic {labels}, the first at {labels}[0]@4: " in notes
    assert f"Left out of topic {labels}: 2 labels about no record of the range." in notes
    assert "contradict each other about 1 record:" in notes
    with pytest.raises(TopicError, match="--labels-topic: there is no topic"):
        plan_of(broker, topic, labels_topic=unique("absent"))


@pytest.mark.parametrize("partitions", [2, 3])
def test_scored_records_keep_their_key_headers_and_time(broker: Broker, topic: str, partitions: int) -> None:
    scores = unique("scores")
    broker.create_topic(scores, partitions, {"retention.ms": "-1"})
    plan = plan_of(broker, topic, scores_topic=scores, features=("flow",))
    sink = plan.sink(1)
    assert sink is not None
    samples = [one for one in read(plan) if one.error is None]
    sink.write(samples, [{"score": 0.5}] * len(samples))
    assert sink.size() == 0
    sink.close()
    found = broker.read(scores, len(samples))
    assert len(found) == len(samples)
    assert {one.key() for one in found} == {b"k0", b"k1", b"k2", b"k3"}
    assert {tuple(one.headers()) for one in found} == {(("site", b"north"),)}
    by_key: dict[bytes, list[Any]] = {}
    for one in found:
        by_key.setdefault(one.key(), []).append(one)
    for key, mine in by_key.items():
        assert len({one.partition() for one in mine}) == 1
        expected = [one for one in samples if one.key == key]
        assert [one.timestamp()[1] for one in mine] == [one.timestamp for one in expected]
        assert [json.loads(one.value())["fomo"] for one in mine] == [{"score": 0.5}] * len(expected)
    if partitions == 2:
        assert {one.partition() for one in found} == {1}
        last = max(found, key=lambda one: one.offset())
        assert last.value() == b'{"flow": 1.50, "rpm": 2,"fomo":{"score":0.5}}'


def test_a_topic_for_scores_that_is_missing_or_refuses_is_named(broker: Broker, topic: str) -> None:
    absent = unique("absent")
    with pytest.raises(TopicError, match=f"there is no topic {absent} .*--create --topic {absent}"):
        plan_of(broker, topic, scores_topic=absent, features=("flow",))
    small = unique("small")
    broker.create_topic(small, 1, {"max.message.bytes": "1000"})
    settings = ReplaySettings(bootstrap=broker.bootstrap, topic=topic)
    target = ScoredTopic(settings, small, 0, 1, False)
    target.send(b"k", b"x" * 5000, (), None)
    with pytest.raises(FomoError, match=f"topic {small} does not take a scored record"):
        target.flush()


def test_a_replay_goes_on_with_what_its_topics_had_when_it_began(broker: Broker, tmp_path: Path) -> None:
    topic, labels = unique("resumed"), unique("labels")
    for name in (topic, labels):
        broker.create_topic(name, 1)
    broker.produce(topic, VALUES, partition=0)
    broker.produce(labels, [{"offset": 3, "outlier": True}], partition=0)
    settings = ReplaySettings(bootstrap=broker.bootstrap, topic=topic, labels_topic=labels, resume=tmp_path)
    before = resumed_plan(settings, tmp_path)
    broker.grow_topic(topic, 2)
    for partition in (0, 1):
        broker.produce(topic, [{"pressure": 1}] * 5, partition=partition)
    broker.produce(labels, [{"offset": 3, "outlier": False}, {"offset": 4, "outlier": True}], partition=0)
    again = resumed_plan(settings, tmp_path)
    assert (again.ranges, again.schema, again.notes) == (before.ranges, before.schema, before.notes)
    assert [one.label for one in read(again)] == [one.label for one in read(before)]
    assert len(read(again)) == len(VALUES)
    broker.delete_topic(labels)
    with pytest.raises(FomoError, match=f"topic {labels} was deleted or created again .*; use another folder"):
        resumed_plan(settings, tmp_path)
