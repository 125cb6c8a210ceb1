"""Settings of `fomo-stream run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self
from uuid import uuid4

from pydantic import field_validator, model_validator

from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.settings.flags import SESSION_TIMEOUT_MS, DeliveryFlags, RecordFlags, SchemaFlags, plain, seconds_of
from fomo_stream.settings.sources import BaseFlags, LogLevel, flag, option, with_default

if TYPE_CHECKING:
    from fomo_stream.detector.config import DetectorConfig

NO_TOPIC = "none"
MAX_LATENCY_MS = 100.0
COMMIT_SHARE = 1 / 2  # of the target for the latency; the rest is for the broker's answers and the scoring
BATCH_SHARE = 1 / 4


class ServiceSettings(DeliveryFlags, RecordFlags, SchemaFlags):
    """`fomo-stream run`: score a topic."""

    knows_all_topics: ClassVar[bool] = True  # whether those that are not given have their defaults, so none may clash
    writes_alerts: ClassVar[bool] = True

    topic: str = flag(
        "Topics", ..., "topic to read records from; it must exist", metavar="TOPIC", min_length=1, scope="scores"
    )
    out: str = flag(
        "Topics",
        "",
        f"topic for scored records; {NO_TOPIC}: write only alerts (default: <topic>-scores)",
        metavar="TOPIC",
        scope="outputs",
    )
    alerts: str | None = flag(
        "Topics",
        None,
        "topic for outliers alone, with a record that sums up each incident (default: none)",
        metavar="TOPIC",
        min_length=1,
        scope="outputs",
    )
    dead_letters: str = flag(
        "Topics",
        "",
        "topic for records that cannot be scored (default: <topic>-dead-letters)",
        metavar="TOPIC",
        scope="outputs",
    )
    feedback: str | None = flag(
        "Topics",
        None,
        "topic with labels for scored records; it needs as many partitions as --topic (default: none)",
        metavar="TOPIC",
        min_length=1,
        scope="group",
    )
    group: str = flag(
        "Broker",
        "fomo-stream",
        "consumer group; instances of the same group share the work",
        metavar="GROUP",
        min_length=1,
        scope="scores",
    )
    start: Literal["earliest", "latest"] = flag(
        "Topics",
        "earliest",
        "where a group without offsets starts; partitions created later are read from their start",
        scope="running",
    )
    warm: str | None = flag(
        "Topics",
        None,
        "a group without offsets first learns the records of this time before its start, or all (earliest), without "
        "outputs: 12h, 7d or 2w (default: it starts cold)",
        metavar="DURATION",
        scope="running",
    )

    instance_id: str | None = flag(
        "Delivery",
        None,
        "unique name of this instance in its group; with it, a quick restart keeps the partitions",
        metavar="NAME",
        min_length=1,
        scope="running",
    )
    on_lost_offset: Literal["fail", "earliest", "latest"] = flag(
        "Delivery", "fail", "what to do when the broker no longer has the next record to read", scope="running"
    )
    reset_state: bool = flag(
        "Delivery",
        False,
        "first delete everything that the group has learned, also its choice of features",
        scope="running",
    )
    max_latency_ms: float = flag(
        "Delivery",
        MAX_LATENCY_MS,
        "target for the time from the producer of a record to the commit of its score; it sets how long records wait "
        "for others",
        metavar="MS",
        ge=1,
        le=40_000,
        scope="running",
    )

    tombstones: Literal["skip", "dead-letter"] = flag(
        "Records",
        "dead-letter",
        "records without a value, as of change data capture: passed over, or a dead letter",
        scope="running",
    )
    max_record_bytes: int = flag(
        "Records", MAX_RECORD_BYTES, "larger records become dead letters", metavar="BYTES", ge=1, scope="scores"
    )
    seed_context: Path | None = flag(
        "Detector",
        None,
        "CSV or JSON lines with trusted rows, to fill the context at the start",
        metavar="FILE",
        scope="scores",
    )
    feedback_memory: int = flag(
        "Detector",
        5000,
        "last scored records of a partition that a label can still refer to",
        metavar="N",
        ge=0,
        le=1_000_000,
        scope="group",
    )

    health_port: int | None = flag(
        "General",
        None,
        "serve /livez, /readyz, /metrics and a status page on this port (default: off)",
        metavar="PORT",
        ge=1,
        le=65535,
        scope="running",
    )
    http_host: str = flag(
        "General",
        "127.0.0.1",
        "address that --health-port is served on; 0.0.0.0: all addresses of this machine",
        metavar="HOST",
        min_length=1,
        scope="running",
    )
    show_keys: bool = flag(
        "General", False, "the status page shows the keys of incidents (default: no keys)", scope="running"
    )
    log_level: LogLevel = with_default(BaseFlags, "log_level", "info")
    wait: bool = flag(
        "General",
        False,
        "wait for brokers, topics and permissions that are missing, in place of ending with an error",
        scope="running",
    )

    @field_validator("instance_id")
    @classmethod
    def _instance_has_a_plain_name(cls, name: str | None) -> str | None:
        return name if name is None else plain(name)

    @field_validator("seed_context")
    @classmethod
    def _file_exists(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError(f"no such file: {path}")
        return path

    @field_validator("warm")
    @classmethod
    def _warm_is_a_duration(cls, text: str | None) -> str | None:
        try:
            if text not in (None, "earliest"):
                seconds_of(str(text))
        except ValueError as error:
            raise ValueError(f"{error}; or earliest") from None
        return text

    @model_validator(mode="after")
    def _topics_have_names(self) -> Self:
        self.out = self.out or f"{self.topic}-scores"
        self.dead_letters = self.dead_letters or f"{self.topic}-dead-letters"
        check_topic_names({**self.named_topics, "the state topic": self.state_topic})
        if self.knows_all_topics:
            check_topics(self)
        return self

    def detector_config(self) -> DetectorConfig:
        """The part of these settings that the detector takes; without a feedback topic, `feedback_memory` is 0."""
        return replace(super().detector_config(), feedback_memory=self.feedback_memory if self.feedback else 0)

    @model_validator(mode="after")
    def _result_has_a_name(self) -> Self:
        if self.output_format == "registry" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.result_field):
            raise ValueError(
                f"--result-field {self.result_field[:60]} cannot be a field of a schema: use letters, digits and _"
            )
        return self

    @model_validator(mode="after")
    def _commits_are_in_time(self) -> Self:
        """The broker aborts a transaction that stays open for too long."""
        name = next((key for key in ("transaction.timeout.ms", "session.timeout.ms") if key in self.kafka), None)
        timeout = self.kafka[name] if name is not None else str(SESSION_TIMEOUT_MS)
        most = int(timeout) / 3 if timeout.isdigit() else float("inf")
        if self.delivery == "exactly-once" and self.commit_interval_ms > most:
            raise ValueError(
                f"--max-latency-ms must be at most {most / COMMIT_SHARE:g}: half of it is the time between commits, "
                f"which is at most a third of {name or 'session.timeout.ms'}: the broker aborts a transaction that "
                "stays open too long"
            )
        return self

    @property
    def commit_interval_ms(self) -> float:
        """Time between commits; with exactly-once, readers see scores after the commit."""
        return self.max_latency_ms * COMMIT_SHARE

    @property
    def batch_age_ms(self) -> float:
        """Longest time that a record waits for its batch to fill."""
        return self.max_latency_ms * BATCH_SHARE

    @property
    def warm_s(self) -> float | None:
        """How far back the warm start begins, in seconds; None: at the first record, or there is none."""
        if self.warm is None or self.warm == "earliest":
            return None
        return seconds_of(self.warm)

    @property
    def scored_topics(self) -> tuple[str, ...]:
        """The topics that scored records go to: all to --out, if there is one, and alerts to --alerts."""
        named = (None if self.out == NO_TOPIC else self.out, self.alerts)
        return tuple(topic for topic in named if topic is not None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topics that records of the input go to."""
        return (*self.scored_topics, self.dead_letters)

    @property
    def named_topics(self) -> dict[str, str]:
        """All topics but that of the state, by their flags."""
        names = ("topic", "out", "alerts", "dead_letters", "feedback")
        found = {option(name): getattr(self, name) for name in names}
        return {name: topic for name, topic in found.items() if topic and (name, topic) != ("--out", NO_TOPIC)}

    @property
    def state_topic(self) -> str:
        """The group's own compacted topic, with the state of its partitions and the schema of all its instances."""
        return f"{self.group}-{self.topic}-state"

    @property
    def transactional_id(self) -> str:
        """The transactional id of this instance: unique, and with --instance-id the same after a restart.

        The digest keeps apart `a` on `b` with the instance `c-d`, and `a` on `b-c` with the instance `d`.
        """
        digest = blake2b(f"{self.group} {self.topic}".encode(), digest_size=4).hexdigest()
        return f"{self.group}-{self.topic}-{digest}-{self.instance_id or uuid4().hex}"


