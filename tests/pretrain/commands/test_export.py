"""`export`: checkpoints from runs, and mean attention in the place of softmax attention."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_runs import DATA_FLAGS, TINY, assert_same, weights

from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.model.architecture import PRESETS as MODELS
from fomo_stream.model.checkpoint import SHIPPED, load_torch_model, read_metadata, save_model
from fomo_stream.model.scoring import encode_rows, logits_of
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.__main__ import main, parser
from pretrain.commands.export import scaled
from pretrain.commands.flags import configuration
from pretrain.training.run_files import RunFiles
from pretrain.training.train import train

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_export_of_a_checkpoint_copies_it_and_has_no_steps_to_choose_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "model.safetensors", tmp_path / "copy.safetensors"
    save_model(ZeroShotModel(MODELS["tiny"]), source, {"steps": 3})
    assert main(["export", str(source), "--out", str(target)]) == 0
    assert read_metadata(target) == read_metadata(source)  # with the digest of all weights
    assert main(["export", str(source), "--out", str(target), "--select", "lowest-loss"]) == ConfigError.exit_code
    assert "--select chooses among the weights of a run" in capsys.readouterr().err


def test_export_refuses_what_could_not_be_loaded_or_was_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(TINY, tmp_path / "run", "cpu")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == ConfigError.exit_code
    assert "ends in .safetensors" in capsys.readouterr().err
    target = str(tmp_path / "model.safetensors")
    assert main(["export", str(tmp_path), "--out", target]) == CheckpointError.exit_code
    assert "is no training run" in capsys.readouterr().err
    assert (
        main(["export", str(tmp_path / "run"), "--out", target, "--select", "lowest-loss"]) == CheckpointError.exit_code
    )
    assert "kept no weights to choose from" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        "--preset tiny --layers 2 --routers 0 --set shape.width=12 --set spaces=z,whitened",
        "--preset paper-20 --layers 1 --set width=16 --set quantile=False --set raw_features=5",
    ],
)
def test_export_writes_a_checkpoint_that_the_product_loads(tmp_path: Path, flags: str) -> None:
    """Of another shape than that of the preset: `export` reads it from the run."""
    given_flags = [*DATA_FLAGS, *flags.split(), "--steps", "3", "--set", "log_every=1", "--set", "best_every=1"]
    config = configuration(parser().parse_args(["train", "--out", "X", *given_flags]))
    assert main(["train", "--out", str(tmp_path / "run"), *given_flags]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model.safetensors")]) == 0
    training = read_metadata(tmp_path / "model.safetensors")["training"]
    assert (training["steps"], training["settings"]["data"]["batch"], bool(training["commit"])) == (3, 2, True)
    assert [line["step"] for line in training["log"]] == [1, 3]
    loaded = load_torch_model(str(tmp_path / "model.safetensors"), "cpu")
    assert loaded.config == config.network != MODELS[config.model]
    assert_same(weights(loaded), RunFiles(tmp_path / "run").weights()[0])


@given(scale=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_a_scale_multiplies_the_logits(scale: float, seed: int) -> None:
    model = load_torch_model("streams", "cpu")
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
    assert main(["export", str(SHIPPED / "streams.safetensors"), "--scale", "2", "--out", str(once)]) == 0
    assert main(["export", str(once), "--scale", "1.5", "--out", str(twice)]) == 0
    assert [read_metadata(path)["training"]["scale"] for path in (once, twice)] == [4.0, 6.0]  # after 2 of the file
