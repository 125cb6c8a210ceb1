"""The replay of one partition: its records through the code that scores them in the service, as blocks."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import Entries, StoredEntries
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.detector.series import Key
from fomo_stream.partition.incidents import Closed
from fomo_stream.partition.labels import Label
from fomo_stream.partition.partition import Partition
from fomo_stream.partition.position import Restored
from fomo_stream.records.result import Result
from fomo_stream.records.rows import RowReader
from fomo_stream.replaying.blocks import BLOCK, Block, ContextNote, Float, Int, Judgement, Sample
from fomo_stream.replaying.gathering import Clock, Gathered, IsStopped, Lookahead, gather

if TYPE_CHECKING:
    from fomo_stream.replaying.detectors.rivals import Rival
    from fomo_stream.replaying.plan import Plan
    from fomo_stream.replaying.sinks import Sink

OWN = "fomo-stream"  # name of the detector itself
VARIANT = "variant"  # before the number of a variant: the key of its entries


@dataclass
class Others:
    """The detectors beside the detector itself, and the seconds that each took, by name."""

    variants: dict[str, Detector] = field(default_factory=dict)
    rivals: Sequence[Rival] = field(default_factory=list)


class _Verdicts(NamedTuple):
    """Labels that take effect before the record at this place of the block."""

    at: int
    numbers: Int
    outlier: NDArray[np.bool_]


class PartitionReplay:
    """Replays one partition, block by block; between two blocks it can be stopped, saved and continued.

    first: the detector that the partition begins with a copy of; others: the same for other settings, and rivals.
    Raises StateError when `continue_from` gets entries of another detector.
    """

    def __init__(
        self, plan: Plan, number: int, first: Detector, others: Others | None = None, sink: Sink | None = None
    ) -> None:
        self.number = number
        self.is_complete = False
        self.seconds: dict[str, float] = defaultdict(float)  # that each detector took, by name
        self._plan, self._first, self._sink = plan, first, sink
        others = others or Others()
        self._variants = {name: detector.copy() for name, detector in others.variants.items()}
        self._rivals = others.rivals
        self._effects = sorted(plan.effects.get(number, ()), key=lambda effect: effect.input_offset)
        self._next_effect, self._effects_until = 0, -1
        self._clock = Clock(plan.now_ms, plan.begin_ms)
        self._context: Int | None = None  # the context of the first view, as numbers of records
        self._generation = 0
        # Records learned before the offset until which the group has, or before `position`; None: not known.
        self.learned: int | None
        self._learned_until = 0 if plan.live is None else plan.live.until(number)
        self._begin(Restored(plan.source.start(number)))

    @property
    def position(self) -> int:
        """Offset of the next record; all before it are scored or skipped."""
        assert self._task.position is not None
        return self._task.position

    # -- blocks --------------------------------------------------------------------------------------------------

    def blocks(self, is_stopped: IsStopped) -> Iterator[Block]:
        """The blocks from `position` on. After `is_stopped` the next block is not begun."""
        samples = Lookahead(self._plan.source.read(self.number, self.position, is_stopped))
        while True:
            gathered = gather(samples, self._reader, self.position, is_stopped, BLOCK)
            if is_stopped():
                return
            block = self._block(gathered)
            self._task.position = gathered.position
            if block.skipped or len(block):
                yield block
            if gathered.is_last:
                break
        # The service lets labels take effect as soon as their records are scored.
        self._verdicts_before(self.position, at=0)
        self.is_complete = True

    def _block(self, gathered: Gathered) -> Block:
        samples, rows, keys = gathered.samples, gathered.rows, gathered.keys
        offsets = np.fromiter((sample.offset for sample in samples), np.int64, len(samples))
        results, made, ended, verdicts, contexts, batch_s = self._score(samples, offsets)
        if self.learned is not None:
            self.learned += int(np.searchsorted(offsets, self._learned_until))
        judgements = {OWN: _judgement(results)}
        for name, detector in self._variants.items():
            began = time.perf_counter()
            judgements[name] = _judgement(_process(detector, rows, keys, verdicts))
            self.seconds[name] += time.perf_counter() - began
        for rival in self._rivals:
            began = time.perf_counter()
            judgements[rival.name] = rival.judge(rows)
            self.seconds[rival.name] += time.perf_counter() - began
        if self._sink is not None:
            self._sink.write(samples, made)
        times, odd_times = offsets, 0
        if self._plan.axis == "time":
            times, odd_times = self._clock.times([sample.timestamp for sample in samples], gathered.later)
        return Block(
            partition=self.number,
            offsets=offsets,
            times=times,
            labels=np.fromiter((sample.label for sample in samples), np.int8, len(samples)),
            rows=rows,
            results=results,
            judgements=judgements,
            fields=[sample.fields for sample in samples],
            skipped=dict(gathered.skipped),
            contexts=tuple(contexts),
            batch_s=tuple(batch_s),
            odd_times=odd_times,
            ended_incidents=tuple(one.summary["records"] for one in ended),
            open_incidents=self._task.incidents.sizes(),
        )

    def _score(
        self, samples: list[Sample], offsets: Int
    ) -> tuple[Results, list[Result], list[Closed], list[_Verdicts], list[ContextNote], list[float]]:
        """Score and learn the records of a block in micro-batches, with the labels that take effect between them."""
        task, detector, most = self._task, self._detector, self._plan.settings.batch_size
        parts: list[Results] = []
        made: list[Result] = []
        ended: list[Closed] = []
        verdicts: list[_Verdicts] = []
        contexts: list[ContextNote] = []
        batch_s: list[float] = []
        places = offsets.tolist()
        start, n = 0, len(samples)
        while start < n:
            verdicts += self._verdicts_before(places[start], start)
            stop = min(n, start + min(most, detector.room))
            if self._next_effect < len(self._effects):
                due = self._effects[self._next_effect].input_offset
                stop = min(stop, start + int(np.searchsorted(offsets[start:], due)))
            began = time.perf_counter()
            if detector.generation != self._generation:
                contexts += self._look_at_context(start)  # which waits until it is built
            scored = task.score(samples[start:stop])
            parts.append(scored.columns)
            made += [result for result in scored.results if result is not None]
            ended += scored.closed
            batch_s.append(time.perf_counter() - began)
            start = stop
        self.seconds[OWN] += sum(batch_s)
        results = Results.concatenate(parts) if parts else task.score([]).columns
        return results, made, ended, verdicts, contexts, batch_s

    def _verdicts_before(self, offset: int, at: int) -> list[_Verdicts]:
        """Let the labels take effect that did so before the record at `offset` was scored."""
        stop = bisect_right(self._effects, offset, self._next_effect, key=lambda effect: effect.input_offset)
        labels = [label for effect in self._effects[self._next_effect : stop] for label in effect.labels]
        self._next_effect, self._effects_until = stop, offset
        found = [(place[0], outlier) for to, outlier in labels if (place := self._find(to, outlier)) is not None]
        if not found:
            return []
        verdicts = _Verdicts(at, np.array([number for number, _ in found]), np.array([outlier for _, outlier in found]))
        self._detector.feedback(verdicts.numbers, verdicts.outlier)
        return [verdicts]

    def _find(self, offset: int, outlier: bool) -> tuple[int, int] | None:
        return self._task.index.find(Label(offset, None, outlier))

    def _look_at_context(self, at: int) -> Iterator[ContextNote]:
        """A note if the first view has another context since the last look."""
        self._generation = self._detector.generation
        before, now = self._context, self._detector.context_numbers
        if before is not None and np.array_equal(before, now):
            return
        self._context = now
        renewed = np.nan if before is None else float(np.isin(now, before, invert=True).mean())
        yield ContextNote(at, self._generation, len(now), renewed)

    # -- state ---------------------------------------------------------------------------------------------------

    def changes(self) -> Entries:
        """The changes since the last call: entries of the state topic, and after them those of variants."""
        changes = self._task.changes()
        for at, detector in enumerate(self._variants.values()):
            changes |= {f"{VARIANT}/{at}/{key}": value for key, value in detector.changes().items()}
        return changes

    def place(self) -> dict[str, Any]:
        """Everything else that a replay that continues has to know, as plain values for JSON."""
        return {
            "position": self.position,
            "is_complete": self.is_complete,
            "effects_until": self._effects_until,
            "time": self._clock.last,
            "seconds": dict(self.seconds),
            "generation": self._generation,
            "context": None if self._context is None else self._context.tolist(),
            "learned": [self._learned_until, self.learned],
            "sink": 0 if self._sink is None else self._sink.size(),
        }

    def continue_from(self, place: Mapping[str, Any], entries: StoredEntries) -> None:
        """Go on from the place and the entries of an earlier replay of the same plan. Raises StateError."""
        position = int(place["position"])
        self._begin(Restored(position, own_entries(entries), learned_until=position))
        if self._learned_until < position:  # counting on would not give their number
            until, learned = place["learned"]
            self.learned = learned if until == self._learned_until else None
        for at, detector in enumerate(self._variants.values()):
            prefix = f"{VARIANT}/{at}/"
            its = {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}
            detector.recover(its)
        self.is_complete = bool(place["is_complete"])
        self.seconds.update(place["seconds"])
        self._clock.last, self._generation = place["time"], int(place["generation"])
        self._context = None if place["context"] is None else np.array(place["context"], dtype=np.int64)
        self._effects_until = int(place["effects_until"])
        self._next_effect = bisect_right(self._effects, self._effects_until, key=lambda effect: effect.input_offset)
        if self._sink is not None:
            self._sink.resume(int(place["sink"]))

    def _begin(self, restored: Restored) -> None:
        plan, number = self._plan, self.number
        ids = {plan.settings.topic: plan.ranges[number].topic_id} if number in plan.ranges else {}
        settings = plan.settings
        self._task = Partition(number, settings, topic=settings.topic or None, feedback=settings.feedback, ids=ids)
        self._task.restore(restored)
        self._task.begin(self._first, plan.schema)
        assert self._task.detector is not None
        self._detector, self._reader = self._task.detector, RowReader(plan.schema)
        self.learned = self._detector.records


def own_entries(entries: StoredEntries) -> dict[str, bytes]:
    """Those of `PartitionReplay.changes` that the service would write to the state topic."""
    return {key: value for key, value in entries.items() if not key.startswith(f"{VARIANT}/")}


def _process(detector: Detector, rows: Float, keys: list[Key], verdicts: Sequence[_Verdicts]) -> Results:
    """Score and learn the rows (n, d) of a block, with the same labels at the same places."""
    parts, start = [], 0
    for one in verdicts:
        parts.append(detector.process(rows[start : one.at], keys[start : one.at]))
        detector.feedback(one.numbers, one.outlier)
        start = one.at
    parts.append(detector.process(rows[start:], keys[start:]))
    return Results.concatenate(parts)


def _judgement(results: Results) -> Judgement:
    return Judgement(results.remembered_logit, results.p_value, results.outlier)
