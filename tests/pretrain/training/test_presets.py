"""Presets, and the settings of the paper."""

from __future__ import annotations

from fomo_stream.model.zero_shot import PRESETS as MODELS
from fomo_stream.model.zero_shot import ModelConfig
from pretrain.training.presets import PRESETS


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


def test_every_preset_names_a_model_that_exists() -> None:
    for name, config in PRESETS.items():
        assert isinstance(MODELS[config.model], ModelConfig), name


def test_the_presets_of_the_paper_hold_clean_gaussian_mixtures_alone() -> None:
    for name in ("paper-100", "paper-20", "paper-100-long"):
        data = PRESETS[name].data
        assert data.gmm_weight > 0
        assert data.causal_weight == data.copula_weight == 0.0
        assert data.contaminated_share == data.duplicated_share == data.incomplete_share == 0.0
