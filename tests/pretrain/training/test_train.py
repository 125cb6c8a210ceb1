"""Training: what a run learns, and from which data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_runs import DATA, TINY, assert_same, weights

from fomo_stream.errors import FomoError
from fomo_stream.model.zero_shot import PRESETS as MODELS
from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.priors.mixture import BatchSource
from pretrain.training.config import TrainConfig
from pretrain.training.evidence_batches import EvidenceSource, evidence_batch
from pretrain.training.run_files import read_log
from pretrain.training.train import learning_rate, train

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_training_lowers_the_loss_on_the_batches_it_sees(tmp_path: Path) -> None:
    config = TrainConfig(
        model="fusion", steps=160, lr=0.05, warmup=5, log_every=20, period=10,  # each line covers every batch twice
        data=replace(DATA, batch=4, context_min=100, context_max=150, queries=64),
    )  # fmt: skip
    train(config, tmp_path, "cpu")
    log = read_log(tmp_path / "log.jsonl")
    assert log[-1]["loss"] < 0.985 * log[0]["loss"]
    assert log[-1]["auroc"] > log[0]["auroc"]


def test_same_seed_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (
        weights(train(replace(TINY, seed=s), tmp_path / str(i), "cpu")) for i, s in enumerate((1, 1, 2))
    )
    assert_same(first, again)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_any_module_with_the_same_call_can_be_trained(tmp_path: Path) -> None:
    class Distance(nn.Module):
        """Distance to the mean of the context, with a trained scale and shift."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.0))
            self.shift = nn.Parameter(torch.tensor(0.0))

        def forward(self, context: Tensor, queries: Tensor, n_features: Tensor) -> Tensor:
            center, deviation = context.mean(1, True), context.std(1, keepdim=True) + 1e-6
            size = ((queries - center) / deviation).square().sum(-1) / n_features[:, None]
            return self.scale * size.log1p() + self.shift

    model = train(replace(TINY, steps=20, lr=0.05), tmp_path, "cpu", model=Distance())
    assert model.scale.item() != 0  # type: ignore[operator]


def test_logits_from_evidence_batches_equal_a_forward_pass() -> None:
    batch = BatchSource(DATA, 0).batch(0)
    for name in ("fusion", "router", "fusion-router", "tiny"):
        torch.manual_seed(0)
        model = ZeroShotModel(MODELS[name]).eval()
        for parameter in model.parameters():  # output projections start at zero, which would hide errors
            nn.init.normal_(parameter, std=0.1)
        evidence = evidence_batch(batch)
        assert evidence_batch(batch, with_context=False).context.shape[1] == 0
        with torch.no_grad():
            found = model.forward_features(Features(evidence.context, None), Features(evidence.queries, None))
            for b, d in enumerate(batch.n_features.tolist()):
                one = slice(b, b + 1)
                whole = model(
                    batch.context[one, :, :d].double(), batch.queries[one, :, :d].double(), batch.n_features[one]
                )
                assert torch.allclose(found[one], whole.float(), atol=1e-4)


def test_evidence_batches_are_repeated_after_the_period() -> None:
    source = EvidenceSource(BatchSource(DATA, 0), with_context=True, period=2)
    first, second, third = (source.batch(step, 0.0) for step in range(3))
    assert third is first
    assert not torch.equal(second.queries, first.queries)


def test_datasets_outside_the_auroc_window_are_left_out_of_the_loss(tmp_path: Path) -> None:
    config = replace(TINY, model="fusion", max_auc=0.0)
    start = weights(ZeroShotModel(MODELS["fusion"]))
    trained = train(config, tmp_path, "cpu")
    assert_same(start, weights(trained))
    assert {line["kept"] for line in read_log(tmp_path / "log.jsonl")} == {0.0}


def test_a_frozen_fusion_stays_as_it_was_loaded(tmp_path: Path) -> None:
    fusion = train(replace(TINY, model="fusion", lr=0.05), tmp_path / "fusion", "cpu")
    config = replace(TINY, freeze="fusion_")
    both = train(config, tmp_path / "both", "cpu", init_from=tmp_path / "fusion")
    start, learned, kept = weights(ZeroShotModel(MODELS["fusion"])), weights(fusion), weights(both)
    for name in ("fusion_raw", "fusion_bias"):
        assert torch.equal(kept[name], learned[name])
        assert not torch.equal(start[name], learned[name])


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.0))

        def forward(self, context: Tensor, queries: Tensor, n_features: Tensor) -> Tensor:
            return queries.sum(-1) * self.weight * torch.nan

    with pytest.raises(FomoError, match="lower --lr"):
        train(replace(TINY, steps=100), tmp_path, "cpu", model=Broken())


def test_learning_rate_warms_up_and_falls() -> None:
    config = TrainConfig(lr=1.0, warmup=10, final_lr=0.1)
    assert learning_rate(config, 0, 0.0) == pytest.approx(0.1)
    assert learning_rate(config, 9, 0.0) == pytest.approx(1.0)
    assert learning_rate(config, 50, 0.5) == pytest.approx(0.55)
    assert learning_rate(config, 99, 1.0) == pytest.approx(0.1)
    assert learning_rate(replace(config, schedule="constant"), 99, 1.0) == 1.0
