"""Settings that several commands share: the broker, the detector, and how records are read and results are written."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode

from fomo_stream.errors import NotCompleteError
from fomo_stream.limits import ALERT_RATE, MAX_CONTEXT, MAX_KNOWN_KEYS, MAX_LAGS, MAX_OWN_CONTEXTS
from fomo_stream.records.derivations import parse_derivations, split_derivations
from fomo_stream.records.moments import FIRST, span_text, time_span
from fomo_stream.settings import rule_spec
from fomo_stream.settings.rule_spec import Rule, Window, Zone, check_names, split_names
from fomo_stream.settings.sources import BaseFlags, flag, option
from fomo_stream.wording import SECONDS, did_you_mean, exact, seconds_of

if TYPE_CHECKING:
    from fomo_stream.detector.config import DetectorConfig


CYCLES = ("hour", "weekday", "month")
REMEMBERED = ("remembered-rows", "remembered-scores")  # sizes that a group agrees on
LEVELS = ("key", "partition", "topic")  # that are watched for silence
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_names)]


def broker_text(name: str) -> str:
    """Return `name`, which goes to the broker with every request. Raises ValueError if a broker may not take it."""
    if not re.fullmatch(r"[!-~]([ -~]{,247}[!-~])?", name):
        raise ValueError("a broker takes 1 to 249 letters of ASCII, digits and signs here, without blanks at the ends")
    return name


def existing_file(path: Path) -> Path:
    try:
        path.stat()
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except OSError as error:  # its folder cannot be read, or its name is too long
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if path.is_dir():
        raise ValueError("it is a folder; name a file")
    if not path.is_file():
        raise ValueError("it is a pipe or a device, and it is read more than once; write it to a file first")
    return path


def _file_or_span(value: Path | str) -> Path | str:
    """Return a path to a file, or the text of a range of time. A file that exists is never a range."""
    if isinstance(value, str) and not os.path.lexists(value) and time_span(value) is not None:
        return value
    try:
        return existing_file(Path(value))
    except ValueError as error:
        raise ValueError(f"{error}; or give a range of time, as 2026-10-01/2026-10-06 or first:5d") from None


def _in_order(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return these names in the order of the allowed ones. Raises ValueError for any other name."""
    for name in names:
        if name not in allowed:
            raise ValueError(f"{name[:60]} is not one of {', '.join(allowed)}{did_you_mean(name, allowed)}")
    return tuple(name for name in allowed if name in names)


def _checked_silence(text: str) -> str:
    if not 10 <= seconds_of(text) <= 30 * SECONDS["d"]:
        raise ValueError("at least 10s, as the broker is asked every few seconds; at most 30d")
    return text


def _feature_values(value: Any) -> Any:
    """Return `{"temp": [-9999, -1]}` as `("temp=-9999", "temp=-1")`."""
    if not isinstance(value, Mapping):
        return value
    lists = {name: numbers if isinstance(numbers, (list, tuple)) else [numbers] for name, numbers in value.items()}
    return tuple(f"{name}={number}" for name, numbers in lists.items() for number in numbers)


def _parse_missing_value(text: str) -> tuple[str, float]:
    """Return a feature and its number that means "missing", from `temp=-9999`. Raises ValueError."""
    name, _, number = (part.strip() for part in text.rpartition("="))
    if not name or not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", number, re.ASCII):
        raise ValueError(f"{text[:60]}: write FEATURE=NUMBER, as temp=-9999, or *=-9999 for all features")
    return name, float(number)


def _without_times_sign(value: Any) -> Any:
    number = value.strip().removesuffix("x") if isinstance(value, str) else value
    if isinstance(number, str) and not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", number, re.ASCII):
        raise ValueError("write how many times the usual gap, such as 5x")
    return number


Cycles = Annotated[Names, AfterValidator(lambda names: _in_order(names, CYCLES))]
Levels = Annotated[Names, AfterValidator(lambda names: _in_order(names, LEVELS) or LEVELS)]
ExistingFile = Annotated[Path, AfterValidator(existing_file)]
BrokerName = Annotated[str, AfterValidator(broker_text)]
Factor = Annotated[float, Field(gt=1, le=1000), BeforeValidator(_without_times_sign)]


_DELIMITERS = {"tab": "\t", "\\t": "\t", "space": " ", "\\x01": "\x01"}


def _delimiter(text: str) -> str:
    text = _DELIMITERS.get(text, text)
    if text != "auto" and (len(text) != 1 or text.isalnum() or text in '"\r\n'):
        raise ValueError("it must be auto, tab, space, or one character other than a letter, a digit or a quote")
    return text


