"""Training: resuming, stopping, refusing, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fomo_stream.errors import CheckpointError, ConfigError, FomoError
from fomo_stream.model.checkpoint import load_model, read_metadata
from fomo_stream.model.zero_shot import PRESETS as MODELS
from fomo_stream.model.zero_shot import ModelConfig, ZeroShotModel
from pretrain.__main__ import main, parser
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.training.evidence_pages import PageSource, evidence_page, logits_of_page
from pretrain.training.presets import PRESETS, configuration
from pretrain.training.run_files import RunFiles, State, mean_loss, read_log
from pretrain.training.train import TrainConfig, learning_rate, train

DATA = DataConfig(max_features=5, batch=2, context_min=20, context_max=40, queries=16)
TINY = TrainConfig(model="tiny", steps=8, log_every=2, warmup=2, data=DATA)
SMALL = ["--max-features", "5", "--batch", "2", "--context-min", "20", "--context-max", "40"]  # DATA by flags
SMALL += ["--queries", "16", "--device", "cpu"]
pytestmark = pytest.mark.usefixtures("no_pictures")


def quiet(_: str) -> None:
    """Swallows progress."""


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def without_times(path: Path) -> list[dict[str, float]]:
    names = ("step", "loss", "auroc", "kept", "grad_norm", "lr", "skipped")
    return [{name: line[name] for name in names} for line in read_log(path)]


def stop_after(config: TrainConfig, steps: int, run_dir: Path) -> None:
    """Stop a run by a signal, as Ctrl-C would, once it has logged `steps`."""

    def interrupt(line: str) -> None:
        if f"step={steps} " in line:
            os.kill(os.getpid(), signal.SIGINT)

    train(config, run_dir, "cpu", report=interrupt)


@pytest.mark.parametrize("model", ["tiny", "fusion", "fusion-router"])
@pytest.mark.parametrize("period", [0, 3])
def test_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, model: str, period: int) -> None:
    config = replace(TINY, model=model, period=period, min_auc=0.55)
    whole = train(config, tmp_path / "whole", "cpu", report=quiet)
    stop_after(config, 4, tmp_path / "parts")
    assert read_log(tmp_path / "parts" / "log.jsonl")[-1]["step"] == 4
    parts = train(config, tmp_path / "parts", "cpu", report=quiet)
    assert_same(weights(whole), weights(parts))
    assert without_times(tmp_path / "whole" / "log.jsonl") == without_times(tmp_path / "parts" / "log.jsonl")
    one, two = (load_file(tmp_path / d / "state.safetensors") for d in ("whole", "parts"))
    assert_same(one, two)


def training_under_way(flags: list[str]) -> subprocess.Popen[str]:
    """A training run in a process of its own that has logged its first steps."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pretrain", "train", *flags],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step="):
            break
    return process


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """SIGKILL at any moment: what is on disk is whole, and the end is as if nothing had happened."""
    config = replace(TINY, steps=20)
    flags = ["--preset", "tiny", "--steps", "20", *SMALL, "--out", str(tmp_path / "killed"), "--set", "warmup=2"]
    flags += ["--set", "save_every=0.001", "--set", "log_every=2", "--set", "lr=0.001"]
    process = training_under_way(flags)
    assert process.stderr is not None
    process.kill()
    process.wait()
    process.stderr.close()
    assert 1 <= RunFiles(tmp_path / "killed").weights()[1] < 20
    assert main(["train", *flags]) == 0
    whole = train(config, tmp_path / "whole", "cpu", report=quiet)
    found, step = RunFiles(tmp_path / "killed").weights()
    assert step == 20
    assert_same(found, weights(whole))


def test_sigterm_saves_and_ends_cleanly(tmp_path: Path) -> None:
    process = training_under_way(
        ["--preset", "tiny", "--steps", "1000000", *SMALL, "--out", str(tmp_path), "--set", "log_every=1"]
    )
    assert process.stderr is not None
    process.terminate()
    process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    _, step = RunFiles(tmp_path).weights()
    assert step == read_log(tmp_path / "log.jsonl")[-1]["step"] >= 1
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def test_training_lowers_the_loss_on_the_batches_it_sees(tmp_path: Path) -> None:
    config = TrainConfig(
        model="fusion", steps=160, lr=0.05, warmup=5, log_every=20, period=10,  # every line sees every batch twice
        data=replace(DATA, batch=4, context_min=100, context_max=150, queries=64),
    )  # fmt: skip
    train(config, tmp_path, "cpu", report=quiet)
    log = read_log(tmp_path / "log.jsonl")
    assert log[-1]["loss"] < 0.985 * log[0]["loss"]
    assert log[-1]["auroc"] > log[0]["auroc"]


