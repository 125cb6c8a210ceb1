"""Groups that score a topic live: for tests of replays."""

from __future__ import annotations

from functools import partial
from typing import Any

from brokers import Broker, wait_for
from services import make_settings, readings, unique

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


def wait_for_commits(broker: Broker, groups: list[ServiceSettings], topic: str, offsets: int) -> None:
    """Wait until each group has committed these offsets, summed over the partitions."""
    for group in [settings.group for settings in groups]:
        what = f"group {group} to commit {offsets} of {topic}"
        wait_for(partial(lambda group: broker.committed(group, topic) == offsets, group), what, 90)
