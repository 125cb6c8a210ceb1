"""Several topics in one process: each is scored as if it were alone, whatever happens to the others."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, free_ports, wait_for
from services import CLIENT, QUICK, Command, Running, in_thread, make_settings, readings, results, unique

from fomo_stream.cli.main import main
from fomo_stream.errors import BrokerError, ConfigError
from fomo_stream.kafka import topic_services
from fomo_stream.kafka.group.written_topics import WrittenTopics
from fomo_stream.kafka.topic_services import TopicServices
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.ops.monitor import Monitors
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.topic_selection import TopicCatalog

# The settings of `make_settings`, as flags.
FLAGS = {
    "features": "temperature,motor.rpm",
    "min_context": "50",
    "context_size": "100",
    "alert_rate": "0.05",
    "kafka": CLIENT,
}

COUNT = 120


@pytest.fixture(autouse=True)
def _quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_services, "LISTING_S", 0.3)
    monkeypatch.setattr(topic_services, "MIN_RETRY_S", 0.3)
    monkeypatch.setattr(topic_services, "MAX_RETRY_S", 1.0)
    monkeypatch.setattr(topic_services, "load_ready", shared_model)


@contextmanager
def running(**flags: Any) -> Iterator[TopicServices]:
    catalog = TopicCatalog(ServiceSettings, {**FLAGS, **flags})
    services = TopicServices(catalog, Monitors(catalog.process).of_topic)
    with in_thread(services):
        yield services


def filled(broker: Broker, name: str, seed: int = 0) -> str:
    """A topic with COUNT records in one partition."""
    broker.create_topic(name, 1)
    broker.produce(name, readings(COUNT, seed=seed))
    return name


def scores(broker: Broker, topic: str, count: int = COUNT) -> list[dict[str, Any]]:
    found = [record["fomo"] for record in results(broker.read(topic, count))]
    return sorted(found, key=lambda one: (one["partition"], one["offset"]))


def test_each_topic_is_scored_as_if_it_were_alone(broker: Broker) -> None:
    plant = unique("plant")
    first, second = (filled(broker, f"{plant}-{i}", i) for i in range(2))
    other, late = unique("other"), unique("late")
    filled(broker, other, 2)
    delivery = "exactly-once" if broker.is_kafka else "at-least-once"
    alone = {}
    for topic in (first, other):
        out = f"{plant}-alone-{topic}"  # the pattern below matches it, and the state of this group
        with Running(make_settings(broker, topic, group=f"{plant}-group", out=out, delivery=delivery)):
            alone[topic] = scores(broker, out)
    flags = {"bootstrap": broker.bootstrap, "group": "fomo-{topic}", "delivery": delivery}
    with running(topic=f"{other},{late},^{plant}", **flags) as services:
        for topic in (first, other):
            assert scores(broker, f"{topic}-scores") == alone[topic]
        wait_for(lambda: services.topics[late].error, "the missing topic to be reported")
        assert f"no topic {late}" in str(services.topics[late].error)
        assert services.not_ready() == []  # the others are scored
        assert services.services[late].not_ready()
        third = filled(broker, f"{plant}-2", 3)  # it comes while they run
        filled(broker, late, 4)
        assert len(scores(broker, f"{third}-scores")) == len(scores(broker, f"{late}-scores")) == COUNT
        if broker.is_kafka:
            broker.delete_topic(first)
            wait_for(lambda: first not in services.topics, "the topic that was deleted to be given up")
        kept = {second, third, other, late} | (set() if broker.is_kafka else {first})
        assert services.topics.keys() == kept  # no output is scored, also not of the topic that is gone
        broker.produce(second, readings(20, start=COUNT, seed=5))
        assert len(scores(broker, f"{second}-scores", COUNT + 20)) == COUNT + 20
    assert all(topic.service.member for topic in services.topics.values())


def test_a_topic_that_may_be_a_state_is_selected_once_it_had_a_record(broker: Broker) -> None:
    names = [unique("plant") + "-state" for _ in range(5)]
    first, other, *later = names
    for name in names:
        broker.create_topic(name, 2)
    broker.produce(first, readings(1), partition=0)
    broker.produce(other, readings(1), partition=1)
    written = WrittenTopics(make_settings(broker, first))
    began = time.monotonic()
    assert written.without(names) == [first, other]
    assert time.monotonic() - began < 2  # one after the other takes a second each
    broker.produce(later[0], readings(1), partition=0)
    assert written.without(names) == [first, other, later[0]]


def test_without_any_topic_that_starts_it_ends_with_the_reason(broker: Broker) -> None:
    names = f"{unique('a')},{unique('b')}"
    catalog = TopicCatalog(ServiceSettings, {"topic": names, "group": "fomo-{topic}", "bootstrap": broker.bootstrap})
    with pytest.raises(BrokerError, match="there is no topic"):
        TopicServices(catalog, Monitors(catalog.process).of_topic).run()


def test_the_command_takes_topics_from_sections_of_the_file_and_its_log_names_them(
    broker: Broker, tmp_path: Path
) -> None:
    plant, pay = filled(broker, unique("plant")), filled(broker, unique("pay"), 1)
    config, port = tmp_path / "fomo.yaml", free_ports()
    delivery = "exactly-once" if broker.is_kafka else "at-least-once"
    content = (
        f"bootstrap: '127.0.0.1:1,{broker.bootstrap}'\ngroup: 'fomo-{{topic}}'\nfeatures: temperature,motor.rpm\n"
        f"min-context: 50\ndelivery: {delivery}\nhealth-port: {port}\nlog-level: debug\n"
        f"topics:\n  {plant}: {{}}\n  {pay}:\n    features: temperature\n"
    )
    config.write_text(content)
    command = Command(tmp_path / "log", "--config", str(config), program=["-c", QUICK])

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def topics_of(event: str) -> set[str]:
        """The endings of the lines of this event."""
        return {line.split()[-1] for line in command.text().splitlines() if f" {event} " in line}

    try:
        assert len(scores(broker, f"{plant}-scores")) == len(scores(broker, f"{pay}-scores")) == COUNT
        metrics = get("/metrics")
        for topic in (plant, pay):
            assert f'fomo_records_total{{topic="{topic}"}} {COUNT}.0' in metrics
            assert f'fomo_info{{group="fomo-{topic}"' in metrics
        assert metrics.count("\nprocess_resident_memory_bytes ") == 1
        assert metrics.count("# TYPE fomo_records_total ") == 1
        overview = json.loads(get("/status.json"))["topics"]
        assert [(line["topic"], line["state"], line["partitions"]) for line in overview] == [
            (topic, "running", broker.partitions(topic)) for topic in (plant, pay)
        ]
        assert json.loads(get(f"/status.json?topic={pay}"))["instance"]["features"] == ["temperature"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get("/status.json?topic=unknown")
        named = {f"topic={plant}", f"topic={pay}"}
        assert topics_of("schema") == topics_of("kafka_client") == named
        config.write_text(content + "rules: [{name: a}]")
        wait_for(lambda: topics_of("rules_not_read") == named, "both topics to tell of the mistake")
        config.write_text(content + "  third: {}\n")
        command.wait_for_log("settings_changed names=topics ")
        config.write_text(content + "rules: [{name: b, only: rises}]\n")
        wait_for(lambda: all(f" rules topic={name} " in command.text() for name in (plant, pay)), "the rules")
        assert command.text().count("settings_changed") == 1  # one line for all topics
    finally:
        code = command.terminate()
    assert code == 0, command.text()
    for line in command.text().splitlines():
        assert plant in line or pay in line or "settings_changed" in line or line.split()[2] == "stopping", line


@pytest.mark.usefixtures("real_kafka")
def test_a_topic_that_was_fenced_is_soon_scored_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_services, "MAX_RETRY_S", 300.0)
    first, second = filled(broker, unique("first")), filled(broker, unique("second"))
    with running(
        topic=f"{first},{second}", bootstrap=broker.bootstrap, group="fomo-{topic}", instance_id="one"
    ) as ours:
        wait_for(lambda: all(one.ready for one in ours.services.values()) and len(ours.services) == 2, "both topics")
        with Running(make_settings(broker, first, group=f"fomo-{first}", instance_id="one")):
            wait_for(lambda: ours.topics[first].error, "the topic to be fenced")
        broker.produce(first, readings(20, start=COUNT))
        assert len(scores(broker, f"{first}-scores", COUNT + 20)) == COUNT + 20
        assert ours.services[second].ready


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("topics: {a: {}, b: {alert-rate: 3}}", "line 1: alert-rate 3: input should be"),
        ("alert-rate: 0.1\ntopics:\n  b: {}\n  a:\n    key: x\n    alert-rate: 3", "fomo.yaml line 6: alert-rate 3"),
        ("topics:\n  a: {}\n  b:\n    kex: user", "line 4: unknown setting kex"),
        ("topics:\n  a: {health-port: 80}", "line 2: topics.a.health-port is for all topics: move it up"),
        ("topics: {'^a': {group: x}, b: {}}", "topics.^a.group: each topic needs a group of its own"),
        ("topics: [a, b]", "line 1: topics needs settings by topic"),
        ("topics: {a: {}, '^(': {}}", "line 1: topics has an invalid pattern, '^('"),
        ("topic: '^a'\ngroup: x", "each needs a group of its own"),
        ("topic: 'a,^('", "has an invalid pattern"),
        ("topic: ', ,'", "names no topic"),
    ],
)
def test_mistakes_are_found_at_the_start(tmp_path: Path, lines: str, words: str) -> None:
    config = tmp_path / "fomo.yaml"
    config.write_text(lines if "group" in lines else f"{lines}\ngroup: 'g-{{topic}}'\n")
    with pytest.raises(ConfigError) as caught:
        TopicCatalog(ServiceSettings, {"config": str(config)}).check()
    assert words in str(caught.value)


def test_a_pattern_leaves_out_the_outputs_of_its_topics() -> None:
    catalog = TopicCatalog(
        ServiceSettings, {"topic": "^plant,x", "group": "g-{topic}", "alerts": "plant-alerts", "out": "plant-{topic}"}
    )
    listed = ["plant-1", "plant-plant-1", "plant-2-dead-letters", "plant-x", "plant-alerts", "g-x-x-state", "__plant"]
    settings, errors = catalog.topics(listed)
    assert list(settings) == ["x", "plant-1"]
    assert not errors
    assert settings["plant-1"].group == "g-plant-1"


def test_a_pattern_leaves_out_the_outputs_of_sections_also_of_topics_that_are_gone(tmp_path: Path) -> None:
    config = tmp_path / "fomo.yaml"
    config.write_text(
        "group: 'g-{topic}'\nrules: [{name: a, only: rises}]\ntopics:\n"
        "  '^plant-.*': {group: 'p-{topic}', out: 'scored-{topic}', dead-letters: null}\n"
        "  orders: {group: of-orders, feedback: judged, alerts:, rules: [{name: b, only: falls}]}\n  '^.*': {}\n"
    )
    catalog = TopicCatalog(ServiceSettings, {"config": str(config)})
    written = ["scored-plant-1", "p-plant-1-plant-1-state", "plant-1-dead-letters", "judged", "of-orders-orders-state"]
    settings, errors = catalog.topics([*written, "scored-by-hand", "plant-2", "g-x-x-state", "__plant"])
    assert (list(settings), errors) == (["orders", "plant-2", "scored-by-hand"], {})
    assert settings["plant-2"].group == "p-plant-2"


# --- doctor and group


def commanded(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code of a command in this process, and what it prints."""
    capsys.readouterr()
    return main(list(words)), *capsys.readouterr()


