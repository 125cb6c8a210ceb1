"""A state of another detector, of another version, or with damage is refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import CONFIG, Distance, few_series, new, process, process_until_next, recovered, state_of

from fomo_stream.detector.changelog import Document
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import DamagedStateError, StateError
from fomo_stream.model.zero_shot import ZeroShotModel


@pytest.fixture(autouse=True)
def only_few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    few_series(monkeypatch)


@pytest.fixture(scope="module")
def log() -> dict[str, bytes]:
    """The log of a partition of which two views have a second generation, and one has a next one."""
    with pytest.MonkeyPatch.context() as patch:
        few_series(patch)
        one = new()
        while one.generation < 3:
            process(one, one.records, one.records + 1)
        process_until_next(one)
        return cast(dict[str, bytes], one.changes())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context_size": 30}, "context_size is 24 in the state, 30 now"),
        (
            {"seed": 3, "context_size": 30},
            "context_size is 24 in the state, 30 now; seed is 0 in the state, 3 now",
        ),
        ({"calibration_size": 900, "refresh": 0.3}, "calibration_size is 60 in the state, 900 now"),
        ({"lag": 200}, "lag is 40 in the state, 200 now"),
        ({"recent_every": 128}, "recent_every is 64 in the state, 128 now"),
        ({"alert_rate": 0.001}, "alert_rate is 0.1 in the state, 0.001 now"),
        ({"memory": 0.5}, "memory is 0.3333333333333333 in the state, 0.5 now"),
        (
            {"views": ("fast",)},
            "used_views is ['trimmed', 'all', 'recent', 'movement', 'past'] in the state, "
            "['trimmed', 'all', 'past'] now",
        ),
    ],
)
def test_a_state_of_other_settings_is_refused_by_name(
    log: dict[str, bytes], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(StateError) as caught:
        recovered(log, config=replace(CONFIG, **changed))
    assert str(caught.value) == message


def test_a_state_of_other_features_or_another_model_is_refused(log: dict[str, bytes]) -> None:
    class Other(Distance):
        name = "other"
        kernel = "numba"

    words = r"^model is distance in .*; kernel is torch .*, numba now; n_features is 2 .* 5 now; categorical is \[\] "
    with pytest.raises(StateError, match=words):
        Detector(cast(ZeroShotModel, Other()), 5, CONFIG, categorical=(2,)).recover(log)
    with pytest.raises(StateError, match=r"; lags is 1 in the state, 2 now$"):
        recovered(log, config=replace(CONFIG, lags=2, seed=1))


def test_a_state_of_another_format_is_refused_as_such(log: dict[str, bytes]) -> None:
    """Not as a damaged state, which may be replaced without asking."""
    fingerprint = json.loads(Document().recover(log, "fingerprint"))
    other = Document().changes("fingerprint", json.dumps({**fingerprint, "format": 1}).encode())
    with pytest.raises(StateError, match=r"another version of fomo-stream wrote .* format 1, .* reads 6") as caught:
        recovered({**log, **cast(dict[str, bytes], other)})
    assert not isinstance(caught.value, DamagedStateError)


def test_other_settings_may_change_between_runs(log: dict[str, bytes]) -> None:
    free = {"alert_rate": 0.05, "admit": "feedback", "refresh": 0.5, "min_context": 4, "adapt_after": 200}
    config = replace(CONFIG, **free)  # type: ignore[arg-type]
    one = recovered(log, config=config)
    entries = one.changes()
    assert list(entries) == ["fingerprint/0"]  # so that the log knows what was set last
    again = recovered({**log, **cast(dict[str, bytes], entries)}, config=config)
    assert state_of(one) == state_of(again)
    assert np.isfinite(process(one, 300, 700).logit).all()


def test_views_may_be_named_otherwise_if_the_same_are_used(log: dict[str, bytes]) -> None:
    one = recovered(log, config=replace(CONFIG, views=("default", "past")))
    assert list(one.changes()) == ["fingerprint/0"]


def test_a_shorter_warm_up_ends_at_once() -> None:
    slow = new(replace(CONFIG, min_context=20))
    process(slow, 0, 15)
    quick = recovered(cast(dict[str, bytes], slow.changes()))
    assert process(quick, 15, 30).generation.tolist() == [0] + [1] * 14


def damages(value: bytes) -> st.SearchStrategy[bytes]:
    """Other bytes in place of a value."""
    return st.one_of(
        st.integers(0, len(value) - 1).map(lambda n: value[:n]),
        st.binary(min_size=1, max_size=30).map(lambda more: value + more),
        st.binary(max_size=200),
    ).filter(lambda other: len(other) != len(value))


@settings(max_examples=100)
@given(st.data())
def test_a_log_that_is_incomplete_or_damaged_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    needed = sorted(key for key in log if "series/" not in key and "encoded" not in key)
    key = data.draw(st.sampled_from(needed))
    left = {other: value for other, value in log.items() if other != key}
    with pytest.raises(StateError, match=f"lacks {key.removeprefix('follow/')}"):
        recovered(left)
    key = data.draw(st.sampled_from(sorted(log)))
    with pytest.raises(StateError):
        recovered({**log, key: data.draw(damages(log[key]))})


@settings(max_examples=50)
@given(st.data())
def test_a_document_of_which_a_byte_is_another_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    generations = sorted(key for key in log if key.startswith("generation/") and "encoded" not in key)
    key = data.draw(st.sampled_from(["fingerprint/0", "counters/0", "confirmed/0", "follow/settings/0", *generations]))
    value = bytearray(log[key])
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError, match=r"does not match its digest|lacks"):
        recovered({**log, key: bytes(value)})


def test_nothing_is_no_state() -> None:
    with pytest.raises(StateError, match="lacks fingerprint/0"):
        recovered({})
