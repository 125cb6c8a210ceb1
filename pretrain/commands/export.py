"""`python -m pretrain export`: write the averaged weights of a run as a checkpoint for fomo-stream."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.model.architecture import PRESETS as MODELS
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.checkpoint import load_torch_model, read_metadata, save_model
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.training.run_files import RunFiles, read_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of the run, or a checkpoint to convert")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", required=True, help="file name of the checkpoint, ending in .safetensors"
    )
    parser.add_argument(
        "--select",
        default="last",
        choices=["last", "lowest-loss"],
        help="the last weights, or those with the lowest training loss (default: %(default)s)",
    )
    parser.add_argument(
        "--scale",
        type=float,
        metavar="X",
        default=1.0,
        help="multiply logits by this: no ranking changes, but how large a logit is (default: %(default)s)",
    )
    parser.add_argument("--half", action="store_true", help="store weights in float16: half the file size")


def run(options: argparse.Namespace) -> int:
    if options.out.suffix != ".safetensors":
        raise ConfigError(f"--out {options.out}: the name of a checkpoint ends in .safetensors")
    model, summary = _from_checkpoint(options) if options.run.is_file() else from_run(options.run, options.select)
    if options.scale != 1:
        summary["scale"] = options.scale * summary.get("scale", 1.0)  # a checkpoint may have been scaled before
        model = scaled(model, options.scale)
    save_model(model, options.out, training=summary, half=options.half)
    print(f"wrote {options.out}: {model.name} after {summary.get('steps', 'an unknown number of')} steps")
    return 0


def _from_checkpoint(options: argparse.Namespace) -> tuple[ZeroShotModel, dict[str, Any]]:
    """The model of a checkpoint and its training summary."""
    if options.select != "last":
        raise ConfigError(f"{options.run} is a checkpoint: --select chooses among the weights of a run")
    return load_torch_model(options.run, "cpu"), dict(read_metadata(options.run)["training"])


def from_run(run: Path, select: str = "last") -> tuple[ZeroShotModel, dict[str, Any]]:
    """The model of a run and the summary of its training; select: as the flag."""
    files = RunFiles(run)
    config = files.read_config()
    weights, step = files.lowest_loss() if select == "lowest-loss" else files.weights()
    shape = MODELS[config["model"]] if config.get("shape") is None else ModelConfig.from_dict(config["shape"])
    model = ZeroShotModel(shape, name=config["model"])
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{run} was trained with another version of the model: {error}") from None
    log = [line for line in read_log(files.log) if line["step"] <= step]
    summary = {"steps": step, "settings": config, "commit": files.commit(), "log": log[:1] + log[-1:]}
    if log:
        summary["seconds"] = log[-1]["seconds"]
    if losses := [line["loss"] for line in log if math.isfinite(line["loss"])]:
        summary["lowest_loss"] = min(losses)
    return model, summary


def scaled(model: ZeroShotModel, scale: float) -> ZeroShotModel:
    """A model whose logits are those of `model` times `scale`. Raises ConfigError for one with a transformer."""
    if model.config.layers:
        raise ConfigError(f"--scale is for a model without a transformer, and {model.name} has one")
    if not 0 < scale < math.inf:
        raise ConfigError(f"--scale {scale}: a number above 0 is needed")
    changed = ZeroShotModel(model.config, model.name)
    weights = scale * F.softplus(model.fusion_raw.double())
    raw = weights + torch.log(-torch.expm1(-weights))  # the inverse of softplus
    changed.load_state_dict({"fusion_raw": raw.float(), "fusion_bias": scale * model.fusion_bias})
    return changed
