"""Silence in a real run: told once, through a kill, and again when the data are back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from services import QUICK, command, readings, sensors, unique

pytestmark = pytest.mark.slow
HISTORY_S = 1350  # of records that came before the service began, every 3 s from each key


class Keys:
    """Keys that send every 200 ms, in real time, until they are taken out of `sending`."""

    def __init__(self, broker: Broker, topic: str, keys: set[str]) -> None:
        self._broker, self._topic = broker, topic
        self.sending = keys
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        value = json.dumps(readings(1)[0]).encode()
        while not self._is_over.wait(0.2):
            if keys := sorted(self.sending):
                self._broker.produce(self._topic, [value] * len(keys), keys=keys)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()


def test_each_silence_is_told_once_whatever_happens_to_the_service(broker: Broker, tmp_path: Path) -> None:
    alerts = unique("alerts")
    broker.create_topic(alerts, 1)
    its: dict[str, Any] = {"silence_min": "10s", "explain": "none", "views": "fast", "instance_id": "one"}
    settings = sensors(broker, alerts=alerts, silence=5.0, **its)
    now, values = round(time.time()), [json.dumps(one).encode() for one in readings(HISTORY_S)]
    times = [1000 * (now - HISTORY_S) + 1000 * i for i in range(len(values))]
    broker.produce(settings.topic, values, keys=["abc"[i % 3] for i in range(len(values))], timestamps=times)
    keys = Keys(broker, settings.topic, {"a", "b", "c"})

    def told() -> list[tuple[str, str, str | None]]:
        found: list[dict[str, Any]] = [json.loads(one.value())["fomo"] for one in broker.read(alerts)]
        return [(one["status"], one["of"], one.get("key")) for one in found if "of" in one]

    expected: list[tuple[str, str, str | None]] = []
    with keys.running():
        with command(tmp_path / "first.log", settings, program=["-c", QUICK]) as first:
            first.wait_for_log(" restored ")
            wait_for(lambda: broker.committed(settings.group, settings.topic) > len(values), "records of now")
            keys.sending = {"a", "c"}
            expected.append(("silent", "key", "b"))
            wait_for(lambda: told() == expected, "the silence of b", 90, every=0.5)
            first.kill()
        with command(tmp_path / "second.log", settings, program=["-c", QUICK]) as second:
            second.wait_for_log(" restored ")
            keys.sending = {"a", "b", "c"}
            expected.append(("closed", "key", "b"))
            wait_for(lambda: told() == expected, "the end of b's silence", 90, every=0.5)
            keys.sending = set()
            expected.append(("silent", "topic", None))
            wait_for(lambda: told() == expected, "the silence of the topic", 90, every=0.5)
            keys.sending = {"a", "b", "c"}
            expected.append(("closed", "topic", None))
            wait_for(lambda: told() == expected, "the end of the topic's silence", 90, every=0.5)
            assert second.terminate() == 0
