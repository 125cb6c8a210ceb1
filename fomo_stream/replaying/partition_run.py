"""Replays one partition, block by block, with the code that scores records in the service."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.loading import first_detector, load_ready
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.position import Restored
from fomo_stream.partition.running import MAINTENANCE, Running, ScoredBatch
from fomo_stream.records.json_codec import JsonCodec
from fomo_stream.replaying.advice import Alert, alerts_in
from fomo_stream.replaying.blocks import BLOCK, Block, BlockJudgement, Int, IsStopped, Sample
from fomo_stream.replaying.detectors.rivals import Rival
from fomo_stream.replaying.detectors.variants import variants
from fomo_stream.replaying.measures.recorder import MeasureSpec, Recorded, Recorder
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.report_files import written_to
from fomo_stream.settings.replay import ReplaySettings

OWN_DETECTOR = "fomo-stream"  # name of the detector itself
WITHOUT_RULES = "without rules"  # name of its alerts before rules and windows of maintenance are applied
MINUTE_MS = 60_000

Advance = Callable[[int], None]  # called with the number of further records that are done


class PartitionReplay:
    """Replays one partition, block by block; it can be stopped between two blocks.

    It uses copies of the detector itself, `first`, and of its variants, by name.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        first: Detector,
        variants: Mapping[str, Detector] = MappingProxyType({}),
        rivals: Sequence[Rival] = (),
    ) -> None:
        self.number = number
        self.is_complete = False
        self.seconds: dict[str, float] = defaultdict(float)  # that each detector took, by name
        self._plan, self._rivals = plan, rivals
        self._variants = {name: detector.staggered(number) for name, detector in variants.items()}
        self._clock = MonotonicTimes(plan.now_ms, plan.begin_ms)
        ids = {plan.settings.topic: plan.ranges[number].topic_id} if number in plan.ranges else {}
        waiting = Waiting(number, plan.settings, topic=plan.settings.topic or None, ids=ids)
        waiting.restore(Restored(plan.source.start(number)))
        self._partition = Running(waiting, first, plan.schema)

    @property
    def position(self) -> int:
        """The offset of the next record; all before it are scored or skipped."""
        assert self._partition.position is not None
        return self._partition.position

    def blocks(self, is_stopped: IsStopped) -> Iterator[Block]:
        """Yield the blocks of all records. After `is_stopped` it begins no further block."""
        samples = self._plan.source.read(self.number, is_stopped)
        while block_samples := list(islice(samples, BLOCK)):
            if is_stopped():
                return
            yield self._block(block_samples)
        self.is_complete = not is_stopped()

    def _block(self, taken: list[Sample]) -> Block:
        sound = [sample for sample in taken if sample.error is None]
        skipped = Counter(sample.error.reason for sample in taken if sample.error is not None)
        parts = self._score(sound)
        self._partition.skip(taken)
        results = Results.concatenate([part.columns for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        detector_rows = np.concatenate([part.detector_rows for part in parts])
        keys = [key for part in parts for key in part.keys]
        usable = np.concatenate([part.usable for part in parts]).tolist()
        samples = list(compress(sound, usable))
        sound_results = [result for part in parts for result in part.results]
        for result, is_usable in zip(sound_results, usable, strict=True):
            if not is_usable:
                skipped["no_features" if result is None else MAINTENANCE] += 1
        offsets = np.fromiter((sample.offset for sample in samples), np.int64, len(samples))
        muted = np.fromiter(map(self._partition.muted.has, keys), bool, len(keys))
        judgements = {OWN_DETECTOR: _judgement(results, muted)}
        if self._plan.settings.has_rules:
            before = np.concatenate([part.before_rules for part in parts])
            judgements[WITHOUT_RULES] = BlockJudgement(results.score, before).without_alerts(muted)
        for name, detector in self._variants.items():
            began = time.perf_counter()
            judgements[name] = _judgement(detector.process(detector_rows, keys), muted)
            self.seconds[name] += time.perf_counter() - began
        for rival in self._rivals:
            began = time.perf_counter()
            judgements[rival.name] = rival.judge(rows).without_alerts(muted)
            self.seconds[rival.name] += time.perf_counter() - began
        times, odd_times = offsets, 0
        if self._plan.axis == "time":
            times, odd_times = self._clock.times([sample.timestamp for sample in samples])
        return Block(
            partition=self.number,
            offsets=offsets,
            times=times,
            labels=np.fromiter((sample.label for sample in samples), np.int8, len(samples)),
            rows=rows,
            results=results,
            judgements=judgements,
            fields=[sample.fields for sample in samples],
            suppressed=Counter(result["suppressed"] for result in sound_results if result and "suppressed" in result),
            keys=keys,
            raw=[sample.raw for sample in samples],
            outputs=[result for result in compress(sound_results, usable) if result is not None],
            skipped=dict(skipped),
            odd_times=odd_times,
            notices=[notice for part in parts for notice in part.notices],
            ended_incidents=[notice.summary for part in parts for notice in part.closed],
            open_incidents=self._partition.incidents.open,
        )

    def _score(self, samples: list[Sample]) -> list[ScoredBatch]:
        """Score and learn the records of a block in micro-batches, at least one, which may be empty."""
        detector, batch_size = self._partition.detector, self._plan.settings.batch_size
        parts: list[ScoredBatch] = []
        start, began = 0, time.perf_counter()
        while start < len(samples) or not parts:
            stop = min(len(samples), start + min(batch_size, detector.room))
            parts.append(self._partition.score(samples[start:stop], now=self._plan.now_ms))
            start = stop
        self.seconds[OWN_DETECTOR] += time.perf_counter() - began
        return parts


def _judgement(results: Results, muted: NDArray[np.bool_]) -> BlockJudgement:
    return BlockJudgement(results.score, results.outlier).without_alerts(muted)


@dataclass
class MonotonicTimes:
    """Makes times of records that never descend.

    A record without a time, or with a time outside the range or before that of an earlier record, gets the time of the
    record before it; the first records get the first valid time.

    >>> clock = MonotonicTimes(now=100)
    >>> times, n_odd = clock.times([None, 7, 5, 120, 8])
    >>> times.tolist(), n_odd
    ([7, 7, 7, 7, 8], 1)
    """

    now: int  # milliseconds since 1970
    begin: int = 0  # of the range, where it is known
    last: int | None = None  # time of the last record

    def times(self, stamps: Sequence[int | None]) -> tuple[Int, int]:
        """Return times (n,) of the next records from timestamps, and how many lack one or differ by over a minute."""
        first = max(1, self.begin)
        valid = np.array([ms if ms is not None and first <= ms <= self.now else -1 for ms in stamps], np.int64)
        start = self.last if self.last is not None else next((ms for ms in valid.tolist() if ms > 0), self.begin)
        times: Int = np.maximum.accumulate(np.maximum(valid, start))
        self.last = int(times[-1]) if len(times) else self.last
        pairs = zip(stamps, times.tolist(), strict=True)
        return times, sum(stamp is None or abs(time - stamp) > MINUTE_MS for stamp, time in pairs)


@dataclass(frozen=True)
class Job:
    """A partition to replay. It is sent to the process that replays it."""

    plan: Plan  # with at least the parts for this partition
    partition: int
    folder: Path  # for notes of its records

    @property
    def scores(self) -> Path:
        """The path of this partition's part of --scores-file."""
        return self.folder / f"{self.partition}.scores"


@dataclass
class PartitionOutcome:
    """The outcome of the replay of a partition."""

    partition: int
    recorded: Recorded
    position: int  # offset of the next record
    is_complete: bool
    seconds: dict[str, float]  # that each detector took, by name
    began: float  # seconds, monotonic
    ended: float
    model: str
    kernel: str
    left_out: tuple[str, ...]  # names of views that are too narrow for the rows
    alerts: list[Alert]  # for --suggest, else empty


class PlanDetectors:
    """The detectors of a plan before the first record; every partition uses copies of them.

    Raises SchemaError, CheckpointError or ConfigError.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, settings = plan, plan.settings
        own_model = load_ready(settings.model, settings.device, settings.backend)
        self.first = first_detector(settings, own_model, plan.schema, None, plan.refer)
        self.variants: dict[str, Detector] = {}
        for name, variant in variants(settings):
            is_same = variant.model == settings.model
            model = own_model if is_same else load_ready(variant.model, variant.device, variant.backend)
            # reasons are only shown for alerts of the detector itself
            unexplained = variant.model_copy(update={"explain": "none"})
            self.variants[name] = first_detector(unexplained, model, plan.schema, None, plan.refer)

    def rivals(self) -> list[Rival]:
        """Return the other detectors for one partition."""
        schema, config = self._plan.schema, self._plan.settings.detector_config()
        columns = schema.categorical_columns
        return [Rival(spec, schema.features, config, columns) for spec in self._plan.settings.compare]


def measure_spec(plan: Plan) -> MeasureSpec:
    """Return what is measured: the detector itself, variants, and rivals, in this order."""
    settings = plan.settings
    before = (WITHOUT_RULES,) if settings.has_rules else ()
    names = (OWN_DETECTOR, *before, *(name for name, _ in variants(settings)), *settings.compare)
    schema, rate = plan.schema, settings.alert_rate
    return MeasureSpec(
        names, schema.features, rate, plan.has_labels, plan.axis, schema.categorical, schema.counters, settings.quiet
    )


def replay_partition(job: Job, detectors: PlanDetectors, is_stopped: IsStopped, advance: Advance) -> PartitionOutcome:
    """Replay a partition to its end or until `is_stopped`. advance: called after each block. Raises FomoError."""
    began, settings = time.monotonic(), job.plan.settings
    recorder = Recorder(job.folder, measure_spec(job.plan), job.partition)
    replay = PartitionReplay(job.plan, job.partition, detectors.first, detectors.variants, detectors.rivals())
    alerts, n = list[Alert](), 0
    for block in replay.blocks(is_stopped):
        recorder.add(block)
        if settings.suggest is not None:
            alerts += alerts_in(block, n)
        n += len(block)
        if settings.scores_file is not None:
            _append_scores(job.scores, block, settings)
        advance(len(block) + sum(block.skipped.values()))
    model = detectors.first.model
    return PartitionOutcome(
        partition=replay.number,
        recorded=recorder.close(),
        position=replay.position,
        is_complete=replay.is_complete,
        seconds=dict(replay.seconds),
        began=began,
        ended=time.monotonic(),
        model=model.name,
        kernel=model.kernel,
        left_out=tuple(reason.view for reason in detectors.first.left_out),
        alerts=alerts,
    )


def _append_scores(path: Path, block: Block, settings: ReplaySettings) -> None:
    """Append the records of a block with their results, each with the bytes that the service would produce."""
    codec = JsonCodec(settings.result_field, settings.scores_only, settings.max_record_bytes)
    with written_to(path.parent), path.open("ab") as file:
        for fields, raw, result in zip(block.fields, block.raw, block.outputs, strict=True):
            file.write(codec.encode(fields, result, raw) + b"\n")
