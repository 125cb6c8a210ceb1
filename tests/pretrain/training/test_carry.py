"""Packs: what a run needs to go on elsewhere, in a few small files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.__main__ import main
from pretrain.priors.mixture import DataConfig
from pretrain.training.carry import FILE_BYTES, MOST_FILES, pack, restored, rounded, unpack
from pretrain.training.presets import PRESETS
from pretrain.training.run_files import RunFiles, State, read_log, read_tensors
from pretrain.training.train import TrainConfig, train

DATA = DataConfig(max_features=5, batch=2, context_min=20, context_max=40, queries=16)
TINY = TrainConfig(model="tiny", steps=8, log_every=2, best_every=2, warmup=2, save_every=1e9, data=DATA)
pytestmark = pytest.mark.usefixtures("no_pictures")


def run_to(step: int, run: Path) -> Path:
    """A run of TINY that stands at `step`, though it is to go on to 8."""
    train(replace(TINY, steps=step, schedule="constant"), run, "cpu", report=lambda line: None)
    return run


def finish(run: Path) -> dict[str, Tensor]:
    """Go on to the end; the state then."""
    train(replace(TINY, schedule="constant"), run, "cpu", report=lambda line: None)
    return load_file(run / "state.safetensors")


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_training_goes_on_from_a_pack_as_from_the_rounded_state(tmp_path: Path) -> None:
    """Bit for bit, and close to the run that never travelled."""
    here = run_to(4, tmp_path / "here")
    pack(here, tmp_path / "pack")
    assert unpack(tmp_path / "pack", tmp_path / "there") == 4
    shutil.copytree(here, tmp_path / "rounded")
    tensors, about = read_tensors(here / "state.safetensors")
    save_file(restored(rounded(tensors)), tmp_path / "rounded" / "state.safetensors", about)
    there = finish(tmp_path / "there")
    assert_same(there, finish(tmp_path / "rounded"))
    whole = finish(here)
    for name, value in there.items():
        assert torch.allclose(value, whole[name], rtol=0.05, atol=1e-3), name
    assert [line["step"] for line in read_log(tmp_path / "there" / "log.jsonl")] == [2, 4, 6, 8]


def test_weights_travel_exactly_and_the_rest_nearly(tmp_path: Path) -> None:
    run = run_to(4, tmp_path / "run")
    pack(run, tmp_path / "pack")
    unpack(tmp_path / "pack", tmp_path / "there")
    before, after = (load_file(d / "state.safetensors") for d in (run, tmp_path / "there"))
    assert before.keys() == after.keys()
    for name, value in before.items():
        if name.startswith("model.") or name.endswith(".step"):
            assert torch.equal(value, after[name]), name
        elif name.startswith("average."):
            gap = (value - before["model." + name.removeprefix("average.")]).abs()
            assert ((after[name] - value).abs() <= gap / 250 + 1e-7).all(), name
        else:
            assert torch.equal(value.bfloat16().float(), after[name]), name
    for name in ("config.json", "commit.txt", "log.jsonl"):
        assert (run / name).read_text() == (tmp_path / "there" / name).read_text()
    best, there = (RunFiles(d).lowest_loss() for d in (run, tmp_path / "there"))
    assert best[1] == there[1]
    for name, value in best[0].items():
        assert torch.allclose(value, there[0][name], atol=1e-4)


def test_a_pack_of_a_pack_is_the_same(tmp_path: Path) -> None:
    """Rounding twice rounds once: pieces of a run may be as short as they like."""
    pack(run_to(4, tmp_path / "run"), tmp_path / "pack")
    unpack(tmp_path / "pack", tmp_path / "there")
    once = load_file(tmp_path / "there" / "state.safetensors")
    again = restored(rounded(once))
    for name, value in once.items():
        assert torch.allclose(value, again[name], rtol=0, atol=1e-7), name


@settings(max_examples=30, deadline=None)
@given(scale=st.floats(1e-8, 1e8), gap=st.floats(0, 1.0), seed=st.integers(0, 99))
def test_an_average_loses_a_hundredth_of_its_distance_to_the_weights_at_most(
    scale: float, gap: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = scale * torch.randn(50, generator=generator)
    average = weights + gap * scale * torch.randn(50, generator=generator)
    back = restored(rounded({"model.w": weights, "average.w": average}))
    bound = (average - weights).abs() / 100 + weights.abs() * 1e-6
    assert ((back["average.w"] - average).abs() <= bound).all()
    assert torch.equal(back["model.w"], weights)


@pytest.mark.parametrize("preset", ["paper-100", "paper-20"])
def test_the_largest_preset_fits_in_six_files_of_16_mib(tmp_path: Path, preset: str) -> None:
    """With moments for every weight, an average, the best weights and a long log."""
    config = PRESETS[preset]
    files = RunFiles(tmp_path / "run")
    files.claim(config)
    state = State.fresh(ZeroShotModel(config.network))
    for parameter in state.trained:
        parameter.grad = torch.randn_like(parameter)
    state.optimizer.step()
    state.update_average(0.9)
    for step in range(50, 200_001, 50):
        state.step = step
        if step % 10_000 == 0:
            files.append_log({"step": step, "loss": 1 / step, "auroc": 0.9, "lr": 0.001, "seconds": float(step)})
    files.keep_best(state, 10_000)
    files.save(state)
    parts = pack(tmp_path / "run", tmp_path / "pack")
    assert sorted(parts) == sorted((tmp_path / "pack").iterdir())
    assert len(parts) <= MOST_FILES
    assert max(part.stat().st_size for part in parts) < FILE_BYTES
    assert unpack(tmp_path / "pack", tmp_path / "there") == 200_000
    assert_same(
        {n: v for n, v in state.tensors().items() if n.startswith("model.")},
        {n: v for n, v in load_file(tmp_path / "there" / "state.safetensors").items() if n.startswith("model.")},
    )


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two packs of two parts each: the same run at step 2 and at step 4."""
    home = tmp_path_factory.mktemp("packs")
    config = replace(TINY, model="fusion-router", schedule="constant")
    wide = replace(config.network, width=512, feed_forward=512)
    for step in (2, 4):
        train(replace(config, steps=step, shape=wide), home / "run", "cpu", report=lambda line: None)
        pack(home / "run", home / str(step))
    return home / "2", home / "4"


