"""What `fomo-stream notify` takes: messages a second from Kafka to a webhook, and memory with that many open incidents.

It needs a broker: `KAFKA_HOME` or `TEST_BOOTSTRAP`, as the tests do. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "integration"), str(TESTS / "notify")]

from brokers import open_broker
from made_alerts import alert
from receivers import receiving
from services import Command, unique
from test_notify import flags_of, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=10_000, help="that open, and stay open")
    count = parser.parse_args().incidents
    with open_broker() as broker, receiving() as receiver, tempfile.TemporaryDirectory() as folder:
        topic = unique("alerts")
        broker.create_topic(topic, 4)
        flags = flags_of(broker, topic, "--webhook", receiver.url, "--start", "earliest", "--log-level", "info")
        command = Command(Path(folder) / "log", "notify", *flags)
        command.wait_for_log(" assigned ")
        status = Path(f"/proc/{command.process.pid}/status")
        at_rest = highest(status)
        began = time.monotonic()
        write(broker, topic, *map(alert, range(count)))
        receiver.wait_for(lambda requests: len(requests) == count, 600)
        seconds = time.monotonic() - began
        found = {"incidents": count, "messages_per_s": round(count / seconds), "at_rest_mib": at_rest}
        print(json.dumps({**found, "highest_mib": highest(status)}))
        assert command.terminate() == 0, command.text()


def highest(status: Path) -> float:
    """The most memory that a process has taken so far, in MiB."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


if __name__ == "__main__":
    main()
