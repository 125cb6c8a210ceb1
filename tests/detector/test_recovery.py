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
from partitions import (
    CONFIG,
    MAX_SERIES,
    assert_same_results,
    compacted,
    few_series,
    new,
    process,
    recovered,
    state_of,
)

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.detector.views import VIEWS


@pytest.fixture(autouse=True)
def only_few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    few_series(monkeypatch)


# its history has fewer rows than a seed context
SHORT = replace(CONFIG, calibration_size=5, feedback_memory=0, adapt_after=0, recent_every=32, lag=1)
SEEDED = 10 + SHORT.history_rows


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
    # records before the rules: with 330 the next generation is of the view past, near 400 a regime is announced
    start: ClassVar[int]
    config: ClassVar[DetectorConfig]

    @initialize(seeded=st.sampled_from([0, 10, SEEDED]))
    def begin(self, seeded: int) -> None:
        """seeded: rows of the seed context."""
        self.seeded = seeded
        self.live, self.undisturbed = self.new(), self.new()
        self.history: list[tuple[str, bytes | None]] = []
        self.since: list[Batch | Labels] = []  # the last commit
        self.at = 0
        self.take([self.start] if self.start else [])

    def new(self) -> Detector:
        return new(self.config, self.seeded)

    @rule(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4))
    def records(self, sizes: list[int]) -> None:
        self.take(sizes)

    def take(self, sizes: list[int]) -> None:
        for size in sizes:
            batch = Batch(self.at, self.at + size, process(self.undisturbed, self.at, self.at + size))
            assert_same_results(process(self.live, batch.first, batch.stop), batch.expected)
            self.since.append(batch)
            self.at = batch.stop

    @rule(back=st.sets(st.integers(1, 100), min_size=1), outlier=st.booleans())
    def verdicts(self, back: set[int], outlier: bool) -> None:
        numbers = np.array(sorted(self.live.records - n for n in back), dtype=np.int64)
        labels = Labels(numbers, np.full(len(numbers), outlier))
        for one in (self.live, self.undisturbed):
            one.feedback(labels.numbers, labels.outlier)
        self.since.append(labels)

    @rule(rng=st.randoms(use_true_random=False))
    def commit(self, rng: Any) -> None:
        entries = self.live.changes()
        self.seen["deleted"] += None in entries.values()
        self.history += entries.items()
        self.since = []
        log = compacted(self.history, keep=lambda: rng.random() < 0.5)
        assert log == compacted(self.history)
        other = recovered(log, config=self.config)
        self.look(other)
        assert other.changes() == {}
        assert state_of(other) == state_of(self.live) == state_of(self.undisturbed)

    def look(self, one: Detector) -> None:
        for timeline in one._panel.timelines:
            self.seen[f"next {timeline.view.of} {timeline.view.sees}"] += timeline.next is not None

    @rule(cut=st.integers(1, 69))
    def abort(self, cut: int) -> None:
        """Rolled back: by what the process knows, which has encoded the generations, and perhaps made another."""
        self.go_back(self.live, cut)

    @rule(cut=st.integers(1, 69))
    def crash(self, cut: int) -> None:
        self.go_back(None, cut)

    def go_back(self, known: Detector | None, cut: int) -> None:
        log = compacted(self.history)
        self.live = recovered(log, known, self.config) if log else self.new()
        self.look(self.live)
        for done in self.since:  # the same again, in other batches
            if isinstance(done, Labels):
                self.live.feedback(done.numbers, done.outlier)
            else:
                edges = sorted({done.first, min(done.first + cut, done.stop), done.stop})
                parts = [process(self.live, a, b) for a, b in pairwise(edges)]
                assert_same_results(Results.concatenate(parts), done.expected)

    @invariant()
    def is_as_if_nothing_had_happened(self) -> None:
        if hasattr(self, "live"):
            assert self.live.records == self.undisturbed.records
            self.seen["regimes"] += self.live.summary.regime > 1

    def teardown(self) -> None:
        if hasattr(self, "live"):
            assert state_of(self.live) == state_of(self.undisturbed)


