"""Flags that several commands share, and the training configuration that they give."""

from __future__ import annotations

import argparse
import ast
from typing import Any

import torch

from fomo_stream.errors import ConfigError
from pretrain.priors.mixture import PRIORS
from pretrain.training.config import TrainConfig
from pretrain.training.presets import PRESETS, with_settings


def add_machine(parser: argparse.ArgumentParser, threads: int | None = None) -> None:
    """The flags --device and --threads; threads: the default of --threads."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (default: %(default)s)")
    usual = "chosen by torch" if threads is None else "%(default)s"
    parser.add_argument("--threads", type=int, metavar="N", default=threads, help=f"CPU threads (default: {usual})")


def use_threads(threads: int | None) -> None:
    """Apply --threads. Raises ConfigError for less than 1."""
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"--threads needs at least 1, not {threads}")
        torch.set_num_threads(threads)


def listed(text: str | None) -> list[str]:
    """`a,b` as a list of names."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The flags that `configuration` reads."""
    group = parser.add_argument_group("training settings", "the preset sets all values that are not given")
    add = group.add_argument
    add(
        "--preset",
        default="fusion",
        choices=sorted(PRESETS),
        metavar="NAME",
        help=f"one of {', '.join(sorted(PRESETS))} (default: %(default)s)",
    )
    add("--steps", type=int, metavar="N", help="length of the run in steps")
    add("--minutes", type=float, metavar="N", help="length of the run in minutes, if that is shorter")
    add("--seed", type=int, metavar="N", help="seed of data and initial weights")
    add("--prior", metavar="gmm=W,causal=W,copulas=W", help="weights of the priors in the data")
    add("--batch", type=int, metavar="N", help="datasets per step")
    add("--context-min", type=int, metavar="ROWS", help="size of the smallest context")
    add("--context-max", type=int, metavar="ROWS", help="size of the largest context")
    add("--queries", type=int, metavar="ROWS", help="query rows per dataset, an even number")
    add("--max-features", type=int, metavar="N", help="features of the widest dataset")
    add("--lr", type=float, metavar="RATE", help="peak of the learning rate")
    add("--schedule", choices=["cosine", "constant"], help="learning rate after the warm-up")
    add("--precision", choices=["auto", "bf16", "fp32"], help="of the network (auto: bf16 on CUDA, else fp32)")
    add("--layers", type=int, metavar="N", help="layers of the model")
    add("--routers", type=int, metavar="N", help="routers per layer (0: full attention between context rows)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="any other setting, e.g. data.causal.shares.spikes=0.3 or shape.width=128; may be repeated",
    )


def configuration(options: argparse.Namespace) -> TrainConfig:
    """The preset, changed by the flags. Raises ConfigError for values that do not fit."""
    config = PRESETS[options.preset]
    changes: list[tuple[str, Any]] = []
    for name in ("steps", "minutes", "seed", "lr", "schedule", "precision"):
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
    """`PATH=VALUE` (the text of `flag`) as a path and a Python value."""
    path, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{flag} {text}: give PATH=VALUE, e.g. data.causal.hidden=0.1")
    return path, literal(value)


def literal(text: str) -> Any:
    """A Python number, bool or tuple; any other text stays text."""
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
    if unknown := set(weights) - set(PRIORS):
        raise ConfigError(
            f"--prior {text}: there is no prior {', '.join(sorted(unknown))}; there are {', '.join(PRIORS)}"
        )
    return weights
