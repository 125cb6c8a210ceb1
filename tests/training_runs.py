"""Small training runs, and helpers to compare them, for several test modules."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from pretrain.priors.mixture import DataConfig
from pretrain.training.config import TrainConfig
from pretrain.training.run_files import read_log

DATA = DataConfig(max_features=5, batch=2, context_min=20, context_max=40, queries=16)
TINY = TrainConfig(model="tiny", steps=8, log_every=2, warmup=2, data=DATA)
DATA_FLAGS = ["--max-features", "5", "--batch", "2", "--context-min", "20", "--context-max", "40"]  # DATA as flags
DATA_FLAGS += ["--queries", "16", "--device", "cpu"]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def without_times(log: Path) -> list[dict[str, float]]:
    """The lines of a log without the values that depend on the speed of the machine."""
    names = ("step", "loss", "auroc", "kept", "grad_norm", "lr", "skipped")
    return [{name: line[name] for name in names} for line in read_log(log)]
