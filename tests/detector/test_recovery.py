"""A partition continues from its log as if nothing had happened, whatever interrupts it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from partitions import CONFIG, Partition, assert_same_results, assert_same_state, compacted, small_sketches_of

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.results import Results


@pytest.fixture(autouse=True)
def small_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    small_sketches_of(monkeypatch)


# its history has fewer rows than a seed context, and than a sketch learns between two turns
SHORT = replace(CONFIG, calibration_size=5, feedback_memory=0, adapt_after=0, lag=1)


@dataclass
class Batch:
    """Records that were processed, and what came out."""

    first: int
    stop: int
    expected: Results


@dataclass
class Labels:
    """Verdicts that were given."""

    numbers: np.ndarray
    outlier: np.ndarray


class Service(RuleBasedStateMachine):
    """A partition whose process may end at any moment, beside one that nothing ever happens to."""

    seen: ClassVar[Counter[str]] = Counter()
    start: ClassVar[int]  # records before the rules; near 400 a regime is on trial, and often a generation is next
    config: ClassVar[DetectorConfig]

    @initialize(seeded=st.sampled_from([0, 10, 205]))
    def begin(self, seeded: int) -> None:
        """seeded: rows of the seed context."""
        self.seeded = seeded
        self.live, self.undisturbed = self.new(), self.new()
        self.history: list[tuple[str, bytes | None]] = []
        self.since: list[Batch | Labels] = []  # the last commit
        self.at = 0
        self.take([self.start])

    def new(self) -> Partition:
        return Partition(self.config, self.seeded)

    @rule(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4))
    def records(self, sizes: list[int]) -> None:
        self.take(sizes)

    def take(self, sizes: list[int]) -> None:
        for size in sizes:
            batch = Batch(self.at, self.at + size, self.undisturbed.process(self.at, self.at + size))
            assert_same_results(self.live.process(batch.first, batch.stop), batch.expected)
            self.since.append(batch)
            self.at = batch.stop

    @rule(back=st.sets(st.integers(1, 100), min_size=1), outlier=st.booleans())
    def verdicts(self, back: set[int], outlier: bool) -> None:
        records = self.live.detector.records
        numbers = np.array(sorted(records - n for n in back), dtype=np.int64)
        labels = Labels(numbers, np.full(len(numbers), outlier))
        for partition in (self.live, self.undisturbed):
            partition.detector.feedback(labels.numbers, labels.outlier)
        self.since.append(labels)

    @rule(rng=st.randoms(use_true_random=False))
    def commit(self, rng: Any) -> None:
        entries = self.live.changes()
        self.seen["deleted"] += None in entries.values()
        self.history += entries.items()
        self.since = []
        log = compacted(self.history, keep=lambda: rng.random() < 0.5)
        assert log == compacted(self.history)
        recovered = self.new().recover(log)
        self.look(recovered)
        assert recovered.changes() == {}
        assert_same_state(recovered, self.live)
        assert_same_state(recovered, self.undisturbed)

    def look(self, recovered: Partition) -> None:
        self.seen["trial"] += recovered.detector._state.context.regimes.trial is not None
        self.seen["next"] += recovered.detector._state.timeline.next is not None

    @rule(cut=st.integers(1, 69))
    def abort(self, cut: int) -> None:
        """Rolled back: by what the process knows, which has encoded the generations, and perhaps made another."""
        self.go_back(self.live, cut)

    @rule(cut=st.integers(1, 69))
    def crash(self, cut: int) -> None:
        self.go_back(None, cut)

    def go_back(self, known: Partition | None, cut: int) -> None:
        log = compacted(self.history)
        self.live = self.new().recover(log, known) if log else self.new()
        self.look(self.live)
        for done in self.since:  # the same again, in other batches
            if isinstance(done, Labels):
                self.live.detector.feedback(done.numbers, done.outlier)
            else:
                edges = sorted({done.first, min(done.first + cut, done.stop), done.stop})
                parts = [self.live.process(a, b) for a, b in pairwise(edges)]
                assert_same_results(Results.concatenate(parts), done.expected)

    @invariant()
    def is_as_if_nothing_had_happened(self) -> None:
        if hasattr(self, "live"):
            assert self.live.detector.records == self.undisturbed.detector.records
            self.seen["regimes"] += self.live.detector.regime > 1

    def teardown(self) -> None:
        if hasattr(self, "live"):
            assert_same_state(self.live, self.undisturbed)


def test_any_commits_aborts_and_crashes_equal_the_uninterrupted_run() -> None:
    Service.seen.clear()
    for start, config in product([0, 130, 400, 430], [CONFIG, SHORT]):
        case = type("Case", (Service,), {"start": start, "config": config})
        run_state_machine_as_test(
            case, settings=settings(max_examples=8, stateful_step_count=30, deadline=None, derandomize=True)
        )
    assert all(Service.seen[what] for what in ("deleted", "trial", "next", "regimes")), Service.seen


def test_after_every_commit_the_log_brings_back_what_goes_on_alike() -> None:
    one, other = Partition(), Partition()
    history: list[tuple[str, bytes | None]] = []
    seen: Counter[str] = Counter()
    for first in range(0, 1500, 7):
        assert_same_results(one.process(first, first + 7), other.process(first, first + 7))
        if 150 < first < 250:
            for each in (one, other):
                each.detector.feedback(np.arange(first - 60, first - 40), np.arange(20) % 4 < 3)
        history += one.changes().items()
        other = Partition().recover(compacted(history))
        assert_same_state(one, other)
        detector, timeline, context = one.detector, one.detector._state.timeline, one.detector._state.context
        seen["warming up"] += detector.generation == 0
        seen["next"] += timeline.next is not None
        seen["trial"] += context.regimes.trial is not None
        seen["outliers"] += timeline.current is not None and timeline.current.result().outliers is not None
        seen["merged"] += bool((context.quantiles.sketch.merged > 0).all())
        seen["learned again"] += bool((context.quantiles._saved > 0).all())
        seen["confirmed"] += len(context._verdicts.confirmed) > 0
    assert all(
        seen[what] for what in ("warming up", "next", "trial", "outliers", "merged", "learned again", "confirmed")
    ), seen
    assert one.detector.regime > 1
    assert one.detector.generation > 10
