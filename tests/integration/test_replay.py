"""`fomo-stream replay` of what a group has scored: the same results, and a group that goes on from there."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka import Consumer, TopicPartition
from live_groups import PARTITIONS, label, live, new_topic, produce, step, wait_for_commits
from services import Running, check_alerts, content_of

from fomo_stream.replaying.command import replay_settings
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.service import ServiceSettings

pytestmark = pytest.mark.usefixtures("real_kafka")


def replay(settings: ServiceSettings, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the topic, in one process."""
    where = ["--topic", settings.topic, "--bootstrap", settings.bootstrap, "--report", "none", "--jobs", "1"]
    return subprocess.run(
        [sys.executable, "-m", "fomo_stream.cli", "replay", *where, *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )


def by_place(lines: list[bytes]) -> dict[tuple[int, int], bytes]:
    """Scored records by the partition and offset of their source."""
    found = {}
    for line in lines:
        result = json.loads(line)["fomo"]
        place = result["partition"], result["offset"]
        assert place not in found
        found[place] = line
    return found


def share(running: Running) -> set[int]:
    return set(running.member.pipeline.tasks)


def run_live(broker: Broker, settings: ServiceSettings) -> int:
    """A group with labels, a rebalance and a restart in between; returns the number of records of each partition."""
    with Running(settings) as first:
        step(broker, [settings], 120, 0, 8)
        with Running(settings) as second:
            wait_for(lambda: second.service.ready and share(second) and len(share(first)) < PARTITIONS, "a share", 60)
            step(broker, [settings], 110, 120, 16)
        wait_for(lambda: len(share(first)) == PARTITIONS, "all partitions to come back", 60)
        rng = random.Random(1)
        for at in range(230, 330, 25):  # labels and records mix
            produce(broker, settings, 25, at)
            label(broker, settings, rng.sample(range(100, 230), 3))
        wait_for_commits(broker, [settings], settings.feedback or "", PARTITIONS * 28)
    with Running(settings):
        step(broker, [settings], 100, 330, 36)
    return 430


def test_a_replay_equals_the_live_run_and_prepares_a_group_that_goes_on_alike(broker: Broker, tmp_path: Path) -> None:
    settings = new_topic(broker, alert_rate=0.02, context_size=120)
    more = {"feedback": f"{settings.topic}-labels", "alerts": f"{settings.topic}-alerts"}
    settings = settings.model_copy(update=more)
    records = run_live(broker, settings)
    state = broker.read(settings.state_topic)
    scores, report = tmp_path / "scores.jsonl", tmp_path / "report.json"
    again = {"out": f"{settings.topic}-twin", "alerts": f"{settings.topic}-twin-alerts"}
    twin = settings.model_copy(update={"group": f"{settings.group}-twin", **again})
    alerts = broker.read(more["alerts"])
    flags = ["--group", settings.group, "--scores-file", str(scores), "--json", str(report), "--prepare", twin.group]
    done = replay(settings, *flags)
    assert done.returncode == 0, done.stderr
    written = broker.read(settings.out)
    check_alerts(written, alerts)
    outputs = by_place([message.value() for message in written])
    assert len(outputs) == PARTITIONS * records
    assert by_place(scores.read_bytes().splitlines()) == outputs
    content: dict[str, Any] = json.loads(report.read_text())
    assert "equal" in content["notes"][0]
    results = [json.loads(message.value())["fomo"] for message in written]
    assert content["source"]["scored"] == sum(result["score"] is not None for result in results)
    incidents = Counter(result["incident"] for result in results if result["outlier"])
    found = content["incidents"]
    assert (found["count"], found["most_records"]) == (len(incidents), max(incidents.values()))
    # The group itself was not touched.
    assert len(broker.read(settings.state_topic)) == len(state)
    assert len(broker.read(more["alerts"])) == len(alerts)
    assert broker.committed(settings.group, settings.topic) == PARTITIONS * records
    with Running(settings), Running(twin):
        step(broker, [settings, twin], 100, records, 44)
    ours = live(broker, twin, PARTITIONS * 100)
    assert len(ours) == PARTITIONS * 100
    assert ours == {place: result for place, result in live(broker, settings, 0).items() if place in ours}
    before = Counter(map(content_of, alerts))
    later = (Counter(map(content_of, broker.read(more["alerts"]))) - before).elements()
    assert sorted(map(content_of, broker.read(again["alerts"]))) == sorted(later)


def test_the_report_says_truly_whether_results_equal_the_live_output(broker: Broker) -> None:
    settings = new_topic(broker)
    for partition in range(PARTITIONS):
        broker.produce(settings.topic, [b"not json"], partition=partition)
    produce(broker, settings, 120, 0)
    late = settings.model_copy(update={"group": f"{settings.group}-late"})  # with the same topic of outputs
    places = [TopicPartition(settings.topic, number, 61) for number in range(PARTITIONS)]
    committer = Consumer({**broker.config, "group.id": late.group})
    committer.commit(offsets=places, asynchronous=False)
    committer.close()
    for group in (settings, late):
        with Running(group):
            wait_for_commits(broker, [group], settings.topic, PARTITIONS * 121)

    def first_note(group: ServiceSettings, **flags: Any) -> str:
        given: dict[str, Any] = {
            "topic": group.topic,
            "bootstrap": group.bootstrap,
            "kafka": group.kafka,
            "group": group.group,
        }
        return str(replay_settings(ReplaySettings(**given, report="none", jobs=1, **flags)).report["notes"][0])

    equal = "from the first record that group {} learned, so results equal its live output."
    assert first_note(settings).endswith(equal.format(settings.group))
    assert first_note(settings, to="100").endswith(equal.format(settings.group))
    assert first_note(late, from_="61", out="elsewhere").endswith(equal.format(late.group))
    places_of = f"At the same offset of {settings.topic}[0-1], group"
    assert first_note(late).startswith(f"{places_of} {late.group} had learned fewer records")
    assert f"{places_of} {settings.group} had learned more records" in first_note(settings, from_="61")
    assert "may differ from its live output: the next notes say why" in first_note(settings, seed=1)


def test_a_replay_that_cannot_be_says_so_in_one_sentence(broker: Broker) -> None:
    settings = new_topic(broker)
    produce(broker, settings, 5, 0)
    for flags, code, words in (
        (["--from", "2020-01-01", "--to", "2020-02-01"], 8, "the topic has records from 20"),
        (["--from", "9"], 2, "beyond the end of the topic"),
        (["--group", settings.group], 8, "has never run on topic"),
    ):
        done = replay(settings, *flags)
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
