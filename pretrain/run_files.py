"""What a run keeps on disk. Every file is written beside its place and then moved there: none is ever half written."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fomo_stream.errors import CheckpointError, ConfigError

FORMAT = "fomo-pretrain-1"


def as_json(config: Any) -> dict[str, Any]:
    """A configuration as it looks after a trip through JSON, so that it can be compared with one that was read."""
    read: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return read


@dataclass
class State:
    """Everything that a step changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    trained: list[nn.Parameter]
    average: dict[str, Tensor]  # moving average of the weights; buffers are copied
    step: int = 0
    elapsed: float = 0.0  # seconds of training so far, over all resumptions

    @classmethod
    def fresh(cls, model: nn.Module, frozen: str = "") -> State:
        """Parameters whose names begin with `frozen` (if not empty) are not trained."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (frozen and name.startswith(frozen)))
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            raise ConfigError(f"--freeze {frozen} leaves nothing to train")
        average = {name: value.detach().clone() for name, value in model.state_dict().items()}
        return cls(model, torch.optim.AdamW(trained, weight_decay=0.0), trained, average)

    def update_average(self, decay: float) -> None:
        """Early on the average is over fewer steps than `decay` says, or the start would linger in it."""
        decay = min(decay, (1 + self.step) / (10 + self.step)) if decay else 0.0
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    self.average[name].lerp_(value, 1 - decay)
                else:
                    self.average[name].copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name, on the CPU."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"average.{name}": value for name, value in self.average.items()}
        for i, parameter in enumerate(self.trained):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"optimizer.{i}.{key}"] = value
        return {name: value.detach().cpu().contiguous().clone() for name, value in found.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Become what `tensors` gave."""
        try:
            self.model.load_state_dict(_below("model.", tensors))
        except RuntimeError as error:
            raise CheckpointError(f"the run was saved by another version of the model: {error}") from None
        for name, value in _below("average.", tensors).items():
            self.average[name].copy_(value)
        for i, parameter in enumerate(self.trained):
            moments = _below(f"optimizer.{i}.", tensors)
            if moments:  # the step count stays on the CPU, as the optimiser itself keeps it
                self.optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device) for key, value in moments.items()
                }


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def source_commit() -> str:
    """The commit of the source that runs, `-dirty` if it was changed since, or `unknown` outside a repository."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


class RunFiles:
    """Paths and formats of one run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "config.json"
        self.state = directory / "state.safetensors"
        self.source = directory / "commit.txt"
        self.log = directory / "log.jsonl"
        self.plot = directory / "loss.png"

    def claim(self, config: dict[str, Any]) -> None:
        """Write the configuration, or check that it is the one the run began with (its length may change)."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.state.exists():
            before = self.read_config()
            free = {"steps", "minutes", "log_every", "save_every", "keep_every"}
            other = sorted(k for k in config if k not in free and config[k] != before.get(k))
            if other:
                raise ConfigError(
                    f"{self.directory} holds a run with another {', '.join(other)};"
                    " choose another --out or the same flags"
                )
        else:
            _replace(self.source, lambda path: _write_text(path, source_commit() + "\n"))
        _replace(self.config, lambda path: _write_text(path, json.dumps(config, indent=1) + "\n"))

    def commit(self) -> str:
        """The commit that the run began with, or `unknown`."""
        return self.source.read_text().strip() if self.source.exists() else "unknown"

    def read_config(self) -> dict[str, Any]:
        """Raises CheckpointError where there is no run."""
        try:
            read: dict[str, Any] = json.loads(self.config.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{self.directory} is no training run: {error}") from None
        return read

    def save(self, state: State) -> None:
        metadata = {"format": FORMAT, "step": str(state.step), "elapsed": repr(state.elapsed)}
        tensors = state.tensors()
        _replace(self.state, lambda path: save_file(tensors, path, metadata))

    def load(self, state: State) -> bool:
        """Restore the state and cut the log back to it; False where the run has not saved anything yet."""
        if not self.state.exists():
            _replace(self.log, lambda path: _write_text(path, ""))
            return False
        tensors, metadata = _read(self.state)
        state.restore(tensors)
        state.step, state.elapsed = int(metadata["step"]), float(metadata["elapsed"])
        kept = [line for line in read_log(self.log) if line["step"] <= state.step]
        _replace(self.log, lambda path: _write_text(path, "".join(json.dumps(line) + "\n" for line in kept)))
        return True

    def load_weights(self, state: State) -> list[str]:
        """Take over this run's averaged weights where names and shapes match; returns the names."""
        if not self.state.exists():
            raise CheckpointError(f"{self.directory} has no saved weights to start from")
        weights = _below("average.", _read(self.state)[0])
        mine = state.model.state_dict()
        shared = {n: w for n, w in weights.items() if n in mine and mine[n].shape == w.shape}
        if not shared:
            raise CheckpointError(f"no weight of {self.directory} has a name and shape that this model knows")
        state.model.load_state_dict(shared, strict=False)
        for name, value in shared.items():
            state.average[name].copy_(value)
        return sorted(shared)

    def weights(self, step: int | None = None) -> tuple[dict[str, Tensor], int]:
        """Averaged weights, and after how many steps: the last saved ones, or those kept after `step`."""
        if step is None:
            tensors, metadata = _read(self.state)
            return _below("average.", tensors), int(metadata["step"])
        return _read(self._kept(step))[0], step

    def keep_weights(self, state: State) -> None:
        """Save the averaged weights under the number of the step."""
        weights = {name: value.cpu().contiguous().clone() for name, value in state.average.items()}
        metadata = {"format": FORMAT, "step": str(state.step)}
        _replace(self._kept(state.step), lambda path: save_file(weights, path, metadata))

    def append_log(self, line: dict[str, float]) -> None:
        with self.log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _kept(self, step: int) -> Path:
        return self.directory / f"weights-{step}.safetensors"


def read_log(path: Path) -> list[dict[str, float]]:
    """Lines of a run's log; a last line that a crash cut short is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; the run has to start again") from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by this version of pretrain ({metadata.get('format')})")
    return tensors, metadata


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside `path`, flush to the disk, move into place: readers see the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
