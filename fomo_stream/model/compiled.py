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

from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.evidence import whitening
from fomo_stream.model.imputation import VALUE_LIMIT, fit_imputation, impute
from fomo_stream.model.kernels import evidence as kernels
from fomo_stream.model.kernels.arithmetic import STRIDE
from fomo_stream.model.kernels.committee import fuse_rows
from fomo_stream.model.kernels.fit import own_channels, own_statistics, project_all
from fomo_stream.model.kernels.neighbours import BLOCK, FAR, LANES, LIMIT
from fomo_stream.model.kernels.network import Read, Weights, describe_rows, score_channels, score_rows
from fomo_stream.model.quantile_map import Knots, constant_scale, fit_knots
from fomo_stream.model.router import Attention, ContextMean, KeysValues, Layer, LayerCache
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
    if not 2 <= len(rows) <= MAX_CONTEXT:
        raise SchemaError(f"a context has 2 to {MAX_CONTEXT} rows, this one has {len(rows)}")
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
    read = read_of(model, layers)
    return CompiledContext(n, transform, described, read, score_channels(own, weights, read))


def score(model: ZeroShotModel, context: CompiledContext, rows: Float, fusion_only: bool = False) -> Float:
    """Logits (q,) of rows (q, d), raw units, NaN = missing."""
    d = len(context.transform.center)
    if rows.shape[-1] != d:
        raise SchemaError(f"the context has {d} features, the query rows have {rows.shape[-1]}")
    weights = weights_of(model)
    if fusion_only:
        weights = weights._replace(norms=weights.norms[:0])
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
    weights = weights_of(model)
    given = np.array(rows, dtype=np.float64, order="C")
    logits = []
    for of_one in members:
        context = encode_context(model, given[of_one], fusion_only=True)
        logits.append(fuse_rows(given, context.transform, context.described, weights.fusion, weights.fusion_bias))
    return np.stack(logits)


def _fit_transform(rows: Tensor, knots: Knots | None, fill: Tensor, known: Tensor) -> kernels.Transform:
    """The transform of complete rows (n, d)."""
    center, deviation = rows.mean(0), rows.std(0, correction=0)
    scale = constant_scale(center, deviation, len(rows))
    z = (rows - center) / scale
    knots = fit_knots(rows) if knots is None else knots
    levels = knots.levels.expand_as(knots.values)
    ends = torch.special.ndtri(levels[:, [0, -1]]).T
    whiten = whitening(z[None], torch.tensor([rows.shape[1]]))[0]
    arrays = (center, scale, knots.values, levels, knots.scale, ends, whiten)
    fill, known = fill.contiguous(), known.contiguous()
    return kernels.Transform(fill.numpy(), known.numpy(), VALUE_LIMIT, *(part.contiguous().numpy() for part in arrays))


def _describe(
    views: Float, transform: kernels.Transform, floor: float
) -> tuple[kernels.Described, NDArray[np.float32]]:
    """The described context of views (3, n, d), and the channels (n, C) of its own rows."""
    n = views.shape[1]
    x = np.clip(views, -LIMIT, LIMIT).astype(np.float32)
    columns = _in_blocks(x)
    statistics, own, bandwidth = own_statistics(x, columns, views[1], transform.ends, floor)
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


def read_of(model: ZeroShotModel, layers: tuple[LayerCache, ...]) -> Read:
    """The context as queries read it, from the torch model's `encode_features`."""
    config = model.config
    keys = np.zeros((0, config.heads, config.width // config.heads, 0), np.float32)
    values, mean = keys, np.zeros((0, config.width), np.float32)
    if attended := [layer for layer in layers if isinstance(layer, KeysValues)]:
        keys = _stack([layer.keys[0].transpose(1, 2) for layer in attended])
        values = _stack([layer.values[0].transpose(1, 2) for layer in attended])
    if means := [layer.mean[0, 0] for layer in layers if isinstance(layer, ContextMean)]:
        mean = _stack(means)
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
    crosses = [layer.cross for layer in layers if isinstance(layer.cross, Attention)]
    query, out = _matrix([cross.query for cross in crosses]), _matrix([cross.out for cross in crosses])
    expand = _matrix([layer.feed_forward[0] for layer in layers])
    reduce = _matrix([layer.feed_forward[2] for layer in layers])
    norms = [torch.stack([n.norm1.weight, n.norm1.bias, n.norm2.weight, n.norm2.bias]) for n in layers]
    assert isinstance(last, nn.Linear)
    difference = (last.weight[1] - last.weight[0]).detach().numpy().copy()
    last_bias = float(last.bias[1] - last.bias[0])
    return Weights(
        config.fusion, fusion, bias, embed[0][0], embed[1][0], config.attends, *query, *out, _stack(norms), *expand,
        *reduce, head[0][0], head[1][0], difference, last_bias,
    )  # fmt: skip


def _matrix(maps: list[nn.Module]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (n, inputs, outputs) and biases (n, outputs) of linear maps."""
    if not maps:
        return np.zeros((0, 0, 0), np.float32), np.zeros((0, 0), np.float32)
    linear = [m for m in maps if isinstance(m, nn.Linear)]
    return _stack([m.weight.T for m in linear]), _stack([m.bias for m in linear])
