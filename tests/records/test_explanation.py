"""The result of a record, and its reasons as JSON and in words."""

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

from fomo_stream.detector.results import Cause, Reason, Results, Scores, Status
from fomo_stream.records.category_codes import category_code
from fomo_stream.records.explanation import MIN_EARLIER_EXCESS, explanation_of, number_text, reasons_of
from fomo_stream.records.json_codec import decode, encode
from fomo_stream.records.result import results_of
from fomo_stream.records.schema import Schema


def test_a_result_has_null_where_there_is_no_score() -> None:
    scores = Scores.of(np.full((1, 1), np.nan), np.zeros(1, np.int64), np.full(1, np.nan))
    nan = np.array([np.nan])
    scored = Results.of(scores, nan, nan, nan, np.zeros(1, bool), np.zeros(1, np.int8), Status.WARMING_UP)
    (result,) = results_of(scored, "m", Schema(("flow",)), [{}], [2], [("sensors", 3, 812, None)])
    null = ("timestamp", "score", "remembered_logit", "logit", "p_value", "severity", "confidence")
    assert [name for name, value in result.items() if value is None] == list(null)
    place = {"topic": "sensors", "partition": 3, "offset": 812, "missing": 2, "model": "m"}
    assert result == {**result, **place, "outlier": False, "generation": 0}


def test_explained_records_have_reasons_perhaps_none_and_a_sentence() -> None:
    p = np.array([0.001, 0.001, 0.5, 0.5, 0.001, 0.5])
    scores = Scores.of(np.array([[5.0], [1.0], [1.0], [1.0], [1.0], [1.0]]), np.ones(6, np.int64), np.ones(6))
    remembered, severity = np.array([5.0, 3.0, 3.0, 1.0, 3.0, 3.0]), np.where(p < 0.5, 3, 0).astype(np.int8)
    scored = Results.of(scores, remembered, 1.0 - p, p, p < 0.5, severity, Status.OK)
    why = (Reason(0, Cause.VALUE, 1.0, 9.0, 3.0, 2.0, 4.0, np.nan),)
    records = [{"flow": 9}] * 6
    explained = scored.explained([why, why, why, None, (), ()])
    with_words = results_of(explained, "m", Schema(("flow",)), records, [0] * 6)
    words, follows = "flow is 9, usually 3 (2 to 4)", "the records before it were odd, which raises its score"
    said = [words, f"{follows}; most unusual: {words}", f"no outlier; most unusual: {words}", None]
    said += [f"{follows}; no feature stands out", "no outlier; no feature stands out"]
    assert [result.get("explanation") for result in with_words] == said
    assert [len(result.get("reasons", "none")) for result in with_words] == [1, 1, 1, 4, 0, 0]
    assert [result["severity"] for result in with_words[1:3]] == ["critical", None]
    without = results_of(scored, "m", Schema(("flow",)), records, [0] * 6)
    assert [
        {name: value for name, value in one.items() if name not in ("reasons", "explanation")} for one in with_words
    ] == without


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
RECENTLY = "over its last values"
ALONE = "usual alone, but it does not go with"
USUALLY, BETWEEN = "usually 3.1 (2.8 to 3.4)", "usually 3.1 (2.8 to 10)"
IF_MISSING = "if -9999 means missing, name it in missing-values"
FLOWS = "flow is 170, usually 168 (150 to 190)"
INSIDE = reason(high=10.0)
OPEN = reason(2, value=1.0, median=0.0, low=0.0, high=0.0)
CASES: list[tuple[str, list[Reason], dict[str, Any]]] = [
    (f"pressure is 9.8, {USUALLY}", [reason()], {}),
    (f"pressure is 9.8, {BETWEEN}: {ALONE} the other values", [INSIDE], {}),
    (f"pressure is 9.8, {BETWEEN}: {ALONE} flow 170", [INSIDE._replace(partner=1)], {}),
    (f"pressure is 9.8, {BETWEEN}: {ALONE} flow", [INSIDE._replace(partner=1)], {"flow": "n/a"}),
    (
        f"pressure is 1013.4, usually 1012.92 (1012 to 1014): {ALONE} the other values (about 1012.37 would fit)",
        [reason(value=1013.4, median=1012.92, low=1012.0, high=1014.0, expected=1012.3712)],
        {"pressure": 1013.4},
    ),
    (
        "pressure is 98765.3979, usually 98765.4021 (98765.4004 to 98765.404)",  # the digits that differ
        [reason(value=98765.3979, median=98765.402123, low=98765.40041, high=98765.40399)],
        {"pressure": 98765.3979},
    ),
    (
        f"open is true, usually false (false to true): {ALONE} the other values (about false would fit)",
        [OPEN._replace(high=1.0, expected=0.0)],
        {},
    ),
    (f"pressure is 9.8, {USUALLY}, and does not go with flow 170", [reason(partner=1), FLOW._replace(partner=0)], {}),
    (f'state is "idle", which 0.2 % of the known records have; {FLOWS}: {ALONE} the other values', [IDLE, FLOW], {}),
    ('state is "idle", which no known record has', [IDLE._replace(frequency=0.0)], {}),
    (f"pressure is 5.2 on average {RECENTLY}, {USUALLY}", [reason(cause=Cause.LEVEL, value=5.2)], {}),
    (
        f"pressure changes by 12 at a time {RECENTLY}, usually by 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.SPREAD, value=12.0)],
        {},
    ),
    (
        f"pressure is 9.8, {BETWEEN}: {ALONE} the 1 value before it and flow 170",
        [INSIDE._replace(cause=Cause.PAST, before=1, partner=1)],
        {},
    ),
    (  # a value that often means "missing", also where it is a part of what is usual
        f"pressure is -9999, usually 3.1 (-9999 to 3.4): {ALONE} the other values; {IF_MISSING}",
        [reason(value=-9999.0, low=-9999.0)],
        {"pressure": -9999},
    ),
    (  # the detector limits values
        f"pressure is 1.7e+308, {USUALLY}; if 1.7e+308 means missing, name it in missing-values",
        [reason(value=1e60)],
        {"pressure": 1.7e308},
    ),
    ("flow is 999, usually 168 (150 to 990)", [FLOW._replace(value=999.0, high=990.0)], {"flow": 999}),
]