class FileFlags(BaseFlags):
    """Settings that say how files are read; shared by `score` and `replay`."""

    delimiter: Annotated[str, AfterValidator(_delimiter)] = flag("Input", "auto", metavar="CHARACTER", affects="scores")
    """separator of the cells of CSV: a character, tab or space; auto: as the first lines show"""
    decimal: Literal["auto", "comma", "point"] = flag("Input", "auto", affects="scores")
    """decimal sign of the numbers of CSV; auto: as the first lines show"""
    skip_lines: int | None = flag("Input", None, metavar="N", ge=0, affects="scores")
    """lines of CSV above the header, the line with the names of the columns (default: found in the first lines)"""

    def csv_settings(self) -> dict[str, Any]:
        """Return these settings as `RecordFile` takes them."""
        return {name: getattr(self, name) for name in ("delimiter", "decimal", "skip_lines")}


# Client settings that users cannot change, because delivery depends on them, and the flag to use instead.
RESERVED_KAFKA_KEYS = {
    "bootstrap.servers": "use --bootstrap",
    "group.id": "use --group",
    "group.instance.id": "use --instance-id",
    "auto.offset.reset": "use --start, and --on-lost-offset",
    "enable.auto.commit": "offsets are committed by the service, together with the outputs",
    "enable.auto.offset.store": "offsets are committed by the service, together with the outputs",
    "enable.idempotence": "the producer is always idempotent",
    "isolation.level": "only committed records are read",
    "partition.assignment.strategy": "partitions move one at a time, with their state",
    "transactional.id": "use --instance-id, from which it is made",
}

SESSION_TIMEOUT_MS = 45_000  # librdkafka's default
COOPERATIVE = "cooperative-sticky"  # the assignment strategy that adds partitions without revoking the others


