"""Records a second of the service by the format of its records: JSON, Avro and Protobuf, each in and out.

    KAFKA_HOME=... REGISTRY_HOME=... python tests/benchmarks/formats.py [--rounds 3]

10 features and a text, 4 partitions, exactly once; no contexts of single keys, so that formats matter more. The formats
take turns, so that they share what else the machine does. Prints the rate of each format in each round, and one JSON
line last: medians of the rates, and of the shares of JSON's rate in the same round.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import orjson

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "integration", "benchmarks")]

from brokers import Broker, open_broker
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from made_schemas import proto_class
from registries import Registry, registry_home
from suite.load import Encode, names, stretch
from suite.service import service_with

from fomo_stream.kafka.registry.protoc import descriptors

PARTITIONS = 4
FIRST, LAST = 40_000, 100_000  # records between which the rate is taken
COUNT = 105_000


def encoders(url: str) -> Iterator[tuple[str, Encode, dict[str, Any]]]:
    """Each format: what makes values, and the settings of the service."""
    yield "json", orjson.dumps, {}
    client = SchemaRegistryClient({"url": url})
    settings = {"registry": url, "output_format": "registry"}
    fields = [{"name": "site", "type": "string"}, *({"name": name, "type": "double"} for name in ("at", *names()))]
    place = SerializationContext("readings", MessageField.VALUE)
    write = AvroSerializer(client, json.dumps({"type": "record", "name": "Reading", "fields": fields}))
    yield "avro", lambda record: write(record, place), settings
    text = "".join(f" double {name} = {number};" for number, name in enumerate(("at", *names()), 2))
    proto = f'syntax = "proto3"; message Reading {{ string site = 1;{text} }}'
    number = client.register_schema("readings-value", Schema(proto, "PROTOBUF"))
    reading = proto_class(descriptors(proto, "reading.proto", ()), "Reading")
    head = b"\0" + number.to_bytes(4, "big") + b"\0"
    yield "protobuf", lambda record: head + reading(**record).SerializeToString(), settings
    yield "avro to json", lambda record: write(record, place), {"registry": url}


def rate(broker: Broker, folder: Path, encode: Encode, settings: dict[str, Any]) -> float:
    """Records a second."""
    with service_with(broker, folder, PARTITIONS, COUNT, encode, own_contexts=0, **settings) as service:
        service.until(LAST)
        begin, end = stretch(service.progress.samples, FIRST, LAST)
    return (end.records - begin.records) / (end.at - begin.at)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    home = registry_home()
    if home is None:
        parser.error("set REGISTRY_HOME to a schema registry, and KAFKA_HOME to an Apache Kafka")
    rates: dict[str, list[float]] = {}
    with open_broker() as broker, Registry(home) as registry, tempfile.TemporaryDirectory() as name:
        for number in range(options.rounds):
            for format, encode, settings in encoders(registry.url):
                rates.setdefault(format, []).append(rate(broker, Path(name), encode, settings))
                print(f"round {number + 1}: {format} {rates[format][-1]:,.0f} records/s", flush=True)
    shares = {
        format: round(median(one / other for one, other in zip(found, rates["json"], strict=True)), 3)
        for format, found in rates.items()
    }
    medians = {format: round(median(found)) for format, found in rates.items()}
    print(json.dumps({"benchmark": "formats", "records_per_s": medians, "share_of_json": shares}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
