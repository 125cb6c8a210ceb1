"""Good records of a range of the input, which outlive their retention, and of a file that is replaced."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from services import Running, changed, readings, refusal, results, sensors

from fomo_stream.cli.main import main
from fomo_stream.kafka import references, service
from fomo_stream.kafka.group.agreed_reference import GroupReference
from fomo_stream.kafka.ranges import read_items
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service_settings import ServiceSettings

pytestmark = pytest.mark.usefixtures("real_kafka")

BEGAN, MINUTE = 1_790_812_800_000, 60_000  # 2026-10-01T00:00Z
GOOD = "2026-10-01/2026-10-01T02:00"
COUNT = 180  # records of each partition, one a minute, the first 120 in the range


def fill(broker: Broker, settings: ServiceSettings, start: int, count: int, shift: float = 0.0) -> None:
    for partition in range(2):
        records = readings(count, start, seed=start + partition)
        records = [{**one, "temperature": one["temperature"] + shift} for one in records]
        times = range(BEGAN + start * MINUTE, BEGAN + (start + count) * MINUTE, MINUTE)
        broker.produce(settings.topic, records, (f"k{partition}" for _ in records), times, partition=partition)


@pytest.fixture
def settings(broker: Broker) -> ServiceSettings:
    """Of a topic with good records, and later ones."""
    made = sensors(broker, 2, {"retention.ms": "-1"}, alert_rate=0.02, reference=GOOD, instance_id="one")
    fill(broker, made, 0, COUNT)
    return made


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "fomo_stream")
    return caplog


def score_all(broker: Broker, settings: ServiceSettings, until: int) -> None:
    """Run the service until it has scored this many records."""
    with Running(settings):
        wait_for(lambda: broker.committed(settings.group, settings.topic) == until, f"{until} records")


def stored(broker: Broker, settings: ServiceSettings) -> dict[bytes, bytes]:
    """What the group has stored of its reference."""
    entries = {
        one.key(): one.value() for one in broker.read(settings.state_topic) if one.key().startswith(b"reference")
    }
    return {key: value for key, value in entries.items() if value is not None}


def digests(log: pytest.LogCaptureFixture) -> set[str]:
    return set(re.findall(r"digest=(\w+)", log.text))


def replay(settings: ServiceSettings, *flags: str) -> int:
    """The exit code."""
    where = ["--topic", settings.topic, "--bootstrap", settings.bootstrap, "--report", "none", "--jobs", "1"]
    local = ["--alert-rate", str(settings.alert_rate), "--min-context", "50", "--reference", str(settings.reference)]
    return main(["replay", *where, *local, *flags])


@pytest.mark.parametrize("given", [GOOD, "first:2h"])
def test_a_range_outlives_its_records_and_gives_the_results_of_a_replay(
    broker: Broker,
    settings: ServiceSettings,
    given: str,
    tmp_path: Path,
    log: pytest.LogCaptureFixture,
    restored_logging: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("fomo_stream.replaying.partition_run.load_ready", shared_model)
    settings = changed(settings, reference=given)
    score_all(broker, settings, 2 * COUNT)
    exact = GOOD if given == GOOD else "2026-10-01T00:00:00/2026-10-01T02:00:00"
    assert f"reference_stored range={exact} " in log.text
    assert f"reference range={given} records=240 keys=2 " in log.text
    first = stored(broker, settings)
    fill(broker, settings, COUNT, 40, shift=15.0)
    alone = ["--features", "temperature,motor.rpm", "--context-size", "100"]
    assert replay(settings, *alone, "--scores-file", str(tmp_path / "scores.jsonl")) == 0
    expected = sorted((tmp_path / "scores.jsonl").read_bytes().splitlines())
    broker.delete_records({(settings.topic, number): COUNT for number in range(2)})
    two, three = (Running(changed(settings, instance_id=name)) for name in ("two", "three"))
    with two, three:
        wait_for(lambda: two.service.ready and three.service.ready, "both instances")
        wait_for(lambda: broker.committed(settings.group, settings.topic) == 2 * (COUNT + 40), "all records")
    assert stored(broker, settings) == first
    outputs = broker.read(settings.out, at_least=len(expected))
    assert sorted(message.value() for message in outputs) == expected
    assert sum(one["fomo"]["outlier"] for one in results(outputs) if one["n"] >= COUNT) == 80
    assert replay(settings, "--group", settings.group) == 0
    capsys.readouterr()
    assert replay(settings, *alone) == 5
    if given == GOOD:
        assert f"no records in the range --reference {GOOD}; the topic has records, by" in capsys.readouterr().err
        assert "give a range that the topic has, or a file" in str(refusal(changed(settings, group="other")))
    else:
        assert "no record after its range 2026-10-01T03:00:00/2026-10-01T05:00:00" in capsys.readouterr().err
        assert replay(changed(settings, reference="first:30m"), *alone) == 0
        assert "before the first retained record" not in " ".join(capsys.readouterr().out.split())


def test_the_first_records_are_taken_once_they_are_all_there(
    broker: Broker, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart, from the next record of each partition on; another instance and a restart have the same."""
    monkeypatch.setattr(references, "CHECK_S", 0.1)
    monkeypatch.setattr(references, "RETRY_S", 0.2)
    settings = sensors(broker, 3, alert_rate=0.02, reference="first:100s", instance_id="one")
    began, n = 1000 * (round(time.time()) - 90), 0

    def scored(more: int, after: int, shift: float = 0.0) -> list[tuple[bool, bool]]:
        """Whether records of both partitions are compared with the reference, and outliers."""
        nonlocal n
        for number in range(2):
            records = [{**one, "temperature": one["temperature"] + shift} for one in readings(more, n, seed=n)]
            times = range(began + after, began + after + more)
            broker.produce(settings.topic, records, (f"k{number}" for _ in records), times, partition=number)
        n += more
        found = [one for one in results(broker.read(settings.out, at_least=2 * n)) if one["n"] >= n - more]
        assert len(found) == 2 * more
        return [("reference_logit" in one["fomo"], one["fomo"]["outlier"]) for one in found]

    two = changed(settings, instance_id="two")
    with Running(settings), Running(two):
        wait_for(lambda: "there is no record with a time" in log.text, "the wait for a first record")
        assert not any(compared for compared, _ in scored(150, 0))
        wait_for(lambda: "there is no record after its range" in log.text, "the wait for the end")
        while time.time() < began / 1000 + 101:
            time.sleep(0.1)
        assert not stored(broker, settings)
        scored(1, 100_000)
        wait_for(lambda: len(re.findall(rf" reference topic={settings.topic} ", log.text)) >= 3, "the reference")
        assert " records=300 keys=2 " in log.text
        assert all(compared and outlier for compared, outlier in scored(20, 100_001, 15.0))
    assert len(digests(log)) == 1
    first = stored(broker, settings)
    with Running(settings):
        assert all(compared for compared, _ in scored(5, 100_021))
    assert stored(broker, settings) == first
    assert len(digests(log)) == 1


