"""The training loop: synthetic datasets in, a checkpoint out. Read top to bottom.

A run lives in a directory:

    config.json        what was asked for; a resumed run must ask for the same
    state.safetensors  model, moving average, optimiser moments, step; replaced atomically
    log.jsonl          one line per log interval
    loss.png           the curve, where matplotlib is installed
    weights-N.safetensors  the moving average after N steps, with --keep-every

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
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor, nn

from fomo_stream.checkpoint import resolve_device
from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.evidence import evidence_channels, fit_evidence
from fomo_stream.model import PRESETS as MODELS
from fomo_stream.model import ZeroShotModel
from pretrain.draws import stream_seed
from pretrain.evidence_pages import PageSource, logits_of_page
from pretrain.metrics import auroc
from pretrain.mixture import BatchSource, DataConfig
from pretrain.plots import plot_losses
from pretrain.progress import ProgressBar
from pretrain.run_files import RunFiles, State, as_json

_INIT_STREAM, _STEP_STREAM = 11, 12
MOST_BAD_STEPS = 20


@dataclass(frozen=True)
class TrainConfig:
    """One training run. A run ends after `steps` or `minutes`, whichever comes first."""

    model: str = "fusion"  # a preset of fomo_stream.model
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
    seed: int = 0
    log_every: int = 50  # steps
    save_every: float = 60.0  # seconds
    keep_every: int = 0  # steps; 0 = keep no weights along the way
    data: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"there is no model preset {self.model!r}; choose one of {', '.join(MODELS)}")
        if self.schedule not in ("cosine", "constant"):
            raise ConfigError(f"schedule is cosine or constant, not {self.schedule!r}")
        if self.steps < 1 or self.log_every < 1:
            raise ConfigError("steps and log_every must be at least 1")


@dataclass
class Seen:
    """One batch as a step sees it. logits, labels: (B, q); best: (B,) AUROC of the best channel; rows: their number."""

    logits: Tensor
    labels: Tensor
    best: Tensor
    rows: int


Forward = Callable[[int, float], Seen]  # (step, progress) -> what was seen


@dataclass
class Interval:
    """What happened since the last log line, summed on the device so that the loop need not wait for it."""

    loss: Tensor
    auroc: Tensor
    kept: Tensor
    norm: Tensor
    steps: int = 0
    rows: int = 0
    bad: int = 0
    began: float = 0.0

    @classmethod
    def start(cls, device: torch.device) -> Interval:
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(zero, zero, zero, zero, began=time.monotonic())

    def line(self, step: int, lr: float, elapsed: float) -> dict[str, float]:
        """The log line: means over the steps since the last one; `kept` is the share of datasets in the loss."""
        n = max(1, self.steps - self.bad)
        seconds = max(1e-9, time.monotonic() - self.began)
        return {
            "step": step,
            "loss": round(float(self.loss) / n, 5),
            "auroc": round(float(self.auroc) / n, 5),
            "kept": round(float(self.kept) / n, 3),
            "grad_norm": round(float(self.norm) / n, 4),
            "lr": float(f"{lr:.4g}"),
            "seconds": round(elapsed, 2),
            "rows_per_s": round(self.rows / seconds, 1),
            "skipped": self.bad,
        }


def train(
    config: TrainConfig,
    run_dir: Path,
    device: str = "auto",
    model: nn.Module | None = None,
    init_from: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> nn.Module:
    """Train, or go on where the run in `run_dir` stopped; returns the model with the averaged weights.

    model: in place of the preset's; takes context, queries and n_features, returns logits (B, q). init_from: a run
    whose averaged weights are the start, wherever names and shapes match. report: gets a line per log interval
    instead of the progress bar. Raises ConfigError for a run directory of another configuration.
    """
    where = resolve_device(device)
    files = RunFiles(run_dir)
    files.claim(as_json(config))
    torch.manual_seed(stream_seed(config.seed, _INIT_STREAM))
    if model is None:
        model = ZeroShotModel(MODELS[config.model], name=config.model)
    model = model.to(where)
    state = State.fresh(model, frozen=config.freeze)
    if not files.load(state) and init_from is not None:
        RunFiles(init_from).load_weights(state)
    source = BatchSource(config.data, config.seed, where)
    bar = ProgressBar(config.steps, state.step, report)
    with _interrupts() as interrupted:
        try:
            _loop(config, state, source, files, bar, interrupted)
        finally:
            bar.close()
    files.save(state)
    plot_losses(files.log, files.plot)
    model.load_state_dict(state.average, strict=False)
    return model.eval()


def _loop(
    config: TrainConfig,
    state: State,
    source: BatchSource,
    files: RunFiles,
    bar: ProgressBar,
    interrupted: threading.Event,
) -> None:
    optimizer = state.optimizer
    began = saved = time.monotonic()
    already = state.elapsed
    interval = Interval.start(source.device)
    bad_in_a_row = 0
    look = _forward(config, state.model, source)
    state.model.train()
    while state.step < config.steps and not interrupted.is_set():
        state.elapsed = already + time.monotonic() - began
        if config.minutes is not None and state.elapsed >= 60 * config.minutes:
            break
        progress = _progress(config, state)
        lr = learning_rate(config, state.step, progress)
        for group in optimizer.param_groups:
            group["lr"] = lr
            group["weight_decay"] = config.weight_decay
        torch.manual_seed(stream_seed(config.seed, _STEP_STREAM, state.step))  # dropout
        good = _step(config, state, look, progress, interval)
        bad_in_a_row = 0 if good else bad_in_a_row + 1
        if bad_in_a_row >= MOST_BAD_STEPS:
            raise FomoError(
                f"the loss has not been finite for {MOST_BAD_STEPS} steps (step {state.step} of {files.directory});"
                " lower --lr, or look at the prior's settings"
            )
        state.step += 1
        if state.step % config.log_every == 0 or state.step == config.steps:
            state.elapsed = already + time.monotonic() - began
            line = interval.line(state.step, lr, state.elapsed)
            files.append_log(line)
            bar.log(line)
            interval = Interval.start(source.device)
        if config.keep_every and state.step % config.keep_every == 0:
            files.keep_weights(state)
        if time.monotonic() - saved > config.save_every:
            files.save(state)
            plot_losses(files.log, files.plot)
            saved = time.monotonic()
        bar.step(state.step)
    state.elapsed = already + time.monotonic() - began


def _step(config: TrainConfig, state: State, look: Forward, progress: float, interval: Interval) -> bool:
    """One update of the weights and their average; False where the loss or its gradient was not finite."""
    seen = look(state.step, progress)
    kept = ((seen.best >= config.min_auc) & (seen.best <= config.max_auc)).float()
    each = F.binary_cross_entropy_with_logits(seen.logits, seen.labels, reduction="none").mean(1)
    loss = (each * kept).sum() / kept.sum().clamp_min(1.0)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(state.trained, config.clip)
    interval.steps += 1
    interval.rows += seen.rows
    if not bool(torch.isfinite(norm)):
        interval.bad += 1
        return False
    if bool(kept.any()):
        state.optimizer.step()
        state.update_average(config.ema)
    interval.loss = interval.loss + loss.detach()
    interval.auroc = interval.auroc + auroc(seen.logits.detach(), seen.labels).mean()
    interval.kept = interval.kept + kept.mean()
    interval.norm = interval.norm + norm
    return True


def _forward(config: TrainConfig, model: nn.Module, source: BatchSource) -> Forward:
    """How a step's data becomes logits: over pages of evidence where they are all that the model reads."""
    if (
        isinstance(model, ZeroShotModel)
        and (model.config.fusion or model.config.evidence)
        and not model.config.raw_features
    ):
        pages = PageSource(source, model, config.period)

        def by_evidence(step: int, progress: float) -> Seen:
            page = pages.page(step, progress)
            return Seen(logits_of_page(model, page.context, page.queries), page.labels, page.best, page.rows)

        return by_evidence

    def by_rows(step: int, progress: float) -> Seen:
        batch = source.batch(step % config.period if config.period else step, progress)
        context, queries = batch.context.double(), batch.queries.double()  # as in inference
        logits = model(context, queries, batch.n_features).float()
        if config.min_auc > 0 or config.max_auc < 1:
            with torch.no_grad():
                channels = evidence_channels(queries, fit_evidence(context, batch.n_features)[0])
            best = auroc(channels, batch.labels).amax(1)
        else:
            best = torch.full((len(logits),), 0.5, device=logits.device)
        return Seen(logits, batch.labels, best, len(logits) * (context.shape[1] + queries.shape[1]))

    return by_rows


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Linear warm-up, then a cosine down to `final_lr` of the peak (or constant). `progress` in [0, 1]."""
    warm = min(1.0, (step + 1) / max(1, config.warmup))
    if config.schedule == "constant":
        return config.lr * warm
    cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
    return config.lr * warm * (config.final_lr + (1 - config.final_lr) * cosine)


def _progress(config: TrainConfig, state: State) -> float:
    """How far the run is, by steps or by time, whichever will end it."""
    by_time = state.elapsed / (60 * config.minutes) if config.minutes else 0.0
    return max(state.step / config.steps, by_time)


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
