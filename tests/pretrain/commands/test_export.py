"""`export`: checkpoints from runs, and mean attention in the place of softmax attention."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training_runs import DATA_FLAGS, TINY, assert_same, weights

from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.model.checkpoint import SHIPPED, load_torch_model, read_metadata, save_model
from fomo_stream.model.config import PRESETS as MODELS
from fomo_stream.model.config import ModelConfig
from fomo_stream.model.scoring import encode_rows, logits_of
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.__main__ import main, parser
from pretrain.commands.export import scaled, with_mean_attention
from pretrain.commands.flags import configuration
from pretrain.training.presets import with_settings
from pretrain.training.run_files import RunFiles
from pretrain.training.train import train

pytestmark = pytest.mark.usefixtures("no_pictures")
SHAPES = {
    "router": ModelConfig(fusion=False, layers=2, width=16, heads=4, feed_forward=32, routers=5),
    "fusion-router": ModelConfig(layers=3, width=16, heads=2, feed_forward=32, routers=5),
    "raw": ModelConfig(
        raw_features=6, evidence=False, fusion=False, layers=2, width=16, heads=2, feed_forward=32, routers=0
    ),
}


def test_export_writes_a_checkpoint_that_the_product_loads(tmp_path: Path) -> None:
    config = replace(TINY, keep_every=4)
    trained = train(config, tmp_path / "run", "cpu")
    target = tmp_path / "tiny.safetensors"
    assert main(["export", str(tmp_path / "run"), "--out", str(target)]) == 0
    loaded = load_torch_model(str(target), "cpu")
    assert_same(weights(trained), weights(loaded))
    training = read_metadata(target)["training"]
    assert training["steps"] == 8
    assert training["settings"]["data"]["batch"] == 2
    assert training["commit"]
    assert [line["step"] for line in training["log"]] == [2, 8]
    assert main(["export", str(tmp_path / "run"), "--out", str(target), "--step", "4"]) == 0
    assert read_metadata(target)["training"]["steps"] == 4


def test_export_converts_a_run_and_a_checkpoint_to_mean_attention(tmp_path: Path) -> None:
    train(with_settings(TINY, {"shape.attention": "softmax", "shape.layers": 2}), tmp_path / "run", "cpu")
    exact, *converted = (tmp_path / f"{name}.safetensors" for name in ("exact", "of-run", "of-checkpoint"))
    assert main(["export", str(tmp_path / "run"), "--out", str(exact)]) == 0
    for source, target in zip((tmp_path / "run", exact), converted, strict=True):
        assert main(["export", str(source), "--mean-attention", "--out", str(target)]) == 0
        loaded = load_torch_model(target, "cpu")
        assert loaded.config == replace(load_torch_model(exact, "cpu").config, attention="mean")
        assert_same(weights(loaded), weights(with_mean_attention(load_torch_model(exact, "cpu"))))
        training = read_metadata(target)["training"]
        assert training["mean_attention"]["replaces"].startswith("softmax attention of ")
        assert {name: training[name] for name in ("steps", "commit")} == {
            name: read_metadata(exact)["training"][name] for name in ("steps", "commit")
        }


def test_export_of_a_checkpoint_copies_it_and_has_no_steps_to_choose_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "model.safetensors", tmp_path / "copy.safetensors"
    save_model(ZeroShotModel(MODELS["tiny"]), source, {"steps": 3})
    assert main(["export", str(source), "--out", str(target)]) == 0
    assert read_metadata(target) == read_metadata(source)  # with the digest of all weights
    assert main(["export", str(source), "--out", str(target), "--step", "3"]) == ConfigError.exit_code
    assert "--step and --select choose among the weights of a run" in capsys.readouterr().err
    assert main(["export", str(source), "--out", str(target), "--mean-attention"]) == ConfigError.exit_code
    assert "no softmax attention" in capsys.readouterr().err


def test_export_refuses_what_could_not_be_loaded_or_was_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(replace(TINY, keep_every=4), tmp_path / "run", "cpu")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == ConfigError.exit_code
    assert "ends in .safetensors" in capsys.readouterr().err
    target = str(tmp_path / "model.safetensors")
    assert main(["export", str(tmp_path), "--out", target]) == CheckpointError.exit_code
    assert "is no training run" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--out", target, "--step", "5"]) == CheckpointError.exit_code
    assert "steps it kept: 4, 8" in capsys.readouterr().err


def make(name: str, preference: float) -> ZeroShotModel:
    """A model whose queries have weights `preference` times as large as the others: 0 is no preference at all."""
    torch.manual_seed(0)
    model = ZeroShotModel(SHAPES[name]).eval().requires_grad_(False)
    for path, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.2 * (preference if ".cross.query" in path else 1.0))
    return model


def largest_change(name: str, preference: float, n: int = 40, d: int = 3, seed: int = 0) -> float:
    exact = make(name, preference)
    mean = with_mean_attention(exact)
    rng = np.random.default_rng(seed)
    context, queries = rng.normal(size=(n, d)), rng.normal(size=(30, d)) * 2
    logits = [logits_of(model, encode_rows(model, context), queries) for model in (exact, mean)]
    return float(np.abs(logits[1] - logits[0]).max())


@given(name=st.sampled_from(list(SHAPES)), n=st.integers(2, 90), d=st.integers(1, 6), seed=st.integers(0, 999))
def test_logits_stay_where_softmax_attention_had_no_preference(name: str, n: int, d: int, seed: int) -> None:
    assert largest_change(name, 0.0, n, d, seed) < 2e-5


@pytest.mark.parametrize("name", SHAPES)
def test_logits_change_where_it_had_one(name: str) -> None:
    assert largest_change(name, 5.0) > 2e-3


@pytest.mark.parametrize(
    "flags",
    [
        "--preset tiny --layers 2 --routers 0",
        "--preset tiny --set shape.width=12 --set heads=3 --set fusion=False",
        "--preset paper-20 --layers 1 --set width=16 --set quantile=False --set raw_features=5",
    ],
)
def test_a_model_of_another_shape_is_trained_and_exported(tmp_path: Path, flags: str) -> None:
    """`export` reads the shape from the run."""
    given_flags = [*DATA_FLAGS, *flags.split(), "--steps", "3", "--set", "log_every=1", "--set", "best_every=1"]
    config = configuration(parser().parse_args(["train", "--out", "X", *given_flags]))
    assert main(["train", "--out", str(tmp_path / "run"), *given_flags]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model.safetensors")]) == 0
    loaded = load_torch_model(str(tmp_path / "model.safetensors"), "cpu")
    assert loaded.config == config.network != MODELS[config.model]
    assert_same(weights(loaded), RunFiles(tmp_path / "run").weights()[0])


@given(scale=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_a_scale_multiplies_the_logits(scale: float, seed: int) -> None:
    model = load_torch_model("fusion", "cpu")
    context, queries = np.random.default_rng(seed).normal(size=(2, 50, 3))
    logits = [logits_of(one, encode_rows(one, context), queries) for one in (model, scaled(model, scale))]
    np.testing.assert_allclose(logits[1], scale * logits[0], rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize(
    ("scale", "name", "reason"), [(2.0, "tiny", "has one"), (-1.0, "fusion", "above 0"), (math.nan, "fusion", "above")]
)
def test_no_scale_for_a_transformer_and_none_that_is_no_scale(scale: float, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        scaled(ZeroShotModel(MODELS[name], name), scale)


def test_a_checkpoint_says_by_how_much_its_logits_are_scaled_in_all(tmp_path: Path) -> None:
    once, twice = tmp_path / "once.safetensors", tmp_path / "twice.safetensors"
    assert main(["export", str(SHIPPED / "fusion.safetensors"), "--scale", "2", "--out", str(once)]) == 0
    assert main(["export", str(once), "--scale", "1.5", "--out", str(twice)]) == 0
    assert [read_metadata(path)["training"]["scale"] for path in (once, twice)] == [2.0, 3.0]
