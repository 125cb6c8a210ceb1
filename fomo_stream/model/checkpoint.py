"""Checkpoints: safetensors weights whose metadata holds the configuration, the training summary and a digest.

Nothing is unpickled, and a file that is truncated, altered or of another format is refused before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fomo_stream.errors import CheckpointError, ConfigError, renamed_keyword
from fomo_stream.model.architecture import CompiledModel, Model, ModelConfig, parameter_shapes

if TYPE_CHECKING:
    from fomo_stream.model.zero_shot import ZeroShotModel

Arrays = dict[str, NDArray[Any]]

FORMAT = "fomo-stream/1"
MAX_BYTES = 1 << 30  # of a checkpoint
DEFAULT_MODEL = "streams"
TABLE_MODEL = "fomo"  # the best one for rows in no order
GONE_MODELS = ("fusion", "fusion-router")  # of earlier builds
BACKENDS = ("auto", "numba", "torch")
SHIPPED = Path(__file__).parents[1] / "weights"


def shipped_models() -> list[str]:
    """Names that `load_model` takes besides paths and "default", which is the one for streams."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def _weights_digest(config: str, training: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over the configuration, the training summary and every weight, by name."""
    hashed = hashlib.sha256(f"{config}\n{training}\n".encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hashed.update(f"{name} torch.{array.dtype} {arrays[name].shape}".encode())  # as torch writes it
        hashed.update(array.tobytes())
    return hashed.hexdigest()


def save_model(model: Model, path: str | Path, training: Mapping[str, Any] | None = None, half: bool = False) -> None:
    """Write a checkpoint atomically. training: JSON-serialisable information about the training; half: store weights
    rounded to float16, in half the space (they are float32 again after loading)."""
    path = Path(path)
    dtype = np.float16 if half else np.float32
    tensors = {name: value.astype(dtype) for name, value in model.arrays().items()}
    config = json.dumps(asdict(model.config), sort_keys=True)
    summary = json.dumps(dict(training or {}), sort_keys=True)
    metadata = {
        "format": FORMAT,
        "config": config,
        "training": summary,
        "digest": _weights_digest(config, summary, tensors),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata=metadata)
    os.replace(partial, path)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Format, configuration, digest and training summary of a checkpoint, without its weights."""
    return _read_checkpoint(Path(path), weights=False)[0]


def _read_checkpoint(path: Path, weights: bool = True) -> tuple[dict[str, Any], Arrays]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 30} GiB")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if weights else {}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not a readable checkpoint, it may be truncated ({error}); fetch it again"
        ) from None
    version = metadata.get("format")
    if version != FORMAT:
        raise CheckpointError(f"{path} has format {version!r}, this version of fomo-stream reads {FORMAT!r}")
    summaries = metadata.get("config", ""), metadata.get("training", "")
    if weights and _weights_digest(*summaries, tensors) != metadata.get("digest"):
        raise CheckpointError(f"{path} does not match its digest: it was altered or damaged; fetch it again")
    try:
        parsed = {**metadata, "config": json.loads(metadata["config"]), "training": json.loads(metadata["training"])}
        ModelConfig.from_dict(parsed["config"])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has damaged metadata ({error}); fetch it again") from None
    return parsed, tensors


def resolve_device(device: str = "auto") -> str:
    """The device of torch: "auto" is the GPU where there is one. Raises ConfigError if this machine lacks the device.

    torch, which takes seconds to load, is asked only about a GPU.
    """
    if device == "cpu" or (device == "auto" and not _has_driver()):
        return "cpu"
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"there is no device {device!r}; use auto, cpu, cuda, or cuda:N for one of several GPUs"
        ) from None
    try:
        torch.zeros(1, dtype=torch.float64, device=chosen).item()  # distances are computed in float64
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); try cpu") from None
    return str(chosen)


def _has_driver() -> bool:
    """Return whether this machine may have a GPU that torch can use: without a driver it has none."""
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


def resolve_backend(backend: str, device: str, config: ModelConfig) -> str:
    """Return the backend of a model of this configuration on this device: "numba" or "torch".

    backend: "numba" (on a CPU, for every model but one of raw features), "torch", or "auto": numba where possible.
    Raises ConfigError for another name, and for numba where it cannot be used.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"there is no backend {backend!r}; backends are {', '.join(BACKENDS)}")
    if backend == "torch":
        return backend
    reason = ""
    if not device.startswith("cpu"):
        reason = f"runs on a CPU, not on {device.partition(':')[0]}"
    elif config.raw_features:
        reason = "has no kernels for a model of raw features"
    elif find_spec("numba") is None:
        reason = "is not installed"
    if reason and backend == "numba":
        raise ConfigError(f"the backend numba {reason}; use torch, or auto to choose")
    return "torch" if reason else "numba"


