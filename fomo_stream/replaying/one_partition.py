"""Replays one partition to its end, with everything around it: other detectors, the tally, outputs and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fomo_stream.detector.detector import Detector
from fomo_stream.loading import load_ready
from fomo_stream.partition.first import first_detector
from fomo_stream.replaying.checkpoints import Checkpoint
from fomo_stream.replaying.gathering import IsStopped
from fomo_stream.replaying.partition import OWN, Others, PartitionReplay, own_entries

if TYPE_CHECKING:
    from fomo_stream.replaying.plan import Plan
    from fomo_stream.replaying.sinks import Sink
    from fomo_stream.replaying.tally.spec import TallySpec
    from fomo_stream.replaying.tally.tally import Tally

Advance = Callable[[int, bool], None]  # so many more records are done; whether before this process began


@dataclass(frozen=True)
class Job:
    """One partition to replay. It is sent to the process that does."""

    plan: Plan  # of this partition at least
    partition: int
    folder: Path | None = None  # for checkpoints
    keep_state: bool = False  # for --prepare


@dataclass
class Outcome:
    """What the replay of a partition has found."""

    partition: int
    tally: Tally
    position: int  # offset of the next record
    is_complete: bool
    seconds: dict[str, float]  # that each detector took, by name
    began: float  # seconds, monotonic
    ended: float
    elapsed: float  # seconds, in all runs
    resumed: int  # how often it went on
    model: str
    kernel: str
    left_out: tuple[str, ...]  # names of views that the rows do not fit
    learned: int | None = None  # records, before the offset until which the group of the plan has; None: not known
    entries: dict[str, bytes] = field(default_factory=dict)  # the state of the partition, with `keep_state`


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


def tally_spec(plan: Plan) -> TallySpec:
    """What is counted: the detector itself, variants, and rivals, in this order."""
    from fomo_stream.replaying.detectors.variants import variants
    from fomo_stream.replaying.tally.spec import TallySpec

    settings = plan.settings
    names = (OWN, *(name for name, _ in variants(settings)), *settings.compare)
    features, categorical = plan.schema.features, plan.schema.categorical
    return TallySpec(names, features, settings.alert_rate, plan.has_labels, plan.axis, categorical)


def replay_one(job: Job, detectors: Detectors, is_stopped: IsStopped, advance: Advance) -> Outcome:
    """Replay a partition until its end or until `is_stopped`; with a folder, go on from what was saved there.

    advance: is called after each block. Raises FomoError.
    """
    sink = job.plan.sink(job.partition)
    try:
        return _Run(job, detectors, sink).run(is_stopped, advance)
    finally:
        if sink is not None:
            sink.close()


class _Run:
    """A replay of one partition, its tally, and what was saved of both."""

    def __init__(self, job: Job, detectors: Detectors, sink: Sink | None) -> None:
        from fomo_stream.replaying.tally.tally import Tally

        self._began = time.monotonic()
        self._job, self._first = job, detectors.first
        self._replay = PartitionReplay(job.plan, job.partition, detectors.first, detectors.others(), sink)
        self._elapsed, self._resumed, self._records = 0.0, 0, 0
        self._checkpoint = None if job.folder is None else Checkpoint(job.folder, job.partition)
        saved = None if self._checkpoint is None else self._checkpoint.load()
        if saved is None:
            self._tally = Tally(tally_spec(job.plan))
            return
        self._replay.continue_from(saved.place, saved.entries)
        self._tally = Tally.from_arrays(tally_spec(job.plan), saved.tally)
        self._elapsed, self._records = float(saved.place["elapsed"]), int(saved.place["records"])
        self._resumed = int(saved.place["resumed"]) + (not self._replay.is_complete)

    def run(self, is_stopped: IsStopped, advance: Advance) -> Outcome:
        """Replay what is left."""
        replay = self._replay
        if self._records:
            advance(self._records, True)
        if not replay.is_complete:
            for block in replay.blocks(is_stopped):
                n = len(block) + sum(block.skipped.values())
                self._tally.add(block)
                self._records += n
                advance(n, False)
                if self._checkpoint is not None and self._checkpoint.is_due:
                    self._save(self._checkpoint)
            if self._checkpoint is not None:
                self._save(self._checkpoint)
        model = self._first.model
        return Outcome(
            partition=replay.number,
            tally=self._tally,
            position=replay.position,
            is_complete=replay.is_complete,
            seconds=dict(replay.seconds),
            began=self._began,
            ended=time.monotonic(),
            elapsed=self._all_elapsed(),
            resumed=self._resumed,
            model=model.name,
            kernel=model.kernel,
            left_out=tuple(one.view for one in self._first.left_out),
            learned=replay.learned,
            entries=self._state() if self._job.keep_state else {},
        )

    def _save(self, checkpoint: Checkpoint) -> None:
        own = {"elapsed": self._all_elapsed(), "resumed": self._resumed, "records": self._records}
        checkpoint.save({**self._replay.place(), **own}, self._tally.arrays(), self._replay.changes())

    def _all_elapsed(self) -> float:
        return self._elapsed + time.monotonic() - self._began

    def _state(self) -> dict[str, bytes]:
        """The whole state of the partition, as entries of the state topic."""
        if self._checkpoint is not None:
            return own_entries(self._checkpoint.entries)
        return own_entries({key: value for key, value in self._replay.changes().items() if value is not None})
