"""`python -m pretrain smoke`: try all that training and scoring need on a device, and print one line of JSON."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fomo_stream.errors import FomoError
from fomo_stream.model.checkpoint import resolve_device, save_model
from pretrain.commands.export import from_run
from pretrain.commands.flags import add_machine, use_threads
from pretrain.commands.train import cpu_multiplies_bf16
from pretrain.evaluation.detectors import Encoded
from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, sample_gmm
from pretrain.priors.reuse import draw_transform
from pretrain.training.presets import PRESETS, with_settings
from pretrain.training.run_files import read_log, read_tensors
from pretrain.training.train import train

MIB = 2**20
SCORED = (1000, 5000)  # rows of the context, and as many queries
# of the paper's model: its whole shape, and on a CPU few rows
_SHORT = {"log_every": 1, "best_every": 2, "warmup": 1, "data.reuse.unique": 8}
_SMALL = {"data.batch": 2, "data.context_min": 200, "data.context_max": 300, "data.queries": 128}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    use_threads(options.threads)
    began, device = time.monotonic(), torch.device(resolve_device(options.device))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    found: dict[str, Any] = {"device": str(device), "name": name, "torch": torch.__version__}
    settings = _SHORT if device.type == "cuda" else _SHORT | _SMALL
    with tempfile.TemporaryDirectory() as folder:
        for part in (_prior, _steps, _resumed, _exported):
            try:
                found |= part(device, settings, Path(folder))
            except RuntimeError as error:  # of torch, e.g. too little memory
                raise FomoError(f"{part.__name__.strip('_')}: torch fails on {device}: {error}") from None
    print(json.dumps(found | {"peak_mib": _peak(device) // MIB, "seconds": round(time.monotonic() - began, 1)}))
    return 0


def _prior(device: torch.device, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Mixtures of the prior, and linear transforms T of them."""
    rows, draws = settings.get("data.context_max", 5000), Draws(0, device)
    began = _now(device)
    data = sample_gmm(GmmConfig(), draws, 8, rows, rows)
    drawn = _now(device)
    moved = draw_transform(data.mixtures.inflated, draws).rows(data.inliers)
    done = _now(device)
    if moved.device.type != device.type or not moved.isfinite().all():
        raise FomoError(f"prior: transformed rows on {moved.device} are not finite, or not on {device}")
    return {"prior_s": round(drawn - began, 4), "transform_s": round(done - drawn, 4)}


def _steps(device: torch.device, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The time of a training step in fp32 and in bf16."""
    slow, found = device.type == "cpu" and not cpu_multiplies_bf16(), dict[str, Any]()
    if slow:
        found = {"bf16_step_s": None, "bf16_skipped": "this CPU has no AMX: about ten times slower than fp32"}
    for precision in ("fp32",) if slow else ("fp32", "bf16"):
        changed = settings | {"precision": precision, "steps": 3}
        found[f"{precision}_step_s"] = _trained(device, changed, folder / precision)
    return found


def _resumed(device: torch.device, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Whether a run of 2 and 2 steps equals one of 4."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # a GPU adds in a random order otherwise
    try:
        for steps, name in ((4, "whole"), (2, "parts"), (4, "parts")):
            _trained(device, settings | {"steps": steps}, folder / name)
    finally:
        torch.use_deterministic_algorithms(False)
    whole, parts = (read_tensors(folder / name / "state.safetensors")[0] for name in ("whole", "parts"))
    if other := [name for name in whole | parts if not torch.equal(whole[name], parts[name])]:
        raise FomoError(f"resume: {len(other)} of {len(whole)} tensors differ from those of a run without a stop")
    weight = sum(path.stat().st_size for path in (folder / "whole").iterdir())
    return {"resume": "bit-equal", "run_mib": round(weight / MIB, 1)}


def _trained(device: torch.device, settings: dict[str, Any], home: Path) -> float:
    """Train, or go on with a run; returns the seconds of its last step."""
    train(with_settings(PRESETS["paper-100"], settings), home, str(device))
    line = read_log(home / "log.jsonl")[-1]
    if not math.isfinite(line["loss"]) or line["skipped"]:
        raise FomoError(f"step: the loss is {line['loss']} after {line['step']} steps of {home.name}")
    return round(line["ms_per_step"] / 1000, 4)


def _exported(device: torch.device, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The checkpoint of the run, and how long it takes to score."""
    model, summary = from_run(folder / "whole")
    save_model(model, folder / "model.safetensors", training=summary)
    found: dict[str, Any] = {"checkpoint_mib": round((folder / "model.safetensors").stat().st_size / MIB, 1)}
    detector = Encoded(str(folder / "model.safetensors"), str(device), 0)
    for count in SCORED:
        rows = np.random.default_rng(0).normal(size=(2 * count, 10))
        began = time.monotonic()
        detector.fit(rows[:count])
        if not np.isfinite(detector.score(rows[count:])).all():
            raise FomoError(f"score: of {count} rows, some logits are not finite")
        found[f"score_{count}_s"] = round(time.monotonic() - began, 3)
    return found


def _peak(device: torch.device) -> int:
    """The largest memory so far in bytes: that of torch on the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    from resource import RUSAGE_SELF, getrusage  # not on Windows

    return 1024 * getrusage(RUSAGE_SELF).ru_maxrss


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
