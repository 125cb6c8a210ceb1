"""Training presets, and changes to them by path (`data.causal.hidden`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from fomo_stream.errors import ConfigError
from fomo_stream.model.architecture import PRESETS as MODELS
from fomo_stream.model.architecture import ModelConfig
from pretrain.priors.checks import is_kind, kind_of
from pretrain.priors.mixture import DataConfig
from pretrain.priors.reuse import ReuseConfig
from pretrain.training.config import TrainConfig

_FILTERED: dict[str, Any] = {"min_auc": 0.75, "max_auc": 0.9985}
_PAPER: dict[str, Any] = {"steps": 200_000, "schedule": "constant", "ema": 0.0, "best_every": 1000, "moments": "bf16"}
_PAPER_DATA = DataConfig(
    gmm_weight=1.0,
    causal_weight=0.0,
    copula_weight=0.0,
    contaminated_share=0.0,
    context_min=500,
    context_max=5000,
    queries=5000,
)
_STREAMS = DataConfig(gmm_weight=0.0, causal_weight=0.0, copula_weight=0.0, stream_weight=1.0)
PRESETS: dict[str, TrainConfig] = {
    "fusion": TrainConfig(model="fusion", steps=3000, lr=3e-2, period=300, **_FILTERED),
    "streams": TrainConfig(
        model="streams", steps=3000, lr=3e-2, period=300, data=_STREAMS, min_auc=0.6, max_auc=0.9985
    ),
    "fomo": TrainConfig(
        model="fomo",
        steps=300,
        lr=2e-3,
        warmup=50,
        final_lr=0.05,
        weight_decay=1e-3,
        data=DataConfig(max_features=40, batch=16, context_min=96, context_max=224, queries=64),
        **_FILTERED,
    ),
    # the paper, section 5.1 and appendices B, D, F: mixtures only. D=100: each epoch has 500 new datasets and 7,500
    # transformed ones. D=20: the datasets are repeated every 50 epochs (P = 50) and are never transformed
    "paper-100": TrainConfig(model="paper-100", data=replace(_PAPER_DATA, reuse=ReuseConfig()), **_PAPER),
    "paper-20": TrainConfig(model="paper-20", period=50_000, data=replace(_PAPER_DATA, max_features=20), **_PAPER),
    # "prolonged training": 100 more epochs, in which outliers begin at the 80th percentile instead of the 90th
    "paper-100-long": TrainConfig(
        model="paper-100",
        data=replace(_PAPER_DATA, reuse=ReuseConfig(), curriculum=2 / 3),
        **_PAPER | {"steps": 300_000},
    ),
    "tiny": TrainConfig(
        model="tiny", steps=20, log_every=5, data=DataConfig(max_features=8, batch=2, context_max=200, queries=32)
    ),
}


def with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration with some settings changed, by path: `data.gmm.percentile`, `shape.routers`.

    `shape.` and `data.` may be left out; the value "none" means None. Raises ConfigError for an unknown path or a
    value that does not fit.
    """
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        _grow(tree, _full_path(path).split("."), value)
    changed: TrainConfig = _changed(config, tree, "")
    return changed


def _full_path(path: str) -> str:
    first = path.partition(".")[0]
    for prefix, kind in (("", TrainConfig), ("shape.", ModelConfig), ("data.", DataConfig)):
        if first in {f.name for f in fields(kind)}:
            return prefix + path
    return path


def _grow(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    tree[path[-1]] = value


def _changed(config: Any, tree: dict[str, Any], where: str) -> Any:
    """A dataclass with the values of `tree`, all set at once, so that its checks see the final settings."""
    kinds = get_type_hints(type(config))
    names = [f.name for f in fields(config)]
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in names:
            raise ConfigError(f"there is no setting {where}{name}; there are {', '.join(names)}")
        current = getattr(config, name)
        if isinstance(value, dict):
            if current is None:
                current = _defaults(config, name, tree)
            if not is_dataclass(current):
                raise ConfigError(f"{where}{name} has no settings below it")
            values[name] = _changed(current, value, f"{where}{name}.")
        else:
            values[name] = None if value == "none" else value
            if not is_kind(values[name], kinds[name]):
                raise ConfigError(f"{where}{name} is {kind_of(kinds[name])}, not {value!r}")
    try:
        return replace(config, **values)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _defaults(config: Any, name: str, tree: dict[str, Any]) -> Any:
    """The defaults of an optional part that is None, when a setting below it is changed."""
    if name == "shape":
        model = tree.get("model", config.model)
        return MODELS.get(model, ModelConfig())
    return ReuseConfig() if name == "reuse" else None
