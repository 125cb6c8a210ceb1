"""The schemas of writers, by the id in a record: each is fetched once, compiled once, and cached.

The main loop of the service must not wait for an answer, as it serves other partitions, too. So threads fetch schemas
while records wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from typing import Any, NamedTuple

from fomo_stream.errors import RecordError, RegistryError, SchemaPendingError
from fomo_stream.kafka.registry.client import RegistryClient, SubjectVersion
from fomo_stream.logs import Throttle, kv, make_thread, raised_at
from fomo_stream.records import avro, json_schema, protobuf
from fomo_stream.records.wire_format import VALUE_HEADER, Headers, SchemaId, schema_id_of
from fomo_stream.records.writer_schema import UNSUPPORTED, Kind, RegisteredWriter, SchemaText, Writer
from fomo_stream.settings.topic_flags import InputFlags, OutputFlags

log = logging.getLogger(__name__)

UNAVAILABLE = "registry_unavailable"  # reason of dead letters
FORBIDDEN = 403
RETRY_S = 1.0
FAILURE_S = 60.0  # a schema that is unknown or cannot be used is not requested again before
MAX_FAILURES = 10_000  # cached failures; messages that are not records can name any id
MAX_REQUESTS = 10_000  # schemas that the threads try to fetch
MAX_SCHEMAS = 1000  # cached schemas, and writers; others are fetched again when they are needed
THREADS = 8  # so one slow schema does not delay the others


class SchemaRequest(NamedTuple):
    """A request for a schema and its compiled writer.

    header: name of the header with the id, which differs for keys and values. indexes: of a message in a schema of
    Protobuf; empty until the schema is known to be one.
    """

    schema_id: SchemaId
    header: str
    indexes: tuple[int, ...]


class NewWriter(NamedTuple):
    """A writer of values that was not known before, and the subjects where its schema is registered."""

    schema_id: SchemaId
    writer: Writer
    places: list[SubjectVersion]


class Schemas:
    """Find the writers of values and keys of `settings.topic`.

    of_service: `find` raises SchemaPendingError while threads fetch the schema, and RecordError
    (registry_unavailable) when that takes longer than --schema-wait. The schemas of outputs are registered. If False,
    `find` waits for the answer, and raises RegistryError.
    """

    def __init__(self, settings: InputFlags, of_service: bool) -> None:
        self._settings, self._of_service = settings, of_service
        self._client = RegistryClient(settings.registry)
        self.news: deque[NewWriter] = deque()  # for the caller to take
        self.trouble = ""  # why the registry does not answer; empty if it answers
        self._schemas: dict[SchemaId, SchemaText] = {}
        self._writers: dict[SchemaRequest, RegisteredWriter] = {}
        # Reason and message of dead letters, and the time before which the registry is not asked again (monotonic).
        self._failures: dict[SchemaRequest, tuple[str, str, float]] = {}
        self._requested: dict[SchemaRequest, float] = {}  # when the threads began to try (seconds, monotonic)
        self._queue: queue.SimpleQueue[SchemaRequest | None] = queue.SimpleQueue()
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self.threads: list[threading.Thread] = []
        self._throttle = Throttle()

    def check(self) -> None:
        """Raise RegistryError if the registry does not answer, or does not know this user."""
        try:
            self._client.latest(f"{self._settings.topic}-value")
        except RegistryError as error:
            if error.status != FORBIDDEN:  # a user may lack this subject and still read schemas by their ids
                raise

    def stop(self) -> None:
        self._stopped.set()
        for _ in self.threads:
            self._queue.put(None)

    def find(self, data: bytes, headers: Headers, header: str) -> tuple[RegisteredWriter, bytes]:
        """See `schema_codec.FindWriter`."""
        schema_id, body = schema_id_of(data, headers, header)
        while True:
            schema = self._schemas.get(schema_id)
            is_protobuf = schema is not None and schema.kind is Kind.PROTOBUF
            indexes, start = protobuf.message_indexes(body) if is_protobuf else ((), 0)
            question = SchemaRequest(schema_id, header, indexes)
            if (registered := self._writers.get(question)) is not None:
                return registered, body[start:]
            self._await_answer(question)

    def _await_answer(self, question: SchemaRequest) -> None:
        """Return when the answer is known. Raises the errors of `find`."""
        now, none = time.monotonic(), ("", "", 0.0)
        if self._failures.get(question, none)[2] <= now and not self._of_service:
            self._answer(question)
        reason, message, until = self._failures.get(question, none)
        if until > now:
            raise RecordError(reason, message)
        if not self._of_service:
            return
        since = self._requested.setdefault(question, now)
        if since == now:
            self._queue.put(question)
            if len(self.threads) < THREADS:
                self.threads.append(make_thread(self._run, "fomo-schemas"))
                self.threads[-1].start()
        if now - since > self._settings.schema_wait:
            what = f"schema {question.schema_id} could not be fetched for {self._settings.schema_wait:g} s"
            raise RecordError(UNAVAILABLE, f"{what}: {self.trouble or 'the registry has not answered yet'}")
        raise SchemaPendingError(f"schema {question.schema_id} is not known yet")

    def _run(self) -> None:
        while not self._stopped.is_set():
            question = self._queue.get()
            if question is None:
                return
            try:
                self._answer(question)
                if self.trouble:
                    log.info(kv("registry_reachable"))
                self.trouble = ""
                self._requested.pop(question, None)
            except RegistryError as error:
                self.trouble = str(error)
                if self._throttle.allow("registry_trouble") is not None:
                    log.warning(kv("registry_trouble", schema=question.schema_id, reason=error, retry_in_s=RETRY_S))
                if len(self._requested) < MAX_REQUESTS:
                    self._queue.put(question)
                else:
                    self._requested.pop(question, None)
                self._stopped.wait(RETRY_S)

    def _answer(self, question: SchemaRequest) -> None:
        """Ask the registry, and note the answer. Raises RegistryError."""
        try:
            if (schema := self._schemas.get(question.schema_id)) is None:
                schema = self._client.schema(question.schema_id)
                self._keep(self._schemas, question.schema_id, schema, MAX_SCHEMAS)
            if question.indexes or schema.kind is not Kind.PROTOBUF:
                self._keep(self._writers, question, self._registered(question, schema), MAX_SCHEMAS)
            self._failures.pop(question, None)
            return
        except RegistryError:
            raise
        except RecordError as error:
            reason, message = error.reason, f"schema {question.schema_id}: {error}"
        except Exception as error:  # a schema that nobody has foreseen; its records become dead letters
            reason, message = UNSUPPORTED, f"schema {question.schema_id}: {type(error).__name__}"
            line = kv("schema_failed", schema=question.schema_id, reason=message, at=raised_at(error))
            log.warning(line, exc_info=log.isEnabledFor(logging.DEBUG))
        self._keep(self._failures, question, (reason, message, time.monotonic() + FAILURE_S), MAX_FAILURES)

    def _keep(self, cache: dict[Any, Any], name: object, value: object, max_entries: int) -> None:
        """Cache a value under its name; forget the oldest one if there are too many."""
        with self._lock:
            cache[name] = value
            if len(cache) > max_entries:
                del cache[next(iter(cache))]

    def _registered(self, question: SchemaRequest, schema: SchemaText) -> RegisteredWriter:
        settings = self._settings
        writer = compile_writer(schema, question.indexes, settings)
        if question.header != VALUE_HEADER:
            return RegisteredWriter(writer, writer, {})
        output, ids = writer, {}
        if self._of_service and isinstance(settings, OutputFlags) and settings.output_format == "registry":
            output = output_writer(writer, settings)
            subjects = {topic: _subject(settings, topic, output.name) for topic in settings.scored_topics}
            ids = {topic: self._client.register(name, output.scored_schema()) for topic, name in subjects.items()}
        self.news.append(NewWriter(question.schema_id, writer, self._client.places(question.schema_id)))
        return RegisteredWriter(writer, output, ids)


def _subject(settings: OutputFlags, topic: str, name: str) -> str:
    strategy = settings.subject_strategy
    if strategy != "topic" and not name:
        raise RecordError(UNSUPPORTED, f"its type has no name, which --subject-strategy {strategy} needs")
    return {"topic": f"{topic}-value", "record": name, "topic-record": f"{topic}-{name}"}[strategy]


def compile_writer(schema: SchemaText, indexes: tuple[int, ...], settings: InputFlags) -> Writer:
    """Return the writer of this schema. Raises RecordError."""
    if schema.kind is Kind.AVRO:
        return avro.AvroWriter(schema, settings.result_field)
    if schema.kind is Kind.PROTOBUF:
        return protobuf.ProtobufWriter(schema, settings.result_field, indexes)
    return json_schema.JsonSchemaWriter(schema, settings.result_field, settings.max_record_bytes)


def output_writer(writer: Writer, settings: InputFlags) -> Writer:
    """Return the writer of a record's output; with --scores-only, of records that hold only a result."""
    return compile_writer(_EMPTY[writer.kind], (0,), settings) if settings.scores_only else writer


_EMPTY = {Kind.AVRO: avro.EMPTY_SCHEMA, Kind.JSON: json_schema.EMPTY_SCHEMA, Kind.PROTOBUF: protobuf.empty_schema()}
