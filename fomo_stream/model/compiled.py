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
from torch import Tensor

from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.evidence import whitening as whitening_by_library
from fomo_stream.model.imputation import VALUE_LIMIT, fit_imputation, impute
from fomo_stream.model.kernel_weights import weights_of
from fomo_stream.model.kernels import evidence as kernels
from fomo_stream.model.kernels.arithmetic import STRIDE
from fomo_stream.model.kernels.committee import fuse_rows
from fomo_stream.model.kernels.context_network import encode_channels
from fomo_stream.model.kernels.fit import own_channels, own_statistics, project_all
from fomo_stream.model.kernels.neighbours import BLOCK, FAR, LANES, LIMIT
from fomo_stream.model.kernels.network import Read, describe_rows, score_channels, score_rows
from fomo_stream.model.kernels.whitening import MOST_FEATURES, moments, whitening
from fomo_stream.model.quantile_map import constant_scale, fit_knots
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]


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


def score(model: ZeroShotModel, context: CompiledContext, rows: Float, fusion_only: bool = False) -> Float:
    """Logits (q,) of rows (q, d), raw units, NaN = missing."""
    d = len(context.transform.center)
    if rows.shape[-1] != d:
        raise SchemaError(f"the context has {d} features, the query rows have {rows.shape[-1]}")
    weights, _ = weights_of(model)
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
