"""Layers of the router transformer: context rows exchange messages through routers, queries read context rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class LayerCache(NamedTuple):
    """Keys and values (B, heads, n, width / heads) of the context rows as the queries of one layer see them."""

    keys: Tensor
    values: Tensor


class Attention(nn.Module):
    """Multi-head attention whose keys and values can be computed ahead. The output projection starts at zero."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def keys_values(self, rows: Tensor) -> LayerCache:
        """rows: (B, n, width)."""
        return LayerCache(self._split(self.key(rows)), self._split(self.value(rows)))

    def forward(self, rows: Tensor, cache: LayerCache) -> Tensor:
        """rows (B, q, width) attend to the cache from `keys_values`; returns (B, q, width)."""
        mixed = F.scaled_dot_product_attention(self._split(self.query(rows)), cache.keys, cache.values)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out

    def weights(self, rows: Tensor, cache: LayerCache) -> Tensor:
        """How much rows (B, q, width) attend to each of the n rows in `cache`: (B, heads, q, n), summing to one."""
        queries = self._split(self.query(rows))
        likeness: Tensor = queries @ cache.keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
        return likeness.softmax(-1)


class Layer(nn.Module):
    """Post-norm layer: context rows meet through routers, queries read context rows (paper, section 3.2)."""

    def __init__(self, width: int, heads: int, feed_forward: int, routers: int) -> None:
        super().__init__()
        if routers:
            self.routers = nn.Parameter(torch.randn(routers, width) * 0.02)
            self.collect = Attention(width, heads)
        else:
            self.register_parameter("routers", None)
        self.spread = Attention(width, heads)
        self.cross = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, feed_forward), nn.GELU(), nn.Linear(feed_forward, width))

    def _finish(self, rows: Tensor, attended: Tensor) -> Tensor:
        rows = self.norm1(rows + attended)
        out: Tensor = self.norm2(rows + self.feed_forward(rows))
        return out

    def context(self, rows: Tensor) -> Tensor:
        """Context rows (B, n, width) to the next layer's: O(R n) through routers, O(n^2) without."""
        source = rows
        if self.routers is not None:
            routers = self.routers.expand(len(rows), -1, -1)
            source = self.collect(routers, self.collect.keys_values(rows))
        return self._finish(rows, self.spread(rows, self.spread.keys_values(source)))

    def queries(self, rows: Tensor, cache: LayerCache) -> Tensor:
        """Query rows (B, q, width) read the context rows that entered this layer."""
        return self._finish(rows, self.cross(rows, cache))
