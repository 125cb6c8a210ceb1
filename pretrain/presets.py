"""Training settings by name, and flags laid over them: `--preset fusion --lr 0.01 --set data.causal.hidden=0.1`."""

from __future__ import annotations

import argparse
import ast
from dataclasses import fields, is_dataclass, replace
from typing import Any

from fomo_stream.errors import ConfigError
from pretrain.mixture import DataConfig
from pretrain.reuse import ReuseConfig
from pretrain.train import TrainConfig

_FILTERED: dict[str, Any] = {"min_auc": 0.75, "max_auc": 0.9985}
PRESETS: dict[str, TrainConfig] = {
    "fusion": TrainConfig(model="fusion", steps=3000, lr=3e-2, period=300, keep_every=500, **_FILTERED),
    "fusion-router": TrainConfig(model="fusion-router", steps=3000, lr=1e-3, keep_every=250, **_FILTERED),
    "router": TrainConfig(model="router", steps=3000, lr=1e-3, keep_every=250, **_FILTERED),
    # as in the paper, but for the number of steps: mixtures only, reused, contexts of up to 5,000 rows
    "paper-100": TrainConfig(
        model="paper-100", steps=200_000, keep_every=1000, schedule="constant", ema=0.0,
        data=DataConfig(
            gmm_weight=1.0, causal_weight=0.0, context_min=500, context_max=5000, queries=5000, curriculum=0.5,
            reuse=ReuseConfig(),
        ),
    ),
    "paper-20": TrainConfig(
        model="paper-20", steps=200_000, keep_every=1000, schedule="constant", ema=0.0,
        data=DataConfig(
            gmm_weight=1.0, causal_weight=0.0, max_features=20, context_min=500, context_max=5000, queries=5000,
            curriculum=0.5, reuse=ReuseConfig(),
        ),
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
    parser.add_argument("--prior", metavar="gmm=W,causal=W", help="weights of the priors")
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
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE",
        help="any other setting, e.g. data.causal.shares.spikes=0.3; may be given again",
    )  # fmt: skip


def configuration(options: argparse.Namespace) -> TrainConfig:
    """The preset with the flags laid over it."""
    config = PRESETS[options.preset]
    changes: list[tuple[str, Any]] = []
    for name in ("steps", "minutes", "seed", "lr", "schedule", "min_auc", "max_auc", "keep_every", "freeze", "period"):
        changes.append((name, getattr(options, name)))
    for name in ("batch", "queries", "max_features", "context_min", "context_max"):
        changes.append((f"data.{name}", getattr(options, name)))
    if options.prior is not None:
        weights = _weights(options.prior)
        changes += [(f"data.{prior}_weight", weights.get(prior, 0.0)) for prior in ("gmm", "causal")]
    for text in options.set:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: give PATH=VALUE, e.g. data.causal.hidden=0.1")
        changes.append((path, _literal(value)))
    tree: dict[str, Any] = {}
    for path, value in changes:
        if value is not None:
            _grow(tree, path.split("."), value)
    changed: TrainConfig = _changed(config, tree, "")
    return changed


def _grow(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _changed(config: Any, tree: dict[str, Any], where: str) -> Any:
    """A dataclass with the leaves of `tree` put in their places; all at once, so that its checks see the whole."""
    names = [f.name for f in fields(config)]
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in names:
            raise ConfigError(f"there is no setting {where}{name}; there are {', '.join(names)}")
        current = getattr(config, name)
        if isinstance(value, dict):
            if name == "reuse" and current is None:
                current = ReuseConfig()
            if not is_dataclass(current):
                raise ConfigError(f"{where}{name} has no settings below it")
            values[name] = _changed(current, value, f"{where}{name}.")
        else:
            values[name] = None if value == "none" else value
    try:
        return replace(config, **values)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _weights(text: str) -> dict[str, float]:
    """`gmm=0.3,causal=0.7` -> {"gmm": 0.3, "causal": 0.7}."""
    weights = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"--prior {text}: give weights as in gmm=0.3,causal=0.7") from None
    if unknown := set(weights) - {"gmm", "causal"}:
        raise ConfigError(f"--prior {text}: there is no prior {', '.join(sorted(unknown))}; there are gmm and causal")
    return weights
