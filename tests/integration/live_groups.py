"""Groups that score a topic live, with labels: for tests of replays."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from brokers import Broker, wait_for
from services import make_settings, readings, results, unique

from fomo_stream.settings.service import ServiceSettings

PARTITIONS = 2


def new_topic(broker: Broker, **changes: Any) -> ServiceSettings:
    topic = unique("sensors")
    broker.create_topic(topic, partitions=PARTITIONS)
    return make_settings(broker, topic, **changes)


def produce(broker: Broker, settings: ServiceSettings, count: int, start: int) -> None:
    for partition in range(PARTITIONS):
        records = readings(count, start=start, seed=start + partition)
        odd = [{**one, "temperature": 60.0} if one["n"] % 17 == 0 else one for one in records]
        keys = (f"k{one['n'] % 4}" for one in odd)  # few, so that incidents end
        broker.produce(settings.topic, odd, keys=keys, partition=partition)


def label(broker: Broker, settings: ServiceSettings, offsets: list[int]) -> None:
    assert settings.feedback is not None
    for partition in range(PARTITIONS):
        labels = [{"partition": partition, "offset": at, "outlier": at % 3 == 0} for at in offsets]
        broker.produce(settings.feedback, labels, partition=partition)


def wait_for_commits(broker: Broker, groups: list[ServiceSettings], topic: str, offsets: int) -> None:
    """Wait until each group has committed these offsets, summed over the partitions."""
    for group in [settings.group for settings in groups]:
        what = f"group {group} to commit {offsets} of {topic}"
        wait_for(partial(lambda group: broker.committed(group, topic) == offsets, group), what, 90)


def step(broker: Broker, groups: list[ServiceSettings], count: int, start: int, labels: int) -> None:
    """Records, then labels on 8 of them; every group handles both before the next step. labels: so far, with these."""
    settings = groups[0]
    produce(broker, settings, count, start)
    wait_for_commits(broker, groups, settings.topic, PARTITIONS * (start + count))
    label(broker, settings, random.Random(start).sample(range(start, start + count), 8))
    wait_for_commits(broker, groups, settings.feedback or "", PARTITIONS * labels)


def live(broker: Broker, settings: ServiceSettings, at_least: int) -> dict[tuple[int, int], dict[str, Any]]:
    """The results in the output topic by place, without where and when the record was."""
    found = {}
    for output in results(broker.read(settings.out, at_least=at_least)):
        result = dict(output["fomo"])
        place = result.pop("partition"), result.pop("offset")
        assert place not in found
        del result["topic"], result["timestamp"]
        found[place] = result
    return found
