"""`python -m pretrain train | export`: train on synthetic data, and make a shippable checkpoint of the result."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from fomo_stream.checkpoint import save_model
from fomo_stream.errors import CheckpointError, ConfigError, FomoError
from fomo_stream.model import PRESETS as MODELS
from fomo_stream.model import ZeroShotModel
from pretrain.mixture import DataConfig
from pretrain.reuse import ReuseConfig
from pretrain.run_files import RunFiles, read_log
from pretrain.train import TrainConfig, train

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


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "train":
            return _train(options)
        return _export(options)
    except FomoError as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pretrain", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("train", help="train, or go on with the run in --out")
    run.add_argument("--preset", default="fusion", choices=sorted(PRESETS), help="settings to begin with (%(default)s)")
    run.add_argument("--out", type=Path, required=True, help="directory of the run")
    run.add_argument("--steps", type=int, help="end after this many steps")
    run.add_argument("--minutes", type=float, help="end after this much training time")
    run.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 (%(default)s)")
    run.add_argument("--seed", type=int)
    run.add_argument("--prior", metavar="gmm=W,causal=W", help="weights of the priors")
    run.add_argument("--batch", type=int, help="datasets per step")
    run.add_argument("--context-min", type=int, help="smallest context, in rows")
    run.add_argument("--context-max", type=int, help="largest context, in rows")
    run.add_argument("--queries", type=int, help="query rows per dataset, even")
    run.add_argument("--max-features", type=int, help="features of the widest dataset")
    run.add_argument("--lr", type=float)
    run.add_argument("--period", type=int, help="steps after which the same batches come round (0: never)")
    run.add_argument("--schedule", choices=["cosine", "constant"])
    run.add_argument("--min-auc", type=float, help="leave out datasets whose best evidence channel ranks worse")
    run.add_argument("--max-auc", type=float, help="leave out datasets whose best evidence channel ranks better")
    run.add_argument("--keep-every", type=int, help="keep the averaged weights every so many steps")
    run.add_argument("--freeze", metavar="PREFIX", help="do not train parameters whose names begin with this")
    run.add_argument("--init-from", type=Path, metavar="RUN", help="start from the weights of another run")
    run.add_argument("--threads", type=int, help="CPU threads")
    run.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE",
        help="any other setting, e.g. data.causal.shares.spikes=0.3; may be given again",
    )  # fmt: skip
    out = commands.add_parser("export", help="write the averaged weights of a run as a checkpoint to ship")
    out.add_argument("run", type=Path)
    out.add_argument("--out", type=Path, required=True, help="the checkpoint, a .safetensors file")
    out.add_argument("--step", type=int, help="weights kept after this many steps (the last)")
    return parser


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


def _train(options: argparse.Namespace) -> int:
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    train(configuration(options), options.out, options.device, init_from=options.init_from)
    return 0


def _export(options: argparse.Namespace) -> int:
    files = RunFiles(options.run)
    config = files.read_config()
    weights, step = files.weights(options.step)
    model = ZeroShotModel(MODELS[config["model"]], name=options.out.stem)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{options.run} was trained with another version of the model: {error}") from None
    log = [line for line in read_log(files.log) if line["step"] <= step]
    summary = {"steps": step, "settings": config, "commit": files.commit(), "log": log[:1] + log[-1:]}
    if log:
        summary["seconds"] = log[-1]["seconds"]
        summary["lowest_loss"] = min(line["loss"] for line in log)
    save_model(model, options.out, training=summary)
    print(f"wrote {options.out}: {config['model']} after {step} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
