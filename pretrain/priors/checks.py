"""Checks of settings. A ValueError names the setting and its allowed values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

Range = tuple[float, float]


def check_range(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Check a pair of numbers, the smaller first, both within [low, high]."""
    pair = isinstance(value, tuple | list) and len(value) == 2 and all(_is_number(v) for v in value)
    if not pair or not low <= value[0] <= value[1] <= high:
        within = f"at least {low:g}" if math.isinf(high) else f"within {low:g} to {high:g}"
        raise ValueError(f"{name} is a range: two numbers {within}, the smaller first, not {value!r}")


def check_share(name: str, value: Any) -> None:
    """Check a number from 0 to 1."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name} is a share: a number from 0 to 1, not {value!r}")


def check_weights(name: str, weights: Any, names: tuple[str, ...] = ()) -> None:
    """Check relative weights, the fields `names` (default: all) of a dataclass: at least 0 each, and not all 0."""
    names = names or tuple(f.name for f in fields(weights))
    values = {n: getattr(weights, n) for n in names}
    for each, value in values.items():
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{name}.{each} is a weight: a number of at least 0, not {value!r}")
    if not any(values.values()):
        raise ValueError(f"{name}: of the weights {', '.join(names)} at least one must be above 0")


def check_least(settings: Any, least: Mapping[str, float]) -> None:
    """Check fields of a dataclass. least: the minimum of each field by name."""
    for name, low in least.items():
        if not getattr(settings, name) >= low:
            raise ValueError(f"{name} must be at least {low:g}, not {getattr(settings, name)!r}")


def kind_of(annotation: Any) -> str:
    """The values that a field of this type accepts, as text for a message."""
    if get_origin(annotation) is UnionType:
        return " or ".join(kind_of(part) for part in get_args(annotation))
    if get_origin(annotation) is tuple:
        count = len(get_args(annotation))
        return "a range: two numbers" if count == 2 else f"{count} numbers"
    names = {float: "a number", int: "a whole number", bool: "True or False", str: "a name", NoneType: "none"}
    return names.get(annotation, "a group of settings")


def is_kind(value: Any, annotation: Any) -> bool:
    """Whether a field of this type accepts the value."""
    if get_origin(annotation) is UnionType:
        return any(is_kind(value, part) for part in get_args(annotation))
    if get_origin(annotation) is tuple:
        parts = get_args(annotation)
        fits = isinstance(value, tuple | list) and len(value) == len(parts)
        return fits and all(is_kind(each, part) for each, part in zip(value, parts, strict=True))
    if annotation is float:
        return _is_number(value)
    return isinstance(value, annotation) and not (annotation is int and isinstance(value, bool))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
