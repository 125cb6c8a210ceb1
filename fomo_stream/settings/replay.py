"""Settings of `fomo-stream replay` and `fomo-stream compare`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fomo_stream.settings.commands import GivenFlags
from fomo_stream.settings.flags import CsvFlags, Names
from fomo_stream.settings.sources import TABLES, BaseFlags, LogLevel, flag, option, with_default

NO_REPORT = "none"
FLAGS_OF_TOPIC = ("from_", "to", "last", "labels_topic")


class ReplaySettings(CsvFlags, GivenFlags):
    """`fomo-stream replay`: all flags of the service, so that its configuration can be used as it is, and these."""

    writes_alerts: ClassVar[bool] = False

    topic: str = flag("Input", "", "topic to replay", metavar="TOPIC", scope="scores")
    file: Path | None = flag("Input", None, "file to replay in place of a topic", metavar="FILE", scope="scores")
    format: Literal["auto", "csv", "jsonl", "avro", "parquet", "npz"] = flag(
        "Input",
        "auto",
        "format of --file; auto: by the ending of its name, else by its first character",
        scope="scores",
    )
    from_: str = flag(
        "Input",
        "",
        "first record: a time (2026-10-01, 2026-10-01T12:00Z; without a zone: UTC), an offset, or an offset for "
        "each partition (0:812,1:790) (default: the first record that the topic retains)",
        metavar="PLACE",
        scope="scores",
    )
    to: str = flag(
        "Input",
        "",
        "end of the range, written as --from; its record is not replayed (default: all)",
        metavar="PLACE",
        scope="scores",
    )
    last: str = flag(
        "Input", "", "replay the last 90s, 30m, 12h or 7d, in place of --from", metavar="DURATION", scope="scores"
    )
    label: str | None = flag(
        "Labels",
        None,
        "field that says whether a record is an outlier: true or false, 1 or 0, or -1 or 1 as in scikit-learn",
        metavar="FIELD",
        scope="scores",
    )
    labels_topic: str | None = flag(
        "Labels",
        None,
        "topic with labels, as the service takes them by --feedback",
        metavar="TOPIC",
        min_length=1,
        scope="scores",
    )
    labels_file: Path | None = flag(
        "Labels",
        None,
        "CSV or JSON lines with labels: offset or key, outlier, and perhaps partition",
        metavar="FILE",
        scope="scores",
    )
    compare: Names = flag(
        "Detectors",
        (),
        "other detectors to compare with in the same pass: river.HalfSpaceTrees, river.OneClassSVM, knn, or "
        "module:factory",
        metavar="A,B",
        scope="scores",
    )
    grid: tuple[str, ...] = flag(
        "Detectors",
        (),
        "own settings to compare with, in all combinations: alert_rate=0.01,0.001 context_size=1000,5000",
        metavar="NAME=A,B",
        words=True,
        scope="scores",
    )
    report: str = flag(
        "Report",
        "fomo-replay.html",
        f"HTML file for the report; {NO_REPORT}: write none",
        metavar="FILE",
        scope="running",
    )
    json_: Path | None = flag(
        "Report", None, "also write the report as JSON, for compare", metavar="FILE", scope="running"
    )
    scores_file: Path | None = flag(
        "Report", None, "also write the scored records to this file, as JSON lines", metavar="FILE", scope="running"
    )
    suggest: Path | None = flag(
        "Report",
        None,
        "write a configuration that the records suggest to this file (YAML): roles of fields, counters, and rules that "
        "leave few incidents",
        metavar="FILE",
        scope="running",
    )
    incidents_per_day: float = flag(
        "Report",
        1.25,
        "incidents a day, at most, that the configuration of --suggest should leave",
        metavar="N",
        gt=0,
        scope="scores",
    )
    jobs: int = flag(
        "Throughput",
        0,
        "partitions to replay at the same time (0: one per processor)",
        metavar="N",
        ge=0,
        le=1024,
        scope="running",
    )
    log_level: LogLevel = with_default(BaseFlags, "log_level", "warning")

    @model_validator(mode="after")
    def _source_is_one(self) -> Self:
        if bool(self.topic) == (self.file is not None):
            raise ValueError("name what to replay: either --topic or --file")
        has_file = self.file is not None
        if has_file and (given := [name for name in FLAGS_OF_TOPIC if getattr(self, name)]):
            raise ValueError(f"{option(given[0])} needs --topic; a --file is replayed as a whole")
        if has_file and self.time_features and self.time is None:
            raise ValueError("--time-features of a file needs --time FIELD, the field with the time of a record")
        if has_file:
            self.check_silence_of_file()
        self.check_levels_of_past()
        if self.suggest is not None and self.explain == "none":
            raise ValueError("--suggest looks at the reasons of alerts: leave --explain none out")
        if self.last and self.from_:
            raise ValueError("--last and --from both name the first record; give one of them")
        kinds = [option(name) for name in ("label", "labels_topic", "labels_file") if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} name different labels; give one of them")
        return self

    @model_validator(mode="after")
    def _fields_have_one_role(self) -> Self:
        """A label that is also a key or a time would reach the scores."""
        roles = [("--label", self.label), ("--key", self.key), ("--time", self.time)]
        for (name, field), (other, its) in combinations(roles, 2):
            if field is not None and field == its:
                raise ValueError(f"{name} and {other} both name the field {field}; give each a field of its own")
        return self


class CompareSettings(BaseFlags):
    """`fomo-stream compare`: what changed between two replays."""

    before: Path = Field(..., description="JSON report of a replay", json_schema_extra={"positional": True})
    after: Path = Field(..., description="JSON report of another replay", json_schema_extra={"positional": True})


def option_values(settings: BaseFlags) -> dict[str, Any]:
    """The settings as they can be written again, without secrets."""
    return {
        name: value
        for name, value in settings.model_dump(mode="json", exclude={*TABLES, "config"}).items()
        if value not in (None, "", [], ())
    }
