"""A reference: rows that are called good, which alone decide what is an outlier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.errors import SchemaError
from fomo_stream.model.checkpoint import shared_model

CONFIG = DetectorConfig(context_size=200, min_context=100, own_contexts=2, explain="alerts")
LEVELS = {"a": 0.0, "b": 50.0, "c": -50.0}


def rows_of(n: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, list[str]]:
    """Rows (n, 3) of three keys, each with a level of its own, in turn."""
    rng = np.random.default_rng(seed)
    keys = [list(LEVELS)[i % 3] for i in range(n)]
    rows = rng.normal(size=(n, 3)) + np.array([LEVELS[key] for key in keys])[:, None]
    rows[:, 2] = rows[:, 0] + rng.normal(0.0, 0.1, n)
    rows[:, 1] += shift
    return rows, keys


def detector(reference: tuple[np.ndarray, list[str]] | None, config: DetectorConfig = CONFIG) -> Detector:
    made = Detector(shared_model(), 3, config)
    if reference is not None:
        made.set_reference(*reference)
    return made


def process(made: Detector, rows: np.ndarray, keys: list[str], size: int = 64) -> Results:
    parts = [made.process(rows[at : at + size], keys[at : at + size]) for at in range(0, len(rows), size)]
    return Results.concatenate(parts)


def stored(made: Detector) -> dict[str, bytes]:
    return {name: value for name, value in made.changes().items() if value is not None}


GOOD = rows_of(900, 0)


def test_what_lasts_stays_an_outlier_and_its_reasons_are_of_the_reference() -> None:
    usual, odd = rows_of(400, 1), rows_of(900, 2, shift=8.0)
    quiet = replace(CONFIG, explain="none")
    made, without = detector(GOOD, quiet), detector(None, quiet)
    assert process(made, *usual).outlier.mean() < 0.01
    process(without, *usual)
    assert process(made, *odd).outlier[-200:].all()
    assert not process(without, *odd).outlier[-200:].any()
    for reasons in made.explain(*rows_of(3, 13, shift=8.0)):
        assert (reasons[0].feature, reasons[0].scope) == (1, "reference")
        assert reasons[0].value - reasons[0].median > 6.0
    assert not process(made, *rows_of(200, 3)).outlier[-100:].any()


def test_each_key_has_rows_of_its_own_and_an_unknown_key_those_of_all() -> None:
    rows = np.repeat([[0.0], [50.0], [50.0], [0.0], [0.0], [50.0]], 3, axis=1)
    found = detector(GOOD).process(rows, ["a", "b", "a", "b", "new", "other"])
    assert found.outlier.tolist() == [False, False, True, True, False, False]
    assert found.status == ["ok"] * 6  # from the first record on; what is learned waits
    assert np.isfinite(found.score).all()
    assert np.isnan(found.logit).all()


def test_what_is_learned_does_not_depend_on_a_reference() -> None:
    rows, keys = rows_of(600, 4)
    made, without = detector(GOOD), detector(None)
    one, two = process(made, rows, keys), process(without, rows, keys)
    assert np.array_equal(one.logit, two.logit, equal_nan=True)
    assert np.array_equal(one.remembered_logit, two.remembered_logit, equal_nan=True)
    entries, others = made.changes(), without.changes()
    assert entries.keys() - others.keys() == {"reference"}
    assert all(entries[name] == value for name, value in others.items())
    assert len(entries["reference"] or b"") < 100


def test_results_depend_neither_on_batches_nor_on_a_restart_in_the_middle_of_an_incident() -> None:
    rows, keys = rows_of(400, 6)
    rows[298:360, 1] += 3.0  # some of them only continue an incident
    rows[::17, 0] = np.nan
    whole = process(detector(GOOD), rows, keys)
    made, entries, parts = detector(GOOD), dict[str, bytes](), []
    for at in range(0, 300, 7):
        parts.append(made.process(rows[at : min(at + 7, 300)], keys[at : min(at + 7, 300)]))
        entries |= stored(made)
    again = detector(GOOD)
    again.recover(entries)
    split = Results.concatenate([*parts, process(again, rows[300:], keys[300:], size=1)])
    for name in ("score", "p_value", "outlier", "severity", "by_reference"):
        assert np.array_equal(getattr(split, name), getattr(whole, name), equal_nan=name != "outlier"), name


def test_a_state_goes_on_with_another_reference_and_without() -> None:
    made = detector(GOOD)
    process(made, *rows_of(300, 7))
    entries = stored(made)
    other, without = detector(rows_of(900, 8, shift=8.0)), detector(None)
    for one in (other, without):
        one.recover(entries)
    assert other.process(*rows_of(3, 9)).outlier.all()
    process(without, *rows_of(1, 9))
    assert without.changes()["reference"] is None


def test_a_fault_among_good_rows_hides_no_later_one() -> None:
    rows, keys = GOOD[0].copy(), GOOD[1]
    rows[400] += 1000.0
    assert detector((rows, keys)).process(np.array([[9.0, -9.0, 9.0]]), ["a"]).outlier.all()


def test_missing_values_and_sentinels() -> None:
    rows, keys = GOOD[0].copy(), GOOD[1]
    rows[::5, 0] = np.nan
    rows[::90, 1] = -9999.0
    made = detector((rows, keys))
    asked = np.array([[np.nan, 0.0, np.nan], [np.nan, 9.0, np.nan], [1e300, 0.0, 0.0], [np.nan, np.nan, np.nan]])
    found = made.process(asked, ["a"] * 4)
    assert found.outlier[:3].tolist() == [False, True, True]
    assert not found.outlier[3] or np.isfinite(found.score[3])


def test_too_few_rows() -> None:
    with pytest.raises(
        SchemaError, match="99 usable rows; at least 106 are needed; give more rows, or raise --alert-rate"
    ):
        detector((GOOD[0][:99], GOOD[1][:99]))
    with pytest.raises(SchemaError, match="at least 150 are needed; give more rows, or lower --min-context"):
        detector((GOOD[0][:149], GOOD[1][:149]), replace(CONFIG, min_context=150))
    with pytest.raises(SchemaError, match="at least 1053 are needed; give more rows, or raise --alert-rate"):
        detector(GOOD, DetectorConfig(alert_rate=0.001))
    many, few = detector(GOOD).reference, detector((GOOD[0][:200], GOOD[1][:200])).reference
    assert many is not None
    assert few is not None
    assert (many.keys, few.keys) == (3, 0)  # of few rows, each key has too few for rows of its own


def test_a_feature_that_hardly_ever_changes_hides_nothing() -> None:
    """As a count of a window that fills, or a device that is new only at first."""
    rng = np.random.default_rng(16)
    rows = np.column_stack([rng.normal(size=(500, 2)), np.full(500, 4.0)])
    rows[:9, 2] = rng.integers(1, 4, 9)
    asked = np.concatenate([rows[:20], rows[400:]])  # it begins likewise
    asked[90:, 0] += 9.0
    made = Detector(shared_model(), 3, CONFIG)
    made.set_reference(rows[:400])
    found = made.process(asked)
    assert found.outlier[90:].all()
    assert found.outlier[:90].sum() <= 4
    assert found.reasons[-1] is not None
    assert found.reasons[-1][0].feature == 0


def test_features_that_all_stand_still() -> None:
    rows = np.tile([1.0, 2.0, 3.0], (300, 1))
    made = detector((rows, ["a"] * 300))
    found = made.process(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 9.0]]), ["a", "a"])
    assert found.outlier.tolist() == [False, True]


def test_categories_counters_and_lags() -> None:
    rng = np.random.default_rng(14)
    rows = np.column_stack([rng.integers(0, 3, 400), rng.normal(size=400), np.arange(400.0) * 5, np.arange(400.0)])
    made = Detector(shared_model(), 3, replace(CONFIG, lags=2), None, (0,), (2,))
    made.set_reference(rows[:300])
    asked = rows[300:].copy()
    asked[50, 0] = 7.0  # a category that no good row has
    asked[70:, 2] += 200.0  # it grows by more, once
    outlier = made.process(asked).outlier
    assert outlier[[50, 70]].all()
    assert outlier[:50].mean() < 0.05
