"""The data loader: draws the batch of a step and computes its features, which have no trained parameters.

On CUDA this is done one step ahead, on a stream of its own, while the device computes the step before. Evidence and
quantiles are float64 and outside of any autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.priors.datasets import Batch
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.training.evidence_batches import auroc, evidence_batch


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
        number = step % self.period if self.period else step
        if self.model.config.raw_features:
            return self._from_rows(self.source.batch(number, progress))
        if not self.period:
            return self._evidence(self.source.batch(number, progress))
        if number not in self._kept:  # without a curriculum: a batch does not depend on when it is drawn
            self._kept[number] = self._evidence(self.source.batch(number))
        return self._kept[number]

    def _evidence(self, batch: Batch) -> Inputs:
        made = evidence_batch(batch, with_context=bool(self.model.config.layers))
        return Inputs(Features(made.context, None), Features(made.queries, None), made.labels, made.best)

    def _from_rows(self, batch: Batch) -> Inputs:
        context, queries = self.model.describe(batch.context.double(), batch.queries.double(), batch.n_features)
        best = torch.full((len(batch.labels),), 0.5, device=self.device)
        if self.filtered:
            channels = queries.channels
            best = evidence_batch(batch, False).best if channels is None else auroc(channels, batch.labels).amax(1)
        return Inputs(context, queries, batch.labels, best)
