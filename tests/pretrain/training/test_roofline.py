"""Cost of steps and queries, compared with torch's counter on a model at work, and the ceilings of the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fomo_stream.model.evidence import CHANNELS, evidence_channels, fit_evidence
from fomo_stream.model.zero_shot import PRESETS, Features, ModelConfig, ZeroShotModel
from pretrain.training.roofline import (
    StepSize,
    encode_flops,
    evidence_flops,
    measure_ceilings,
    parameters,
    query_flops,
    step_bytes,
    step_flops,
)

SMALL = ModelConfig(
    raw_features=6, evidence=False, fusion=False, layers=3, width=16, heads=2, feed_forward=24, routers=5
)
SHAPES = {
    "raw": SMALL,
    "full-attention": replace(SMALL, routers=0),
    "evidence": replace(SMALL, raw_features=0, evidence=True),
    "both": replace(SMALL, evidence=True),
    "fusion": replace(SMALL, fusion=True),
    "one-layer": replace(SMALL, layers=1),
    "mean": replace(SMALL, attention="mean"),
    "mean-full-attention": replace(SMALL, routers=0, attention="mean"),
}


def features(shape: ModelConfig, datasets: int, rows: int) -> Features:
    channels = torch.randn(datasets, rows, len(CHANNELS)) if shape.evidence or shape.fusion else None
    return Features(channels, torch.randn(datasets, rows, shape.raw_features) if shape.raw_features else None)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_those_of_the_model(name: str) -> None:
    assert parameters(PRESETS[name]) == sum(p.numel() for p in ZeroShotModel(PRESETS[name]).parameters())


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=5)
@given(datasets=st.integers(1, 3), context=st.integers(2, 40), queries=st.integers(1, 30))
def test_operations_of_a_step_are_those_that_a_counter_sees(
    name: str, datasets: int, context: int, queries: int
) -> None:
    """The counter watches a real step of any size; `step_flops` counts three sizes on the meta device."""
    shape = SHAPES[name]
    model = ZeroShotModel(shape)
    of_context, of_queries = features(shape, datasets, context), features(shape, datasets, queries)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.forward_features(of_context, of_queries).sum().backward()  # type: ignore[no-untyped-call]
    assert step_flops(shape, StepSize(datasets, context, queries)) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["raw", "full-attention", "one-layer", "mean", "mean-full-attention"])
def test_operations_of_encoding_and_scoring_add_up_to_a_forward_pass(name: str) -> None:
    shape = SHAPES[name]
    model = ZeroShotModel(shape).eval()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.forward_features(features(shape, 1, 50), features(shape, 1, 20))
    assert encode_flops(shape, 50, 6) + 20 * query_flops(shape, 50, 6) == counter.get_total_flops()


def test_encoding_with_evidence_includes_the_evidence_and_the_logits_of_every_context_row() -> None:
    shape = SHAPES["evidence"]
    model = ZeroShotModel(shape).eval()
    channels = features(shape, 1, 50)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.forward_features(channels, channels)
    assert encode_flops(shape, 50, 6) == counter.get_total_flops() + 50 * evidence_flops(50, 6)


def test_evidence_costs_its_distances_and_somewhat_more() -> None:
    context, queries = torch.randn(1, 300, 40, dtype=torch.float64), torch.randn(1, 10, 40, dtype=torch.float64)
    evidence, _ = fit_evidence(context, torch.tensor([40]))
    with FlopCounterMode(display=False) as counter:
        evidence_channels(queries, evidence)
    products = counter.get_total_flops() / 10
    assert products < evidence_flops(300, 40) < 1.5 * products


def test_full_attention_costs_the_square_of_the_context_and_routers_do_not() -> None:
    routed, full = SHAPES["raw"], SHAPES["full-attention"]
    assert encode_flops(full, 4000, 6) > 3.5 * encode_flops(full, 2000, 6)
    assert encode_flops(routed, 4000, 6) < 2.01 * encode_flops(routed, 2000, 6)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_mean_attention_costs_a_query_the_same_for_any_context(layers: int) -> None:
    """Without evidence, and for one layer more: a feed-forward network of 16 by 24 there and back."""
    shape = replace(SHAPES["mean"], layers=layers)
    assert query_flops(shape, 5000, 6) == query_flops(shape, 10, 6)
    assert query_flops(replace(shape, layers=layers + 1), 10, 6) - query_flops(shape, 10, 6) == 4 * 16 * 24


@pytest.mark.parametrize("layers", [1, 3])
def test_mean_attention_saves_keys_values_queries_and_mixed_values(layers: int) -> None:
    """Of 16 numbers each: keys and values of a context row, 3 for a query; but 2 for the mean of a dataset."""
    mean = replace(SHAPES["mean"], layers=layers)
    exact, size = replace(mean, attention="softmax"), StepSize(7, 50, 20)
    saved = 7 * 5 * 2 * layers * 16 * (2 * 50 + 3 * 20 - 2) + 12 * 4 * (parameters(exact) - parameters(mean))
    assert step_bytes(exact, size, 2) - step_bytes(mean, size, 2) == saved
    assert parameters(exact) - parameters(mean) == layers * 3 * (16 * 16 + 16)


def test_the_paper_step_is_three_teraflop() -> None:
    """8 datasets of 10,000 rows, D = 100, contexts of 2,750 rows on average."""
    size = StepSize(8, 2750, 7250)
    assert 2.8e12 < step_flops(PRESETS["paper-100"], size) < 3.4e12
    assert step_bytes(PRESETS["paper-100"], size, 2) < step_bytes(PRESETS["paper-100"], size, 4) < 50e9


def test_bytes_of_a_fusion_step_are_those_of_its_channels_and_weights() -> None:
    """Each activation 5 times; each of the 89 weights 12 times, in 4 bytes."""
    assert step_bytes(PRESETS["fusion"], StepSize(3, 50, 20), 2) == 3 * 5 * 2 * 20 * 89 + 12 * 4 * 89


def test_ceilings_are_measured_once() -> None:
    device = torch.device("cpu")
    found = measure_ceilings(device, torch.float32)
    assert found.flops > 1e8
    assert found.bytes > 1e7
    assert measure_ceilings(device, torch.float32) is found
