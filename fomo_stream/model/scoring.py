"""Scoring NumPy rows against a context, by the kernel of the model: compiled by numba on a CPU, or torch.

A context is encoded once (`encode_rows`) and then scores any number of rows (`logits_of`). The two kernels give the
same logits up to rounding, but not the same last digits, so an encoded context belongs to the kernel that made it. It
can be saved as named arrays (`flatten_arrays`, `unflatten_arrays`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.architecture import Model
from fomo_stream.model.bulk import without_far
from fomo_stream.model.completion import Completion
from fomo_stream.model.quantile_map import knots_of

Float = NDArray[np.float64]

Arrays = dict[str, NDArray[Any]]
Tree = TypeVar("Tree")


def flatten_arrays(tree: Any, name: str) -> Arrays:
    """The tensors, arrays and numbers in nested named tuples, data classes and tuples, by path; None is left out."""
    if tree is None:
        return {}
    if hasattr(tree, "detach"):  # a tensor; to ask for its type would load torch
        return {name: tree.detach().cpu().contiguous().numpy()}
    if isinstance(tree, (np.ndarray, int, float)):
        return {name: np.array(tree)}
    if isinstance(tree, Completion):
        return {}  # it is of rows that are known elsewhere, see `with_rows`
    if is_dataclass(tree):
        parts: list[tuple[Any, Any]] = [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    else:
        parts = list(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    arrays: Arrays = {}
    for part, value in parts:
        arrays |= flatten_arrays(value, f"{name}.{part}")
    return arrays


def unflatten_arrays(kind: type[Tree], arrays: Arrays, name: str, device: Any = None) -> Tree:
    """The tree of that kind from the arrays of `flatten_arrays`, bit for bit. Raises KeyError when some are missing.

    device: where its tensors are; None: the CPU.
    """
    tree: Tree = _build(kind, arrays, name, device)
    return tree


def _build(kind: Any, arrays: Arrays, name: str, device: Any) -> Any:
    if get_origin(kind) is UnionType:  # X | None, or named tuples whose fields have different names
        if not any(key == name or key.startswith(f"{name}.") for key in arrays):
            return None
        kind = _option(kind, arrays, name)
    if getattr(kind, "__module__", "").startswith("torch"):
        import torch

        return torch.from_numpy(np.array(arrays[name])).to(device)
    if get_origin(kind) is np.ndarray:
        return np.array(arrays[name])
    if kind in (int, float):
        return kind(arrays[name])
    if get_origin(kind) is tuple:  # tuple[X, ...]
        parts = {key.removeprefix(f"{name}.").split(".")[0] for key in arrays if key.startswith(f"{name}.")}
        return tuple(_build(get_args(kind)[0], arrays, f"{name}.{i}", device) for i in range(len(parts)))
    return kind(**{key: _build(hint, arrays, f"{name}.{key}", device) for key, hint in get_type_hints(kind).items()})


def _option(kind: Any, arrays: Arrays, name: str) -> Any:
    """The type of a union that the arrays were made from."""
    options = [option for option in get_args(kind) if option is not type(None)]
    parts = {key.removeprefix(f"{name}.").split(".")[0] for key in arrays if key.startswith(f"{name}.")}
    return min(options, key=lambda option: len(parts ^ get_type_hints(option).keys()))


if TYPE_CHECKING:
    from fomo_stream.model.compiled import CompiledContext
    from fomo_stream.model.kernels.handles import Handle
    from fomo_stream.model.zero_shot import ContextCache

EncodedContext: TypeAlias = "ContextCache | CompiledContext"


def canonical_order(rows: Float) -> NDArray[np.int64]:
    """The order (n,) in which `encode_rows` puts rows (n, d)."""
    order = rows[:, 0].argsort()
    first = rows[order, 0]
    return order if (first[1:] > first[:-1]).all() else np.lexsort(rows.T[::-1])  # more columns only if some are equal


def encode_rows(model: Model, rows: Float, quantiles: Sequence[Float] | None = None) -> EncodedContext:
    """Encode one context (n, d), raw units, NaN = missing, for `logits_of`; 2 <= n <= 5,000.

    Rows are sorted first, so that their order changes nothing in the encoding, and their gaps are filled (see
    `completion`). quantiles: of each column the values, ascending, whose quantile map is used; None: those of the rows.
    Raises SchemaError for a context that does not fit the model.
    """
    order = canonical_order(rows)
    completion = _completion(context_type(model), rows[order])
    if model.kernel == "numba":
        from fomo_stream.model import compiled

        context = compiled.encode_context(model, completion.rows, quantiles)
        return replace(context, own=context.own[np.argsort(order)], completion=completion)
    cache = replace(encode_with_torch(model, completion.rows, quantiles), completion=completion)
    return cache if cache.own is None else replace(cache, own=cache.own[:, np.argsort(order)])


def with_rows(context: EncodedContext, rows: Float) -> EncodedContext:
    """An encoding from `unflatten_arrays` with the rows (n, d) that it is of, which are not among its arrays."""
    return replace(context, completion=_completion(type(context), rows[canonical_order(rows)]))


def _completion(kind: type[EncodedContext], rows: Float) -> Completion:
    if kind.__name__ == "ContextCache":
        return Completion.of(rows)
    from fomo_stream.model import compiled

    return Completion.of(rows, compiled.completed, compiled.spreads_of)


def encode_with_torch(model: Model, rows: Float, quantiles: Sequence[Float] | None = None) -> ContextCache:
    """`encode_context` of a NumPy array (n, d) in its order, by torch; the model must be one of torch."""
    import torch

    torchs: Any = model
    knots = None
    if quantiles is not None:
        quantiles = [without_far(column) for column in quantiles]
        knots = tuple(torch.from_numpy(part).to(torchs.device) for part in knots_of(quantiles))
    with torch.inference_mode():
        cache: ContextCache = torchs.encode_context(torch.from_numpy(rows).to(torchs.device), knots=knots)
    return cache


def context_type(model: Model) -> type[EncodedContext]:
    """The type of the model's encoded contexts."""
    if model.kernel == "numba":
        from fomo_stream.model.compiled import CompiledContext

        return CompiledContext
    from fomo_stream.model.zero_shot import ContextCache

    return ContextCache


