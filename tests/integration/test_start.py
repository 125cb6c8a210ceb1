"""Starting: mistakes end at once with one clear line; an instance can wait, and the group's schema is agreed on."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from brokers import Broker, wait_for
from services import (
    CLIENT,
    Command,
    Running,
    changed,
    handles,
    make_settings,
    readings,
    refusal,
    results,
    sensors,
    unique,
)

from fomo_stream.cli.main import main
from fomo_stream.errors import BrokerError, SchemaError
from fomo_stream.kafka import certificates
from fomo_stream.kafka.broker import clients
from fomo_stream.kafka.broker.clients import make_producer
from fomo_stream.kafka.group.agreed_schema import KIND, GroupSchema
from fomo_stream.kafka.service import Service
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.records.schema import Schema


@pytest.mark.usefixtures("restored_logging")
def test_a_start_that_cannot_succeed_ends_and_says_what_to_do_in_one_line(
    broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(clients, "START_TIMEOUT_S", 1.0)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00 truncated")
    for arguments, code, words in (
        (["--bootstrap", "127.0.0.1:1"], 7, "no broker answers at 127.0.0.1:1"),
        (["--bootstrap", broker.bootstrap], 8, "--create --topic no-such-topic"),
        (["--model", "no-such-model"], 4, "no model named 'no-such-model'"),
        (["--model", str(damaged)], 4, "damaged.safetensors"),
    ):
        assert main(["--topic", "no-such-topic", *arguments]) == code
        shown = capfd.readouterr().err
        assert words in shown
        assert shown.startswith("fomo-stream: ")
        assert shown.count("\n") == 1


@pytest.mark.usefixtures("real_kafka")
def test_an_instance_that_waits_starts_when_its_topic_is_there(broker: Broker) -> None:
    topic = unique("sensors")
    with Running(make_settings(broker, topic, wait=True)) as running:
        why = f"there is no topic {topic}"
        wait_for(lambda: why in "".join(running.service.not_ready()), "the reason for waiting")
        assert running.service.not_ready()[0].startswith("the service is waiting: ")
        assert running.service.snapshot().state == "waiting"
        assert running.service.not_live() == []
        broker.create_topic(topic)
        wait_for(lambda: running.service.ready, "the service to be ready")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells which signals a process handles")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_a_process_that_is_still_loading_or_waits_for_a_broker(
    tmp_path: Path, number: int, code: int
) -> None:
    running = Command(tmp_path / "log", "--topic", "t", "--bootstrap", "127.0.0.1:1", "--wait")
    # Python itself handles SIGINT from the beginning; the handler of SIGTERM is set after that.
    wait_for(lambda: handles(running.process.pid, signal.SIGTERM), "the handlers")
    running.process.send_signal(number)
    assert running.process.wait(60) == code, running.text()
    assert "stopping signal=" in running.text()
    assert "Traceback" not in running.text()


# --- the state


@pytest.mark.usefixtures("real_kafka")
def test_another_detector_is_refused_until_the_state_is_reset(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the upgrade of deploy/README.md: then it warms up, and scores from the committed offset on."""
    monkeypatch.setattr("fomo_stream.kafka.restore.BEHIND_S", 0.5)  # it waits for a state of this offset, in vain
    settings = sensors(broker)
    other = changed(settings, lags=1)
    broker.produce(settings.topic, readings(60))
    with Running(settings) as running:
        broker.read(settings.out, at_least=60)
        wait_for(lambda: running.scores(0), "the partition")
        assert "has 1 members" in str(refusal(changed(other, reset_state=True)))
    error = refusal(other)
    assert "--lags is 0 in the group, 1 here" in str(error)
    assert "--reset-state" in str(error)
    broker.produce(settings.topic, readings(20, start=60))
    with Running(changed(other, reset_state=True)):
        outputs = results(broker.read(settings.out, at_least=80))
    assert [record["n"] for record in outputs] == list(range(80))
    assert [output["fomo"]["status"] for output in outputs].count("warming_up") == 70


@pytest.mark.usefixtures("real_kafka")
def test_a_state_topic_that_is_not_compacted_and_a_feedback_topic_of_another_size_are_refused(broker: Broker) -> None:
    settings = sensors(broker, partitions=4)
    broker.create_topic(settings.state_topic, 1, config={"cleanup.policy": "delete"})
    assert "--add-config cleanup.policy=compact" in str(refusal(settings))
    settings = changed(settings, group=unique("group"), feedback=unique("labels"))
    broker.create_topic(settings.feedback or "", partitions=3)
    with pytest.raises(BrokerError, match=r"has 3 partitions, topic sensors-\w+ has 4.*--alter --topic"):
        Service(settings).run()


# --- the schema of the group


