"""Settings of `fomo-stream run`."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Literal, Self
from uuid import uuid4

from pydantic import field_validator, model_validator

from fomo_stream.settings.flags import SESSION_TIMEOUT_MS, BrokerName, HttpFlags
from fomo_stream.settings.sources import BaseFlags, LogLevel, flag, with_default
from fomo_stream.settings.topic_flags import InputFlags, OutputFlags
from fomo_stream.wording import seconds_of

MAX_LATENCY_MS = 100.0
COMMIT_SHARE = 1 / 4  # of the latency target; the rest is for scoring and for the answers of the broker
BATCH_SHARE = {"at-least-once": 1 / 4, "exactly-once": 1 / 2}
OFFSETS_MS = 250.0  # at least once: no output waits for the commit of offsets


class ServiceSettings(InputFlags, OutputFlags, HttpFlags):
    """`fomo-stream run`: score a topic."""

    start: Literal["earliest", "latest"] = flag("Topics", "earliest", affects="running")
    """where a group without offsets starts; partitions created later are read from their start"""
    warm: str | None = flag("Topics", None, metavar="DURATION", affects="running")
    """a group without offsets first learns, without outputs, the records of this time before its start: 12h, 7d, 2w,
    or earliest for all (default: none)"""

    instance_id: BrokerName | None = flag("Delivery", None, metavar="NAME", min_length=1, affects="running")
    """unique name of this instance in its group; with it, a quick restart keeps the partitions"""
    on_lost_offset: Literal["fail", "earliest", "latest"] = flag("Delivery", "fail", affects="running")
    """when the broker no longer has the next record to read: end with an error, or go on at the earliest or latest"""
    processes: int = flag("Throughput", 1, metavar="N", ge=1, le=256, affects="running")
    """processes that share the partitions, each an instance of the group; with --health-port P the ports from P on"""
    reset_state: bool = flag("Delivery", False, affects="running")
    """first delete everything that the group has learned, including its choice of features"""
    max_latency_ms: float = flag("Delivery", MAX_LATENCY_MS, metavar="MS", ge=1, le=40_000, affects="running")
    """target for the time from the producer of a record to the commit of its score; a lower one takes more CPU time,
    also of the brokers"""

    tombstones: Literal["skip", "dead-letter"] = flag("Records", "dead-letter", affects="running")
    """records without a value, such as those of change data capture: skipped, or a dead letter"""
    log_level: LogLevel = with_default(BaseFlags, "log_level", "info")
    wait: bool = flag("General", False, affects="running")
    """wait for brokers, topics and permissions that are missing, instead of ending with an error"""

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
    def _topics_have_one_role(self) -> Self:
        self.check_topics()
        return self

    @model_validator(mode="after")
    def _results_can_be_written(self) -> Self:
        if self.output_format == "registry" and not self.registry:
            raise ValueError("--output-format registry needs --registry URL, to register the schemas of the outputs")
        if self.output_format == "registry" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.result_field):
            raise ValueError(
                f"--result-field {self.result_field[:60]} cannot be a field of a schema: use letters, digits and _"
            )
        return self

    @model_validator(mode="after")
    def _commits_are_in_time(self) -> Self:
        """Refuse commits that come too late: the broker aborts a transaction that stays open for too long."""
        name = next((key for key in ("transaction.timeout.ms", "session.timeout.ms") if key in self.kafka), None)
        timeout = self.kafka[name] if name is not None else str(SESSION_TIMEOUT_MS)
        limit_ms = int(timeout) / 3 if timeout.isdigit() else float("inf")
        if self.delivery == "exactly-once" and self.commit_interval_ms > limit_ms:
            raise ValueError(
                f"--max-latency-ms must be at most {limit_ms / COMMIT_SHARE:g}: a quarter of it is the time between "
                f"commits, which is at most a third of {name or 'session.timeout.ms'}: the broker aborts a "
                "transaction that stays open too long"
            )
        return self

    @property
    def commit_interval_ms(self) -> float:
        """Shortest time between commits; with exactly-once, readers see scores after the commit."""
        shortest = self.max_latency_ms * COMMIT_SHARE
        return shortest if self.delivery == "exactly-once" else max(shortest, OFFSETS_MS)

    @property
    def batch_age_ms(self) -> float:
        """Longest time that a record waits for its batch to fill."""
        return self.max_latency_ms * BATCH_SHARE[self.delivery]

    @property
    def warm_s(self) -> float | None:
        """Seconds before the start at which the warm start begins; None: at the first record, or no warm start."""
        if self.warm is None or self.warm == "earliest":
            return None
        return seconds_of(self.warm)

    @property
    def transactional_id(self) -> str:
        """The transactional id of this instance: unique, and with --instance-id the same after a restart.

        The digest distinguishes group `a` on topic `b` with instance `c-d` from `a` on `b-c` with instance `d`.
        """
        digest = blake2b(f"{self.group} {self.topic}".encode(), digest_size=4).hexdigest()
        return f"{self.group}-{self.topic}-{digest}-{self.instance_id or uuid4().hex}"
