"""What training and scoring cost: operations and bytes counted by formula, and the two ceilings of a machine measured.

Operations are those of matrix products (a multiply and an add count as two) and, in evidence, of distances and kernels;
norms, activations and softmax are left out. Bytes are an estimate from below: every activation is written and read
once, every weight once per use, and scores of attention never leave the chip, as fused attention keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from fomo_stream.model.evidence import CHANNELS, SPACES
from fomo_stream.model.zero_shot import ModelConfig

_TOUCHES = 5  # of an activation: written, read, read again by the backward pass, its gradient written and read
# of a weight: read twice, gradient written; the optimiser reads 4 and writes 3; the average is read and written
_WEIGHT_TOUCHES = 12


@dataclass(frozen=True)
class StepSize:
    """What one training step sees: datasets, and rows of context and queries in each."""

    datasets: int
    context: int
    queries: int


def parameters(shape: ModelConfig) -> int:
    """Trained numbers of a model."""
    h, f = shape.width, shape.feed_forward
    count = len(CHANNELS) + 1 if shape.fusion else 0
    if not shape.layers:
        return count
    attention = 4 * (h * h + h)
    layer = 2 * attention + 4 * h + 2 * h * f + f + h
    layer += shape.routers * h + attention if shape.routers else 0
    return count + (_inputs(shape) + 1) * h + shape.layers * layer + (h + 1) * 2 * h + (2 * h + 1) * 2


def query_flops(shape: ModelConfig, context: int, features: int) -> float:
    """Operations to score one query of `features` numbers against an encoded context of `context` rows."""
    total = evidence_flops(context, features) if shape.fusion or shape.evidence else 0.0
    return total + _query_pass(shape, context)


def encode_flops(shape: ModelConfig, context: int, features: int) -> float:
    """Operations to encode a context, once; its rows' own logits included where the model gives them."""
    total = context * evidence_flops(context, features) if shape.fusion or shape.evidence else 0.0
    own = 0 if shape.raw_features else context * _query_pass(shape, context)
    return total + own + _context_pass(shape, context)


def evidence_flops(context: int, features: int) -> float:
    """Operations for the evidence of one row: a distance and 4 kernels per context row and space, and the whitening."""
    return len(SPACES) * context * (2.0 * features + 16) + 2.0 * features**2


def step_flops(shape: ModelConfig, size: StepSize) -> float:
    """Operations of a forward and a backward pass; evidence and the drawing of data are not among them."""
    rows = size.context + size.queries
    forward = _context_pass(shape, size.context) + size.queries * _query_pass(shape, size.context)
    # nobody asks for the gradient of the inputs
    embedding = 2.0 * rows * _inputs(shape) * shape.width if shape.layers else 0.0
    return size.datasets * (3 * forward - embedding)


def step_bytes(shape: ModelConfig, size: StepSize, activation_bytes: int) -> float:
    """Bytes that a forward and a backward pass and the update move at least; activations of so many bytes a number."""
    h, f = shape.width, shape.feed_forward
    fused = size.queries * (len(CHANNELS) + 1.0) if shape.fusion else 0.0
    context_row = (10 if shape.routers else 8) * h + 2 * f
    encoded = size.context * (2 * h * shape.layers + context_row * max(0, shape.layers - 1))
    queried = size.queries * ((6 * h + 2 * f) * shape.layers + 2 * h)
    inputs = (size.context + size.queries) * (_inputs(shape) + h) if shape.layers else 0
    numbers = fused + (encoded + queried + inputs if shape.layers else 0)
    return size.datasets * _TOUCHES * activation_bytes * numbers + 4.0 * _WEIGHT_TOUCHES * parameters(shape)


def _inputs(shape: ModelConfig) -> int:
    return shape.raw_features + (len(CHANNELS) if shape.evidence else 0)


def _attention(shape: ModelConfig, queries: int, keys: int) -> float:
    """Projections of both sides, scores and mixing."""
    h = shape.width
    return 4.0 * h * h * (queries + keys) + 4.0 * h * queries * keys


def _context_pass(shape: ModelConfig, n: int) -> float:
    """From the context's features to what the queries of every layer see."""
    if not shape.layers:
        return 0.0
    h, r = shape.width, shape.routers
    mixed = _attention(shape, r, n) + _attention(shape, n, r) if r else _attention(shape, n, n)
    keys_values = 4.0 * h * h * n
    return (
        2.0 * n * _inputs(shape) * h
        + shape.layers * keys_values
        + (shape.layers - 1) * (mixed + 4.0 * h * shape.feed_forward * n)
    )


def _query_pass(shape: ModelConfig, n: int) -> float:
    """From the features of one query to its logit."""
    total = 2.0 * len(CHANNELS) if shape.fusion else 0.0
    if shape.layers:
        h = shape.width
        layer = 4.0 * h * h + 4.0 * h * n + 4.0 * h * shape.feed_forward
        total += 2.0 * _inputs(shape) * h + shape.layers * layer + 4.0 * h * h + 8.0 * h
    return total


class Ceilings(NamedTuple):
    """What a device reaches: operations a second in matrix products, bytes a second in copies (read plus written)."""

    flops: float
    bytes: float


@cache
def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Both ceilings, by a large matrix product in `dtype` and a large copy, each tried for a tenth of a second."""
    on_cpu = device.type == "cpu"
    n = 768 if on_cpu else 8192
    left, right = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    source = torch.randn((16 if on_cpu else 256) * 2**20, device=device)
    target = torch.empty_like(source)
    product = _best_time(lambda: left @ right, device)
    copy = _best_time(lambda: target.copy_(source), device)
    return Ceilings(2.0 * n**3 / product, 8.0 * source.numel() / copy)


def _best_time(work: Callable[[], object], device: torch.device, budget: float = 0.1) -> float:
    """Seconds of the fastest of several runs."""
    best, began = float("inf"), time.perf_counter()
    for turn in range(100):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        if turn:  # the first run warms up
            best = min(best, time.perf_counter() - start)
        if turn and time.perf_counter() - began > budget:
            break
    return best


def synchronize(device: torch.device) -> None:
    """Wait for a CUDA device; a CPU never is behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
