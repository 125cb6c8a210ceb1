"""Kafka clients and their configuration, and their errors as a user can understand them. Makes every client."""

from __future__ import annotations

import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata

from fomo_stream.errors import BrokerError, ConfigError, NotPermittedError
from fomo_stream.logs import ClientLog, quiet_clients
from fomo_stream.settings.flags import COOPERATIVE, SESSION_TIMEOUT_MS, BrokerFlags
from fomo_stream.settings.service_settings import ServiceSettings

NOT_PERMITTED = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)
NO_LEADER = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
LEADER_RETRY_S = 0.1  # between two requests about a partition whose leader is not known yet
RETRY_REMEDY = "check that all brokers run, and try again"
MAX_MESSAGE_BYTES = 64 << 20
START_TIMEOUT_S = 6.0  # a start that cannot succeed has to end within 15 s, with imports
REFRESH_MS = 10_000  # a client sees new partitions within this time
LEAVE_POLL_S = 0.05
HEARTBEAT_MS = 300  # members learn of a rebalance by the answer to a heartbeat, and some partitions wait for that
# Files with the certificates of authorities. To fetch a token over HTTPS, the client itself looks only for the second.
AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
MIN_FETCH_MS, MAX_FETCH_MS = 10, 500  # between requests; the second is the client's own default
# The client may return a value and also set an exception. A method call in a Python loop does not check for that; this
# call always does.
HEADERS = methodcaller("headers")


def client_config(settings: BrokerFlags) -> dict[str, Any]:
    """Return the settings that every client needs to reach the broker."""
    usual = {
        "bootstrap.servers": settings.bootstrap,
        "client.id": "fomo-stream",
        "topic.metadata.refresh.interval.ms": REFRESH_MS,
        "receive.message.max.bytes": 512 << 20,  # a zstd batch that is larger, decompressed, is never read
    }
    endpoint = settings.kafka.get("sasl.oauthbearer.token.endpoint.url", "")
    if endpoint.startswith("https:") and "https.ca.pem" not in settings.kafka:
        found = [file for file in (ssl.get_default_verify_paths().cafile, *AUTHORITIES) if file and Path(file).exists()]
        if found:
            usual["https.ca.location"] = found[0]
    return usual | settings.kafka


