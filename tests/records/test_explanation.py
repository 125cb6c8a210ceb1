"""Reasons in words."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fomo_stream.detector.categories import category_code
from fomo_stream.detector.results import Cause, Reason
from fomo_stream.detector.series import Series
from fomo_stream.records.explanation import EARLIER, MOVED, sentence
from fomo_stream.records.json_codec import encode
from fomo_stream.records.reasons import reasons_of
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
    (
        "pressure 9.8 and flow 170 are usual alone, but not together with the other values",
        [reason(high=10.0), FLOW],
        {},
    ),
    ("pressure 9.8 and flow 170 do not go together (each alone is usual)", [reason(high=10.0, partner=1)], {}),
    (
        "pressure 9.8 is usual alone, but not together with the other values (about 6.9 would fit)",
        [reason(high=10.0, expected=6.912345)],
        {},
    ),
    (
        "pressure 9.8 is usual alone, but not together with the other values",
        [reason(high=10.0, expected=9.8001)],
        {},
    ),
    (
        "pressure 1013.4 is usual alone, but not together with the other values (about 1012.4 would fit)",
        [reason(value=1013.4, low=1012.0, high=1014.0, expected=1012.3712)],
        {"pressure": 1013.4},
    ),
    (
        "pressure 9.8 and flow 170 are usual alone, but not together with the other values "
        "(pressure about 6.9 would fit)",
        [reason(high=10.0, expected=6.9), FLOW._replace(expected=151.0)],
        {},
    ),
    (
        "pressure 9.8 and flow 170 do not go together (each alone is usual; pressure about 6.9 would fit)",
        [reason(high=10.0, partner=1, expected=6.9)],
        {},
    ),
    (
        "open true is usual alone, but not together with the other values (false would fit)",
        [reason(2, value=1.0, median=0.0, low=0.0, high=1.0, expected=0.0)],
        {},
    ),
    (
        "pressure is missing, and the other values suggest that its value is unusual (about 3.5 would fit)",
        [reason(cause=Cause.MISSING, value=NAN, expected=3.51)],
        {"pressure": None},
    ),
    (
        "pressure is 9.8, usually 3.1 (2.8 to 3.4), and does not go with flow 170",
        [reason(partner=1), FLOW._replace(partner=0)],
        {},
    ),
    (
        'state is "idle", which 0.2 % of the known records have; '
        "flow 170 is usual alone, but not together with the other values",
        [IDLE, FLOW],
        {},
    ),
    (
        "pressure 3 on average recently and flow do not go together (each alone is usual)",
        [reason(cause=Cause.LEVEL, value=3.0, partner=1)],
        {},
    ),
    (
        "pressure 9.8 and flow 1.181e+21 do not go together (each alone is usual)",
        [reason(high=10.0, partner=1)],
        {"flow": 2**70},
    ),
    (
        "pressure 9.8 and a missing flow do not go together (each alone is usual)",
        [reason(high=10.0, partner=1)],
        {"flow": "n/a"},
    ),
    ('state is "idle", which no known record has', [IDLE._replace(frequency=0.0)], {}),
    ('flow 170 and state "idle" do not go together (each alone is usual)', [FLOW._replace(partner=3)], {}),
    (
        "pressure is missing, and the other values suggest that its value is unusual",
        [reason(cause=Cause.MISSING, value=NAN)],
        {"pressure": None},
    ),
    (
        "pressure is 5.2 on average over its last values (up to 10), usually 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.LEVEL, value=5.2)],
        {},
    ),
    (
        "pressure changes by 12 at a time over its last values (up to 10), usually by 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.SPREAD, value=12.0)],
        {},
    ),
    (
        "pressure changes by only 0.1 at a time over its last values (up to 10), usually by 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.SPREAD, value=0.1)],
        {},
    ),
    (
        "pressure changes by 250 at a time over its last values (up to 10), usually by 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.SPREAD, value=250.4)],
        {},
    ),
    (
        "pressure hardly changes over its last values (up to 10), usually by 3.1 (2.8 to 3.4)",
        [reason(cause=Cause.SPREAD, value=0.0)],
        {},
    ),
    (
        "pressure changes by 0.26 at a time over its last values (up to 10), usually hardly at all (up to 0.1)",
        [reason(cause=Cause.SPREAD, value=0.2573, median=0.0, low=0.0, high=0.1)],
        {},
    ),
    (
        "pressure changes by 12 at a time over its last values (up to 10), usually hardly at all",
        [reason(cause=Cause.SPREAD, value=12.0, median=0.0, low=0.0, high=0.0)],
        {},
    ),
    (
        "pressure 3 on average recently and flow with recent changes of 0.26 are usual alone, "
        "but not together with the other values",
        [
            reason(cause=Cause.LEVEL, value=3.0),
            reason(1, Cause.SPREAD, 0.2573, median=0.3, low=0.1, high=0.4),
        ],
        {},
    ),
    (
        "pressure is 9.8, usually 3.1 (2.8 to 3.4), and does not follow from the 2 values before it",
        [reason(cause=Cause.PAST, before=2)],
        {},
    ),
    (
        "pressure 9.8 is usual alone, but does not follow from the value before it",
        [reason(cause=Cause.PAST, high=10.0, before=1)],
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
    assert sentence(reasons, SCHEMA, RECORD | changed) == words


FACTS: list[tuple[str, list[Reason], dict[str, Any]]] = [
    ("pressure is 9.8, usually 3.1 (2.8 to 3.4)", [reason()], {}),
    ("pressure 9.8 (usual alone)", [reason(high=10.0)], {}),
    ("pressure 9.8 and flow 170 (each usual alone)", [reason(high=10.0, partner=1)], {}),
    ("pressure 9.8 and flow 170 (each usual alone)", [reason(high=10.0, partner=1), FLOW._replace(partner=0)], {}),
    ("pressure 9.8 (usual alone)", [reason(cause=Cause.PAST, high=10.0, before=2)], {}),
    ("pressure 3 on average recently (usual alone)", [reason(cause=Cause.LEVEL, value=3.0, partner=1)], {}),
    ("pressure is 9.8, usually 3.1 (2.8 to 3.4)", [reason(cause=Cause.PAST, before=2)], {}),
    ("pressure is missing", [reason(cause=Cause.MISSING, value=NAN)], {"pressure": None}),
]


@pytest.mark.parametrize(("facts", "reasons", "changed"), FACTS)
def test_only_facts_are_said_where_reasons_mean_little(
    facts: str, reasons: list[Reason], changed: dict[str, Any]
) -> None:
    record = RECORD | changed
    assert sentence(reasons, SCHEMA, record, is_outlier=False) == f"no outlier; most unusual: {facts}"
    assert sentence(reasons, SCHEMA, record, 10.0, is_outlier=False) == f"no outlier; most unusual: {facts}"
    after_others = f"the records before it were odd, which raises its score; most unusual: {facts}"
    assert sentence(reasons, SCHEMA, record, EARLIER) == after_others
    assert "before it were odd" not in sentence(reasons, SCHEMA, record, EARLIER - 0.01)


def test_a_record_without_reasons_says_so() -> None:
    assert sentence([], SCHEMA, RECORD) == "no feature stands out"
    assert sentence([], SCHEMA, RECORD, -0.1) == "no feature stands out"
    words = "the records before it were odd, which raises its score; no feature stands out"
    assert sentence([], SCHEMA, RECORD, 0.01) == words
    assert sentence([], SCHEMA, RECORD, 10.0, is_outlier=False) == "no outlier; no feature stands out"


@pytest.mark.parametrize(
    ("frequency", "share"),
    [(0.99996, "100 %"), (0.4567, "46 %"), (0.0123, "1.2 %"), (0.0002, "0.02 %"), (1e-9, "1e-07 %")],
)
def test_shares_of_the_known_records(frequency: float, share: str) -> None:
    schema = Schema(("state",), frozenset({"state"}))
    words = f'state is "idle", which {share} of the known records have'
    assert sentence([IDLE._replace(feature=0, frequency=frequency)], schema, RECORD) == words


def test_no_other_values_are_spoken_of_where_a_record_has_one() -> None:
    schema, record = Schema(("pressure",)), {"pressure": 9.8}
    words = "pressure 9.8 is unusual, though in the usual range (2.8 to 10)"
    assert sentence([reason(high=10.0)], schema, record) == words
    assert sentence([reason(low=9.8, median=9.8, high=9.8)], schema, record) == "pressure is 9.8, usually 9.8"


NAMES = [
    ("flow rate (m³/h)", "flow rate (m³/h)"),
    ('motor "A"', 'motor "A"'),
    ("压力", "压力"),
    ("flow; return", '"flow; return"'),
    ("flow, return", '"flow, return"'),
    (" flow", '" flow"'),
    ("line\nbreak", "line break"),
    ("", '""'),
    (
        "plant.north." + "hall." * 60 + "motor.temperature",
        "plant.north.hall.ha…ll.hall.hall.hall.hall.motor.temperature",
    ),
]


@pytest.mark.parametrize(("name", "shown"), NAMES)
def test_names_in_a_sentence(name: str, shown: str) -> None:
    words = f"{shown} is 9.8, usually 3.1 (2.8 to 3.4)"
    assert sentence([reason()], Schema((name, "x")), {name: 9.8}) == words


VALUES = [9.8, 1e70, -1e308, 5e-324, 7, True, 2**62, 0.1 + 0.2]


@pytest.mark.parametrize("value", VALUES)
def test_the_value_of_a_reason_is_the_one_of_the_record(value: float) -> None:
    for own in (value, np.asarray(value)[()]):
        (made,) = reasons_of([reason(value=min(value, 1e60))], SCHEMA, {"pressure": own})
        assert (made["value"], type(made["value"])) == (value, type(value))
        assert json.loads(encode({}, made))["fomo"]["value"] == value
    (made,) = reasons_of([reason(value=2.0**70)], SCHEMA, {"pressure": 2**70})
    assert made["value"] == 2.0**70
    (made,) = reasons_of([reason(cause=Cause.MISSING, value=NAN)], SCHEMA, {"pressure": "n/a"})
    assert made["value"] is None


def test_no_zero_has_a_sign() -> None:
    (made,) = reasons_of([reason(value=-0.0, median=-0.0, low=-0.0, high=0.0)], SCHEMA, {"pressure": -0.0})
    assert "-" not in json.dumps([made["usual"], made["range"]])
    words = sentence([reason(value=-0.0, median=3.0)], SCHEMA, {"pressure": -0.0})
    assert words == "pressure is 0, usually 3 (2.8 to 3.4)"


def test_reasons_as_json() -> None:
    many = [
        reason(share=0.61234, expected=2.9876543),
        IDLE,
        reason(2, value=1.0, median=0.0, low=0.0, high=0.0),
        FLOW._replace(partner=0),
    ]
    missing = reason(cause=Cause.MISSING, value=NAN, median=NAN, low=NAN, high=NAN)
    made = reasons_of(many, SCHEMA, RECORD) + reasons_of([missing], SCHEMA, RECORD | {"pressure": "n/a"})
    assert made == [
        {
            "feature": "pressure", "cause": "value", "share": 0.612, "value": 9.8, "usual": 3.1,
            "range": [2.8, 3.4], "expected": 2.98765,
        },
        {"feature": "state", "cause": "category", "share": 0.2, "value": "idle", "frequency": 0.002},
        {
            "feature": "open", "cause": "value", "share": 0.6, "value": True, "usual": 0.0, "range": [0.0, 0.0],
            "expected": None,
        },
        {
            "feature": "flow", "cause": "value", "share": 0.3, "value": 170, "usual": 168.0,
            "range": [150.0, 190.0], "expected": None, "with": "pressure",
        },
        {
            "feature": "pressure", "cause": "missing", "share": 0.6, "value": None, "usual": None, "range": None,
            "expected": None,
        },
    ]  # fmt: skip


def test_the_last_records_of_which_the_words_speak_have_nine_tenths_of_the_weight_in_a_level() -> None:
    def weight_of_last(n: int) -> float:
        values = np.array([[0.0]] * 100 + [[1.0]] * n)
        return float(Series(1).follow(values).vectors[-1, -2, 0])

    assert weight_of_last(MOVED) == pytest.approx(0.9, abs=0.01)
    assert weight_of_last(MOVED - 1) < 0.89
