"""Settings of `fomo-stream replay` and `fomo-stream compare`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fomo_stream.settings.flags import FileFlags, Names
from fomo_stream.settings.sources import TABLES, BaseFlags, LogLevel, flag, option, with_default
from fomo_stream.settings.topic_flags import GivenFlags, InputFlags

NO_REPORT = "none"
TOPIC_FLAGS = ("from_", "to", "last", "labels_topic")


class ReplaySettings(GivenFlags, InputFlags, FileFlags):
    """`fomo-stream replay`: score past records. It has all settings of the service that results depend on."""

    topic: str = flag("Input", "", metavar="TOPIC", affects="scores")
    """topic to replay"""
    file: Path | None = flag("Input", None, metavar="FILE", affects="scores")
    """file to replay instead of a topic"""
    format: Literal["auto", "csv", "jsonl", "avro", "parquet", "npz"] = flag("Input", "auto", affects="scores")
    """format of --file; auto: by the ending of its name, else by its first character"""
    from_: str = flag("Input", "", metavar="PLACE", affects="scores")
    """first record: a time (2026-10-01, 2026-10-01T12:00Z; without a zone: UTC), an offset, or an offset for each
    partition (0:812,1:790) (default: the first record that the topic retains)"""
    to: str = flag("Input", "", metavar="PLACE", affects="scores")
    """end of the range, written as --from; the record there is not replayed (default: all)"""
    last: str = flag("Input", "", metavar="DURATION", affects="scores")
    """replay the last 90s, 30m, 12h or 7d, instead of --from"""
    label: str | None = flag("Labels", None, metavar="FIELD", affects="scores")
    """field that says whether a record is an outlier: true or false, 1 or 0, or -1 or 1 as in scikit-learn"""
    labels_topic: str | None = flag("Labels", None, metavar="TOPIC", min_length=1, affects="scores")
    """topic with labels, as the service takes them by --feedback"""
    labels_file: Path | None = flag("Labels", None, metavar="FILE", affects="scores")
    """CSV or JSON lines with labels: offset or key, outlier, and optionally partition"""
    compare: Names = flag("Detectors", (), metavar="A,B", affects="scores")
    """other detectors to compare with in the same pass: river.HalfSpaceTrees, river.OneClassSVM, knn, or
    module:factory"""
    grid: tuple[str, ...] = flag("Detectors", (), metavar="NAME=A,B", words=True, affects="scores")
    """own settings to compare with, in all combinations: alert_rate=0.01,0.001 context_size=1000,5000"""
    report: str = flag("Report", "fomo-replay.html", metavar="FILE", affects="running")
    """HTML file for the report; none: write none"""
    json_: Path | None = flag("Report", None, metavar="FILE", affects="running")
    """also write the report as JSON, for compare"""
    scores_file: Path | None = flag("Report", None, metavar="FILE", affects="running")
    """also write the scored records to this file, as JSON lines"""
    suggest: Path | None = flag("Report", None, metavar="FILE", affects="running")
    """write a configuration that the records suggest to this file (YAML): roles of fields, counters, and rules that
    leave few incidents"""
    incidents_per_day: float = flag("Report", 1.25, metavar="N", gt=0, affects="scores")
    """maximum number of incidents a day that the configuration of --suggest should leave"""
    jobs: int = flag("Throughput", 0, metavar="N", ge=0, le=1024, affects="running")
    """partitions to replay at the same time (0: one per processor)"""
    log_level: LogLevel = with_default(BaseFlags, "log_level", "warning")

    @model_validator(mode="after")
    def _source_is_one(self) -> Self:
        if bool(self.topic) == (self.file is not None):
            raise ValueError("name what to replay: either --topic or --file")
        has_file = self.file is not None
        if has_file and (flags_of_topic := [name for name in TOPIC_FLAGS if getattr(self, name)]):
            raise ValueError(f"{option(flags_of_topic[0])} needs --topic; a --file is replayed as a whole")
        if has_file:
            self.check_times_of_file()
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
        """Refuse a label that is also a key or a time: it would reach the scores."""
        roles = [("--label", self.label), ("--key", self.key), ("--time", self.time)]
        for (name, field), (other, other_field) in combinations(roles, 2):
            if field is not None and field == other_field:
                raise ValueError(f"{name} and {other} both name the field {field}; give each a field of its own")
        return self


class CompareSettings(BaseFlags):
    """`fomo-stream compare`: say what changed between two replays."""

    before: Path = Field(..., json_schema_extra={"positional": True})
    """JSON report of a replay"""
    after: Path = Field(..., json_schema_extra={"positional": True})
    """JSON report of another replay"""


def option_values(settings: BaseFlags) -> dict[str, Any]:
    """Return the settings that have a value, as JSON-ready values without secrets."""
    return {
        name: value
        for name, value in settings.model_dump(mode="json", exclude={*TABLES, "config"}).items()
        if value not in (None, "", [], ())
    }
