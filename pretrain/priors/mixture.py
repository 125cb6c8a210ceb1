"""Batches from a mixture of priors, some with outliers in the context. A batch depends only on (seed, step)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from pretrain.priors.causal import CausalConfig, causal_tables
from pretrain.priors.checks import Range, check_least, check_range, check_share, check_weights
from pretrain.priors.copulas import CopulaConfig, copula_tables
from pretrain.priors.datasets import Batch, Tables, joined, split
from pretrain.priors.draws import Draws, stream_seed
from pretrain.priors.gmm import MAX_DIMENSIONS, GmmConfig, sample_gmm
from pretrain.priors.reuse import GmmReuse, ReuseConfig
from pretrain.priors.streams import VIEWS, StreamConfig, stream_datasets

TABLES = {"gmm": "gmm_weight", "causal": "causal_weight", "copulas": "copula_weight"}  # name -> setting of its weight
PRIORS = {**TABLES, "streams": "stream_weight"}
_PLAN_STREAM, _DATA_STREAM = 1, 2


@dataclass(frozen=True)
class DataConfig:
    """Settings of the batches."""

    gmm_weight: float = 0.1  # relative weight of the Gaussian mixtures, ...
    causal_weight: float = 0.8  # ...
    copula_weight: float = 0.1  # ... of the copula prior, ...
    stream_weight: float = 0.0  # ... and of streams, whose records are from the other priors
    max_features: int = 100
    batch: int = 8  # datasets
    context_min: int = 200  # rows; the size of the contexts of a step is uniform between the two
    context_max: int = 1000
    queries: int = 256  # rows per dataset, half of them outliers
    curriculum: float = 1.0  # from this share of the run on, GMM outliers begin at `curriculum_percentile`
    curriculum_percentile: float = 80.0
    contaminated_share: float = 0.15  # share of datasets with unlabelled outliers in the context, ...
    contamination: Range = (0.0, 0.1)  # ... and their share of its rows, uniform between the two
    gmm: GmmConfig = field(default_factory=GmmConfig)
    causal: CausalConfig = field(default_factory=CausalConfig)
    copulas: CopulaConfig = field(default_factory=CopulaConfig)
    streams: StreamConfig = field(default_factory=StreamConfig)
    reuse: ReuseConfig | None = None  # None: every GMM dataset is new

    def __post_init__(self) -> None:
        check_least(self, {"batch": 1, "max_features": 1})
        if self.gmm_weight > 0 and not self.gmm.min_features <= self.max_features <= MAX_DIMENSIONS:
            raise ValueError(
                f"Gaussian mixtures have {self.gmm.min_features} to {MAX_DIMENSIONS} features, not {self.max_features}"
            )
        if self.queries < 2 or self.queries % 2:
            raise ValueError(f"queries come in balanced halves: give an even number, not {self.queries}")
        if not 2 <= self.context_min <= self.context_max:
            raise ValueError(f"context sizes need 2 <= min <= max, not {self.context_min}..{self.context_max}")
        check_weights("data", self, tuple(PRIORS.values()))
        check_share("data.contaminated_share", self.contaminated_share)
        check_range("data.contamination", self.contamination, 0.0, 0.5)

    @property
    def outliers(self) -> int:
        """Number of outliers drawn per dataset: for the queries, and for contaminated contexts."""
        hidden = self.contamination[1] if self.contaminated_share else 0.0
        return self.queries // 2 + math.ceil(hidden * self.context_max)


class BatchSource:
    """Draws the batch of a step on a device."""

    def __init__(self, config: DataConfig, seed: int, device: torch.device | str = "cpu") -> None:
        self.config, self.seed, self.device = config, seed, torch.device(device)
        self._gmm = replace(config.gmm, max_features=config.max_features)
        self._causal = replace(config.causal, max_features=config.max_features)
        self._copulas = replace(config.copulas, max_features=config.max_features)
        self._reuse = None
        if config.reuse is not None:
            inliers = config.context_max + config.queries // 2
            self._reuse = GmmReuse(self._gmm, config.reuse, config.batch, inliers, config.outliers, seed, device)

    def batch(self, step: int, progress: float = 0.0) -> Batch:
        """The batch of `step`, as wide as its widest dataset; progress: in [0, 1], for the curriculum."""
        config = self.config
        plan = Draws(stream_seed(self.seed, _PLAN_STREAM, step))  # on the CPU, because it determines sizes
        context = int(plan.integers(config.context_min, config.context_max, 1))
        weights = [getattr(config, weight) for weight in PRIORS.values()]
        prior = plan.category(weights, config.batch).tolist()
        percentile = config.curriculum_percentile if progress > config.curriculum else config.gmm.percentile
        draws = Draws(stream_seed(self.seed, _DATA_STREAM, step), self.device)
        parts, size = [], (context + config.queries // 2, config.outliers)
        for i, name in enumerate(TABLES):
            slots = [slot for slot, p in enumerate(prior) if p == i]
            if slots and name == "gmm" and self._reuse is not None:
                usual, strange, n_features = self._reuse.datasets(step, slots, percentile)
                # so that the context is a different part of the dataset every time
                usual, strange = _shuffled(usual, draws)[:, : size[0]], _shuffled(strange, draws)[:, : size[1]]
                parts.append(Tables(usual, strange, n_features))
            elif slots:
                parts.append(self._tables(name, percentile, draws, len(slots), *size))
        batches = self._streams(prior.count(len(TABLES)), percentile, context, draws)
        if parts:
            n_features = torch.cat([p.n_features for p in parts])
            width = int(n_features.max())
            inliers = torch.cat([p.inliers[..., :width] for p in parts])
            outliers = torch.cat([p.outliers[..., :width] for p in parts])
            batches.append(self._split(inliers, outliers, n_features, context, draws))
        return batches[0] if len(batches) == 1 else joined(batches)

    def _streams(self, count: int, percentile: float, context: int, draws: Draws) -> list[Batch]:
        """So many datasets of streams, those of all views of a stream together."""
        config, made = self.config, list[Batch]()
        weights = [getattr(config, weight) for weight in TABLES.values()]
        weights = weights if any(weights) else [getattr(DataConfig, weight) for weight in TABLES.values()]
        for first in range(0, count, len(VIEWS)):
            name = list(TABLES)[int(draws.category(weights, 1))]
            tables = partial(self._tables, name, percentile, draws, 1)
            seed = int(draws.integers(0, 2**30, 1))
            batch = stream_datasets(config.streams, seed, tables, context, config.queries)
            of = draws.order(1, len(VIEWS))[0][: count - first].cpu()
            made.append(Batch(*(part[of].to(self.device) for part in vars(batch).values())))
        return made

    def _split(self, inliers: Tensor, outliers: Tensor, n_features: Tensor, context: int, draws: Draws) -> Batch:
        """Context and queries. Without contamination it draws no random numbers for it."""
        config, b, half = self.config, len(inliers), self.config.queries // 2
        batch = split(inliers, outliers, n_features, draws, context, config.queries)
        if config.contaminated_share:
            amount = draw_amounts(config.contaminated_share, config.contamination, draws, b)
            batch.context = contaminated(batch.context, outliers[:, half:], amount, draws)
        return batch

    def _tables(
        self, prior: str, percentile: float, draws: Draws, datasets: int, inliers: int, outliers: int
    ) -> Tables:
        """Fresh datasets of one prior, of so many rows each."""
        if prior == "causal":
            return causal_tables(self._causal, draws, datasets, inliers, outliers)
        if prior == "copulas":
            return copula_tables(self._copulas, draws, datasets, inliers, outliers)
        data = sample_gmm(replace(self._gmm, percentile=percentile), draws, datasets, inliers, outliers)
        return Tables(data.inliers, data.outliers, data.mixtures.n_features)


def _shuffled(rows: Tensor, draws: Draws) -> Tensor:
    return rows.gather(1, draws.order(*rows.shape[:2])[..., None].expand_as(rows))


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
