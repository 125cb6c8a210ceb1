"""The ablation studies of the paper (its appendix "Ablation Analyses"), at the size of the paper and at a small size.

A study is a preset and, for each variant, changes to its settings. At the small size everything shrinks by about the
same factor, so that a variant trains in about a minute on one CPU core: an epoch is 16 steps instead of 1,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pretrain.priors.mixture import PRIORS
from pretrain.training.config import TrainConfig
from pretrain.training.presets import PRESETS, with_settings

SIZES = ("small", "paper")
_SHRUNK: dict[str, Any] = {
    "data.context_min": 100,
    "data.context_max": 300,
    "data.queries": 256,
    "data.reuse": "none",
    "period": 0,
    "steps": 300,
    "warmup": 30,
    "schedule": "cosine",
    "lr": 2e-3,
    "ema": 0.98,
    "log_every": 25,
    "best_every": 0,
}
_SLIM = {
    "shape.width": 64,
    "shape.feed_forward": 128,
    "shape.routers": 32,
    "shape.layers": 3,
}  # for presets with layers
_NARROW = {"data.max_features": 8, "shape.raw_features": 8}  # for presets that read raw features


@dataclass(frozen=True)
class Variant:
    """One variant of a study. settings: by path, as in `with_settings`."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """The variants at each of SIZES, as changes to the preset `base`. contexts: at each of SIZES, the context rows in
    evaluation, by default those of training."""

    about: str
    variants: Mapping[str, Sequence[Variant]]
    base: str = "paper-20"
    contexts: Mapping[str, Sequence[int]] = field(default_factory=dict)


def configured(base: str, size: str, changes: Mapping[str, Any]) -> TrainConfig:
    """A preset at a size, with changes."""
    config = PRESETS[base]
    if size == "small" and base != "fomo":  # which is as small already
        shape = config.network
        config = with_settings(
            config, _SHRUNK | (_SLIM if shape.layers else {}) | (_NARROW if shape.raw_features else {})
        )
    return with_settings(config, changes)


def _over(path: str, paper: Sequence[Any], small: Sequence[Any] | None = None) -> dict[str, list[Variant]]:
    name = path.rpartition(".")[2]
    values = {"paper": paper, "small": paper if small is None else small}
    return {size: [Variant(f"{name}={v}", {path: v}) for v in several] for size, several in values.items()}


def _reuse(epoch: int, long: Sequence[int]) -> list[Variant]:
    """Datasets that are repeated every P epochs, or never."""
    periods = {f"P={p}": p * epoch for p in long} | {"always fresh": 0}
    return [Variant(label, {"data.reuse": "none", "period": period}) for label, period in periods.items()]


def _transform(epoch: int, fresh: int) -> list[Variant]:
    """With and without the transform T; the same datasets in every epoch (P = 1) or new ones. epoch: steps; fresh:
    datasets."""
    unique = 8 * epoch
    plain: dict[str, Any] = {"data.reuse": "none"}
    few = {"data.reuse.unique": fresh, "data.reuse.transforms": unique // fresh - 1}
    again = {"data.reuse.unique": unique, "data.reuse.transforms": 0, "data.reuse.epochs": 1}
    return [
        Variant(f"{unique} fresh an epoch", {"period": 0, **plain}),
        Variant(f"{fresh} fresh + {unique - fresh} transformed", {"period": 0, **few}),
        Variant("P=1", {"period": epoch, **plain}),
        Variant("P=1, transformed", {"period": 0, **again}),
    ]


def _widths(values: Sequence[int]) -> list[Variant]:
    return [Variant(f"D={d}", {"data.max_features": d, "shape.raw_features": d}) for d in values]


_FOMO = [
    Variant("as shipped", {}),
    Variant("without routers: full attention", {"shape.routers": 0}),
    Variant("densities alone: no values are read", {"shape.layers": 1}),
    Variant("without the quantile map", {"shape.spaces": "z,whitened"}),
    Variant("contexts of half the rows", {"data.context_min": 48, "data.context_max": 112}),
    Variant("mixtures alone as prior", {f"data.{w}": float(w == "gmm_weight") for w in PRIORS.values()}),
]
_CURRICULA = [
    Variant("90th", {"data.curriculum": 1.0}),
    Variant("90th, then 80th", {"data.curriculum": 2 / 3}),
    Variant("80th", {"data.curriculum": 1.0, "data.gmm.percentile": 80.0}),
]
STUDIES: dict[str, Study] = {
    "depth": Study("layers L", _over("shape.layers", (1, 2, 3, 4))),
    "routers": Study("routers R, 0: full attention", _over("shape.routers", (100, 200, 500, 0), (8, 32, 128, 0))),
    "context": Study(
        "context rows in training and in evaluation",
        _over("data.context_max", (1000, 2000, 5000), (100, 200, 400)),
        contexts={"paper": (500, 1000, 2000, 5000), "small": (100, 200, 400, 800)},
    ),
    "reuse": Study(
        "epochs P after which the same datasets are repeated",
        {"paper": _reuse(1000, (1, 50, 100)), "small": _reuse(16, (1, 10))},
    ),
    "transform": Study("linear transforms T of datasets", {"paper": _transform(1000, 500), "small": _transform(16, 8)}),
    "curriculum": Study("percentile above which rows are outliers", {"paper": _CURRICULA, "small": _CURRICULA}),
    "quantile": Study("quantile transform or z-scores", _over("shape.quantile", (True, False))),
    "kernel": Study("parts of the model fomo and of its prior", {"paper": _FOMO, "small": _FOMO}, "fomo"),
    "width-D": Study("features D of model and data", {"paper": _widths((20, 100)), "small": _widths((4, 8, 16))}),
}
