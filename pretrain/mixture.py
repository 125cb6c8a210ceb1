"""Batches from a mixture of priors: every batch a function of (seed, step) alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pretrain.causal import CausalConfig, causal_batch
from pretrain.draws import Draws, stream_seed
from pretrain.prior import Batch, GmmConfig, gmm_batch, split
from pretrain.reuse import GmmReuse, ReuseConfig

PRIORS = ("gmm", "causal")
_PLAN_STREAM, _DATA_STREAM = 1, 2


@dataclass(frozen=True)
class DataConfig:
    """What the batches hold."""

    gmm_weight: float = 0.1  # chance of a dataset to come from the Gaussian mixtures ...
    causal_weight: float = 0.9  # ... and from the causal prior, relative to each other
    max_features: int = 100
    batch: int = 8  # datasets
    context_min: int = 200  # rows; the size of a step's contexts is uniform between the two
    context_max: int = 1000
    queries: int = 256  # rows a dataset, half of them outliers
    curriculum: float = 1.0  # from this share of the run on, GMM outliers begin at `curriculum_percentile`
    curriculum_percentile: float = 80.0
    gmm: GmmConfig = field(default_factory=GmmConfig)
    causal: CausalConfig = field(default_factory=CausalConfig)
    reuse: ReuseConfig | None = None  # None: every GMM dataset is fresh

    def __post_init__(self) -> None:
        if self.queries < 2 or self.queries % 2:
            raise ValueError(f"queries come in balanced halves: give an even number, not {self.queries}")
        if not 2 <= self.context_min <= self.context_max:
            raise ValueError(f"context sizes need 2 <= min <= max, not {self.context_min}..{self.context_max}")
        if min(self.gmm_weight, self.causal_weight) < 0 or self.gmm_weight + self.causal_weight <= 0:
            raise ValueError("weights of the priors must not be negative and not all be zero")


class BatchSource:
    """Draws the batch of a step on a device."""

    def __init__(self, config: DataConfig, seed: int, device: torch.device | str = "cpu") -> None:
        self.config, self.seed, self.device = config, seed, torch.device(device)
        self._gmm = replace(config.gmm, max_features=config.max_features)
        self._causal = replace(config.causal, max_features=config.max_features)
        self._reuse = None
        if config.reuse is not None:
            rows, half = config.context_max, config.queries // 2
            self._reuse = GmmReuse(self._gmm, config.reuse, config.batch, rows + half, half, seed, device)

    def batch(self, step: int, progress: float = 0.0) -> Batch:
        """The batch of `step`, as wide as its widest dataset; `progress` in [0, 1] decides on the curriculum."""
        config = self.config
        plan = Draws(stream_seed(self.seed, _PLAN_STREAM, step))  # on the CPU: it decides sizes
        context = int(plan.integers(config.context_min, config.context_max, 1))
        prior = plan.category((config.gmm_weight, config.causal_weight), config.batch).tolist()
        percentile = config.curriculum_percentile if progress > config.curriculum else config.gmm.percentile
        draws = Draws(stream_seed(self.seed, _DATA_STREAM, step), self.device)
        parts = []
        slots = [i for i, p in enumerate(prior) if PRIORS[p] == "gmm"]
        if slots:
            parts.append(self._gmm_part(step, slots, percentile, draws, context))
        causal = config.batch - len(slots)
        if causal:
            parts.append(causal_batch(self._causal, draws, causal, context, config.queries))
        n_features = torch.cat([p.n_features for p in parts])
        width = int(n_features.max())
        return Batch(
            torch.cat([p.context for p in parts])[..., :width],
            torch.cat([p.queries for p in parts])[..., :width],
            torch.cat([p.labels for p in parts]),
            n_features,
        )

    def _gmm_part(self, step: int, slots: list[int], percentile: float, draws: Draws, context: int) -> Batch:
        queries = self.config.queries
        if self._reuse is None:
            gmm = replace(self._gmm, percentile=percentile)
            return gmm_batch(gmm, draws, len(slots), context, queries)
        inliers, outliers, n_features = self._reuse.datasets(step, slots, percentile)
        # another part of the dataset is the context each time
        return split(_shuffled(inliers, draws), _shuffled(outliers, draws), n_features, draws, context, queries)


def _shuffled(rows: Tensor, draws: Draws) -> Tensor:
    return rows.gather(1, draws.order(*rows.shape[:2])[..., None].expand_as(rows))
