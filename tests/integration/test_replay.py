"""`fomo-stream replay` of what a group has scored: the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from live_groups import PARTITIONS, new_topic, produce, wait_for_commits
from services import Running

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
    """A group with a rebalance and a restart in between; returns the number of records of each partition."""
    with Running(settings) as first:
        produce(broker, settings, 120, 0)
        wait_for_commits(broker, [settings], settings.topic, PARTITIONS * 120)
        with Running(settings) as second:
            wait_for(lambda: second.service.ready and share(second) and len(share(first)) < PARTITIONS, "a share", 60)
            produce(broker, settings, 110, 120)
            wait_for_commits(broker, [settings], settings.topic, PARTITIONS * 230)
    with Running(settings):
        produce(broker, settings, 100, 230)
        wait_for_commits(broker, [settings], settings.topic, PARTITIONS * 330)
    return 330


def test_a_replay_of_a_group_equals_its_live_run(broker: Broker, tmp_path: Path) -> None:
    settings = new_topic(broker, context_size=120, alert_rate=0.02)
    records = run_live(broker, settings)
    state = broker.read(settings.state_topic)
    scores, report = tmp_path / "scores.jsonl", tmp_path / "report.json"
    files = ["--scores-file", str(scores), "--json", str(report)]
    local = ["--alert-rate", "0.02", "--min-context", str(settings.min_context)]  # on which a group does not agree
    done = replay(settings, "--group", settings.group, *local, *files)
    assert done.returncode == 0, done.stderr
    written = broker.read(settings.out)
    outputs = by_place([message.value() for message in written])
    assert len(outputs) == PARTITIONS * records
    assert by_place(scores.read_bytes().splitlines()) == outputs
    content: dict[str, Any] = json.loads(report.read_text())
    results = [json.loads(message.value())["fomo"] for message in written]
    assert content["source"]["scored"] == sum(result["score"] is not None for result in results)
    incidents = Counter(result["incident"] for result in results if result["outlier"])
    found = content["incidents"]
    assert (found["count"], found["most_records"]) == (len(incidents), max(incidents.values()))
    # The group itself was not touched.
    assert len(broker.read(settings.state_topic)) == len(state)
    assert broker.committed(settings.group, settings.topic) == PARTITIONS * records
    other = replay(settings, "--group", settings.group, "--seed", "1", "--json", str(report))
    assert other.returncode == 0, other.stderr
    notes = json.loads(report.read_text())["notes"]
    assert "--seed is 1 here, 0 in the group: results differ from the live output." in notes


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
