"""The loader, the updates and the log lines of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fomo_stream.model.zero_shot import PRESETS as MODELS
from fomo_stream.model.zero_shot import Features, ModelConfig, ZeroShotModel
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.training.config import TrainConfig
from pretrain.training.loader import Loader
from pretrain.training.run_files import read_log
from pretrain.training.state import State
from pretrain.training.train import Interval, Trainer, _step, compute, train

DATA = DataConfig(max_features=5, batch=2, context_min=20, context_max=40, queries=16)
TINY = TrainConfig(model="tiny", steps=6, log_every=2, warmup=2, data=DATA)
RAW = ModelConfig(raw_features=5, evidence=False, fusion=False, layers=2, width=16, heads=2, feed_forward=16, routers=4)
SHAPES = {
    "evidence": MODELS["tiny"],
    "raw": RAW,
    "both": replace(RAW, evidence=True),
    "z": replace(RAW, quantile=False),
}
CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA streams")
pytestmark = pytest.mark.usefixtures("no_pictures")


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


@pytest.mark.parametrize("name", SHAPES)
def test_every_model_has_the_same_best_channel(name: str) -> None:
    """The AUROC filter does not depend on the inputs of the model."""
    evidence = Loader(DATA, 0, make(SHAPES["evidence"]), CPU, filtered=True).inputs(1, 0.0)
    other = Loader(DATA, 0, make(SHAPES[name]), CPU, filtered=True).inputs(1, 0.0)
    torch.testing.assert_close(other.best, evidence.best, atol=0.02, rtol=0)


def test_a_bad_step_changes_neither_weights_nor_moments_nor_counts() -> None:
    state = State.fresh(make(RAW))
    for parameter in state.trained:
        parameter.grad = torch.ones_like(parameter)
    state.update(0.1, 0.01, 0.5, torch.tensor(True))
    before = state.tensors()
    for parameter in state.trained:
        parameter.grad = torch.full_like(parameter, torch.nan)
    state.update(0.1, 0.01, 0.0, torch.tensor(False))
    after = state.tensors()
    for name, value in before.items():
        if name.startswith("average."):  # it follows the weights, which did not change
            value = before["model." + name.removeprefix("average.")]
        assert torch.equal(value, after[name]), name


def test_fused_updates_are_those_of_the_plain_optimiser() -> None:
    state, plain = State.fresh(make(RAW)), make(RAW)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.1, foreach=False, fused=False)
    for seed in range(5):
        for mine, theirs in zip(state.trained, plain.parameters(), strict=True):
            generator = torch.Generator().manual_seed(seed)
            mine.grad = torch.randn(mine.shape, generator=generator)
            theirs.grad = mine.grad.clone()
        state.update(0.01, 0.1, 0.0, torch.tensor(True))
        optimizer.step()
    for mine, theirs in zip(state.trained, plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_single_bad_steps_are_skipped_and_counted(tmp_path: Path) -> None:
    class Sometimes(nn.Module):
        """NaN on every third call."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(0.1))
            self.calls = 0

        def forward(self, context: Tensor, queries: Tensor, n_features: Tensor) -> Tensor:
            self.calls += 1
            return queries.float().square().sum(-1) * self.weight * (torch.nan if self.calls % 3 == 0 else 1.0)

    model = train(replace(TINY, log_every=3), tmp_path, "cpu", model=Sometimes())
    log = read_log(tmp_path / "log.jsonl")
    assert [line["skipped"] for line in log] == [1, 1]
    assert all(line["loss"] == line["loss"] for line in log)
    assert torch.isfinite(model.weight)  # type: ignore[arg-type]


def test_bf16_is_near_fp32_and_leaves_the_fusion_alone() -> None:
    for name, shape in {**SHAPES, "fusion": MODELS["fusion"]}.items():
        model = make(shape).eval()
        inputs = Loader(DATA, 0, model, CPU).inputs(0, 0.0)
        full, half = (compute(model, CPU, dtype)(inputs) for dtype in (torch.float32, torch.bfloat16))
        assert half.dtype == torch.float32
        gap = float(((full - half).norm() / full.norm()).detach())
        assert gap == 0.0 if name == "fusion" else 0.0 < gap < 0.02, name


def test_training_in_bf16_learns_as_well(tmp_path: Path) -> None:
    config = TrainConfig(
        model="paper-20", shape=replace(RAW, raw_features=3), steps=60, lr=1e-2, warmup=5, log_every=20, period=4,
        data=replace(DATA, gmm_weight=1, causal_weight=0, max_features=3, batch=4, context_max=80, queries=64),
    )  # fmt: skip
    last = []
    for precision in ("fp32", "bf16"):
        train(replace(config, precision=precision), tmp_path / precision, "cpu")
        last.append(read_log(tmp_path / precision / "log.jsonl")[-1]["auroc"])
    assert last[1] > 0.7
    assert last[1] == pytest.approx(last[0], abs=0.1)


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