def test_parts_of_different_steps_are_refused(tmp_path: Path, packs: tuple[Path, Path]) -> None:
    first, second = (sorted(p.iterdir()) for p in packs)
    assert len(first) >= 2
    for path in [first[0], *second[1:]]:
        shutil.copy(path, tmp_path)
    with pytest.raises(CheckpointError, match="mixes parts of steps 2, 4"):
        unpack(tmp_path, tmp_path / "run")


def test_a_missing_part_is_named(tmp_path: Path, packs: tuple[Path, Path]) -> None:
    shutil.copytree(packs[0], tmp_path / "pack")
    next((tmp_path / "pack").glob("part-2-*")).unlink()
    with pytest.raises(CheckpointError, match="lacks part 2 of"):
        unpack(tmp_path / "pack", tmp_path / "run")


@pytest.mark.parametrize("damage", ["flip", "cut", "header"])
def test_a_damaged_part_is_refused(tmp_path: Path, packs: tuple[Path, Path], damage: str) -> None:
    shutil.copytree(packs[0], tmp_path / "pack")
    part = next((tmp_path / "pack").glob("part-1-*"))
    content = bytearray(part.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        del content[-100:]
    else:
        content[:2] = b"zz"
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"digest|damaged"):
        unpack(tmp_path / "pack", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_new_pack_takes_the_place_of_the_old_one(tmp_path: Path, packs: tuple[Path, Path]) -> None:
    shutil.copytree(packs[1], tmp_path / "pack")
    pack(run_to(2, tmp_path / "small"), tmp_path / "pack")
    assert [path.name for path in (tmp_path / "pack").iterdir()] == ["part-1-of-1.pack"]
    assert unpack(tmp_path / "pack", tmp_path / "run") == 2


def test_a_run_is_not_set_back_by_an_older_pack(tmp_path: Path) -> None:
    run = run_to(2, tmp_path / "run")
    pack(run, tmp_path / "pack")
    run_to(4, run)
    with pytest.raises(ConfigError, match=r"stands at step 4, the pack in .* at 2"):
        unpack(tmp_path / "pack", run)


def test_another_run_is_not_overwritten_by_a_pack(tmp_path: Path) -> None:
    pack(run_to(4, tmp_path / "run"), tmp_path / "pack")
    other = tmp_path / "other"
    train(replace(TINY, steps=2, lr=0.5), other, "cpu", report=lambda line: None)
    before = {path: path.read_bytes() for path in other.iterdir()}
    with pytest.raises(ConfigError, match="another lr"):
        unpack(tmp_path / "pack", other)
    assert {path: path.read_bytes() for path in other.iterdir()} == before
    run_to(2, tmp_path / "behind")  # the same run, not as far: that is what packs are for
    assert unpack(tmp_path / "pack", tmp_path / "behind") == 4


def test_train_in_pieces_with_packs_in_between(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands as one would give them on a machine that is lent for a few minutes."""
    flags = ["--preset", "tiny", "--device", "cpu", "--steps", "1000000", "--max-features", "5", "--set", "log_every=1"]
    steps: list[int] = []
    for piece in ("one", "two"):
        run = str(tmp_path / piece)
        if steps:
            assert main(["unpack", str(tmp_path / "pack"), "--out", run]) == 0
        stop = ["--stop-after", "0.02", "--pack-to", str(tmp_path / "pack")]
        assert main(["train", *flags, "--out", run, *stop]) == 0
        steps.append(RunFiles(tmp_path / piece).weights()[1])
    assert 0 < steps[0] < steps[1]
    assert main(["pack", str(tmp_path / "two"), "--out", str(tmp_path / "again")]) == 0
    assert "1 files" in capsys.readouterr().out
    line = next((tmp_path / "pack").iterdir()).read_bytes().partition(b"\n")[0]
    assert json.loads(line)["step"] == steps[1]


def test_nothing_to_pack_or_unpack_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(tmp_path), "--out", str(tmp_path / "x")]) == CheckpointError.exit_code
    assert "is no training run" in capsys.readouterr().err
    assert main(["unpack", str(tmp_path), "--out", str(tmp_path / "x")]) == CheckpointError.exit_code
    assert "holds no pack" in capsys.readouterr().err