def own_logits(context: EncodedContext) -> Float | None:
    """Logits (n,) of the encoded rows themselves, leave-one-out; None for a model of raw features."""
    if context.own is None or isinstance(context.own, np.ndarray):
        return context.own
    own: Float = context.own[0].cpu().numpy().astype(np.float64)
    return own


def logits_of(model: Model, context: EncodedContext, rows: Float) -> Float:
    """Logits (q,) of rows (q, d), raw units, NaN = missing, higher = more outlying.

    On one device a logit depends, to the last bit, on the row and the context alone. Raises SchemaError when the rows
    have another number of features than the context.
    """
    if model.kernel == "numba":
        from fomo_stream.model import compiled

        assert isinstance(context, compiled.CompiledContext)
        return compiled.score_queries(model, context, rows)
    import torch

    if context.completion is not None and rows.shape[-1] == len(context.completion.known):
        rows = context.completion.fill(rows)

    torchs: Any = model
    queries = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float64))
    with torch.inference_mode():
        scored = torchs.score_queries(context, queries.to(torchs.device))
    logits: Float = scored.cpu().numpy().astype(np.float64)
    return logits


def handle_of(context: EncodedContext, *added: Any) -> Handle:
    """Return what the compiled kernels need of an encoded context, see `compiled.context_handle`; the model's must be
    numba."""
    from fomo_stream.model import compiled

    assert isinstance(context, compiled.CompiledContext)
    return compiled.context_handle(context, *added)


def score_in_views(
    model: Model, rows: Float, without: Float, views: NDArray[np.int64], contexts: NDArray[np.int64]
) -> Float:
    """Logits and votes (2, v, q) of q records in v views, by one call; see `kernels.view_scores.score_views`."""
    from fomo_stream.model import compiled

    return compiled.score_in_views_compiled(model, rows, without, views, contexts)


def cross_scores(model: Model, rows: Float, kept: NDArray[np.bool_] | None = None) -> Float:
    """Logits (n,) of context rows (n, d), each half scored against the other: typical scores of unseen inliers.

    The halves are contiguous, because neighbouring rows of a stream resemble each other more than future rows. kept:
    (n,) the rows that others are scored against, at least 2 of each half; None: all.

    With fewer than 4 rows, each is scored against all of them, including itself.
    """
    if len(rows) < 4:
        return logits_of(model, encode_rows(model, rows), rows)
    out = np.empty(len(rows))
    first = np.arange(len(rows)) < len(rows) // 2
    for half in (first, ~first):
        others = ~half if kept is None else ~half & kept
        out[half] = logits_of(model, encode_rows(model, rows[others]), rows[half])
    return out
