"""A warm start: what comes after it is as if the group had run all the time, and nothing comes before."""

from __future__ import annotations

import json
import random

import pytest
from confluent_kafka import Message
from memory_broker import MemoryBroker
from memory_service import ALERTS, DEAD, OUT, Instance, service_broker
from pipelines import IDS

from fomo_stream.errors import ConfigError
from fomo_stream.kafka.warm_start import WarmStart
from fomo_stream.partition.position import POSITION, InputOffsets, SavedPosition, decide_resume
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import load

BEGIN, START, N = 15, 140, 240


def topics() -> MemoryBroker:
    """N records, among them odd ones and some that cannot be used, and labels on the warm-up, every other one bad."""
    broker, rng = service_broker(1), random.Random(3)
    for number in range(N):
        shift = 9 if number % 23 == 0 or START - 6 < number < START + 12 else 0  # an incident goes on at the start
        value = {"x": rng.gauss(shift, 1), "y": rng.gauss(5, 2)}
        broken = number % 31 == 30
        broker.append(("t", 0), rng.choice([b"p", b"q", None]), b"{" if broken else json.dumps(value).encode())
    for number in range(BEGIN + 20, BEGIN + 60, 5):
        broker.append(("f", 0), None, json.dumps({"offset": number, "outlier": number % 2 == 0}).encode())
        broker.append(("f", 0), None, b"no label")
    return broker


def run(warm: range, stops: list[int]) -> MemoryBroker:
    """Score all records; an instance is killed and replaced after so many records each."""
    broker = topics()
    start = WarmStart(IDS["t"], {0: warm})
    with broker.stands_in():
        for count in [*stops, N]:
            instance = Instance("a", broker, start)
            instance.take(0)
            instance.restore()
            for _ in range(count // 10):
                instance.read(0, 10, 100)
                instance.score(is_due=True, is_built=True)
                instance.step()
            instance.restorer.stop()
    assert broker.offsets["t", 0] == N
    return broker


def outputs(broker: MemoryBroker, topic: str, first: int = 0) -> list[Message]:
    """Those about records from this offset on. Sums of incidents: with an alert from there on."""
    found = []
    for message in broker.logs[topic, 0]:
        if topic == DEAD:
            headers = dict(message.headers())
            at = int(headers["fomo-source-offset"] or b"") if headers["fomo-source-topic"] == b"t" else 0
        else:
            result = json.loads(message.value() or b"")["fomo"]
            at = result["to"]["offset"] if result["status"] == "closed" else result["offset"]
        if at >= first:
            found.append(message)
    return found


def content(messages: list[Message]) -> list[tuple[object, object]]:
    return [(one.key(), one.value()) for one in messages]


@pytest.mark.parametrize("stops", [[], [120], [60, 40, 10]])
def test_after_a_warm_start_all_is_as_if_the_group_had_run_all_the_time(stops: list[int]) -> None:
    always, warm = run(range(BEGIN, BEGIN), []), run(range(BEGIN, START), stops)
    for topic in (OUT, ALERTS, DEAD):
        wanted = outputs(always, topic, START)
        assert wanted
        assert len(wanted) < len(outputs(always, topic))
        assert content(outputs(warm, topic)) == content(wanted)


@pytest.mark.parametrize(("is_warming_up", "warm"), [(True, range(5, 9)), (False, range(0))])
@pytest.mark.parametrize("committed", [None, 6, 12])
def test_a_warm_up_that_has_ended_does_not_begin_again(is_warming_up: bool, warm: range, committed: int | None) -> None:
    """Also where the group has lost its offsets, or somebody has set them back: outputs would be missing."""
    entries = {POSITION: SavedPosition(12, "T1", is_warming_up=is_warming_up).encode()}
    found = InputOffsets(0, 20, committed, "T1", range(5, 9))
    restored, _ = decide_resume(found, entries, ServiceSettings(topic="t"), "t[0]")
    assert (restored.start, restored.warm) == (committed or 12, warm)


def test_a_warm_start_is_of_one_topic() -> None:
    warm, places = WarmStart("T1", {0: range(3, 9), 1: range(0)}), ((0, "T1"), (0, ""), (0, "T2"), (2, "T1"))
    assert [len(warm.of(*place)) for place in places] == [6, 6, 0, 0]


def test_how_far_back_it_begins() -> None:
    wanted = {"90s": 90, "1.5h": 5400, "7d": 604_800, "earliest": None}
    assert {text: load(ServiceSettings, {"topic": "t", "warm": text}).warm_s for text in wanted} == wanted
    with pytest.raises(ConfigError, match=r"--warm a week"):
        load(ServiceSettings, {"topic": "t", "warm": "a week"})
