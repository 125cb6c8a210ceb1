"""Scoring on a CPU with the compiled kernels: the same steps as the torch model, in float32, row by row.

For a fusion and for kernel attention. A context is fitted and queried by the same kernels: p-values of statistics
compare a row's with the context's own to the last bit, and another order of additions would break their ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.architecture import NARROW, NOISE, SPACES, VALUE_LIMIT, Model
from fomo_stream.model.bulk import Bulk, without_far
from fomo_stream.model.compiled_attention import encode_by_attention, weights_of_attention
from fomo_stream.model.completion import NEAREST, Completion
from fomo_stream.model.kernels import statistics as kernels
from fomo_stream.model.kernels.column_spreads import median_deviations, spreads, standardised
from fomo_stream.model.kernels.fusion import FusionWeights, describe_rows, fuse, fuse_at
from fomo_stream.model.kernels.handles import Handle, address_of
from fomo_stream.model.kernels.lanes import LANES
from fomo_stream.model.kernels.neighbours import LIMIT
from fomo_stream.model.kernels.router_attention import AttentionContext, AttentionWeights, attend_at
from fomo_stream.model.kernels.row_completion import CompletionRows, complete
from fomo_stream.model.kernels.statistics import (
    MAX_FEATURES,
    moments,
    own_channels,
    own_statistics,
    project_all,
    sorting_keys,
    whitening_matrix,
)
from fomo_stream.model.kernels.view_scores import score_views
from fomo_stream.model.layout import Arrays, as_tables, in_blocks
from fomo_stream.model.quantile_map import SortedColumns, knots_of

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


LOCK = Lock()
ROWS_AT_ONCE = 4096  # rows that are scored together, so that memory is bounded


@dataclass(frozen=True)
class CompiledContext:
    """An encoded context of n rows for the kernels; immutable."""

    n_rows: int
    transform: kernels.Transform
    described: kernels.Described | AttentionContext
    read: Single  # what queries read of routers, see `kernels.router_attention.attend_rows`
    own: Float  # (n,) logits of the context's own rows, leave-one-out
    completion: Completion | None = None  # completes the rows that are scored; None: their gaps are the medians

    @cached_property
    def handle(self) -> Handle:
        """It alone, for `score_queries`."""
        return context_handle(self, 0.0, None, None, None, np.zeros(1), None, 0.0, 0.0)


def encode_context(model: Model, rows: Float, quantiles: Sequence[Float] | None = None) -> CompiledContext:
    """Encode rows (n, d), raw units, NaN = missing, 2 <= n <= 5,000, for `score_queries`.

    quantiles: of each column the values, ascending, that give its quantile map; None: those of the rows.
    """
    n, d = rows.shape
    if not 2 <= n <= MAX_CONTEXT:
        raise SchemaError(f"a context has 2 to {MAX_CONTEXT} rows, this one has {n}")
    complete, columns, fill, has_values = _filled(rows)
    uses = np.array([space in model.config.used_spaces for space in SPACES])
    if uses[1]:
        knots = knots_of([without_far(column) for column in (columns.each() if quantiles is None else quantiles)])
    else:  # no map: knots would be more than half of what is kept of a context
        knots = np.zeros((d, 1)), np.full((d, 1), 0.5)
    far = Bulk.of_sorted(columns).far(complete)
    transform = _fit_transform(uses, complete, far, fill, has_values, *knots)
    views, tails = project_all(complete, transform)
    views = views[uses]
    # usually none is: NumPy is slow at `any` over short rows
    is_far = far.any(axis=1) if far.any() else np.zeros(n, dtype=bool)
    weights = weights_of(model)
    if isinstance(weights, AttentionWeights):
        return CompiledContext(n, transform, *encode_by_attention(views, np.asarray(is_far), weights))
    described, own = _describe(views, tails if uses[1] else None, 1e-4 * math.sqrt(d), np.asarray(~is_far))
    logits = np.empty(n)
    fuse(own, weights, logits)
    return CompiledContext(n, transform, described, np.zeros((0, 0), np.float32), logits)


def _filled(rows: Float) -> tuple[Float, SortedColumns, Float, Bool]:
    """Rows (n, d) with gaps and infinite values filled and sizes limited; their columns, sorted; what fills gaps (d,);
    and which columns have values (d,)."""
    n, d = rows.shape
    columns = SortedColumns.of(rows)
    if (columns.counts == n).all() and np.abs(columns.values[:, [0, -1]]).max(initial=0.0) <= VALUE_LIMIT:
        return rows, columns, columns.values[:, (n - 1) // 2].copy(), np.ones(d, dtype=bool)
    finite = np.isfinite(rows)
    columns = SortedColumns.of(np.where(finite, rows, np.nan))
    has_values = columns.counts > 0
    medians = columns.values[np.arange(d), np.maximum(columns.counts - 1, 0) // 2]
    fill = np.clip(np.where(has_values, medians, 0.0), -VALUE_LIMIT, VALUE_LIMIT)
    filled = np.clip(np.where(finite, rows, fill), -VALUE_LIMIT, VALUE_LIMIT)
    return filled, SortedColumns.of(filled), fill, has_values


def score_queries(model: Model, context: CompiledContext, rows: Float) -> Float:
    """Logits (q,) of rows (q, d), raw units, NaN = missing."""
    d = len(context.transform.center)
    if rows.shape[-1] != d:
        raise SchemaError(f"the context has {d} features, the query rows have {rows.shape[-1]}")
    # A copy, because numba would compile once more for an array that is read-only or not contiguous.
    own, logits, views = np.array(rows, dtype=np.float64, order="C"), np.empty(len(rows)), np.array([[0, d, 0]])
    handle = context.handle
    for start in range(0, len(own), ROWS_AT_ONCE):
        part = own[start : start + ROWS_AT_ONCE]
        contexts = np.full((1, len(part)), handle.address)
        logits[start : start + ROWS_AT_ONCE] = score_in_views_compiled(model, part, part, views, contexts)[0, 0]
    return logits


def score_in_views_compiled(model: Model, rows: Float, without: Float, views: Int, contexts: Int) -> Float:
    """Logits and votes (2, v, q), see `kernels.view_scores.score_views`. contexts: addresses of `context_handle`."""
    score = address_of(fuse_at if isinstance(weights_of(model), FusionWeights) else attend_at)
    scored: Float = score_views(rows, without, views, contexts, model.compiled[1].address, score)
    return scored


def context_handle(context: CompiledContext, *added: Any) -> Handle:
    """A context for `kernels.view_scores.score_views`. added, of a view: weight of extremes and of likeness; low and
    high ends (d,) of the ranges or None; its own logits (n,) ascending and the votes by rank (n + 1,); the handle of
    known outliers or None, the weight of the logit among them, and the one above which a record is not like them."""
    return Handle(context.transform, context.described, context.read, _completion_rows(context), added)


def _completion_rows(context: CompiledContext) -> CompletionRows:
    d, done = len(context.transform.center), context.completion
    if done is None:
        done = Completion(np.zeros((2, d)), np.zeros(d, dtype=bool), np.ones(d))
    return _rows_for_kernel(done)


def _rows_for_kernel(done: Completion) -> CompletionRows:
    padded = -(-len(done.rows) // LANES) * LANES
    center, most, columns = standardised(done.rows, done.known, done.scale, padded)
    return CompletionRows(done.rows, done.known, done.scale, center, most, columns, float(NEAREST))


def completed(context: Completion, rows: Float, lacking: Bool) -> Float:
    """Complete rows as `Completion.fill` does."""
    out = np.empty(rows.shape)
    complete(np.array(rows, order="C"), _rows_for_kernel(context), np.array(lacking.T, order="C"), out)
    return out


def spreads_of(rows: Float) -> Float:
    """Return the standard deviations (d,) of the columns of rows (n, d)."""
    deviations: Float = spreads(rows, np.ones(len(rows), dtype=bool))
    return deviations


def channels(context: CompiledContext, rows: Float) -> NDArray[np.float32]:
    """Evidence channels (q, C) of rows (q, d), raw units, NaN = missing."""
    assert isinstance(context.described, kernels.Described)
    described: NDArray[np.float32] = describe_rows(np.array(rows, order="C"), context.transform, context.described)
    return described


def _fit_transform(
    uses: Bool, rows: Float, far: Bool, fill: Float, has_values: Bool, values: Float, levels: Float
) -> kernels.Transform:
    """The transform of complete rows (n, d) with knots of these values and levels (d, k).

    far: (n, d) the values that tell nothing of what is usual; see `bulk`.
    """
    center, deviation = moments(rows)
    for j in np.flatnonzero(far.any(axis=0) | (deviation < NARROW * np.abs(center))):
        column = rows[~far[:, j], j, None]
        # around one of the values: else the sum of large ones has errors as large as their differences
        ((middle,), (deviation[j],)) = moments(column - column[0])
        center[j] = column[0, 0] + middle
    scale = numpy_constant_scale(center, deviation, len(rows))
    z = np.where(far, 0.0, (rows - center) / scale)
    whiten = whitening_matrix(z) if rows.shape[1] <= MAX_FEATURES else wide_whitening_matrix(z)
    ends = kernels.outer_quantiles(levels)
    return kernels.Transform(uses, fill, has_values, VALUE_LIMIT, center, scale, values, levels, scale, ends, whiten)


def numpy_constant_scale(center: Float, deviation: Float, n_rows: int) -> Float:
    """Spread (d,) to divide by, see `preprocessing.numpy_constant_scale`."""
    size = np.abs(center)
    stand_in = np.where(size > 0, size, 1.0) / math.sqrt(n_rows)
    return np.maximum(np.where(deviation > NOISE * size, deviation, stand_in), 1e-200)


def wide_whitening_matrix(z: Float) -> Float:
    """The inverse square root (d, d) of the shrunk covariance of z-scores (n, d), as `evidence.whitening`.

    The covariance of n < d rows has at most n eigenvalues other than those of its shrinkage, and they are those of the
    (n, n) products of the rows: so this costs n * d * d, and not d * d * d.
    """
    n, d = z.shape
    is_constant = (z * z).sum(axis=0) / n < 1e-12  # left as they are: a variance of 1
    z = np.where(is_constant, 0.0, z)
    products = z @ z.T / n if n < d else z.T @ z / n
    trace = float(np.trace(products)) + int(is_constant.sum())
    squares = float((products * products).sum()) + int(is_constant.sum())
    top, bottom = (1 - 2 / d) * squares + trace**2, (n + 1 - 2 / d) * (squares - trace**2 / d)
    rho = min(max(top / bottom, 0.0), 1.0) if bottom > 0 else 1.0
    values, vectors = np.linalg.eigh(products)
    if n < d:
        kept = values > 1e-12 * max(values[-1], 1e-300)
        values, vectors = values[kept], z.T @ vectors[:, kept] / np.sqrt(n * values[kept])
    least = rho * trace / d
    base = np.maximum(np.where(is_constant, 1.0 - rho, 0.0) + least, 1e-12) ** -0.5
    gain = np.maximum((1.0 - rho) * values + least, 1e-12) ** -0.5 - max(least, 1e-12) ** -0.5
    whiten: Float = (vectors * gain) @ vectors.T
    whiten[np.diag_indices(d)] += base
    return whiten


def _describe(
    views: Float, tails: Float | None, floor: float, near: Bool
) -> tuple[kernels.Described, NDArray[np.float32]]:
    """The described context, and the channels (n, C) of its own rows, in u spaces: views (u, n, d).

    tails: tail probabilities (n, d); None: ranks do not count. near: (n,) the rows without far values.
    """
    n = views.shape[1]
    x = np.clip(views, -LIMIT, LIMIT).astype(np.float32)
    columns = in_blocks(x)
    ranks = tails is not None
    tails = np.ones(views.shape[1:]) if tails is None else tails
    statistics, own, bandwidth = own_statistics(x, columns, tails, ranks, floor)
    keys = sorting_keys(statistics)
    keys.sort(axis=1)
    ordered = np.sort(np.ascontiguousarray(statistics.T), axis=1)
    median = ordered[:, (n - 1) // 2].copy()
    spread = 1.4826 * median_deviations(ordered) + 0.05 * spreads(statistics, near) + 1e-6
    tables = as_tables(ordered.astype(np.float32))
    described = kernels.Described(columns, own, bandwidth, floor, median, spread, *tables, kernels.rarities(n, False))
    return described, own_channels(statistics, keys, median, spread, kernels.rarities(n, True))


def weights_of(model: Model) -> FusionWeights | AttentionWeights:
    """The weights as the kernels read them; made once for each model, whose weights must not change then."""
    with LOCK:  # else another thread could replace a handle whose address is in use
        if model.compiled is None:
            kernel = model.config.attention == "kernel"
            made = weights_of_attention(model.config, model.arrays()) if kernel else _fusion(model.arrays())
            model.compiled = made, Handle(made)
    weights: FusionWeights | AttentionWeights = model.compiled[0]
    return weights


def _fusion(arrays: Arrays) -> FusionWeights:
    # softplus, by `math`: the last digits of libraries depend on the processor
    channels = np.array([math.log1p(math.exp(raw)) for raw in arrays["fusion_raw"].tolist()])
    return FusionWeights(channels, float(arrays["fusion_bias"]))
