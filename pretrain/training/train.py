"""The training loop: synthetic datasets in, a run directory with weights out. Read it from top to bottom.

A run directory holds:

    config.json        the settings; a resumed run must have the same
    commit.txt         the commit of the source that started the run
    state.safetensors  model, moving average if it differs, optimiser moments, step; replaced atomically
    log.jsonl          one line per log interval
    best.safetensors   the moving average with the lowest training loss, with best_every

The batch of a step and all other random numbers are functions of (seed, step). So a run that was stopped and resumed
ends with the same weights as one without a stop, bit for bit on one CPU (with --minutes the learning rate depends on
the time, and the weights do too).
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fomo_stream.errors import FomoError
from fomo_stream.model.checkpoint import resolve_device
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.priors.draws import stream_seed
from pretrain.training.config import TrainConfig
from pretrain.training.loader import Inputs, Loader, auroc
from pretrain.training.run_files import RunFiles
from pretrain.training.state import State

_INIT_STREAM, _STEP_STREAM = 11, 12
MAX_BAD_STEPS = 20
_RANKED_AT_ONCE = 64  # batches whose logits are kept until their AUROC is computed


class Observer:
    """Follows a run, to show its progress. This one does nothing; subclasses override the events they need."""

    def started(self, files: RunFiles, config: TrainConfig, step: int) -> None:
        """The run starts or resumes after `step` steps."""

    def logged(self, line: Mapping[str, float]) -> None:
        """A line was written to the log."""

    def saved(self) -> None:
        """The state was saved, and the log is complete up to it."""


@dataclass
class Trainer:
    """The parts of a run that every step uses."""

    config: TrainConfig
    state: State
    loader: Loader
    network: Callable[[Inputs], Tensor]  # logits (B, q) float32
    device: torch.device
    bad_steps: Tensor  # steps in a row whose loss or gradient was not finite

    @classmethod
    def start(cls, config: TrainConfig, state: State, device: torch.device) -> Trainer:
        filtered = config.min_auc > 0 or config.max_auc < 1
        loader = Loader(config.data, config.seed, state.model, device, config.period, filtered)
        network = compute(state.model, device, compute_dtype(config, device))
        return cls(config, state, loader, network, device, torch.zeros((), device=device))


def train(
    config: TrainConfig,
    run_dir: Path,
    device: str = "auto",
    stop_after: float | None = None,
    observer: Observer | None = None,
) -> ZeroShotModel:
    """Train, or resume the run in `run_dir`; returns the model with the averaged weights.

    stop_after: minutes after which this call saves and returns, even if the run is not finished. observer: gets the
    progress of the run.
    Raises ConfigError for a run directory with other settings.
    """
    deadline = math.inf if stop_after is None else time.monotonic() + 60 * stop_after
    where = torch.device(resolve_device(device))
    files, observer = RunFiles(run_dir), observer or Observer()
    files.claim(config)
    torch.manual_seed(stream_seed(config.seed, _INIT_STREAM))
    model = ZeroShotModel(config.network, name=config.model).to(where)
    state = State.fresh(model, config.moments == "bf16")
    files.load(state)
    trainer = Trainer.start(config, state, where)
    observer.started(files, config, state.step)
    with _interrupts() as interrupted:
        _loop(trainer, files, observer, lambda: interrupted.is_set() or time.monotonic() >= deadline)
    files.save(state)
    observer.saved()
    model.load_state_dict(state.average, strict=False)
    return model.eval()


def _loop(trainer: Trainer, files: RunFiles, observer: Observer, stopped: Callable[[], bool]) -> None:
    config, state, device = trainer.config, trainer.state, trainer.device
    began = saved = time.monotonic()
    already = state.elapsed
    interval = Interval(device)

    def log() -> None:
        nonlocal interval
        state.elapsed = already + time.monotonic() - began
        line = interval.line(state.step, lr, state.elapsed)
        files.append_log(line)
        observer.logged(line)
        interval = Interval(device)

    state.model.train()
    while state.step < config.steps and not stopped():
        state.elapsed = already + time.monotonic() - began
        if config.minutes is not None and state.elapsed >= 60 * config.minutes:
            break
        lr = learning_rate(config, state.step, progress_of(config, state.step, state.elapsed))
        _step(trainer, interval, lr)
        state.step += 1
        if state.step % MAX_BAD_STEPS == 0 and int(trainer.bad_steps) >= MAX_BAD_STEPS:
            raise FomoError(
                f"the loss has not been finite for {MAX_BAD_STEPS} steps (step {state.step} of {files.directory});"
                " lower --lr, or check the settings of the prior"
            )
        if state.step % config.log_every == 0:
            log()
        if config.best_every and state.step % config.best_every == 0:
            files.keep_best(state, config.best_every)
        if time.monotonic() - saved > config.save_every:
            files.save(state)
            observer.saved()
            saved = time.monotonic()
    if interval.steps:  # the loop ended within an interval
        log()
    state.elapsed = already + time.monotonic() - began


def _step(trainer: Trainer, interval: Interval, lr: float) -> None:
    """One update of the weights and their average.

    A loss or gradient that is not finite changes no weight. On CUDA this needs no transfer to the host, so the host
    stays ahead of the device.
    """
    config, state = trainer.config, trainer.state
    inputs = trainer.loader.inputs(state.step, progress_of(config, state.step, state.elapsed))
    torch.manual_seed(stream_seed(config.seed, _STEP_STREAM, state.step))  # for dropout and rounding
    kept = ((inputs.best >= config.min_auc) & (inputs.best <= config.max_auc)).float()
    logits = trainer.network(inputs)
    each = F.binary_cross_entropy_with_logits(logits, inputs.labels, reduction="none").mean(1)
    loss = (each * kept).sum() / kept.sum().clamp_min(1.0)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), config.clip)
    good = torch.isfinite(norm)
    state.update(lr, config.weight_decay, config.ema, good & kept.any())
    trainer.loader.prepare(state.step + 1, progress_of(config, state.step + 1, state.elapsed))
    trainer.bad_steps = torch.where(good, 0.0, trainer.bad_steps + 1)
    interval.add(logits, inputs.labels, loss, norm, kept, good)


class Interval:
    """Sums over the steps since the last log line. They stay on the device until then, so they slow nothing down."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)  # in the order of `add`
        self._auroc = 0.0
        self._unranked: list[tuple[Tensor, Tensor]] = []
        self._began = time.monotonic()
        self.steps = 0

    def add(self, logits: Tensor, labels: Tensor, loss: Tensor, norm: Tensor, kept: Tensor, good: Tensor) -> None:
        """Add one step. logits, labels: (B, q); kept: (B,) 0 or 1; good: whether loss and gradient were finite."""
        counted = good & kept.any()
        parts = [
            torch.where(counted, loss.detach(), 0.0),
            torch.where(good, norm, 0.0),
            torch.where(good, kept.mean(), 0.0),
            good,
            counted,
            torch.ones_like(loss),
        ]
        self._sums += torch.stack([part.double() for part in parts])
        self._unranked.append((logits.detach(), labels))
        self.steps += 1
        if len(self._unranked) >= _RANKED_AT_ONCE:
            self._rank()

    def _rank(self) -> None:
        for logits, labels in self._unranked:
            self._auroc += float(auroc(logits, labels).mean())
        self._unranked.clear()

    def line(self, step: int, lr: float, elapsed: float) -> dict[str, float]:
        """The log line: means over the steps since the last line. `kept` is the share of datasets in the loss."""
        self._rank()
        loss, norm, kept, good, counted, steps = self._sums.tolist()
        seconds = max(1e-9, time.monotonic() - self._began)
        return {
            "step": step,
            "loss": round(loss / counted, 5) if counted else float("nan"),
            "auroc": round(self._auroc / max(1, self.steps), 5),
            "kept": round(kept / max(1.0, good), 3),
            "grad_norm": round(norm / max(1.0, good), 4),
            "lr": float(f"{lr:.4g}"),
            "seconds": round(elapsed, 2),
            "skipped": round(steps - good),
            "ms_per_step": round(1e3 * seconds / max(1, self.steps), 3),
        }


def compute_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """The type of the network's matrix products."""
    if config.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def compute(model: ZeroShotModel, device: torch.device, dtype: torch.dtype) -> Callable[[Inputs], Tensor]:
    """A function from inputs to logits (B, q) float32, under autocast unless `dtype` is float32."""

    def logits(inputs: Inputs) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return model.forward_features(inputs.context, inputs.queries).float()

    return logits


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Linear warm-up, then a cosine down to `final_lr` of the peak (or constant). `progress` in [0, 1]."""
    warm = min(1.0, (step + 1) / max(1, config.warmup))
    if config.schedule == "constant":
        return config.lr * warm
    cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
    return config.lr * warm * (config.final_lr + (1 - config.final_lr) * cosine)


def progress_of(config: TrainConfig, step: int, elapsed: float) -> float:
    """Finished share of a run after `step` steps and `elapsed` seconds, by the limit that is reached first."""
    by_time = elapsed / (60 * config.minutes) if config.minutes else 0.0
    return max(step / config.steps, by_time)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C and SIGTERM, so that the run saves and ends. A second signal ends it at once."""
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
