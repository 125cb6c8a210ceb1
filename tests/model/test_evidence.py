from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.covariance import OAS
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from torch import Tensor

from fomo_stream.model.architecture import CHANNELS, STATISTICS
from fomo_stream.model.evidence import NEIGHBOURS, Evidence, evidence_channels, fit_evidence
from fomo_stream.model.preprocessing import fit_imputation, impute


class Case(NamedTuple):
    """Rows, the same as z-scores of the context, and what is fitted to the context."""

    context: np.ndarray
    queries: np.ndarray
    z: np.ndarray
    q: np.ndarray
    evidence: Evidence
    ours: dict[str, np.ndarray]  # statistics of the queries
    own: dict[str, np.ndarray]  # and of the rows of the context


def fit(rows: np.ndarray) -> tuple[Evidence, Tensor]:
    return fit_evidence(torch.from_numpy(rows)[None], torch.tensor([rows.shape[1]]))


def fit_with_gaps(context: np.ndarray, queries: np.ndarray) -> tuple[Tensor, Tensor]:
    """Channels of context and query rows of which values may be missing or absurd."""
    seen, asked = torch.from_numpy(context)[None], torch.from_numpy(queries)[None]
    imputation = fit_imputation(seen)
    evidence, own = fit_evidence(impute(seen, imputation), torch.tensor([context.shape[1]]))
    return own, evidence_channels(impute(asked, imputation), evidence)


def statistics_of(far: Tensor, evidence: Evidence) -> dict[str, np.ndarray]:
    """The statistics (q,) behind the "far" channels."""
    raw = torch.sinh(far[0, :, 0::2]) * evidence.spread[0] + evidence.median[0]
    return {name: raw[:, i].numpy() for i, name in enumerate(STATISTICS)}


@pytest.fixture
def case() -> Case:
    rng = np.random.default_rng(5)
    mixing = rng.normal(size=(6, 6))
    context, queries = rng.normal(size=(300, 6)) @ mixing, rng.normal(size=(40, 6)) @ mixing * 1.5
    z, q = ((rows - context.mean(0)) / context.std(0) for rows in (context, queries))
    evidence, own = fit(context)
    ours = evidence_channels(torch.from_numpy(queries)[None], evidence)
    return Case(context, queries, z, q, evidence, *(statistics_of(one, evidence) for one in (ours, own)))


def test_distances_agree_with_scikit_learn(case: Case) -> None:
    z, q, ours = case.z, case.q, case.ours
    distances, index = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(z).kneighbors(q)
    np.testing.assert_allclose(ours["z.nearest"], np.log(distances[:, 0]), atol=1e-6)
    np.testing.assert_allclose(ours["z.mean5"], np.log(distances[:, :5].mean(1)), atol=1e-6)
    np.testing.assert_allclose(ours["z.mean20"], np.log(distances.mean(1)), atol=1e-6)
    np.testing.assert_allclose(ours["z.gap"], np.log(np.abs(q - z[index[:, 0]]).max(1)), atol=1e-6)
    np.testing.assert_allclose(ours["z.rms"], np.sqrt((q**2).mean(1)), atol=1e-6)
    np.testing.assert_allclose(ours["z.top3"], np.sort(np.abs(q), 1)[:, -3:].mean(1), atol=1e-6)


def test_densities_agree_with_the_definition(case: Case) -> None:
    h = float(case.evidence.spaces[0].bandwidth)
    d2 = ((case.q[:, None] - case.z[None]) ** 2).sum(-1)
    for factor in (0.5, 1, 2, 4):
        exact = -logsumexp(-d2 / (2 * (factor * h) ** 2), axis=1) + np.log(len(case.z))
        np.testing.assert_allclose(case.ours[f"z.density{factor:g}"], exact, rtol=1e-6, atol=1e-6)


def test_local_ratios_rank_as_lof_does(case: Case) -> None:
    lof = -LocalOutlierFactor(20, novelty=True).fit(case.z).score_samples(case.q)
    assert np.corrcoef(np.argsort(np.argsort(case.ours["z.ratio20"])), np.argsort(np.argsort(lof)))[0, 1] > 0.95


def test_whitened_size_is_the_shrunk_mahalanobis_distance(case: Case) -> None:
    theirs = OAS(assume_centered=True).fit(case.z).mahalanobis(case.q)
    # scikit-learn leaves out a term of order 1 / d
    np.testing.assert_allclose(case.ours["whitened.rms"], np.sqrt(theirs / 6), rtol=2e-2)


def test_context_rows_are_compared_leave_one_out(case: Case) -> None:
    distances = NearestNeighbors(n_neighbors=2).fit(case.z).kneighbors(case.z)[0][:, 1]
    np.testing.assert_allclose(case.own["z.nearest"], np.log(distances), atol=1e-5)


def test_padding_columns_change_nothing(case: Case) -> None:
    context, queries, plain = case.context, case.queries, case.evidence
    wide = np.pad(context, ((0, 0), (0, 4)))
    padded, _ = fit_evidence(torch.from_numpy(wide)[None], torch.tensor([6]))
    a = evidence_channels(torch.from_numpy(queries)[None], plain)
    b = evidence_channels(torch.from_numpy(np.pad(queries, ((0, 0), (0, 4))))[None], padded)
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_units_of_measurement_do_not_matter(case: Case) -> None:
    context, queries = case.context, case.queries
    scale, shift = np.array([1e-6, 1e3, 1, 1e9, 0.5, 20]), np.array([0, 5, -1, 1e9, 3, 0])
    a = evidence_channels(torch.from_numpy(queries)[None], case.evidence)
    b = evidence_channels(torch.from_numpy(queries * scale + shift)[None], fit(context * scale + shift)[0])
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


wild = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.sampled_from([0.0, 1.0, 1e308, -1e308, np.nan])


@given(st.integers(2, 30), st.integers(1, 5), st.data())
def test_channels_are_finite_whatever_the_numbers(n: int, d: int, draw: st.DataObject) -> None:
    numbers = st.lists(wild, min_size=d, max_size=d)
    context = np.array(draw.draw(st.lists(numbers, min_size=n, max_size=n)))
    queries = np.array(draw.draw(st.lists(numbers, min_size=1, max_size=5)))
    own, channels = fit_with_gaps(context, queries)
    assert channels.shape == (1, len(queries), len(CHANNELS))
    assert torch.isfinite(channels).all()
    assert torch.isfinite(own).all()


@pytest.mark.parametrize("kind", ["constant", "duplicates"])
def test_degenerate_contexts_tell_the_same_from_the_different(kind: str) -> None:
    rng = np.random.default_rng(0)
    context = np.full((50, 3), 2.5) if kind == "constant" else rng.normal(size=(5, 3))[rng.integers(0, 5, 50)]
    evidence, _ = fit(context)
    queries = np.vstack([context[0], context[0] + 3.0])
    same, different = evidence_channels(torch.from_numpy(queries)[None], evidence)[0].mean(-1)
    assert different > same + 0.5


def test_feature_unknown_to_the_context_does_not_count() -> None:
    rng = np.random.default_rng(0)
    context = np.column_stack([rng.normal(size=60), np.full(60, np.nan)])
    channels = fit_with_gaps(context, np.array([[0.1, np.nan], [0.1, 1e6], [0.1, 0.0]]))[1][0]
    assert torch.equal(channels[0], channels[1])
    assert torch.equal(channels[0], channels[2])
