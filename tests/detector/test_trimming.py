from __future__ import annotations

import numpy as np
import pytest

from fomo_stream.detector.trimming import is_consistent, trimmed
from fomo_stream.model.checkpoint import shared_model


def rows_of(kind: str, n: int = 200) -> np.ndarray:
    """Rows of three features, in time order."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 3))
    time = np.arange(n)[:, None] / n
    return {
        "settled": rows + 20,
        "still moving": rows + 20 * time,
        "a change in the middle": rows + 8 * (time >= 0.5),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("settled", True),
        ("still moving", False),
        ("a change in the middle", False),
    ],
)
def test_only_a_stream_that_has_settled_agrees_with_itself(kind: str, expected: bool) -> None:
    assert is_consistent(shared_model(), rows_of(kind), ()) == expected


def test_too_few_rows_never_agree() -> None:
    assert not is_consistent(shared_model(), rows_of("settled", 7), ())


def test_rows_that_disagree_in_part_are_no_regime() -> None:
    rows = rows_of("settled", 400)
    later = np.arange(200, 400)
    rows[later[::10]] += 15  # a tenth of the later half
    assert is_consistent(shared_model(), rows, ())
    rows[later[::3]] += 15  # more than a fifth
    assert not is_consistent(shared_model(), rows, ())


def test_the_most_outlying_doubtful_rows_are_left_out() -> None:
    rows = np.random.default_rng(1).normal(size=(100, 3))
    rows[:6] = rows[:6] * 0.1 + 7  # a cluster: each has near neighbours
    doubtful = np.ones(100, dtype=bool)
    doubtful[:3] = False
    kept = trimmed(shared_model(), rows, doubtful, 0.2, (0, 1))
    assert (~kept).sum() == int(0.2 * 97)
    assert kept[:3].all()  # confirmed rows stay
    assert not kept[3:6].any()
    assert trimmed(shared_model(), rows, doubtful, 0.0, (0, 1)).all()
    assert trimmed(shared_model(), rows, ~np.ones(100, dtype=bool), 0.5, (0, 1)).all()