class BrokerFlags(BaseFlags):
    """Settings of the connection to the broker, and the group; shared by `run` and `redrive`."""

    bootstrap: str = flag("Broker", "localhost:9092", metavar="HOST:PORT", min_length=1, affects="running")
    """broker addresses, separated by commas"""
    kafka: dict[str, str] = flag("Broker", {}, metavar="VALUE", repr=False, affects="running")
    """any librdkafka setting, for all clients: --kafka.security.protocol=SSL; repeatable"""
    group: str

    @field_validator("kafka", mode="before")
    @classmethod
    def _kafka_is_flat(cls, value: Any) -> Any:
        return dotted_keys(value) if isinstance(value, Mapping) else value

    @field_validator("kafka")
    @classmethod
    def _kafka_keys_are_free(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if key in RESERVED_KAFKA_KEYS:
                raise ValueError(f"{key} cannot be set: {RESERVED_KAFKA_KEYS[key]}")
            if key in ("client.id", "client.rack"):
                broker_text(value[key])
        return value


class HttpFlags(BaseFlags):
    """Settings of what a process of the service serves and sends over HTTP, for those who watch it."""

    health_port: int | None = flag("General", None, metavar="PORT", ge=1, le=65535, affects="running")
    """serve /livez, /readyz, /metrics and a status page on this port (default: off)"""
    http_host: str = flag("General", "127.0.0.1", metavar="HOST", min_length=1, affects="running")
    """address that --health-port is served on; 0.0.0.0: all addresses of this machine"""
    show_keys: bool = flag("General", False, affects="running")
    """the status page shows the keys of incidents (default: no keys)"""
    otlp: bool = flag("General", False, affects="running")
    """send the metrics to an OpenTelemetry collector, as the variables OTEL_* say"""


class DeliveryFlags(BrokerFlags):
    """Settings of the delivery of records to the broker."""

    delivery: Literal["exactly-once", "at-least-once"] = flag("Delivery", "exactly-once", affects="outputs")
    """each record exactly once, with transactions; or at least once, for brokers without them"""


# What YAML has for a truth value, which librdkafka wants as the latter.
_SWITCHES = {
    word: value for value, words in (("true", "true yes on"), ("false", "false no off")) for word in words.split()
}


def dotted_keys(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested tables as dotted keys, with values as librdkafka reads them (`true`, `10`, `text`).

    >>> dotted_keys({"socket": {"keepalive": {"enable": True}}, "linger.ms": 5, "api.version.request": "no"})
    {'socket.keepalive.enable': 'true', 'linger.ms': '5', 'api.version.request': 'false'}
    """
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(dotted_keys(value, f"{prefix}{key}."))
        else:
            text = str(value)
            flat[f"{prefix}{key}"] = _SWITCHES.get(text.lower(), text)
    return flat


def _registry_table(value: Any) -> Any:
    """Return `"http://registry:8081"` as `{"url": "http://registry:8081"}`, and nested tables with dotted keys."""
    return {"url": value} if isinstance(value, str) else dotted_keys(value) if isinstance(value, Mapping) else value


class RegistryFlags(BaseFlags):
    """The registry that knows the schemas of values."""

    registry: Annotated[dict[str, str], NoDecode, BeforeValidator(_registry_table)] = flag(
        "Schemas", {}, metavar="URL", repr=False, affects="scores"
    )
    """addresses of the schema registry, separated by commas, for records in Avro, Protobuf or JSON with a schema;
    --registry.KEY=VALUE is any setting of its client: --registry.ssl.ca.location=ca.pem; repeatable"""
    schema_wait: float = flag("Schemas", 300.0, metavar="SECONDS", ge=0, affects="scores")
    """longest time that a record whose schema cannot be fetched waits for the registry, and with it the records behind
    it; then it becomes a dead letter"""

    @field_validator("registry")
    @classmethod
    def _registry_has_an_address(cls, table: dict[str, str]) -> dict[str, str]:
        if table and not table.get("url"):
            raise ValueError("these settings are for a registry: give its address with --registry URL")
        for url in table.get("url", "").split(",") if table else ():
            if not url.strip().startswith(("http://", "https://", "mock://")):
                raise ValueError("an address of a registry begins with http:// or https://")
        return table


class DetectorFlags(BaseFlags):
    """Settings of the model and of the detector; shared by `run`, `demo` and `score`."""

    model: str = flag("Detector", "default", metavar="NAME", affects="state")
    """streams (the default), fomo (for tables), or a file"""
    device: str = flag("Detector", "auto", affects="scores")
    """cpu, cuda, cuda:N, or auto: a GPU only for models that run in torch"""
    backend: Literal["auto", "numba", "torch"] = flag("Detector", "auto", affects="state")
    """what computes the scores; auto: torch with --device cuda and for models that numba cannot run, else numba"""
    context_size: int = flag(
        "Detector", 1000, metavar="ROWS", ge=10, le=MAX_CONTEXT, affects="state", decides=REMEMBERED
    )
    """largest number of records that a record is compared with, in each view"""
    min_context: int = flag("Detector", 200, metavar="ROWS", ge=10, le=MAX_CONTEXT, affects="scores")
    """records to collect before the first score: of a partition, or of a file"""
    alert_rate: float = flag(
        "Detector", ALERT_RATE, metavar="P", ge=1e-5, le=0.5, affects="scores", decides=("remembered-scores",)
    )
    """target for the share of normal records that are called outliers; incidents come in addition"""
    admit: Literal["auto", "feedback", "all"] = flag("Detector", "auto", affects="scores", decides=("views",))
    """which records may enter the contexts. auto: all but those that feedback calls outliers; the view trimmed also
    leaves out the most outlying. feedback: only those that feedback calls normal. all: as auto, without trimmed"""
    views: Names = flag("Detector", ("default",), metavar="A,B", affects="state")
    """what records are compared with: default (trimmed,all,recent,movement,key), fast (trimmed,all,key), events
    (trimmed,all,recent,key_values; for independent records of keys, as payments), or names of views"""
    stuck_values: Literal["alert", "ignore"] = flag("Detector", "alert", affects="scores")
    """what to do when a feature that nearly always changes repeats one value: report an outlier, or ignore it"""
    adapt_after: int = flag("Detector", 1000, metavar="N", ge=0, le=1_000_000, affects="scores")
    """announce a lasting shift, in the log and as a metric, after this many records of it; 0: never"""
    seed: int = flag("Detector", 0, ge=0, affects="state")
    """seed of the random numbers"""
    explain: Literal["alerts", "all", "none"] = flag("Detector", "alerts", affects="scores")
    """which records are written with reasons: the features that make them unusual"""
    threads: int = flag("Throughput", 1, metavar="N", ge=1, le=1024, affects="group")
    """threads of each computation, at most one per processor"""

    @model_validator(mode="after")
    def _past_is_known(self) -> Self:
        if "past" in self.views and not getattr(self, "lags", 0):
            raise ValueError("the view past needs --lags, the number of records before each; add --lags K")
        return self

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

    @field_validator("views")
    @classmethod
    def _views_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if names != ("default",):
            from fomo_stream.detector.views import named_views  # imports NumPy, which other mistakes do not need

            named_views(names)
        return names

    def detector_settings(self) -> dict[str, Any]:
        """Return the settings of the model and of the detector by name, for another command."""
        names = DetectorFlags.model_fields.keys() - BaseFlags.model_fields.keys()
        return {name: getattr(self, name) for name in names}


class RecordFlags(DetectorFlags):
    """Settings that say how records are read and results are written; shared by `run` and `score`."""

    features: Names | None = flag("Records", None, metavar="A,B.C", affects="state")
    """features to score, as dotted paths (default: inferred from the first records)"""
    categorical: Names = flag("Records", (), metavar="A,B.C", affects="state")
    """fields to score as categories, by how often each value and each pair of values occurs, in addition to the
    features"""
    exclude: Names = flag("Records", (), metavar="A,B.C", affects="state")
    """fields that never become features"""
    counters: Names = flag("Records", ("auto",), metavar="A,B.C", affects="state")
    """fields that only grow: their growth per record is scored; auto: those that the first records show, if features
    are inferred; or none"""
    missing_values: Annotated[Names, BeforeValidator(_feature_values)] = flag(
        "Records", (), metavar="A=-9999", affects="group"
    )
    """numbers that mean that a value is missing: temp=-9999; *=65535: in all features except categories"""
    time: str | None = flag("Records", None, metavar="FIELD", min_length=1, affects="group")
    """field with the time of a record, for windows of maintenance and derived features: a number since 1970 (s, ms, us
    or ns), or text such as 2026-10-01T12:00 (default: the record's own time)"""
    time_features: Cycles = flag("Records", (), metavar="A,B", affects="state")
    """compare values with the usual ones at the same time: hour, weekday, month, or several"""
    timezone: Zone = flag("Records", "UTC", metavar="ZONE", affects="group")
    """time zone of hours and days, and of times without a zone in records and in the configuration: Europe/Berlin"""
    reference: Annotated[Path | str, AfterValidator(_file_or_span)] | None = flag(
        "Detector", None, metavar="FILE|FROM/TO|first:N", affects="scores"
    )
    """CSV, JSON lines or Avro with good records, in the order of time, or a range of time of the input that was good
    (2026-10-01/2026-10-06, without the last day; first:5d: its first 5 days): a record is an outlier if, and as long
    as, it is unusual compared with the good records of its key (default: records are compared with earlier ones)"""
    derive: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_derivations)] = flag(
        "Records", (), metavar="A,B", affects="state", repeated=True
    )
    """features to compute by key as records come: count(10m), gap(), sum(amount, 24h), mean(amount, 7d),
    distinct(merchant, 24h), new(device), share(category), rate(bytes), speed(lat, lon), change(x),
    ratio(errors, requests); repeatable"""
    lags: int = flag("Records", 0, metavar="K", ge=0, le=MAX_LAGS, affects="state", decides=("views",))
    """also compare each record together with the K records before it of the same key (adds the view past)"""
    key: str | None = flag("Records", None, metavar="FIELD", min_length=1, affects="group")
    """field that names the series of a record, such as its device (default: the record's own key; of a file: all
    records are one series)"""
    keys: int = flag("Records", 100_000, metavar="N", ge=1, le=MAX_KNOWN_KEYS, affects="state")
    """maximum number of keys of a partition whose usual values are known; the least recently used ones are forgotten"""
    mute_key: Names = flag("Records", (), metavar="A,B", affects="group")
    """keys that give no alerts; labels can also mute keys"""
    own_contexts: int = flag("Records", 64, metavar="N", ge=0, le=MAX_OWN_CONTEXTS, affects="group")
    """number of the busiest keys of a partition that are compared with records of their own"""
    result_field: str = flag("Output", "fomo", metavar="NAME", min_length=1, affects="outputs")
    """field of the output record that holds the result"""
    scores_only: bool = flag("Output", False, affects="outputs")
    """write only the result, without the original fields"""
    incident_quiet: int = flag("Records", 10, metavar="N", ge=1, le=1_000_000, affects="group")
    """an incident ends after N records of its series without an alert"""
    silence: Factor | None = flag("Alerts", None, metavar="FACTOR", affects="group")
    """give an alert when a key, a partition or the topic sends nothing for FACTOR times its usual gap: 5x (default:
    none)"""
    silence_min: Annotated[str, AfterValidator(_checked_silence)] = flag(
        "Alerts", "60s", metavar="DURATION", affects="group"
    )
    """the shortest silence that gives an alert, at least 10s"""
    silence_of: Levels = flag("Alerts", LEVELS, metavar="A,B", affects="group")
    """what is watched for silence: key, partition, topic, or several"""
    batch_size: int = flag("Throughput", 256, metavar="N", ge=1, le=4096, affects="scores")
    """maximum number of records scored at once"""

    @property
    def reference_span(self) -> range | None:
        """The milliseconds since 1970, or since the first record, of the good records, if these are a range of time."""
        return time_span(self.reference) if isinstance(self.reference, str) else None

    @property
    def has_first_records(self) -> bool:
        """True if the good records are the first ones of the input."""
        return isinstance(self.reference, str) and self.reference.startswith(FIRST)

    def with_reference_of(self, times: Iterable[int | None]) -> Self:
        """Return the settings with the range of time that the first records have, if these are the good ones.

        times: of the records, milliseconds since 1970. Raises NotCompleteError without a record after that range.
        """
        if not self.has_first_records:
            return self
        name, length = f"--reference {self.reference} is not complete", len(self.reference_span or ())
        known = (time for time in times if time is not None)
        first = last = next(known, None)
        if first is None or last is None:
            raise NotCompleteError(f"{name}: there is no record with a time", 0)
        for time in known:
            first, last = min(first, time), max(last, time)
        span = range(first, first + length)
        if last < span.stop:
            raise NotCompleteError(f"{name}: there is no record after its range {span_text(span)}", span.stop)
        return self.model_copy(update={"reference": span_text(span)})

    @property
    def least_silence_ms(self) -> int:
        """The shortest silence that gives an alert, milliseconds."""
        return round(1000 * seconds_of(self.silence_min))

    def check_times_of_file(self) -> None:
        """Raise ValueError if a setting needs the times of records: those of a file have times only by --time."""
        timed_flags = {"--time-features": self.time_features, "--silence": self.silence}
        for name, value in {**timed_flags, f"--reference {self.reference}": self.reference_span}.items():
            if value and self.time is None:
                raise ValueError(f"{name} of a file needs --time FIELD, the field with the time of a record")
        features = parse_derivations(self.derive)
        if self.time is None and (timed := [feature.name for feature in features if feature.is_timed]):
            raise ValueError(f"--derive {timed[0]} of a file needs --time FIELD, the field with the time of a record")
        self.check_levels_of_past()

    def check_levels_of_past(self) -> None:
        """Raise ValueError if only silence of the topic is watched, which past records cannot show."""
        if self.silence is not None and self.silence_of == ("topic",):
            raise ValueError("--silence-of topic is only for the service: of past records watch key or partition")

    @model_validator(mode="after")
    def _roles_fit(self) -> Self:
        named = (*(self.features or ()), *self.categorical, *self.counter_names, self.key, self.time)
        if both := {*self.exclude} & {*named}:
            raise ValueError(f"--exclude {min(map(str, both))[:60]} is named by another flag, too; leave one out")
        return self

    def detector_config(self) -> DetectorConfig:
        """Return the part of these settings that the detector takes."""
        from fomo_stream.detector.config import DetectorConfig  # imports NumPy, which --help does not need
        from fomo_stream.records.times import cycles_of

        names = {field.name for field in fields(DetectorConfig)} & type(self).model_fields.keys()
        values = {name: getattr(self, name) for name in names} | {"cycles": cycles_of(self.time_features)}
        if getattr(self, "feedback", "") is None:  # without labels, nothing is remembered for them
            values["feedback_memory"] = 0
        return DetectorConfig(**values)

    @field_validator("derive")
    @classmethod
    def _derived_features_are_known(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return the features in canonical form, because a group agrees on it."""
        return tuple(feature.name for feature in parse_derivations(texts))

    @field_validator("counters")
    @classmethod
    def _counters_are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) > 1 and (word := {"auto", "none"} & {*names}):
            raise ValueError(f"{min(word)} stands alone: --counters auto, --counters none, or names of fields")
        return names or ("none",)

    @property
    def counter_names(self) -> tuple[str, ...]:
        return () if self.counters in (("auto",), ("none",)) else self.counters

    @field_validator("missing_values")
    @classmethod
    def _marks_are_numbers(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return the numbers in canonical form, because a group agrees on it."""
        return tuple(dict.fromkeys(f"{name}={exact(number)}" for name, number in map(_parse_missing_value, texts)))

    @property
    def marks(self) -> dict[Hashable, tuple[float, ...]]:
        """The numbers that mean "missing", by feature; *: of all features."""
        marks: dict[Hashable, tuple[float, ...]] = {}
        for name, number in map(_parse_missing_value, self.missing_values):
            marks[name] = (*marks.get(name, ()), number)
        return marks

    @property
    def quiet(self) -> tuple[int, int]:
        """Numbers of records without an alert that end an incident: of its series, and of the whole partition."""
        return self.incident_quiet, max(self.incident_quiet, 1000)

    @field_validator("features", "categorical", "counters")
    @classmethod
    def _names_are_distinct(cls, names: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if names == () and info.field_name == "features":
            raise ValueError("name at least one feature, or leave it out to have them inferred")
        if names is not None and len(set(names)) < len(names):
            raise ValueError("a feature is named twice")
        return names


def _parse_rule(name: str, text: str) -> Rule:
    """Return the rule for an element of --ignore or --valid. Raises ValueError."""
    feature, _, limit = text.rpartition("=")
    if not feature:
        raise ValueError(f"{text[:60]} names no feature: write FEATURE={'2.5' if name == 'ignore' else '0:100'}")
    content: dict[str, Any] = {"name": f"{option(name)} {feature}"[:100], "features": (feature,)}
    if name == "valid":
        low, colon, high = limit.partition(":")
        if not colon:
            raise ValueError(f"{text[:60]}: write the lowest and the highest value with a colon between them: 0:100")
        content["valid"] = tuple(end.strip() or None for end in (low, high))
    else:
        content["ignore"] = limit
    try:
        return rule_spec.parse_table(Rule, content)
    except ValueError as error:
        raise ValueError(f"{text[:60]}: {error}") from None


class RuleFlags(RecordFlags):
    """Settings that suppress or force alerts; shared by `run`, `score` and `replay`."""

    rules: tuple[Rule, ...] = flag("Alerts", (), table=True, affects="scores")
    """rules about deviations that do not matter"""
    maintenance: tuple[Window, ...] = flag("Alerts", (), table=True, affects="scores")
    """windows of maintenance"""
    calendar: Path | None = flag("Alerts", None, metavar="FILE", affects="scores")
    """iCalendar file with windows of maintenance"""
    min_severity: Literal["warning", "critical"] = flag("Alerts", "warning", affects="scores")
    """records below this severity give no alert"""
    only_rises: Names = flag("Alerts", (), metavar="A,B.C", affects="scores")
    """features that give an alert only when they rise"""
    only_falls: Names = flag("Alerts", (), metavar="A,B.C", affects="scores")
    """features that give an alert only when they fall"""
    ignore: Names = flag("Alerts", (), metavar="A=2.5,B=5%", affects="scores")
    """deviations from the expected value up to this give no alert: 2.5 (in its unit), or 5% (of the expected value)"""
    valid: Names = flag("Alerts", (), metavar="A=0:100", affects="scores")
    """valid ranges: a value outside always gives an alert; either end may be left out"""

    @field_validator("ignore", "valid")
    @classmethod
    def _rules_can_be_read(cls, texts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for text in texts:
            _parse_rule(str(info.field_name), text)
        return texts

    @model_validator(mode="after")
    def _rules_fit(self) -> Self:
        check_names(self.all_rules, "rules")
        check_names(self.windows, "windows of maintenance")
        if self.explain == "none" and any(rule.valid is None for rule in self.all_rules):
            raise ValueError("rules look at the reasons of alerts: leave --explain none out")
        return self

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The rules of the configuration file, and those of the flags."""
        rules_of_flags = [_parse_rule(name, text) for name in ("ignore", "valid") for text in getattr(self, name)]
        if self.only_rises:
            rules_of_flags.append(Rule(name="--only-rises", features=self.only_rises, only="rises"))
        if self.only_falls:
            rules_of_flags.append(Rule(name="--only-falls", features=self.only_falls, only="falls"))
        if self.min_severity != "warning":
            rules_of_flags.append(Rule(name="--min-severity", min_severity=self.min_severity))
        return (*self.rules, *rules_of_flags)

    @property
    def has_rules(self) -> bool:
        """True if there are rules or windows of maintenance."""
        return bool(self.all_rules or self.windows)

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """The windows of maintenance of the configuration file, and those of the calendar. Raises ConfigError."""
        of_calendar = () if self.calendar is None else rule_spec.read_calendar(self.calendar, self.timezone)
        return rule_spec.in_zone((*self.maintenance, *of_calendar), self.timezone)
