"""Reasons of records: who gets them, that they are the same bits wherever they are found, and that nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import CONFIG, FEATURES, KEYS, MODEL, ROWS, recovered, state_of
from streams import SMALL, detector, same, stream

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Reason, Results

ALL = replace(CONFIG, explain="all")
N = 400


def new(config: object = ALL) -> Detector:
    return Detector(MODEL, FEATURES, config)  # type: ignore[arg-type]


def bits(reasons: Sequence[tuple[Reason, ...] | None]) -> str:
    """The reasons with all digits; NaN is equal to NaN."""

    def exact(some: tuple[Reason, ...]) -> list[object]:
        return [(*map(float, (*one[:1], *one[2:])), str(one.cause)) for one in some]

    return repr([None if some is None else exact(some) for some in reasons])


WHOLE = new().process(ROWS[:N], KEYS[:N])


@given(st.lists(st.integers(1, N - 1), max_size=6))
@settings(max_examples=10)
def test_reasons_do_not_depend_on_how_records_are_split_over_calls(cuts: list[int]) -> None:
    one, edges = new(), [0, *sorted(set(cuts)), N]
    parts = [one.process(ROWS[a:b], KEYS[a:b]) for a, b in pairwise(edges)]
    assert bits(Results.concatenate(parts).reasons) == bits(WHOLE.reasons)
    assert sum(map(bool, WHOLE.reasons)) > N / 2


@given(st.integers(20, N - 40))
@settings(max_examples=8)
def test_reasons_are_the_same_after_a_recovery_in_a_copy_and_without_learning(at: int) -> None:
    one = new()
    one.process(ROWS[:at], KEYS[:at])
    log = {key: value for key, value in one.changes().items() if value is not None}
    rest = slice(at, at + 40)
    expected = bits(WHOLE.reasons[rest])
    for twin in (recovered(log, config=ALL), recovered(log, one, ALL), one.copy(), one.widened(FEATURES)):
        assert bits(twin.process(ROWS[rest], KEYS[rest]).reasons) == expected
    now = slice(at, at + one.room)
    assert bits(one.score_rows(ROWS[now], KEYS[now]).reasons) == bits(WHOLE.reasons[now])


def test_to_explain_changes_nothing_and_no_setting_of_it_changes_results() -> None:
    plain, one = new(CONFIG), new()
    for start in range(0, N, 50):
        part = slice(start, start + 50)
        before = state_of(one)
        asked = one.explain(ROWS[part], KEYS[part])
        assert state_of(one) == before
        explained, known = one.process(ROWS[part], KEYS[part]), plain.process(ROWS[part], KEYS[part])
        assert not any(known.reasons)
        assert same(replace(explained, reasons=known.reasons), known)
        n = int((explained.generation == explained.generation[0]).sum())  # the next generations are not known before
        assert bits(asked[:n]) == bits([some or () for some in explained.reasons[:n]])


def test_alerts_alone_get_reasons_at_most_so_many_and_their_shares_are_of_one_whole() -> None:
    config = replace(SMALL, explain="alerts", reasons=2)
    found = detector(config).process(stream(300))
    assert found.outlier.any()
    for outlier, reasons in zip(found.outlier, found.reasons, strict=True):
        assert bool(outlier) == (reasons is not None)
        reasons = reasons or ()
        assert len(reasons) <= 2
        shares = [reason.share for reason in reasons]
        assert shares == sorted(shares, reverse=True) or reasons[0].partner >= 0
        assert sum(shares) <= 1 + 1e-9
        assert min(shares, default=0) >= 0
    assert sum(map(bool, found.reasons)) > 0.9 * found.outlier.sum()
