"""Flags: changes to a preset, messages for values that do not fit, and the presets of the paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from fomo_stream.errors import ConfigError
from pretrain.__main__ import main, parser
from pretrain.commands.flags import configuration
from pretrain.training.presets import PRESETS


def test_flags_are_laid_over_the_preset(tmp_path: Path) -> None:
    text = "train --preset fusion --out X --steps 7 --prior gmm=0.2,causal=0.8 --batch 3 --context-min 50"
    text += " --set data.causal.shares.spikes=0.5 --set data.gmm.percentile=80.0 --set data.reuse.unique=16"
    config = configuration(parser().parse_args(text.split()))
    assert config.steps == 7
    assert (config.data.gmm_weight, config.data.causal_weight, config.data.copula_weight) == (0.2, 0.8, 0.0)
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
        (["--prior", "copula=1"], "no prior copula; there are gmm, causal, copulas"),
        (["--set", "data.causal.colour=1"], "no setting data.causal.colour"),
        (["--set", "nonsense"], "PATH=VALUE"),
        (["--queries", "5"], "even"),
        (["--context-min", "900", "--context-max", "800"], "context sizes"),
        (["--device", "abacus"], "abacus"),
        (["--preset", "paper-20", "--max-features", "30"], "up to 20 features"),
        (["--preset", "tiny", "--set", "heads=3"], "heads = 3, which must divide width = 8"),
        (["--set", "precision=fp8"], "auto, bf16 or fp32"),
        (["--set", "best_every=7"], "multiple of log_every"),
        (["--set", "lr=fast"], "lr is a number, not 'fast'"),
        (["--set", "steps=2.5"], "steps is a whole number"),
        (["--set", "shape.fusion=1"], "shape.fusion is True or False"),
        (["--set", "minutes=soon"], "minutes is a number or none"),
        (["--set", "data=none"], "data is a group of settings"),
        (["--set", "data.gmm.components=3"], "data.gmm.components is a range"),
        (["--set", "data.copulas.structures=(1,2)"], "data.copulas.structures is 3 numbers"),
        (["--prior", "gmm=1", "--set", "data.gmm.percentile=98"], "no row would be an inlier, or an outlier"),
        (["--prior", "gmm=1", "--set", "data.reuse.unique=0"], "unique must be at least 1"),
        (["--prior", "gmm=1", "--max-features", "600"], "1 to 500 features, not 600"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--context-max", "6000"], "up to 5000 context rows"),
        (["--minutes", "0"], "must be above 0"),
        (["--set", "ema=2"], "ema is a share"),
        (["--set", "period=-1"], "period must be at least 0"),
        (["--set", "min_auc=0.9", "--set", "max_auc=0.5"], "no dataset is between them"),
        (["--layers", "-1"], "layers = -1, expected 0 to 100"),
        (["--set", "channel_dropout=1"], "channel_dropout is a share below 1"),
        (["--threads", "0"], "--threads needs at least 1"),
    ],
)
def test_bad_flags_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), *flags]) == ConfigError.exit_code
    assert message in capsys.readouterr().err


def test_a_place_that_cannot_be_written_to_is_an_error_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["train", "--preset", "tiny", "--out", str(tmp_path / "file")]) == ConfigError.exit_code
    printed = capsys.readouterr().err
    assert str(tmp_path / "file") in printed
    assert printed.count("\n") == 1
