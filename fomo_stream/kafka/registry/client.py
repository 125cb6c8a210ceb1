"""The client of the schema registry: fetches schemas with their references, and registers those of outputs."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient, SchemaRegistryError

from fomo_stream.errors import ConfigError, RecordError, RegistryError
from fomo_stream.records.wire_format import SchemaId
from fomo_stream.records.writer_schema import UNSUPPORTED, Kind, ReferencedSchema, SchemaText

UNKNOWN_SCHEMA = "unknown_schema"  # reasons of dead letters
REFUSED = "output_schema_refused"
TIMEOUT_S = 5  # without a byte
MAX_ANSWER_S = 15.0  # for a whole answer, or --registry.timeout if that is longer
MAX_ANSWER_BYTES = 8 << 20  # of an answer, and of the texts of a schema with its references
MAX_REFERENCES, MAX_FETCH_S = 100, 60.0  # references of a schema, and the time to fetch them
NOT_PERMITTED = (401, 403)
_NUMBERS = (
    "timeout",
    "cache.capacity",
    "cache.latest.ttl.sec",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
)
T = TypeVar("T")
# By address with the scheme mock: a registry in memory, which the clients of one process share.
_in_memory: dict[str, Any] = {}


class SubjectVersion(NamedTuple):
    subject: str
    version: int


class LatestSchema(NamedTuple):
    version: int
    schema_id: int
    kind: Kind


class RegistryClient:
    """Requests to the registry of these settings (`--registry`). Raises ConfigError if its client refuses them.

    client: that of the library.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.url = re.sub(r"//[^/@,]*@", "//", settings["url"])  # without a password
        quiet = {"timeout": TIMEOUT_S, "max.retries": 0}  # the caller tries again
        config: dict[str, Any] = {**quiet, **settings}
        for library in ("httpx", "httpx2", "httpcore", "httpcore2"):
            logging.getLogger(library).setLevel(logging.WARNING)  # they log each address, also with a password
        try:
            config |= {name: float(config[name]) for name in _NUMBERS if name in config}
            self._answer, self._answer_s = threading.local(), max(MAX_ANSWER_S, config["timeout"])
            if self.url.startswith("mock://"):
                self.client = _in_memory.setdefault(self.url, SchemaRegistryClient.new_client(config))
            else:
                self.client = SchemaRegistryClient.new_client(config)
                session = self.client._rest_client.session
                session.headers["Accept-Encoding"] = "identity"  # compressed bytes would not bound the answer's size
                session.event_hooks = {"request": [self._bound], "response": [_refuse_compressed]}
        except (ValueError, TypeError, OSError) as error:  # the message has no values
            raise ConfigError(f"--registry: {self._without_secrets(error, settings)}") from None

    def schema(self, schema_id: SchemaId) -> SchemaText:
        """Fetch the schema with this id or GUID, with its references.

        Raises RecordError if it does not exist, or cannot be used; RegistryError if the registry does not answer.
        """
        with self._asking(f"schema {schema_id}"):
            request = self.client.get_schema_by_guid if isinstance(schema_id, str) else self.client.get_schema
            answer = request(schema_id)
            return self._complete(answer, f"schema-{schema_id}.proto", {}, time.monotonic() + MAX_FETCH_S)

    def _complete(
        self, answer: Any, name: str, fetched: dict[SubjectVersion, SchemaText | None], until: float
    ) -> SchemaText:
        """Add the references. fetched: by version; None: not completed yet. until: seconds, monotonic."""
        references = []
        for reference in answer.references or ():
            place = SubjectVersion(reference.subject, reference.version)
            if place not in fetched:
                fetched[place] = None
                size = sum(len(schema.text) for schema in fetched.values() if schema is not None)
                if len(fetched) > MAX_REFERENCES or size > MAX_ANSWER_BYTES or time.monotonic() > until:
                    size_limit, time_limit = f"{MAX_ANSWER_BYTES >> 20} MiB", f"{MAX_FETCH_S:g} s to fetch them"
                    limits = f"{MAX_REFERENCES} schemas, {size_limit} or {time_limit}"
                    raise RecordError(UNSUPPORTED, f"it refers to more than {limits}")
                registered = self.client.get_version(reference.subject, reference.version)
                fetched[place] = self._complete(registered.schema, reference.name, fetched, until)
            if (schema := fetched[place]) is None:
                raise RecordError(UNSUPPORTED, f"it refers to itself by {place.subject}, version {place.version}")
            references.append(ReferencedSchema(reference.name, reference.subject, reference.version, schema))
        kind = Kind(answer.schema_type or "AVRO")
        compiled = b""
        if kind is Kind.PROTOBUF:
            from fomo_stream.kafka.registry.protoc import descriptors  # loads the libraries of Protobuf

            compiled = descriptors(answer.schema_str, name, [(used.name, used.schema.compiled) for used in references])
        return SchemaText(kind, answer.schema_str, tuple(references), compiled)

    def register(self, subject: str, schema: SchemaText) -> int:
        """Return the id of this schema under the subject. Register it if it is not registered yet.

        Raises RecordError if the registry refuses it; RegistryError if it does not answer or permit it.
        """
        if (schema_id := self.look_up(subject, schema)) is not None:
            return schema_id
        with self._asking_to_register(subject):
            try:
                return int(self.client.register_schema(subject, _request(schema)))
            except SchemaRegistryError as error:
                if error.http_status_code not in (409, 422):
                    raise
                text = " ".join(str(error.error_message).split())[:1000]
                raise RecordError(REFUSED, f"subject {subject} does not take the schema of outputs: {text}") from None

    def look_up(self, subject: str, schema: SchemaText) -> int | None:
        """Return the id of this schema under the subject; None if it is not registered there. Raises RegistryError.

        This needs no permission to register.
        """
        with self._asking_to_register(subject):
            answer = _answer_or_none(self.client.lookup_schema, subject, _request(schema))
            return None if answer is None else int(answer.schema_id)

    def _asking_to_register(self, subject: str) -> AbstractContextManager[None]:
        return self._asking(f"subject {subject}", f"permit to register schemas under subject {subject}")

    def places(self, schema_id: SchemaId) -> list[SubjectVersion]:
        """Return the subjects and versions of a schema; empty if the registry does not tell them."""
        try:
            entries = self.client.get_schema_versions(schema_id)
            return [SubjectVersion(entry.subject, entry.version) for entry in entries]
        except Exception:  # not all registries answer this, and nothing depends on it
            return []

    def latest(self, subject: str) -> LatestSchema | None:
        """Return the newest schema of a subject; None if it has no schema. Raises RegistryError."""
        with self._asking(f"subject {subject}"):
            if (answer := _answer_or_none(self.client.get_latest_version, subject)) is None:
                return None
            return LatestSchema(int(answer.version), int(answer.schema_id), Kind(answer.schema.schema_type or "AVRO"))

    def takes(self, subject: str, schema: SchemaText) -> bool | None:
        """Return whether this schema is compatible with those of a subject; None if the registry does not tell it."""
        try:
            return bool(self.client.test_compatibility(subject, _request(schema)))
        except Exception:  # not all registries answer this, and nothing depends on it
            return None

    def _bound(self, request: Any) -> None:
        """Bound the answer to a request: a server that sends a byte now and then must not hold the thread."""
        self._answer.until, self._answer.bytes = time.monotonic() + self._answer_s, MAX_ANSWER_BYTES
        request.extensions["trace"] = self._see_connection

    def _see_connection(self, _event: str, about: Mapping[str, Any]) -> None:
        """Bound the reads of each new connection: the HTTP library reports its steps, such as to begin TLS."""
        stream: Any = about.get("return_value")
        if hasattr(stream, "start_tls"):
            stream.read = partial(self._read, stream.read)

    def _read(self, read: Callable[..., bytes], max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._answer.until - time.monotonic()
        if left <= 0:
            raise RegistryError(f"the registry at {self.url} has not answered in {self._answer_s:g} s", _CHECK)
        data = read(max_bytes, left if timeout is None else min(timeout, left))
        self._answer.bytes -= len(data)
        if self._answer.bytes < 0:
            raise RecordError(UNSUPPORTED, f"the registry's answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
        return data

    @contextmanager
    def _asking(self, what: str, permit: str = "") -> Iterator[None]:
        """Turn the errors of the client into those of this program. what: the requested thing."""
        try:
            yield
        except (RecordError, RegistryError):
            raise
        except SchemaRegistryError as error:
            if _is_absent(error):
                raise RecordError(UNKNOWN_SCHEMA, f"the registry at {self.url} has no {what}") from None
            status = f"HTTP {error.http_status_code}: {' '.join(str(error.error_message).split())[:200]}"
            if error.http_status_code in NOT_PERMITTED:
                remedy = permit or "check --registry.basic.auth.user.info or the token, and permit to read schemas"
                refused = f"the registry at {self.url} does not permit it: {what} ({status})"
                raise RegistryError(refused, remedy, error.http_status_code) from None
            raise RegistryError(f"the registry at {self.url} fails to answer about {what} ({status})", _CHECK) from None
        except ValueError as error:  # a kind of schema or an answer that the client does not know
            unusable = f"the registry at {self.url} gives no usable answer about {what} ({error})"
            raise RegistryError(unusable, _CHECK) from None
        except Exception as error:  # an error of the HTTP library, which the client does not wrap
            text = re.sub(r"//[^/@]*@", "//", str(error)) or type(error).__name__
            raise RegistryError(f"no registry answers at {self.url} ({text})", _CHECK) from None

    @staticmethod
    def _without_secrets(error: Exception, settings: Mapping[str, str]) -> str:
        text = str(error)
        for name, value in settings.items():
            text = text.replace(value, "...") if name != "url" and value else text
        return re.sub(r"//[^/@]*@", "//", text)


def _request(schema: SchemaText) -> RegistrySchema:
    references = [SchemaReference(used.name, used.subject, used.version) for used in schema.references]
    return RegistrySchema(schema.text, str(schema.kind), references)


def _answer_or_none(ask: Callable[..., Any], *what: Any) -> Any:
    """Return the answer; None if the registry does not have the thing."""
    try:
        return ask(*what)
    except SchemaRegistryError as error:
        if _is_absent(error):
            return None
        raise


def _is_absent(error: SchemaRegistryError) -> bool:
    """Return whether the registry does not have the thing. A wrong address has the same status, but no such code."""
    return error.http_status_code in (404, 422) and (error.error_code or 0) >= 40400


def _refuse_compressed(response: Any) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("it is compressed, which was not asked for")


_CHECK = "check --registry, that it runs, and its other settings (--registry.KEY=VALUE)"
