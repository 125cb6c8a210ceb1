"""Settings of `fomo-stream notify`, and of the same messages from `score` and `replay`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, field_validator, model_validator
from pydantic_settings import NoDecode

from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.settings.flags import BrokerFlags, RegistryFlags, seconds_of
from fomo_stream.settings.service import ServiceSettings, check_topic_names
from fomo_stream.settings.sources import BaseFlags, LogLevel, flag, with_default

TARGETS = ("webhook", "alertmanager", "to", "targets_file")
LONGEST_S = 30 * 86_400
MOST_LOOK_BACK = 1_000_000


def seconds(value: Any) -> Any:
    """`30s`, `5m`, `2h`, `1d` or `4w` in seconds; 0 is 0. Raises ValueError.

    >>> seconds("5m"), seconds("0")
    (300.0, 0.0)
    """
    if not isinstance(value, str | int) or isinstance(value, bool):
        return value
    text = str(value).replace(" ", "")
    try:
        found = 0.0 if re.fullmatch(r"0+", text) else seconds_of(text)
    except ValueError as error:
        raise ValueError(f"{error}; 0 for none") from None
    if found > LONGEST_S:
        raise ValueError("at most 30d")
    return found


Seconds = Annotated[float, NoDecode, BeforeValidator(seconds)]
# Addresses may hold commas, so blanks and line breaks separate them.
Urls = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
]


class MessageFlags(BaseFlags):
    """What messages say, and how often they come; shared by `notify`, `score` and `replay`."""

    template: str = flag(
        "Messages",
        "default",
        "what messages to people say: default, short, or a file with a template of your own",
        metavar="NAME|FILE",
        min_length=1,
    )
    status_url: str | None = flag(
        "Messages", None, "address of the status page, which messages then link to", metavar="URL", min_length=1
    )
    update_every: Seconds = flag(
        "Messages",
        1800.0,
        "tell at most so often of an open incident that it goes on; 0: never (default: 30m)",
        metavar="TIME",
    )
    throttle: Seconds = flag(
        "Messages",
        300.0,
        "tell people at most so often of a new incident of one key; the next message tells of those held back; 0: of "
        "each at once (default: 5m)",
        metavar="TIME",
    )
    group_above: int = flag(
        "Messages",
        10,
        "messages to people within a minute, at most; what comes then is told in one message at its end",
        metavar="N",
        ge=1,
        le=1000,
    )
    dry_run: bool = flag("Messages", False, "print the messages in place of sending them")


class TargetFlags(MessageFlags):
    """Where messages go; shared by `notify` and `score`. Addresses and secrets are shown in no message."""

    webhook: Urls = flag(
        "Targets", (), "post each message as JSON to this address; repeatable", metavar="URL", repeated=True, repr=False
    )
    alertmanager: Urls = flag(
        "Targets", (), "tell this Alertmanager of each incident; repeatable", metavar="URL", repeated=True, repr=False
    )
    to: Urls = flag(
        "Targets",
        (),
        "tell people, by an address of the library apprise: slack://..., mailtos://...; repeatable",
        metavar="URL",
        repeated=True,
        repr=False,
    )
    targets_file: Path | None = flag(
        "Targets",
        None,
        "file with a target a line: an address as for --to, or webhook or alertmanager and an address",
        metavar="FILE",
    )
    webhook_secret: str | None = flag(
        "Targets",
        None,
        "secret that webhooks are signed with; better given by FOMO_WEBHOOK_SECRET or by a file",
        metavar="SECRET",
        repr=False,
    )
    webhook_secret_file: Path | None = flag(
        "Targets", None, "file with the secret that webhooks are signed with", metavar="FILE"
    )
    target_ca: Path | None = flag(
        "Targets",
        None,
        "certificates (PEM) to trust beside those of the system, for --webhook and --alertmanager",
        metavar="FILE",
    )
    target_timeout: Seconds = flag(
        "Targets", 10.0, "a target that does not answer for so long is asked again (default: 10s)", metavar="TIME"
    )

    @field_validator("target_timeout")
    @classmethod
    def _timeout_is_one(cls, value: float) -> float:
        if not 0.1 <= value <= 300:
            raise ValueError("a time from 0.1s to 5m")
        return value

    @model_validator(mode="after")
    def _secret_is_one(self) -> Self:
        if self.webhook_secret is not None and self.webhook_secret_file is not None:
            raise ValueError("--webhook-secret and --webhook-secret-file both give the secret; leave one out")
        return self

    @property
    def has_target(self) -> bool:
        """Whether any target is given."""
        return bool(self.webhook or self.alertmanager or self.to or self.targets_file)


class NotifySettings(TargetFlags, BrokerFlags, RegistryFlags):
    """`fomo-stream notify`: tell people of incidents."""

    alerts: str = flag("Topics", ..., "topic of alerts to read", metavar="TOPIC", min_length=1)
    group: str = flag(
        "Broker",
        "",
        "consumer group; instances of the same group share the work (default: <alerts>-notify)",
        metavar="GROUP",
    )
    start: Literal["earliest", "latest"] = flag(
        "Topics", "latest", "where a group without offsets starts; --dry-run reads from the first record on"
    )
    look_back: int = flag(
        "Topics",
        10_000,
        "records of a partition before its start that are read again, to know which incidents are open; they give no "
        "messages",
        metavar="N",
        ge=0,
        le=MOST_LOOK_BACK,
    )
    result_field: str = with_default(ServiceSettings, "result_field", "fomo")
    key: str | None = flag(
        "Records",
        None,
        "field that names the series of a record, as for run (default: the record's own key)",
        metavar="FIELD",
        min_length=1,
    )
    max_record_bytes: int = flag("Records", MAX_RECORD_BYTES, "larger records are skipped", metavar="BYTES", ge=1)
    health_port: int | None = flag(
        "General",
        None,
        "serve /livez, /readyz and /metrics on this port (default: off)",
        metavar="PORT",
        ge=1,
        le=65535,
    )
    http_host: str = with_default(ServiceSettings, "http_host", "127.0.0.1")
    wait: bool = with_default(ServiceSettings, "wait", False)
    log_level: LogLevel = with_default(BaseFlags, "log_level", "warning")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        check_topic_names({"--alerts": self.alerts})
        self.group = self.group or f"{self.alerts}-notify"
        if not self.dry_run and not self.has_target:
            raise ValueError(
                "give at least one target: --webhook, --alertmanager, --to or --targets-file; or --dry-run"
            )
        return self

    def of_codec(self) -> ServiceSettings:
        """The settings that the codec of a topic's values takes."""
        names = ("registry", "schema_wait", "result_field", "max_record_bytes", "bootstrap", "kafka", "group")
        return ServiceSettings.model_construct(topic=self.alerts, **{name: getattr(self, name) for name in names})