def checkpoint_path(name_or_path: str | Path = "default") -> Path:
    """The file of a model, by shipped name or path; it is not opened.

    Raises CheckpointError for an unknown name and for a file that is missing.
    """
    text = DEFAULT_MODEL if str(name_or_path) == "default" else str(name_or_path)
    shipped = shipped_models()
    path = SHIPPED / f"{text}.safetensors" if text in shipped else Path(text)
    if path.suffix != ".safetensors":
        where = "a .safetensors file"
        if text == "paper-100":  # 9 MB, left out of the wheel and the image
            where = "fomo_stream/weights/paper-100.safetensors in a clone of the repository, the only place that has it"
        instead = (
            f"; it is gone: for tables use {TABLE_MODEL}, for streams {DEFAULT_MODEL}" if text in GONE_MODELS else ""
        )
        raise CheckpointError(
            f"no model named {text!r}{instead}; shipped: {', '.join(shipped)}; or give the path of {where}"
        )
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}; shipped models: {', '.join(shipped)}")
    return path


@renamed_keyword("kernel", "backend")
def load_model(name_or_path: str | Path = "default", device: str = "auto", backend: str = "auto") -> Model:
    """A model ready to score, by shipped name or by path to a .safetensors file; on `device`.

    device: "auto" is the CPU for a model that has kernels there, because it is slower on a GPU; else as in
    `resolve_device`. backend: see `resolve_backend`; with torch, the model is a `ZeroShotModel` in eval mode. Raises
    CheckpointError for an unknown name and for a file that is missing, truncated, altered, or of another format.
    """
    target = "cpu" if device == "auto" else resolve_device(device)
    name, config, weights = _checked_checkpoint(checkpoint_path(name_or_path))
    if resolve_backend(backend, target, config) == "numba":
        return CompiledModel(name, config, weights)
    return _of_torch(name, config, weights, resolve_device(device))


def load_torch_model(name_or_path: str | Path = "default", device: str = "auto") -> ZeroShotModel:
    """`load_model` with the backend torch."""
    return _of_torch(*_checked_checkpoint(checkpoint_path(name_or_path)), resolve_device(device))


def _checked_checkpoint(path: Path) -> tuple[str, ModelConfig, Arrays]:
    """Name, architecture and weights, float32, of a checkpoint."""
    metadata, arrays = _read_checkpoint(path)
    config = ModelConfig.from_dict(metadata["config"])
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise CheckpointError(f"{path} contains weights that are not finite: its training failed; use another one")
    expected, shapes = parameter_shapes(config), {name: array.shape for name, array in arrays.items()}
    if expected != shapes:
        differ = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
        what = f"{differ[0]} has the shape {shapes.get(differ[0])}, not {expected.get(differ[0])}"
        raise CheckpointError(f"{path} does not hold the weights its configuration asks for ({what})")
    name = f"{path.stem}@{metadata['digest'][:8]}"
    return name, config, {key: array.astype(np.float32) for key, array in arrays.items()}


def _of_torch(name: str, config: ModelConfig, weights: Arrays, device: str) -> ZeroShotModel:
    import torch

    from fomo_stream.model.zero_shot import GPU_TILE, TILE, ZeroShotModel

    model = ZeroShotModel(config, name)
    model.tile = TILE if device.startswith("cpu") else GPU_TILE
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    return model.to(device).eval().requires_grad_(False)


@lru_cache(maxsize=8)
def shared_model(name_or_path: str = "default", device: str = "auto", backend: str = "auto") -> Model:
    """`load_model`, once per process and name: detectors and estimators share the weights, which never change."""
    return load_model(name_or_path, device, backend)
