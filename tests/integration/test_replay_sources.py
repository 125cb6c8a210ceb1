"""Topics as sources of a replay, and labels of topics, on a broker."""

from __future__ import annotations

from typing import Any

import pytest
from brokers import Broker
from services import unique

from fomo_stream.errors import FomoError, TopicError
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Sample
from fomo_stream.replaying.plan import Plan, make_plan
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


def read(plan: Plan, partition: int = 0) -> list[Sample]:
    return list(plan.source.read(partition, lambda: False))


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
    assert [one.raw for one in found[42:]] == ODD[2:]
    assert len(read(plan.part(1), 1)) == 10


def test_a_later_start_warms_up_and_says_so(broker: Broker, topic: str) -> None:
    plan = plan_of(broker, topic, from_="5", features=("flow",))
    assert plan.notes[0].startswith("Warms up: the first 200 records of each partition have no score")
    assert plan.schema.features == ("flow",)
    assert read(plan)[0].offset == plan.source.start(0) == 5


def test_features_are_inferred_from_the_first_records_that_have_any(broker: Broker) -> None:
    topic = unique("late")
    broker.create_topic(topic, 1)
    broker.produce(topic, [b"{bad", None, {"text": "x"}] * 100 + VALUES)
    plan = plan_of(broker, topic)
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
