"""Scoring NumPy rows against a context, by the kernel of the model: compiled by numba on a CPU, or torch.

A context is encoded once (`encode_rows`) and then scores any number of rows (`logits_of`). The two kernels give the
same logits up to rounding, but not the same last digits, so an encoded context belongs to the kernel that made it. It
can be saved as named arrays (`flatten`, `unflatten`).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fomo_stream.model.zero_shot import ContextCache, ZeroShotModel

Float = NDArray[np.float64]

Arrays = dict[str, NDArray[Any]]
Tree = TypeVar("Tree")


def flatten(tree: Any, name: str) -> Arrays:
    """The tensors, arrays and numbers in nested named tuples, data classes and tuples, by path; None is left out."""
    if tree is None:
        return {}
    if isinstance(tree, Tensor):
        return {name: tree.detach().cpu().contiguous().numpy()}
    if isinstance(tree, (np.ndarray, int, float)):
        return {name: np.array(tree)}
    if is_dataclass(tree):
        parts: list[tuple[Any, Any]] = [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    else:
        parts = list(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    arrays: Arrays = {}
    for part, value in parts:
        arrays |= flatten(value, f"{name}.{part}")
    return arrays


def unflatten(kind: type[Tree], arrays: Arrays, name: str, device: torch.device) -> Tree:
    """The tree of that kind from the arrays of `flatten`, bit for bit. Raises KeyError when some are missing."""
    tree: Tree = _build(kind, arrays, name, device)
    return tree


def _build(kind: Any, arrays: Arrays, name: str, device: torch.device) -> Any:
    if get_origin(kind) is UnionType:  # X | None, or named tuples whose fields have different names
        if not any(key == name or key.startswith(f"{name}.") for key in arrays):
            return None
        kind = _option(kind, arrays, name)
    if kind is Tensor:
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
    return next((option for option in options[:-1] if parts & get_type_hints(option).keys()), options[-1])


if TYPE_CHECKING:
    from fomo_stream.model.compiled import CompiledContext

EncodedContext: TypeAlias = "ContextCache | CompiledContext"


def canonical_order(rows: Float) -> NDArray[np.int64]:
    """The order (n,) in which `encode_rows` puts rows (n, d)."""
    return np.lexsort(rows.T[::-1])


def encode_rows(model: ZeroShotModel, rows: Float) -> EncodedContext:
    """Encode one context (n, d), raw units, NaN = missing, for `logits_of`; 2 <= n <= 5,000.

    Rows are sorted first, so that their order changes nothing in the encoding. Raises SchemaError for a context that
    does not fit the model.
    """
    order = canonical_order(rows)
    if model.kernel == "numba":
        from fomo_stream.model import compiled

        context = compiled.encode_context(model, rows[order])
        return replace(context, own=context.own[np.argsort(order)])
    cache = encode_with_torch(model, rows[order])
    if cache.own is None:
        return cache
    return replace(cache, own=cache.own[:, torch.from_numpy(np.argsort(order)).to(model.device)])


def encode_with_torch(model: ZeroShotModel, rows: Float) -> ContextCache:
    """`encode_context` of a NumPy array (n, d) in its order, by torch whatever the kernel."""
    with torch.inference_mode():
        return model.encode_context(torch.from_numpy(rows).to(model.device))


def context_type(model: ZeroShotModel) -> type[EncodedContext]:
    """The type of the model's encoded contexts."""
    if model.kernel == "numba":
        from fomo_stream.model.compiled import CompiledContext

        return CompiledContext
    return ContextCache


def own_logits(context: EncodedContext) -> Float | None:
    """Logits (n,) of the encoded rows themselves, leave-one-out; None for a model of raw features."""
    if not isinstance(context, ContextCache):
        return context.own
    return None if context.own is None else context.own[0].cpu().numpy().astype(np.float64)


def logits_of(model: ZeroShotModel, context: EncodedContext, rows: Float) -> Float:
    """Logits (q,) of rows (q, d), raw units, NaN = missing, higher = more outlying.

    On one device a logit depends, to the last bit, on the row and the context alone. Raises SchemaError when the rows
    have another number of features than the context.
    """
    if not isinstance(context, ContextCache):
        from fomo_stream.model import compiled

        return compiled.score(model, context, rows)
    queries = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float64))
    with torch.inference_mode():
        scored = model.score_queries(context, queries.to(model.device))
    return scored.cpu().numpy().astype(np.float64)


def committee_logits(model: ZeroShotModel, rows: Float, members: NDArray[np.int64]) -> Float:
    """Logits (c, n) of rows (n, d) against c small contexts, the rows members[i] (m,) of them.

    By the fusion alone where the model has one: the transformer would cost more than it adds with so few rows.
    """
    if model.kernel == "numba" and model.config.fusion:
        from fomo_stream.model import compiled

        return compiled.committee_logits(model, rows, members)
    given = torch.from_numpy(rows).to(model.device)
    contexts, queries = given[torch.from_numpy(members)], given.expand(len(members), -1, -1)
    with torch.inference_mode():
        fuses = model.config.fusion
        logits: Tensor = model.fuse(model.describe(contexts, queries)[1]) if fuses else model(contexts, queries)
    return logits.double().cpu().numpy()


def encode_sample(model: ZeroShotModel, rows: Float) -> EncodedContext | None:
    """Encode a context of at most 32 rows (m, d), for `sample_logits`; None where a score by it would not be cheap.

    It is cheap where the kernel is compiled and the model has a fusion.
    """
    if model.kernel != "numba" or not model.config.fusion:
        return None
    from fomo_stream.model import compiled

    return compiled.encode_context(model, np.ascontiguousarray(rows), fusion_only=True)


def sample_logits(model: ZeroShotModel, context: EncodedContext, rows: Float) -> Float:
    """Logits (q,) of rows (q, d) against a context from `encode_sample`, by the fusion alone."""
    from fomo_stream.model import compiled

    assert isinstance(context, compiled.CompiledContext)
    return compiled.fuse(model, context, rows)


def warm_up(model: ZeroShotModel) -> None:
    """Compute something of every kind, so that nothing is compiled or loaded later."""
    rows = np.arange(12.0).reshape(6, 2)
    logits_of(model, encode_rows(model, rows), rows)
    committee_logits(model, rows, np.array([[0, 1]]))


def cross_scores(model: ZeroShotModel, rows: Float) -> Float:
    """Logits (n,) of context rows (n, d), each half scored against the other: typical scores of unseen inliers.

    The halves are contiguous, because neighbouring rows of a stream resemble each other more than future rows.

    With fewer than 4 rows, each is scored against all of them, including itself.
    """
    if len(rows) < 4:
        return logits_of(model, encode_rows(model, rows), rows)
    out = np.empty(len(rows))
    first = np.arange(len(rows)) < len(rows) // 2
    for half in (first, ~first):
        out[half] = logits_of(model, encode_rows(model, rows[~half]), rows[half])
    return out


def row_keys(rows: Float) -> list[bytes]:
    """One hashable key per row (n, d); equal rows have equal keys (-0.0 is 0.0, NaN is NaN)."""
    return [row.tobytes() for row in np.where(np.isnan(rows), np.nan, rows) + 0.0]
