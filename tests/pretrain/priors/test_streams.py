"""Streams of the prior: labelled records in order, and datasets of them as a detector's views see them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.priors.causal import CausalConfig, causal_tables
from pretrain.priors.datasets import Batch
from pretrain.priors.draws import Draws
from pretrain.priors.mixture import BatchSource
from pretrain.priors.streams import KINDS, VIEWS, Stream, StreamConfig, draw_stream, stream_datasets
from pretrain.training.loader import evidence_batch
from pretrain.training.presets import PRESETS

SHORT = StreamConfig(records=(1000, 1500), rows=400)


def stream_of(seed: int, config: StreamConfig = SHORT) -> Stream:
    rng = np.random.default_rng(seed)
    inliers = rng.normal(size=(400, 5)) @ rng.normal(size=(5, 5))
    return draw_stream(config, rng, inliers, 4 + 3 * rng.normal(size=(80, 5)))


def datasets_of(seed: int, context: int = 200, queries: int = 64) -> Batch:
    tables = partial(causal_tables, CausalConfig(max_features=12), Draws(seed), 1)
    return stream_datasets(SHORT, seed, tables, context, queries)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**40))
def test_a_stream_depends_on_its_seed_alone(seed: int) -> None:
    one, same, other = stream_of(seed), stream_of(seed), stream_of(seed + 1)
    np.testing.assert_array_equal(one.rows, same.rows)
    np.testing.assert_array_equal(one.outlier, same.outlier)
    assert one.rows.shape != other.rows.shape or (one.rows != other.rows).any()
    assert np.isfinite(one.rows).all()
    assert 1000 <= len(one.rows) <= 1500
    assert one.outlier.any()


def faulty(kind: str, monkeypatch: pytest.MonkeyPatch, n: int = 12) -> list[Stream]:
    """Streams with large faults of one kind, on levels that do not move."""
    monkeypatch.setattr("pretrain.priors.streams.WEIGHTS", np.array([float(each == kind) for each in KINDS]))
    still = (1e-9, 1e-9)
    config = StreamConfig((2000, 2000), (0.1, 0.1), (40, 40), size=(1000, 1000), drift=still, rows=400)
    return [stream_of(seed, config) for seed in range(n)]


@pytest.mark.parametrize("kind", ["shift", "slow", "noise", "spikes", "cluster"])
def test_faults_with_a_size_are_far_away(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    farther = []
    for rows, outlier in faulty(kind, monkeypatch, 6):
        z = np.abs(rows - np.median(rows[~outlier], axis=0)) / (rows[~outlier].std(axis=0) + 1e-12)
        farther.append(z[outlier].max() > 20)
    assert np.mean(farther) > 0.7


def test_a_value_that_stands_still_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for rows, outlier in faulty("still", monkeypatch):
        equal = (rows[1:] == rows[:-1]).any(axis=1)
        shares.append((equal[outlier[1:]].mean(), equal[~outlier[1:]].mean()))
    of_outliers, of_others = np.median(shares, axis=0)
    assert of_outliers > 0.2
    assert of_others < 0.02


@settings(max_examples=20)
@given(seed=st.integers(0, 2**40), context=st.integers(20, 300), half=st.integers(1, 60))
def test_datasets_are_what_views_see(seed: int, context: int, half: int) -> None:
    batch = datasets_of(seed, context, 2 * half)
    width = int(batch.n_features[0])
    assert batch.n_features.tolist() == [2 * width if view == "movement" else width for view in VIEWS]
    assert batch.context.shape == (4, context, 2 * width)
    assert batch.queries.shape == (4, 2 * half, 2 * width)
    assert batch.labels.sum(1).tolist() == [half] * 4
    assert batch.context.isfinite().all()
    records = [VIEWS.index(view) for view in ("all", "trimmed", "recent")]
    assert (batch.queries[records] == batch.queries[0]).all()  # the same records in all views of the record
    assert (batch.context[records, :, width:] == 0).all()


def test_a_trimmed_context_has_fewer_outliers_than_a_sample() -> None:
    """By how far its farthest rows lie from its middle."""
    closer = []
    for seed in range(20):
        batch = datasets_of(seed)
        rows = batch.context[:2, :, : int(batch.n_features[0])].double()
        far = (rows - rows.median(1, keepdim=True).values).abs().amax(1)
        closer.append(bool((far[1] <= far[0]).double().mean() > 0.5))
    assert np.mean(closer) > 0.8


def test_outliers_of_streams_can_be_found_but_not_all() -> None:
    source = BatchSource(replace(PRESETS["streams"].data, max_features=10, context_max=300), 0)
    best = torch.cat([evidence_batch(source.batch(i)).best for i in range(2)])
    assert 0.6 < best.mean() < 0.98
