"""Reasons in words, whatever a record contains."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_records import flat, records

from fomo_stream.detector.categories import category_code
from fomo_stream.detector.results import Cause, Reason
from fomo_stream.records.explanation import NAMED, number_text, sentence
from fomo_stream.records.json_codec import append_result, decode_strictly, encode
from fomo_stream.records.reasons import reasons_of
from fomo_stream.records.schema import Schema

finite = st.floats(allow_nan=False, allow_infinity=False)
some = st.one_of(finite, st.just(math.nan), st.sampled_from([0.0, 1.0, 1e308, -1e-308, math.inf]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], Schema, list[Reason]]:
    """A record, a schema with names of its leaves and others, and reasons about it or about something else."""
    record = draw(records)
    names = [*flat(record), *draw(st.lists(st.text(max_size=80), max_size=2)), "a"]
    features = tuple(dict.fromkeys(names))
    schema = Schema(features, frozenset(draw(st.sets(st.sampled_from(features)))))
    row, n = schema.rows([record])[0], len(features) - 1
    reasons = []
    for _ in range(draw(st.integers(1, 5))):
        feature, low = draw(st.integers(0, n)), draw(some)
        value = draw(st.one_of(st.just(float(row[feature])), some))
        high = draw(st.one_of(st.just(low), some))
        partner = draw(st.one_of(st.just(-1), st.integers(0, n)))
        cause, before = draw(st.sampled_from(list(Cause))), draw(st.integers(0, 100))
        share, frequency = draw(st.floats(0, 1)), draw(some)
        usual, expected = draw(some), draw(some)
        reasons.append(Reason(feature, cause, share, value, usual, low, high, frequency, partner, before, expected))
    return record, schema, reasons


@given(cases(), st.one_of(some, st.just(-math.inf)), st.booleans())
def test_no_record_makes_the_words_fail(
    case: tuple[dict[str, Any], Schema, list[Reason]], earlier: float, is_outlier: bool
) -> None:
    record, schema, reasons = case
    text = sentence(reasons, schema, record, earlier, is_outlier)
    assert text
    assert len(text) < 700
    assert text.isprintable()
    assert not any(unicodedata.category(letter).startswith("C") for letter in text)

    made = {"reasons": reasons_of(reasons, schema, record), "explanation": text}
    (written,) = json.loads(encode({}, {"all": made}))["fomo"].values()
    assert written["explanation"] == text
    assert [one["feature"] for one in written["reasons"]] == [schema.features[one.feature] for one in reasons]
    raw = json.dumps(record).encode()
    decoded, is_strict = decode_strictly(raw)
    output = append_result(raw, decoded, made) if is_strict else encode(decoded, made)
    assert json.loads(output)["fomo"] == written


@given(cases())
def test_a_sentence_names_few_features(case: tuple[dict[str, Any], Schema, list[Reason]]) -> None:
    record, schema, reasons = case
    assert sentence(reasons, schema, record) == sentence(reasons[:NAMED], schema, record)


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000, "\x1b[31mred\n", "\ud800", 10**4000, 2**63, [1], {}, np.float64(3), np.bool_(True), "\u202e"],
)
def test_any_category_can_be_written(value: Any) -> None:
    schema = Schema(("state",), frozenset({"state"}))
    idle = Reason(0, Cause.CATEGORY, 0.2, category_code("idle"), math.nan, math.nan, math.nan, 0.1)
    ((made,), record) = reasons_of([idle], schema, {"state": value}), {"state": value}
    text = sentence([idle], schema, record)
    assert text.isprintable()
    assert len(text) < 100
    assert len(encode({}, {"reasons": [made]})) < 1000


@given(st.one_of(st.floats(-1e300, 1e300), st.floats(-2000, 2000)), st.integers(2, 17))
def test_a_number_in_words_is_the_number_within_its_digits(value: float, digits: int) -> None:
    text = number_text(value, digits)
    assert float(text) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits), abs=0)
    assert len(text) <= 24
    if abs(value) < 1e15:
        assert "e+" not in text
