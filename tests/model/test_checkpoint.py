"""Checkpoints and encoded contexts, saved and loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.model import checkpoint
from fomo_stream.model.architecture import PRESETS, ModelConfig
from fomo_stream.model.checkpoint import (
    SHIPPED,
    load_model,
    load_torch_model,
    read_metadata,
    resolve_backend,
    save_model,
    shared_model,
    shipped_models,
)
from fomo_stream.model.scoring import context_type, encode_rows, flatten_arrays, logits_of, unflatten_arrays
from fomo_stream.model.zero_shot import ZeroShotModel

# --- checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    torch.manual_seed(3)
    save_model(ZeroShotModel(PRESETS["tiny"]), path, {"steps": 12})
    return path


def test_what_is_saved_is_loaded(saved: Path) -> None:
    model = load_torch_model(saved)
    torch.manual_seed(3)
    for name, value in ZeroShotModel(PRESETS["tiny"]).state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert model.config == PRESETS["tiny"]
    assert not model.training
    assert read_metadata(saved)["training"] == {"steps": 12}


@pytest.mark.parametrize("kept", [0.0, 0.99])
def test_truncated_checkpoint_is_refused(saved: Path, kept: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(CheckpointError, match="truncated"):
        load_model(saved)


def test_every_flipped_weight_byte_is_noticed(saved: Path) -> None:
    whole = saved.read_bytes()
    for position in range(len(whole) - 600, len(whole), 37):
        saved.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match="digest"):
            load_model(saved)


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"layers": 1, "width": 8.5},
        {"colour": 1},
        {"attention": "linear"},
        {"attention": 1},
        {"spaces": "whitened,z"},
        {"width": -1},
        {"layers": 1, "fusion": False, "raw_features": 4, "heads": 0},
        {"layers": 1, "fusion": False, "raw_features": 4, "heads": 3},
        {"raw_features": 10**9},
        {"fusion_dropout": float("nan")},
        {"routers": "9" * 10_000},
    ],
)
def test_configuration_that_makes_no_sense_is_refused(config: Any) -> None:
    with pytest.raises(CheckpointError, match="configuration"):
        ModelConfig.from_dict(config)


def test_half_precision_halves_the_file_and_keeps_the_scores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ZeroShotModel(replace(PRESETS["paper-20"], layers=1)).eval()
    for half in (False, True):
        save_model(model, tmp_path / f"{half}.safetensors", half=half)
    sizes = [(tmp_path / f"{half}.safetensors").stat().st_size for half in (False, True)]
    assert sizes[1] < 0.55 * sizes[0]
    loaded = load_torch_model(tmp_path / "True.safetensors", "cpu")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    context, queries = torch.randn(50, 3, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    expected, found = (m.score_queries(m.encode_context(context), queries) for m in (model, loaded))
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=5e-3)


def config_of_a_billion_layers(path: Path) -> None:
    model = ZeroShotModel(PRESETS["tiny"])
    model.config = replace(PRESETS["tiny"], layers=10**9)
    save_model(model, path)


def deep_metadata(path: Path) -> None:
    config = "[" * 100_000
    about = {"format": "fomo-stream/1", "config": config, "training": "{}"}
    digest = hashlib.sha256(f"{config}\n{{}}\n".encode()).hexdigest()
    save_file({}, path, metadata={**about, "digest": digest})


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(50 << 30)


def broken_weights(path: Path) -> None:
    model = ZeroShotModel(PRESETS["fusion"])
    with torch.no_grad():
        model.fusion_bias.fill_(float("nan"))
    save_model(model, path)


def weights_of_another_configuration(path: Path) -> None:
    model = ZeroShotModel(PRESETS["tiny"])
    model.config = PRESETS["fusion"]
    save_model(model, path)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (broken_weights, "weights that are not finite"),
        (weights_of_another_configuration, "configuration"),
        (lambda path: save_file({}, path, metadata={"format": "fomo-stream/99"}), "fomo-stream/99"),
        (lambda path: path.write_text("hello"), "not a readable checkpoint"),
        (config_of_a_billion_layers, "odd.safetensors .* layers = 1000000000, expected 0 to 100"),
        (deep_metadata, "odd.safetensors has damaged metadata"),
        (huge, "odd.safetensors .* more than 1 GiB"),
    ],
)
def test_what_is_no_whole_checkpoint_is_refused(tmp_path: Path, write: Callable[[Path], Any], says: str) -> None:
    write(tmp_path / "odd.safetensors")
    with pytest.raises(CheckpointError, match=says):
        load_model(tmp_path / "odd.safetensors")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"device": "gpu"}, "there is no device 'gpu'; use auto, cpu, cuda, or cuda:N"),
        ({"device": "cuda:x"}, "there is no device 'cuda:x'"),
        ({"device": "cuda:99"}, "cannot be used"),
        ({"device": "meta"}, "cannot be used"),
        ({"backend": "c"}, "there is no backend 'c'; backends are auto, numba, torch"),
        (
            {"name_or_path": "paper-100", "backend": "numba"},
            "numba has no kernels for a model of raw features; use torch",
        ),
    ],
)
def test_an_unusable_device_or_kernel_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_model(**asked)


def test_auto_is_the_gpu_only_for_models_that_run_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []

    def to(model: ZeroShotModel, device: str) -> ZeroShotModel:
        moved.append(device)
        return model

    monkeypatch.setattr(checkpoint, "_has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ZeroShotModel, "to", to)
    assert [load_model(name).kernel for name in ("streams", "fomo")] == ["numba"] * 2
    assert load_model("default", "auto", "numba").kernel == "numba"
    assert moved == []
    with pytest.raises(ConfigError, match="the backend numba runs on a CPU, not on cuda"):
        resolve_backend("numba", "cuda:0", PRESETS["fomo"])
    for model, kernel in (("paper-100", "auto"), ("default", "torch")):
        assert load_model(model, "auto", kernel).kernel == "torch"
        assert moved.pop() == "cuda"
    load_model("paper-100", "cpu")
    assert moved == ["cpu"]


def test_weights_that_only_the_repository_has_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "streams.safetensors").touch()
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path)  # as in the wheel
    with pytest.raises(CheckpointError, match=r"shipped: streams; .* fomo_stream/weights/paper-100\.\S+ in a"):
        load_model("paper-100")


@pytest.mark.parametrize("name", shipped_models())
def test_shipped_models_load_and_say_how_they_were_trained(name: str) -> None:
    model = load_model(name)
    assert model.name.startswith(f"{name}@")
    training = read_metadata(SHIPPED / f"{name}.safetensors")["training"]
    assert training["commit"]
    assert training["steps"] > 0
    assert (SHIPPED / f"{name}.md").exists()


# --- cache arrays


@given(
    of=st.sampled_from([*((name, "auto") for name in shipped_models()), ("fomo", "torch"), ("streams", "torch")]),
    n=st.integers(4, 60),
    d=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_what_is_restored_scores_the_same(of: tuple[str, str], n: int, d: int, seed: int) -> None:
    name, kernel = of
    rng = np.random.default_rng(seed)
    rows, model = rng.normal(size=(n, d)), shared_model(name, backend=kernel)
    rows[rng.random(size=rows.shape) < 0.05] = np.nan
    cache = encode_rows(model, rows)
    arrays = flatten_arrays(cache, "cache")
    again = unflatten_arrays(context_type(model), arrays, "cache", torch.device("cpu"))
    queries = rng.normal(size=(7, d)) * 3
    np.testing.assert_array_equal(logits_of(model, again, queries), logits_of(model, cache, queries))
    restored = flatten_arrays(again, "cache")
    assert restored.keys() == arrays.keys()
    for path, array in arrays.items():
        assert restored[path].dtype == array.dtype
        np.testing.assert_array_equal(restored[path], array)
