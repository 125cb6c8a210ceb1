"""Evidence of a training batch, computed once: for the filter, for the model, and for every time the batch comes round.

Evidence has nothing to learn, and on a CPU it costs several times what a small network does. So a model without raw
inputs is trained on pages of evidence, and a run may let the same pages come round (`period`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fomo_stream.model.evidence import evidence_channels, fit_evidence
from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.priors.gmm import Batch
from pretrain.priors.mixture import BatchSource
from pretrain.training.metrics import auroc


@dataclass
class Page:
    """Evidence channels of one batch. context: (B, n, C), or (B, 0, C) where nothing reads it; queries: (B, q, C);
    labels: (B, q); best: (B,) AUROC of each dataset's best channel; rows: how many the batch had."""

    context: Tensor
    queries: Tensor
    labels: Tensor
    best: Tensor
    rows: int


@torch.no_grad()
def evidence_page(batch: Batch, with_context: bool = True) -> Page:
    """Evidence of raw rows, in float64 as in inference, kept in float32."""
    pairs = list(_channels(batch))
    context = torch.cat([own if with_context else own[:, :0] for own, _ in pairs])
    queries = torch.cat([other for _, other in pairs])
    best = auroc(queries, batch.labels).amax(1)
    rows = batch.context.shape[0] * (batch.context.shape[1] + batch.queries.shape[1])
    return Page(context, queries, batch.labels, best, rows)


def _channels(batch: Batch) -> list[tuple[Tensor, Tensor]]:
    context, queries = batch.context.double(), batch.queries.double()
    parts: list[tuple[Tensor, Tensor, Tensor]]
    if context.device.type == "cpu":  # one at a time: without padding, and in reach of the caches
        parts = [
            (context[b : b + 1, :, :d], queries[b : b + 1, :, :d], batch.n_features[b : b + 1])
            for b, d in enumerate(batch.n_features.tolist())
        ]
    else:
        parts = [(context, queries, batch.n_features)]
    found = []
    for seen, asked, n_features in parts:
        evidence, own = fit_evidence(seen, n_features)
        found.append((own.float(), evidence_channels(asked, evidence).float()))
    return found


class PageSource:
    """The page of a step. With a period, the pages of the first `period` steps come round and are remembered."""

    def __init__(self, batches: BatchSource, model: ZeroShotModel, period: int = 0) -> None:
        self.batches, self.period = batches, period
        self.with_context = bool(model.config.layers)
        self._pages: dict[int, Page] = {}

    def page(self, step: int, progress: float) -> Page:
        """Like `BatchSource.batch`; with a period the curriculum stays at its beginning, whenever a page is drawn."""
        if not self.period:
            return evidence_page(self.batches.batch(step, progress), self.with_context)
        turn = step % self.period
        if turn not in self._pages:
            self._pages[turn] = evidence_page(self.batches.batch(turn), self.with_context)
        return self._pages[turn]


def logits_of_page(model: ZeroShotModel, context: Tensor, queries: Tensor) -> Tensor:
    """The model's logits (B, q) from evidence channels instead of rows: what its `forward` does after the evidence."""
    return model.forward_features(Features(context, None), Features(queries, None))
