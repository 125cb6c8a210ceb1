"""The zero-shot model: context rows in, one logit per query row out, no training on the user's data.

`encode_context` does everything that depends on the context alone, once; `score_queries` then costs a query one
comparison with the context per space (evidence) and one cross-attention per layer (transformer). Presets go from a
fusion of evidence (89 numbers) to the transformer of the paper (4.9 M).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fomo_stream.errors import CheckpointError, SchemaError
from fomo_stream.evidence import CHANNELS, Evidence, Filling, complete, evidence_channels, fit_evidence, fit_filling
from fomo_stream.quantiles import Knots, fit_knots, to_normal

MAX_CONTEXT = 5000
TILE = 32  # queries per forward pass; every pass has this shape, so that a row's neighbours cannot change its bits
CHANNEL_LIMIT = 12.0  # asinh grows slowly: 12 is 80,000 spreads out


@dataclass(frozen=True)
class ModelConfig:
    """What a checkpoint's weights mean. Defaults: the fusion of evidence alone."""

    raw_features: int = 0  # D, raw inputs of the network after the quantile transform; 0 = none
    evidence: bool = True  # feed evidence channels to the network
    fusion: bool = True  # add the weighted sum of the evidence channels to the logit
    layers: int = 0  # L; 0 = no transformer
    width: int = 256  # h
    heads: int = 4
    feed_forward: int = 512
    routers: int = 500  # R; 0 = full attention between context rows
    channel_dropout: float = 0.0  # share of evidence channels hidden from the network per training step

    def __post_init__(self) -> None:
        if self.layers and not (self.raw_features or self.evidence):
            raise CheckpointError("a transformer needs raw_features, evidence, or both as input")
        if not self.layers and not self.fusion:
            raise CheckpointError("a model needs a fusion, a transformer, or both")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Reads what `asdict` wrote; unknown names mean another format version."""
        unknown = set(values) - {f for f in asdict(cls())}
        if unknown:
            raise CheckpointError(f"configuration has unknown entries {sorted(unknown)}; update fomo-stream")
        return cls(**values)


_SMALL = {"width": 64, "heads": 4, "feed_forward": 128, "routers": 32, "layers": 2, "channel_dropout": 0.5}
PRESETS: dict[str, ModelConfig] = {
    "paper-100": ModelConfig(raw_features=100, evidence=False, fusion=False, layers=4),
    "paper-20": ModelConfig(raw_features=20, evidence=False, fusion=False, layers=4),
    "fusion": ModelConfig(),
    "fusion-router": ModelConfig(**_SMALL),  # type: ignore[arg-type]
    "router": ModelConfig(**_SMALL, fusion=False),  # type: ignore[arg-type]
    "tiny": ModelConfig(layers=1, width=8, heads=2, feed_forward=16, routers=4),
}


class LayerCache(NamedTuple):
    """Keys and values (B, heads, n, width / heads) of the context rows as the queries of one layer see them."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class ContextCache:
    """An encoded context of n rows; immutable. `score_queries` needs nothing else."""

    n_rows: int
    d: int
    evidence: Evidence | None
    knots: Knots | None
    filling: Filling
    n_features: Tensor
    layers: tuple[LayerCache, ...] = field(repr=False)


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
        """rows (B, q, width) attend to what `keys_values` made; returns (B, q, width)."""
        mixed = F.scaled_dot_product_attention(self._split(self.query(rows)), cache.keys, cache.values)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class Layer(nn.Module):
    """Post-norm layer (paper, section 3.2): context rows exchange messages through routers, queries read context rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        if config.routers:
            self.routers = nn.Parameter(torch.randn(config.routers, width) * 0.02)
            self.collect = Attention(width, config.heads)
        else:
            self.register_parameter("routers", None)
        self.spread = Attention(width, config.heads)
        self.cross = Attention(width, config.heads)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, config.feed_forward), nn.GELU(), nn.Linear(config.feed_forward, width)
        )

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


class ZeroShotModel(nn.Module):
    """Evidence fusion, router transformer, or the transformer on top of the fusion, by `config`.

    Parameters of the paper's presets: 4.89 M (D=100) and 4.87 M (D=20), of which the last layer's exchange between
    context rows is never used (nothing reads it), as in the released model.
    """

    def __init__(self, config: ModelConfig, name: str = "unnamed") -> None:
        super().__init__()
        self.config = config
        self.name = name
        if config.fusion:
            # softplus(raw) >= 0: no evidence may speak for a row being normal. The start is a mean of the channels.
            self.fusion_raw = nn.Parameter(torch.full((len(CHANNELS),), -2.0))
            self.fusion_bias = nn.Parameter(torch.tensor(-2.0))
        if config.layers:
            inputs = config.raw_features + (len(CHANNELS) if config.evidence else 0)
            self.embed = nn.Linear(inputs, config.width)
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
            last = nn.Linear(2 * config.width, 2)
            self.head = nn.Sequential(nn.Linear(config.width, 2 * config.width), nn.GELU(), last)
            if config.fusion:  # start as the fusion; the transformer adds to it
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)

    @property
    def uses_evidence(self) -> bool:
        """Whether any part of the model reads evidence channels."""
        return self.config.fusion or self.config.evidence

    def encode_context(
        self, rows: Tensor, n_features: Tensor | None = None, knots: Knots | None = None
    ) -> ContextCache:
        """Everything the context alone decides.

        rows: (n, d) or a batch of contexts (B, n, d), raw units, NaN = missing, 2 <= n <= 5,000; n_features: (B,) with
        zero padding beyond it, None = all d; knots: a quantile transform to use in place of one fitted on the rows.
        Raises SchemaError for a context that is too small, too large, or wider than a raw-feature model takes.
        """
        return self._encode(rows, n_features, knots)[0]

    def _encode(
        self, rows: Tensor, n_features: Tensor | None = None, knots: Knots | None = None, hidden: Tensor | None = None
    ) -> tuple[ContextCache, Tensor | None]:
        rows = rows.unsqueeze(0) if rows.dim() == 2 else rows
        if not 2 <= rows.shape[1] <= MAX_CONTEXT:
            raise SchemaError(f"a context has 2 to {MAX_CONTEXT} rows, this one has {rows.shape[1]}")
        self._check_width(rows.shape[2])
        if n_features is None:
            n_features = torch.full((len(rows),), rows.shape[2], device=rows.device)
        if knots is not None:
            knots = Knots(*(part.to(rows).expand(len(rows), *part.shape[-knots.values.dim():]) if i != 1 else part.to(rows)
                            for i, part in enumerate(knots)))  # fmt: skip
        evidence, channels = fit_evidence(rows, n_features, knots) if self.uses_evidence else (None, None)
        filling = fit_filling(rows) if evidence is None else evidence.filling
        if evidence is not None:
            knots = evidence.knots
        elif knots is None:
            knots = fit_knots(complete(rows, filling))
        cache = ContextCache(rows.shape[1], rows.shape[2], evidence, knots, filling, n_features, ())
        if not self.config.layers:
            return cache, channels
        z = self._embed(rows, channels, cache, hidden)
        layers = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            layers.append(layer.cross.keys_values(z))
            if i + 1 < len(self.layers):  # nothing reads the context rows that leave the last layer
                z = layer.context(z)
        return ContextCache(cache.n_rows, cache.d, evidence, knots, filling, n_features, tuple(layers)), channels

    def score_queries(self, cache: ContextCache, queries: Tensor) -> Tensor:
        """Logits of queries (q, d) or (B, q, d) against an encoded context: (q,) or (B, q), higher = more outlying.

        Queries run in padded tiles of TILE rows: on one device a logit depends, to the last bit, on the query and the
        context alone.
        """
        flat = queries.dim() == 2
        x = queries.unsqueeze(0) if flat else queries
        if x.shape[-1] != cache.d:
            raise SchemaError(f"the context has {cache.d} features, the query rows have {x.shape[-1]}")
        q = x.shape[1]
        x = F.pad(x, (0, 0, 0, -q % TILE))
        tiles = [
            self._score_tile(cache, x[:, start : start + TILE].contiguous()) for start in range(0, x.shape[1], TILE)
        ]
        logits = torch.cat(tiles, 1)[:, :q] if tiles else x.new_zeros((len(x), 0))
        return logits.squeeze(0) if flat else logits

    def forward(self, context: Tensor, queries: Tensor, n_features: Tensor | None = None) -> Tensor:
        """One full pass, for training: context (B, n, d), queries (B, q, d) -> logits (B, q)."""
        hidden = self._hidden_channels(len(context), context.device)
        cache, _ = self._encode(context, n_features, hidden=hidden)
        return self._score_tile(cache, queries, hidden)

    def channels(self, context: Tensor, queries: Tensor, n_features: Tensor | None = None) -> Tensor:
        """Evidence channels (B, q, C) of the queries, in the order of `evidence.CHANNELS`."""
        if n_features is None:
            n_features = torch.full((len(context),), context.shape[2], device=context.device)
        return evidence_channels(queries, fit_evidence(context, n_features)[0]).float()

    def _check_width(self, d: int) -> None:
        limit = self.config.raw_features
        if limit and d > limit:
            raise SchemaError(f"this model takes up to {limit} features, the rows have {d}; name the ones to use")

    def _hidden_channels(self, batch: int, device: torch.device) -> Tensor | None:
        """Channel dropout: (B, 1, C) of factors, the same for every row of a dataset, in training only."""
        share = self.config.channel_dropout
        if not (self.training and share and self.config.layers and self.config.evidence):
            return None
        return (torch.rand(batch, 1, len(CHANNELS), device=device) >= share).float() / (1 - share)

    def _score_tile(self, cache: ContextCache, rows: Tensor, hidden: Tensor | None = None) -> Tensor:
        channels = None if cache.evidence is None else evidence_channels(rows, cache.evidence)
        logit = rows.new_zeros(rows.shape[:2], dtype=torch.float32)
        if channels is not None and self.config.fusion:
            logit = logit + self._fuse(channels)
        if self.config.layers:
            z = self._embed(rows, channels, cache, hidden)
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                assert isinstance(layer, Layer)
                z = layer.queries(z, layer_cache)
            out = self.head(z)
            logit = logit + (out[..., 1] - out[..., 0])
        return logit

    def _fuse(self, channels: Tensor) -> Tensor:
        weights = F.softplus(self.fusion_raw)
        # a sum of products, not a matrix product: the same order of additions for every row
        return (channels.to(weights.dtype) * weights).sum(-1) + self.fusion_bias

    def _embed(self, rows: Tensor, channels: Tensor | None, cache: ContextCache, hidden: Tensor | None) -> Tensor:
        """Network inputs (B, q, width) of raw rows and their channels."""
        dtype = self.embed.weight.dtype
        parts = []
        limit = self.config.raw_features
        if limit:
            assert cache.knots is not None
            x = to_normal(complete(rows, cache.filling), cache.knots).to(dtype)
            real = torch.arange(x.shape[-1], device=x.device) < cache.n_features[:, None, None]
            x = torch.where(real, x * (limit / cache.n_features[:, None, None]).to(dtype), 0.0)
            parts.append(F.pad(x, (0, limit - x.shape[-1])))
        if self.config.evidence:
            assert channels is not None
            inputs = channels.to(dtype).clamp(-CHANNEL_LIMIT, CHANNEL_LIMIT)
            parts.append(inputs if hidden is None else inputs * hidden)
        out: Tensor = self.embed(torch.cat(parts, -1))
        return out


def encode_rows(model: ZeroShotModel, rows: NDArray[np.float64], knots: Knots | None = None) -> ContextCache:
    """`encode_context` of one context (n, d) of plain numbers, raw units, NaN = missing.

    Rows are put in a canonical order first, so that the cache does not depend on theirs, to the last bit.
    """
    ordered = rows[np.lexsort(rows.T[::-1])]
    with torch.inference_mode():
        return model.encode_context(torch.from_numpy(ordered).to(_device(model)), knots=knots)


def logits_of(model: ZeroShotModel, cache: ContextCache, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """`score_queries` of plain numbers (q, d): logits (q,), float64."""
    queries = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float64))
    with torch.inference_mode():
        scored = model.score_queries(cache, queries.to(_device(model)))
    logits: NDArray[np.float64] = scored.cpu().numpy().astype(np.float64)
    return logits


def cross_scores(model: ZeroShotModel, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits (n,) of context rows (n, d), each half scored against the other: what unseen inliers would score.

    Fewer than 4 rows have no two halves that make contexts; they are scored against all of them, themselves included.
    """
    if len(rows) < 4:
        return logits_of(model, encode_rows(model, rows), rows)
    out = np.empty(len(rows))
    first = np.arange(len(rows)) % 2 == 0
    for half in (first, ~first):
        out[half] = logits_of(model, encode_rows(model, rows[~half]), rows[half])
    return out


def _device(model: ZeroShotModel) -> torch.device:
    return next(model.parameters()).device