@pytest.mark.slow
def test_any_commits_aborts_and_crashes_equal_the_uninterrupted_run() -> None:
    Service.seen.clear()
    for start, config in product([0, 130, 330, 430], [CONFIG, SHORT]):
        case = type("Case", (Service,), {"start": start, "config": config})
        run_state_machine_as_test(case, settings=settings(max_examples=15, stateful_step_count=30, derandomize=True))
    wanted = [f"next {view.of} {view.sees}" for view in VIEWS.values()]
    assert all(Service.seen[what] for what in ("deleted", "regimes", *wanted)), Service.seen


@pytest.mark.parametrize("config", [CONFIG, SHORT], ids=["CONFIG", "SHORT"])
@pytest.mark.parametrize("n", [0, 1, 33])
def test_first_contexts_are_encoded_again_also_of_a_seed_context_longer_than_the_history(
    config: DetectorConfig, n: int
) -> None:
    one = new(config, SEEDED)
    process(one, 0, n)
    log = compacted(list(one.changes().items()))
    other = recovered({key: value for key, value in log.items() if "/encoded/" not in key}, config=config)
    assert_same_results(process(other, n, n + 40), process(one, n, n + 40))
    assert state_of(other) == state_of(one)


def test_after_every_commit_the_log_brings_back_what_goes_on_alike() -> None:
    one, other = new(), new()
    history: list[tuple[str, bytes | None]] = []
    seen: Counter[str] = Counter()
    for first in range(0, 1500, 7):
        assert_same_results(process(one, first, first + 7), process(other, first, first + 7))
        if 150 < first < 250:
            for each in (one, other):
                each.feedback(np.arange(first - 60, first - 40), np.arange(20) % 4 < 3)
        history += one.changes().items()
        other = recovered(compacted(history))
        assert state_of(one) == state_of(other)
        made = [t.current.result() for t in one._panel.timelines if t.current is not None]
        seen["warming up"] += one.generation == 0
        seen["next"] += any(t.next is not None for t in one._panel.timelines)
        seen["likeness"] += sum(generation.outliers is not None for generation in made)
        seen["extremes"] += sum(generation.ranges is not None for generation in made)
        seen["confirmed"] += len(one._context.confirmed) > 0
        seen["series"] += len(one._series._known) == 1 + MAX_SERIES
    for what in ("warming up", "next", "likeness", "extremes", "confirmed", "series"):
        assert seen[what], seen
    assert one.summary.regime > 1
    assert one.generation > 10


@pytest.mark.parametrize("views", [("trimmed", "recent"), ("recent",), ("recent", "all"), ("movement", "recent")])
def test_any_views_come_back_also_where_outliers_are_known(views: tuple[str, ...]) -> None:
    one = new(replace(CONFIG, views=views))
    process(one, 0, 100)
    one.feedback(np.arange(40, 90), np.ones(50, dtype=bool))
    process(one, 100, 170)  # contexts that know these outliers are there or next
    history = list(one.changes().items())
    for first in range(170, 500, 11):
        other = recovered(compacted(history), config=one.config)
        assert_same_results(process(one, first, first + 11), process(other, first, first + 11))
        history += one.changes().items()


@pytest.mark.parametrize(("lag", "recent_every"), [(1, 32), (200, 32), (1000, 64), (33, 500)])
def test_recent_records_are_kept_as_long_as_a_context_is_made_of_them(lag: int, recent_every: int) -> None:
    config = replace(CONFIG, calibration_size=1, feedback_memory=0, lag=lag, recent_every=recent_every)
    one = new(config)
    history: list[tuple[str, bytes | None]] = []
    while one.records < 3000:
        first = one.records
        process(one, first, first + 50)
        history += one.changes().items()
        assert state_of(recovered(compacted(history), config=config)) == state_of(one)
