from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.detector.categories import category_code
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.generation import under
from fomo_stream.detector.quantile_sketch import QuantileSketch
from fomo_stream.detector.results import Results, Severity, Status
from fomo_stream.errors import ConfigError, SchemaError, StateError
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.zero_shot import encode_rows, logits_of

SMALL = DetectorConfig(
    context_size=60, min_context=20, lag=8, calibration_size=100, feedback_memory=80, adapt_after=100, alert_rate=0.05
)


def detector(config: DetectorConfig = SMALL, n_features: int = 3) -> Detector:
    return Detector(shared_model(), n_features, config)


def stream(n: int, seed: int = 0, d: int = 3) -> np.ndarray:
    """Normal rows, one in twenty far off, some values missing; a lasting shift after 200."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * np.where(rng.random((n, 1)) < 0.05, 8, 1)
    rows[200:] += 9
    rows[rng.random((n, d)) < 0.02] = np.nan
    return rows


def same(a: Results, b: Results) -> bool:
    arrays = ("score", "logit", "p_value", "outlier", "generation", "regime", "severity")
    equal = all(np.array_equal(getattr(a, n), getattr(b, n), equal_nan=n in arrays[:3]) for n in arrays)
    return equal and a.status == b.status


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=8), st.integers(0, 99))
def test_results_do_not_depend_on_how_records_are_batched(sizes: list[int], seed: int) -> None:
    rows = stream(sum(sizes), seed)
    whole = detector().process(rows)
    parts, one = [], detector()
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        parts.append(one.process(part))
    assert same(whole, Results.concatenate(parts))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 300), st.integers(0, 150), st.integers(0, 99))
def test_restored_detector_scores_as_if_never_stopped(before: int, after: int, seed: int) -> None:
    rows = stream(before + after, seed)
    first, second = detector(), detector()
    first.process(rows[:before])
    second.restore(first.snapshot())
    assert same(first.process(rows[before:]), second.process(rows[before:]))
    a, b = first.snapshot(), second.snapshot()
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name])


def test_a_copy_goes_on_alike_and_on_its_own() -> None:
    rows = stream(300)
    one = detector()
    one.process(rows[:150])
    before = one.copy()
    after = one.process(rows[150:])
    assert same(before.copy().process(rows[150:]), after)
    assert same(before.process(rows[150:]), after)


def test_a_generation_is_made_of_what_was_known_at_its_trigger() -> None:
    rng = np.random.default_rng(3)
    one = Detector(shared_model(), 2, DetectorConfig(context_size=100, min_context=50, lag=10, adapt_after=200))
    one.process(rng.normal(size=(400, 2)))
    one.process(rng.normal(size=(1000, 2)) * 5 + 40)  # a new regime, learned in the end
    state = one.snapshot()
    sketch = QuantileSketch(2, half_life=np.log(2) * 100)
    sketch.restore(under(state, "current.sketch"))
    kept = np.isin(state["current.numbers"], one.context_numbers)
    cache = encode_rows(shared_model(), state["current.rows"][kept], sketch.knots())
    probe = rng.normal(size=(20, 2)) * 5 + 40
    np.testing.assert_array_equal(one.score_rows(probe).logit, logits_of(shared_model(), cache, probe))
    assert not np.array_equal(
        logits_of(shared_model(), cache, probe),
        logits_of(shared_model(), encode_rows(shared_model(), state["current.rows"][kept]), probe),
    )


def test_a_detector_says_when_it_would_have_to_wait() -> None:
    go = threading.Event()
    rows = stream(200, 1)
    with ThreadPoolExecutor(1) as executor:
        one = Detector(shared_model(), 3, SMALL, executor)
        one.process(stream(21))  # the first generation is there
        executor.submit(go.wait, 60)  # the next build has to queue behind this
        try:
            taken = 0
            while one.is_ready(1):
                one.process(rows[taken : taken + 1])
                taken += 1
            assert 0 < taken < len(rows)
        finally:
            go.set()
        one.process(rows[taken : taken + 1])
        assert one.is_ready(1)


def test_a_background_build_changes_nothing() -> None:
    rows = stream(600)
    with ThreadPoolExecutor(1) as executor:
        background = Detector(shared_model(), 3, SMALL, executor)
        assert same(detector().process(rows), background.process(rows))
    assert background.generation > 3


def test_a_record_is_scored_before_it_is_learned() -> None:
    rows = stream(200)
    one = detector()
    one.process(rows)
    asked = one.score_rows(rows[:1])
    assert same(asked, one.process(rows[:1]))


def test_scores_begin_with_the_row_after_min_context() -> None:
    status = detector().process(stream(40)).status
    assert [s is Status.WARMING_UP for s in status] == [True] * 20 + [False] * 20


def test_nothing_alerts_before_the_alert_rate_is_reachable() -> None:
    config = DetectorConfig(context_size=60, min_context=20, lag=8, alert_rate=0.005)
    scored = detector(config).process(stream(600))
    calibrating = np.array([s is Status.CALIBRATING for s in scored.status])
    assert calibrating.any()
    assert not scored.outlier[calibrating].any()
    assert scored.status[-1] is Status.OK
    assert (scored.p_value[calibrating] > 0.005).all()


@pytest.mark.parametrize("share", [0.005, 0.03])
def test_outliers_do_not_become_context(share: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3))
    wrong = rng.random(2000) < share
    wrong[:300] = False
    rows[wrong] += 12
    one = Detector(shared_model(), 3, DetectorConfig(context_size=500))
    scored = one.process(rows)
    assert (scored.p_value[wrong] <= share + 0.02).all()
    if share < 0.01:  # more outliers than the alert rate cannot all be among the rarest
        assert scored.outlier[wrong].all()
    assert not wrong[one.context_numbers].any()


def test_a_burst_does_not_become_context() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3))
    burst = np.zeros(3000, dtype=bool)
    burst[1000:1600] = True
    rows[burst] = rows[burst] * 0.1 + 6
    one = Detector(shared_model(), 3)
    scored = one.process(rows)
    assert scored.outlier[1000:1010].all()
    assert scored.logit[burst].min() > np.quantile(scored.logit[200:][~burst[200:]], 0.99)
    assert not burst[one.context_numbers].any()
    assert scored.regime[-1] == 1


def test_what_most_of_the_stream_rejects_is_left_out_of_the_first_context_too() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3))
    rows[::20] = rng.normal(size=(10, 3)) * 0.1 + 6  # a cluster, in which each has near neighbours
    one = Detector(shared_model(), 3)
    one.process(rows)
    assert len(one.context_numbers) == 160
    assert not (one.context_numbers % 20 == 0).any()


@pytest.mark.parametrize("kind", ["binary", "dice", "rounded", "normal"])
def test_alert_rate_holds_block_by_block_whatever_the_values(kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = {
        "binary": rng.integers(0, 2, (4000, 2)).astype(float),
        "dice": rng.integers(1, 7, (4000, 1)).astype(float),
        "rounded": np.round(rng.normal(size=(4000, 2)), 1),
        "normal": rng.normal(size=(4000, 3)),
    }[kind]
    scored = Detector(shared_model(), rows.shape[1], DetectorConfig(context_size=500)).process(rows)
    blocks = scored.outlier[200:].reshape(-1, 950).mean(1)
    assert (blocks < 0.03).all(), blocks


def test_a_lasting_shift_becomes_the_new_normal_and_says_so() -> None:
    rng = np.random.default_rng(1)
    config = DetectorConfig(context_size=200, adapt_after=500)
    one = Detector(shared_model(), 3, config)
    before = one.process(rng.normal(size=(1200, 3)))
    assert before.regime[-1] == 1
    scored = one.process(rng.normal(size=(3000, 3)) + 20)
    assert scored.outlier[:10].all()
    assert scored.outlier[-1000:].mean() < 0.03
    begun = int(np.argmax(scored.regime == 2))
    assert 450 <= begun <= 500 + 256 + 64  # nine in ten of the last 500, and a trial
    assert scored.regime[-1] == 2
    assert (scored.logit[-500:] < np.median(scored.logit[:400])).all()
    never = Detector(shared_model(), 3, replace(config, adapt_after=0))
    never.process(rng.normal(size=(1200, 3)))
    assert (never.process(rng.normal(size=(1500, 3)) + 20).regime == 1).all()


def test_after_a_shift_the_old_normal_is_still_known() -> None:
    rng = np.random.default_rng(1)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=200, adapt_after=500))
    one.process(rng.normal(size=(1200, 3)))
    one.process(rng.normal(size=(1500, 3)) + 20)
    back = one.process(rng.normal(size=(1000, 3)))
    assert back.regime[-1] == 2
    assert (back.logit < one.score_rows(np.full((1, 3), 10.0)).logit[0]).mean() > 0.9


@pytest.mark.parametrize("admit", ["auto", "feedback", "all"])
def test_policies_admit_what_their_names_say(admit: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(900, 3))
    rows[400:500] += 15
    one = Detector(shared_model(), 3, DetectorConfig(context_size=1000, admit=admit))
    one.process(rows)
    learned = one.snapshot()["pool.numbers"]
    expected = {"auto": 450, "feedback": 0, "all": 650}[admit]
    assert abs((learned >= 200).sum() - expected) <= 130
    assert np.isin(np.arange(410, 490), learned).any() == (admit == "all")
    one.feedback(np.arange(300, 600), np.arange(300, 600) >= 450)
    one.process(rng.normal(size=(64, 3)))
    learned = one.snapshot()["pool.numbers"]
    assert np.isin(np.arange(300, 450), learned).all()  # feedback is heeded by each of them
    assert not np.isin(np.arange(450, 600), learned).any()


def test_normal_records_alert_about_as_often_as_asked() -> None:
    rows = np.random.default_rng(2).normal(size=(6000, 4))
    scored = Detector(shared_model(), 4, DetectorConfig(context_size=500, alert_rate=0.02)).process(rows)
    assert scored.outlier[1000:].mean() == pytest.approx(0.02, abs=0.006)


def test_cross_scores_stand_for_the_warm_up_rows() -> None:
    one = detector()
    assert len(one.cross_scored()) == 0
    one.process(stream(20))
    crossed = one.cross_scored()
    assert len(crossed) == 20
    assert np.isfinite(crossed.logit).all()
    assert (crossed.p_value > 0).all()


def test_seeded_detector_scores_the_first_record() -> None:
    one = detector()
    one.seed_context(stream(30))
    assert one.process(stream(1, 1)).status[0] is not Status.WARMING_UP
    with pytest.raises(StateError, match="before the first record"):
        one.seed_context(stream(30))


def test_the_first_context_knows_the_verdicts_before_it() -> None:
    one = detector()
    one.process(stream(7))
    one.feedback(np.arange(4), np.ones(4, dtype=bool))
    before = one.snapshot()
    with pytest.raises(SchemaError, match="3 rows are too few"):
        one.flush_warm_up()
    after = one.snapshot()
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())
    one.feedback(np.arange(1), np.zeros(1, dtype=bool))
    one.flush_warm_up()
    assert len(one.cross_scored()) == one.context_rows == 4


def test_short_input_can_end_its_warm_up() -> None:
    one = detector()
    one.process(stream(7))
    one.flush_warm_up()
    assert len(one.cross_scored()) == 7
    with pytest.raises(SchemaError, match="at least 4"):
        detector().flush_warm_up()


def test_feedback_removes_and_admits_and_recalibrates() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1500, 3))
    rows[700:800] += 15
    one = Detector(shared_model(), 3, DetectorConfig(context_size=2500))
    one.process(rows)
    held = set(one.snapshot()["pool.numbers"].tolist())
    assert not held & set(range(710, 790))
    taken = sorted(held & set(range(1000, 1200)))[:50]
    assert one.feedback(np.array([*range(700, 800), *taken]), np.array([False] * 100 + [True] * 50)) == 150
    one.process(rng.normal(size=(1, 3)))
    held = set(one.snapshot()["pool.numbers"].tolist())
    assert set(range(700, 800)) <= held
    assert not held & set(taken)
    probe = rng.normal(size=(1, 3)) + 15
    before = one.score_rows(probe).logit[0]
    one.process(rng.normal(size=(600, 3)))  # a generation later
    assert one.score_rows(probe).logit[0] < before - 1
    assert np.isin(np.arange(700, 800), one.context_numbers).all()  # what somebody vouches for is not trimmed


def test_outliers_by_feedback_are_no_standard_for_others() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, 3))
    wrong = rng.random(1200) < 0.05
    wrong[:200] = False
    rows[wrong] += 9
    one = Detector(shared_model(), 3)
    one.process(rows)
    probe = np.full((1, 3), 9.0)
    assert not one.score_rows(probe).outlier[0]  # one in twenty were like this
    one.feedback(np.flatnonzero(wrong), np.ones(wrong.sum(), dtype=bool))
    assert one.score_rows(probe).outlier[0]


@cache
def after_500(seed: int) -> Detector:
    """A detector that has processed so many rows; to be copied."""
    one = detector()
    one.process(stream(500, seed))
    return one


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_feedback_is_idempotent_and_its_order_does_not_matter(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2))
    numbers = data.draw(st.lists(st.integers(250, 520), unique=True, max_size=40))
    outlier = {number: data.draw(st.booleans()) for number in numbers}
    shuffled = data.draw(st.permutations(numbers))
    one, other = after_500(seed).copy(), after_500(seed).copy()
    for each, order in ((one, numbers), (other, shuffled)):
        given, verdict = np.array(order, dtype=np.int64), np.array([outlier[n] for n in order], dtype=bool)
        oldest = max(0, 500 - len(each.snapshot()["memory.rows"]))
        known = (given >= oldest) & (given < 500)
        assert each.feedback(given, verdict) == known.sum()
        assert each.feedback(given, verdict) == 0
    assert same(one.process(stream(200, 5)), other.process(stream(200, 5)))


def test_a_context_survives_that_all_of_it_is_called_outliers() -> None:
    one = detector()
    one.process(stream(100))
    one.feedback(np.arange(100), np.ones(100, dtype=bool))
    rows = stream(190, 1)
    assert np.isfinite(one.process(rows[:1]).logit).all()  # by the context of before
    assert one.context_rows == 0
    assert np.isfinite(one.process(rows[1:100]).logit).all()
    one.feedback(np.arange(100, 200), np.zeros(100, dtype=bool))
    one.process(stream(190, 2))
    assert (one.context_numbers >= 100).all()


def test_verdicts_during_the_warm_up_prolong_it_and_can_be_revoked() -> None:
    rows = stream(60)
    one = detector()
    one.process(rows[:19])
    one.feedback(np.arange(19), np.ones(19, dtype=bool))
    one.feedback(np.arange(3), np.zeros(3, dtype=bool))
    status = one.process(rows[19:20]).status
    assert one.context_rows == 4  # the three and the new one
    status += one.process(rows[20:]).status
    assert [s is Status.WARMING_UP for s in status] == [True] * 17 + [False] * 24
    assert {0, 1, 2} <= set(one.snapshot()["pool.numbers"].tolist())


def test_feedback_can_keep_an_incident_from_becoming_a_regime() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=100, min_context=50, adapt_after=100))
    one.process(rng.normal(size=(300, 3)))
    held = one.context_rows
    for first in range(300, 900, 60):
        one.process(rng.normal(size=(60, 3)) + 20)
        one.feedback(np.arange(first, first + 60), np.ones(60, dtype=bool))
    assert one.regime == 1
    assert one.context_rows == held


def test_a_new_feature_may_come_when_outliers_are_known() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 2, DetectorConfig(context_size=50, min_context=20))
    one.process(rng.normal(size=(400, 2)))
    one.feedback(np.arange(300, 340), np.ones(40, dtype=bool))
    one.process(rng.normal(size=(700, 2)))
    assert one._current is not None
    assert one._current.result().outliers is not None
    assert np.isfinite(one.widened(3).process(rng.normal(size=(10, 3))).logit).all()


def test_a_verdict_can_be_revoked() -> None:
    rows = stream(150)
    one = detector()
    one.process(rows[:148])
    number = one.snapshot()["pool.numbers"][-1:]
    for outlier, row in ((True, 148), (False, 149)):
        one.feedback(number, np.array([outlier]))
        one.process(rows[row : row + 1])  # takes effect now
        assert (number in one.snapshot()["pool.numbers"]) != outlier


def test_a_verdict_on_a_record_in_quarantine_is_heeded() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(min_context=192))
    one.process(rng.normal(size=(320, 3)))
    newest = np.arange(310, 320)
    one.feedback(newest, np.ones(10, dtype=bool))
    one.process(rng.normal(size=(64, 3)))
    held = one.snapshot()["pool.numbers"]
    assert not np.isin(newest, held).any()
    assert np.isin(np.arange(320, 340), held).all()


def test_severity_follows_the_p_value() -> None:
    rng = np.random.default_rng(0)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=300, alert_rate=0.05))
    one.process(rng.normal(size=(3000, 3)))
    scored = one.score_rows(np.outer(np.linspace(0, 12, 200), [1, -1, 1]))
    order = np.argsort(-scored.p_value, kind="stable")
    assert (np.diff(scored.severity[order]) >= 0).all()
    assert set(scored.severity.tolist()) == set(Severity)
    np.testing.assert_array_equal(scored.outlier, scored.severity >= Severity.WARNING)


def test_categories_are_compared_by_how_often_the_context_has_them() -> None:
    rng = np.random.default_rng(0)
    codes = np.array([category_code(name) for name in ("red", "green", "blue")])
    rows = np.column_stack([rng.normal(size=1200), codes[rng.choice(3, 1200, p=[0.7, 0.25, 0.05])]])
    one = Detector(shared_model(), 2, categorical=(1,))
    one.process(rows)
    red, blue, new = one.score_rows(np.column_stack([np.zeros(3), [codes[0], codes[2], category_code("pink")]])).logit
    assert red < blue < new
    assert one.score_rows(np.array([[0.0, category_code("pink")]])).outlier[0]


def test_a_new_feature_counts_once_the_context_knows_it() -> None:
    rng = np.random.default_rng(0)
    config = DetectorConfig(context_size=100, min_context=50, lag=8)
    one = detector(config, 2)
    one.process(rng.normal(size=(300, 2)))
    wide = one.widened(3)
    row = np.array([[0.1, 0.1, 50.0]])
    assert wide.score_rows(row).logit == pytest.approx(one.score_rows(row[:, :2]).logit, abs=1e-4)
    wide.process(rng.normal(size=(1500, 3)))
    assert wide.score_rows(row).outlier[0]


@pytest.mark.parametrize("kind", ["constant", "duplicates", "huge", "missing"])
def test_degenerate_streams_give_finite_scores(kind: str) -> None:
    rng = np.random.default_rng(0)
    rows = {
        "constant": np.full((200, 3), 5.0),
        "duplicates": np.repeat(rng.normal(size=(3, 3)), 67, axis=0),
        "huge": rng.choice([1e308, -1e308, 0.0, 1.0], size=(200, 3)),
        "missing": np.full((200, 3), np.nan),
    }[kind]
    scored = detector().process(rows)
    assert np.isfinite(scored.logit[20:]).all()
    assert ((scored.score[20:] >= 0) & (scored.score[20:] <= 1)).all()


def test_snapshot_of_another_detector_is_refused() -> None:
    with pytest.raises(StateError, match="n_features is 3 in the state, 2 now"):
        detector(n_features=2).restore(detector().snapshot())


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(SchemaError, match="3 features"):
        detector().process(np.zeros((5, 4)))


@pytest.mark.parametrize(
    ("name", "value"), [("min_context", 2000), ("alert_rate", 0.0), ("context_size", 9999), ("gate", 2), ("seed", -1)]
)
def test_impossible_settings_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        DetectorConfig(**{name: value})  # type: ignore[arg-type]
