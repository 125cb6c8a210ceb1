"""The state as entries of a log: what is written, what is refused, and that a partition continues from it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from streams import (
    CONFIG,
    MODEL,
    Distance,
    assert_same_results,
    compacted,
    new,
    process,
    process_until_next,
    recovered,
    shifting,
    state_of,
)

from fomo_stream.detector.changelog import PART_BYTES, BlockTable, Document, SingleEntry
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.errors import DamagedStateError, StateError
from fomo_stream.model.zero_shot import ZeroShotModel

# --- changelog

puts = st.lists(st.lists(st.integers(0, 10), max_size=20), max_size=12)  # few rows and many


@given(st.integers(1, 12), puts)
def test_a_table_is_what_its_blocks_say(block: int, puts: list[list[int]]) -> None:
    def fresh() -> BlockTable:
        return BlockTable(block, number=np.full(11, 5), pair=np.zeros((11, 2)))

    table, number, pair = fresh(), np.full(11, 5), np.zeros((11, 2))
    log = table.changes("t")
    for i, slots in enumerate(puts):
        at = np.array(slots, dtype=np.int64)
        number[at], pair[at, :] = i, [i, -i]
        table.put(at, number=i, pair=[i, -i])
        entries = table.changes("t")
        assert entries.keys() - {"t/blocks"} == {f"t/{slot // block}" for slot in slots}
        assert ("t/blocks" in entries) == bool(entries.keys() - log.keys())
        log |= entries
        recovered = fresh()
        recovered.recover(cast(dict[str, bytes], log), "t")
        assert recovered.changes("t") == {}
        for found in (table, recovered):
            np.testing.assert_array_equal(found["number"], number)
            np.testing.assert_array_equal(found["pair"], pair)


@given(st.lists(st.sampled_from([0, 1, PART_BYTES - 20, PART_BYTES - 19, 2 * PART_BYTES + 5, 10**6]), min_size=1))
def test_a_document_is_found_whole_whatever_it_was_before(sizes: list[int]) -> None:
    document, log = Document(), dict[str, bytes]()
    for i, size in enumerate(sizes):
        data = bytes([i % 256]) * size
        for key, value in document.changes("d", data).items():
            log.pop(key, None)
            if value is not None:
                log[key] = value
        assert len(log) == -(-(size + 20) // PART_BYTES)
        assert max(map(len, log.values())) <= PART_BYTES
        other = Document()
        assert other.recover(log, "d") == data
        assert other.changes("d", data) == document.changes("d", data) == {}
        if i % 3 == 2:
            document = other


@given(st.lists(st.binary(max_size=2)))
def test_an_entry_is_what_was_written_last(values: list[bytes]) -> None:
    entry, log, before = SingleEntry(), dict[str, bytes](), b""
    for value in values:
        changes = entry.changes("e", value)
        assert changes == ({} if value == before else {"e": value or None})
        log, before = compacted([*log.items(), *changes.items()]), value
        assert SingleEntry().recover(log, "e") == value


# --- written state


def test_a_commit_costs_what_has_changed() -> None:
    one = new(replace(CONFIG, own_contexts=0))
    process(one, 0, 1000)
    one.changes()
    assert one.changes() == {}
    process_until_next(one)
    one.changes()
    process(one, one.records, one.records + 3)
    few = one.changes()
    kinds = sorted({key.rpartition("/")[0] for key in few})
    names = ["counters", "follow", "follow/key", "follow/still/counts"]
    assert kinds == [*names, "history/relative", "history/rows", "history/scores"]
    assert sum("key/" in key and value is not None for key, value in few.items()) <= 4  # perhaps that of the partition


def test_a_generation_of_the_history_is_written_once_if_it_lasts_and_one_of_recent_records_never() -> None:
    one, every = new(), 10
    long = one.config.context_size // 2 // every
    written: Counter[str] = Counter()
    commits: Counter[tuple[str, int]] = Counter()  # by view and number of a generation: during its time
    for first in range(0, 900, every):
        process(one, first, first + every)
        for key in one.changes():
            if key.startswith("generation/"):
                _, view, _, *rest = key.split("/")
                written[f"{view} {'/'.join(rest)}"] += 1
                assert rest[0] != "encoded" or commits[view, one.inspect().generations[view].number] >= long
        commits.update((name, generation.number) for name, generation in one.inspect().generations.items())
    for name, generation in one.inspect().generations.items():
        n = generation.number
        assert n >= 3
        if name == "recent":
            assert written[f"{name} 0"] == written[f"{name} encoded/0"] == 0
        else:
            assert written[f"{name} 0"] in (n, n + 1)  # blueprints: perhaps of the next one too
            lasting, longer = (sum(commits[name, i] > least for i in range(1, n + 1)) for least in (long, long + 1))
            assert longer <= written[f"{name} encoded/0"] <= lasting
            assert longer > 0


def test_generations_that_are_known_are_not_encoded_again() -> None:
    one = new()
    process(one, 0, 400)
    process_until_next(one)
    log = cast(dict[str, bytes], one.changes())
    known = ids_of(one)
    assert ids_of(recovered(log, one)) == known
    other = new()
    other.process(shifting(one.records) * (1 + 1e-9))  # generations of the same moments, but of other rows
    assert not set(ids_of(recovered(log, other))) & set(ids_of(other))
    one.recover(log, one)  # in its own place
    assert ids_of(one) == known
    assert one.changes() == {}


def ids_of(one: Detector) -> list[int]:
    """Of the generations that score now."""
    return [id(generation) for generation in one.inspect().generations.values()]


def test_values_stay_small_however_wide_the_rows_are() -> None:
    one = Detector(MODEL, 1000, CONFIG)
    one.process(np.random.default_rng(0).normal(size=(30, 1000)))
    entries = cast(dict[str, bytes], one.changes())
    assert max(map(len, entries.values())) <= max(PART_BYTES, 150_000)
    again = Detector(MODEL, 1000, CONFIG)
    again.recover(entries)
    assert state_of(again) == state_of(one)


# --- refused state


@pytest.fixture(scope="module")
def log() -> dict[str, bytes]:
    """The log of a partition of which two views have a second generation, and one has a next one."""
    one = new()
    while one.generation < 3:
        process(one, one.records, one.records + 1)
    process_until_next(one)
    return cast(dict[str, bytes], one.changes())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"seed": 3, "context_size": 30},
            "context_size is 24 in the state, 30 now; seed is 0 in the state, 3 now",
        ),
        ({"alert_rate": 0.0001}, "alert_rate is 0.1 in the state, 0.0001 now"),
        (
            {"views": ("fast",)},
            "used_views is ['trimmed', 'all', 'recent', 'movement', 'past', 'key'] in the state, "
            "['trimmed', 'all', 'past', 'key'] now",
        ),
    ],
)
def test_a_state_of_other_settings_is_refused_by_name(
    log: dict[str, bytes], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(StateError) as caught:
        recovered(log, config=replace(CONFIG, **changed))
    assert str(caught.value) == message


def test_a_state_of_other_features_or_another_model_is_refused(log: dict[str, bytes]) -> None:
    class Other(Distance):
        name = "other"
        kernel = "numba"

    words = r"^model is distance in .*; kernel is torch .*, numba now; n_features is 2 .* 5 now; categorical is \[\] "
    with pytest.raises(StateError, match=words):
        Detector(cast(ZeroShotModel, Other()), 5, CONFIG, categorical=(2,)).recover(log)
    with pytest.raises(StateError, match=r"; lags is 1 in the state, 2 now$"):
        recovered(log, config=replace(CONFIG, lags=2, seed=1))


def test_a_state_of_another_format_is_refused_as_such(log: dict[str, bytes]) -> None:
    """Not as a damaged state, which may be replaced without asking."""
    fingerprint = json.loads(Document().recover(log, "fingerprint"))
    other = Document().changes("fingerprint", json.dumps({**fingerprint, "format": 1}).encode())
    said = r"another version of fomo-stream wrote .* format 1, .* reads 12 and 13"
    with pytest.raises(StateError, match=said) as caught:
        recovered({**log, **cast(dict[str, bytes], other)})
    assert not isinstance(caught.value, DamagedStateError)


def test_other_settings_may_change_between_runs(log: dict[str, bytes]) -> None:
    config = replace(CONFIG, alert_rate=0.05, admit="feedback", refresh=0.5, min_context=4, adapt_after=200)
    one = recovered(log, config=config)
    entries = one.changes()
    assert list(entries) == ["fingerprint/0"]  # so that the log knows what was set last
    again = recovered({**log, **cast(dict[str, bytes], entries)}, config=config)
    assert state_of(one) == state_of(again)
    assert np.isfinite(process(one, 300, 700).logit).all()


def damages(value: bytes) -> st.SearchStrategy[bytes]:
    """Other bytes in place of a value."""
    return st.one_of(
        st.integers(0, len(value) - 1).map(lambda n: value[:n]),
        st.binary(min_size=1, max_size=30).map(lambda more: value + more),
        st.binary(max_size=200),
    ).filter(lambda other: len(other) != len(value))


@given(st.data())
def test_a_log_that_is_incomplete_or_damaged_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    needed = sorted(key for key in log if "encoded" not in key)
    key = data.draw(st.sampled_from(needed))
    left = {other: value for other, value in log.items() if other != key}
    with pytest.raises(StateError, match="keys, not" if "/key/" in key else f"lacks {key}"):
        recovered(left)
    key = data.draw(st.sampled_from(sorted(log)))
    with pytest.raises(StateError):
        recovered({**log, key: data.draw(damages(log[key]))})


@given(st.data())
def test_a_document_of_which_a_byte_is_another_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    generations = sorted(key for key in log if key.startswith("generation/") and "encoded" not in key)
    key = data.draw(st.sampled_from(["fingerprint/0", "counters/0", "confirmed/0", "follow/settings/0", *generations]))
    value = bytearray(log[key])
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError, match=r"does not match its digest|lacks"):
        recovered({**log, key: bytes(value)})


# --- recovery


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
    # records before the rules: with 330 the next generation is of the view past, with 410 of the view of keys
    start: ClassVar[int]
    config: ClassVar[DetectorConfig]

    @initialize(seeded=st.sampled_from([0, 10, SEEDED]), rng=st.randoms(use_true_random=False))
    def begin(self, seeded: int, rng: Any) -> None:
        """seeded: rows of the seed context."""
        self.seeded = seeded
        self.live, self.undisturbed = self.new(), self.new()
        self.history: list[tuple[str, bytes | None]] = []
        self.since: list[Batch | Labels] = []  # the last commit
        self.at = 0
        if self.start:
            self.take([self.start])
            self.commit(rng)  # so that what is done again after a crash is short

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
        self.seen["keys with contexts of their own"] += bool(self.live.inspect().own)
        self.history += entries.items()
        self.since = []
        log = compacted(self.history, keep=lambda: rng.random() < 0.5)
        assert log == compacted(self.history)
        other = recovered(log, config=self.config)
        assert other.changes() == {}
        self.look(other)
        assert state_of(other) == state_of(self.live) == state_of(self.undisturbed)

    def look(self, one: Detector) -> None:
        self.seen.update(one.inspect().following)

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
            self.seen["shifts"] += self.live.shifts > 0

    def teardown(self) -> None:
        if hasattr(self, "live"):
            assert state_of(self.live) == state_of(self.undisturbed)


@pytest.mark.slow
def test_any_commits_aborts_and_crashes_equal_the_uninterrupted_run() -> None:
    Service.seen.clear()
    for start, config in product([0, 180, 250, 410, 470, 900], [CONFIG, SHORT]):
        case = type("Case", (Service,), {"start": start, "config": config})
        run_state_machine_as_test(case, settings=settings(max_examples=2, stateful_step_count=30, derandomize=True))
    wanted = ("deleted", "shifts", "keys with contexts of their own", *CONFIG.wanted_views)
    assert all(Service.seen[what] for what in wanted), Service.seen


@pytest.mark.parametrize("config", [CONFIG, SHORT], ids=["CONFIG", "SHORT"])
@pytest.mark.parametrize("n", [0, 33])
def test_first_contexts_are_encoded_again_also_of_a_seed_context_longer_than_the_history(
    config: DetectorConfig, n: int
) -> None:
    one = new(config, SEEDED)
    process(one, 0, n)
    log = compacted(list(one.changes().items()))
    other = recovered({key: value for key, value in log.items() if "/encoded/" not in key}, config=config)
    assert_same_results(process(other, n, n + 40), process(one, n, n + 40))
    assert state_of(other) == state_of(one)


@pytest.mark.parametrize("views", [("trimmed", "recent"), ("recent",), ("movement", "recent")])
def test_any_views_come_back_also_where_outliers_are_known(views: tuple[str, ...]) -> None:
    one = new(replace(CONFIG, views=views))
    process(one, 0, 100)
    one.feedback(np.arange(40, 90), np.ones(50, dtype=bool))
    process(one, 100, 170)  # contexts that know these outliers are there or next
    history = list(one.changes().items())
    for first in range(170, 400, 46):
        other = recovered(compacted(history), config=one.config)
        assert_same_results(process(one, first, first + 46), process(other, first, first + 46))
        history += one.changes().items()


@pytest.mark.parametrize(("lag", "recent_every"), [(1000, 64), (33, 500)])
def test_recent_records_are_kept_as_long_as_a_context_is_made_of_them(lag: int, recent_every: int) -> None:
    config = replace(CONFIG, calibration_size=1, feedback_memory=0, lag=lag, recent_every=recent_every)
    one = new(config)
    history: list[tuple[str, bytes | None]] = []
    while one.records < 1500:
        first = one.records
        process(one, first, first + 500)
        history += one.changes().items()
        assert state_of(recovered(compacted(history), config=config)) == state_of(one)