@pytest.mark.usefixtures("real_kafka", "restored_logging")
def test_doctor_and_group_answer_for_each_topic(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    plant = unique("plant")
    names, late = [filled(broker, f"{plant}-{i}", i) for i in range(2)], unique("late")
    with running(topic=f"^{plant}", bootstrap=broker.bootstrap, group="fomo-{topic}"):
        for name in names:
            scores(broker, f"{name}-scores")
    given = {"bootstrap": broker.bootstrap, "group": "fomo-{topic}", "features": "temperature,motor.rpm"}
    given |= {"min-context": "50", "context-size": "100"}
    of_broker = [f"--{name}={value}" for name, value in given.items()]
    every = ("--topic", f"{late},^{plant}", *of_broker)  # the outputs match too, and are left out

    code, out, err = commanded(capsys, "group", *every)
    assert code == 8
    assert [line for line in out.splitlines() if line.startswith(("topic ", "group "))] == [
        line for name in names for line in (f"topic {name}", f"group fomo-{name} on topic {name}")
    ]
    assert err.startswith(f"fomo-stream: topic {late}: there is no topic {late} on ")
    assert err.count("\n") == 1
    alone = [commanded(capsys, "group", "--topic", name, *of_broker)[1] for name in names]
    assert out == "".join(f"topic {name}\n{text}" for name, text in zip(names, alone, strict=True))

    assert commanded(capsys, "group", "--check", "--topic", ",".join(names), *of_broker)[0] == 0
    code, out, err = commanded(capsys, "group", "--check", *every, "--lags", "3")  # late does not hide the refusal
    assert (code, out) == (10, "")
    assert [line.split(":")[1] for line in err.splitlines()] == [f" topic {name}" for name in (late, *names)]

    code, out, _ = commanded(capsys, "doctor", "--json", *every)
    found = {line["topic"]: line["exit_code"] for line in map(json.loads, out.splitlines())}
    assert (code, found) == (8, {late: 8, names[0]: 0, names[1]: 0})
    code, out, _ = commanded(capsys, "doctor", *every)
    assert (code, [line for line in out.splitlines() if line.startswith("topic ")]) == (
        8,
        [f"topic {name}" for name in (late, *names)],
    )


@pytest.mark.usefixtures("restored_logging")
def test_mistakes_in_the_topics_of_doctor_and_group(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("doctor", "group"):
        for words, code, text in (
            (("--topic", "a,b"), 2, "the topics a and b have the same group, fomo-stream"),
            (("--topic", "a b"), 2, "cannot be the name of a topic"),
            ((), 2, "--topic is required"),
            (("--topic", f"^{unique('none')}", "--group", "g-{topic}"), 8, "matches --topic ^none"),
        ):
            done, out, err = commanded(capsys, command, "--bootstrap", broker.bootstrap, *words)
            assert (done, out, err.count("\n")) == (code, "", 1)
            assert text in err
    done, _, err = commanded(capsys, "replay", "--topic", "a,b", "--last", "1h")
    assert (done, "this command takes one topic; run, doctor and group take several" in err) == (2, True)
