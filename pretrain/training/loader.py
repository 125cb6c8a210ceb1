"""The data loader: draws the batch of a step and computes its features, which have no trained parameters.

On CUDA this is done one step ahead, on a stream of its own, while the device computes the step before. Evidence and
quantiles are float64 and outside of any autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.priors.datasets import Batch
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.training.evidence_batches import EvidenceSource, auroc, evidence_batch


@dataclass
class Inputs:
    """One batch in the form that the model reads.

    context, queries: features for a `ZeroShotModel`, raw rows (B, n, d) and (B, q, d) for any other module;
    n_features: (B,) of raw rows; labels: (B, q); best: (B,) AUROC of each dataset's best evidence channel, 0.5 unless
    the run filters by it.
    """

    context: Features | Tensor
    queries: Features | Tensor
    n_features: Tensor | None
    labels: Tensor
    best: Tensor

    def tensors(self) -> Iterator[Tensor]:
        for part in (self.context, self.queries, (self.n_features, self.labels, self.best)):
            yield from (part,) if isinstance(part, Tensor) else (t for t in part if t is not None)


class Loader:
    """The inputs of each step, a function of (seed, step, progress).

    period: steps after which the same batches are repeated, 0 = never; filtered: whether `Inputs.best` is needed.
    """

    def __init__(
        self,
        config: DataConfig,
        seed: int,
        model: nn.Module,
        device: torch.device,
        period: int = 0,
        filtered: bool = False,
    ) -> None:
        self.source = BatchSource(config, seed, device)
        self.model, self.device, self.period, self.filtered = model, device, period, filtered
        self._evidence = None
        if isinstance(model, ZeroShotModel) and not model.config.raw_features:
            self._evidence = EvidenceSource(self.source, bool(model.config.layers), period)
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
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
        if self._evidence is None:
            return self._from_rows(self.source.batch(step % self.period if self.period else step, progress))
        batch = self._evidence.batch(step, progress)
        return Inputs(Features(batch.context, None), Features(batch.queries, None), None, batch.labels, batch.best)

    def _from_rows(self, batch: Batch) -> Inputs:
        context, queries = batch.context.double(), batch.queries.double()  # as in inference
        best = torch.full((len(queries),), 0.5, device=queries.device)
        of_context: Features | Tensor = context
        of_queries: Features | Tensor = queries
        if isinstance(self.model, ZeroShotModel):
            of_context, of_queries = self.model.describe(context, queries, batch.n_features)
        if self.filtered and isinstance(of_queries, Features) and of_queries.channels is not None:
            best = auroc(of_queries.channels, batch.labels).amax(1)
        elif self.filtered:
            best = evidence_batch(batch, with_context=False).best
        return Inputs(of_context, of_queries, batch.n_features, batch.labels, best)
