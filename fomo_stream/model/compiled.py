"""Scoring on a CPU with the compiled kernels: the same steps as the torch model, in float32, row by row.

For models on evidence channels. A context is fitted and queried by the same kernels: p-values of statistics compare a
row's with the context's own to the last bit, and another order of additions would break their ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.evidence import whitening as whitening_by_library
from fomo_stream.model.kernels import evidence as kernels
from fomo_stream.model.kernels.arithmetic import STRIDE
from fomo_stream.model.kernels.committee import fuse_rows
from fomo_stream.model.kernels.evidence import (
    MOST_FEATURES,
    moments,
    own_channels,
    own_statistics,
    project_all,
    whitening,
)
from fomo_stream.model.kernels.neighbours import BLOCK, FAR, LANES, LIMIT
from fomo_stream.model.kernels.network import (
    ContextWeights,
    Read,
    Weights,
    describe_rows,
    encode_channels,
    score_channels,
    score_rows,
)
from fomo_stream.model.preprocessing import VALUE_LIMIT, constant_scale, fit_imputation, fit_knots, impute
from fomo_stream.model.zero_shot import Attention, Layer, MeanAttention, ZeroShotModel

Float = NDArray[np.float64]
Single = NDArray[np.float32]


@dataclass(frozen=True)
class CompiledContext:
    """An encoded context of n rows for the kernels; immutable."""

    n_rows: int
    transform: kernels.Transform
    described: kernels.Described
    read: Read
    own: Float  # (n,) logits of the context's own rows, leave-one-out


def encode_context(model: ZeroShotModel, rows: Float, fusion_only: bool = False) -> CompiledContext:
    """Encode rows (n, d), raw units, NaN = missing, 2 <= n <= 5,000.

    fusion_only: without the transformer.
    """
    if not 2 <= len(rows) <= MAX_CONTEXT:
        raise SchemaError(f"a context has 2 to {MAX_CONTEXT} rows, this one has {len(rows)}")
    given = torch.from_numpy(rows)[None]
    imputation = fit_imputation(given)
    complete = impute(given, imputation)[0]
    n, d = rows.shape
    transform = _fit_transform(complete, imputation.fill[0, 0], imputation.known[0, 0])
    views, tails = project_all(complete.numpy(), transform)
    described, own = _describe(views, tails, 1e-4 * math.sqrt(d))
    weights, of_context = weights_of(model)
    if fusion_only:
        weights = weights._replace(norms=weights.norms[:0])
    read = Read(*encode_channels(own, weights, of_context))
    return CompiledContext(n, transform, described, read, score_channels(own, weights, read))


def score(model: ZeroShotModel, context: CompiledContext, rows: Float) -> Float:
    """Logits (q,) of rows (q, d), raw units, NaN = missing."""
    d = len(context.transform.center)
    if rows.shape[-1] != d:
        raise SchemaError(f"the context has {d} features, the query rows have {rows.shape[-1]}")
    weights, _ = weights_of(model)
    # A copy, because numba would compile once more for an array that is read-only or not contiguous.
    own = np.array(rows, dtype=np.float64, order="C")
    logits: Float = score_rows(own, context.transform, context.described, weights, context.read)
    return logits


def channels(context: CompiledContext, rows: Float) -> NDArray[np.float32]:
    """Evidence channels (q, C) of rows (q, d), raw units, NaN = missing."""
    found: NDArray[np.float32] = describe_rows(np.array(rows, order="C"), context.transform, context.described)
    return found


def committee_logits(model: ZeroShotModel, rows: Float, members: NDArray[np.int64]) -> Float:
    """Logits (c, n) of rows (n, d) by the fusion alone, against c contexts of m <= 32 rows: members (c, m) of them."""
    given = np.array(rows, dtype=np.float64, order="C")
    return np.stack([fuse(model, encode_context(model, given[of_one], fusion_only=True), given) for of_one in members])


def fuse(model: ZeroShotModel, context: CompiledContext, rows: Float) -> Float:
    """Logits (q,) of rows (q, d) by the fusion alone, against a context of at most 32 rows."""
    weights, _ = weights_of(model)
    given = np.array(rows, dtype=np.float64, order="C")
    logits: Float = fuse_rows(given, context.transform, context.described, weights.fusion, weights.fusion_bias)
    return logits


def _fit_transform(rows: Tensor, fill: Tensor, known: Tensor) -> kernels.Transform:
    """The transform of complete rows (n, d)."""
    center, deviation = torch.from_numpy(moments(rows.numpy()))
    scale = constant_scale(center, deviation, len(rows))
    z = (rows - center) / scale
    knots = fit_knots(rows)._replace(scale=scale)  # of the same rows, but torch adds in an order of its own
    levels = knots.levels.expand_as(knots.values).contiguous()
    ends = torch.from_numpy(kernels.outer_quantiles(levels.numpy()))
    d = rows.shape[1]
    if d <= MOST_FEATURES:
        whiten = torch.from_numpy(whitening(z.numpy()))
    else:
        whiten = whitening_by_library(z[None], torch.tensor([d]))[0]
    arrays = (center, scale, knots.values, levels, knots.scale, ends, whiten)
    fill, known = fill.contiguous(), known.contiguous()
    return kernels.Transform(fill.numpy(), known.numpy(), VALUE_LIMIT, *(part.contiguous().numpy() for part in arrays))


def _describe(views: Float, tails: Float, floor: float) -> tuple[kernels.Described, NDArray[np.float32]]:
    """The described context, and the channels (n, C) of its own rows: views (3, n, d), tail probabilities (n, d)."""
    n = views.shape[1]
    x = np.clip(views, -LIMIT, LIMIT).astype(np.float32)
    columns = _in_blocks(x)
    statistics, own, bandwidth = own_statistics(x, columns, tails, floor)
    ordered = np.sort(statistics.T, axis=1)
    median = ordered[:, (n - 1) // 2].copy()
    deviation = np.partition(np.abs(statistics - median), (n - 1) // 2, axis=0)[(n - 1) // 2]
    spread = 1.4826 * deviation + 0.05 * statistics.std(0) + 1e-6
    comparison = (median, spread, *as_tables(ordered.astype(np.float32)))
    described = kernels.Described(columns, own, bandwidth, floor, *comparison, kernels.rarities(n, False))
    return described, own_channels(statistics, *comparison, kernels.rarities(n, True))


def as_tables(ordered: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ascending rows (c, n) as tables of `count_smaller`, and the last values of their blocks."""
    count, n = ordered.shape
    padded = np.full((count, (n // STRIDE + 1) * STRIDE), np.inf, ordered.dtype)
    padded[:, :n] = ordered
    return padded, np.ascontiguousarray(padded[:, STRIDE - 1 : -1 : STRIDE])


def _in_blocks(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """(3, n, d) -> (3, blocks, d, width), padded with FAR."""
    spaces, n, d = x.shape
    width = min(BLOCK, -(-n // LANES) * LANES)
    blocks = -(-n // width)
    columns = np.full((spaces, d, blocks * width), FAR, np.float32)
    columns[:, :, :n] = x.transpose(0, 2, 1)
    return np.ascontiguousarray(columns.reshape(spaces, d, blocks, width).transpose(0, 2, 1, 3))


def weights_of(model: ZeroShotModel) -> tuple[Weights, ContextWeights]:
    """The weights for queries and for context rows; made once for each model, whose weights must not change then."""
    if model.compiled is None:
        layers = [layer for layer in model.layers if isinstance(layer, Layer)] if model.config.layers else []
        model.compiled = _for_queries(model, layers), _for_context(model, layers)
    weights: tuple[Weights, ContextWeights] = model.compiled
    return weights


def _for_queries(model: ZeroShotModel, layers: list[Layer]) -> Weights:
    config, channels = model.config, 2 * kernels.STATISTICS
    fusion, bias = np.zeros(channels), 0.0
    if config.fusion:
        # softplus, by `math`: the last digits of torch's depend on the processor
        fusion = np.array([math.log1p(math.exp(raw)) for raw in model.fusion_raw.tolist()])
        bias = float(model.fusion_bias)
    crosses = [layer.cross for layer in layers if isinstance(layer.cross, Attention)]
    embed, head = ([model.embed], [model.head[0]]) if layers else ([], [])
    last = [nn.Linear(1, 1)] if not layers else [model.head[2]]
    difference, last_bias = _outlier_minus_inlier(last[0])
    norms = [torch.stack([n.norm1.weight, n.norm1.bias, n.norm2.weight, n.norm2.bias]) for n in layers]
    return Weights(
        config.fusion,
        fusion,
        bias,
        *_first(_maps(embed)),
        config.attends,
        *_maps([cross.query for cross in crosses]),
        *_maps([cross.out for cross in crosses]),
        _stack(norms, 3),
        *_maps([layer.feed_forward[0] for layer in layers]),
        *_maps([layer.feed_forward[2] for layer in layers]),
        *_first(_maps(head)),
        difference,
        last_bias,
    )


def _for_context(model: ZeroShotModel, layers: list[Layer]) -> ContextWeights:
    crosses = [layer.cross for layer in layers]
    attended = [cross for cross in crosses if isinstance(cross, Attention)]
    routers = [layer.routers for layer in layers if layer.routers is not None]
    none = [torch.zeros(0, model.config.width)] * (len(layers) - len(routers))
    return ContextWeights(
        model.config.heads,
        *_maps([cross.project for cross in crosses if isinstance(cross, MeanAttention)]),
        *_maps([cross.key for cross in attended]),
        *_maps([cross.value for cross in attended]),
        _stack([*routers, *none], 3),
        *_attention([layer.collect for layer in layers if layer.routers is not None]),
        *_attention([layer.spread for layer in layers]),
    )


def _attention(parts: Sequence[Any]) -> tuple[Single, Single]:
    """Query, key, value and output maps of attentions: (n, 4, width, width) and biases (n, 4, width)."""
    if not parts:
        return np.zeros((0, 0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32)
    maps = [_maps([part.query, part.key, part.value, part.out]) for part in parts]
    return np.stack([weights for weights, _ in maps]), np.stack([bias for _, bias in maps])


def _maps(maps: Sequence[Any]) -> tuple[Single, Single]:
    """Weights (n, inputs, outputs) and biases (n, outputs) of linear maps."""
    return _stack([m.weight.T for m in maps], 3), _stack([m.bias for m in maps], 2)


def _first(maps: tuple[Single, Single]) -> tuple[Single, Single]:
    """Weights (inputs, outputs) and bias (outputs,) of the only map; without any, empty."""
    weights, bias = maps
    return (weights[0], bias[0]) if len(weights) else (np.zeros((0, 0), np.float32), np.zeros(0, np.float32))


def _outlier_minus_inlier(last: Any) -> tuple[Single, float]:
    """The last map as weights (inputs,) and a bias of the outlier's logit minus the inlier's."""
    weight, bias = last.weight.detach(), last.bias.detach()
    return np.ascontiguousarray((weight[-1] - weight[0]).numpy()), float(bias[-1] - bias[0])


def _stack(parts: Sequence[Tensor], dimensions: int) -> Single:
    if not parts:
        return np.zeros((0,) * dimensions, np.float32)
    return np.ascontiguousarray(torch.stack(list(parts)).detach().numpy())
