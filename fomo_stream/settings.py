"""Every setting of fomo-stream, in one place: flags, environment, configuration file and defaults.

A flag wins over the environment, which wins over the configuration file, which wins over the default. The
names are the same everywhere: flag `--batch-size`, variable `FOMO_BATCH_SIZE`, line `batch-size = 64` in the
TOML file given by `--config` or `FOMO_CONFIG`. Settings of the Kafka clients pass through under `kafka`:
`--kafka.security.protocol=SSL`, `FOMO_KAFKA_SECURITY_PROTOCOL=SSL`, or a `[kafka]` table. Their values may be
secrets and are never shown. A name that no setting has is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from uuid import uuid4

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from fomo_stream.errors import REASONS
from fomo_stream.settings_sources import BaseFlags, did_you_mean, flag, flatten

if TYPE_CHECKING:
    from fomo_stream.detector import DetectorConfig

# Settings that the service must own to keep its delivery promise, and what to use instead.
RESERVED_KAFKA_KEYS = {
    "bootstrap.servers": "use --bootstrap",
    "group.id": "use --group",
    "group.instance.id": "use --instance-id",
    "auto.offset.reset": "use --start, and --on-lost-offset",
    "enable.auto.commit": "offsets are committed by the service, together with the outputs",
    "enable.auto.offset.store": "offsets are committed by the service, together with the outputs",
    "enable.idempotence": "the producer is always idempotent",
    "isolation.level": "only committed records are read",
    "transactional.id": "use --instance-id, of which it is made",
}

SESSION_TIMEOUT_MS = 45_000  # librdkafka's default
COOPERATIVE = "cooperative-sticky"  # the assignment strategy that partitions can be added to


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


def _min_context(default: int) -> Any:
    return flag("Detector", default, "rows to see before scores begin", metavar="ROWS", ge=10, le=5000)


def _alert_rate(default: float) -> Any:
    text = "share of ordinary records that may be flagged as outliers"
    return flag("Detector", default, text, metavar="P", ge=1e-5, le=0.5)


class DetectorFlags(BaseFlags):
    """Settings of the model and of the detector, shared by `run`, `demo` and `score`."""

    model: str = flag("Detector", "default", "name of a shipped checkpoint, or a path to one", metavar="NAME")
    device: str = flag("Detector", "auto", "auto, cpu or cuda")
    context_size: int = flag(
        "Detector",
        1000,
        "most recent confirmed inliers that a record is compared with",
        metavar="ROWS",
        ge=10,
        le=5000,
    )
    min_context: int = _min_context(200)
    alert_rate: float = _alert_rate(0.01)
    admit: Literal["auto", "feedback", "all"] = flag(
        "Detector", "auto", "what becomes context: what looks normal, only what feedback calls normal, or everything"
    )
    adapt_after: int = flag(
        "Detector",
        10_000,
        "records after which a shift that lasts becomes the new normal; 0: never",
        metavar="N",
        ge=0,
        le=1_000_000,
    )
    seed: int = flag("Detector", 0, "seed of everything random", ge=0)
    threads: int = flag(
        "Throughput", 1, "threads for each computation, at most one per processor", metavar="N", ge=1, le=1024
    )

    @model_validator(mode="after")
    def _context_is_reachable(self) -> Self:
        if "min_context" not in self.model_fields_set:
            self.min_context = min(self.min_context, self.context_size)
        if self.min_context > self.context_size:
            raise ValueError(
                f"--min-context ({self.min_context}) is larger than --context-size ({self.context_size}): "
                "scores would never begin; lower the first or raise the second"
            )
        return self

    def detector_config(self) -> DetectorConfig:
        """The detector's part of these settings."""
        from fomo_stream.detector import DetectorConfig  # torch: not needed to print --help

        return DetectorConfig(
            context_size=self.context_size,
            min_context=self.min_context,
            alert_rate=self.alert_rate,
            admit=self.admit,
            adapt_after=self.adapt_after,
            seed=self.seed,
        )


