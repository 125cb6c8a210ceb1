"""Kernel router attention: attention whose weights are a kernel of the distance between a query and a context row.

A head belongs to one of SPACES and to one of BANDWIDTHS, each twice as wide as the one before. Its weights are
softmax(-s |q - k|^2) over the n context rows. Besides the mixed values it returns -log(sum of exp(-s |q - k|^2) / n):
minus the log of a kernel density. So without any training the model is a detector by kernel densities, and what it
learns is added to that.

Distances are in units of the context's own: the median distance of its rows to their 5 nearest ones. Each density is
compared with those of the context's own rows, leave-one-out, as evidence channels are (see `evidence`).

The first layer knows only the rows' distances. In each further one a row also has learned coordinates, which are added
to the distances, and values, which others read. Context rows exchange messages through routers (paper, section 3.2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fomo_stream.model.architecture import BANDWIDTHS, COORDINATES, MESSAGE_KEYS, TIE, VALUES, ModelConfig

INPUT_LIMIT = 12.0  # of densities as inputs of the network; asinh grows slowly: 12 is 80,000 spreads out
OWN_DISTANCE = 1e30  # of a context row to itself: its weight is zero, and no gradient is infinite
ROWS = 512  # context rows at a time: the weights of 5,000 by 5,000 would take gigabytes


class KernelContext(NamedTuple):
    """The arrays that queries read of the n context rows in one layer. B contexts, S spaces, H heads, R routers."""

    keys: Tensor  # (B, S, n, COORDINATES) learned coordinates; in the first layer of size 0
    values: Tensor  # (B, H, n, VALUES); in the first layer of size 0
    median: Tensor  # (B, 1, H) of the rows' own -log densities, leave-one-out
    spread: Tensor  # (B, 1, H)
    ordered: Tensor  # (B, H, n) the same, ascending, each a little larger (TIE)
    messages: Tensor  # (B, R, width) of the routers


def squared_distances(x: Tensor, rows: Tensor) -> Tensor:
    """(..., q, d), (..., n, d) -> (..., q, n) float32. In float64 until the difference, as near rows cancel."""
    a, b = x.double(), rows.double()
    product = a @ b.transpose(-1, -2)
    return (a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2) - 2 * product).clamp(min=0).float()


def _negative_distances(x: Tensor, keys: Tensor) -> Tensor:
    """-|x - key|^2: (..., q, r), (..., n, r) -> (..., q, n)."""
    squares = x.square().sum(-1, keepdim=True) + keys.square().sum(-1).unsqueeze(-2)
    return (2 * x @ keys.transpose(-1, -2) - squares).clamp(max=0)


class KernelLayer(nn.Module):
    """One layer; see the module. first: rows have no coordinates, values and messages yet."""

    def __init__(self, config: ModelConfig, first: bool) -> None:
        super().__init__()
        self.spaces, width = len(config.used_spaces), config.width
        heads = self.spaces * BANDWIDTHS
        self.first = first
        # the narrowest bandwidth is a quarter of the unit; each further one is twice as wide
        self.log_precision = nn.Parameter(torch.full((self.spaces,), math.log(8.0)))
        self.mix = nn.Linear((0 if first else heads * VALUES) + 2 * heads, width)
        self.norm = nn.LayerNorm(width)
        hidden, last = nn.Linear(width, config.feed_forward), nn.Linear(config.feed_forward, width)
        self.feed_forward = nn.Sequential(hidden, nn.GELU(), last)
        starts_at_zero = [last]
        if not first:
            self.norm_read = nn.LayerNorm(width)
            self.coordinates = nn.Linear(width, self.spaces * COORDINATES, bias=False)
            nn.init.normal_(self.coordinates.weight, std=0.02)
            self.values = nn.Linear(width, heads * VALUES)
            if config.routers:
                self.routers = nn.Parameter(torch.randn(config.routers, MESSAGE_KEYS))
                self.log_router_precision = nn.Parameter(torch.tensor(-1.0))
                self.router_key, self.router_value = nn.Linear(width, MESSAGE_KEYS), nn.Linear(width, width)
                self.message = nn.Linear(width, width)
                starts_at_zero.append(self.message)
        for part in starts_at_zero:
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def encode(
        self, z: Tensor, views: Tensor, far: Tensor | None, shown: Tensor | None
    ) -> tuple[KernelContext, Tensor, Tensor]:
        """Context rows z (B, n, width) with views (B, S, n, d): what queries read, the rows for the next layer, and
        their densities (B, n, 2 H), leave-one-out. far: see `KernelNetwork.encode`; shown: (B, 1, 2 H) factors of the
        densities, in training."""
        b, n, _ = z.shape
        keys, values = self._coordinates(z), z.new_zeros(b, self.spaces * BANDWIDTHS, n, 0)
        if not self.first:
            values = self.values(self.norm_read(z)).unflatten(-1, (values.shape[1], VALUES)).transpose(1, 2)
        parts = []
        for start in range(0, n, ROWS):
            d2 = squared_distances(views[:, :, start : start + ROWS], views)
            here = torch.arange(start, min(n, start + ROWS), device=z.device)
            d2[..., here - start, here] = OWN_DISTANCE
            parts.append(self._attend(d2, keys[:, :, start : start + ROWS], keys, values, n - 1))
        odd, mixed = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        median = odd.median(1, keepdim=True).values
        # rows with far values say nothing about usual ones
        compared = odd if far is None else torch.where(far[..., None], median, odd)
        deviation = (compared - median).abs().median(1, keepdim=True).values
        spread = 1.4826 * deviation + 0.05 * compared.std(1, keepdim=True, correction=0) + 1e-3
        ordered = (compared + TIE * (1 + compared.abs())).detach().transpose(1, 2).contiguous().sort(-1).values
        context = KernelContext(keys, values, median, spread, ordered, self._messages(z))
        return context, *self._finish(z, odd, mixed, context, 0, shown)

    def read(self, z: Tensor, d2: Tensor, context: KernelContext, shown: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries z (B, q, width) at squared distances d2 (B, S, q, n): those for the next layer, and their densities
        (B, q, 2 H)."""
        odd, mixed = self._attend(d2, self._coordinates(z), context.keys, context.values, d2.shape[-1])
        return self._finish(z, odd, mixed, context, 1, shown)

    def weights(self, z: Tensor, d2: Tensor, context: KernelContext) -> Tensor:
        """Attention weights (B, H, q, n) of queries as in `read`."""
        return self._logits(d2, self._coordinates(z), context.keys).softmax(-1)

    def _coordinates(self, z: Tensor) -> Tensor:
        """(B, S, n, COORDINATES)"""
        if self.first:
            return z.new_zeros(len(z), self.spaces, z.shape[1], 0)
        flat = self.coordinates(self.norm_read(z))
        coordinates: Tensor = flat.unflatten(-1, (self.spaces, COORDINATES)).transpose(1, 2)
        return coordinates

    def _logits(self, d2: Tensor, x: Tensor, keys: Tensor) -> Tensor:
        """(B, H, q, n): -s |q - k|^2 of each head."""
        if not self.first:
            d2 = d2 - _negative_distances(x, keys)
        wider = 4.0 ** -torch.arange(BANDWIDTHS, device=d2.device)
        precisions = self.log_precision.exp()[:, None] * wider
        return (d2.unsqueeze(2) * -precisions[..., None, None]).flatten(1, 2)

    def _attend(self, d2: Tensor, x: Tensor, keys: Tensor, values: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """-log density (B, q, H), and mixed values (B, q, H VALUES)."""
        logits = self._logits(d2, x, keys)
        odd = (math.log(n) - logits.logsumexp(-1)).transpose(1, 2)
        if self.first:
            return odd, odd[..., :0]
        return odd, (logits.softmax(-1) @ values).transpose(1, 2).flatten(-2)

    def _messages(self, z: Tensor) -> Tensor:
        """Return the messages (B, R, width) that routers collect of context rows."""
        if self.first or not hasattr(self, "routers"):
            return z[:, :0]
        likeness = _negative_distances(self.routers.expand(len(z), -1, -1), self.router_key(z))
        likeness = likeness * self.log_router_precision.exp()
        messages: Tensor = likeness.softmax(-1) @ self.router_value(z)
        return messages

    def _finish(
        self, z: Tensor, odd: Tensor, mixed: Tensor, context: KernelContext, itself: int, shown: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Rows for the next layer and densities. itself: 1 if the p-value counts the row as one more, 0 if it is in the
        context already."""
        n = context.ordered.shape[-1]
        smaller = torch.searchsorted(context.ordered, odd.detach().transpose(1, 2).contiguous()).transpose(1, 2)
        rare = -torch.log10((n - smaller + itself).clamp(min=1) / (n + itself))
        far = torch.asinh(((odd - context.median) / context.spread).clamp(max=1e18))
        densities = torch.stack([far, rare.to(far.dtype)], -1).flatten(-2)
        densities = densities if shown is None else densities * shown
        z = z + self.mix(torch.cat([mixed, densities.clamp(-INPUT_LIMIT, INPUT_LIMIT)], -1))
        if context.messages.shape[1]:
            likeness = _negative_distances(self.router_key(z), self.router_key(context.messages))
            read = (likeness * self.log_router_precision.exp()).softmax(-1)
            z = z + self.message(read @ context.messages)
        return z + self.feed_forward(self.norm(z)), densities


class KernelCache(NamedTuple):
    """An encoded context of n rows."""

    views: Tensor  # (B, S, n, d) its rows in each space, in the space's unit
    layers: tuple[KernelContext, ...]
    own: Tensor  # (B, n) logits of its own rows, leave-one-out


class KernelNetwork(nn.Module):
    """All layers, and the logit: a weighted sum of all densities, plus what a head makes of the last rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.dropout = config.width, config.channel_dropout
        self.layers = nn.ModuleList(KernelLayer(config, first=i == 0) for i in range(config.layers))
        self.densities = 2 * len(config.used_spaces) * BANDWIDTHS
        # at least 0: no density may count for a row being normal. The start is a mean.
        self.weight = nn.Parameter(torch.full((config.layers * self.densities,), 1.5 / config.layers / self.densities))
        self.bias = nn.Parameter(torch.tensor(-1.0))
        self.norm = nn.LayerNorm(config.width)
        last = nn.Linear(2 * config.width, 1)
        self.head = nn.Sequential(nn.Linear(config.width, 2 * config.width), nn.GELU(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def mask(self, contexts: int) -> Tensor | None:
        """Factors (B, 1, 2 H) that hide some densities of a whole context, in training; else None."""
        if not (self.training and self.dropout):
            return None
        shown = torch.rand(contexts, 1, self.densities, device=self.bias.device) >= self.dropout
        return shown.float() / (1 - self.dropout)

    def encode(self, views: Tensor, far: Tensor | None = None, shown: Tensor | None = None) -> KernelCache:
        """The context rows with these views (B, S, n, d).

        far: which have far values (B, n), see `bulk`; None: no row. shown: of `mask`.
        """
        z = torch.zeros(len(views), views.shape[2], self.width, device=views.device)
        layers, densities = [], []
        for layer in self.layers:
            assert isinstance(layer, KernelLayer)
            context, z, of_layer = layer.encode(z, views, far, shown)
            layers.append(context)
            densities.append(of_layer)
        return KernelCache(views, tuple(layers), self._logits(z, densities))

    def forward(self, views: Tensor, cache: KernelCache, shown: Tensor | None = None) -> Tensor:
        """Logits (B, q) of queries with these views (B, S, q, d)."""
        return self._logits(*self._read(views, cache, len(self.layers), shown)[:2])

    def weights(self, views: Tensor, cache: KernelCache) -> Tensor:
        """Attention weights of queries in the last layer, averaged over heads: (B, q, n)."""
        z, _, d2 = self._read(views, cache, len(self.layers) - 1, None)
        last = self.layers[-1]
        assert isinstance(last, KernelLayer)
        return last.weights(z, d2, cache.layers[-1]).mean(1)

    def _read(
        self, views: Tensor, cache: KernelCache, layers: int, shown: Tensor | None
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Queries after so many layers (B, q, width), their densities in each, and their squared distances."""
        z = torch.zeros(len(views), views.shape[2], self.width, device=views.device)
        d2, densities = squared_distances(views, cache.views), []
        for layer, context in zip(self.layers[:layers], cache.layers, strict=False):
            assert isinstance(layer, KernelLayer)
            z, of_layer = layer.read(z, d2, context, shown)
            densities.append(of_layer)
        return z, densities, d2

    def _logits(self, z: Tensor, densities: list[Tensor]) -> Tensor:
        base = (torch.cat(densities, -1) * self.weight.relu()).sum(-1) + self.bias
        logits: Tensor = base + self.head(self.norm(z)).squeeze(-1)
        return logits
