"""A run packed for a journey: everything that going on needs, in at most 6 files under 16 MiB each.

Machines that are lent for minutes give back a few small files. A pack is the run's state as one safetensors blob, cut
into parts. The weights are exact; the moments of the optimiser are rounded to bf16, and so is the *difference* between
the weights and their moving average (and the best weights so far), so that an average that stands close to the weights
loses next to nothing. Each part names the step and the digest of the whole: parts of different packs are refused.

A part is one line of JSON, then bytes. Weights kept by `keep_every` stay behind.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save, save_file
from torch import Tensor

from fomo_stream.errors import CheckpointError, ConfigError
from pretrain.training.run_files import FORMAT, RunFiles, below, read_log, read_tensors, replace_file

PACK_FORMAT = "fomo-pack-1"
MOST_FILES = 6
FILE_BYTES = 16 * 2**20
_HEADER_BYTES = 1024  # of each file, at most
_ROUNDED = (".exp_avg", ".exp_avg_sq", ".max_exp_avg_sq")


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """State tensors as they travel: weights as they are, moments in bf16, averages as bf16 differences to the weights.

    tensors: by name, `model.*`, `average.*`, `optimizer.*` (see `State.tensors`), and `best.*`.
    """
    found = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        if kind in ("average", "best") and value.is_floating_point():
            value = (value - tensors[f"model.{rest}"]).bfloat16()
        elif name.endswith(_ROUNDED):
            value = value.bfloat16()
        found[name] = value.contiguous()
    return found


def restored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `rounded` gave, as state tensors again."""
    found = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        if value.dtype == torch.bfloat16:
            value = value.float()
            if kind in ("average", "best"):
                value = value + tensors[f"model.{rest}"]
        found[name] = value
    return found


def pack(run: Path, out: Path) -> list[Path]:
    """Write the saved state of a run to `out`, in place of any pack there; returns the files."""
    files = RunFiles(run)
    config = files.read_config()
    if not files.state.exists():
        raise CheckpointError(f"{run} has not saved anything yet; train it first")
    tensors, about = read_tensors(files.state)
    notes: dict[str, Any] = {"config": config, "commit": files.commit(), "log": read_log(files.log), "state": about}
    if files.best.exists():
        best, notes["best"] = read_tensors(files.best)
        tensors |= {f"best.{name}": value for name, value in best.items()}
    text = torch.frombuffer(bytearray(json.dumps(notes).encode()), dtype=torch.uint8)
    return _write_parts(save(rounded(tensors) | {"notes": text}), int(about["step"]), out)


def unpack(source: Path, run: Path) -> int:
    """Make `run` a run that goes on where the packed one stood; returns the step.

    Raises CheckpointError for a pack that is incomplete, damaged, or mixed from several, and ConfigError where `run`
    has come further already or is another run.
    """
    tensors = load(_read_parts(source))
    notes = json.loads(tensors.pop("notes").numpy().tobytes())
    step, files = int(notes["state"]["step"]), RunFiles(run)
    if files.state.exists():
        files.compare(files.read_config(), notes["config"])
        if (there := int(read_tensors(files.state)[1]["step"])) > step:
            raise ConfigError(f"{run} stands at step {there}, the pack in {source} at {step}; choose another --out")
    run.mkdir(parents=True, exist_ok=True)
    tensors = restored(tensors)
    best = below("best.", tensors)
    state = {name: value for name, value in tensors.items() if not name.startswith("best.")}
    log = "".join(json.dumps(line) + "\n" for line in notes["log"])
    texts = [(files.config, json.dumps(notes["config"], indent=1) + "\n"), (files.source, notes["commit"] + "\n")]
    for target, text in [*texts, (files.log, log)]:
        replace_file(target, lambda path, text=text: path.write_text(text))  # type: ignore[misc]
    files.best.unlink(missing_ok=True)
    if best:
        replace_file(files.best, lambda path: save_file(best, path, notes["best"]))
    replace_file(files.state, lambda path: save_file(state, path, {**notes["state"], "format": FORMAT}))
    return step


@dataclass(frozen=True)
class _Part:
    """A file of a pack. The header's line ends with a newline."""

    path: Path
    step: int
    part: int
    parts: int
    digest: str
    offset: int  # bytes of the header


def _write_parts(blob: bytes, step: int, out: Path) -> list[Path]:
    room = FILE_BYTES - _HEADER_BYTES
    parts = -(-len(blob) // room)
    if parts > MOST_FILES:
        raise CheckpointError(
            f"the state takes {len(blob) / 2**20:.0f} MiB, a pack holds {MOST_FILES * room / 2**20:.0f} MiB:"
            " the model is too large to travel"
        )
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(blob).hexdigest()
    targets = [out / f"part-{i + 1}-of-{parts}.pack" for i in range(parts)]
    size = -(-len(blob) // parts)
    for i, target in enumerate(targets):
        about = {"format": PACK_FORMAT, "step": step, "part": i + 1, "parts": parts, "digest": digest}
        content = json.dumps(about).encode() + b"\n" + blob[i * size : (i + 1) * size]
        replace_file(target, lambda path, content=content: path.write_bytes(content))  # type: ignore[misc]
    for old in set(out.glob("part-*-of-*.pack")) - set(targets):
        old.unlink()
    return targets


def _read_parts(source: Path) -> bytes:
    """The blob of the pack in a directory."""
    found = sorted((_header(path) for path in source.glob("part-*-of-*.pack")), key=lambda part: part.part)
    if not found:
        raise CheckpointError(f"{source} holds no pack (part-1-of-N.pack ...)")
    steps = sorted({part.step for part in found})
    if len({part.digest for part in found}) > 1:
        of = f"of steps {', '.join(map(str, steps))}" if len(steps) > 1 else f"of different runs at step {steps[0]}"
        raise CheckpointError(f"{source} mixes parts {of}; keep the files of one pack only")
    numbers, parts = [part.part for part in found], found[0].parts
    if missing := sorted(set(range(1, parts + 1)) - set(numbers)):
        raise CheckpointError(f"{source} lacks part {', '.join(map(str, missing))} of {parts}; fetch it too")
    blob = b"".join(part.path.read_bytes()[part.offset :] for part in found)
    if hashlib.sha256(blob).hexdigest() != found[0].digest:
        raise CheckpointError(f"{source} does not match its digest: a part is damaged or doubled; fetch it again")
    return blob


def _header(path: Path) -> _Part:
    with path.open("rb") as file:
        line = file.readline(_HEADER_BYTES)
    try:
        about = json.loads(line)
        if about["format"] != PACK_FORMAT:
            raise CheckpointError(f"{path} has format {about['format']!r}, this version reads {PACK_FORMAT!r}")
        return _Part(path, int(about["step"]), int(about["part"]), int(about["parts"]), about["digest"], len(line))
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} is no part of a pack, or damaged; fetch it again") from None
