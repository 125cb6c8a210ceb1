"""The data that the parts of a replay exchange: sources, their samples, and blocks of scored records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.errors import RecordError
from fomo_stream.partition.incidents import Notice
from fomo_stream.records.result import Result

Float = NDArray[np.float64]
Int = NDArray[np.int64]

BLOCK = 1024  # scored records in a block; the last one of a partition may be shorter
INLIER, OUTLIER, UNKNOWN, UNREADABLE = 0, 1, -1, -2  # labels
IsStopped = Callable[[], bool]


class Sample(NamedTuple):
    """One record of a source, in its order."""

    offset: int  # in a file: the number of the record, from 0
    timestamp: int | None  # milliseconds since 1970
    key: bytes | str | None  # names its series
    fields: dict[str, Any]  # empty with an `error`
    error: RecordError | None = None  # why it cannot be scored
    label: int = UNKNOWN
    raw: bytes | None = None  # the value of a Kafka record: its output keeps these bytes where it can


class Source(Protocol):
    """A source of past records. It is sent to worker processes, so it is small and opens its client when it reads."""

    @property
    def partitions(self) -> tuple[int, ...]: ...

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Literal["file", "memory", "topic"]: ...

    def start(self, partition: int) -> int:
        """Return the first offset of the range."""
        ...

    def total(self, partition: int) -> int | None:
        """Return the maximum number of records in the range; None if it is not known."""
        ...

    def read(self, partition: int, is_stopped: IsStopped) -> Iterator[Sample]:
        """Yield the records of the range in order, in constant memory; stop early if `is_stopped`."""
        ...

    def part(self, partition: int) -> Source:
        """Return the source with only the parts that are needed to read this partition."""
        ...


@dataclass(frozen=True)
class BlockJudgement:
    """The scores and alerts of one detector for the n records of a block."""

    score: Float  # (n,) ranks records, higher = more anomalous; NaN: no score (warm-up)
    alert: NDArray[np.bool_]  # (n,)

    def without_alerts(self, muted: NDArray[np.bool_]) -> BlockJudgement:
        """Return the judgement without alerts for some records (n,)."""
        return replace(self, alert=self.alert & ~muted) if muted.any() else self


@dataclass(frozen=True)
class Block:
    """n consecutive scored records of one partition, with the judgements of every detector.

    Records that cannot be scored (malformed, without features) are only counted, in `skipped`.
    """

    partition: int
    offsets: Int  # (n,) ascending
    times: Int  # (n,) milliseconds since 1970, never descending; the record's number where records have no time
    labels: NDArray[np.int8]  # (n,) INLIER, OUTLIER, UNKNOWN or UNREADABLE
    rows: Float  # (n, d) feature values, raw units, NaN = missing
    results: Results  # (n,) of the detector itself
    judgements: Mapping[str, BlockJudgement]  # by name, in the order of the plan; first the detector itself
    fields: list[dict[str, Any]]  # (n,) the records
    keys: Sequence[Key] = ()  # (n,) of their series
    raw: Sequence[bytes | None] = ()  # (n,) as `Sample.raw`
    outputs: Sequence[Result] = ()  # (n,) results that the service would write
    suppressed: Mapping[str, int] = field(default_factory=dict)  # alerts, or records, by rule or window
    skipped: Mapping[str, int] = field(default_factory=dict)  # records without a score, by reason
    odd_times: int = 0  # records whose timestamp is missing or differs from their time by more than a minute
    notices: Sequence[Notice] = ()  # ends of incidents, and notices of silence
    ended_incidents: Sequence[Result] = ()  # incidents that ended in the block, summed up
    open_incidents: Sequence[Result] = ()  # incidents that are open after the block

    def __len__(self) -> int:
        return len(self.offsets)
