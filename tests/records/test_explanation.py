"""Reasons in words."""

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
from fomo_stream.detector.reasons import Cause, Reason
from fomo_stream.detector.series import Series
from fomo_stream.records.explanation import EARLIER, MOVED, NAMED, number_text, reasons_of, sentence
from fomo_stream.records.json_codec import append_result, decode_strictly, encode
from fomo_stream.records.schema import Schema

SCHEMA = Schema(("pressure", "flow", "open", "state"), frozenset({"state"}))
RECORD = {"pressure": 9.8, "flow": 170, "open": True, "state": "idle"}
NAN = math.nan


def reason(feature: int = 0, cause: Cause = Cause.VALUE, value: float = 9.8, share: float = 0.6, **more: Any) -> Reason:
    usual = {"median": 3.1, "low": 2.8, "high": 3.4, "frequency": NAN}
    if cause is Cause.CATEGORY:
        usual = {"median": NAN, "low": NAN, "high": NAN, "frequency": 0.002}
    return Reason(feature, cause, share, value, **{**usual, **more})


FLOW = reason(1, value=170.0, median=168.0, low=150.0, high=190.0, share=0.3)
IDLE = reason(3, Cause.CATEGORY, category_code("idle"), share=0.2)
CASES: list[tuple[str, list[Reason], dict[str, Any]]] = [
    ("pressure is 9.8, usually 3.1 (2.8 to 3.4)", [reason()], {}),
    ("pressure 9.8 is usual alone, but not together with the other values", [reason(high=10.0)], {}),
    ("pressure 9.8 and flow 170: each alone is usual, together they are not", [reason(high=10.0), FLOW], {}),
    ("pressure 9.8 and flow 170 do not go together (each alone is usual)", [reason(high=10.0, partner=1)], {}),
    (
        "pressure is 9.8, usually 3.1 (2.8 to 3.4), and does not go with flow 170",
        [reason(partner=1), FLOW._replace(partner=0)],
        {},
    ),
    (
        'state is "idle", which 0.2 % of the context has; '
        "flow 170 is usual alone, but not together with the other values",
        [IDLE, FLOW],
        {},
    ),
    ('state is "idle", which the context does not have', [IDLE._replace(frequency=0.0)], {}),
    ('flow 170 and state "idle" do not go together (each alone is usual)', [FLOW._replace(partner=3)], {}),
    (
        "pressure is missing, and the other values suggest that its value is unusual",
        [reason(cause=Cause.MISSING, value=NAN)],
        {"pressure": None},
    ),
    (
        "pressure is 5.2 on average over the last 10 records, usually 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.LEVEL, value=5.2)],
        {},
    ),
    (
        "pressure changes by 12 at a time over the last 10 records, usually by 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.SPREAD, value=12.0)],
        {},
    ),
    (
        "pressure changes by only 0.1 at a time over the last 10 records, usually by 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.SPREAD, value=0.1)],
        {},
    ),
    (
        "pressure is 9.8, usually 3.1 (2.8 to 3.4), and does not follow from the 2 values before it",
        [reason(cause=Cause.PAST)],
        {},
    ),
    (
        "pressure 9.8 is usual alone, but does not follow from the 2 values before it",
        [reason(cause=Cause.PAST, high=10.0)],
        {},
    ),
    ("open is true, usually false", [reason(2, value=1.0, median=0.0, low=0.0, high=0.0)], {}),
    ("open is 1, usually 0", [reason(2, value=1.0, median=0.0, low=0.0, high=0.0)], {"open": 1}),
    ("pressure is 3.4001, usually 3.1 (2.8 to 3.4)", [reason(value=3.4001)], {"pressure": 3.4001}),
    (
        "pressure is 1250000, usually 1000000 (999000 to 1001000)",
        [reason(value=1_250_000.0, median=1e6, low=999e3, high=1001e3)],
        {"pressure": 1_250_000},
    ),
]


