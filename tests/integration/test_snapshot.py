"""What an instance says about itself agrees with the broker."""

from __future__ import annotations

import pytest
from brokers import Broker, wait_for
from confluent_kafka import Producer
from services import Running, make_settings, readings, unique

from fomo_stream.kafka.snapshot import PartitionSnapshot


def test_a_snapshot_follows_lag_contexts_and_open_transactions(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker has no transactions")
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
        assert (zero.detector.records, zero.detector.regime) == (300, 1)
        assert zero.detector.generation >= 1
        assert zero.detector.context_rows == 100
        assert zero.detector.trimmed_rows > 0
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
        wait_for(lambda: partitions()[1].lag == 0, "the commit of its records")
        marked = partitions()[1]
        assert (marked.end, marked.position, marked.oldest_unscored_s) == (6, 6, 0.0)  # the last is its marker
        assert running.member.pipeline.tasks[1].committed == 5