def check_topic_names(topics: Mapping[str, str | None]) -> None:
    """Raise ValueError, with the flag, for what cannot be the name of a topic."""
    for flag_name, topic in topics.items():
        if topic and (not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) or topic in (".", "..")):
            raise ValueError(
                f"{flag_name} {topic[:60]!r} cannot be the name of a topic: it has at most 249 letters from a to z, "
                "digits, and the characters . _ -"
            )


def check_topics(settings: ServiceSettings) -> None:
    """Raise ValueError unless scores are written, and every topic has one role."""
    if settings.alerts == NO_TOPIC:
        raise ValueError(
            f"--alerts {NO_TOPIC} names no topic; leave --alerts out to write no alerts to a topic of their own"
        )
    if not settings.scored_topics:
        raise ValueError(f"--out {NO_TOPIC} needs --alerts: without a topic for outliers, no score is written")
    if settings.writes_alerts and settings.silence is not None and settings.alerts is None:
        raise ValueError("--silence needs --alerts TOPIC, where its alerts are written")
    roles = settings.named_topics
    if len({*roles.values(), settings.state_topic}) < len(roles) + 1:
        shown = ", ".join(f"{name} {topic}" for name, topic in roles.items())
        raise ValueError(f"{shown} and the state topic {settings.state_topic} must be different topics")