@pytest.mark.parametrize(("words", "reasons", "changed"), CASES)
def test_a_reason_in_words(words: str, reasons: list[Reason], changed: dict[str, Any]) -> None:
    assert sentence(reasons, SCHEMA, RECORD | changed, lags=2) == words


def test_the_sentence_says_that_earlier_records_were_odd_if_the_score_is_of_them() -> None:
    words = sentence([reason()], SCHEMA, RECORD, earlier=EARLIER)
    assert words.endswith("; the records before it were odd, which raises its score")
    assert "before" not in sentence([reason()], SCHEMA, RECORD, earlier=EARLIER - 0.01)
    assert sentence([], SCHEMA, RECORD, earlier=10.0) == ""


def test_a_reason_that_hardly_counts_is_in_the_list_but_not_in_the_sentence() -> None:
    reasons = [reason(share=0.9), FLOW._replace(share=0.04)]
    assert "flow" not in sentence(reasons, SCHEMA, RECORD)
    assert [one["feature"] for one in reasons_of(reasons, SCHEMA, RECORD)] == ["pressure", "flow"]


def test_reasons_as_json() -> None:
    many = [reason(share=0.61234), IDLE, reason(2, value=1.0, median=0.0, low=0.0, high=0.0), FLOW._replace(partner=0)]
    missing = reason(cause=Cause.MISSING, value=NAN, median=NAN, low=NAN, high=NAN)
    assert reasons_of([*many, missing], SCHEMA, RECORD) == [
        {
            "feature": "pressure", "cause": "value", "share": 0.612, "value": 9.8, "usual": 3.1,
            "range": [2.8, 3.4],
        },
        {"feature": "state", "cause": "category", "share": 0.2, "value": "idle", "frequency": 0.002},
        {"feature": "open", "cause": "value", "share": 0.6, "value": True, "usual": 0.0, "range": [0.0, 0.0]},
        {
            "feature": "flow", "cause": "value", "share": 0.3, "value": 170, "usual": 168.0,
            "range": [150.0, 190.0], "with": "pressure",
        },
        {"feature": "pressure", "cause": "missing", "share": 0.6, "value": None, "usual": None, "range": None},
    ]  # fmt: skip


def test_the_last_records_of_which_the_words_speak_have_nine_tenths_of_the_weight_in_a_level() -> None:
    def weight_of_last(n: int) -> float:
        values = np.array([[0.0]] * 100 + [[1.0]] * n)
        return float(Series(1).follow(values).planes[-1, -2, 0])

    assert weight_of_last(MOVED) == pytest.approx(0.9, abs=0.01)
    assert weight_of_last(MOVED - 1) < 0.89


# --- whatever a record contains

finite = st.floats(allow_nan=False, allow_infinity=False)
some = st.one_of(finite, st.just(NAN), st.sampled_from([0.0, 1.0, 1e308, -1e-308, math.inf]))


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
        cause = draw(st.sampled_from(list(Cause)))
        reasons.append(Reason(feature, cause, draw(st.floats(0, 1)), value, draw(some), low, high, draw(some), partner))
    return record, schema, reasons


@given(cases(), st.integers(0, 100), st.one_of(some, st.just(-math.inf)))
def test_no_record_makes_the_words_fail(
    case: tuple[dict[str, Any], Schema, list[Reason]], lags: int, earlier: float
) -> None:
    record, schema, reasons = case
    text = sentence(reasons, schema, record, lags, earlier)
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
    ((made,), record) = reasons_of([IDLE._replace(feature=0)], schema, {"state": value}), {"state": value}
    text = sentence([IDLE._replace(feature=0)], schema, record)
    assert text.isprintable()
    assert len(text) < 100
    assert len(encode({}, {"reasons": [made]})) < 1000


@given(st.floats(-1e300, 1e300), st.integers(4, 17))
def test_a_number_in_words_is_the_number_within_its_digits(value: float, digits: int) -> None:
    text = number_text(value, digits)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits), abs=0)
    assert len(text) <= 24
    if abs(value) < 1e15:
        assert "e+" not in text