def test_a_start_that_reads_a_reference_for_long_is_alive(
    settings: ServiceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def read_slowly(*args: Any) -> Iterator[Any]:
        go_on.wait(30)
        yield from read_items(*args)

    monkeypatch.setattr(service, "STALLED_AFTER_S", 0.3)
    monkeypatch.setattr(references, "read_items", read_slowly)
    with Running(settings) as running:
        wait_for(lambda: math.isinf(running.service._references.read_at), "the reading")
        time.sleep(0.5)
        assert not running.service.not_live()
        go_on.set()


def test_times_that_are_not_in_order_are_told(broker: Broker, log: pytest.LogCaptureFixture) -> None:
    """The range of one partition ends with its first device, and that of the other is empty."""
    made = sensors(broker, 2, {"retention.ms": "-1"}, alert_rate=0.02, reference="2026-10-01T01:00/2026-10-01T03:00")
    for key in ("a", "b"):
        times = range(BEGAN, BEGAN + 200 * MINUTE, MINUTE)
        broker.produce(made.topic, readings(200), (key for _ in times), times, partition=0)
    broker.produce(made.topic, readings(50), ("c" for _ in range(50)), [BEGAN] * 50, partition=1)
    score_all(broker, made, 450)
    assert "records=120 keys=1 " in log.text
    lines = [line for line in log.text.splitlines() if " check_reference " in line]
    assert f"{made.topic}[1] has no record in the range" in lines[0]
    assert "120 of the next 220 records have times in it" in lines[1]


def test_another_range_replaces_the_stored_one(
    broker: Broker, settings: ServiceSettings, log: pytest.LogCaptureFixture
) -> None:
    later = changed(settings, reference="2026-10-01T01:00/2026-10-01T03:00")
    score_all(broker, settings, 2 * COUNT)
    fill(broker, settings, COUNT, 10)
    first = digests(log)
    log.clear()
    score_all(broker, later, 2 * (COUNT + 10))
    assert f"reference_stored range={later.reference} " in log.text
    assert f" replaces={GOOD}" in log.text
    assert f"reference range={later.reference} records=240 keys=2 " in log.text
    assert f"reference topic={settings.topic} partition=1 offset={COUNT} digest=" in log.text
    assert first
    assert not first & digests(log)
    assert len(stored(broker, settings)) == 1


def test_a_range_that_cannot_be_used_is_refused_and_not_stored(broker: Broker, settings: ServiceSettings) -> None:
    for reference, features, reason in (
        ("2020-01-01/2020-01-02", settings.features, "there are no records in the range --reference 2020-01-01/2020-"),
        ("2026-10-01/2026-10-01T00:20", settings.features, "the reference has 40 usable rows; at least 53 are needed"),
        ("2026-10-01/2026-10-01T00:20", None, "the reference has 40 usable rows; at least 53 are needed"),  # inferred
        ("2026-10-01/2199-01-01", settings.features, "--reference 2026-10-01/2199-01-01 has not ended yet"),
    ):
        wrong = changed(settings, reference=reference, features=features, group="named" if features else "inferred")
        assert reason in str(refusal(wrong))
        assert not stored(broker, wrong)


def test_instances_that_store_at_the_same_time_use_the_same(broker: Broker) -> None:
    settings, schema, found = sensors(broker, reference=GOOD), Schema(("temperature",)), list[bytes]()
    broker.create_topic(settings.state_topic, 1, {"cleanup.policy": "compact"})
    assert GroupReference(settings, schema).stored() is None
    proposals = [os.urandom(700_000) for _ in range(3)]
    agree = [
        threading.Thread(target=lambda p=each: found.append(GroupReference(settings, schema).agree(p, GOOD)))
        for each in proposals
    ]
    for thread in agree:
        thread.start()
    for thread in agree:
        thread.join()
    assert len({*found}) == 1
    assert found[0] in proposals
    assert GroupReference(settings, schema).stored() == found[0]
    assert GroupReference(settings, Schema(("motor.rpm",))).stored() is None
    assert GroupReference(changed(settings, key="site"), schema).stored() is None


def test_a_replaced_file_is_taken_and_a_wrong_one_is_not(
    broker: Broker, tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "CHECK_S", 0.1)
    n = 0

    def wait_for_log(words: str) -> None:
        wait_for(lambda: words in log.text, f"the log to say {words!r}")

    def put(records: list[Any], text: str = "") -> None:
        lines = [f"{one['temperature']},{one['motor']['rpm']}" for one in records]
        new = tmp_path / "new"
        new.write_text("\n".join(["temperature,motor.rpm", *lines]) + "\n" + text)
        new.replace(file)

    def scored(more: int, shift: float) -> list[bool]:
        nonlocal n
        records = [{**one, "temperature": one["temperature"] + shift} for one in readings(more, n, seed=n)]
        broker.produce(settings.topic, records, ("k" for _ in records), partition=0)
        n += more
        found = results(broker.read(settings.out, at_least=n, seconds=120))[n - more : n]
        return [one["fomo"]["outlier"] for one in found]

    file = tmp_path / "good.csv"
    put(readings(300, seed=99))
    settings = sensors(broker, alert_rate=0.02, reference=file, instance_id="one")
    with Running(settings):
        assert sum(scored(60, 0.0)) <= 3
        assert all(scored(20, 30.0))
        hot = [{**one, "temperature": one["temperature"] + 30.0} for one in readings(300, seed=98)]
        put(hot)
        wait_for_log(f" reference topic={settings.topic} partition=0 offset=80 ")
        assert sum(scored(60, 30.0)) <= 3
        assert all(scored(10, 0.0))
        for text, records, reason in (
            ("1,2,3,4,5\n", hot, f"{file} line 302: the row has 5 cells"),
            ("", hot[:20], f"--reference {file}: the reference has 20 usable rows; at least 53 are needed"),
            ("", [], f"--reference {file}: the reference has 0 usable rows; at least 53 are needed"),
        ):
            put(records, text)
            wait_for_log(f' reference_not_read reason="{reason}')
        file.unlink()
        wait_for_log("cannot read ")
        assert sum(scored(20, 30.0)) <= 3
        put(readings(300, seed=97))
        wait_for_log(f" reference topic={settings.topic} partition=0 offset=170 ")
        assert sum(scored(20, 0.0)) <= 3
        assert len(digests(log)) == 3
        log.clear()
        put(hot)
    with Running(settings):
        assert sum(scored(20, 30.0)) <= 3
        assert f" reference topic={settings.topic} partition=0 offset=190 " in log.text
