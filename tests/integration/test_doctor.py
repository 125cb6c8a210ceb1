"""`fomo-stream doctor` against a real broker: it finds what is wrong, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker
from services import readings, unique

from fomo_stream.admin.doctor import BROKER_CHECKS
from fomo_stream.cli.main import main
from fomo_stream.kafka.broker import clients

pytestmark = pytest.mark.usefixtures("restored_logging")


def findings(capsys: pytest.CaptureFixture[str], bootstrap: str, *flags: str) -> tuple[int, dict[str, list[Any]]]:
    """Exit code, and findings by check."""
    capsys.readouterr()
    code = main(["doctor", "--json", "--bootstrap", bootstrap, *flags])
    found: dict[str, list[Any]] = {}
    for one in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(one["check"], []).append(one)
    return code, found


def levels(found: list[Any]) -> set[str]:
    return {one["level"] for one in found}


@pytest.mark.usefixtures("real_kafka")
def test_bad_topics_are_found_and_nothing_is_changed(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    topic, group = unique("sensors"), unique("group")
    broker.create_topic(topic, 3)
    broker.create_topic(f"{topic}-scores", 2, config={"retention.ms": "60000", "max.message.bytes": "100000"})
    broker.create_topic(f"{group}-{topic}-state", 3, config={"cleanup.policy": "delete"})

    def own_topics() -> set[str]:  # other tests use the same broker
        return {name for name in broker.admin.list_topics(timeout=10).topics if topic in name}

    before = own_topics()
    flags = ("--topic", topic, "--group", group, "--kafka.session.timeout.ms=1000")
    code, found = findings(capsys, broker.bootstrap, *flags)
    assert code == 8
    assert list(found) == [*BROKER_CHECKS, "settings"]
    of_topics = " ".join(f"{one['level']}: {one['what']};" for one in found["topics"])
    for words in (
        f"problem: topic {group}-{topic}-state has cleanup.policy=delete",
        f"warning: {topic}-scores has 2 partitions, {topic} has 3",
        f"warning: {topic}-scores keeps records for 60 s",
        f"warning: {topic}-scores takes records of 97.7 KiB",
        f"ok: {topic}-dead-letters does not exist yet",
    ):
        assert words in of_topics
    assert levels(found["replicas"]) == {"warning"}  # the broker is alone
    assert levels(found["broker settings"]) == {"problem"}  # such a short session is not allowed
    assert levels(found["transactions"]) == {"ok"}
    assert [one["what"] for one in found["records"]] == [f"{topic} has no records yet"]
    assert own_topics() == before
    assert main(["doctor", "--bootstrap", broker.bootstrap, *flags]) == 8
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok           brokers          1 in the cluster: ")
    assert lines[-1] == "2 problems, 7 warnings, 2 not checked"
    assert any(line.lstrip().startswith("-> kafka-configs.sh") for line in lines)


def test_a_broker_that_is_away_is_the_only_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "START_TIMEOUT_S", 1.0)
    flags = ("--topic", "t", "--instance-id", "a", "--health-port", "8080", "--registry", "mock://doctor")
    code, found = findings(capsys, "127.0.0.1:1", *flags)
    assert code == 7
    assert ["has no subject t-value" in one["what"] for one in found["schema registry"]] == [True]
    assert levels(found.pop("brokers")) == {"problem"}
    assert levels(found.pop("settings")) == {"ok"}
    assert {level for each in found.values() for level in levels(each)} == {"not checked"}


@pytest.mark.usefixtures("real_kafka")
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_the_good_records_are_checked(
    broker: Broker, policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, hour = unique("sensors"), 3_600_000
    broker.create_topic(topic, config={"retention.ms": str(3000 * 24 * hour), "cleanup.policy": policy})
    times = range(1_790_812_800_000, 1_790_812_800_000 + 4 * hour, hour // 100)  # from 2026-10-01T00:00Z
    broker.produce(topic, readings(len(times)), ("k" for _ in times), times, partition=0)
    file = tmp_path / "good.csv"
    file.write_text("n,temperature\n" + "1,20\n" * 200)
    for reference, level, words in (
        (file, "problem", "has no value of motor.rpm"),
        ("2026-10-01/2026-10-01T02:00", "ok", "200 good records, 1 key with enough of their own"),
        ("first:2h", "ok", "200 good records, 1 key with enough of their own"),
        ("first:5d", "not checked", "there is no record after its range 2026-10-01T00:00:00/2026-10-06T00:00:00"),
        ("first:3001d", "not checked", "there is no record after its range 2026-10-01T00:00:00/20"),
        ("2020-01-01/2020-01-02", "problem", "there are no records in the range --reference 2020-01-01/2020-01-02"),
    ):
        flags = ("--topic", topic, "--group", unique("group"), "--reference", str(reference))
        _, found = findings(capsys, broker.bootstrap, *flags, "--exclude", "n", "--min-context", "100")
        assert [(one["level"], words in one["what"]) for one in found["reference"][:1]] == [(level, True)]
        is_short = " keeps records for 3000 d: the first ones are never" in found["reference"][-1]["what"]
        assert is_short == (reference == "first:3001d" and policy == "delete")
