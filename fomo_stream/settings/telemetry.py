"""Reads the variables of OpenTelemetry that its library would misunderstand; the library reads the others."""

from __future__ import annotations

import os
import re

from fomo_stream.errors import ConfigError

PREFIX = "OTEL_EXPORTER_OTLP_"
HTTP = "http/protobuf"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"  # milliseconds


def push_interval_s() -> float:
    """Return the seconds from one push of metrics to the next. Raises ConfigError for a variable that cannot be used.

    No message has the value of an address, which may hold a password.
    """
    variables = {name: value for name, value in os.environ.items() if value}
    for name in (f"{PREFIX}METRICS_ENDPOINT", f"{PREFIX}ENDPOINT"):
        if not re.match("https?://.", variables.get(name, "http://localhost")):
            raise ConfigError(f"{name} is not an address of HTTP", "write it as http://collector:4318")
    protocol = variables.get(f"{PREFIX}METRICS_PROTOCOL") or variables.get(f"{PREFIX}PROTOCOL", HTTP)
    if protocol != HTTP:
        remedy = f"set {PREFIX}METRICS_PROTOCOL={HTTP} and {PREFIX}METRICS_ENDPOINT=http://HOST:4318/v1/metrics"
        raise ConfigError(f"{PREFIX}PROTOCOL is {protocol[:60]!r}, and --otlp sends by {HTTP} only", remedy)
    text = variables.get(INTERVAL, "60000")
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise ConfigError(f"{INTERVAL} must be a number of milliseconds, not {text[:60]!r}", "write 60000 for a minute")
    return int(text) / 1000
