"""The training loop: synthetic datasets in, a checkpoint out. Read top to bottom.

A run lives in a directory:

    config.json        what was asked for; a resumed run must ask for the same
    state.safetensors  model, moving average, optimiser moments, step; replaced atomically
    log.jsonl          one line per log interval
    loss.png           the curve, where matplotlib is installed
    weights-N.safetensors  the moving average after N steps, with --keep-every
    best.safetensors   the moving average where the training loss was lowest, with best_every

The batch of a step and all other randomness are functions of (seed, step), so a run that was stopped and resumed ends
with the same weights, bit for bit on one CPU, as one that was not (unless --minutes steers its learning rate).
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor, nn

from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.checkpoint import resolve_device
from fomo_stream.model.zero_shot import PRESETS as MODELS
from fomo_stream.model.zero_shot import ModelConfig, ZeroShotModel
from pretrain.evaluation.plots import plot_losses
from pretrain.priors.checks import check_least, check_share
from pretrain.priors.draws import stream_seed
from pretrain.priors.mixture import DataConfig
from pretrain.training.arithmetic import measure_ceilings, step_bytes, step_flops
from pretrain.training.feed import Feed, Inputs
from pretrain.training.meter import Clock, Interval
from pretrain.training.progress import ProgressBar
from pretrain.training.run_files import RunFiles, State

_INIT_STREAM, _STEP_STREAM = 11, 12
MOST_BAD_STEPS = 20


@dataclass(frozen=True)
class TrainConfig:
    """One training run. A run ends after `steps` or `minutes`, whichever comes first."""

    model: str = "fusion"  # a preset of fomo_stream.model
    shape: ModelConfig | None = None  # in place of that preset's, e.g. with other layers or routers
    steps: int = 3000
    minutes: float | None = None
    lr: float = 1e-3
    schedule: str = "cosine"  # or "constant"; both after the warm-up
    warmup: int = 100  # steps
    final_lr: float = 0.02  # of lr, where the cosine ends
    weight_decay: float = 0.0
    clip: float = 1.0  # largest norm of the gradient
    ema: float = 0.99  # decay of the moving average of the weights per step; 0 = the weights themselves
    min_auc: float = 0.0  # datasets whose best evidence channel ranks worse than this are left out of the loss ...
    max_auc: float = 1.0  # ... and those where it ranks better than this
    freeze: str = ""  # parameters whose names begin with this are not trained
    period: int = 0  # steps after which the same batches come round, their evidence remembered; 0 = always fresh
    precision: str = "auto"  # of the network: bf16 or fp32; auto is bf16 on CUDA, fp32 elsewhere
    compile: bool = False  # the network through torch.compile; needs a compiler
    seed: int = 0
    log_every: int = 50  # steps
    save_every: float = 60.0  # seconds
    keep_every: int = 0  # steps; 0 = keep no weights along the way
    best_every: int = 0  # steps over which the loss is averaged to find the best weights so far; 0 = keep no best
    data: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"there is no model preset {self.model!r}; choose one of {', '.join(MODELS)}")
        if self.schedule not in ("cosine", "constant"):
            raise ConfigError(f"schedule is cosine or constant, not {self.schedule!r}")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise ConfigError(f"precision is auto, bf16 or fp32, not {self.precision!r}")
        at_least_0 = ("warmup", "weight_decay", "min_auc", "period", "save_every", "keep_every", "best_every")
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


@dataclass
class Trainer:
    """What a run works with from step to step."""

    config: TrainConfig
    state: State
    feed: Feed
    network: Callable[[Inputs], Tensor]  # logits (B, q) float32
    clock: Clock
    streak: Tensor  # steps in a row whose loss or gradient was not finite

    @classmethod
    def start(cls, config: TrainConfig, state: State, device: torch.device) -> Trainer:
        clock = Clock(device)
        judged = config.min_auc > 0 or config.max_auc < 1
        feed = Feed(config.data, config.seed, state.model, clock, config.period, judged)
        network = compute(state.model, device, compute_dtype(config, device), config.compile)
        return cls(config, state, feed, network, clock, torch.zeros((), device=device))


def train(
    config: TrainConfig,
    run_dir: Path,
    device: str = "auto",
    model: nn.Module | None = None,
    init_from: Path | None = None,
    stop_after: float | None = None,
    report: Callable[[str], None] | None = None,
) -> nn.Module:
    """Train, or go on where the run in `run_dir` stopped; returns the model with the averaged weights.

    model: in place of the preset's; takes context, queries and n_features, returns logits (B, q). init_from: a run
    whose averaged weights are the start, wherever names and shapes match. stop_after: minutes after which this call
    saves and returns, wherever the run stands. report: gets a line per log interval instead of the progress bar.
    Raises ConfigError for a run directory of another configuration.
    """
    deadline = math.inf if stop_after is None else time.monotonic() + 60 * stop_after
    where = resolve_device(device)
    files = RunFiles(run_dir)
    files.claim(config)
    torch.manual_seed(stream_seed(config.seed, _INIT_STREAM))
    if model is None:
        model = ZeroShotModel(config.network, name=config.model)
    model = model.to(where)
    state = State.fresh(model, frozen=config.freeze)
    if not files.load(state) and init_from is not None:
        RunFiles(init_from).load_weights(state)
    trainer = Trainer.start(config, state, where)
    bar = ProgressBar(config.steps, state.step, report)
    with _interrupts() as interrupted:
        try:
            _loop(trainer, files, bar, lambda: interrupted.is_set() or time.monotonic() >= deadline)
        finally:
            bar.close()
    files.save(state)
    plot_losses(files.log, files.plot)
    model.load_state_dict(state.average, strict=False)
    return model.eval()


def _loop(trainer: Trainer, files: RunFiles, bar: ProgressBar, stopped: Callable[[], bool]) -> None:
    config, state, device = trainer.config, trainer.state, trainer.clock.device
    ceilings = measure_ceilings(device, compute_dtype(config, device))
    began = saved = time.monotonic()
    already = state.elapsed
    interval = Interval(device)

    def log() -> None:
        nonlocal interval
        times = trainer.clock.read()
        state.elapsed = already + time.monotonic() - began
        line = interval.line(state.step, lr, state.elapsed, times, ceilings)
        files.append_log(line)
        bar.log(line)
        interval = Interval(device)

    trainer.clock.read()
    state.model.train()
    while state.step < config.steps and not stopped():
        state.elapsed = already + time.monotonic() - began
        if config.minutes is not None and state.elapsed >= 60 * config.minutes:
            break
        lr = learning_rate(config, state.step, progress_of(config, state.step, state.elapsed))
        _step(trainer, interval, lr)
        state.step += 1
        if state.step % MOST_BAD_STEPS == 0 and int(trainer.streak) >= MOST_BAD_STEPS:
            raise FomoError(
                f"the loss has not been finite for {MOST_BAD_STEPS} steps (step {state.step} of {files.directory});"
                " lower --lr, or look at the prior's settings"
            )
        if state.step % config.log_every == 0:
            log()
        if config.keep_every and state.step % config.keep_every == 0:
            files.keep_weights(state)
        if config.best_every and state.step % config.best_every == 0:
            files.keep_best(state, config.best_every)
        if time.monotonic() - saved > config.save_every:
            files.save(state)
            plot_losses(files.log, files.plot)
            saved = time.monotonic()
        bar.step(state.step)
    if interval.steps:  # the run, or this call, ends within an interval
        log()
    state.elapsed = already + time.monotonic() - began


def _step(trainer: Trainer, interval: Interval, lr: float) -> None:
    """One update of the weights and their average. A loss or gradient that is not finite changes no weight; on CUDA the
    host does not wait to know, so that it is always ahead of the device."""
    config, state, clock = trainer.config, trainer.state, trainer.clock
    inputs = trainer.feed.inputs(state.step, progress_of(config, state.step, state.elapsed))
    torch.manual_seed(stream_seed(config.seed, _STEP_STREAM, state.step))  # dropout
    kept = ((inputs.best >= config.min_auc) & (inputs.best <= config.max_auc)).float()
    with clock.time("forward"):
        logits = trainer.network(inputs)
        each = F.binary_cross_entropy_with_logits(logits, inputs.labels, reduction="none").mean(1)
        loss = (each * kept).sum() / kept.sum().clamp_min(1.0)
    with clock.time("backward"):
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
    with clock.time("update"):
        norm = nn.utils.clip_grad_norm_(state.trained, config.clip)
        good = torch.isfinite(norm)
        state.update(lr, config.weight_decay, config.ema, good & kept.any())
    trainer.feed.prepare(state.step + 1, progress_of(config, state.step + 1, state.elapsed))
    trainer.streak = torch.where(good, 0.0, trainer.streak + 1)
    interval.add(logits, inputs.labels, loss, norm, kept, good)
    size, flops, moved = inputs.size, 0.0, 0.0
    if isinstance(state.model, ZeroShotModel):
        shape, number = state.model.config, compute_dtype(config, clock.device).itemsize
        flops, moved = step_flops(shape, size), step_bytes(shape, size, number)
    interval.add_cost(size.datasets * (size.context + size.queries), flops, moved)


def compute_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """What the network's matrix products are computed in."""
    if config.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def compute(
    model: nn.Module, device: torch.device, dtype: torch.dtype, compiled: bool = False
) -> Callable[[Inputs], Tensor]:
    """From inputs to logits (B, q) float32, under autocast unless `dtype` is float32, compiled if asked for."""
    apply: Callable[..., Tensor] = model.forward_features if isinstance(model, ZeroShotModel) else model
    if compiled:
        apply = torch.compile(apply, dynamic=True)

    def logits(inputs: Inputs) -> Tensor:
        parts: list[Any] = [inputs.context, inputs.queries]
        if not isinstance(model, ZeroShotModel):
            parts.append(inputs.n_features)
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                return apply(*parts).float()
        except RuntimeError as error:
            if not compiled or not _compiler_failed(error):
                raise
            raise ConfigError(
                f"--compile does not work here ({str(error).strip().splitlines()[0]}); it needs a C++ compiler, and"
                " Triton on CUDA; install them or leave it out"
            ) from None

    return logits


def _compiler_failed(error: RuntimeError) -> bool:
    from torch._dynamo.exc import BackendCompilerFailed  # takes seconds to import

    return isinstance(error, BackendCompilerFailed)


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Linear warm-up, then a cosine down to `final_lr` of the peak (or constant). `progress` in [0, 1]."""
    warm = min(1.0, (step + 1) / max(1, config.warmup))
    if config.schedule == "constant":
        return config.lr * warm
    cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
    return config.lr * warm * (config.final_lr + (1 - config.final_lr) * cosine)


def progress_of(config: TrainConfig, step: int, elapsed: float) -> float:
    """How far a run is after `step` steps and `elapsed` seconds, whichever will end it."""
    by_time = elapsed / (60 * config.minutes) if config.minutes else 0.0
    return max(step / config.steps, by_time)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that a run saves and ends; a second Ctrl-C ends it at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
