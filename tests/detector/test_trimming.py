from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fomo_stream.detector.generation import COMMITTEE_ROWS, LEAST_ROWS, STRETCHES, committee_means, trimmed
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.scoring import encode_rows, logits_of


def test_the_most_outlying_doubtful_rows_are_left_out() -> None:
    rows = np.random.default_rng(1).normal(size=(100, 3))
    rows[::17] = rows[::17] * 0.1 + 7  # a cluster: each has near neighbours
    doubtful = np.ones(100, dtype=bool)
    doubtful[:52:17] = False
    kept = trimmed(shared_model(), rows, doubtful, 0.2, (0, 1))
    assert (~kept).sum() == int(0.2 * 96)
    assert kept[:52:17].all()  # confirmed rows stay
    assert not kept[68::17].any()
    assert trimmed(shared_model(), rows, doubtful, 0.0, (0, 1)).all()
    assert trimmed(shared_model(), rows, ~np.ones(100, dtype=bool), 0.5, (0, 1)).all()


@pytest.mark.parametrize("first", [0, 333, 850])
def test_a_burst_is_judged_by_other_times(first: int) -> None:
    """However near its rows are to each other."""
    rows = np.random.default_rng(first).normal(size=(1000, 3))
    burst = np.zeros(1000, dtype=bool)
    burst[first : first + 120] = True
    rows[burst] = rows[burst] * 0.01 + 5
    kept = trimmed(shared_model(), rows, np.ones(1000, dtype=bool), 0.2, (0, 1))
    assert not kept[burst].any()


@pytest.mark.parametrize("n", [LEAST_ROWS, 100, 1000])
def test_a_row_has_the_mean_of_the_committees_of_other_stretches(n: int) -> None:
    """By encoding a context for each; the committees are drawn alike."""
    rows, seed = np.random.default_rng(0).normal(size=(n, 3)), (5, 2)
    rng = np.random.default_rng(seed)
    edges = np.arange(STRETCHES + 1) * n // STRETCHES
    by_committee = []
    for a, b in pairwise(edges):
        members = a + rng.choice(b - a, min(COMMITTEE_ROWS, n // STRETCHES), replace=False)
        by_committee.append(logits_of(shared_model(), encode_rows(shared_model(), rows[members]), rows))
    own = np.searchsorted(edges, np.arange(n), side="right") - 1
    expected = [
        np.mean([logits[i] for k, logits in enumerate(by_committee) if k != stretch]) for i, stretch in enumerate(own)
    ]
    found = committee_means(shared_model(), rows, seed)
    # the committees are of the fusion alone, which is near the whole model's logits
    assert np.corrcoef(found, expected)[0, 1] > 0.95


def test_too_few_rows_stay() -> None:
    rows = np.random.default_rng(0).normal(size=(LEAST_ROWS - 1, 3)) ** 5
    assert trimmed(shared_model(), rows, np.ones(len(rows), dtype=bool), 0.5, (0, 1)).all()
