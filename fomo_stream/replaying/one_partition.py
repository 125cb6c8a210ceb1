"""Replays one partition to its end, with everything around it: other detectors, notes of its records, and outputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fomo_stream.detector.detector import Detector
from fomo_stream.loading import load_ready
from fomo_stream.partition.first import first_detector
from fomo_stream.replaying.blocks import IsStopped
from fomo_stream.replaying.partition import OWN, Others, PartitionReplay
from fomo_stream.replaying.sinks import Sink, part_of

if TYPE_CHECKING:
    from fomo_stream.replaying.measures.recorder import Recorded, Spec
    from fomo_stream.replaying.plan import Plan

Advance = Callable[[int], None]  # so many more records are done


@dataclass(frozen=True)
class Job:
    """One partition to replay. It is sent to the process that does."""

    plan: Plan  # of this partition at least
    partition: int
    folder: Path  # for notes of its records


@dataclass
class Outcome:
    """What the replay of a partition has found."""

    partition: int
    recorded: Recorded
    position: int  # offset of the next record
    is_complete: bool
    seconds: dict[str, float]  # that each detector took, by name
    began: float  # seconds, monotonic
    ended: float
    model: str
    kernel: str
    left_out: tuple[str, ...]  # names of views that the rows do not fit


class Detectors:
    """The detectors of a plan before the first record: every partition begins with copies of them.

    Raises SchemaError, CheckpointError or ConfigError.
    """

    def __init__(self, plan: Plan) -> None:
        from fomo_stream.replaying.detectors.variants import variants

        settings = plan.settings
        self._plan = plan
        self.first = self._of(plan)
        self.variants: dict[str, Detector] = {}
        for name, its in variants(settings):
            model = self.first.model
            if its.model != settings.model:
                model = load_ready(its.model, its.device, its.kernel)
            # only alerts of the detector itself are listed, with reasons
            unexplained = its.model_copy(update={"explain": "none"})
            self.variants[name] = first_detector(unexplained, model, plan.schema, None)

    @staticmethod
    def _of(plan: Plan) -> Detector:
        settings = plan.settings
        return first_detector(settings, load_ready(settings.model, settings.device, settings.kernel), plan.schema, None)

    def others(self) -> Others:
        """The other detectors for one partition; rivals are made for each."""
        from fomo_stream.replaying.detectors.rivals import make_rival

        settings, schema = self._plan.settings, self._plan.schema
        config, d = settings.detector_config(), len(schema.features)
        made = [make_rival(spec, d, schema.features, config, schema.categorical_columns) for spec in settings.compare]
        return Others(self.variants, made)


def spec_of(plan: Plan) -> Spec:
    """What is measured: the detector itself, variants, and rivals, in this order."""
    from fomo_stream.replaying.detectors.variants import variants
    from fomo_stream.replaying.measures.recorder import Spec

    settings = plan.settings
    names = (OWN, *(name for name, _ in variants(settings)), *settings.compare)
    features, categorical = plan.schema.features, plan.schema.categorical
    return Spec(names, features, settings.alert_rate, plan.has_labels, plan.axis, categorical)


def replay_one(job: Job, detectors: Detectors, is_stopped: IsStopped, advance: Advance) -> Outcome:
    """Replay a partition until its end or until `is_stopped`. advance: is called after each block. Raises FomoError."""
    from fomo_stream.replaying.measures.recorder import Recorder

    began, path = time.monotonic(), job.plan.settings.scores_file
    recorder = Recorder(job.folder, spec_of(job.plan), job.partition)
    sink = Sink(job.plan.settings, part_of(path, job.partition)) if path is not None else None
    with sink or nullcontext():
        replay = PartitionReplay(job.plan, job.partition, detectors.first, detectors.others(), sink)
        for block in replay.blocks(is_stopped):
            recorder.add(block)
            advance(len(block) + sum(block.skipped.values()))
    model = detectors.first.model
    return Outcome(
        partition=replay.number,
        recorded=recorder.close(),
        position=replay.position,
        is_complete=replay.is_complete,
        seconds=dict(replay.seconds),
        began=began,
        ended=time.monotonic(),
        model=model.name,
        kernel=model.kernel,
        left_out=tuple(one.view for one in detectors.first.left_out),
    )
