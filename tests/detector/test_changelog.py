from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fomo_stream.detector.changelog import PART_BYTES, Document, Entries, Table
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.context import Context
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.generation import Generation
from fomo_stream.detector.past_values import PastValues
from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.detector.results import Results
from fomo_stream.errors import StateError
from fomo_stream.model.imputation import fit_filling
from fomo_stream.model.quantile_map import Knots
from fomo_stream.model.zero_shot import ContextCache, ZeroShotModel

LAGS, FEATURES, SERIES = 1, 2, 4
CONFIG = DetectorConfig(
    context_size=24,
    min_context=8,
    lag=40,
    calibration_size=60,
    feedback_memory=90,
    adapt_after=64,
    refresh=0.3,
    alert_rate=0.1,
)


class Distance:
    """A model that costs nothing: how far a row is from the middle of the context, by its sketch if there is one."""

    name = "distance"
    device = torch.device("cpu")

    def encode_context(self, rows: torch.Tensor, knots: Knots | None = None) -> ContextCache:
        filling, filled = fit_filling(rows), rows.nan_to_num()
        center, scale = filled.mean(-2, keepdim=True), 1 + filled.std(-2, keepdim=True)
        if knots is not None:
            center, scale = center + knots.values.mean(-1), 1 + knots.scale
        n, d = rows.shape[-2:]
        made_of = Knots(center, torch.zeros(1), scale)
        return ContextCache(n, d, torch.tensor([d]), filling, made_of, evidence=None, own=None, layers=())

    def score_queries(self, cache: ContextCache, queries: torch.Tensor) -> torch.Tensor:
        return ((queries.nan_to_num() - cache.knots.values).abs() / cache.knots.scale).amax(-1)

    def __call__(self, context: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        return self.score_queries(self.encode_context(context), queries)


MODEL = cast(ZeroShotModel, Distance())


@pytest.fixture(autouse=True)
def small_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches that merge often."""
    small_sketches_of(monkeypatch)


def small_sketches_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "_new_sketch", lambda self: QuantileSketch(self._n_features, 20.0, size=8, chunk=24))


def stream(n: int) -> np.ndarray:
    """Rows of two features: now and then one far off, values missing, and every 300 records a lasting shift."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, FEATURES)) * np.where(rng.random((n, 1)) < 0.05, 9, 1)
    rows += 12 * (np.arange(n) // 300 % 2)[:, None]
    rows[rng.random((n, FEATURES)) < 0.05] = np.nan
    return rows


ROWS = stream(3000)
KEYS = [str(key) for key in np.random.default_rng(1).integers(0, 7, 3000)]


class Partition:
    """A detector with its shingler, as one state: what a partition's log has to bring back."""

    def __init__(self, config: DetectorConfig = CONFIG, seeded: bool = False) -> None:
        self.shingler = PastValues(LAGS, FEATURES, max_keys=SERIES)
        self.detector = Detector(MODEL, self.shingler.width, config)
        if seeded:
            self.detector.seed_context(np.random.default_rng(2).normal(size=(10, self.shingler.width)))

    def process(self, first: int, stop: int) -> Results:
        return self.detector.process(self.shingler.rows(ROWS[first:stop], KEYS[first:stop]))

    def changes(self) -> Entries:
        entries = {f"detector/{key}": value for key, value in self.detector.changes().items()}
        return entries | {f"lags/{key}": value for key, value in self.shingler.changes().items()}

    def recover(self, log: Mapping[str, bytes], known: Partition | None = None) -> Partition:
        self.detector.recover(under(log, "detector/"), None if known is None else known.detector)
        self.shingler.recover(under(log, "lags/"))
        return self

    def snapshot(self) -> dict[str, np.ndarray]:
        return self.detector.snapshot() | {f"lags.{name}": array for name, array in self.shingler.snapshot().items()}


def under(log: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    return {key.removeprefix(prefix): value for key, value in log.items() if key.startswith(prefix)}


def compacted(history: list[tuple[str, bytes | None]], keep: Callable[[], bool] = lambda: False) -> dict[str, bytes]:
    """What a reader has who reads a log of which compaction has left the last entry of each key and those of `keep`."""
    last = {key: at for at, (key, _) in enumerate(history)}
    found: dict[str, bytes] = {}
    for at, (key, value) in enumerate(history):
        if at == last[key] or keep():
            found.pop(key, None)
            if value is not None:
                found[key] = value
    return found


def assert_same_state(one: Partition, other: Partition) -> None:
    a, b = one.snapshot(), other.snapshot()
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name
        assert a[name].shape == b[name].shape, name


def assert_same_results(one: Results, other: Results) -> None:
    for name in ("logit", "p_value", "outlier", "generation", "regime", "severity"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.status == other.status


# --- a partition among commits, aborts and crashes ------------------------------------------------------------------


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

    @initialize(seeded=st.booleans())
    def begin(self, seeded: bool) -> None:
        self.seeded = seeded
        self.live, self.undisturbed = self.new(), self.new()
        self.history: list[tuple[str, bytes | None]] = []
        self.since: list[Batch | Labels] = []  # the last commit
        self.at = 0

    def new(self) -> Partition:
        return Partition(seeded=self.seeded)

    @rule(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4))
    def records(self, sizes: list[int]) -> None:
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
        assert recovered.changes() == {}
        assert_same_state(recovered, self.live)
        assert_same_state(recovered, self.undisturbed)

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
        self.seen["trial"] += self.live.detector._context.trial is not None
        self.seen["next"] += self.live.detector._next is not None
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
    run_state_machine_as_test(
        Service, settings=settings(max_examples=10, stateful_step_count=30, deadline=None, derandomize=True)
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
        detector, context = one.detector, one.detector._context
        seen["warming up"] += detector.generation == 0
        seen["next"] += detector._next is not None
        seen["trial"] += context.trial is not None
        seen["outliers"] += detector._current is not None and detector._current.result().outliers is not None
        seen["merged"] += bool(np.isfinite(context.sketch.snapshot()["values"]).any())
        seen["confirmed"] += len(context.snapshot()["confirmed"]) > 0
    assert all(seen[what] for what in ("warming up", "next", "trial", "outliers", "merged", "confirmed")), seen
    assert one.detector.regime > 1
    assert one.detector.generation > 10


# --- what is written ------------------------------------------------------------------------------------------------


def test_a_commit_costs_what_has_changed() -> None:
    partition = Partition()
    partition.process(0, 1000)
    partition.changes()
    assert partition.changes() == {}
    while partition.detector._next is None:
        first = partition.detector.records
        partition.process(first, first + 1)
    partition.changes()
    first = partition.detector.records
    partition.process(first, first + 3)
    few = partition.changes()
    assert sorted(key.rpartition("/")[0] for key in few if "series" not in key) == [
        "detector/counters",
        "detector/memory/rows",
        "detector/memory/scores",
    ]
    assert sum("series" in key and value is not None for key, value in few.items()) <= 3


def test_many_verdicts_that_wait_for_a_record_are_kept() -> None:
    n = 10_000  # as many labels as may wait at once
    config = replace(CONFIG, feedback_memory=n, adapt_after=0)
    one, other = (Detector(MODEL, 1, config) for _ in range(2))
    one.process(np.random.default_rng(0).normal(size=(n, 1)))
    one.changes()
    log = one.copy().changes()  # of everything
    assert one.feedback(np.arange(n), np.arange(n) % 2 == 0) == n
    entries = one.changes()
    assert max(len(value or b"") for value in entries.values()) <= PART_BYTES
    other.recover(cast(dict[str, bytes], {**log, **entries}))
    rows = np.random.default_rng(1).normal(size=(100, 1))
    assert_same_results(one.process(rows), other.process(rows))
    assert len(one.changes()["counters/0"] or b"") < 1000  # the verdicts are heeded


def test_a_state_of_when_no_verdict_waited_can_be_read(log: dict[str, bytes]) -> None:
    counters, found = Document(), Document().recover(log, "detector/counters")
    old = {name: value for name, value in json.loads(found).items() if name != "pending"}
    entries = counters.changes("detector/counters", json.dumps(old).encode())
    one = Partition().recover({**log, **cast(dict[str, bytes], entries)})
    assert_same_state(one, Partition().recover(log))


def test_a_generation_is_written_once() -> None:
    partition = Partition()
    written: Counter[str] = Counter()
    for first in range(0, 900, 10):
        partition.process(first, first + 10)
        written.update(key.partition("generation/")[2][1:] for key in partition.changes() if "/generation/" in key)
    n = partition.detector.generation
    assert n > 5
    assert written["/0"] in (n, n + 1)  # blueprints: perhaps of the next one too
    assert written["/encoded/0"] == n


def test_what_was_encoded_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition()
    partition.process(0, 400)
    log = cast(dict[str, bytes], partition.changes())
    without = {key: value for key, value in log.items() if "encoded" not in key}
    expected = Partition().recover(without).process(400, 405)  # made of the blueprint
    monkeypatch.setattr(Generation, "build", lambda *_: pytest.fail("it is in the log"))
    assert_same_results(Partition().recover(log).process(400, 405), expected)


@pytest.mark.parametrize("make", [Detector.copy, lambda one: one.widened(5), lambda one: restored(one)])
def test_what_is_no_recovery_has_everything_to_write(make: Callable[[Detector], Detector]) -> None:
    partition = Partition()
    partition.process(0, 400)
    everything = partition.detector.changes()
    twin = make(partition.detector)
    entries = twin.changes()
    assert entries.keys() >= {key for key in everything if "encoded" not in key}
    again = Detector(MODEL, twin.n_features, CONFIG)
    again.recover(cast(dict[str, bytes], entries))
    a, b = twin.snapshot(), again.snapshot()
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    assert partition.detector.changes() == {}  # and the log of the first knows nothing of the second


def restored(one: Detector) -> Detector:
    other = Detector(MODEL, one.n_features, CONFIG)
    other.process(np.zeros((200, one.n_features)))
    other.changes()
    other.restore(one.snapshot())
    return other


def test_generations_that_are_known_are_not_encoded_again() -> None:
    partition = Partition()
    partition.process(0, 400)
    while partition.detector._next is None:
        first = partition.detector.records
        partition.process(first, first + 1)
    log = cast(dict[str, bytes], partition.changes())
    live = partition.detector
    again = Partition().recover(log, partition).detector
    assert (again._current, again._next) == (live._current, live._next)
    other = Detector(MODEL, live.n_features, CONFIG)
    other.process(PastValues(LAGS, FEATURES, SERIES).rows(ROWS[: live.records] * (1 + 1e-9), KEYS[: live.records]))
    assert other._current is not None
    assert live._current is not None
    assert other._current.blueprint.takes_effect == live._current.blueprint.takes_effect  # of other rows nonetheless
    again = Detector(MODEL, live.n_features, CONFIG)
    again.recover(under(log, "detector/"), other)
    assert again._current is not other._current
    builds = live._current, live._next
    partition.recover(log, partition)  # in its own place
    assert (live._current, live._next) == builds
    assert live.changes() == {}


def test_values_stay_small_however_wide_the_rows_are() -> None:
    one = Detector(MODEL, 1000, CONFIG)
    one.process(np.random.default_rng(0).normal(size=(30, 1000)))
    entries = cast(dict[str, bytes], one.changes())
    assert max(map(len, entries.values())) <= max(PART_BYTES, 150_000)
    again = Detector(MODEL, 1000, CONFIG)
    again.recover(entries)
    assert all(
        a.tobytes() == b.tobytes() for a, b in zip(one.snapshot().values(), again.snapshot().values(), strict=True)
    )


def test_series_that_come_and_go_between_commits_leave_no_trace() -> None:
    shingler = PastValues(1, 1, max_keys=10)
    shingler.rows(np.zeros((10, 1)), list("abcdefghij"))
    assert sum(key.startswith("series/") for key in shingler.changes()) == 10
    shingler.rows(np.zeros((5000, 1)), [str(i) for i in range(5000)])
    entries = shingler.changes()
    assert sum(value is None for value in entries.values()) == 10
    assert sum(value is not None for value in entries.values()) == 10


def test_the_order_of_use_is_kept_over_several_recoveries() -> None:
    log: list[tuple[str, bytes | None]] = []
    for keys in ("abc", "d", "a", "e", "f"):
        shingler = PastValues(1, 1, max_keys=4)
        if log:
            shingler.recover(compacted(log))
        shingler.rows(np.zeros((len(keys), 1)), list(keys))
        log += shingler.changes().items()
    known = PastValues(1, 1, max_keys=4)
    known.recover(compacted(log))
    assert [np.isnan(known.peek(np.zeros((1, 1)), [key])[0, 1]) for key in "abcdef"] == [0, 1, 1, 0, 0, 0]


def test_a_look_ahead_is_no_change_and_more_features_are_one_of_every_series() -> None:
    shingler = PastValues(1, 1)
    shingler.rows(np.zeros((3, 1)), list("abc"))
    log = list(shingler.changes().items())
    shingler.peek(np.ones((3, 1)), list("cde"))
    assert shingler.changes() == {}
    shingler.widen(2)
    log += shingler.changes().items()
    wide = PastValues(1, 2)
    wide.recover(compacted(log))
    assert all(
        a.tobytes() == b.tobytes() for a, b in zip(wide.snapshot().values(), shingler.snapshot().values(), strict=True)
    )


def test_a_smaller_limit_of_series_holds_for_what_is_recovered_too() -> None:
    log: list[tuple[str, bytes | None]] = []
    many, few = PastValues(1, 1, max_keys=10), PastValues(1, 1, max_keys=3)
    many.rows(np.arange(10.0)[:, None], list("abcdefghij"))
    log += many.changes().items()
    few.recover(compacted(log))
    log += few.changes().items()
    assert sum(key.startswith("series/") for key in compacted(log)) == 3
    np.testing.assert_array_equal(few.snapshot()["histories"].ravel(), [7, 8, 9])


# --- what does not fit ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> dict[str, bytes]:
    """The log of a partition that has two generations."""
    with pytest.MonkeyPatch.context() as patch:
        small_sketches_of(patch)
        partition = Partition()
        while partition.detector._next is None or partition.detector.generation < 2:
            first = partition.detector.records
            partition.process(first, first + 1)
        return cast(dict[str, bytes], partition.changes())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context_size": 30}, "context_size is 24 in the state, 30 now"),
        (
            {"seed": 3, "horizon": 500.0},
            "horizon is 1000000000.0 in the state, 500.0 now; seed is 0 in the state, 3 now",
        ),
        ({"adapt_after": 200, "gate": 0.3}, "adapt_after is 64 in the state, 200 now"),
        ({"lag": 200}, "lag is 40 in the state, 200 now"),
        ({"alert_rate": 0.001}, "alert_rate is 0.1 in the state, 0.001 now"),
    ],
)
def test_a_state_of_other_settings_is_refused_by_name(
    log: dict[str, bytes], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(StateError) as caught:
        Partition(replace(CONFIG, **changed)).recover(log)
    assert str(caught.value) == message


def test_a_state_of_other_features_or_another_model_is_refused(log: dict[str, bytes]) -> None:
    class Other(Distance):
        name = "other"

    with pytest.raises(StateError, match=r"^model is distance in .*; n_features is 4 .* 5 now; categorical is \[\] "):
        Detector(cast(ZeroShotModel, Other()), 5, CONFIG, categorical=(2,)).recover(under(log, "detector/"))
    with pytest.raises(StateError, match=r"^lags is 1 in the state, 2 now; features is 2 in the state, 1 now$"):
        PastValues(2, 1).recover(under(log, "lags/"))


def test_other_settings_may_change_between_runs(log: dict[str, bytes]) -> None:
    free = {"alert_rate": 0.05, "admit": "all", "gate": 0.5, "trim": 0.1, "refresh": 0.5, "min_context": 4}
    one = Partition(replace(CONFIG, **free)).recover(log)  # type: ignore[arg-type]
    entries = one.changes()
    assert list(entries) == ["detector/identity/0"]  # so that the log knows what was set last
    again = Partition(replace(CONFIG, **free)).recover({**log, **cast(dict[str, bytes], entries)})  # type: ignore[arg-type]
    assert_same_state(one, again)
    assert np.isfinite(one.process(300, 700).logit).all()


def test_a_shorter_warm_up_ends_at_once() -> None:
    slow, quick = Partition(replace(CONFIG, min_context=20)), Partition(CONFIG)
    slow.process(0, 15)
    quick.recover(cast(dict[str, bytes], slow.changes()))
    assert quick.process(15, 30).generation.tolist() == [0] + [1] * 14


def damages(value: bytes) -> st.SearchStrategy[bytes]:
    """Other bytes in place of a value."""
    return st.one_of(
        st.integers(0, len(value) - 1).map(lambda n: value[:n]),
        st.binary(min_size=1, max_size=30).map(lambda more: value + more),
        st.binary(max_size=200),
    ).filter(lambda other: len(other) != len(value))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_log_that_is_incomplete_or_damaged_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    needed = sorted(key for key in log if "series" not in key and "encoded" not in key)
    key = data.draw(st.sampled_from(needed))
    left = {other: value for other, value in log.items() if other != key}
    with pytest.raises(StateError, match=f"lacks {key.partition('/')[2]}"):
        Partition().recover(left)
    key = data.draw(st.sampled_from(sorted(log)))
    with pytest.raises(StateError):
        Partition().recover({**log, key: data.draw(damages(log[key]))})


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_document_of_which_a_byte_is_another_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    key = f"detector/{data.draw(st.sampled_from(['identity', 'counters', 'confirmed', 'generation/0']))}/0"
    value = bytearray(log[key])
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError, match=r"does not match its digest|lacks"):
        Partition().recover({**log, key: bytes(value)})


def test_nothing_is_no_state() -> None:
    with pytest.raises(StateError, match="lacks identity/0"):
        Partition().recover({})
    shingler = PastValues(1, 1)
    entries = cast(dict[str, bytes], shingler.changes())
    with pytest.raises(StateError, match="series/nonsense is the key of no series"):
        shingler.recover({**entries, "series/nonsense": bytes(16)})


# --- tables and documents -------------------------------------------------------------------------------------------

puts = st.lists(st.lists(st.integers(0, 10), max_size=4), max_size=12)


@given(st.integers(1, 12), puts)
def test_a_table_is_what_its_blocks_say(block: int, puts: list[list[int]]) -> None:
    def fresh() -> Table:
        return Table(block, number=np.full(11, 5), pair=np.zeros((11, 2)))

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
        recovered, restored = fresh(), fresh()
        recovered.recover(cast(dict[str, bytes], log), "t")
        restored.restore(table.snapshot())
        assert recovered.changes("t") == {}
        assert restored.changes("t").keys() <= log.keys()
        for found in (table, recovered, restored):
            np.testing.assert_array_equal(found["number"], number)
            np.testing.assert_array_equal(found["pair"], pair)


def test_columns_of_a_table_are_written_through_put_alone() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Table(2, number=np.zeros(3))["number"][1] = 5


@settings(max_examples=30, deadline=None)
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
