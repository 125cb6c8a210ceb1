"""Effects on the rows of a table from any prior: outliers in the context, repeated rows, missing values.

Each effect takes `amount` (B, 1), the affected share of each dataset, 0 = no effect; `draw_amounts` draws it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pretrain.priors.checks import Range
from pretrain.priors.draws import Draws


def draw_amounts(affected: float, amount: Range, draws: Draws, datasets: int) -> Tensor:
    """(B, 1): uniform over `amount` in a share `affected` of the datasets, 0 in the others."""
    return draws.uniform(datasets, 1, low=amount[0], high=amount[1]) * draws.chance(affected, datasets, 1)


def contaminated(context: Tensor, outliers: Tensor, amount: Tensor, draws: Draws) -> Tensor:
    """The context (B, n, D) with that share of its rows, at random positions, replaced by different outliers.

    outliers: (B, at least amount * n, D), none of which may be among the queries.
    """
    b, n, _ = context.shape
    place = draws.order(b, n)  # row i gets outlier place[i] if place[i] is below the number of outliers
    outlier = outliers.gather(1, place.clamp_max(outliers.shape[1] - 1)[..., None].expand_as(context))
    return torch.where((place < (amount * n).round())[..., None], outlier, context)


def repeated(rows: Tensor, amount: Tensor, draws: Draws) -> Tensor:
    """Rows (B, n, D), each of which is a copy of another row with probability `amount`."""
    b, n, _ = rows.shape
    other = draws.integers(0, n - 1, b, n)
    index = torch.where(draws.chance(amount, b, n), other, torch.arange(n, device=rows.device))
    return rows.gather(1, index[..., None].expand_as(rows))


def with_gaps(context: Tensor, queries: Tensor, amount: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Context (B, n, D) and queries (B, q, D) with about that share of missing values, different in each column.

    A missing value is replaced by the median of the feature in the context, as in inference. Whether a value is missing
    does not depend on its row.
    """
    b, _, d = context.shape
    chance = (amount[..., None] * 2 * draws.uniform(b, 1, d)).clamp_max(0.9)
    gone = draws.chance(chance, *context.shape)
    # the median of the other values; the limit of 0.9 above leaves some in nearly every column
    middle = torch.where(gone, torch.nan, context).nanmedian(1, keepdim=True).values
    middle = torch.where(middle.isnan(), context[:, :1], middle)
    return torch.where(gone, middle, context), torch.where(draws.chance(chance, *queries.shape), middle, queries)
