"""Training settings by name, and flags laid over them: `--preset fusion --lr 0.01 --set data.causal.hidden=0.1`."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from fomo_stream.errors import ConfigError
from fomo_stream.model.zero_shot import PRESETS as MODELS
from fomo_stream.model.zero_shot import ModelConfig
from pretrain.priors.checks import is_kind, kind_of
from pretrain.priors.mixture import PRIORS, DataConfig
from pretrain.priors.reuse import ReuseConfig
from pretrain.training.train import TrainConfig

_FILTERED: dict[str, Any] = {"min_auc": 0.75, "max_auc": 0.9985}
_PAPER: dict[str, Any] = {"steps": 200_000, "schedule": "constant", "ema": 0.0, "best_every": 1000}
_PAPER_DATA = DataConfig(
    gmm_weight=1.0, causal_weight=0.0, copula_weight=0.0, contaminated_share=0.0,
    context_min=500, context_max=5000, queries=5000,
)  # fmt: skip
PRESETS: dict[str, TrainConfig] = {
    "fusion": TrainConfig(model="fusion", steps=3000, lr=3e-2, period=300, keep_every=500, **_FILTERED),
    "fusion-router": TrainConfig(model="fusion-router", steps=400, lr=1e-3, keep_every=100, **_FILTERED),
    "router": TrainConfig(model="router", steps=3000, lr=1e-3, keep_every=250, **_FILTERED),
    # as in the paper, section 5.1 and appendices B, D, F: mixtures only; for D=100 each epoch 500 fresh datasets and
    # 7,500 transformed ones, for D=20 datasets that come round every 50 epochs (P = 50) and are never transformed
    "paper-100": TrainConfig(model="paper-100", data=replace(_PAPER_DATA, reuse=ReuseConfig()), **_PAPER),
    "paper-20": TrainConfig(model="paper-20", period=50_000, data=replace(_PAPER_DATA, max_features=20), **_PAPER),
    # "prolonged training": 100 epochs more, in which outliers begin at the 80th percentile instead of the 90th
    "paper-100-long": TrainConfig(
        model="paper-100", data=replace(_PAPER_DATA, reuse=ReuseConfig(), curriculum=2 / 3),
        **_PAPER | {"steps": 300_000},
    ),
    "tiny": TrainConfig(
        model="tiny", steps=20, log_every=5, data=DataConfig(max_features=8, batch=2, context_max=200, queries=32)
    ),
}  # fmt: skip


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The flags that `configuration` reads."""
    parser.add_argument(
        "--preset", default="fusion", choices=sorted(PRESETS), help="settings to begin with (%(default)s)"
    )
    parser.add_argument("--steps", type=int, help="end after this many steps")
    parser.add_argument("--minutes", type=float, help="end after this much training time")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--prior", metavar="gmm=W,causal=W,copulas=W", help="weights of the priors")
    parser.add_argument("--batch", type=int, help="datasets per step")
    parser.add_argument("--context-min", type=int, help="smallest context, in rows")
    parser.add_argument("--context-max", type=int, help="largest context, in rows")
    parser.add_argument("--queries", type=int, help="query rows per dataset, even")
    parser.add_argument("--max-features", type=int, help="features of the widest dataset")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--period", type=int, help="steps after which the same batches come round (0: never)")
    parser.add_argument("--schedule", choices=["cosine", "constant"])
    parser.add_argument("--min-auc", type=float, help="leave out datasets whose best evidence channel ranks worse")
    parser.add_argument("--max-auc", type=float, help="leave out datasets whose best evidence channel ranks better")
    parser.add_argument("--keep-every", type=int, help="keep the averaged weights every so many steps")
    parser.add_argument("--freeze", metavar="PREFIX", help="do not train parameters whose names begin with this")
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], help="of the network (auto: bf16 on CUDA)")
    parser.add_argument("--compile", action="store_true", default=None, help="the network through torch.compile")
    parser.add_argument("--layers", type=int, help="layers of the model")
    parser.add_argument("--routers", type=int, help="routers per layer (0: full attention between context rows)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE",
        help="any other setting, e.g. data.causal.shares.spikes=0.3 or shape.width=128; may be given again",
    )  # fmt: skip


def configuration(options: argparse.Namespace) -> TrainConfig:
    """The preset with the flags laid over it."""
    config = PRESETS[options.preset]
    changes: list[tuple[str, Any]] = []
    plain = ("steps", "minutes", "seed", "lr", "schedule", "min_auc", "max_auc", "keep_every", "freeze", "period")
    for name in (*plain, "precision", "compile"):
        changes.append((name, getattr(options, name)))
    for name in ("batch", "queries", "max_features", "context_min", "context_max"):
        changes.append((f"data.{name}", getattr(options, name)))
    if options.prior is not None:
        weights = _weights(options.prior)
        changes += [(f"data.{setting}", weights.get(prior, 0.0)) for prior, setting in PRIORS.items()]
    changes += [("shape.layers", options.layers), ("shape.routers", options.routers)]
    changes = [change for change in changes if change[1] is not None]
    changes += [setting(text, "--set") for text in options.set]
    return with_settings(config, dict(changes))


def setting(text: str, flag: str) -> tuple[str, Any]:
    """`PATH=VALUE`, as given to `flag`, as a path and a Python value."""
    path, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{flag} {text}: give PATH=VALUE, e.g. data.causal.hidden=0.1")
    return path, literal(value)


def with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration with other settings, by path: `data.gmm.percentile`, `shape.routers`.

    Settings of the model and of the data may go without `shape.` and `data.`; the value "none" stands for None.
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
    """A dataclass with the leaves of `tree` put in their places; all at once, so that its checks see the whole."""
    kinds = get_type_hints(type(config))
    names = [f.name for f in fields(config)]
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in names:
            raise ConfigError(f"there is no setting {where}{name}; there are {', '.join(names)}")
        current = getattr(config, name)
        if isinstance(value, dict):
            if current is None:
                current = _beginning(config, name, tree)
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


def _beginning(config: Any, name: str, tree: dict[str, Any]) -> Any:
    """What settings below an optional part that is None are laid over."""
    if name == "shape":
        model = tree.get("model", config.model)
        return MODELS.get(model, ModelConfig())
    return ReuseConfig() if name == "reuse" else None


def literal(text: str) -> Any:
    """A Python number, bool or tuple, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _weights(text: str) -> dict[str, float]:
    """`gmm=0.3,causal=0.7` -> {"gmm": 0.3, "causal": 0.7}; priors that are not named get weight 0."""
    weights = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"--prior {text}: give weights as in gmm=0.3,causal=0.7") from None
    if unknown := set(weights) - set(PRIORS):
        raise ConfigError(
            f"--prior {text}: there is no prior {', '.join(sorted(unknown))}; there are {', '.join(PRIORS)}"
        )
    return weights
