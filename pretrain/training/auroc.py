"""Area under the ROC curve for a batch of rankings."""

from __future__ import annotations

import torch
from torch import Tensor


def auroc(scores: Tensor, labels: Tensor) -> Tensor:
    """Probability that an outlier scores above an inlier; ties count half.

    scores: (B, q) or, for several scorers, (B, q, C); labels: (B, q), 1 = outlier, the same number in every dataset.
    Returns (B,) or (B, C), float64.
    """
    many = scores.unsqueeze(-1) if scores.ndim == 2 else scores
    many = many.double().nan_to_num(nan=0.0)
    outliers = int(labels[0].sum())
    order = labels.argsort(stable=True, dim=1)[..., None].expand_as(many)
    ranked = many.gather(1, order).transpose(1, 2)  # (B, C, q), inliers first
    normal, strange = ranked[..., :-outliers].contiguous().sort(-1).values, ranked[..., -outliers:].contiguous()
    below = torch.searchsorted(normal, strange, right=False)
    up_to = torch.searchsorted(normal, strange, right=True)
    area = (below + up_to).double().mean(-1) / (2 * normal.shape[-1])
    return area.squeeze(-1) if scores.ndim == 2 else area
