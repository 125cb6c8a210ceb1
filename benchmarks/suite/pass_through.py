"""What a service costs without a detector: decodes records and writes them again, each batch in a transaction.

    python -m suite.pass_through BOOTSTRAP TOPIC

run in benchmarks, reads the topic from its beginning as the group TOPIC, and writes to TOPIC-copies. It is what a user
would write with the same client, and has no restarts, dead letters or rebalances: the least that a service can cost.
It ends when it is killed.
"""

from __future__ import annotations

import sys

import orjson
from confluent_kafka import Consumer, Producer

AT_ONCE = 500  # records
PATIENCE_S = 0.05


def pass_through(bootstrap: str, topic: str) -> None:
    """Copy the records, for ever. All records of a poll are in one transaction."""
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    consumer = Consumer({**common, "group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    producer = Producer({**common, "transactional.id": f"{topic}-copies"})
    producer.init_transactions(20)
    consumer.subscribe([topic])
    while True:
        messages = [message for message in consumer.consume(AT_ONCE, PATIENCE_S) if message.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            fields = orjson.loads(message.value())
            fields["fomo"] = {"partition": message.partition(), "offset": message.offset(), "score": 0.5}
            value = orjson.dumps(fields)
            producer.produce(f"{topic}-copies", value, message.key(), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()


if __name__ == "__main__":
    pass_through(*sys.argv[1:])
