"""Settings of the other commands: `redrive`, `demo`, `score`, `group` and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fomo_stream.errors import REASONS
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.settings.flags import DeliveryFlags, DetectorFlags, FileFlags, Names, RuleFlags, existing_file
from fomo_stream.settings.rule_spec import split_names
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import BaseFlags, LogLevel, flag, with_default
from fomo_stream.settings.topic_flags import GivenFlags, OutputFlags, check_topic_names
from fomo_stream.wording import did_you_mean

MAX_ATTEMPTS = 1_000_000  # of a redrive


class RedriveSettings(DeliveryFlags):
    """`fomo-stream redrive`: send dead letters back to their topics."""

    dead_letters: str = flag("Topics", ..., metavar="TOPIC", min_length=1)
    """topic of dead letters to read"""
    to: str | None = flag("Topics", None, metavar="TOPIC", min_length=1)
    """topic to send them to (default: the topic that each came from)"""
    group: str = flag("Broker", "", metavar="GROUP")
    """consumer group that remembers which letters were sent; another group sends all of them again (default:
    <dead-letters>-redrive)"""
    reason: Names = flag("Topics", (), metavar="CODE,CODE")
    """send only letters with these reasons, and leave the others for a later run"""
    max_attempts: int = flag("Topics", 5, metavar="N", ge=1, le=MAX_ATTEMPTS)
    """never send letters again that were already sent back so many times"""
    dry_run: bool = flag("Topics", False)
    """only count the letters by reason; send nothing"""

    @field_validator("reason", mode="before")
    @classmethod
    def _reasons_are_named(cls, value: Any) -> Any:
        if isinstance(value, str) and not split_names(value):
            raise ValueError("name at least one reason, or leave it out to send all")
        return value

    @field_validator("reason")
    @classmethod
    def _reasons_are_known(cls, reasons: tuple[str, ...]) -> tuple[str, ...]:
        for reason in reasons:
            if reason not in REASONS:
                hint = did_you_mean(reason, REASONS)
                raise ValueError(f"unknown reason {reason}{hint}; reasons are {', '.join(REASONS)}")
        return reasons

    @model_validator(mode="after")
    def _topics_are_two(self) -> Self:
        self.group = self.group or self.transactional_id
        check_topic_names({"--dead-letters": self.dead_letters, "--to": self.to})
        if self.to == self.dead_letters:
            raise ValueError(f"--to {self.to} is the topic of the dead letters itself; name another topic")
        return self

    @property
    def transactional_id(self) -> str:
        """The transactional id, one per topic: if two processes redrive it, the broker stops the one started first."""
        return f"{self.dead_letters}-redrive"


class DemoSettings(DetectorFlags):
    """`fomo-stream demo`: an embedded broker, a simulated plant, and the service scoring it live."""

    # A person watches the demo: one more second of learning halves the false alarms.
    min_context: int = with_default(DetectorFlags, "min_context", 500)
    alert_rate: float = with_default(DetectorFlags, "alert_rate", 0.005)
    seconds: float | None = flag("Demo", None, metavar="SECONDS", gt=0)
    """stop after this long (default: until Ctrl-C)"""
    report: str = flag("Demo", "fomo-demo.html", metavar="FILE", min_length=1)
    """HTML file for the report at the end; none: write none"""


class ScoreSettings(RuleFlags, FileFlags):
    """`fomo-stream score`: read CSV, JSON lines or Avro and write it with scores, without Kafka."""

    file: str = Field("-", json_schema_extra={"positional": True})
    """CSV, JSON lines or Avro to score; - reads standard input"""
    context: Path | None = flag(
        "Input",
        None,
        metavar="FILE",
        description=f"score against the rows of this file only: up to {MAX_CONTEXT}, or --context-size if given "
        "(default: against the earlier rows of the input)",
    )
    format: Literal["auto", "csv", "jsonl", "avro"] = flag("Input", "auto")
    """format of the input"""
    output: str = flag("Output", "-", metavar="FILE", short="-o", min_length=1)
    """write the results to this file, which gets its name when it is complete; -: standard output"""
    outliers_only: bool = flag("Output", False)
    """write only the records that are outliers"""

    @model_validator(mode="after")
    def _context_has_no_past(self) -> Self:
        if self.context is not None and (self.lags or self.derive or self.key is not None):
            raise ValueError(
                "--context compares a record with a file, not with earlier records: leave --lags, --derive and --key "
                "out"
            )
        if self.context is not None and self.reference is not None:
            raise ValueError("--context and --reference both name good records: leave one out")
        if self.context is not None and self.time_features:
            raise ValueError("--context compares a record with rows that have no time: leave --time-features out")
        self.check_times_of_file()
        if self.reference_span is not None:
            if self.file == "-":
                raise ValueError("standard input is read once: for a range of --reference, name a FILE")
            existing_file(Path(self.file))
        return self


class GroupSettings(GivenFlags, OutputFlags):
    """`fomo-stream group`: show and change what a group has agreed on."""

    update_group: bool = flag("Report", False)
    """change the agreement of the group to the settings given here, while the group has no members"""
    check: bool = flag("Report", False)
    """only check whether an instance with these settings could join: exit code 10 if not"""
    log_level: LogLevel = with_default(BaseFlags, "log_level", "warning")


class DoctorSettings(ServiceSettings):
    """`fomo-stream doctor`: check a deployment, with all settings of an instance."""

    json_: bool = flag("Report", False)
    """print JSON, for programs, instead of text"""
    log_level: LogLevel = with_default(BaseFlags, "log_level", "warning")
