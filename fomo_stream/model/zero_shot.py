"""The zero-shot model: context rows in, one logit per query row out, no training on the user's data.

`encode_context` does everything that depends on the context alone, once; `score_queries` then costs a query one
comparison with the context. There are three kinds of model (`config`):

- the paper's transformer on raw features. Context rows exchange messages through routers; a query weighs every context
  row by its own keys and values, with softmax attention;
- kernel router attention: a query weighs context rows by their distance; see `kernel_attention`;
- a fusion: a weighted sum of evidence channels; see `evidence`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.completion import Completion
from fomo_stream.model.evidence import Evidence, evidence_channels, fit_evidence, fit_views, views_of
from fomo_stream.model.kernel_attention import KernelCache, KernelNetwork
from fomo_stream.model.preprocessing import (
    Imputation,
    Knots,
    fit_imputation,
    fit_knots,
    impute,
    to_normal,
    z_score_knots,
)


class KeysValues(NamedTuple):
    """Keys and values (B, heads, n, width / heads) of the context rows, as the queries of one layer see them."""

    keys: Tensor
    values: Tensor


LayerCache = KeysValues | KernelCache


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
        """Return how much rows (B, q, width) attend to each of the n rows in `cache`: (B, heads, q, n), summing to
        one."""
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
            source = self.collect(routers, self.collect.encode(rows))
        return self._finish(rows, self.spread(rows, self.spread.encode(source)))

    def queries(self, rows: Tensor, cache: KeysValues) -> Tensor:
        """Query rows (B, q, width) read the context rows that entered this layer; cache: `cross.encode` of these."""
        return self._finish(rows, self.cross(rows, cache))


# Queries per forward pass, on a CPU and on a GPU, which spends its time on launching the operations of a pass. On a
# device every pass has the same shape, so that a row's neighbours cannot change its bits.
TILE, GPU_TILE = 64, 512


# Raw inputs are limited: in the context's range they are below 4, but the tails of the quantile map have no end, and of
# far values the map knows nothing (see `bulk`). By dot products a row with an input of 1e6 is the only one that counts.
RAW_LIMIT = 8.0


class Features(NamedTuple):
    """The features of rows that a model reads: one of these, by its kind."""

    channels: Tensor | None  # (B, q, C) evidence, for a fusion
    raw: Tensor | None  # (B, q, D) for the paper's transformer
    views: Tensor | None = None  # (B, S, q, d) rows in each space, for kernel attention
    far: Tensor | None = None  # (B, n) which context rows have far values, see `bulk`


@dataclass(frozen=True)
class ContextCache:
    """An encoded context of n rows; immutable. `score_queries` needs nothing else."""

    n_rows: int
    d: int
    n_features: Tensor  # (B,)
    imputation: Imputation
    knots: Knots
    evidence: Evidence | None
    own: Tensor | None  # (B, n) logits of the context's own rows, leave-one-out; None without evidence
    layers: tuple[LayerCache, ...] = field(repr=False)
    completion: Completion | None = None  # completes NumPy rows that are scored; see `scoring`


class ZeroShotModel(nn.Module):
    """A fusion, or a transformer with softmax or kernel attention, by `config`.

    Parameters of the paper's presets: 4.89 M (D=100) and 4.87 M (D=20). As in the released model, those of the last
    layer's exchange between context rows are not used, because nothing reads its result.
    """

    def __init__(self, config: ModelConfig, name: str = "unnamed") -> None:
        super().__init__()
        self.config = config
        self.name = name
        self.tile = TILE  # queries per forward pass
        self.kernel = "torch"  # what computes logits of NumPy rows: "torch", or "numba" on a CPU (see `scoring`)
        self.compiled: Any = None  # the weights as the numba kernels read them, once they were needed
        if config.fusion:
            # softplus(raw) >= 0: no evidence may count for a row being normal. The start is a mean of the channels.
            self.fusion_raw = nn.Parameter(torch.full((len(config.channels),), -3.5))
            self.fusion_bias = nn.Parameter(torch.tensor(-1.0))
        if config.attention == "kernel":
            self.network = KernelNetwork(config)
        elif config.layers:
            self.embed = nn.Linear(config.raw_features, config.width)
            shape = (config.width, config.heads, config.feed_forward, config.routers)
            self.layers = nn.ModuleList(Layer(*shape) for _ in range(config.layers))
            last = nn.Linear(2 * config.width, 2)
            self.head = nn.Sequential(nn.Linear(config.width, 2 * config.width), nn.GELU(), last)

    @property
    def device(self) -> torch.device:
        """The device of the weights; rows have to be there, too."""
        return next(self.parameters()).device

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The weights by name."""
        return {name: value.detach().cpu().numpy() for name, value in self.state_dict().items()}

    def encode_context(
        self, rows: Tensor, n_features: Tensor | None = None, knots: tuple[Tensor, ...] | None = None
    ) -> ContextCache:
        """Everything that depends on the context alone.

        rows: (n, d) or a batch of contexts (B, n, d), raw units, NaN = missing, 2 <= n <= 5,000; n_features: (B,),
        zero padding beyond it, None = all d; knots: values and levels (d, k) of the quantile map, None = of the rows.
        Raises SchemaError for a context that is too small, too large, or wider than a raw-feature model takes.
        """
        cache, features = self._describe_context(rows, n_features, knots)
        layers = self.encode_features(features)
        # with raw inputs a row would attend to itself
        own = layers[0].own if layers and isinstance(layers[0], KernelCache) else None
        if features.channels is not None:
            own = self.fuse(features.channels)
        return replace(cache, own=own, layers=layers)

    def score_queries(self, cache: ContextCache, queries: Tensor) -> Tensor:
        """Logits of queries (q, d) or (B, q, d) against an encoded context: (q,) or (B, q), higher = more outlying.

        Queries run in padded tiles of `tile` rows: on one device a logit depends, to the last bit, on the query and the
        context alone.
        """
        flat = queries.dim() == 2
        x = queries.unsqueeze(0) if flat else queries
        if x.shape[-1] != cache.d:
            raise SchemaError(f"the context has {cache.d} features, the query rows have {x.shape[-1]}")
        q = x.shape[1]
        tiles = torch.split(F.pad(x, (0, 0, 0, -q % self.tile)), self.tile, dim=1) if q else ()
        scored = [self._score(self._describe(tile.contiguous(), cache), cache.layers) for tile in tiles]
        logits = torch.cat(scored, 1)[:, :q] if scored else x.new_zeros((len(x), 0))
        return logits.squeeze(0) if flat else logits

    def attention_weights(self, cache: ContextCache, queries: Tensor) -> Tensor:
        """Attention weights of queries (B, q, d) in the last layer, averaged over heads: (B, q, n) over the rows of the
        encoded context; those of a query sum to one. The model must have them (`config.attends`)."""
        described = self._describe(queries, cache)
        if described.views is not None:
            encoded = cache.layers[0]
            assert isinstance(encoded, KernelCache)
            return self.network.weights(described.views, encoded)
        z = self.embed(described.raw)
        for layer, encoded in zip(self.layers[:-1], cache.layers, strict=False):
            assert isinstance(layer, Layer)
            assert isinstance(encoded, KeysValues)
            z = layer.queries(z, encoded)
        last, encoded = self.layers[-1], cache.layers[-1]
        assert isinstance(last, Layer)
        assert isinstance(encoded, KeysValues)
        return last.cross.weights(z, encoded).mean(1)

    def forward(self, context: Tensor, queries: Tensor, n_features: Tensor | None = None) -> Tensor:
        """One full pass, for training: context (B, n, d), queries (B, q, d), raw units -> logits (B, q)."""
        return self.forward_features(*self.describe(context, queries, n_features))

    def describe(self, context: Tensor, queries: Tensor, n_features: Tensor | None = None) -> tuple[Features, Features]:
        """Features of context and queries: the part of `forward` without weights."""
        cache, features = self._describe_context(context, n_features)
        return features, self._describe(queries, cache)

    def forward_features(self, context: Features, queries: Features) -> Tensor:
        """The rest of `forward`: logits (B, q)."""
        hidden = None
        if context.views is not None:
            hidden = self.network.mask(len(context.views))
            return self._score(queries, (self.network.encode(context.views, context.far, hidden),), hidden)
        if context.channels is not None and self.training and self.config.fusion_dropout:
            shown = torch.rand(len(context.channels), 1, len(self.config.channels), device=self.device)
            kept = 1 - self.config.fusion_dropout
            hidden = (shown < kept).float() / kept
        return self._score(queries, self.encode_features(context), hidden)

    def _describe_context(
        self, rows: Tensor, n_features: Tensor | None = None, quantiles: tuple[Tensor, ...] | None = None
    ) -> tuple[ContextCache, Features]:
        """A cache without layers, and the features of the context's own rows."""
        rows = rows.unsqueeze(0) if rows.dim() == 2 else rows
        b, n, d = rows.shape
        if not 2 <= n <= MAX_CONTEXT:
            raise SchemaError(f"a context has 2 to {MAX_CONTEXT} rows, this one has {n}")
        limit = self.config.raw_features
        if limit and d > limit:
            raise SchemaError(f"this model takes up to {limit} features, the rows have {d}; name the ones to use")
        if n_features is None:
            n_features = torch.full((b,), d, device=rows.device)
        imputation = fit_imputation(rows)
        rows = impute(rows, imputation)
        knots = fit_knots(rows)
        if quantiles is not None:
            values, levels = quantiles
            knots = Knots(values[None], levels[None], knots.scale)
        evidence = channels = views = far = None
        if self.config.attention == "kernel":
            evidence, views, far = fit_views(rows, n_features, knots, self.config.used_spaces)
        elif self.config.fusion:
            evidence, channels = fit_evidence(rows, n_features, knots, self.config.used_spaces)
        if not self.config.quantile:
            knots = z_score_knots(rows)
        cache = ContextCache(n, d, n_features, imputation, knots, evidence, None, ())
        return cache, Features(channels, self._raw_inputs(rows, cache), views, far)

    def _describe(self, queries: Tensor, cache: ContextCache) -> Features:
        """Features of raw queries (B, q, d)."""
        rows = impute(queries, cache.imputation)
        channels = None
        if cache.evidence is not None:
            if self.config.attention == "kernel":
                return Features(None, None, views_of(rows, cache.evidence, self.config.used_spaces))
            channels = evidence_channels(rows, cache.evidence, self.config.used_spaces)
        return Features(channels, self._raw_inputs(rows, cache))

    def _raw_inputs(self, rows: Tensor, cache: ContextCache) -> Tensor | None:
        """Quantile-transformed features (or z-scores), scaled by D / d and zero-padded to D: (B, q, D) (paper, 3.1)."""
        limit = self.config.raw_features
        if not limit:
            return None
        x = to_normal(rows, cache.knots).float().clamp(-RAW_LIMIT, RAW_LIMIT)
        width = cache.n_features[:, None, None]
        x = torch.where(torch.arange(cache.d, device=x.device) < width, x * (limit / width), 0.0)
        return F.pad(x, (0, limit - cache.d))

    def encode_features(self, context: Features) -> tuple[LayerCache, ...]:
        """The context as the queries of each layer read it."""
        if context.views is not None:
            return (self.network.encode(context.views, context.far),)
        if context.raw is None:
            return ()
        z, caches = self.embed(context.raw), list[LayerCache]()
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            caches.append(layer.cross.encode(z))
            if i + 1 < len(self.layers):  # nothing reads the context rows that leave the last layer
                z = layer.context(z)
        return tuple(caches)

    def _score(self, queries: Features, layers: tuple[LayerCache, ...], shown: Tensor | None = None) -> Tensor:
        """Logits (B, q) of query features against an encoded context. shown: factors of what is hidden in training."""
        if queries.channels is not None:
            return self.fuse(queries.channels, shown)
        if queries.views is not None:
            logits: Tensor = self.network(queries.views, layers[0], shown)
            return logits
        z = self.embed(queries.raw)
        for layer, cache in zip(self.layers, layers, strict=True):
            assert isinstance(layer, Layer)
            assert isinstance(cache, KeysValues)
            z = layer.queries(z, cache)
        out: Tensor = self.head(z)
        return out[..., 1] - out[..., 0]

    def fuse(self, channels: Tensor, shown: Tensor | None = None) -> Tensor:
        """Logits (B, q) of evidence channels (B, q, C)."""
        weights = F.softplus(self.fusion_raw)
        # a sum of products, not a matrix product: the same order of additions for every row
        if shown is not None:
            weights = weights * shown
        return (channels.to(weights.dtype) * weights).sum(-1) + self.fusion_bias
