"""All commands of `python -m pretrain`: their help, the packages that they need, and the display of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import DATA_FLAGS, TINY

from fomo_stream.errors import ConfigError
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.__main__ import COMMANDS, main
from pretrain.commands.train import RunDisplay
from pretrain.training.run_files import read_log
from pretrain.training.train import train

# As if only torch, numpy, scipy and safetensors were installed, as on a rented GPU machine
BARE = """
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = "sklearn matplotlib pandas pyod numba threadpoolctl river confluent_kafka pydantic_settings orjson"
        return None if name.partition(".")[0] in absent.split() else super().find_spec(name, path, target)

sys.meta_path = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
import numpy as np
from fomo_stream import Detector, DetectorConfig, load_model
model = load_model("default", "cpu")  # without numba, torch scores
scored = Detector(model, 2, DetectorConfig(min_context=20)).process(np.random.default_rng(0).normal(size=(60, 2)))
assert (model.kernel, np.isfinite(scored.logit[-1])) == ("torch", True)
from pretrain.__main__ import main
print([main(command.split()) for command in sys.argv[1:]])
"""


def test_training_and_evaluation_need_few_packages_and_the_rest_says_what_to_install(tmp_path: Path) -> None:
    small = "--device cpu --set data.max_features=5 --set data.context_min=20 --set data.context_max=40"
    np.savez(tmp_path / "table.npz", X=np.eye(20), y=np.arange(20) < 3)
    commands = [
        f"train --preset tiny --steps 2 --out run {small}",
        "export run --out model.safetensors",
        f"ablate --base tiny --vary lr=0.1 --steps 1 --datasets 2 --out study {small}",
        "evaluate --stress --datasets in-distribution --datasets-per-row 1 --context 50 --model model.safetensors"
        " --device cpu --out stress",
        "evaluate . --device cpu",
        "evaluate . --baselines knn",
        "attend --out x.png",
    ]
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BARE, *commands]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.splitlines()[-1] == str([0] * 4 + [ConfigError.exit_code] * 3), done.stderr
    for name in ("model.safetensors", "study/report.md", "stress/report.md"):
        assert (tmp_path / name).exists(), name
    assert not list(tmp_path.rglob("*.png"))
    assert all("pip install 'fomo-stream[pretrain]'" in line for line in done.stderr.splitlines()[-3:]), done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"python -m pretrain {command}" in capsys.readouterr().out


def test_every_log_line_is_printed_and_the_loss_curve_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = replace(TINY, steps=4)
    train(short, tmp_path, "cpu", observer=RunDisplay())
    lines, log = capsys.readouterr().err.splitlines(), read_log(tmp_path / "log.jsonl")
    assert [line.split()[:2] for line in lines] == [[f"step={x['step']}/4", f"loss={x['loss']:.4f}"] for x in log]
    first = (tmp_path / "loss.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    train(replace(short, steps=6), tmp_path, "cpu", observer=RunDisplay())
    assert (tmp_path / "loss.png").read_bytes() != first


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("able", [True, False])
def test_bf16_on_a_cpu_that_is_slow_at_it_is_pointed_out(
    able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": able}, raising=False)
    flags = ["train", "--preset", "tiny", "--steps", "1", "--precision", "bf16", *DATA_FLAGS]
    assert main([*flags, "--out", str(tmp_path)]) == 0
    assert ("ten times slower" in capsys.readouterr().err) == (not able)


@pytest.mark.slow
def test_smoke_tries_all_parts_and_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)  # fails for more than one line
    assert found["resume"] == "bit-equal"
    assert found["run_mib"] < 64
    assert found["seconds"] < 180
    for name in ("prior_s", "transform_s", "fp32_step_s", "score_1000_s", "score_5000_s", "checkpoint_mib", "peak_mib"):
        assert found[name] > 0, name
    assert found["bf16_step_s"] or "AMX" in found["bf16_skipped"]


@pytest.mark.slow
def test_smoke_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ZeroShotModel.forward_features
    monkeypatch.setattr(ZeroShotModel, "forward_features", lambda *inputs: usual(*inputs) * torch.nan)
    assert main(["smoke", "--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "pretrain: step: the loss is nan after 3 steps of fp32\n")
