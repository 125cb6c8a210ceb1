"""Labelled datasets: the rows that a prior draws, and the batch of contexts and queries made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.priors.draws import Draws


@dataclass
class Tables:
    """Raw rows of B datasets before the split. inliers: (B, n, D); outliers: (B, m, D); n_features: (B,) int64.

    Rows are in random order; columns from n_features[b] on are exactly zero.
    """

    inliers: Tensor
    outliers: Tensor
    n_features: Tensor


@dataclass
class Batch:
    """Datasets of one training step. Rows are raw (unscaled); columns from n_features[b] on are exactly zero.

    context: (B, n, D), inliers; queries: (B, q, D); labels: (B, q) float32, 1 = outlier, half of them, shuffled;
    n_features: (B,) int64.
    """

    context: Tensor
    queries: Tensor
    labels: Tensor
    n_features: Tensor


def split(inliers: Tensor, outliers: Tensor, n_features: Tensor, draws: Draws, context: int, queries: int) -> Batch:
    """Make a batch: `context` inliers, and `queries` rows in balanced halves, shuffled.

    inliers: (B, >= context + queries // 2, D), in random order; outliers: (B, >= queries - queries // 2, D).
    """
    test_in, test_out = queries // 2, queries - queries // 2
    rows = torch.cat([inliers[:, context : context + test_in], outliers[:, :test_out]], 1)
    order = draws.order(len(rows), queries)
    labels = (order >= test_in).to(torch.float32)
    rows = rows.gather(1, order[..., None].expand_as(rows))
    return Batch(inliers[:, :context].contiguous(), rows, labels, n_features)


def joined(batches: Sequence[Batch]) -> Batch:
    """The datasets of all batches, of the same numbers of rows, in one that is as wide as the widest."""
    n_features = torch.cat([batch.n_features for batch in batches])
    width = max(batch.context.shape[-1] for batch in batches)

    def padded(rows: Tensor) -> Tensor:
        return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]))

    context, queries = (
        torch.cat([padded(getattr(batch, name)) for batch in batches]) for name in ("context", "queries")
    )
    return Batch(context, queries, torch.cat([batch.labels for batch in batches]), n_features)
