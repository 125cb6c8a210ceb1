"""The producer of simulated readings, as a program."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from brokers import Embedded, wait_for

from fomo_stream.kafka.embedded_broker import EmbeddedBroker


def test_readings_of_every_pump_arrive_in_order_until_a_signal(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "fomo_stream.demo.producer", "--topic", "sensors", "--rate", "2000"]
    with EmbeddedBroker() as running:
        broker = Embedded(running.bootstrap)
        broker.create_topic("sensors")
        counted = [*program, "--bootstrap", broker.bootstrap, "--pumps", "3", "--count", "600"]
        subprocess.run(counted, check=True, timeout=60)
        messages = broker.read("sensors", at_least=600)
        records = [json.loads(message.value()) for message in messages]
        assert Counter(record["pump"] for record in records) == {"P-101": 200, "P-102": 200, "P-103": 200}
        assert [message.key().decode() for message in messages] == [record["pump"] for record in records]
        for pump in ("P-101", "P-102", "P-103"):
            assert [record["reading"] for record in records if record["pump"] == pump] == list(range(200))

        endless = subprocess.Popen([*program, "--bootstrap", broker.bootstrap])
        try:
            wait_for(lambda: len(broker.read("sensors")) > 600, "more readings")
            endless.send_signal(signal.SIGTERM)
            assert endless.wait(60) == 0
        finally:
            endless.kill()
