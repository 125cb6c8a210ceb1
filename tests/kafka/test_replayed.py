"""A replay of one partition gives the very outputs of the service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from pipelines import FLAGS, SCHEMA, Instance, QuickSettings, as_record, cheap_model

from fomo_stream.errors import RecordError
from fomo_stream.partition.first import first_detector
from fomo_stream.records.json_codec import decode
from fomo_stream.records.result import Result
from fomo_stream.replaying.blocks import Sample
from fomo_stream.replaying.partition import PartitionReplay
from fomo_stream.replaying.plan import Plan
from fomo_stream.settings.replay import ReplaySettings


class QuickReplay(QuickSettings, ReplaySettings):
    """As `QuickSettings`."""


@dataclass(frozen=True)
class Records:
    """The records of the service's partition."""

    stop: int
    partitions: tuple[int, ...] = (0,)
    name: str = "t"
    kind: Literal["topic"] = "topic"

    def start(self, partition: int) -> int:
        return 0

    def total(self, partition: int) -> int | None:
        return self.stop

    def part(self, partition: int) -> Records:
        return self

    def read(self, partition: int, is_stopped: Callable[[], bool]) -> Iterator[Sample]:
        for offset in range(self.stop):
            record = as_record(offset)
            try:
                yield Sample(offset, record.timestamp, record.key, decode(record.value), raw=record.value)
            except RecordError as error:
                yield Sample(offset, record.timestamp, record.key, {}, error)


@dataclass
class Kept:
    """A sink that keeps the results."""

    results: list[Result] = field(default_factory=list)

    def write(self, samples: Sequence[Sample], results: Sequence[Result]) -> None:
        self.results += results


@given(records=st.integers(0, 160), batch_size=st.integers(1, 20))
def test_results_are_those_of_the_service(records: int, batch_size: int) -> None:
    instance = Instance()
    instance.score(0, records)
    flags: dict[str, Any] = {name: value for name, value in FLAGS.items() if name != "kind"}
    own = QuickReplay(topic="t", **{**flags, "batch_size": batch_size})
    plan = Plan(own, SCHEMA, Records(records), False, "", "time", ("",), 10**13)
    kept: Any = Kept()
    replay = PartitionReplay(plan, 0, first_detector(own, cheap_model(), SCHEMA, None), sink=kept)
    skipped = sum(sum(block.skipped.values()) for block in replay.blocks(lambda: False))
    assert kept.results == [json.loads(output.value or b"")["fomo"] for output in instance.delivery.to("t-scores")]
    assert skipped == len(instance.delivery.to("t-dead-letters"))