def state_topic(broker: Broker, *entries: tuple[bytes, object]) -> GroupSchema:
    """The schema of a group whose log has these entries."""
    settings = make_settings(broker, unique("sensors"))
    broker.create_topic(settings.state_topic, config={"cleanup.policy": "compact"})
    producer = make_producer(settings)
    for key, content in entries:
        producer.produce(settings.state_topic, key=key, value=json.dumps(content), partition=0)
    assert producer.flush(20) == 0
    return GroupSchema(settings)


def test_the_first_entry_of_its_kind_is_the_schema_and_one_that_is_not_readable_is_an_error(broker: Broker) -> None:
    """Entries of earlier versions do not say whose they are."""
    entries = ((b"other", ["x"]), (KIND + b"1", ["a", "b"]), (KIND + b"2", ["c"]))
    schema = state_topic(broker, *((key, {"features": names}) for key, names in entries))
    assert schema.stored() == Schema(("a", "b"))
    contents: list[object] = [{"features": ["a"], "categorical": ["b"]}, {"categorical": []}, 3]
    for content in contents:
        with pytest.raises(BrokerError, match="not readable"):
            state_topic(broker, (KIND + b"1", content)).stored()


def test_what_the_model_cannot_take_is_refused_before_the_group_is_bound_to_it(broker: Broker, tmp_path: Path) -> None:
    settings = sensors(broker)
    narrow = ZeroShotModel(
        ModelConfig(raw_features=1, fusion=False, layers=1, width=8, heads=2, feed_forward=16, routers=4)
    )
    with pytest.raises(SchemaError, match="takes up to 1 features"):
        Service(settings, narrow.eval()).run()
    seed = tmp_path / "normal.csv"
    seed.write_text("temperature,motor.rpm\n1,2\n3,4\n5,6\n")
    with pytest.raises(SchemaError, match="has 3 usable rows; at least 4 are needed"):
        Service(changed(settings, seed_context=seed)).run()
    assert GroupSchema(settings).stored() is None


def test_groups_and_topics_with_one_state_topic_do_not_share_it(broker: Broker, real_kafka: None) -> None:
    """`a` on `b-c` and `a-b` on `c`: the second one is refused before it fences, writes or deletes anything."""
    first, second = unique("a"), unique("c")
    topic = f"b-{second}"
    for name in (topic, second):
        broker.create_topic(name, 1)
        broker.produce(name, readings(60))
    owner = make_settings(broker, topic, group=first, instance_id="i0")
    other = make_settings(broker, second, group=f"{first}-b", instance_id="i0")
    assert owner.state_topic == other.state_topic
    assert owner.transactional_id != other.transactional_id
    with Running(owner) as running:
        broker.read(owner.out, at_least=60)
        words = f"has the state of group {first} on topic {topic}; choose another --group"
        for reset in (False, True):
            assert words in str(refusal(changed(other, reset_state=reset)))
        broker.produce(topic, readings(10, start=60))
        assert len(broker.read(owner.out, at_least=70)) == 70
        assert running.service.ready
    with Running(owner):
        pass


def test_members_that_read_another_topic_do_not_keep_settings_from_being_changed(
    broker: Broker, real_kafka: None
) -> None:
    one = sensors(broker, 1, incident_quiet=10)
    other = sensors(broker, 1, group=one.group)
    for settings in (one, other):
        broker.produce(settings.topic, readings(60))
    with Running(one):
        broker.read(one.out, at_least=60)
    with Running(other) as running:
        broker.read(other.out, at_least=60)
        with Running(changed(one, incident_quiet=20)):
            broker.produce(one.topic, readings(10, start=60))
            broker.read(one.out, at_least=70)
            assert "has 1 member" in str(refusal(one))  # that one reads the topic
        assert running.service.ready


@pytest.mark.usefixtures("real_kafka")
def test_an_instance_that_joins_again_with_new_certificates_keeps_what_it_has_learned(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Without TLS the client does not read the file, but it is watched."""
    monkeypatch.setattr(certificates, "CHECK_S", 0.1)
    authorities = tmp_path / "ca.pem"
    authorities.write_text("old")
    settings = sensors(broker, partitions=2, reset_state=True, kafka={**CLIENT, "ssl.ca.location": str(authorities)})
    broker.create_topic(settings.state_topic, 2, {"cleanup.policy": "compact"})
    broker.produce(settings.topic, readings(200), keys=(f"k{i}" for i in range(200)))
    with Running(settings) as running:
        wait_for(lambda: broker.committed(settings.group, settings.topic) == 200, "all to be committed")

        def renew(text: str) -> None:
            before = running.member
            authorities.write_text(text)
            wait_for(lambda: running.service.ready and running.member is not before, "new clients")

        renew("new")
        renew("newer")
        broker.produce(settings.topic, readings(50, start=200), keys=(f"k{i}" for i in range(50)))
        outputs = broker.read(f"{settings.topic}-scores", at_least=250)
    assert caplog.text.count("state_reset") == 1
    found = results(outputs)
    assert sorted(one["n"] for one in found) == list(range(250))
    assert all(one["fomo"]["status"] != "warming_up" for one in found if one["n"] >= 200)
