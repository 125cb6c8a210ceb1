"""Which records become context, and which generations follow from that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from streams import detector, pool_of

from fomo_stream.detector.categories import category_code
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.scoring import encode_rows, logits_of


def test_a_generation_is_made_of_what_was_known_at_its_trigger() -> None:
    rng = np.random.default_rng(3)
    one = Detector(shared_model(), 2, DetectorConfig(context_size=100, min_context=50, lag=10, adapt_after=200))
    one.process(rng.normal(size=(400, 2)))
    one.process(rng.normal(size=(1000, 2)) * 5 + 40)  # a new regime, learned in the end
    current = one._state.timeline.current
    assert current is not None
    blueprint = current.blueprint
    kept = blueprint.rows[np.isin(blueprint.numbers, one.context_numbers)]
    with_sketch = encode_rows(shared_model(), kept, blueprint.sketch.knots())
    without = encode_rows(shared_model(), kept)
    probe = rng.normal(size=(20, 2)) * 5 + 40
    found = one.score_rows(probe).logit
    np.testing.assert_array_equal(found, logits_of(shared_model(), with_sketch, probe))
    assert not np.array_equal(found, logits_of(shared_model(), without, probe))


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


def test_half_of_the_context_stays_when_a_regime_begins() -> None:
    rng = np.random.default_rng(1)
    one = Detector(shared_model(), 3, DetectorConfig(context_size=200, adapt_after=500))
    one.process(rng.normal(size=(1200, 3)))
    while one.regime == 1:
        one.process(rng.normal(size=(1, 3)) + 20)
    held = pool_of(one)
    assert len(held) == 200
    assert (held < 1200).sum() == pytest.approx(100, abs=10)


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
    learned = pool_of(one)
    expected = {"auto": 450, "feedback": 0, "all": 650}[admit]
    assert abs((learned >= 200).sum() - expected) <= 130
    assert np.isin(np.arange(410, 490), learned).any() == (admit == "all")
    one.feedback(np.arange(300, 600), np.arange(300, 600) >= 450)
    one.process(rng.normal(size=(64, 3)))
    learned = pool_of(one)
    assert np.isin(np.arange(300, 450), learned).all()  # feedback is heeded by each of them
    assert not np.isin(np.arange(450, 600), learned).any()


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
