"""Records with schemas, against a real registry: what the client's serializers write is read, and the reverse."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from brokers import wait_for
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro.utils import generate_one
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_schemas import RESULT, as_json, avro_schemas, comparable, proto_class
from registries import Proxy
from services import unique

from fomo_stream.errors import RecordError, RegistryError, SchemaPendingError
from fomo_stream.kafka.registry import codec_for
from fomo_stream.kafka.registry.client import RegistryClient
from fomo_stream.kafka.registry.protoc import descriptors
from fomo_stream.kafka.registry.schemas import Schemas
from fomo_stream.records.codec import Codec
from fomo_stream.settings.service_settings import ServiceSettings

READING = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [{"name": "flow", "type": "double"}, {"name": "site", "type": ["null", "string"], "default": None}],
}


class Known:
    """A topic, and the codec that the service has for it."""

    def __init__(self, url: str, **changes: Any) -> None:
        self.topic = unique("readings")
        values = {"topic": self.topic, "registry": url, "output_format": "registry", **changes}
        self.settings = ServiceSettings(**values)
        codec, schemas = codec_for(self.settings, of_service=True)
        assert isinstance(schemas, Schemas)
        self.codec: Codec = codec
        self.schemas = schemas

    def value(self, topic: str = "") -> SerializationContext:
        return SerializationContext(topic or self.topic, MessageField.VALUE)

    def decode(self, value: bytes, headers: Any = ()) -> dict[str, Any]:
        """When the schema is known."""

        def decoded() -> list[dict[str, Any]]:
            try:
                return [self.codec.decode(value, headers)]
            except SchemaPendingError:
                return []

        return wait_for(decoded, "the schema", every=0.002)[0]  # type: ignore[no-any-return]  # the client has no types

    def scored(self, fields: Mapping[str, Any]) -> bytes:
        return self.codec.encode(fields, RESULT, None, self.settings.out)


@contextmanager
def known(url: str, **changes: Any) -> Iterator[Known]:
    one = Known(url, **changes)
    try:
        yield one
    finally:
        one.schemas.stop()


def test_generated_schemas(registry_url: str, client: SchemaRegistryClient) -> None:
    @given(schema=avro_schemas(), seed=st.integers(0, 2**32))
    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    def check(schema: Any, seed: int) -> None:
        random.seed(seed)
        text = json.dumps({**schema, "name": unique("T").replace("-", "")})
        value = generate_one(json.loads(text))
        data = AvroSerializer(client, text)(value, one.value(unique("made")))
        read = AvroDeserializer(client)
        fields = one.decode(data)
        assert comparable(fields) == comparable(as_json(read(data, one.value())))
        back = read(one.scored(fields), one.value(one.settings.out))
        result = back.pop("fomo")
        assert comparable(as_json(back)) == comparable(fields)
        assert (result["score"], result["explanation"]) == (RESULT["score"], RESULT["explanation"])
        plain = json.loads(known_json.codec.encode(known_json.decode(data), RESULT, data))
        assert plain.pop("fomo") == RESULT
        assert comparable(plain) == comparable(json.loads(json.dumps(fields)))

    with known(registry_url) as one, known(registry_url, output_format="json") as known_json:
        check()


def test_json_with_a_schema(registry_url: str, client: SchemaRegistryClient) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Reading",
        "type": "object",
        "additionalProperties": False,
        "properties": {"flow": {"type": "number"}, "site": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
    }
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer  # take a second

    text = json.dumps(schema)
    with known(registry_url) as one:
        data = JSONSerializer(text, client)({"flow": 3.5, "site": None}, one.value())
        fields = one.decode(data)
        assert fields == {"flow": 3.5, "site": None}
        scored = one.scored(fields)
        back = JSONDeserializer(None, schema_registry_client=client)(scored, one.value(one.settings.out))
        assert back == {"flow": 3.5, "site": None, "fomo": RESULT}
        assert data[5:-1] in scored


MOTOR = 'syntax = "proto3"; package plant; message Motor { optional int32 rpm = 1; }'
PROTO = """syntax = "proto3";
package plant;
import "plant/motor.proto";
import "google/protobuf/timestamp.proto";
message Site { string name = 1; }
message Reading { double flow = 1; Motor motor = 2; google.protobuf.Timestamp at = 3; }
"""


@pytest.mark.parametrize("form", ["text", "base64"])
def test_protobuf_in_both_forms_of_schemas(form: str, registry_url: str, client: SchemaRegistryClient) -> None:
    """As Java and Go register them, and as Python does: by the client's own serializer, or by what it would send."""
    motor = unique("motor")
    with known(registry_url) as one:
        compiled = descriptors(PROTO, "plant/reading.proto", [("plant/motor.proto", descriptors(MOTOR, "m.proto", ()))])
        reading = proto_class(compiled, "plant.Reading")(flow=2.5, motor={"rpm": 3}, at={"seconds": 60})
        if form == "text":
            client.register_schema(motor, RegistrySchema(MOTOR, "PROTOBUF"))
            schema = RegistrySchema(PROTO, "PROTOBUF", [SchemaReference("plant/motor.proto", motor, 1)])
            schema_id = client.register_schema(f"{one.topic}-value", schema)
            data = b"\0" + schema_id.to_bytes(4, "big") + b"\x02\x02" + reading.SerializeToString()
        else:
            options = {"use.deprecated.format": False, "reference.subject.name.strategy": lambda *_: motor}
            data = ProtobufSerializer(type(reading), client, options)(reading, one.value())
        fields = one.decode(data)
        assert fields == {"flow": 2.5, "motor": {"rpm": 3}, "at": "1970-01-01T00:01:00Z"}
        scored = one.scored(fields)
        schemas = RegistryClient({"url": registry_url})
        made = proto_class(schemas.schema(int.from_bytes(scored[1:5], "big")).compiled, "plant.Reading")
        for kind in (made, type(reading)):  # the second is of a reader that knows the input alone
            if form == "text":  # which the client in Python cannot take from a registry that does not convert it
                assert scored[5:7] == b"\x02\x02"
                back = kind.FromString(scored[7:])
            else:
                read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
                back = read(scored, one.value(one.settings.out))
            assert (back.flow, back.motor.rpm) == (2.5, 3)
            assert kind is not made or back.fomo.score == RESULT["score"]