@pytest.mark.parametrize(("words", "reasons", "changed"), CASES)
def test_a_reason_in_words(words: str, reasons: list[Reason], changed: dict[str, Any]) -> None:
    assert explanation_of(reasons, SCHEMA, RECORD | changed) == words


@pytest.mark.parametrize(
    ("facts", "reasons"),
    [
        (f"pressure is 9.8, {BETWEEN}", [INSIDE._replace(partner=1), FLOW._replace(partner=0)]),
        (f"pressure is 9.8, {USUALLY}", [reason(cause=Cause.PAST, before=2)]),
    ],
)
def test_only_facts_are_said_where_reasons_mean_little(facts: str, reasons: list[Reason]) -> None:
    for earlier in (0.0, 10.0):
        assert explanation_of(reasons, SCHEMA, RECORD, earlier, False) == f"no outlier; most unusual: {facts}"
    after_others = f"the records before it were odd, which raises its score; most unusual: {facts}"
    assert explanation_of(reasons, SCHEMA, RECORD, MIN_EARLIER_EXCESS) == after_others
    assert "before it were odd" not in explanation_of(reasons, SCHEMA, RECORD, MIN_EARLIER_EXCESS - 0.01)


def test_names_in_a_sentence() -> None:
    for name, shown in (
        *((name, name) for name in ("flow rate (m³/h)", 'motor "A"')),
        *((name, f'"{name}"') for name in ("flow, return", " flow", "")),
        ("line\nbreak", "line break"),
        (f"plant.north.{'hall.' * 60}temperature", "plant.north.hall.ha…all.hall.hall.hall.hall.hall.temperature"),
    ):
        assert explanation_of([reason()], Schema((name, "x")), {name: 9.8}) == f"{shown} is 9.8, {USUALLY}"


