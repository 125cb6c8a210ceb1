"""`fomo-stream replay` of topics: the results of a group that has scored them, and what is read of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from services import Running, readings, sensors, unique

from fomo_stream.cli.main import main
from fomo_stream.errors import FomoError, TopicError
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Sample
from fomo_stream.replaying.command import make_plan
from fomo_stream.replaying.plan import Plan
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.service_settings import ServiceSettings

pytestmark = pytest.mark.usefixtures("real_kafka")

Replay = Callable[..., tuple[int, str]]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str], restored_logging: None, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Runs the command on the topic of these settings; returns its exit code and what it has printed as an error."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("fomo_stream.replaying.partition_run.load_ready", shared_model)

    def run(settings: ServiceSettings, *flags: str) -> tuple[int, str]:
        where = ["--topic", settings.topic, "--bootstrap", settings.bootstrap, "--report", "none", "--jobs", "1"]
        return main(["replay", *where, *flags]), capsys.readouterr().err

    return run


def test_a_replay_of_a_group_equals_its_live_run(broker: Broker, tmp_path: Path, replay: Replay) -> None:
    settings = sensors(broker, partitions=2, alert_rate=0.1, missing_values="temperature=-9999")
    for partition in range(2):
        records = readings(200, seed=partition)
        odd = [{**one, "temperature": 60.0 + one["n"]} if one["n"] % 17 == 0 else one for one in records]
        odd = [{**one, "temperature": -9999} if one["n"] % 11 == 0 else one for one in odd]
        broker.produce(settings.topic, odd, keys=(f"k{n % 4}" for n in range(200)), partition=partition)
    with Running(settings):
        wait_for(lambda: broker.committed(settings.group, settings.topic) == 400, "all to be scored")
    scores, report = tmp_path / "scores.jsonl", tmp_path / "report.json"
    files = ["--scores-file", str(scores), "--json", str(report)]
    local = ["--alert-rate", "0.1", "--min-context", str(settings.min_context)]  # on which a group does not agree
    code, errors = replay(settings, "--group", settings.group, *local, *files)
    assert code == 0, errors
    outputs = [message.value() for message in broker.read(settings.out)]
    assert sorted(scores.read_bytes().splitlines()) == sorted(outputs)
    content: dict[str, Any] = json.loads(report.read_text())
    results = [json.loads(output)["fomo"] for output in outputs]
    assert sum(result["missing"] for result in results) == 2 * len(range(0, 200, 11))
    assert content["source"]["scored"] == sum(result["score"] is not None for result in results)
    incidents = Counter(result["incident"] for result in results if result["outlier"])
    found = content["incidents"]
    assert (found["count"], found["most_records"]) == (len(incidents), max(incidents.values()))
    assert broker.committed(settings.group, settings.topic) == 400  # the group itself was not touched
    code, errors = replay(settings, "--group", settings.group, "--seed", "1", "--json", str(report))
    assert code == 0, errors
    notes = json.loads(report.read_text())["notes"]
    assert "--seed is 1 here, 0 in the group: results differ from the live output." in notes


def test_a_replay_that_cannot_be_says_so_in_one_sentence(broker: Broker, replay: Replay) -> None:
    settings = sensors(broker)
    broker.produce(settings.topic, readings(5))
    for flags, code, words in (
        (["--from", "9"], 2, "beyond the end of the topic"),
        (["--group", settings.group], 8, "has never run on topic"),
    ):
        found, errors = replay(settings, *flags)
        assert (found, errors.count("\n")) == (code, 1)
        assert words in errors


# --- what is read


BEGAN = 1_759_276_800_000  # 2025-10-01T00:00Z
VALUES = [{"flow": i * 37 % 11 / 7, "rpm": i % 5, "bad": i % 9 == 8} for i in range(40)]
ODD: list[Any] = [b"{bad", None, b'{"flow": NaN, "rpm": 1}', b'{"flow": 1.50, "rpm": 2}']


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """Two partitions; the records of partition 0 end with odd ones."""
    topic = unique("sensors")
    broker.create_topic(topic, 2, {"retention.ms": "-1"})
    keys, times = (f"k{at % 4}" for at in range(44)), (BEGAN + 1000 * at for at in range(44))
    headers = [("site", b"north"), ("fomo-attempts", b"1")]
    broker.produce(topic, VALUES + ODD, keys, times, partition=0, headers=headers)
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
    later = plan_of(broker, topic, from_="5", features=("flow",))
    assert later.notes[0].startswith("Warms up: the first 200 records of each partition have no score")
    assert read(later)[0].offset == later.source.start(0) == 5


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
    broker.produce(labels, [one for one, _ in about], timestamps=[time or BEGAN for _, time in about], partition=0)
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
