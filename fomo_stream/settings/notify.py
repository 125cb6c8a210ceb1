"""Settings of `fomo-stream notify`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator
from pydantic_settings import NoDecode

from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.settings.flags import BrokerFlags, RegistryFlags
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import BaseFlags, LogLevel, flag, with_default
from fomo_stream.settings.topic_flags import check_topic_names

# Addresses may hold commas, so blanks and line breaks separate them.
Urls = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
]


class NotifySettings(BrokerFlags, RegistryFlags):
    """`fomo-stream notify`: notify people of incidents. No message shows addresses or secrets."""

    webhook: Urls = flag("Targets", (), metavar="URL", repeated=True, repr=False)
    """post each message as JSON to this address; repeatable"""
    alertmanager: Urls = flag("Targets", (), metavar="URL", repeated=True, repr=False)
    """tell this Alertmanager of each incident; repeatable"""
    to: Urls = flag("Targets", (), metavar="URL", repeated=True, repr=False)
    """tell people, by an address of the library apprise: slack://..., mailtos://...; repeatable"""
    per_hour: int = flag("Messages", 60, metavar="N", ge=0, le=100_000)
    """maximum number of messages to people in an hour, for each --to; then one message says what was held back; 0: no
    limit"""
    status_url: str | None = flag("Messages", None, metavar="URL", min_length=1)
    """address of the status page, which messages then link to"""
    dry_run: bool = flag("Messages", False)
    """print the messages instead of sending them"""
    alerts: str = flag("Topics", ..., metavar="TOPIC", min_length=1)
    """topic of alerts to read"""
    group: str = flag("Broker", "", metavar="GROUP")
    """each target has a consumer group whose name begins with this; instances share the work (default:
    <alerts>-notify)"""
    start: Literal["earliest", "latest"] = with_default(
        ServiceSettings,
        "start",
        "latest",
        "where a group without offsets starts; --dry-run reads from the first record on",
    )
    result_field: str = with_default(ServiceSettings, "result_field", "fomo")
    key: str | None = with_default(
        ServiceSettings,
        "key",
        None,
        "field that names the series of a record, as for run (default: the record's own key)",
    )
    max_record_bytes: int = with_default(
        ServiceSettings, "max_record_bytes", MAX_RECORD_BYTES, "larger records are skipped"
    )
    health_port: int | None = with_default(
        ServiceSettings, "health_port", None, "serve /livez, /readyz and /metrics on this port (default: off)"
    )
    http_host: str = with_default(ServiceSettings, "http_host", "127.0.0.1")
    wait: bool = with_default(ServiceSettings, "wait", False)
    log_level: LogLevel = with_default(BaseFlags, "log_level", "warning")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        check_topic_names({"--alerts": self.alerts})
        self.group = self.group or f"{self.alerts}-notify"
        if not self.dry_run and not self.has_target:
            raise ValueError("give at least one target: --webhook, --alertmanager or --to; or --dry-run")
        return self

    @property
    def has_target(self) -> bool:
        """True if any target is given."""
        return bool(self.webhook or self.alertmanager or self.to)

    def codec_settings(self) -> ServiceSettings:
        """Return the settings that the codec of a topic's values takes."""
        names = ("registry", "schema_wait", "result_field", "max_record_bytes", "bootstrap", "kafka", "group")
        return ServiceSettings.model_construct(topic=self.alerts, **{name: getattr(self, name) for name in names})
