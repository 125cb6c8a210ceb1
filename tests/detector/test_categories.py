from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fomo_stream.detector.categories import Frequencies
from fomo_stream.records.category_codes import category_code

texts = st.text(st.characters(), max_size=8)  # lone surrogates too: JSON can hold them


# --- codes
@given(st.one_of(texts, st.integers(), st.floats(), st.booleans(), st.text(min_size=300, max_size=400)))
def test_a_code_is_a_whole_number_that_floats_hold_exactly_or_nan(value: Any) -> None:
    code = category_code(value)
    assert isinstance(code, float)
    assert math.isnan(code) or (0 <= code < 2**53 and code == int(code))


@given(st.lists(texts.filter(lambda text: text.strip() == text != ""), unique=True, max_size=20))
def test_different_texts_have_different_codes(values: list[str]) -> None:
    values = [value for value in values if value.lower() not in ("nan", "inf", "-inf", "nat", "true", "false")]
    assert len({category_code(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("value", "code"), [("DE", 7667715031239559.0), (404, 2142834769881944.0), (True, 8634665485233310.0)]
)
def test_codes_are_the_same_in_every_process_and_release(value: Any, code: float) -> None:
    assert category_code(value) == code


@given(st.integers(-(2**53), 2**53))
@example(10**17)
def test_a_whole_number_is_the_same_category_however_it_is_written(number: int) -> None:
    codes = {category_code(v) for v in (number, float(number), str(number), str(float(number)), np.int64(number))}
    assert len(codes) == 1


@pytest.mark.parametrize(
    "value", [None, math.nan, math.inf, -math.inf, "", "  ", "NaN", "nan", [], ["a"], {}, {"a": 1}, pd.NA, pd.NaT]
)
def test_what_is_no_category_is_missing(value: Any) -> None:
    assert math.isnan(category_code(value))


# --- frequencies

codes = st.one_of(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]), st.just(math.nan))
contexts = st.lists(st.tuples(codes, codes, codes), min_size=1, max_size=40).map(np.array)


NEW = np.array([[-5.0]])


@given(contexts, contexts)
def test_rarity_is_what_the_share_of_the_other_rows_makes_it(context: np.ndarray, rows: np.ndarray) -> None:
    def naive(value: float, others: list[float]) -> float:
        others = [other for other in others if not math.isnan(other)]
        p = (others.count(value) + 0.5) / (len(others) + 1)
        return math.nan if math.isnan(value) else math.sqrt(1 / p - 1)

    frequencies = Frequencies.fit(context, (0, 2))
    encoded, own = frequencies.encode(rows), frequencies.encode(context)
    for j in (0, 2):
        kept = context[:, j].tolist()
        left_out = {v: naive(v, kept[:i] + kept[i + 1 :]) for i, v in enumerate(kept)}
        np.testing.assert_allclose(own[:, j], [naive(v, kept[:i] + kept[i + 1 :]) for i, v in enumerate(kept)])
        np.testing.assert_allclose(encoded[:, j], [left_out.get(v, naive(v, kept)) for v in rows[:, j].tolist()])
    np.testing.assert_array_equal(encoded[:, 1], rows[:, 1])
    np.testing.assert_array_equal(own[:, 1], context[:, 1])


def rarest_pair(rows: np.ndarray, context: np.ndarray, order: tuple[int, ...] = (0, 1, 2)) -> np.ndarray:
    """The column that pairs add."""
    return Frequencies.fit(context[:, order], range(len(order))).encode(rows[:, order])[:, -1]


@given(contexts, contexts, st.permutations(range(3)), st.randoms(use_true_random=False))
def test_the_rarity_of_pairs_is_what_its_definition_says(
    context: np.ndarray, rows: np.ndarray, order: list[int], random: Any
) -> None:
    def share(values: np.ndarray, value: float) -> float:
        n, c = (~np.isnan(values)).sum(), (values == value).sum()
        return float((c - 0.5) / n if c else 0.5 / (n + 1))

    def others_and_expected(row: np.ndarray, one: int, two: int) -> tuple[float, float]:
        have = (context[:, one] == row[one]) & (context[:, two] == row[two])
        both = (~np.isnan(context[:, [one, two]]).any(axis=1)).sum()
        expected = both * share(context[:, one], row[one]) * share(context[:, two], row[two])
        return max(have.sum() - 1, 0), expected

    wanted = np.zeros(len(rows))
    for one, two in ((0, 1), (0, 2), (1, 2)):
        known = [row for row in context if not np.isnan(row[[one, two]]).any()]
        ratios = [c / e for c, e in (others_and_expected(row, one, two) for row in known)]
        w = np.clip(np.mean(ratios) - 1, 0, 1) if ratios else 0.0
        for i, row in enumerate(rows):
            if not np.isnan(row[[one, two]]).any():
                c, e = others_and_expected(row, one, two)
                wanted[i] = max(wanted[i], (1 + w * e) / (1 + w * c) - 1)
    found = rarest_pair(rows, context)
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    shuffled = context[random.sample(range(len(context)), len(context))]
    np.testing.assert_array_equal(rarest_pair(rows, shuffled, tuple(order)), found)  # bit for bit
    alone = [rarest_pair(row[None], context)[0] for row in rows]
    np.testing.assert_array_equal(alone, found)


def test_pairs_are_of_the_first_columns_of_the_record_itself() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (200, 12)).astype(float)
    rows[:, [1, 10]] = rows[:, [0, 9]]
    odd = rows.copy()
    odd[:, 10] = (odd[:, 9] + 1) % 3  # the pair is beyond the first eight
    np.testing.assert_array_equal(rarest_pair(odd, rows, tuple(range(12))), rarest_pair(rows, rows, tuple(range(12))))
    lagged = Frequencies.fit(rows, range(12), width=6).encode(rows)
    np.testing.assert_array_equal(lagged[:, -1], rarest_pair(rows, rows, tuple(range(6))))
    assert Frequencies.fit(rows, range(12), width=1).encode(rows).shape == rows.shape


def test_an_empty_column_and_no_rows_are_no_trouble() -> None:
    frequencies = Frequencies.fit(np.full((5, 1), np.nan), (0,))
    assert np.isfinite(frequencies.encode(NEW)).all()
    assert np.isnan(frequencies.encode(np.full((5, 1), np.nan))).all()
    assert frequencies.encode(np.empty((0, 1))).shape == (0, 1)