def make_consumer(settings: ServiceSettings, **callbacks: Any) -> Consumer:
    """Make the group's consumer. It rebalances cooperatively, and does not store or commit offsets by itself.

    The broker answers a fetch as soon as it has a record. But a partition that is read again (it was restored, paused,
    or enough of it was in memory) is only in the next fetch. So the requested latency bounds both waits.
    """
    wait_ms = round(min(max(settings.max_latency_ms, MIN_FETCH_MS), MAX_FETCH_MS))
    usual = {
        "fetch.wait.max.ms": wait_ms,
        "fetch.queue.backoff.ms": wait_ms,
        # Records wait in the broker, not in this process: these limits bound its memory when it lags behind.
        "queued.min.messages": 5_000,
        "queued.max.messages.kbytes": 32 << 10,
        "fetch.max.bytes": 32 << 20,
    }
    if settings.kafka.get("group.protocol") != "consumer":
        usual["heartbeat.interval.ms"] = max(1, min(HEARTBEAT_MS, session_timeout_ms(settings) // 3))
    own = {} if settings.instance_id is None else {"group.instance.id": settings.instance_id}
    # `restore` always sets the start offset; if the broker does not retain it any more, --on-lost-offset decides.
    return _member(settings, usual, {"auto.offset.reset": "error", **own, **callbacks})


def make_follower(settings: BrokerFlags) -> Consumer:
    """Make a consumer of the group for a topic with few records, such as alerts. It needs little memory."""
    usual = {
        "queued.min.messages": 1000,
        "queued.max.messages.kbytes": 4 << 10,
        "fetch.max.bytes": 4 << 20,
        "fetch.message.max.bytes": 1 << 20,
    }
    return _member(settings, usual, {"auto.offset.reset": "earliest"})  # the caller always sets the start


def _member(settings: BrokerFlags, usual: Mapping[str, Any], fixed: Mapping[str, Any]) -> Consumer:
    """Make a consumer of the group. It rebalances cooperatively, and does not store or commit offsets by itself."""
    config: dict[str, Any] = {**usual, **client_config(settings), **fixed, "group.id": settings.group}
    config |= {"isolation.level": "read_committed", "enable.auto.commit": False, "enable.auto.offset.store": False}
    if config.get("group.protocol") != "consumer":  # with it (KIP-848) the broker assigns, and refuses a strategy
        config["partition.assignment.strategy"] = COOPERATIVE
    return _create(Consumer, config, "consumer")


def depart(consumer: Any) -> None:
    """Close a consumer of a group, so that others get its partitions at once.

    `close` alone keeps the place of an instance with an id. It also keeps that of one without partitions (librdkafka
    2.16): the next rebalance would wait for it until its session times out.
    """
    with suppress(KafkaException):  # it was fenced, so it has no place any more
        consumer.unsubscribe()
        while consumer.assignment():
            consumer.poll(LEAVE_POLL_S)
    consumer.close()


def make_producer(settings: BrokerFlags, transactional_id: str | None = None, **callbacks: Any) -> Producer:
    """Make an idempotent producer: its retries neither repeat nor reorder records.

    transactional_id: of its transactions; None: no transactions. The broker aborts a transaction that is left open
    after transaction.timeout.ms; by default that is when the group gives the partitions to others.
    """
    config = {
        # Readers of transactions wait for the commit, which does not wait for this; other readers get outputs at once.
        "linger.ms": 1 if transactional_id is None else 5,
        # A new transaction waits until the broker has recorded the end of the last one.
        "retry.backoff.ms": 10,
        "partitioner": "murmur2_random",  # the same partition for a key as with a Java client
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "queue.buffering.max.kbytes": 1 << 20,
        "message.timeout.ms": 0,  # without transactions: no limit
        **client_config(settings),
        "enable.idempotence": True,
        **callbacks,
    }
    if transactional_id is not None:
        config.setdefault("transaction.timeout.ms", session_timeout_ms(settings))
        config |= {"transactional.id": transactional_id, "message.timeout.ms": config["transaction.timeout.ms"]}
    return _create(Producer, config, "producer")


def wait_until_connected(producer: Any, seconds: float) -> None:
    """Wait for the connection of a new producer. Without it, the producer asks for its id half a second later.

    Raises KafkaException.
    """
    producer.list_topics(timeout=seconds)


def session_timeout_ms(settings: BrokerFlags) -> int:
    """Return the milliseconds that the group waits for an instance that does not send heartbeats."""
    text = settings.kafka.get("session.timeout.ms", str(SESSION_TIMEOUT_MS))
    if not text.isdigit():
        raise ConfigError(f"--kafka.session.timeout.ms must be a number of milliseconds, not {text!r}")
    return int(text)


def make_reader(settings: BrokerFlags, isolation: str = "read_committed", on_lost: str = "earliest") -> Consumer:
    """Make a consumer outside of the group, to read partitions to their end. It does not commit by itself.

    isolation: read_committed, or read_uncommitted for records that are written without transactions, so that reading
    does not wait for transactions of others. on_lost: where to continue if the next record is no longer retained, or
    `error`.
    """
    config = {
        **client_config(settings),
        "group.id": settings.group,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,  # report the end at once instead of waiting for more
        "fetch.error.backoff.ms": 50,  # a new topic has no leader yet; the client's own default is half a second
        "queued.max.messages.kbytes": 64 << 10,
        "auto.offset.reset": on_lost,
    }
    config.pop("group.protocol", None)
    return _create(Consumer, config, "reader")


def make_admin(settings: BrokerFlags, **callbacks: Any) -> AdminClient:
    config = {**client_config(settings), **callbacks}
    config.pop("group.protocol", None)
    return _create(AdminClient, config, "admin")


def connect(settings: BrokerFlags) -> tuple[AdminClient, ClusterMetadata]:
    """Return an admin client, and the topics. Raises BrokerError if no broker answers within START_TIMEOUT_S."""
    last_error: deque[str] = deque(maxlen=1)
    admin = make_admin(settings, error_cb=lambda error: last_error.append(error.str()))
    with quiet_clients():
        try:
            return admin, admin.list_topics(timeout=START_TIMEOUT_S)
        except KafkaException as error:
            admin.poll(0)  # reports the client's own error, which says more
            reason = last_error[0] if last_error else error.args[0].str()
            raise BrokerError(
                f"no broker answers at {settings.bootstrap} ({reason})",
                "check --bootstrap, that the broker runs, and --kafka.security.protocol and the like",
            ) from None


def range_now(client: Any, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """Return the first retained offset and the end of a partition; read_committed: before the first open transaction.

    For a moment, a partition that was just created, or whose leader moves, has no leader that answers. So the request
    is repeated until `timeout_s` have passed. Raises KafkaException.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            low, high = client.get_watermark_offsets(partition, timeout=timeout_s)
            return int(low), int(high)
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER or time.monotonic() >= deadline:
                raise
            time.sleep(LEADER_RETRY_S)


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """Return the headers of a message; empty if a name is not UTF-8, which the client cannot read."""
    try:
        return HEADERS(message) or []
    except (SystemError, UnicodeDecodeError):
        return []


def _create(kind: type[Any], config: Mapping[str, Any], name: str) -> Any:
    report = config.get("error_cb")
    callbacks = {"error_cb": partial(_without_secrets, report)} if callable(report) else {}
    try:
        return kind({**config, **callbacks}, logger=ClientLog(name))
    except KafkaException as error:
        raise ConfigError(f"--kafka: {error.args[0].str()}") from None
    except ImportError as error:  # a setting for which the client needs more; the message says what to install
        raise ConfigError(f"--kafka: {' '.join(str(error).split())}") from None
    except (TypeError, AttributeError, ValueError) as error:  # a setting for Python code, such as error_cb
        raise ConfigError(f"--kafka: {error}; it cannot be set here") from None


def _without_secrets(report: Callable[[KafkaError], None], error: KafkaError) -> None:
    """Report a client's error without the value of this setting; the client itself hides the other secrets."""
    text = re.sub(r"(?<=sasl\.oauthbearer\.config).*", " (not shown)", error.str(), flags=re.DOTALL)
    report(error if text == error.str() else KafkaError(error.code(), text, fatal=error.fatal()))


def broker_error(
    error: KafkaException | KafkaError, what: str, remedy: str = RETRY_REMEDY, permit: str = ""
) -> BrokerError:
    """Return the error for a request that failed.

    what: the failed request. remedy: if permissions are not the cause; permit: the remedy if they are.
    """
    reason = error.args[0] if isinstance(error, KafkaException) else error
    if reason.code() in NOT_PERMITTED:
        return NotPermittedError(f"not permitted: {what} ({reason.str()})", permit or remedy)
    return BrokerError(f"{what} ({reason.str()})", remedy)


@contextmanager
def broker_errors(what: str, remedy: str = RETRY_REMEDY, permit: str = "") -> Iterator[None]:
    """Turn a KafkaException into a `broker_error`."""
    try:
        yield
    except KafkaException as error:
        raise broker_error(error, what, remedy, permit) from None
