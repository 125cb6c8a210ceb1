"""Scoring on a CPU with the compiled kernels: the same steps as the torch model, in float32, row by row.

For models on evidence channels. A context is fitted and queried by the same kernels: p-values of statistics compare a
row's with the context's own to the last bit, and another order of additions would break their ties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fomo_stream.model.evidence import whitening
from fomo_stream.model.imputation import VALUE_LIMIT, fit_imputation, impute
from fomo_stream.model.kernels import evidence as kernels
from fomo_stream.model.kernels.arithmetic import STRIDE
from fomo_stream.model.kernels.fit import own_channels, own_statistics, project_all
from fomo_stream.model.kernels.neighbours import BLOCK, FAR, LANES, LIMIT
from fomo_stream.model.kernels.network import Read, Weights, score_channels, score_rows
from fomo_stream.model.quantile_map import Knots, constant_scale, fit_knots
from fomo_stream.model.router import Layer, LayerCache
from fomo_stream.model.zero_shot import Features, ZeroShotModel

Float = NDArray[np.float64]


@dataclass(frozen=True)
class CompiledContext:
    """An encoded context of n rows for the kernels; immutable."""

    n_rows: int
    transform: kernels.Transform
    described: kernels.Described
    read: Read
    own: Float  # (n,) logits of the context's own rows, leave-one-out


def encode_context(
    model: ZeroShotModel, rows: Float, knots: Knots | None = None, fusion_only: bool = False
) -> CompiledContext:
    """Encode rows (n, d), raw units, NaN = missing, 2 <= n <= 5,000.

    knots: a quantile transform in place of one fitted on the rows. fusion_only: without the transformer.
    """
    given = torch.from_numpy(rows)[None]
    imputation = fit_imputation(given)
    complete = impute(given, imputation)[0]
    n, d = rows.shape
    transform = _fit_transform(complete, knots, imputation.fill[0, 0], imputation.known[0, 0])
    views = project_all(complete.numpy(), transform)
    described, own = _describe(views, transform, 1e-4 * math.sqrt(d))
    weights = weights_of(model)
    layers: tuple[LayerCache, ...] = ()
    if fusion_only:
        weights = weights._replace(norms=weights.norms[:0])
    else:
        with torch.inference_mode():
            layers = model.encode_features(Features(torch.from_numpy(own)[None], None))
    read = _read(model, layers)
    return CompiledContext(n, transform, described, read, score_channels(own, weights, read))


def score(model: ZeroShotModel, context: CompiledContext, rows: Float, fusion_only: bool = False) -> Float:
    """Logits (q,) of rows (q, d), raw units, NaN = missing."""
    weights = weights_of(model)
    if fusion_only:
        weights = weights._replace(norms=weights.norms[:0])
    logits: Float = score_rows(np.ascontiguousarray(rows), context.transform, context.described, weights, context.read)
    return logits


def _fit_transform(rows: Tensor, knots: Knots | None, fill: Tensor, known: Tensor) -> kernels.Transform:
    """The transform of complete rows (n, d)."""
    center, deviation = rows.mean(0), rows.std(0, correction=0)
    scale = constant_scale(center, deviation, len(rows))
    z = (rows - center) / scale
    knots = fit_knots(rows) if knots is None else knots
    levels = knots.levels.expand_as(knots.values).contiguous()
    ends = torch.special.ndtri(levels[:, [0, -1]]).T.contiguous()
    whiten = whitening(z[None], torch.tensor([rows.shape[1]]))[0].contiguous()
    arrays = (center, scale, knots.values.contiguous(), levels, knots.scale, ends, whiten)
    return kernels.Transform(fill.numpy(), known.numpy(), VALUE_LIMIT, *(part.numpy() for part in arrays))


def _describe(views: Float, transform: kernels.Transform, floor: float) -> tuple[kernels.Described, NDArray[np.float32]]:
    """The described context of views (3, n, d), and the channels (n, C) of its own rows."""
    n = views.shape[1]
    x = np.clip(views, -LIMIT, LIMIT).astype(np.float32)
    columns = _in_blocks(x)
    statistics, own, bandwidth = own_statistics(x, columns, views[1], transform.ends, floor)
    ordered = np.sort(statistics.T, axis=1)
    median = ordered[:, (n - 1) // 2].copy()
    deviation = np.partition(np.abs(statistics - median), (n - 1) // 2, axis=0)[(n - 1) // 2]
    spread = 1.4826 * deviation + 0.05 * statistics.std(0) + 1e-6
    comparison = (median, spread, *_as_tables(ordered.astype(np.float32)))
    described = kernels.Described(columns, own, bandwidth, floor, *comparison, kernels.rarities(n, False))
    return described, own_channels(statistics, *comparison, kernels.rarities(n, True))


def _as_tables(ordered: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
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


def _read(model: ZeroShotModel, layers: tuple[LayerCache, ...]) -> Read:
    config = model.config
    keys = np.zeros((0, config.heads, config.width // config.heads, 0), np.float32)
    values, mean = keys, np.zeros((0, config.width), np.float32)
    if layers:
        keys = _stack([layer.keys[0].transpose(1, 2) for layer in layers])
        values = _stack([layer.values[0].transpose(1, 2) for layer in layers])
    return Read(mean, keys, values)


def _stack(parts: list[Tensor]) -> NDArray[np.float32]:
    return np.ascontiguousarray(torch.stack(parts).detach().numpy())


def weights_of(model: ZeroShotModel) -> Weights:
    """The weights as the kernels read them; made once for each model, whose weights must not change then."""
    if model.compiled is None:
        model.compiled = _weights_of(model)
    found: Weights = model.compiled
    return found


def _weights_of(model: ZeroShotModel) -> Weights:
    config, channels = model.config, 2 * kernels.STATISTICS
    fusion, bias = np.zeros(channels), 0.0
    if config.fusion:
        fusion = nn.functional.softplus(model.fusion_raw).detach().double().numpy()
        bias = float(model.fusion_bias)
    if not config.layers:
        none = {
            name: np.zeros((0,) * dimensions, np.float32)
            for name, dimensions in (("embed", 2), ("query", 3), ("out", 3), ("norms", 3), ("expand", 3), ("reduce", 3))
        }
        biases = {f"{name}_bias": np.zeros((0, 0), np.float32) for name in ("query", "out", "expand", "reduce")}
        line = np.zeros(0, np.float32)
        return Weights(
            config.fusion, fusion, bias, embed_bias=line, attends=False, head=none["embed"], head_bias=line, last=line,
            last_bias=0.0, **none, **biases,
        )  # fmt: skip
    layers = [layer for layer in model.layers if isinstance(layer, Layer)]
    embed, head, last = _matrix([model.embed]), _matrix([model.head[0]]), model.head[2]
    query = _matrix([layer.cross.query for layer in layers])
    out = _matrix([layer.cross.out for layer in layers])
    expand = _matrix([layer.feed_forward[0] for layer in layers])
    reduce = _matrix([layer.feed_forward[2] for layer in layers])
    norms = [torch.stack([n.norm1.weight, n.norm1.bias, n.norm2.weight, n.norm2.bias]) for n in layers]
    difference = (last.weight[1] - last.weight[0]).detach().numpy().copy()
    last_bias = float(last.bias[1] - last.bias[0])
    return Weights(
        config.fusion, fusion, bias, embed[0][0], embed[1][0], True, *query, *out, _stack(norms), *expand, *reduce,
        head[0][0], head[1][0], difference, last_bias,
    )  # fmt: skip


def _matrix(maps: list[nn.Module]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (n, inputs, outputs) and biases (n, outputs) of linear maps."""
    return _stack([m.weight.T for m in maps]), _stack([m.bias for m in maps])
