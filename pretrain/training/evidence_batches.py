"""The evidence channels of a training batch, computed once for the AUROC filter, the model and all later repetitions.

Evidence has no trained parameters, and on a CPU it costs several times as much as a small network. So a model without
raw inputs is trained on batches of evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fomo_stream.model.evidence import evidence_channels, fit_evidence
from pretrain.priors.datasets import Batch


@dataclass
class EvidenceBatch:
    """Evidence channels of one batch.

    context: (B, n, C), or (B, 0, C) for a model that does not read it; queries: (B, q, C); labels: (B, q);
    best: (B,) AUROC of each dataset's best channel.
    """

    context: Tensor
    queries: Tensor
    labels: Tensor
    best: Tensor


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


@torch.no_grad()
def evidence_batch(batch: Batch, with_context: bool = True) -> EvidenceBatch:
    """Evidence of raw rows, computed in float64 as in inference and stored in float32."""
    pairs = list(_channels(batch))
    context = torch.cat([own if with_context else own[:, :0] for own, _ in pairs])
    queries = torch.cat([other for _, other in pairs])
    best = auroc(queries, batch.labels).amax(1)
    return EvidenceBatch(context, queries, batch.labels, best)


def _channels(batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """Channels of (context, queries); one pair for the batch, or on a CPU one pair per dataset."""
    context, queries = batch.context.double(), batch.queries.double()
    parts: list[tuple[Tensor, Tensor, Tensor]]
    if context.device.type == "cpu":  # one dataset at a time: no padding columns, and the data fits into the caches
        parts = [
            (context[b : b + 1, :, :d], queries[b : b + 1, :, :d], batch.n_features[b : b + 1])
            for b, d in enumerate(batch.n_features.tolist())
        ]
    else:
        parts = [(context, queries, batch.n_features)]
    found = []
    for rows, query_rows, n_features in parts:
        evidence, own = fit_evidence(rows, n_features)
        found.append((own.float(), evidence_channels(query_rows, evidence).float()))
    return found
