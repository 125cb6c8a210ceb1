"""What a training step reads: batches drawn and described, that is, all the work that has nothing to learn.

On CUDA it is done one step ahead, on a stream of its own, while the device is busy with the step before; its few
waits for the device then wait for little. Evidence and quantiles are float64, outside of any autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fomo_stream.model.zero_shot import Features, ZeroShotModel
from pretrain.priors.gmm import Batch
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.training.arithmetic import StepSize
from pretrain.training.evidence_pages import PageSource, evidence_page
from pretrain.training.meter import Clock
from pretrain.training.metrics import auroc


@dataclass
class Inputs:
    """One batch as a model reads it: features, or raw rows (B, n, d) and (B, q, d) where the model is not ours.

    n_features: (B,), of raw rows; labels: (B, q); best: (B,) AUROC of each dataset's best evidence channel, 0.5 where
    nobody asked.
    """

    context: Features | Tensor
    queries: Features | Tensor
    n_features: Tensor | None
    labels: Tensor
    best: Tensor
    size: StepSize

    def tensors(self) -> Iterator[Tensor]:
        for part in (self.context, self.queries, (self.n_features, self.labels, self.best)):
            yield from (part,) if isinstance(part, Tensor) else (t for t in part if t is not None)


class TimedSource(BatchSource):
    """A source that times how long drawing takes."""

    def __init__(self, config: DataConfig, seed: int, device: torch.device, clock: Clock) -> None:
        super().__init__(config, seed, device)
        self.clock = clock

    def batch(self, step: int, progress: float = 0.0) -> Batch:
        with self.clock.time("synthesis"):
            return super().batch(step, progress)


class Feed:
    """The inputs of each step, a function of (seed, step, progress).

    period: steps after which the same batches come round, 0 = never; judged: whether `Inputs.best` is wanted.
    """

    def __init__(
        self, config: DataConfig, seed: int, model: nn.Module, clock: Clock, period: int = 0, judged: bool = False
    ) -> None:
        self.source = TimedSource(config, seed, clock.device, clock)
        self.model, self.clock, self.period, self.judged = model, clock, period, judged
        self.pages = None
        if isinstance(model, ZeroShotModel) and not model.config.raw_features:
            self.pages = PageSource(self.source, model, period)
        self._stream: torch.cuda.Stream | None = None
        if clock.device.type == "cuda":
            self._stream = torch.cuda.Stream(clock.device, priority=-1)  # type: ignore[no-untyped-call]
        self._next: tuple[int, Inputs] | None = None

    def inputs(self, step: int, progress: float) -> Inputs:
        """The inputs of `step`."""
        if self._stream is None:
            return self._draw(step, progress)
        if self._next is None or self._next[0] != step:
            self.prepare(step, progress)
        assert self._next is not None
        found, self._next = self._next[1], None
        current = torch.cuda.current_stream(self.clock.device)
        current.wait_stream(self._stream)
        for tensor in found.tensors():
            tensor.record_stream(current)  # its memory must not be given away while this step still reads it
        return found

    def prepare(self, step: int, progress: float) -> None:
        """Begin with the inputs of a later step; nothing on a CPU, which would only do it earlier."""
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                self._next = step, self._draw(step, progress)

    @torch.no_grad()
    def _draw(self, step: int, progress: float) -> Inputs:
        with self.clock.time("data"):
            if self.pages is not None:
                return self._of_page(step, progress)
            batch = self.source.batch(step % self.period if self.period else step, progress)
            return self._of_batch(batch)

    def _of_page(self, step: int, progress: float) -> Inputs:
        assert self.pages is not None
        page = self.pages.page(step, progress)
        datasets, queries = page.labels.shape
        size = StepSize(datasets, page.rows // datasets - queries, queries)
        context, asked = Features(page.context, None), Features(page.queries, None)
        return Inputs(context, asked, None, page.labels, page.best, size)

    def _of_batch(self, batch: Batch) -> Inputs:
        context, queries = batch.context.double(), batch.queries.double()  # as in inference
        size = StepSize(len(context), context.shape[1], queries.shape[1])
        best = torch.full((size.datasets,), 0.5, device=queries.device)
        seen: Features | Tensor = context
        asked: Features | Tensor = queries
        if isinstance(self.model, ZeroShotModel):
            seen, asked = self.model.describe(context, queries, batch.n_features)
        if self.judged and isinstance(asked, Features) and asked.channels is not None:
            best = auroc(asked.channels, batch.labels).amax(1)
        elif self.judged:
            best = evidence_page(batch, with_context=False).best
        return Inputs(seen, asked, batch.n_features, batch.labels, best, size)
