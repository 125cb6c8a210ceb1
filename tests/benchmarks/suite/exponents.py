"""How costs grow: exponents of context rows, features and partitions, by least squares of logarithms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from .report import Measurement

SIZES = ("context", "features", "partitions")
COSTS = ("scoring", "build", "decode", "encode", "service CPU")


def exponents(measurements: Sequence[Measurement]) -> Iterator[Measurement]:
    """One for each size that varies among the measurements of a quantity, where there are enough of them."""
    groups: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for item in measurements:
        if item.name in COSTS:
            rest = tuple((name, value) for name, value in item.parameters.items() if name not in SIZES)
            groups[item.name, rest].append(item)
    for group in groups.values():
        fixed = {name: value for name, value in group[0].parameters.items() if name not in SIZES}
        for size, exponent in fit(group).items():
            yield Measurement("exponent", {"of": group[0].name, "in": size, **fixed}, exponent, "")


def fit(group: Sequence[Measurement]) -> dict[str, float]:
    """By size, a1, a2 ... of value = c * size1 ** a1 * size2 ** a2 ...; empty if the sizes do not determine them."""
    varying = [
        size
        for size in SIZES
        if all(size in item.parameters for item in group) and len({item.parameters[size] for item in group}) > 1
    ]
    logs = [[1.0, *(np.log(float(item.parameters[size])) for size in varying)] for item in group]
    matrix = np.array(logs)
    if not varying or np.linalg.matrix_rank(matrix) <= len(varying):
        return {}
    solution = np.linalg.lstsq(matrix, np.log([item.value for item in group]), rcond=None)[0]
    return dict(zip(varying, solution[1:].tolist(), strict=True))
