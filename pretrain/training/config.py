"""The settings of a training run, with their checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from fomo_stream.errors import ConfigError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.architecture import PRESETS as MODELS
from fomo_stream.model.architecture import ModelConfig
from pretrain.priors.checks import check_least, check_share
from pretrain.priors.mixture import DataConfig


@dataclass(frozen=True)
class TrainConfig:
    """One training run. A run ends after `steps` or `minutes`, whichever comes first."""

    model: str = "fusion"  # a preset of fomo_stream.model
    shape: ModelConfig | None = None  # replaces the shape of that preset
    steps: int = 3000
    minutes: float | None = None
    lr: float = 1e-3
    schedule: str = "cosine"  # or "constant"; both after the warm-up
    warmup: int = 100  # steps
    final_lr: float = 0.02  # share of lr at the end of the cosine
    weight_decay: float = 0.0
    clip: float = 1.0  # largest norm of the gradient
    ema: float = 0.99  # decay per step of the moving average of the weights; 0 = no averaging
    min_auc: float = 0.0  # datasets whose best evidence channel has a lower AUROC are left out of the loss, ...
    max_auc: float = 1.0  # ... and so are those with a higher one
    period: int = 0  # steps after which the same batches are repeated; 0 = always new ones
    precision: str = "auto"  # of the network: bf16 or fp32; auto is bf16 on CUDA, fp32 elsewhere
    moments: str = "fp32"  # of the optimiser: fp32, or bf16 for smaller files
    seed: int = 0
    log_every: int = 50  # steps
    save_every: float = 60.0  # seconds between two saves of the state
    best_every: int = 0  # steps over which the loss is averaged to find the best weights; 0 = do not keep them
    data: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"there is no model preset {self.model!r}; choose one of {', '.join(MODELS)}")
        if self.schedule not in ("cosine", "constant"):
            raise ConfigError(f"schedule is cosine or constant, not {self.schedule!r}")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise ConfigError(f"precision is auto, bf16 or fp32, not {self.precision!r}")
        if self.moments not in ("bf16", "fp32"):
            raise ConfigError(f"moments is bf16 or fp32, not {self.moments!r}")
        at_least_0 = ("warmup", "weight_decay", "min_auc", "period", "save_every", "best_every")
        check_least(self, {"steps": 1, "log_every": 1, **dict.fromkeys(at_least_0, 0)})
        if self.lr <= 0 or self.clip <= 0 or not (self.minutes is None or self.minutes > 0):
            raise ConfigError("lr, clip and minutes must be above 0")
        check_share("final_lr", self.final_lr)
        check_share("ema", self.ema)
        if not self.min_auc <= self.max_auc:
            raise ConfigError(f"min_auc {self.min_auc} is above max_auc {self.max_auc}: no dataset is between them")
        if self.best_every % self.log_every:
            raise ConfigError(f"best_every must be a multiple of log_every ({self.log_every}), not {self.best_every}")
        if self.shape is not None:
            ModelConfig.from_dict(asdict(self.shape))  # checks types
            if self.shape == MODELS[self.model]:
                object.__setattr__(self, "shape", None)
        self._check_shape()

    def _check_shape(self) -> None:
        shape = self.network
        check_least(shape, {"width": 1, "heads": 1, "feed_forward": 1, "layers": 0, "routers": 0, "raw_features": 0})
        if shape.layers and shape.width % shape.heads:
            raise ConfigError(f"a width of {shape.width} cannot be split over {shape.heads} heads")
        for name in ("channel_dropout", "fusion_dropout"):
            if not 0 <= getattr(shape, name) < 1:
                raise ConfigError(f"{name} is a share below 1, not {getattr(shape, name)}")
        if 0 < shape.raw_features < self.data.max_features:
            raise ConfigError(
                f"the model takes up to {shape.raw_features} features, the data has up to {self.data.max_features};"
                " lower data.max_features or raise shape.raw_features"
            )
        if self.data.context_max > MAX_CONTEXT:
            raise ConfigError(f"the model takes up to {MAX_CONTEXT} context rows, not {self.data.context_max}")

    @property
    def network(self) -> ModelConfig:
        """The shape of the model."""
        return self.shape or MODELS[self.model]
