"""The broker's answers about topics: recreated ones are read from their beginning, small ones are reported."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from fomo_stream.errors import BrokerError, TopicError
from fomo_stream.kafka.topics.setup import TopicSetup
from fomo_stream.kafka.topics.watch import TopicReport, TopicsAnswer, TopicWatch
from fomo_stream.settings.service_settings import ServiceSettings

HERE, ANOTHER, NO_IDS, GONE = "A", "B", "", None  # the id of a topic that the broker has


def seen(topic: str, topic_id: str | None) -> TopicsAnswer:
    return TopicsAnswer({} if topic_id is None else {topic: 1}, {topic: topic_id} if topic_id else {})


@pytest.mark.parametrize(
    ("answers", "restarts"),
    [
        ([HERE, HERE], 0),
        ([HERE, GONE, HERE], 0),  # out of sight for a moment
        ([HERE, GONE, GONE, ANOTHER], 1),
        ([HERE, ANOTHER], 1),  # too quick to be seen missing
        ([HERE, GONE], 0),
        ([NO_IDS, GONE, NO_IDS], 1),
        ([NO_IDS, NO_IDS], 0),
    ],
)
def test_only_a_recreated_topic_makes_partitions_be_restored(answers: list[str | None], restarts: int) -> None:
    for topic in ("t", "f"):
        report = TopicReport(ServiceSettings(topic="t" if topic == "t" else "other", feedback="f"))
        first, *later = (seen(topic, answer) for answer in answers)
        report.begin(first)
        assert sum(report.compare(answer).created for answer in later) == restarts


def test_topics_that_lack_partitions_or_are_gone_are_reasons_not_to_be_ready() -> None:
    settings = ServiceSettings(topic="t", out="o", alerts="a", dead_letters="d", feedback="f", group="g")
    sizes = dict.fromkeys(("t", "o", "a", "d", "f", settings.state_topic), 2)
    found = TopicReport(settings)
    found.begin(TopicsAnswer(sizes, {}))
    assert found.reasons() == []
    changes = found.compare(TopicsAnswer(sizes | {"t": 4}, {}))
    assert (changes.created, changes.resized) == (False, ("t",))
    (reason,) = found.reasons()
    assert "feedback topic f has 2 partitions fewer than t" in reason
    assert "--alter --topic f --partitions 4" in reason
    for gone in ("o", "a", "d"):
        found.compare(TopicsAnswer({topic: size for topic, size in sizes.items() if topic != gone}, {}))
        assert found.reasons() == [f"topic {gone} does not exist any more"]
    found.compare(TopicsAnswer(sizes, {}))
    assert found.reasons() == []


@pytest.mark.parametrize(
    ("code", "remedy", "other"),
    [
        (KafkaError._TIMED_OUT, "check that all brokers run, and restart the instance", "may be described"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "check that topic t may be described and read", "restart"),
    ],
)
def test_a_start_without_a_list_of_topics_says_why(
    code: int, remedy: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        has_controller = False

        def connect(self) -> None: ...

        def partitions(self, topics: object) -> Any:
            raise KafkaException(KafkaError(code))

    monkeypatch.setattr("fomo_stream.kafka.topics.setup.START_TIMEOUT_S", 0.0)
    settings = ServiceSettings(topic="t")
    watch: Any = TopicWatch(settings)
    watch.cluster.close()
    watch.cluster = Refusing()
    with pytest.raises(BrokerError, match=remedy) as error:
        TopicSetup(settings, watch).begin()
    assert other not in str(error.value)


@pytest.mark.parametrize("refused", [{}, {"o": "not permitted"}])
def test_a_start_waits_for_topics_that_the_broker_creates_slowly(
    refused: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of partitions take longer than a start waits for a broker that refuses."""

    class Slow:
        has_controller, asked = False, 0

        def partitions(self, _topics: object) -> tuple[dict[str, int], dict[str, str]]:
            self.asked += 1
            return dict.fromkeys(("t", "o", "d") if self.asked > 5 else ("t",), 500), {}

        def create(self, topics: dict[str, object], count: int) -> dict[str, str]:
            assert (list(topics), count) == (["o", "d"], 500)
            return refused

    monkeypatch.setattr("fomo_stream.kafka.topics.setup.START_TIMEOUT_S", 0.0)
    watch: Any = TopicWatch(settings := ServiceSettings(topic="t", out="o", dead_letters="d"))
    watch.cluster.close()
    watch.cluster, watch.poll_limits = Slow(), lambda: None
    monkeypatch.setattr(TopicSetup, "_inherited_config", lambda _: {})
    because = "topic o is missing and could not be created \\(not permitted\\)"
    with pytest.raises(TopicError, match=because) if refused else nullcontext():
        TopicSetup(settings, watch).finish(is_known=False)
