"""Encoded contexts as named arrays and back, so that they can be saved."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    found: Any = _build(kind, arrays, name, device)
    return found  # type: ignore[no-any-return]


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