@pytest.mark.parametrize("strategy", ["topic", "record", "topic-record"])
def test_the_subject_of_outputs(strategy: str, registry_url: str, client: SchemaRegistryClient) -> None:
    name = unique("Reading").replace("-", "")
    with known(registry_url, subject_strategy=strategy, alerts=unique("alerts")) as one:
        one.decode(AvroSerializer(client, json.dumps({**READING, "name": name}))({"flow": 1.0}, one.value()))
        out, alerts = one.settings.out, one.settings.alerts
        expected = {
            "topic": [f"{out}-value", f"{alerts}-value"],
            "record": [f"plant.{name}"],
            "topic-record": [f"{out}-plant.{name}", f"{alerts}-plant.{name}"],
        }[strategy]
        assert {f"{one.topic}-value", *expected} <= set(client.get_subjects())
        schema = json.loads(client.get_latest_version(expected[0]).schema.schema_str)
        assert [field["name"] for field in schema["fields"]] == ["flow", "site", "fomo"]
        assert schema["fields"][-1]["type"][1]["namespace"] == "fomo_stream"


# --- evolution


def evolved(*fields: Any) -> str:
    return json.dumps({**READING, "fields": [*READING["fields"], *fields]})


def test_an_output_that_its_subject_refuses_says_which_and_why(registry_url: str, client: SchemaRegistryClient) -> None:
    with known(registry_url) as one:
        subject = f"{one.settings.out}-value"
        client.register_schema(subject, RegistrySchema(evolved({"name": "rpm", "type": "int"}), "AVRO"))
        client.set_compatibility(subject, "FORWARD")
        data = AvroSerializer(client, json.dumps(READING))({"flow": 1.0, "site": None}, one.value())
        with pytest.raises(RecordError, match=f"subject {subject} does not take the schema of outputs: .*") as caught:
            one.decode(data)
        assert caught.value.reason == "output_schema_refused"


# --- a registry that does not answer


def reading(client: SchemaRegistryClient, one: Known, **fields: Any) -> bytes:
    text = json.dumps({**READING, "doc": unique("a schema of its own")})
    return AvroSerializer(client, text)({"flow": 1.0, "site": None, **fields}, one.value())  # type: ignore[no-any-return]  # the client has no types


@pytest.mark.parametrize("trouble", ["forbidden", "garbage", "may only read"])
def test_records_wait_while_the_registry_fails(
    trouble: str, proxy: Proxy, registry_url: str, client: SchemaRegistryClient
) -> None:
    with known(proxy.url, registry={"url": proxy.url, "timeout": "2"}) as one:
        before, after = reading(client, one), reading(client, one)
        assert one.decode(before)["flow"] == 1.0
        if trouble == "garbage":
            proxy.garbage()
        else:
            proxy.deny("GET .*" if trouble == "forbidden" else "POST .*/versions.*")
        with pytest.raises(SchemaPendingError):
            one.codec.decode(after)
        wait_for(lambda: one.schemas.trouble, "the error of the registry")
        with pytest.raises(SchemaPendingError):
            one.codec.decode(after)
        assert one.codec.decode(before)["flow"] == 1.0  # which is known
        says = {"forbidden": "does not permit", "garbage": "", "may only read": "permit to register schemas"}[trouble]
        assert says in one.schemas.trouble
        if trouble == "may only read":  # others may register schemas
            with known(registry_url, out=one.settings.out) as other:
                other.decode(after)
        else:
            proxy.heal()
        assert one.decode(after)["flow"] == 1.0
        wait_for(lambda: not one.schemas.trouble, "the end of the trouble")


def test_passwords_and_tokens_reach_the_registry(proxy: Proxy, client: SchemaRegistryClient) -> None:
    proxy.require_basic("user", "secret")
    with known(proxy.url, registry={"url": proxy.url, "basic.auth.user.info": "user:secret"}) as one:
        assert one.decode(reading(client, one))["flow"] == 1.0
        one.schemas.check()
    wrong = {"url": proxy.url, "basic.auth.user.info": "user:wrong"}
    missing = pytest.raises(RegistryError, match=r"does not permit it.*401.*basic.auth.user.info")
    with known(proxy.url, registry=wrong) as one, missing:
        one.schemas.check()
    proxy.heal()
    proxy.require_bearer("a-token")
    token = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "a-token"}
    more = {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1"}
    with known(proxy.url, registry={"url": proxy.url, **token, **more}) as one:
        assert one.decode(reading(client, one))["flow"] == 1.0
