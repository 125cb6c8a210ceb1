"""Every setting of fomo-stream, in one place: flags, environment, configuration file and defaults.

A flag wins over the environment, which wins over the configuration file, which wins over the default. The
names are the same everywhere: flag `--batch-size`, variable `FOMO_BATCH_SIZE`, line `batch-size = 64` in the
TOML file given by `--config` or `FOMO_CONFIG`. Settings of the Kafka clients pass through under `kafka`:
`--kafka.security.protocol=SSL`, `FOMO_KAFKA_SECURITY_PROTOCOL=SSL`, or a `[kafka]` table. Their values may be
secrets and are never shown. A name that no setting has is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, field_validator, model_validator
from pydantic_settings import NoDecode

from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.settings.sources import BaseFlags, flag, flatten

if TYPE_CHECKING:
    from fomo_stream.detector.config import DetectorConfig

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


def split_names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_names)]


def min_context(default: int) -> Any:
    return flag("Detector", default, "rows to see before scores begin", metavar="ROWS", ge=10, le=MAX_CONTEXT)


def alert_rate(default: float) -> Any:
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
        le=MAX_CONTEXT,
    )
    min_context: int = min_context(200)
    alert_rate: float = alert_rate(0.01)
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
        from fomo_stream.detector.config import DetectorConfig  # torch: not needed to print --help

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
