"""Random draws from one seeded generator, on one device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def stream_seed(seed: int, *path: int) -> int:
    """A 63-bit seed for the random stream with this `path` (a step, an epoch, ...). Similar paths give unrelated seeds.

    Every batch has a stream of its own, so it depends only on (seed, step). A resumed run needs no saved generator
    state.
    """
    state = seed & _MASK
    for part in path:  # SplitMix64 (Steele et al. 2014), once per element of the path
        state = (state + 0x9E3779B97F4A7C15 * (part + 1)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


class Draws:
    """Random tensors of float32 (or int64, bool) from one generator. `shape` is always the shape of the result."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(seed)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device) * (high - low) + low

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def log_uniform(self, *shape: int, low: float, high: float) -> Tensor:
        return self.uniform(*shape, low=math.log(low), high=math.log(high)).exp()

    def chance(self, probability: float | Tensor, *shape: int) -> Tensor:
        """Bool, true with `probability`, a number or a tensor that broadcasts to `shape`."""
        return self.uniform(*shape) < probability

    def sign(self, *shape: int) -> Tensor:
        return self.chance(0.5, *shape).to(torch.float32) * 2 - 1

    def integers(self, low: int, high: int | Tensor, *shape: int) -> Tensor:
        """Uniform on {low, ..., high}, both included; `high` is a number or a tensor that broadcasts to `shape`."""
        span = high - low + 1
        offset = (self.uniform(*shape) * span).long()
        return low + torch.minimum(offset, torch.as_tensor(span - 1, device=self.device))

    def category(self, weights: Sequence[float] | Tensor, *shape: int) -> Tensor:
        """Indices 0..k-1 with probability proportional to `weights`: (k,), or (shape[0], k) for different weights
        per leading index."""
        table = torch.as_tensor(weights, dtype=torch.float32, device=self.device).cumsum(-1)
        table = table / table[..., -1:]
        wanted = self.uniform(*shape)
        flat = wanted.reshape(table.shape[0], -1) if table.ndim == 2 else wanted.reshape(-1)
        index = torch.searchsorted(table, flat, right=True).clamp_max(table.shape[-1] - 1)
        return index.reshape(shape)

    def order(self, *shape: int) -> Tensor:
        """Independent random permutations of 0..shape[-1]-1 along the last axis."""
        return self.uniform(*shape).argsort(-1)

    def subset(self, size: Tensor, allowed: Tensor) -> Tensor:
        """Bool like `allowed` (..., k): a random subset, `size` (...) of its true entries, or all if fewer."""
        keys = self.uniform(*allowed.shape).masked_fill(~allowed, 2.0)
        rank = keys.argsort(-1).argsort(-1)
        return (rank < size.unsqueeze(-1)) & allowed
