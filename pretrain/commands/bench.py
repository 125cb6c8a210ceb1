"""`python -m pretrain bench`: measure the training speed over --steps steps (20) next to the machine's limits."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fomo_stream.model.checkpoint import resolve_device
from pretrain.commands.flags import add_machine, add_settings, configuration, use_threads
from pretrain.training.roofline import measure_ceilings
from pretrain.training.run_files import read_log
from pretrain.training.train import compute_dtype, train

PHASES = ("synthesis", "evidence", "forward", "backward", "update")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    """Train for twice --steps (default: 20) and report the second half; the first half warms up."""
    use_threads(options.threads)
    device = resolve_device(options.device)
    steps = options.steps or 20
    config = replace(configuration(options), steps=2 * steps, log_every=steps, keep_every=0, best_every=0)
    config = replace(config, minutes=None, save_every=1e9)
    dtype = compute_dtype(config, device)
    ceilings = measure_ceilings(device, dtype)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # the measurement of the ceilings takes gigabytes
    with TemporaryDirectory() as folder:
        train(config, Path(folder), options.device)
        line = read_log(Path(folder) / "log.jsonl")[-1]
    print(f"{options.preset} on {device}, {str(dtype).removeprefix('torch.')}: {line['ms_per_step']:.1f} ms per step")
    for phase in PHASES:
        share = line.get(phase, 0.0)
        print(f"  {phase:<10} {share * line['ms_per_step']:8.1f} ms {share:6.1%}")
    print(f"  {line['gflop_per_s'] / 1e3:.3f} TFLOP/s, {line['of_peak']:.1%} of {ceilings.flops / 1e12:.3f} measured")
    print(
        f"  at least {line['gbyte_per_s']:.1f} GB/s, {line['of_bandwidth']:.1%} of {ceilings.bytes / 1e9:.1f} measured"
    )
    found = {name: line[name] for name in ("ms_per_step", "rows_per_s", "gflop_per_s", "of_peak", "of_bandwidth")}
    found |= {phase: line.get(phase, 0.0) for phase in PHASES}
    if device.type == "cuda":
        found["gpu_memory_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    print(json.dumps({"preset": options.preset, "device": str(device), "compiled": config.compile, **found}))
    return 0
