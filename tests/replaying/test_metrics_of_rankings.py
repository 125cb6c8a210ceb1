"""Metrics from counts are those of scikit-learn, ties included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from blocks import OWN, block, made_stream, tallied
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

from fomo_stream.replaying.blocks import UNKNOWN
from fomo_stream.replaying.tally.keyed_counts import KeyedCounts
from fomo_stream.replaying.tally.metrics import CURVE_POINTS, curves, quantile, ranking_metrics
from fomo_stream.replaying.tally.windows import WINDOW_SCORES

Float = NDArray[np.float64]
Int = NDArray[np.int64]


def measured(scores: Float, labels: Int, alert_rate: float = 0.1, limit: int = 1000) -> dict[str, float]:
    counts = KeyedCounts(limit, (2,))
    counts.add(scores, labels)
    descending = counts.counts[::-1, :, None].astype(float)
    values = ranking_metrics(descending[:, 0], descending[:, 1], alert_rate)
    return {name: float(value[0]) for name, value in values.items()}


@st.composite
def ranked(draw: st.DrawFn) -> tuple[Float, Int]:
    score = st.integers(-3, 3).map(float) if draw(st.booleans()) else st.floats(-100, 100)
    pairs = draw(st.lists(st.tuples(score, st.integers(0, 1)), min_size=2, max_size=40))
    scores, labels = np.array([s for s, _ in pairs]), np.array([label for _, label in pairs])
    labels[:2] = 0, 1
    return scores, labels


@given(ranked())
def test_auroc_and_average_precision_equal_those_of_scikit_learn(case: tuple[Float, Int]) -> None:
    scores, labels = case
    values = measured(scores, labels)
    assert values["auroc"] == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores))
    assert values["average_precision"] == pytest.approx(sklearn_metrics.average_precision_score(labels, scores))


@given(ranked(), st.floats(0.01, 1.0))
def test_metrics_of_the_first_records_are_means_over_the_orders_of_ties(case: tuple[Float, Int], rate: float) -> None:
    scores, labels = case[0][:6], case[1][:6]
    values, n_out = measured(scores, labels, rate), int(labels.sum())
    flagged = max(1, round(rate * len(labels)))
    found: dict[int, list[int]] = {n_out: [], flagged: []}
    for order in itertools.permutations(range(len(labels))):
        if (np.diff(scores[list(order)]) <= 0).all():
            for n, hits in found.items():
                hits.append(int(labels[list(order)][:n].sum()))
    assert values["f1"] == pytest.approx(np.mean(found[n_out]) / n_out)
    assert values["precision_at_rate"] == pytest.approx(np.mean(found[flagged]) / flagged)
    assert values["recall_at_rate"] == pytest.approx(np.mean(found[flagged]) / n_out)


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e6])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_rounding_many_scores_hardly_changes_the_metrics(scale: float, offset: float) -> None:
    rng = np.random.default_rng(4)
    labels = (rng.random(100_000) < 0.01).astype(np.int64)
    scores = scale * (rng.normal(size=len(labels)) + 2 * labels + offset)
    exact = measured(scores, labels, 0.01, 10**6)
    assert exact["auroc"] == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores))
    finely, roughly = measured(scores, labels, 0.01, 2**14), measured(scores, labels, 0.01, WINDOW_SCORES)
    assert finely == pytest.approx(exact, abs=1e-3)
    assert roughly == pytest.approx(exact, abs=1e-2)
    assert roughly["auroc"] == pytest.approx(exact["auroc"], abs=5e-4)


def test_metrics_need_both_classes() -> None:
    for labels in ([0, 0], [1, 1]):
        assert all(np.isnan(value) for value in measured(np.array([1.0, 2.0]), np.array(labels)).values())
    assert np.isnan(ranking_metrics(np.zeros((0, 3)), np.zeros((0, 3)), 0.1)["auroc"]).all()


def test_curves_are_thin_and_keep_their_area_and_ends() -> None:
    rng = np.random.default_rng(5)
    labels = (rng.random(20_000) < 0.05).astype(np.int64)
    scores = rng.normal(size=len(labels)) + 1.5 * labels
    counts = KeyedCounts(10**5, (2,))
    counts.add(scores, labels)
    descending = counts.counts[::-1].astype(float)
    drawn = curves(descending[:, 0], descending[:, 1])
    assert drawn is not None
    (fpr, tpr), (recall, precision) = drawn["roc"], drawn["pr"]
    assert len(fpr) <= CURVE_POINTS
    assert len(recall) <= CURVE_POINTS
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1], recall[-1]) == (0, 0, 1, 1, 1)
    assert sklearn_metrics.auc(fpr, tpr) == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores), abs=3e-4)
    assert precision[-1] == pytest.approx(labels.mean())
    area = sklearn_metrics.auc(recall, precision)
    assert area == pytest.approx(sklearn_metrics.average_precision_score(labels, scores), abs=5e-3)
    assert curves(descending[:, 0], 0 * descending[:, 1]) is None


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_the_median_of_exact_counts_is_the_lower_median(values: list[float]) -> None:
    counts = KeyedCounts(100, ())
    counts.add(np.array(values))
    low, high = counts.cells()
    assert quantile(low, high, counts.counts[:, None].astype(float), 0.5)[0] == np.quantile(
        np.array(values) + 0.0, 0.5, method="inverted_cdf"
    )


def test_the_report_has_the_metrics_of_scikit_learn_on_the_records_that_all_detectors_scored() -> None:
    blocks = list(made_stream(6, 5000, detectors=(OWN, "other")))
    blocks[1].judgements["other"].score[:100] = np.nan
    scores = {name: np.concatenate([b.judgements[name].score for b in blocks]) for name in (OWN, "other")}
    labels = np.concatenate([b.labels for b in blocks])
    used = ~np.isnan(scores[OWN]) & ~np.isnan(scores["other"]) & (labels != UNKNOWN)
    for detector in tallied(blocks).report()["detectors"]:
        expected = sklearn_metrics.roc_auc_score(labels[used], scores[detector["name"]][used])
        assert detector["metrics"]["auroc"]["value"] == pytest.approx(expected, abs=1e-6)
        assert detector["counts"]["ranked"] == used.sum()
        assert detector["counts"]["outliers"] == (labels == 1).sum()


def test_a_window_has_the_auroc_of_its_records() -> None:
    blocks = list(made_stream(7, 4000))
    report = tallied(blocks).report()
    windows = report["windows"]
    times, labels = (np.concatenate([getattr(b, name) for b in blocks]) for name in ("times", "labels"))
    scores = np.concatenate([b.judgements[OWN].score for b in blocks])
    n_known = 0
    for i, (start, end) in enumerate(zip(windows["start"], windows["end"], strict=True)):
        inside = (times >= start) & (times < end)
        assert windows["records"][i] == inside.sum()
        used = inside & ~np.isnan(scores) & (labels != UNKNOWN)
        value = windows["by_detector"][OWN]["auroc"][i]
        if set(labels[used]) == {0, 1}:
            n_known += 1
            assert value == pytest.approx(sklearn_metrics.roc_auc_score(labels[used], scores[used]), abs=0.05)
        else:
            assert value is None
    assert n_known > 5
    assert sum(windows["records"]) == len(times)


def test_scores_of_any_size_make_a_histogram() -> None:
    for scores in (np.full(50, 3.0), np.array([1.0, 1e300, -np.inf, np.inf, np.nan]), np.arange(5000.0) ** 3):
        drawn = tallied([block(scores)], has_labels=False).report()["detectors"][0]["distribution"]
        assert sum(drawn["counts"]) == np.count_nonzero(~np.isnan(scores))
        assert drawn["outliers"] is None
        assert (np.diff(drawn["edges"]) > 0).all()


def test_a_histogram_shows_the_density() -> None:
    rng = np.random.default_rng(8)
    scores, labels = rng.normal(size=20_000), np.arange(20_000) % 50 == 0
    drawn = tallied([block(scores, labels)]).report()["detectors"][0]["distribution"]
    for name, values in (("counts", scores), ("outliers", scores[labels])):
        expected, _ = np.histogram(values, drawn["edges"])
        inner = slice(1, -1)
        difference = np.abs(np.array(drawn[name]) - expected)[inner]
        assert (difference <= 0.1 * expected[inner] + 12).all()
