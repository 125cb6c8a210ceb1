"""Marginals: columns are discrete and skewed as in real tables, and monotone maps keep the order of rows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.priors.causal import CausalConfig, causal_tables
from pretrain.priors.draws import Draws
from pretrain.priors.marginals import GRAINS, MAX_CODES, WARPS, MarginalConfig, to_raw


def only(warp: str, grain: str) -> MarginalConfig:
    return MarginalConfig(**{name: float(name in (warp, grain)) for name in WARPS + GRAINS})


def test_columns_are_as_discrete_and_skewed_as_in_real_tables() -> None:
    tables = causal_tables(CausalConfig(max_features=10, min_features=10), Draws(5), 64, 300, 1)
    columns = tables.inliers.permute(0, 2, 1).reshape(-1, 300)
    values = torch.tensor([len(c.unique()) for c in columns])
    assert (values <= 2).float().mean() > 0.02
    assert (values < 100).float().mean() > 0.1
    assert (values == 300).float().mean() > 0.2
    z = (columns - columns.mean(1, True)) / columns.std(1, keepdim=True).clamp_min(1e-9)
    assert (z.pow(3).mean(1).abs() > 1).float().mean() > 0.1


ORDERED = [(warp, "continuous") for warp in WARPS] + [("plain", grain) for grain in GRAINS if grain != "categorical"]


@given(seed=st.integers(0, 2**40), kind=st.sampled_from(ORDERED))
def test_columns_keep_their_order_and_stay_finite(seed: int, kind: tuple[str, str]) -> None:
    reach = 150 if kind[1] == "continuous" else 5
    raw = to_raw(torch.linspace(-reach, reach, 301)[None, :, None].repeat(2, 1, 3), 301, only(*kind), Draws(seed))
    assert raw.isfinite().all()
    if kind[1] == "mostly_constant":  # from the constant upwards and downwards alike, but not across it
        raw = raw[:, 250:]
    rounding = 1e-5 * (raw.amax(1, True) - raw.amin(1, True)) + 1e-6 * raw.abs().amax(1, True)
    steps = raw.diff(dim=1)
    assert ((steps >= -rounding).all(1) | (steps <= rounding).all(1)).all()


def codes(seed: int) -> torch.Tensor:
    """(400, 30) categorical columns, codes only."""
    rows = Draws(seed + 1).normal(1, 400, 30).sort(1).values
    raw = to_raw(rows, 400, only("plain", "categorical"), Draws(seed))[0]
    low, high = raw.amin(0), raw.amax(0)
    return (raw - low) / (high - low).clamp_min(1e-9)


def test_categorical_columns_have_few_codes_in_no_order_some_of_them_rare() -> None:
    rows, numbers, shares = codes(0), [], []
    for column in rows.T:
        _, counts = torch.unique(column, return_counts=True)
        numbers.append(len(counts))
        shares.append(float(counts.min() / counts.max()))
    assert max(numbers) <= MAX_CODES
    assert len(set(numbers)) > 5
    assert min(shares) < 0.1
    rising, many = rows.diff(dim=0), torch.tensor(numbers) > 4
    both_ways = (rising > 0).any(0) & (rising < 0).any(0)
    assert many.sum() > 5
    assert both_ways[many].float().mean() > 0.8
