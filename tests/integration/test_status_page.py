"""The status page and the other answers of a real service: what they show, and what they must not."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from brokers import Broker, free_ports, wait_for
from services import Running, make_settings, readings, unique

PATHS = ("", "status.css", "status.js", "status.json", "livez", "readyz", "nothing", "metrics")
VALUE, KEY = "marker-of-a-value", "marker-of-a-key"


def test_values_and_keys_of_records_are_never_shown(broker: Broker) -> None:
    topic, port = unique("sensors"), free_ports()
    broker.create_topic(topic)
    strange = [{**record, "temperature": 1e6, "note": VALUE, "<script>": VALUE} for record in readings(30, 300)]
    broker.produce(topic, readings(300), partition=0)
    broker.produce(topic, strange, keys=[KEY] * 30, partition=0)
    broker.produce(topic, [f"{VALUE} is no JSON".encode(), f'{{"{VALUE}": 1}}'.encode()], keys=[KEY] * 2, partition=0)
    answers: list[str] = []

    def ask(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return f"{answer.headers}{answer.read().decode()}"
        except urllib.error.HTTPError as error:
            return f"{error.headers}{error.read().decode()}"
        except urllib.error.URLError:
            return ""

    def all_are_used() -> bool:
        answers.extend(map(ask, PATHS))
        return 'fomo_dead_letters_total{reason="no_features"} 1.0' in answers[-1]

    with Running(make_settings(broker, topic, categorical="site", health_port=port)) as running:
        wait_for(all_are_used, "every record to be used")
        wait_for(lambda: running.service.ready, "the service to be ready")
        wait_for(lambda: broker.committed(running.settings.group, topic) == 332, "every record to be committed")
        answers.extend(map(ask, PATHS))
        status = json.loads(ask("status.json").split("\n\n", 1)[1])
    assert status["instance"]["features"] == ["temperature", "motor.rpm", "site"]
    assert [partition["context_rows"] > 0 for partition in status["partitions"]] == [True, False, False, False]
    alerts = [alert for alert in status["alerts"]["recent"] if alert["offset"] >= 300]
    assert alerts, "the strange records should be outliers"
    assert status["latency"]["poll_to_commit"]["p99_s"] > 0
    assert VALUE not in "".join(answers)
    assert KEY not in "".join(answers)
