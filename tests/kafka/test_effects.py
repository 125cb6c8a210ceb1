"""Label entries: only their keys are kept, and they are removed in the order of the input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.partition.effects import Effect, Effects

effects = st.builds(
    Effect.of,
    topic=st.sampled_from(["labels", "other.labels"]),
    partition=st.integers(0, 2),
    input_offset=st.integers(0, 30),
    label_offset=st.integers(0, 2**62),
)


@given(effects)
def test_an_effect_is_encoded_in_its_key(effect: Effect) -> None:
    assert Effect.parse(effect.key) == effect


@pytest.mark.parametrize(
    "key", [b"", b"feedback/f/0/1", b"feedback/f/0/1/x", b"state/f/0/1/2", b"feedback/f/0/1/2/3", b"schema/1"]
)
def test_other_keys_are_ignored(key: bytes) -> None:
    assert Effect.parse(key) is None


@given(st.lists(effects, max_size=20), st.lists(effects, max_size=20), st.lists(st.integers(0, 32), max_size=6))
def test_exactly_the_entries_before_the_first_record_are_removed(
    there: list[Effect], come: list[Effect], firsts: list[int]
) -> None:
    found, left = Effects(there), [*there]
    for i, first in enumerate([*firsts, 10**6]):
        for effect in come[i::7]:
            found.add(effect)
            left.append(effect)
        taken: list[bytes] = []
        while keys := found.remove_before(first, most=3):
            assert len(keys) <= 3
            taken += keys
        assert sorted(taken) == sorted(effect.key for effect in left if effect.input_offset < first)
        left = [effect for effect in left if effect.input_offset >= first]
        assert len(found) == len(left)


@given(st.lists(effects, max_size=20))
def test_the_entries_of_a_deleted_input_topic_are_removed_at_once(there: list[Effect]) -> None:
    found = Effects(effect._replace(input_offset=-1) for effect in there)
    assert sorted(found.remove_before(0, most=1)) == sorted(effect.key for effect in there)
    assert found.remove_before(10**6) == []
