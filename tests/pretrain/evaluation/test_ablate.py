"""Ablations: every variant is trained once and evaluated on the same data."""

from __future__ import annotations

import csv
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_runs import TINY

from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.model.checkpoint import load_model
from pretrain.__main__ import main
from pretrain.commands.ablate import grid
from pretrain.evaluation.ablate import Ablation, ablate, held_back_data, held_back_tasks
from pretrain.evaluation.studies import SIZES, STUDIES, configured
from pretrain.priors.mixture import BatchSource
from pretrain.training.presets import with_settings
from pretrain.training.run_files import read_log
from pretrain.training.train import Observer

TINY_SETTINGS = ("width=8", "heads=2", "feed_forward=8", "queries=16", "context_min=20", "context_max=40", "batch=2")
SMALL = ["--base", "paper-20", "--datasets", "4", "--device", "cpu", *(f"--set={text}" for text in TINY_SETTINGS)]
THREE_STEPS = ["--steps", "3", "--set", "log_every=1"]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of two depths, with two seeds, two tables, and pictures."""
    home = tmp_path_factory.mktemp("ablation")
    rng = np.random.default_rng(0)
    (home / "tables").mkdir()
    for name, d in (("narrow", 3), ("wide", 12)):
        rows = np.concatenate([rng.normal(size=(60, d)), rng.normal(4, 1, size=(10, d))])
        np.savez(home / "tables" / f"{name}.npz", X=rows, y=np.repeat([0, 1], [60, 10]))
    assert main(command(home)) == 0
    return home


def command(home: Path) -> list[str]:
    vary = ["--vary", "layers=1,2", "--vary", "routers=0", "--seeds", "2"]
    return ["ablate", *vary, *SMALL, *THREE_STEPS, "--tables", str(home / "tables"), "--out", str(home / "out")]


def test_every_combination_has_a_line_with_cost_and_quality(done: Path) -> None:
    lines = read(done / "out" / "results.csv")
    labels = ["layers=1, routers=0", "layers=2, routers=0"]
    assert [line["variant"] for line in lines] == labels
    for line in lines:
        assert (line["seeds"], float(line["steps"])) == ("2", 3.0)
        assert all(float(line[name]) > 0 for name in ("ms_per_step", "parameters", "loss"))
        assert all(0 < float(line[name]) <= 100 for name in ("auroc", "aupr", "tables_auroc", "tables_aupr"))
    assert float(lines[1]["parameters"]) > float(lines[0]["parameters"])
    report = (done / "out" / "report.md").read_text()
    assert all(f"| {label} | 3 |" in report for label in labels)
    assert "Tables: 2 in tables" in report
    assert (done / "out" / "layers=1_routers=0/seed-0/loss.png").read_bytes().startswith(b"\x89PNG")
    assert all(label in (done / "out" / "auroc_p.svg").read_text() for label in labels)
    model = load_model(str(done / "out" / "layers=2_routers=0" / "seed-1" / "model-3.safetensors"), "cpu")
    assert (model.config.layers, model.config.routers, model.config.raw_features) == (2, 0, 8)


@pytest.mark.usefixtures("no_pictures")
def test_models_of_each_context_are_evaluated_at_every_size(tmp_path: Path) -> None:
    assert main(["ablate", "context", *SMALL, "--steps", "1", "--out", str(tmp_path)]) == 0
    study = STUDIES["context"]
    trained = [variant.label for variant in study.variants["small"]]
    sizes = study.contexts["small"]
    lines = read(tmp_path / "results.csv")
    assert [line["variant"] for line in lines] == [f"{label}, {n} in evaluation" for label in trained for n in sizes]
    assert len(list(tmp_path.rglob("*/model-1.safetensors"))) == len(trained) == 3
    runs = read(tmp_path / "synthetic.csv")
    assert [int(run["n_context"]) for run in runs] == [n for _ in trained for n in sizes for _ in range(4)]
    assert len({line["auroc"] for line in lines}) > len(trained)  # the size counts


def test_two_settings_are_varied_in_every_combination() -> None:
    labels = ["layers=1, routers=4", "layers=1, routers=0", "layers=2, routers=4", "layers=2, routers=0"]
    assert [variant.label for variant in grid(["layers=1,2", "routers=4,0"])] == labels


@pytest.mark.usefixtures("no_pictures")
def test_nothing_is_computed_twice(done: Path) -> None:
    files = list((done / "out").rglob("*.safetensors"))
    before = {path: path.stat().st_mtime_ns for path in files}
    evaluated_before = read(done / "out" / "synthetic.csv")
    assert len(evaluated_before) == 2 * 2 * 4
    assert main(command(done)) == 0
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert read(done / "out" / "synthetic.csv") == evaluated_before


@pytest.mark.usefixtures("no_pictures")
def test_results_on_other_data_or_of_another_training_are_not_reported(tmp_path: Path) -> None:
    """The largest context of all variants decides on the held-back data."""

    def study(*flags: str) -> list[dict[str, str]]:
        assert main(["ablate", *SMALL, "--out", str(tmp_path), "--steps", "1", *flags]) == 0
        return read(tmp_path / "results.csv")

    first = study("--vary", "data.context_max=30,40")[0]
    again = study("--vary", "data.context_max=30,60")[0]
    assert first["variant"] == again["variant"] == "data.context_max=30"
    assert len(read(tmp_path / "synthetic.csv")) == 4 * 4  # 2 variants on 4 datasets, twice
    assert first["auroc"] != again["auroc"]
    shutil.rmtree(tmp_path / "data.context_max=30")
    other = study("--vary", "data.context_max=30", "--set", "lr=0.5")[0]
    assert len(read(tmp_path / "synthetic.csv")) == 5 * 4
    assert other["auroc"] != again["auroc"]


def test_variants_are_evaluated_on_the_same_rows() -> None:
    """Smaller contexts are parts of the larger ones."""
    configs = [configured("paper-20", "small", {"data.max_features": d, "shape.raw_features": d}) for d in (4, 8)]
    data = held_back_data(configs[0].data, [config.data for config in configs])
    assert (data.max_features, data.context_min, data.context_max) == (8, 300, 300)
    study = Ablation([], data, Path(), datasets=10)
    for large, small in zip(held_back_tasks(study, 300), held_back_tasks(study, 50), strict=True):
        first, second = large.draw(), small.draw()
        assert (first.context[:50] == second.context).all()
        assert (first.queries == second.queries).all()
        assert first.queries.shape[1] <= 8


def test_no_training_run_has_the_held_back_data() -> None:
    data = configured("paper-20", "small", {"data.batch": 1}).data
    task = next(iter(held_back_tasks(Ablation([], data, Path(), datasets=1), 300))).draw()
    for seed in range(3):
        batch = BatchSource(data, seed).batch(0)
        assert batch.queries.shape[1:] != task.queries.shape or not np.array_equal(batch.queries[0], task.queries)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_variants_that_differ_and_can_be_run(name: str, size: str) -> None:
    study = STUDIES[name]
    variants = study.variants[size]
    configs = [configured(study.base, size, variant.settings) for variant in variants]
    assert len(variants) >= 2
    assert len({variant.label for variant in variants}) == len(variants)
    assert all(first != second for i, first in enumerate(configs) for second in configs[:i])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "name a study"),
        (["--vary", "colour=1,2"], "no setting colour"),
        (["depth", "--seeds", "0"], "at least 1"),
        (["--vary", "routers=1,,2"], "PATH=V1"),
    ],
)
def test_bad_flags_say_what_to_do(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main(["ablate", *flags]) == ConfigError.exit_code
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_ctrl_c_ends_the_study_which_is_then_resumed(tmp_path: Path) -> None:
    config = replace(TINY, steps=3, log_every=1)
    configs = [(variant, with_settings(config, dict(variant.settings))) for variant in grid(["lr=0.1,0.2"])]
    study = Ablation(configs, configs[0][1].data, tmp_path, datasets=2, device="cpu")

    class CtrlC(Observer):
        def logged(self, line: Mapping[str, float]) -> None:
            if line["step"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(FomoError, match="run the same command again"):
        ablate(study, "lr", CtrlC())
    assert [path.name for path in tmp_path.iterdir()] == ["lr=0.1"]
    assert [result.steps for result in ablate(study, "lr", Observer())] == [3, 3]
    assert [line["step"] for line in read_log(tmp_path / "lr=0.1" / "seed-0" / "log.jsonl")] == [1, 2, 3]


@pytest.mark.usefixtures("no_pictures")
def test_minutes_may_end_a_run_before_its_first_log_line(tmp_path: Path) -> None:
    flags = ["ablate", *SMALL, "--vary", "layers=1,2", "--minutes", "0.001", "--set", "log_every=100000"]
    assert main([*flags, "--out", str(tmp_path)]) == 0
    assert all(float(line["steps"]) >= 1 for line in read(tmp_path / "results.csv"))
