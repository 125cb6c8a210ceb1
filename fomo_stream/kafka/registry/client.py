"""The schema registry: fetches schemas with all that they refer to, registers those of outputs, and explains errors."""

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
ANSWER_S = 15.0  # for a whole answer; --registry.timeout, if that is longer
MOST_BYTES = 8 << 20  # of an answer, and of the texts of a schema and all that it refers to
MOST_REFERENCES, WHOLE_S = 100, 60.0  # schemas that one refers to, and the time for all of them
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
# An address with this scheme is a registry in memory, which clients of one process share.
_in_memory: dict[str, Any] = {}


class Place(NamedTuple):
    subject: str
    version: int


class Newest(NamedTuple):
    version: int
    schema_id: int
    kind: Kind


class RegistryClient:
    """Asks the registry of these settings (`--registry`). Raises ConfigError if they are no settings of its client.

    client: the library's own.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.url = re.sub(r"//[^/@,]*@", "//", settings["url"])  # without a password
        quiet = {"timeout": TIMEOUT_S, "max.retries": 0}  # who asks tries again
        config: dict[str, Any] = {**quiet, **settings}
        for library in ("httpx", "httpx2", "httpcore", "httpcore2"):
            logging.getLogger(library).setLevel(logging.WARNING)  # they log every request, with its whole address
        try:
            config |= {name: float(config[name]) for name in _NUMBERS if name in config}
            self._answer, self._answer_s = threading.local(), max(ANSWER_S, config["timeout"])
            if self.url.startswith("mock://"):
                self.client = _in_memory.setdefault(self.url, SchemaRegistryClient.new_client(config))
            else:
                self.client = SchemaRegistryClient.new_client(config)
                session = self.client._rest_client.session
                session.headers["Accept-Encoding"] = "identity"  # as compressed bytes say nothing of the size
                session.event_hooks = {"request": [self._bound], "response": [_refuse_compressed]}
        except (ValueError, TypeError, OSError) as error:  # of values it says nothing
            raise ConfigError(f"--registry: {self._without_secrets(error, settings)}") from None

    def schema(self, schema_id: SchemaId) -> SchemaText:
        """The schema with this id or GUID, and all that it refers to.

        Raises RecordError if there is none, or it cannot be used; RegistryError if the registry does not answer.
        """
        with self._asking(f"schema {schema_id}"):
            ask = self.client.get_schema_by_guid if isinstance(schema_id, str) else self.client.get_schema
            found = ask(schema_id)
            return self._complete(found, f"schema-{schema_id}.proto", {}, time.monotonic() + WHOLE_S)

    def _complete(self, found: Any, name: str, known: dict[Place, SchemaText | None], until: float) -> SchemaText:
        """With all that it refers to. known: what was fetched; None: not completed yet. until: monotonic seconds."""
        references = []
        for one in found.references or ():
            place = Place(one.subject, one.version)
            if place not in known:
                known[place] = None
                size = sum(len(schema.text) for schema in known.values() if schema is not None)
                if len(known) > MOST_REFERENCES or size > MOST_BYTES or time.monotonic() > until:
                    most = f"{MOST_REFERENCES} schemas, {MOST_BYTES >> 20} MiB or {WHOLE_S:g} s to fetch them"
                    raise RecordError(UNSUPPORTED, f"it refers to more than {most}")
                registered = self.client.get_version(one.subject, one.version)
                known[place] = self._complete(registered.schema, one.name, known, until)
            if (schema := known[place]) is None:
                raise RecordError(UNSUPPORTED, f"it refers to itself by {one.subject}, version {one.version}")
            references.append(ReferencedSchema(one.name, one.subject, one.version, schema))
        kind = Kind(found.schema_type or "AVRO")
        compiled = b""
        if kind is Kind.PROTOBUF:
            from fomo_stream.kafka.registry.protoc import descriptors  # loads the libraries of Protobuf

            compiled = descriptors(found.schema_str, name, [(one.name, one.schema.compiled) for one in references])
        return SchemaText(kind, found.schema_str, tuple(references), compiled)

    def register(self, subject: str, schema: SchemaText) -> int:
        """The id of this schema under the subject, which is registered if it is not yet.

        Raises RecordError if the registry refuses it; RegistryError if it does not answer, or this user may not do it.
        """
        if (known := self.look_up(subject, schema)) is not None:
            return known
        with self._asking_to_register(subject):
            try:
                return int(self.client.register_schema(subject, _request(schema)))
            except SchemaRegistryError as error:
                if error.http_status_code not in (409, 422):
                    raise
                text = " ".join(str(error.error_message).split())[:1000]
                raise RecordError(REFUSED, f"subject {subject} does not take the schema of outputs: {text}") from None

    def look_up(self, subject: str, schema: SchemaText) -> int | None:
        """The id of this schema under the subject; None if it is not registered there. Raises RegistryError.

        A user may do it who may not register.
        """
        with self._asking_to_register(subject):
            found = _or_none(self.client.lookup_schema, subject, _request(schema))
            return None if found is None else int(found.schema_id)

    def _asking_to_register(self, subject: str) -> AbstractContextManager[None]:
        return self._asking(f"subject {subject}", f"permit to register schemas under subject {subject}")

    def places(self, schema_id: SchemaId) -> list[Place]:
        """The subjects and versions of a schema; none where the registry does not say so."""
        try:
            return [Place(one.subject, one.version) for one in self.client.get_schema_versions(schema_id)]
        except Exception:  # not all registries answer this, and nothing depends on it
            return []

    def latest(self, subject: str) -> Newest | None:
        """The newest schema of a subject; None if there is none. Raises RegistryError."""
        with self._asking(f"subject {subject}"):
            if (found := _or_none(self.client.get_latest_version, subject)) is None:
                return None
            return Newest(int(found.version), int(found.schema_id), Kind(found.schema.schema_type or "AVRO"))

    def takes(self, subject: str, schema: SchemaText) -> bool | None:
        """Whether this schema is compatible with those of a subject; None where the registry does not say so."""
        try:
            return bool(self.client.test_compatibility(subject, _request(schema)))
        except Exception:  # not all registries answer this, and nothing depends on it
            return None

    def _bound(self, request: Any) -> None:
        """Bound the answer to a request: a server that sends a byte now and then must not hold the thread."""
        self._answer.until, self._answer.bytes = time.monotonic() + self._answer_s, MOST_BYTES
        request.extensions["trace"] = self._see_connection

    def _see_connection(self, _event: str, about: Mapping[str, Any]) -> None:
        """The HTTP library tells what it does, such as to open a connection, or to begin TLS on it."""
        stream: Any = about.get("return_value")
        if hasattr(stream, "start_tls"):
            stream.read = partial(self._read, stream.read)

    def _read(self, read: Callable[..., bytes], most: int, timeout: float | None = None) -> bytes:
        left = self._answer.until - time.monotonic()
        if left <= 0:
            raise RegistryError(f"the registry at {self.url} has not answered in {self._answer_s:g} s", _CHECK)
        data = read(most, left if timeout is None else min(timeout, left))
        self._answer.bytes -= len(data)
        if self._answer.bytes < 0:
            raise RecordError(UNSUPPORTED, f"the registry's answer has more than {MOST_BYTES >> 20} MiB")
        return data

    @contextmanager
    def _asking(self, what: str, permit: str = "") -> Iterator[None]:
        """Raise an error of this program in place of those of the client. what: that is asked for."""
        try:
            yield
        except (RecordError, RegistryError):
            raise
        except SchemaRegistryError as error:
            if _is_absent(error):
                raise RecordError(UNKNOWN_SCHEMA, f"the registry at {self.url} has no {what}") from None
            said = f"HTTP {error.http_status_code}: {' '.join(str(error.error_message).split())[:200]}"
            if error.http_status_code in NOT_PERMITTED:
                remedy = permit or "check --registry.basic.auth.user.info or the token, and permit to read schemas"
                refused = f"the registry at {self.url} does not permit it: {what} ({said})"
                raise RegistryError(refused, remedy, error.http_status_code) from None
            raise RegistryError(f"the registry at {self.url} fails to answer about {what} ({said})", _CHECK) from None
        except ValueError as error:  # of a kind or an answer that the client does not know
            unusable = f"the registry at {self.url} gives no usable answer about {what} ({error})"
            raise RegistryError(unusable, _CHECK) from None
        except Exception as error:  # of the HTTP library, which the client does not hide
            text = re.sub(r"//[^/@]*@", "//", str(error)) or type(error).__name__
            raise RegistryError(f"no registry answers at {self.url} ({text})", _CHECK) from None

    @staticmethod
    def _without_secrets(error: Exception, settings: Mapping[str, str]) -> str:
        text = str(error)
        for name, value in settings.items():
            text = text.replace(value, "...") if name != "url" and value else text
        return re.sub(r"//[^/@]*@", "//", text)


def _request(schema: SchemaText) -> RegistrySchema:
    references = [SchemaReference(one.name, one.subject, one.version) for one in schema.references]
    return RegistrySchema(schema.text, str(schema.kind), references)


def _or_none(ask: Callable[..., Any], *what: Any) -> Any:
    """An answer; None if the registry says that it has no such thing."""
    try:
        return ask(*what)
    except SchemaRegistryError as error:
        if _is_absent(error):
            return None
        raise


def _is_absent(error: SchemaRegistryError) -> bool:
    """Whether the registry says that it has no such thing. A wrong address has the same status, but no such code."""
    return error.http_status_code in (404, 422) and (error.error_code or 0) >= 40400


def _refuse_compressed(response: Any) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("it is compressed, which was not asked for")


_CHECK = "check --registry, that it runs, and its other settings (--registry.KEY=VALUE)"
