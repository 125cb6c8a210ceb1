"""Training: the inputs, updates and log lines of steps, and what a run learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from training_runs import DATA, TINY, assert_same, weights

from fomo_stream.errors import FomoError
from fomo_stream.model.architecture import PRESETS as MODELS
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.priors.mixture import BatchSource
from pretrain.training.config import TrainConfig
from pretrain.training.loader import Loader
from pretrain.training.run_files import read_log
from pretrain.training.state import State, round_at_random
from pretrain.training.train import Interval, Trainer, _step, compute, learning_rate, train

pytestmark = pytest.mark.usefixtures("no_pictures")
RAW = ModelConfig(raw_features=5, evidence=False, fusion=False, layers=2, width=16, heads=2, feed_forward=16, routers=4)
SHAPES = {"fusion": MODELS["fusion"], "tiny": MODELS["tiny"], "raw": RAW, "z": replace(RAW, quantile=False)}
CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA streams")


def test_training_lowers_the_loss_on_the_batches_it_sees(tmp_path: Path) -> None:
    config = TrainConfig(
        model="fusion",
        steps=60,
        lr=0.05,
        warmup=5,
        log_every=20,
        period=10,  # each line covers every batch twice
        data=replace(DATA, batch=4, context_min=100, context_max=150, queries=64),
    )
    train(config, tmp_path, "cpu")
    log = read_log(tmp_path / "log.jsonl")
    assert log[-1]["loss"] < 0.985 * log[0]["loss"]
    assert log[-1]["auroc"] > log[0]["auroc"]


def test_datasets_outside_the_auroc_window_are_left_out_of_the_loss(tmp_path: Path) -> None:
    config = replace(TINY, model="fusion", max_auc=0.0)
    start = weights(ZeroShotModel(MODELS["fusion"]))
    trained = train(config, tmp_path, "cpu")
    assert_same(start, weights(trained))
    assert {line["kept"] for line in read_log(tmp_path / "log.jsonl")} == {0.0}


def test_learning_rate_warms_up_and_falls() -> None:
    config = TrainConfig(lr=1.0, warmup=10, final_lr=0.1)
    assert learning_rate(config, 0, 0.0) == pytest.approx(0.1)
    assert learning_rate(config, 9, 0.0) == pytest.approx(1.0)
    assert learning_rate(config, 50, 0.5) == pytest.approx(0.55)
    assert learning_rate(config, 99, 1.0) == pytest.approx(0.1)
    assert learning_rate(replace(config, schedule="constant"), 99, 1.0) == 1.0


def make(shape: ModelConfig) -> ZeroShotModel:
    torch.manual_seed(0)
    model = ZeroShotModel(shape)
    for parameter in model.parameters():  # no parameter keeps its initial value
        nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_loaded_features_give_the_logits_of_a_whole_forward_pass(name: str) -> None:
    model = make(SHAPES[name]).eval()
    loader = Loader(DATA, 3, model, CPU)
    logits = compute(model, CPU, torch.float32)
    for step in range(3):
        inputs = loader.inputs(step, 0.0)
        batch = loader.source.batch(step)
        for b, d in enumerate(batch.n_features.tolist()):
            seen, asked = batch.context[b : b + 1, :, :d].double(), batch.queries[b : b + 1, :, :d].double()
            whole = model(seen, asked, batch.n_features[b : b + 1])[0]
            torch.testing.assert_close(logits(inputs)[b], whole, atol=1e-3, rtol=1e-3)


def test_without_the_quantile_transform_raw_inputs_are_z_scores() -> None:
    data = replace(DATA, gmm_weight=1.0, causal_weight=0.0, copula_weight=0.0)  # no constant columns
    batch = BatchSource(data, 3).batch(0)
    context, queries = batch.context.double(), batch.queries.double()
    inputs = Loader(data, 3, make(SHAPES["z"]), CPU).inputs(0, 0.0)
    assert isinstance(inputs.queries, Features)
    for b, d in enumerate(batch.n_features.tolist()):
        mean, deviation = context[b].mean(0), context[b].std(0, correction=0)
        expected = ((queries[b] - mean) / deviation)[:, :d] * (5 / d)
        assert inputs.queries.raw is not None
        torch.testing.assert_close(inputs.queries.raw[b, :, :d].double(), expected, atol=1e-4, rtol=1e-4)
        assert (inputs.queries.raw[b, :, d:] == 0).all()


@pytest.mark.parametrize("rounded", [False, True])
def test_a_bad_step_changes_neither_weights_nor_moments_nor_counts(rounded: bool) -> None:
    state = State.fresh(make(RAW), rounded)
    for parameter in state.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.update(0.1, 0.01, 0.5, torch.tensor(True))
    before = state.tensors()
    for parameter in state.model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    state.update(0.1, 0.01, 0.0, torch.tensor(False))
    after = state.tensors()
    for name, value in before.items():
        if not name.startswith("average."):
            assert torch.equal(value, after[name]), name
    assert not [name for name in after if name.startswith("average.")]  # it follows the weights, and is left out


def test_fused_updates_are_those_of_the_plain_optimiser() -> None:
    state, plain = State.fresh(make(RAW)), make(RAW)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.1, foreach=False, fused=False)
    for seed in range(5):
        for mine, theirs in zip(state.model.parameters(), plain.parameters(), strict=True):
            generator = torch.Generator().manual_seed(seed)
            mine.grad = torch.randn(mine.shape, generator=generator)
            theirs.grad = mine.grad.clone()
        state.update(0.01, 0.1, 0.0, torch.tensor(True))
        optimizer.step()
    for mine, theirs in zip(state.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(0, 2**32 - 1))
def test_rounding_at_random_gives_one_of_the_two_neighbours_and_keeps_the_mean(value: float, seed: int) -> None:
    torch.manual_seed(seed)
    rounded = torch.full((4096,), value)
    round_at_random([rounded])
    assert torch.equal(rounded, rounded.bfloat16().float())
    step = abs(float(rounded[0])) * 2**-7 + 1e-40  # at most the distance between the neighbours
    assert float((rounded.double() - value).abs().max()) <= step
    assert abs(float(rounded.double().mean()) - value) < 0.05 * step  # 6 standard errors
    again = rounded.clone()
    round_at_random([again, rounded[:7].clone()])
    assert torch.equal(again, rounded)


def test_moments_in_bf16_give_nearly_the_same_steps() -> None:
    """Over thousands of steps, in which a second moment changes by less than bf16 resolves."""
    last = []
    for rounded in (False, True):
        torch.manual_seed(0)
        model: Any = nn.Linear(64, 64, bias=False)
        start = model.weight.detach().clone()
        state, generator = State.fresh(model, rounded), torch.Generator().manual_seed(0)
        for _ in range(1000):
            model.weight.grad = torch.randn(model.weight.shape, generator=generator) + 0.5
            state.update(0.01, 0.0, 0.0, torch.tensor(True))
        last.append(model.weight.detach())
    assert float((last[1] - last[0]).norm()) < 0.02 * float((last[0] - start).norm())


def test_interval_means_leave_out_what_did_not_count() -> None:
    """One good step, one whose datasets were all filtered out, and one whose loss is NaN."""
    interval = Interval(CPU)
    logits, labels = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]])
    yes, no, nan = torch.tensor(True), torch.tensor(False), torch.tensor(torch.nan)
    interval.add(logits, labels, torch.tensor(0.5), torch.tensor(2.0), torch.ones(1), yes)
    interval.add(logits, labels, torch.tensor(0.0), torch.tensor(0.0), torch.zeros(1), yes)
    interval.add(logits, labels, nan, nan, torch.ones(1), no)
    line = interval.line(3, 0.1, 1.0)
    assert (line["loss"], line["grad_norm"], line["kept"], line["skipped"]) == (0.5, 1.0, 0.5, 1)


@needs_cuda
def test_inputs_drawn_ahead_are_the_same() -> None:
    device = torch.device("cuda")
    for shape in SHAPES.values():
        model = make(shape).to(device)
        ahead, plain = Loader(DATA, 0, model, device), Loader(DATA, 0, model, device)
        ahead.prepare(1, 0.0)
        for mine, theirs in zip(ahead.inputs(1, 0.0).tensors(), plain.inputs(1, 0.0).tensors(), strict=True):
            assert torch.equal(mine, theirs)


@needs_cuda
def test_a_step_never_waits_for_the_device() -> None:
    """With data in memory; drawing it may wait, on its own stream."""
    device = torch.device("cuda")
    config = replace(TINY, period=1, min_auc=0.5)
    trainer = Trainer.start(config, State.fresh(make(MODELS["tiny"]).to(device)), device)
    interval = Interval(device)
    _step(trainer, interval, 0.001)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            _step(trainer, interval, 0.001)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_training_on_cuda_is_bf16_and_resumes(tmp_path: Path) -> None:
    for steps in (4, 6):
        train(replace(TINY, steps=steps, schedule="constant"), tmp_path, "cuda")
    log = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == [2, 4, 6]
    assert all(line["loss"] == line["loss"] for line in log)


def test_evidence_is_repeated_after_the_period() -> None:
    loader = Loader(DATA, 0, make(MODELS["fusion"]), CPU, period=2)
    first, second, third = (loader.inputs(step, 0.0) for step in range(3))
    assert third is first
    assert not torch.equal(second.labels, first.labels)


def test_bf16_is_near_fp32_and_leaves_the_fusion_alone() -> None:
    for name, shape in SHAPES.items():
        model = make(shape).eval()
        inputs = Loader(DATA, 0, model, CPU).inputs(0, 0.0)
        full, half = (compute(model, CPU, dtype)(inputs) for dtype in (torch.float32, torch.bfloat16))
        assert half.dtype == torch.float32
        gap = float(((full - half).norm() / full.norm()).detach())
        assert gap == 0.0 if name == "fusion" else 0.0 < gap < 0.02, name


def spoil(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """The logits of every so many steps are NaN."""
    usual, calls = ZeroShotModel.forward_features, count(1)

    def forward(model: ZeroShotModel, context: Features, queries: Features) -> Tensor:
        return usual(model, context, queries) * (torch.nan if next(calls) % every == 0 else 1.0)

    monkeypatch.setattr(ZeroShotModel, "forward_features", forward)


def test_single_bad_steps_are_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, every=3)
    model = train(replace(TINY, steps=6, log_every=3), tmp_path, "cpu")
    log = read_log(tmp_path / "log.jsonl")
    assert [line["skipped"] for line in log] == [1, 1]
    assert all(line["loss"] == line["loss"] for line in log)
    assert all(value.isfinite().all() for value in weights(model).values())


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, every=1)
    monkeypatch.setattr("pretrain.training.train.MAX_BAD_STEPS", 10)
    with pytest.raises(FomoError, match=r"finite for 10 steps .* lower --lr"):
        train(replace(TINY, steps=20), tmp_path, "cpu")
