"""Mean attention in the place of softmax attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fomo_stream.errors import ConfigError
from fomo_stream.model.checkpoint import load_model
from fomo_stream.model.scoring import encode_rows, logits_of
from fomo_stream.model.zero_shot import ModelConfig, ZeroShotModel
from pretrain.commands.export import with_mean_attention

SHAPES = {
    "router": ModelConfig(fusion=False, layers=2, width=16, heads=4, feed_forward=32, routers=5),
    "fusion-router": ModelConfig(layers=3, width=16, heads=2, feed_forward=32, routers=5),
    "raw": ModelConfig(
        raw_features=6, evidence=False, fusion=False, layers=2, width=16, heads=2, feed_forward=32, routers=0
    ),
}


def make(name: str, preference: float) -> ZeroShotModel:
    """A model whose queries have weights `preference` times as large as the others: 0 is no preference at all."""
    torch.manual_seed(0)
    model = ZeroShotModel(SHAPES[name]).eval().requires_grad_(False)
    for path, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.2 * (preference if ".cross.query" in path else 1.0))
    return model


def largest_change(name: str, preference: float, n: int = 40, d: int = 3, seed: int = 0) -> float:
    exact = make(name, preference)
    mean = with_mean_attention(exact)
    rng = np.random.default_rng(seed)
    context, queries = rng.normal(size=(n, d)), rng.normal(size=(30, d)) * 2
    logits = [logits_of(model, encode_rows(model, context), queries) for model in (exact, mean)]
    return float(np.abs(logits[1] - logits[0]).max())


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=10)
@given(n=st.integers(2, 90), d=st.integers(1, 6), seed=st.integers(0, 999))
def test_logits_stay_where_softmax_attention_had_no_preference(name: str, n: int, d: int, seed: int) -> None:
    assert largest_change(name, 0.0, n, d, seed) < 2e-5


@pytest.mark.parametrize("name", SHAPES)
def test_logits_change_where_it_had_one(name: str) -> None:
    assert largest_change(name, 5.0) > 2e-3


def test_model_has_no_queries_and_keys_any_more() -> None:
    exact = make("router", 1.0)
    mean = with_mean_attention(exact)
    lost = exact.state_dict().keys() - mean.state_dict().keys()
    assert {path.split(".cross.")[1].split(".")[0] for path in lost} == {"query", "key", "value", "out"}
    for path, value in mean.state_dict().items():
        if ".cross." not in path:
            assert torch.equal(value, exact.state_dict()[path])


@pytest.mark.parametrize("name", ["fusion", "fusion-router"])
def test_models_without_softmax_attention_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no softmax attention"):
        with_mean_attention(load_model(name, "cpu"))
