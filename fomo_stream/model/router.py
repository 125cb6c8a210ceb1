"""Layers of the router transformer: context rows exchange messages through routers, queries read context rows.

A query reads the context in one of two ways. With softmax attention (the paper's) it weighs every row by its own keys
and values. With mean attention all rows weigh the same, so every query reads the same vector: it is known as soon as
the context is encoded, and a query costs the same for any number of rows. Where the input already holds the distances
to the context (evidence), softmax attention learns almost equal weights, and the mean is a close substitute.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class KeysValues(NamedTuple):
    """Keys and values (B, heads, n, width / heads) of the context rows, as the queries of one layer see them."""

    keys: Tensor
    values: Tensor


class ContextMean(NamedTuple):
    """The one vector (B, 1, width) that every query of one layer reads from the context: its projected mean."""

    mean: Tensor


LayerCache = KeysValues | ContextMean


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

    def encode(self, rows: Tensor) -> KeysValues:
        """rows: (B, n, width)."""
        return KeysValues(self._split(self.key(rows)), self._split(self.value(rows)))

    def forward(self, rows: Tensor, cache: KeysValues) -> Tensor:
        """rows (B, q, width) attend to the rows in `cache`, the result of `encode`; returns (B, q, width)."""
        mixed = F.scaled_dot_product_attention(self._split(self.query(rows)), cache.keys, cache.values)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out

    def weights(self, rows: Tensor, cache: KeysValues) -> Tensor:
        """How much rows (B, q, width) attend to each of the n rows in `cache`: (B, heads, q, n), summing to one."""
        queries = self._split(self.query(rows))
        likeness: Tensor = queries @ cache.keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
        return likeness.softmax(-1)


class MeanAttention(nn.Module):
    """Attention with equal weights. It needs no queries, keys and heads, and the projections to values and to the
    output are one matrix, because the mean is linear. The projection starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def encode(self, rows: Tensor) -> ContextMean:
        """rows: (B, n, width)."""
        return ContextMean(self.project(rows.mean(1, keepdim=True)))

    def forward(self, rows: Tensor, cache: ContextMean) -> Tensor:
        """What each of rows (B, q, width) reads: (B, 1, width), the same for all."""
        return cache.mean


class Layer(nn.Module):
    """Post-norm layer: context rows meet through routers, queries read context rows (paper, section 3.2).

    mean: queries read the mean of the context; context rows meet by softmax attention all the same.
    """

    def __init__(self, width: int, heads: int, feed_forward: int, routers: int, mean: bool = False) -> None:
        super().__init__()
        if routers:
            self.routers = nn.Parameter(torch.randn(routers, width) * 0.02)
            self.collect = Attention(width, heads)
        else:
            self.register_parameter("routers", None)
        self.spread = Attention(width, heads)
        self.cross = MeanAttention(width) if mean else Attention(width, heads)
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
            source = self.collect(routers, self.collect.encode(rows))
        return self._finish(rows, self.spread(rows, self.spread.encode(source)))

    def queries(self, rows: Tensor, cache: LayerCache) -> Tensor:
        """Query rows (B, q, width) read the context rows that entered this layer; cache: `cross.encode` of these."""
        return self._finish(rows, self.cross(rows, cache))
