"""Settings of the other commands: `redrive`, `demo` and `score`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fomo_stream.errors import REASONS
from fomo_stream.settings.sources import did_you_mean, flag

if TYPE_CHECKING:
    pass
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.settings.flags import (
    BrokerFlags,
    DetectorFlags,
    Names,
    OutputFlags,
    alert_rate,
    min_context,
    split_names,
)


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
        if isinstance(value, str) and not split_names(value):
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
    min_context: int = min_context(500)
    alert_rate: float = alert_rate(0.005)
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
        f"score against this file's rows alone, all (up to {MAX_CONTEXT}) unless --context-size says less "
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
