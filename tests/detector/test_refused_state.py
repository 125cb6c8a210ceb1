"""A state of another detector, of another version, or with damage is refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import CONFIG, Distance, Partition, assert_same_state, small_sketches_of, under

from fomo_stream.detector.changelog import Document
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.past_values import PastValues
from fomo_stream.errors import DamagedStateError, StateError
from fomo_stream.model.zero_shot import ZeroShotModel


@pytest.fixture(autouse=True)
def small_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    small_sketches_of(monkeypatch)


@pytest.fixture(scope="module")
def log() -> dict[str, bytes]:
    """The log of a partition that has two generations."""
    with pytest.MonkeyPatch.context() as patch:
        small_sketches_of(patch)
        partition = Partition()
        while partition.detector.generation < 2:
            partition.process(partition.detector.records, partition.detector.records + 1)
        partition.process_until_next()
        return cast(dict[str, bytes], partition.changes())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context_size": 30}, "context_size is 24 in the state, 30 now"),
        (
            {"seed": 3, "context_size": 30},
            "context_size is 24 in the state, 30 now; seed is 0 in the state, 3 now",
        ),
        ({"adapt_after": 200, "refresh": 0.3}, "adapt_after is 64 in the state, 200 now"),
        ({"lag": 200}, "lag is 40 in the state, 200 now"),
        ({"alert_rate": 0.001}, "alert_rate is 0.1 in the state, 0.001 now"),
    ],
)
def test_a_state_of_other_settings_is_refused_by_name(
    log: dict[str, bytes], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(StateError) as caught:
        Partition(replace(CONFIG, **changed)).recover(log)
    assert str(caught.value) == message


def test_a_state_of_other_features_or_another_model_is_refused(log: dict[str, bytes]) -> None:
    class Other(Distance):
        name = "other"
        kernel = "numba"

    words = r"^model is distance in .*; kernel is torch .*, numba now; n_features is 4 .* 5 now; categorical is \[\] "
    with pytest.raises(StateError, match=words):
        Detector(cast(ZeroShotModel, Other()), 5, CONFIG, categorical=(2,)).recover(under(log, "detector/"))
    with pytest.raises(StateError, match=r"^lags is 1 in the state, 2 now; features is 2 in the state, 1 now$"):
        PastValues(2, 1).recover(under(log, "lags/"))


def test_a_state_of_another_format_is_refused_as_such(log: dict[str, bytes]) -> None:
    """Not as a damaged state, which may be replaced without asking."""
    fingerprint = json.loads(Document().recover(log, "detector/fingerprint"))
    other = Document().changes("detector/fingerprint", json.dumps({**fingerprint, "format": 1}).encode())
    without = {key: value for key, value in log.items() if "fingerprint" not in key}
    first = {"detector/identity/0": log["detector/fingerprint/0"], "detector/memory/rows/0": b"x"}
    for state in ({**log, **cast(dict[str, bytes], other)}, {**without, **first}):
        with pytest.raises(StateError, match=r"another version of fomo-stream wrote .* format 1, .* reads 3") as caught:
            Partition().recover(state)
        assert not isinstance(caught.value, DamagedStateError)


def test_other_settings_may_change_between_runs(log: dict[str, bytes]) -> None:
    free = {"alert_rate": 0.05, "admit": "all", "refresh": 0.5, "min_context": 4}
    one = Partition(replace(CONFIG, **free)).recover(log)  # type: ignore[arg-type]
    entries = one.changes()
    assert list(entries) == ["detector/fingerprint/0"]  # so that the log knows what was set last
    again = Partition(replace(CONFIG, **free)).recover({**log, **cast(dict[str, bytes], entries)})  # type: ignore[arg-type]
    assert_same_state(one, again)
    assert np.isfinite(one.process(300, 700).logit).all()


def test_a_shorter_warm_up_ends_at_once() -> None:
    slow, quick = Partition(replace(CONFIG, min_context=20)), Partition(CONFIG)
    slow.process(0, 15)
    quick.recover(cast(dict[str, bytes], slow.changes()))
    assert quick.process(15, 30).generation.tolist() == [0] + [1] * 14


def damages(value: bytes) -> st.SearchStrategy[bytes]:
    """Other bytes in place of a value."""
    return st.one_of(
        st.integers(0, len(value) - 1).map(lambda n: value[:n]),
        st.binary(min_size=1, max_size=30).map(lambda more: value + more),
        st.binary(max_size=200),
    ).filter(lambda other: len(other) != len(value))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_log_that_is_incomplete_or_damaged_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    needed = sorted(key for key in log if "series" not in key and "encoded" not in key)
    key = data.draw(st.sampled_from(needed))
    left = {other: value for other, value in log.items() if other != key}
    with pytest.raises(StateError, match=f"lacks {key.partition('/')[2]}"):
        Partition().recover(left)
    key = data.draw(st.sampled_from(sorted(log)))
    with pytest.raises(StateError):
        Partition().recover({**log, key: data.draw(damages(log[key]))})


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_document_of_which_a_byte_is_another_is_refused(log: dict[str, bytes], data: st.DataObject) -> None:
    key = f"detector/{data.draw(st.sampled_from(['fingerprint', 'counters', 'confirmed', 'generation/0']))}/0"
    value = bytearray(log[key])
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError, match=r"does not match its digest|lacks"):
        Partition().recover({**log, key: bytes(value)})


def test_nothing_is_no_state() -> None:
    with pytest.raises(StateError, match="lacks fingerprint/0"):
        Partition().recover({})
    past = PastValues(1, 1)
    entries = cast(dict[str, bytes], past.changes())
    with pytest.raises(StateError, match="series/nonsense is the key of no series"):
        past.recover({**entries, "series/nonsense": bytes(16)})