@pytest.mark.parametrize("value", [9.8, 1e70, -1e308, 5e-324, 7, True, 2**62, 0.1 + 0.2])
def test_the_value_of_a_reason_is_the_one_of_the_record(value: float) -> None:
    assert explanation_of([INSIDE], Schema(("pressure",)), RECORD) == f"pressure is 9.8, {BETWEEN}"  # it has no others
    for own in (value, np.asarray(value)[()]):
        (made,) = reasons_of([reason(value=min(value, 1e60))], SCHEMA, {"pressure": own})
        assert (made["value"], type(made["value"])) == (value, type(value))
        assert json.loads(encode({}, made))["fomo"]["value"] == value
    (made,) = reasons_of([reason(value=2.0**70)], SCHEMA, {"pressure": 2**70})
    assert made["value"] == 2.0**70


LONG_KEY = "k" * 1_000_000
KEYS = {"u1086": "u1086", b"u1086": "u1086", None: "its key", "": '""', LONG_KEY: "k" * 19 + "…" + "k" * 40}
KEYS[b"\xff\x00;"] = '"\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER};"'


def test_the_sentence_names_the_key_for_which_a_value_is_unusual() -> None:
    of_key = reason()._replace(scope="key")
    for key, shown in KEYS.items():
        said = explanation_of([of_key], SCHEMA, RECORD, key=key)
        assert said == f"pressure is 9.8, for {shown} {USUALLY}"
        assert explanation_of([reason()], SCHEMA, RECORD, key=key) == f"pressure is 9.8, {USUALLY}"
    assert reasons_of([of_key], SCHEMA, RECORD)[0]["scope"] == "key"


def test_reasons_as_json() -> None:
    many = [reason(share=0.61234, expected=2.9876543), IDLE, FLOW._replace(partner=0)]
    made = reasons_of(many, SCHEMA, RECORD)
    assert made == [
        {
            **{"feature": "pressure", "cause": "value", "share": 0.612, "value": 9.8, "usual": 3.1},
            **{"range": [2.8, 3.4], "expected": 2.98765, "scope": "all"},
        },
        {"feature": "state", "cause": "category", "share": 0.2, "value": "idle", "frequency": 0.002, "scope": "all"},
        {
            **{"feature": "flow", "cause": "value", "share": 0.3, "value": 170, "usual": 168.0},
            **{"range": [150.0, 190.0], "expected": None, "scope": "all", "with": "pressure"},
        },
    ]


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
        is_category = features[feature] in schema.categorical  # which has no cause VALUE
        causes = [one for one in Cause if one is not Cause.VALUE or not is_category]
        cause, before = draw(st.sampled_from(causes)), draw(st.integers(0, 100))
        share, frequency = draw(st.floats(0, 1)), draw(some)
        usual, expected = draw(some), draw(some)
        reasons.append(Reason(feature, cause, share, value, usual, low, high, frequency, partner, before, expected))
    return record, schema, reasons


@given(cases(), st.one_of(some, st.just(-math.inf)), st.booleans())
def test_no_record_makes_the_words_fail(
    case: tuple[dict[str, Any], Schema, list[Reason]], earlier: float, is_outlier: bool
) -> None:
    record, schema, reasons = case
    text = explanation_of(reasons, schema, record, earlier, is_outlier)
    assert text
    assert len(text) < 1000
    assert text.isprintable()
    assert not any(unicodedata.category(letter).startswith("C") for letter in text)

    made = {"reasons": reasons_of(reasons, schema, record), "explanation": text}
    (written,) = json.loads(encode({}, {"all": made}))["fomo"].values()
    assert written["explanation"] == text
    assert [one["feature"] for one in written["reasons"]] == [schema.features[one.feature] for one in reasons]
    raw = json.dumps(record).encode()
    assert json.loads(encode(decode(raw), made, raw=raw))["fomo"] == written


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000, "\x1b[31mred\n", "\ud800", 10**4000, 2**63, [1], {}, np.float64(3), np.bool_(True), "\u202e"],
)
def test_any_category_can_be_written(value: Any) -> None:
    schema = Schema(("state",), frozenset({"state"}))
    idle = Reason(0, Cause.CATEGORY, 0.2, category_code("idle"), math.nan, math.nan, math.nan, 0.1)
    ((made,), record) = reasons_of([idle], schema, {"state": value}), {"state": value}
    text = explanation_of([idle], schema, record)
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
