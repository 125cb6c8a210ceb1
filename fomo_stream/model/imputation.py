"""Imputation: missing values become the median of the context, and extreme values are limited."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

VALUE_LIMIT = 1e60  # keeps squares of raw values finite in float64


class Imputation(NamedTuple):
    """The values that replace missing ones, from a context, by `fit_imputation`."""

    fill: Tensor  # (B, 1, d) raw units
    known: Tensor  # (B, 1, d) bool: features with a value anywhere in the context


def fit_imputation(rows: Tensor) -> Imputation:
    """The medians of context rows (B, n, d) float64, NaN or infinite = missing; 0 for a feature without any value."""
    present = torch.isfinite(rows)
    middle = torch.where(present, rows, torch.nan).nanmedian(dim=1, keepdim=True).values
    return Imputation(torch.nan_to_num(middle).clamp(-VALUE_LIMIT, VALUE_LIMIT), present.any(1, keepdim=True))


def impute(rows: Tensor, imputation: Imputation) -> Tensor:
    """Rows (B, q, d) with missing values replaced and sizes limited.

    A feature without any value in the context is always replaced, so that it does not count.
    """
    return torch.where(torch.isfinite(rows) & imputation.known, rows, imputation.fill).clamp(-VALUE_LIMIT, VALUE_LIMIT)
