"""The data loader: draws the batch of a step and computes what the model reads, which has no trained parameters.

Evidence costs several times as much on a CPU as a small network. So it is computed once, for the AUROC filter and the
model, and a run may repeat its first batches.

On CUDA this is done one step ahead, on a stream of its own, while the device computes the step before. Evidence and
quantiles are float64 and outside of any autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fomo_stream.model.architecture import SPACES
from fomo_stream.model.evidence import evidence_channels, fit_evidence
from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.priors.datasets import Batch
from pretrain.priors.mixture import BatchSource, DataConfig


@dataclass
class Inputs:
    """One batch in the form that the model reads.

    best: (B,) AUROC of each dataset's best evidence channel, 0.5 unless the run filters by it; labels: (B, q).
    """

    context: Features
    queries: Features
    labels: Tensor
    best: Tensor

    def tensors(self) -> Iterator[Tensor]:
        for part in (self.context, self.queries, (self.labels, self.best)):
            yield from (tensor for tensor in part if tensor is not None)


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
def evidence_batch(batch: Batch, spaces: tuple[str, ...] = SPACES) -> Inputs:
    """Evidence of raw rows in some spaces, computed in float64 as in inference and stored in float32.

    Those of the context's own rows are left out: a fusion does not read them.
    """
    queries = _channels(batch, spaces)
    best = auroc(queries, batch.labels).amax(1)
    return Inputs(Features(queries[:, :0], None), Features(queries, None), batch.labels, best)


def _channels(batch: Batch, spaces: tuple[str, ...]) -> Tensor:
    """Channels (B, q, C) of the queries."""
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
        evidence, _ = fit_evidence(rows, n_features, names=spaces)
        found.append(evidence_channels(query_rows, evidence, spaces).float())
    return torch.cat(found)


class Loader:
    """The inputs of each step, a function of (seed, step, progress).

    period: steps after which the same batches are repeated, 0 = never; filtered: whether `Inputs.best` is needed. The
    evidence of a period is kept in memory for a model without raw inputs, because it costs more than the network.
    """

    def __init__(
        self,
        config: DataConfig,
        seed: int,
        model: ZeroShotModel,
        device: torch.device,
        period: int = 0,
        filtered: bool = False,
    ) -> None:
        self.source = BatchSource(config, seed, device)
        self.model, self.device, self.period, self.filtered = model, device, period, filtered
        self._kept: dict[int, Inputs] = {}  # of a period
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)
        self._next: tuple[int, Inputs] | None = None

    def inputs(self, step: int, progress: float) -> Inputs:
        """The inputs of `step`."""
        if self._stream is None:
            return self._draw(step, progress)
        if self._next is None or self._next[0] != step:
            self.prepare(step, progress)
        assert self._next is not None
        found, self._next = self._next[1], None
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        for tensor in found.tensors():
            tensor.record_stream(current)  # its memory must not be reused while this step still reads it
        return found

    def prepare(self, step: int, progress: float) -> None:
        """Start to draw the inputs of a later step. Does nothing on a CPU, where this would save no time."""
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                self._next = step, self._draw(step, progress)

    @torch.no_grad()
    def _draw(self, step: int, progress: float) -> Inputs:
        number = step % self.period if self.period else step
        if self.model.config.layers:
            return self._from_rows(self.source.batch(number, progress))
        spaces = self.model.config.used_spaces
        if not self.period:
            return evidence_batch(self.source.batch(number, progress), spaces)
        if number not in self._kept:  # without a curriculum: a batch does not depend on when it is drawn
            self._kept[number] = evidence_batch(self.source.batch(number), spaces)
        return self._kept[number]

    def _from_rows(self, batch: Batch) -> Inputs:
        context, queries = self.model.describe(batch.context.double(), batch.queries.double(), batch.n_features)
        best = torch.full((len(batch.labels),), 0.5, device=self.device)
        if self.filtered:
            best = evidence_batch(batch).best
        return Inputs(context, queries, batch.labels, best)
