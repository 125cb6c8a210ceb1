"""What a real service says about itself: it agrees with the broker, and shows no record."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from brokers import Broker, free_ports, wait_for
from confluent_kafka import Producer
from services import CLIENT, Running, make_settings, readings, unique

from fomo_stream.kafka.snapshot import PartitionSnapshot

PATHS = ("", "status.css", "status.js", "status.json", "livez", "readyz", "nothing", "metrics")
VALUE, KEY, SECRET = "marker-of-a-value", "marker-of-a-key", "marker-of-a-password"


def test_values_and_keys_of_records_and_passwords_are_never_shown(broker: Broker) -> None:
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

    kafka = {**CLIENT, "ssl.key.password": SECRET}
    with Running(make_settings(broker, topic, categorical="site", health_port=port, kafka=kafka)) as running:
        wait_for(all_are_used, "every record to be used")
        wait_for(lambda: '"reasons": []' in ask("readyz"), "the service to be ready")
        assert '"reasons": []' in ask("livez")
        wait_for(lambda: broker.committed(running.settings.group, topic) == 332, "every record to be committed")
        answers.extend(map(ask, PATHS))
        status = json.loads(ask("status.json").split("\n\n", 1)[1])
    assert status["instance"]["features"] == ["temperature", "motor.rpm", "site"]
    assert [partition["context_rows"] > 0 for partition in status["partitions"]] == [True, False, False, False]
    incidents = [one for one in status["incidents"] if one["last"] >= 300]
    assert incidents, "the strange records should be outliers"
    assert status["latency"]["poll_to_commit"]["p99_s"] > 0
    assert [marker for marker in (VALUE, KEY, SECRET) if marker in "".join(answers)] == []
    assert not ask("livez")


@pytest.mark.usefixtures("real_kafka")
def test_a_snapshot_follows_lag_contexts_and_open_transactions(broker: Broker) -> None:
    topic = unique("sensors")
    broker.create_topic(topic, partitions=2)
    with Running(make_settings(broker, topic)) as running:

        def partitions() -> tuple[PartitionSnapshot, ...]:
            return running.service.snapshot().partitions

        def open_s() -> float:
            return dict(partitions()[1].open_transactions).get(topic, -1.0)

        wait_for(lambda: running.service.ready, "the service to be ready")
        broker.produce(topic, readings(300), partition=0)
        wait_for(lambda: partitions()[0].committed == 300, "the commit of all records")
        zero, one = partitions()
        assert (zero.number, zero.end, zero.lag, zero.oldest_unscored_s) == (0, 300, 0, 0.0)
        assert (zero.detector.records, zero.detector.context_rows) == (300, 100)
        assert zero.generation_age_s is not None
        assert (one.detector.records, one.detector.generation, one.generation_age_s) == (0, 0, None)
        producer = Producer({**broker.config, "transactional.id": unique("producer")})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in (b'{"temperature": 20, "motor": {"rpm": 900}}',) * 5:
            producer.produce(topic, value, partition=1)
        producer.flush(20)
        wait_for(lambda: open_s() > 0.5, "the open transaction to be seen, twice")
        assert partitions()[1].lag == 5
        assert dict(partitions()[0].open_transactions)[topic] == 0.0
        producer.commit_transaction(20)
        wait_for(lambda: open_s() == 0.0, "the end of the transaction to be seen")
        wait_for(lambda: running.member.pipeline.partitions[1].committed == 5, "the commit of its records")
        wait_for(lambda: partitions()[1].lag == 0, "the commit to be seen")
        marked = partitions()[1]
        assert (marked.end, marked.position, marked.oldest_unscored_s) == (6, 6, 0.0)  # the last is its marker
