"""The files of a training run. Every file is written under another name and then renamed, so none is half written."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fomo_stream.errors import CheckpointError, ConfigError
from pretrain.training.state import State, averaged_weights

FORMAT = "fomo-pretrain-1"
# settings that may differ when a run is resumed
CHANGEABLE = {"steps", "minutes", "log_every", "save_every", "best_every", "precision", "moments"}


def as_json(config: Any) -> dict[str, Any]:
    """A configuration as it is read back from JSON, for comparison with a saved one."""
    read: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return read


def _differences(first: dict[str, Any], second: dict[str, Any], where: str = "") -> list[str]:
    """Paths of the settings that differ; one that only one of the versions of pretrain has does not count."""
    found = []
    for name in sorted(first.keys() & second.keys()):
        one, two = first[name], second[name]
        if isinstance(one, dict) and isinstance(two, dict):
            found += _differences(one, two, f"{where}{name}.")
        elif one != two:
            found.append(f"{where}{name}")
    return found


def source_commit() -> str:
    """The commit of the running source, with `-dirty` if files were changed, or `unknown` outside a repository."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
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
        self.best = directory / "best.safetensors"

    def claim(self, settings: Any) -> None:
        """Write the configuration (a dataclass); if there is a saved state, check it against the saved one first.

        Only the settings in CHANGEABLE may change. Raises ConfigError for any other change.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        config = as_json(settings)
        if not self.state.exists():
            replace_file(self.source, lambda path: _write_text(path, source_commit() + "\n"))
        elif found := [path for path in _differences(self.read_config(), config) if path not in CHANGEABLE]:
            raise ConfigError(
                f"{self.directory} holds a run with another {', '.join(found)}; choose another --out or the same flags"
            )
        replace_file(self.config, lambda path: _write_text(path, json.dumps(config, indent=1) + "\n"))

    def commit(self) -> str:
        """The commit that the run began with, or `unknown`."""
        return self.source.read_text().strip() if self.source.exists() else "unknown"

    def read_config(self) -> dict[str, Any]:
        """Raises CheckpointError if the directory holds no run."""
        try:
            read: dict[str, Any] = json.loads(self.config.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{self.directory} is no training run: {error}") from None
        return read

    def save(self, state: State) -> None:
        metadata = {"format": FORMAT, "step": str(state.step), "elapsed": repr(state.elapsed)}
        tensors = state.tensors()
        replace_file(self.state, lambda path: save_file(tensors, path, metadata))

    def load(self, state: State) -> None:
        """Restore the saved state, if there is one, and remove later lines of the log."""
        if not self.state.exists():
            replace_file(self.log, lambda path: _write_text(path, ""))
            self.best.unlink(missing_ok=True)
            return
        tensors, metadata = read_tensors(self.state)
        state.restore(tensors)
        state.step, state.elapsed = int(metadata["step"]), float(metadata["elapsed"])
        kept = [line for line in read_log(self.log) if line["step"] <= state.step]
        replace_file(self.log, lambda path: _write_text(path, "".join(json.dumps(line) + "\n" for line in kept)))

    def weights(self) -> tuple[dict[str, Tensor], int]:
        """The last saved averaged weights and their step."""
        if not self.state.exists():
            raise CheckpointError(f"{self.directory} has not saved anything yet; train it first")
        tensors, metadata = read_tensors(self.state)
        return averaged_weights(tensors), int(metadata["step"])

    def keep_best(self, state: State, every: int) -> None:
        """Save the averaged weights if the mean loss in the log's last `every` steps is the lowest so far."""
        loss = mean_loss(read_log(self.log), state.step - every, state.step)
        if loss is None or (self.best.exists() and loss >= float(read_tensors(self.best)[1]["loss"])):
            return
        metadata = {"format": FORMAT, "step": str(state.step), "loss": repr(loss)}
        replace_file(self.best, lambda path: save_file(state.averaged(), path, metadata))

    def lowest_loss(self) -> tuple[dict[str, Tensor], int]:
        """Averaged weights with the lowest training loss, and their step. Needs `best_every`."""
        if not self.best.exists():
            raise CheckpointError(f"{self.directory} kept no weights to choose from; train with --set best_every=1000")
        tensors, metadata = read_tensors(self.best)
        return tensors, int(metadata["step"])

    def append_log(self, line: dict[str, float]) -> None:
        with self.log.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_log(path: Path) -> list[dict[str, float]]:
    """Lines of a run's log, without an incomplete last line (after a crash)."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def mean_loss(log: list[dict[str, float]], after: int, until: int) -> float | None:
    """Mean loss of the steps in (after, until] from the log lines; None if no line there has a finite loss.

    Lines are weighted by their steps, because an interval in which the run stopped has two shorter lines.
    """
    total = steps = 0.0
    for before, line in zip([0, *(line["step"] for line in log)], log, strict=False):
        if after < line["step"] <= until and math.isfinite(line["loss"]):
            total += line["loss"] * (line["step"] - before)
            steps += line["step"] - before
    return total / steps if steps else None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file of a run. Raises CheckpointError for a damaged or foreign file."""
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


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file, flush it to the disk, rename it to `path`: readers see the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