class OutputFlags(DetectorFlags):
    """How records are read and how results are written, shared by `run` and `score`."""

    features: Names | None = flag(
        "Records",
        None,
        "features to score, as dotted paths (a,b.c); default: inferred from the first records",
        metavar="A,B.C",
    )
    categorical: Names = flag(
        "Records",
        (),
        "fields that are categories, added to the features: how often each value occurs is what counts",
        metavar="A,B.C",
    )
    lags: int = flag(
        "Records",
        0,
        "score each record together with this many before it of the same key",
        metavar="K",
        ge=0,
        le=100,
    )
    result_field: str = flag(
        "Records", "fomo", "field of the output record that holds the result", metavar="NAME", min_length=1
    )
    scores_only: bool = flag("Records", False, "write the result alone, without the original fields")

    @field_validator("features")
    @classmethod
    def _features_are_named(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and not names:
            raise ValueError("names at least one feature, or leave it out to have them inferred")
        return names

    @field_validator("features", "categorical")
    @classmethod
    def _names_are_distinct(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and len(set(names)) < len(names):
            raise ValueError("a feature is named twice")
        return names


class BrokerFlags(BaseFlags):
    """How to reach the broker, and as which group: shared by `run` and `redrive`."""

    bootstrap: str = flag(
        "Broker", "localhost:9092", "broker addresses, separated by commas", metavar="HOST:PORT", min_length=1
    )
    kafka: dict[str, str] = flag(
        "Broker",
        {},
        "any librdkafka setting, for both clients: --kafka.security.protocol=SSL; repeatable",
        metavar="VALUE",
        repr=False,
    )
    group: str

    @field_validator("kafka", mode="before")
    @classmethod
    def _kafka_is_flat(cls, value: Any) -> Any:
        return flatten(value) if isinstance(value, Mapping) else value

    @field_validator("kafka")
    @classmethod
    def _kafka_keys_are_free(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if key in RESERVED_KAFKA_KEYS:
                raise ValueError(f"{key} cannot be set: {RESERVED_KAFKA_KEYS[key]}")
        return value


class ServiceSettings(BrokerFlags, OutputFlags):
    """`fomo-stream run`: score a topic."""

    topic: str = flag("Topics", ..., "topic to read records from; it must exist", metavar="TOPIC", min_length=1)
    out: str = flag("Topics", "", "topic for scored records (default: <topic>-scores)", metavar="TOPIC")
    dead_letters: str = flag(
        "Topics",
        "",
        "topic for records that cannot be scored (default: <topic>-dead-letters)",
        metavar="TOPIC",
    )
    feedback: str | None = flag(
        "Topics",
        None,
        "topic with labels for scored records, in as many partitions as --topic has (default: none)",
        metavar="TOPIC",
        min_length=1,
    )
    group: str = flag(
        "Broker",
        "fomo-stream",
        "consumer group; instances of one group share the work",
        metavar="GROUP",
        min_length=1,
    )
    start: Literal["earliest", "latest"] = flag(
        "Topics",
        "earliest",
        "where a group without offsets begins; partitions created later begin at their start",
    )

    delivery: Literal["exactly-once", "at-least-once"] = flag(
        "Delivery",
        "exactly-once",
        "each record scored once, by transactions; or at least once, for brokers without them",
    )
    instance_id: str | None = flag(
        "Delivery",
        None,
        "name of this instance, its own within the group: it keeps its partitions through a quick restart",
        metavar="NAME",
        min_length=1,
    )
    on_lost_offset: Literal["fail", "earliest", "latest"] = flag(
        "Delivery", "fail", "what to do where the next record to read is no longer kept by the broker"
    )
    reset_state: bool = flag("Delivery", False, "first forget what the group has learned, and its features")
    commit_interval_ms: float = flag(
        "Delivery", 100.0, "time between commits, and so until scores are seen by others", metavar="MS", gt=0
    )
    commit_records: int = flag("Delivery", 10_000, "most outputs in one commit", metavar="N", ge=1)

    infer_records: int = flag("Records", 200, "records to infer the features from", metavar="N", ge=1, le=10_000)
    infer_seconds: float = flag(
        "Records",
        5.0,
        "infer from fewer records this long after the 20th, or 6 times as long after the first",
        metavar="SECONDS",
        gt=0,
    )
    max_record_bytes: int = flag("Records", 1 << 20, "larger records become dead letters", metavar="BYTES", ge=1)
    seed_context: Path | None = flag(
        "Detector", None, "CSV or JSON lines with trusted rows, to start warm", metavar="FILE"
    )
    feedback_memory: int = flag(
        "Detector",
        5000,
        "last scored records of a partition that a label can still be about",
        metavar="N",
        ge=0,
        le=1_000_000,
    )

    batch_size: int = flag("Throughput", 64, "most records scored at once", metavar="N", ge=1, le=4096)
    batch_age_ms: float = flag(
        "Throughput",
        20.0,
        "longest that a record waits for others to be scored with",
        metavar="MS",
        ge=0,
        le=10_000,
    )
    health_port: int | None = flag(
        "General",
        None,
        "serve /livez and /readyz on this port (default: off)",
        metavar="PORT",
        ge=1,
        le=65535,
    )

    @field_validator("seed_context")
    @classmethod
    def _file_exists(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError(f"no such file: {path}")
        return path

    @model_validator(mode="after")
    def _topics_are_distinct(self) -> Self:
        self.out = self.out or f"{self.topic}-scores"
        self.dead_letters = self.dead_letters or f"{self.topic}-dead-letters"
        roles = {"--topic": self.topic, "--out": self.out, "--dead-letters": self.dead_letters}
        if self.feedback is not None:
            roles["--feedback"] = self.feedback
        if len({*roles.values(), self.state_topic}) < len(roles) + 1:
            shown = ", ".join(f"{name} {topic}" for name, topic in roles.items())
            count = "four" if self.feedback is None else "five"
            raise ValueError(f"{shown} and the state topic {self.state_topic} must be {count} different topics")
        return self

    @model_validator(mode="after")
    def _rebalancing_is_cooperative(self) -> Self:
        if self.kafka.get("partition.assignment.strategy", COOPERATIVE) != COOPERATIVE:
            raise ValueError(
                "partitions move one by one, with their state: leave --kafka.partition.assignment.strategy out, or set "
                f"it to {COOPERATIVE}"
            )
        return self

    def detector_config(self) -> DetectorConfig:
        """The detector's part of these settings; without a feedback topic, nothing is remembered for it."""
        return replace(super().detector_config(), feedback_memory=self.feedback_memory if self.feedback else 0)

    @model_validator(mode="after")
    def _commits_are_in_time(self) -> Self:
        """A transaction that is open for longer than its timeout is taken for one of a dead instance."""
        name = next((key for key in ("transaction.timeout.ms", "session.timeout.ms") if key in self.kafka), None)
        timeout = self.kafka[name] if name is not None else str(SESSION_TIMEOUT_MS)
        most = int(timeout) / 3 if timeout.isdigit() else float("inf")
        if self.delivery == "exactly-once" and self.commit_interval_ms > most:
            raise ValueError(
                f"commit-interval-ms must be at most {most:g}, a third of {name or 'session.timeout.ms'}: the broker "
                "aborts a transaction that stays open for long"
            )
        return self

    @property
    def state_topic(self) -> str:
        """The group's own compacted topic: what its partitions have learned, and the schema of all its instances."""
        return f"{self.group}-{self.topic}-state"

    @property
    def transactional_id(self) -> str:
        """Name of this instance's transactions: its own, and with --instance-id the same after a restart."""
        return f"{self.group}-{self.topic}-{self.instance_id or uuid4().hex}"


class RedriveSettings(BrokerFlags):
    """`fomo-stream redrive`: dead letters back to the topics that they came from."""

    dead_letters: str = flag("Topics", ..., "topic of dead letters", metavar="TOPIC", min_length=1)
    to: str | None = flag(
        "Topics", None, "topic to send them to (default: the one each came from)", metavar="TOPIC", min_length=1
    )
    group: str = flag(
        "Broker",
        "",
        "consumer group that remembers what was sent; another one sends all again (default: <dead-letters>-redrive)",
        metavar="GROUP",
    )
    reason: Names = flag(
        "Topics", (), "only those with one of these reasons; the others are left for a later run", metavar="CODE,CODE"
    )
    dry_run: bool = flag("Topics", False, "count them by reason, and send nothing")
    delivery: Literal["exactly-once", "at-least-once"] = flag(
        "Delivery", "exactly-once", "each sent once, by transactions; or at least once, for brokers without them"
    )
    log_level: Literal["debug", "info", "warning", "error"] = flag("General", "warning", "least severe line to log")

    @field_validator("reason", mode="before")
    @classmethod
    def _reasons_are_named(cls, value: Any) -> Any:
        if isinstance(value, str) and not _split(value):
            raise ValueError("names at least one reason, or leave it out to send all")
        return value

    @field_validator("reason")
    @classmethod
    def _reasons_are_known(cls, reasons: tuple[str, ...]) -> tuple[str, ...]:
        for reason in reasons:
            if reason not in REASONS:
                hint = did_you_mean(reason, REASONS)
                raise ValueError(f"there is no reason {reason}{hint}; reasons are {', '.join(REASONS)}")
        return reasons

    @model_validator(mode="after")
    def _topics_are_two(self) -> Self:
        self.group = self.group or self.transactional_id
        if self.to == self.dead_letters:
            raise ValueError(f"--to {self.to} is the topic of the dead letters itself; name another one")
        return self

    @property
    def transactional_id(self) -> str:
        """Name of its transactions: of two that redrive one topic at once, the broker stops the earlier."""
        return f"{self.dead_letters}-redrive"


class DemoSettings(DetectorFlags):
    """`fomo-stream demo`: an embedded broker, a simulated plant, and the service scoring it live."""

    # Somebody watches: a second longer to learn, for half as many false alarms.
    min_context: int = _min_context(500)
    alert_rate: float = _alert_rate(0.005)
    log_level: Literal["debug", "info", "warning", "error"] = flag("General", "warning", "least severe line to log")
    seconds: float | None = flag("Demo", None, "stop after this long (default: until Ctrl-C)", metavar="SECONDS", gt=0)
    rate: float = flag("Demo", 500.0, "sensor records per second", metavar="N", gt=0, le=100_000)
    sensors: int = flag("Demo", 10, "number of sensors in a record", metavar="N", ge=2, le=100)
    plain: bool = flag("Demo", False, "print lines instead of redrawing the terminal")


class ScoreSettings(OutputFlags):
    """`fomo-stream score`: CSV or JSON lines in, the same with scores out; no Kafka."""

    file: str = Field(
        "-",
        description="CSV or JSON lines to score; - reads standard input",
        json_schema_extra={"positional": True},
    )
    context: Path | None = flag(
        "Input",
        None,
        "score against this file's rows alone, all (up to 5000) unless --context-size says less "
        "(default: against the rows before)",
        metavar="FILE",
    )
    key: str | None = flag(
        "Records", None, "field that tells series apart, for --lags (default: all records are one)", metavar="FIELD"
    )
    format: Literal["auto", "csv", "jsonl"] = flag("Input", "auto", "format of the input")
    log_level: Literal["debug", "info", "warning", "error"] = flag("General", "warning", "least severe line to log")
    batch_size: int = flag("Detector", 64, "most records scored at once", metavar="N", ge=1, le=4096)

    @model_validator(mode="after")
    def _key_is_of_use(self) -> Self:
        if self.key is not None and not self.lags:
            raise ValueError("--key tells series apart for --lags; add --lags K, or leave --key out")
        return self
