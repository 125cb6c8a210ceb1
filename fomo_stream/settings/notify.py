"""Settings of `fomo-stream notify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator
from pydantic_settings import NoDecode

from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.settings.flags import BrokerFlags, RegistryFlags, seconds_of
from fomo_stream.settings.service import ServiceSettings, check_topic_names
from fomo_stream.settings.sources import BaseFlags, LogLevel, flag, with_default

LONGEST_S = 300.0  # to wait for an answer


def seconds(value: Any) -> Any:
    """`90s` or `2m` in seconds. Raises ValueError.

    >>> seconds("5m")
    300.0
    """
    found = seconds_of(value.replace(" ", "")) if isinstance(value, str) else value
    if not isinstance(found, float) or not 0.1 <= found <= LONGEST_S:
        raise ValueError("a time from 0.1s to 5m")
    return found


Seconds = Annotated[float, NoDecode, BeforeValidator(seconds)]
# Addresses may hold commas, so blanks and line breaks separate them.
Urls = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
]


class NotifySettings(BrokerFlags, RegistryFlags):
    """`fomo-stream notify`: tell people of incidents. Addresses and secrets are shown in no message."""

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

    per_hour: int = flag(
        "Messages",
        60,
        "messages to people within an hour, at most, for each --to; then one message says what was held back; 0: any "
        "number",
        metavar="N",
        ge=0,
        le=100_000,
    )
    status_url: str | None = flag(
        "Messages", None, "address of the status page, which messages then link to", metavar="URL", min_length=1
    )
    dry_run: bool = flag("Messages", False, "print the messages in place of sending them")
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
        if self.webhook_secret is not None and self.webhook_secret_file is not None:
            raise ValueError("--webhook-secret and --webhook-secret-file both give the secret; leave one out")
        check_topic_names({"--alerts": self.alerts})
        self.group = self.group or f"{self.alerts}-notify"
        if not self.dry_run and not self.has_target:
            raise ValueError(
                "give at least one target: --webhook, --alertmanager, --to or --targets-file; or --dry-run"
            )
        return self

    @property
    def has_target(self) -> bool:
        """Whether any target is given."""
        return bool(self.webhook or self.alertmanager or self.to or self.targets_file)

    def of_codec(self) -> ServiceSettings:
        """The settings that the codec of a topic's values takes."""
        names = ("registry", "schema_wait", "result_field", "max_record_bytes", "bootstrap", "kafka", "group")
        return ServiceSettings.model_construct(topic=self.alerts, **{name: getattr(self, name) for name in names})