def test_same_seed_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (
        weights(train(replace(TINY, seed=s), tmp_path / str(i), "cpu", report=quiet)) for i, s in enumerate((1, 1, 2))
    )
    assert_same(first, again)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_any_module_with_the_same_call_can_be_trained(tmp_path: Path) -> None:
    class Distance(nn.Module):
        """Distance to the mean of the context, scaled and shifted."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.0))
            self.shift = nn.Parameter(torch.tensor(0.0))

        def forward(self, context: Tensor, queries: Tensor, n_features: Tensor) -> Tensor:
            center, deviation = context.mean(1, True), context.std(1, keepdim=True) + 1e-6
            size = ((queries - center) / deviation).square().sum(-1) / n_features[:, None]
            return self.scale * size.log1p() + self.shift

    model = train(replace(TINY, steps=20, lr=0.05), tmp_path, "cpu", model=Distance(), report=quiet)
    assert model.scale.item() != 0  # type: ignore[operator]


def test_logits_from_pages_of_evidence_equal_a_forward_pass() -> None:
    batch = BatchSource(DATA, 0).batch(0)
    for name in ("fusion", "router", "fusion-router", "tiny"):
        torch.manual_seed(0)
        model = ZeroShotModel(MODELS[name]).eval()
        for parameter in model.parameters():  # the output projections start at zero, which would hide mistakes
            nn.init.normal_(parameter, std=0.1)
        page = evidence_page(batch)
        with torch.no_grad():
            paged = logits_of_page(model, page.context, page.queries)
            for b, d in enumerate(batch.n_features.tolist()):
                one = slice(b, b + 1)
                whole = model(
                    batch.context[one, :, :d].double(), batch.queries[one, :, :d].double(), batch.n_features[one]
                )
                assert torch.allclose(paged[one], whole.float(), atol=1e-4)


def test_pages_come_round_after_the_period() -> None:
    pages = PageSource(BatchSource(DATA, 0), ZeroShotModel(MODELS["tiny"]), period=2)
    first, second, third = (pages.page(step, 0.0) for step in range(3))
    assert third is first
    assert not torch.equal(second.queries, first.queries)


def test_datasets_outside_the_auroc_window_are_left_out_of_the_loss(tmp_path: Path) -> None:
    config = replace(TINY, model="fusion", max_auc=0.0)
    start = weights(ZeroShotModel(MODELS["fusion"]))
    trained = train(config, tmp_path, "cpu", report=quiet)
    assert_same(start, weights(trained))
    assert {line["kept"] for line in read_log(tmp_path / "log.jsonl")} == {0.0}


def test_a_frozen_fusion_stays_as_it_was_loaded(tmp_path: Path) -> None:
    fusion = train(replace(TINY, model="fusion", lr=0.05), tmp_path / "fusion", "cpu", report=quiet)
    config = replace(TINY, freeze="fusion_")
    both = train(config, tmp_path / "both", "cpu", init_from=tmp_path / "fusion", report=quiet)
    learned, kept = weights(fusion), weights(both)
    for name in ("fusion_raw", "fusion_bias"):
        assert torch.equal(kept[name], learned[name])


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.0))

        def forward(self, context: Tensor, queries: Tensor, n_features: Tensor) -> Tensor:
            return queries.sum(-1) * self.weight * torch.nan

    with pytest.raises(FomoError, match="lower --lr"):
        train(replace(TINY, steps=100), tmp_path, "cpu", model=Broken(), report=quiet)


def test_a_run_directory_is_not_taken_over_by_other_settings(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu", report=quiet)
    with pytest.raises(ConfigError, match="another lr"):
        train(replace(TINY, lr=0.5), tmp_path, "cpu", report=quiet)
    longer = replace(TINY, steps=10)  # going on for longer is fine
    train(longer, tmp_path, "cpu", report=quiet)
    assert RunFiles(tmp_path).weights()[1] == 10


def test_a_damaged_checkpoint_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu", report=quiet)
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot read"):
        train(TINY, tmp_path, "cpu", report=quiet)


def test_a_log_line_cut_short_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    assert read_log(log) == [{"step": 1, "loss": 0.5}]
    assert read_log(tmp_path / "none.jsonl") == []


def test_minutes_end_a_run(tmp_path: Path) -> None:
    config = replace(TINY, steps=10**9, minutes=0.005)
    began = time.monotonic()
    train(config, tmp_path, "cpu", report=quiet)
    assert time.monotonic() - began < 30
    assert 0 < RunFiles(tmp_path).weights()[1] < 10**9


def test_no_step_goes_unlogged_though_a_run_ends_between_two_log_lines(tmp_path: Path) -> None:
    config = replace(TINY, steps=10**9, minutes=0.003, log_every=10**6)
    train(config, tmp_path, "cpu", report=quiet)
    lines = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [RunFiles(tmp_path).weights()[1]]
    train(replace(TINY, steps=5), tmp_path / "short", "cpu", report=quiet)
    assert [line["step"] for line in read_log(tmp_path / "short" / "log.jsonl")] == [2, 4, 5]


def test_learning_rate_warms_up_and_falls() -> None:
    config = TrainConfig(lr=1.0, warmup=10, final_lr=0.1)
    assert learning_rate(config, 0, 0.0) == pytest.approx(0.1)
    assert learning_rate(config, 9, 0.0) == pytest.approx(1.0)
    assert learning_rate(config, 50, 0.5) == pytest.approx(0.55)
    assert learning_rate(config, 99, 1.0) == pytest.approx(0.1)
    assert learning_rate(replace(config, schedule="constant"), 99, 1.0) == 1.0


def test_moving_average_follows_the_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    state = State.fresh(model)
    nn.init.ones_(model.weight)
    state.step = 1000
    for _ in range(100):
        state.update_average(0.9)
    assert state.average["weight"].item() == pytest.approx(1 - 0.9**100)
    state.update_average(0.0)
    assert state.average["weight"].item() == 1.0


def test_export_writes_a_checkpoint_that_the_product_loads(tmp_path: Path) -> None:
    config = replace(TINY, keep_every=4)
    trained = train(config, tmp_path / "run", "cpu", report=quiet)
    target = tmp_path / "tiny.safetensors"
    assert main(["export", str(tmp_path / "run"), "--out", str(target)]) == 0
    loaded = load_model(str(target), "cpu")
    assert_same(weights(trained), weights(loaded))
    training = read_metadata(target)["training"]
    assert training["steps"] == 8
    assert training["settings"]["data"]["batch"] == 2
    assert training["commit"]
    assert [line["step"] for line in training["log"]] == [2, 8]
    assert main(["export", str(tmp_path / "run"), "--out", str(target), "--step", "4"]) == 0
    assert read_metadata(target)["training"]["steps"] == 4


@pytest.mark.parametrize(
    "flags",
    [
        ["--preset", "tiny", "--layers", "2", "--routers", "0"],
        ["--preset", "tiny", "--set", "shape.width=12", "--set", "heads=3", "--set", "fusion=False"],
        [
            "--preset",
            "paper-20",
            "--layers",
            "1",
            "--set",
            "width=16",
            "--set",
            "quantile=False",
            "--max-features",
            "5",
        ],
    ],
)
def test_a_model_of_another_shape_is_trained_and_exported(tmp_path: Path, flags: list[str]) -> None:
    """The shape is part of the run: export knows it."""
    flags = [*flags, "--set", "raw_features=5"] if "paper-20" in flags else flags
    flags = [*SMALL, *flags, "--steps", "3", "--set", "log_every=1", "--set", "best_every=1"]
    config = configuration(parser().parse_args(["train", "--out", "X", *flags]))
    assert main(["train", "--out", str(tmp_path / "run"), *flags]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model.safetensors")]) == 0
    loaded = load_model(str(tmp_path / "model.safetensors"), "cpu")
    assert loaded.config == config.network != MODELS[config.model]
    assert_same(weights(loaded), RunFiles(tmp_path / "run").weights()[0])


def test_a_shape_like_the_presets_is_no_other_shape() -> None:
    assert TrainConfig(model="tiny", shape=MODELS["tiny"]) == TrainConfig(model="tiny")


def test_lowest_loss_is_that_of_the_log(tmp_path: Path) -> None:
    """The best weights are those of the step that ended the interval with the lowest mean loss."""
    config = replace(TINY, model="fusion", lr=0.3, steps=20, best_every=4, keep_every=4, schedule="constant", ema=0.5)
    train(config, tmp_path, "cpu", report=quiet)
    log = read_log(tmp_path / "log.jsonl")
    means = {end: sum(line["loss"] for line in log if end - 4 < line["step"] <= end) / 2 for end in range(4, 21, 4)}
    best = min(means, key=lambda end: means[end])
    assert 4 < best < 20, "an example that tells nothing"
    found, step = RunFiles(tmp_path).lowest_loss()
    assert step == best
    assert_same(found, RunFiles(tmp_path).weights(best)[0])
    (tmp_path / "best.safetensors").unlink()  # then it is chosen among the kept ones
    found, step = RunFiles(tmp_path).lowest_loss()
    assert step == best
    target = tmp_path / "x.safetensors"
    assert main(["export", str(tmp_path), "--out", str(target), "--select", "lowest-loss"]) == 0
    assert read_metadata(target)["training"]["steps"] == best


def test_a_mean_loss_is_over_steps_however_a_run_was_cut() -> None:
    whole = [{"step": 10, "loss": 0.9}, {"step": 20, "loss": 0.5}, {"step": 30, "loss": float("nan")}]
    cut = [whole[0], {"step": 12, "loss": 0.1}, {"step": 20, "loss": 0.6}, whole[2]]
    for log in (whole, cut):
        assert mean_loss(log, 10, 30) == pytest.approx(0.5)
        assert mean_loss(log, 0, 20) == pytest.approx(0.7)
        assert mean_loss(log, 20, 30) is None


def test_without_kept_weights_there_is_no_lowest_loss(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu", report=quiet)
    with pytest.raises(CheckpointError, match="kept no weights"):
        RunFiles(tmp_path).lowest_loss()


def test_a_run_goes_on_though_settings_came_and_went(tmp_path: Path) -> None:
    """A run of an older version: settings it does not know have their defaults, those that are gone were off."""
    train(replace(TINY, steps=4), tmp_path, "cpu", report=quiet)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["shape"], config["precision"], config["data"]["causal"]["layers"]
    config["data"]["gone"] = 0.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    train(TINY, tmp_path, "cpu", report=quiet)
    assert RunFiles(tmp_path).weights()[1] == 8
    config["data"]["gone"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"another data\.gone"):
        train(TINY, tmp_path, "cpu", report=quiet)


def test_a_call_may_stop_before_the_run_is_over(tmp_path: Path) -> None:
    """Without changing the learning rate: the pieces together are the run."""
    config = replace(TINY, steps=16, save_every=1e9)
    whole = train(config, tmp_path / "whole", "cpu", report=quiet)
    calls = 0
    while not calls or RunFiles(tmp_path / "pieces").weights()[1] < 16:
        pieces = train(config, tmp_path / "pieces", "cpu", stop_after=0.003, report=quiet)
        calls += 1
    assert calls > 1
    assert_same(weights(whole), weights(pieces))


def test_the_paper_presets_are_the_papers() -> None:
    """Section 5.1 and the appendices: sizes, reuse, curriculum."""
    main_run, narrow, prolonged = (PRESETS[name] for name in ("paper-100", "paper-20", "paper-100-long"))
    for config in (main_run, narrow, prolonged):
        assert (config.lr, config.schedule, config.data.batch, config.network.layers) == (1e-3, "constant", 8, 4)
        assert (config.data.context_min, config.data.context_max, config.network.routers) == (500, 5000, 500)
        assert config.best_every == 1000  # an epoch; the lowest loss is selected
        assert (config.data.gmm_weight, config.data.causal_weight, config.data.copula_weight) == (1, 0, 0)
        assert config.data.max_features == config.network.raw_features
    assert main_run.data.reuse is not None
    assert (main_run.data.reuse.unique, main_run.data.reuse.transforms) == (500, 15)
    assert (narrow.period, narrow.data.reuse) == (50 * 1000, None)
    assert (prolonged.steps, round(prolonged.data.curriculum * prolonged.steps)) == (300_000, 200_000)
    assert (prolonged.data.gmm.percentile, prolonged.data.curriculum_percentile) == (90, 80)


def test_export_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "x.safetensors")]) == CheckpointError.exit_code
    assert "is no training run" in capsys.readouterr().err


def test_export_refuses_what_could_not_be_loaded_or_was_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(replace(TINY, keep_every=4), tmp_path / "run", "cpu", report=quiet)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == ConfigError.exit_code
    assert "ends in .safetensors" in capsys.readouterr().err
    target = str(tmp_path / "model.safetensors")
    assert main(["export", str(tmp_path / "run"), "--out", target, "--step", "5"]) == CheckpointError.exit_code
    assert "steps it kept: 4, 8" in capsys.readouterr().err


def test_a_log_line_without_a_loss_does_not_hide_the_lowest(tmp_path: Path) -> None:
    """An interval in which every dataset was filtered out has none."""
    train(TINY, tmp_path / "run", "cpu", report=quiet)
    log = tmp_path / "run" / "log.jsonl"
    lines = read_log(log)
    lines[0]["loss"] = float("nan")
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = tmp_path / "model.safetensors"
    assert main(["export", str(tmp_path / "run"), "--out", str(target)]) == 0
    assert read_metadata(target)["training"]["lowest_loss"] == min(line["loss"] for line in lines[1:])


def test_a_place_that_cannot_be_written_to_is_an_error_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["train", "--preset", "tiny", "--out", str(tmp_path / "file")]) == ConfigError.exit_code
    printed = capsys.readouterr().err
    assert str(tmp_path / "file") in printed
    assert printed.count("\n") == 1


def test_flags_are_laid_over_the_preset(tmp_path: Path) -> None:
    text = "train --preset fusion --out X --steps 7 --prior gmm=0.2,causal=0.8 --batch 3 --context-min 50"
    text += " --set data.causal.shares.spikes=0.5 --set data.gmm.percentile=80.0 --set data.reuse.unique=16"
    config = configuration(parser().parse_args(text.split()))
    assert config.steps == 7
    assert (config.data.gmm_weight, config.data.causal_weight) == (0.2, 0.8)
    assert (config.data.batch, config.data.context_min) == (3, 50)
    assert config.data.causal.shares.spikes == 0.5
    assert config.data.gmm.percentile == 80.0
    assert config.data.reuse is not None
    assert config.data.reuse.unique == 16
    assert config.lr == PRESETS["fusion"].lr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prior", "gmm=much"], "gmm=0.3,causal=0.7"),
        (["--prior", "copula=1"], "no prior copula"),
        (["--set", "data.causal.colour=1"], "no setting data.causal.colour"),
        (["--set", "nonsense"], "PATH=VALUE"),
        (["--queries", "5"], "even"),
        (["--context-min", "900", "--context-max", "800"], "context sizes"),
        (["--device", "abacus"], "abacus"),
        (["--preset", "paper-20", "--max-features", "30"], "up to 20 features"),
        (["--preset", "tiny", "--set", "heads=3"], "cannot be split over 3 heads"),
        (["--set", "precision=fp8"], "auto, bf16 or fp32"),
        (["--set", "best_every=7"], "multiple of log_every"),
        (["--set", "lr=fast"], "lr is a number, not 'fast'"),
        (["--set", "steps=2.5"], "steps is a whole number"),
        (["--set", "compile=1"], "compile is True or False"),
        (["--set", "minutes=soon"], "minutes is a number or none"),
        (["--set", "data=none"], "data is a group of settings"),
        (["--set", "data.causal.shares=5"], "data.causal.shares is a group of settings"),
        (["--set", "data.gmm.components=3"], "data.gmm.components is a range"),
        (["--set", "data.copulas.structures=(1,2)"], "data.copulas.structures is 3 numbers"),
        (["--prior", "gmm=1", "--set", "data.gmm.percentile=98"], "no row would be an inlier, or an outlier"),
        (["--prior", "gmm=1", "--set", "data.reuse.unique=0"], "unique must be at least 1"),
        (["--prior", "gmm=1", "--max-features", "600"], "1 to 500 features, not 600"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--max-features", "0"], "max_features must be at least 1"),
        (["--context-max", "6000"], "up to 5000 context rows"),
        (["--minutes", "0"], "must be above 0"),
        (["--lr", "-1"], "must be above 0"),
        (["--set", "ema=2"], "ema is a share"),
        (["--period", "-1"], "period must be at least 0"),
        (["--min-auc", "0.9", "--max-auc", "0.5"], "no dataset is between them"),
        (["--layers", "-1"], "layers must be at least 0"),
        (["--set", "channel_dropout=1"], "channel_dropout is a share below 1"),
        (["--threads", "0"], "--threads needs at least 1"),
    ],
)
def test_bad_flags_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), *flags]) == ConfigError.exit_code
    assert message in capsys.readouterr().err


def test_every_preset_names_a_model_that_exists() -> None:
    for name, config in PRESETS.items():
        assert isinstance(MODELS[config.model], ModelConfig), name


def test_config_file_is_readable_json(tmp_path: Path) -> None:
    train(TINY, tmp_path, "cpu", report=quiet)
    assert json.loads((tmp_path / "config.json").read_text())["data"]["queries"] == 16
