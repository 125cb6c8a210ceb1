"""A replay of one partition gives the very outputs of the service, with the labels that took effect there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from one_partition import FLAGS, SCHEMA, Instance, as_record
from pipelines import QuickSettings, cheap_model

from fomo_stream.detector.changelog import Entries
from fomo_stream.errors import RecordError
from fomo_stream.kafka.feedback.recorded_effects import LabelEffect
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

    def start(self, partition: int) -> int:
        return 0

    def total(self, partition: int) -> int | None:
        return self.stop

    def part(self, partition: int) -> Records:
        return self

    def read(self, partition: int, start: int, is_stopped: Callable[[], bool]) -> Iterator[Sample]:
        for offset in range(start, self.stop):
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


def effects_of(instance: Instance) -> list[LabelEffect]:
    found = [output for output in instance.delivery.outputs if (output.key or b"").startswith(b"feedback/")]
    values = [json.loads(output.value or b"") for output in found]
    return [
        LabelEffect(value["input_offset"], tuple((to, is_outlier) for _, to, is_outlier in value["labels"]))
        for value in values
    ]


def of_incidents(entries: Entries) -> Entries:
    """The entries of open incidents."""
    return {name.removeprefix("incidents/"): value for name, value in entries.items() if name.startswith("incidents/")}


steps = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 160), st.booleans()), min_size=4, max_size=12)


@settings(max_examples=8)
@given(steps=steps, batch_size=st.integers(1, 20))
def test_results_are_those_of_the_service(steps: list[tuple[int, int, bool]], batch_size: int) -> None:
    instance, position = Instance(), 0
    for at, (records, labelled, outlier) in enumerate(steps):
        instance.score(position, position + records)
        position += records
        instance.label(at, outlier, labelled)
        instance.pipeline.score_due(0.0)
    effects = effects_of(instance)
    flags: dict[str, Any] = {name: value for name, value in FLAGS.items() if name != "kind"}
    own = QuickReplay(topic="t", **{**flags, "batch_size": batch_size})
    incidents = instance.pipeline.tasks[0].incidents.copy().changes()
    plan = Plan(own, SCHEMA, Records(position), {0: effects}, False, "", "time", ("",), 10**13)
    kept: Any = Kept()
    replay = PartitionReplay(plan, 0, first_detector(own, cheap_model(), SCHEMA, None), sink=kept)
    skipped = sum(sum(block.skipped.values()) for block in replay.blocks(lambda: False))
    outputs = [json.loads(output.value or b"")["fomo"] for output in instance.delivery.to("t-scores")]
    assert kept.results == outputs
    assert of_incidents(replay.changes()) == incidents
    assert skipped == len(instance.delivery.to("t-dead-letters"))
