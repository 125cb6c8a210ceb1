"""Cost of training and scoring: operations, bytes moved, and the two ceilings of a machine (the roofline model).

Operations are those of matrix products, as torch counts them (a multiply and an add are two); norms, activations,
softmax, means and the fusion's 88 products per query are left out. The formulas below give only the numbers that torch
cannot count: the distances and kernels of evidence, and bytes. Bytes are a lower bound: every activation is written and
read once, every weight once per use, and attention scores stay on the chip, as in fused attention.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fomo_stream.model.evidence import CHANNELS, SPACES
from fomo_stream.model.zero_shot import Features, ModelConfig, ZeroShotModel

_TOUCHES = 5  # of an activation: written, read, read again by the backward pass, its gradient written and read
# of a weight: read twice, gradient written; the optimiser reads 4 and writes 3; the average is read and written
_WEIGHT_TOUCHES = 12
_TRIAL_SECONDS = 0.1  # for each ceiling


@dataclass(frozen=True)
class StepSize:
    """Size of one training step: number of datasets, and context and query rows in each."""

    datasets: int
    context: int
    queries: int


@cache
def parameters(shape: ModelConfig) -> int:
    """Number of trained parameters of a model."""
    return sum(parameter.numel() for parameter in _meta_model(shape).parameters())


def query_flops(shape: ModelConfig, context: int, features: int) -> float:
    """Operations to score one query of `features` numbers against an encoded context of `context` rows."""
    total = evidence_flops(context, features) if shape.fusion or shape.evidence else 0.0
    return total + _query_pass(shape, context)


def encode_flops(shape: ModelConfig, context: int, features: int) -> float:
    """Operations to encode a context once, with the logits of its own rows where the model computes them."""
    total = context * evidence_flops(context, features) if shape.fusion or shape.evidence else 0.0
    own = 0 if shape.raw_features else context * _query_pass(shape, context)
    return total + own + _count(shape, context, 2, False) - 2 * _query_pass(shape, context)


def evidence_flops(context: int, features: int) -> float:
    """Operations for the evidence of one row: a distance and 4 kernels per context row and space, and the whitening.

    A formula, because the kernels and part of the distances are not matrix products.
    """
    return len(SPACES) * context * (2.0 * features + 16) + 2.0 * features**2


def step_flops(shape: ModelConfig, size: StepSize) -> float:
    """Operations of a forward and a backward pass of the network, without evidence and the drawing of data.

    The number is a polynomial of degree 2 in the context rows (full attention is quadratic). So it is counted at three
    sizes only, once per model and number of queries, although every step has another context.
    """
    first, second, third = (_count(shape, n, size.queries, True) for n in (2, 3, 4))
    slope, bend = second - first, third - 2 * second + first
    n = size.context - 2
    return float(size.datasets * (first + n * slope + n * (n - 1) // 2 * bend))


def step_bytes(shape: ModelConfig, size: StepSize, activation_bytes: int) -> float:
    """Lower bound for the bytes that a training step moves; activation_bytes: size of one activation."""
    h, f = shape.width, shape.feed_forward
    fused = size.queries * (len(CHANNELS) + 1.0) if shape.fusion else 0.0
    context_row = (10 if shape.routers else 8) * h + 2 * f
    # softmax attention: keys and values of a context row, a query's projection, mixed values and output. Mean
    # attention: the mean of the context and its projection, once for all rows
    read, once, query_row = (0, 2 * h, 3 * h + 2 * f) if shape.attention == "mean" else (2 * h, 0, 6 * h + 2 * f)
    encoded = size.context * (read * shape.layers + context_row * max(0, shape.layers - 1)) + once * shape.layers
    queried = size.queries * (query_row * shape.layers + 2 * h)
    width = shape.raw_features + (len(CHANNELS) if shape.evidence else 0)
    inputs = (size.context + size.queries) * (width + h) if shape.layers else 0
    numbers = fused + (encoded + queried + inputs if shape.layers else 0)
    return size.datasets * _TOUCHES * activation_bytes * numbers + 4.0 * _WEIGHT_TOUCHES * parameters(shape)


def _query_pass(shape: ModelConfig, context: int) -> int:
    """Operations of the network for one more query: a forward pass is linear in the queries."""
    return _count(shape, context, 3, False) - _count(shape, context, 2, False)


@cache
def _count(shape: ModelConfig, context: int, queries: int, backward: bool) -> int:
    """Operations of the network for one dataset, counted on the meta device, which computes shapes only."""
    model = _meta_model(shape)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model.forward_features(_meta_features(shape, context), _meta_features(shape, queries))
        if backward:
            logits.sum().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def _meta_model(shape: ModelConfig) -> ZeroShotModel:
    with torch.device("meta"):
        return ZeroShotModel(shape)


def _meta_features(shape: ModelConfig, rows: int) -> Features:
    channels = torch.empty(1, rows, len(CHANNELS), device="meta") if shape.evidence or shape.fusion else None
    raw = torch.empty(1, rows, shape.raw_features, device="meta") if shape.raw_features else None
    return Features(channels, raw)


class Ceilings(NamedTuple):
    """Measured maxima of a device: operations per second in matrix products, bytes per second (read plus written)."""

    flops: float
    bytes: float


@cache
def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Both ceilings, by a large matrix product in `dtype` and a large copy, each repeated for _TRIAL_SECONDS."""
    on_cpu = device.type == "cpu"
    n = 768 if on_cpu else 8192
    left, right = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    source = torch.randn((16 if on_cpu else 256) * 2**20, device=device)
    target = torch.empty_like(source)
    product = _best_time(lambda: left @ right, device)
    copy = _best_time(lambda: target.copy_(source), device)
    return Ceilings(2.0 * n**3 / product, 8.0 * source.numel() / copy)


def _best_time(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several runs."""
    best, began = float("inf"), time.perf_counter()
    for turn in range(100):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        if turn:  # the first run warms up
            best = min(best, time.perf_counter() - start)
        if turn and time.perf_counter() - began > _TRIAL_SECONDS:
            break
    return best


def synchronize(device: torch.device) -> None:
    """Wait until a CUDA device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
