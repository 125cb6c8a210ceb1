from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fomo_stream import ZeroShotDetector
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.model.architecture import PRESETS, ModelConfig
from fomo_stream.model.attention import Attended, Float, attention_weights, most_attended
from fomo_stream.model.checkpoint import load_torch_model, save_model
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.__main__ import main
from pretrain.evaluation.plots import plot_attended

PAPER_LIKE = ModelConfig(
    raw_features=4, evidence=False, fusion=False, layers=2, width=16, heads=2, feed_forward=32, routers=6
)
KERNEL = replace(PRESETS["fomo"], width=16, feed_forward=32, routers=5)
FULL = replace(PAPER_LIKE, routers=0)


def make(config: ModelConfig) -> ZeroShotModel:
    """Weights large enough that attention has preferences."""
    torch.manual_seed(0)
    model = ZeroShotModel(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.4)
    return model


def attended_context(model: ZeroShotModel, context: Float, queries: Float, top: int = 5) -> Attended:
    return most_attended(attention_weights(model, context, queries), top)


def rows(n: int, d: int, seed: int = 0) -> Float:
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize("config", [PAPER_LIKE, FULL, KERNEL])
@settings(max_examples=10)
@given(n=st.integers(2, 90), d=st.integers(1, 4), q=st.integers(0, 130), seed=st.integers(0, 99))
def test_weights_of_a_query_sum_to_one_over_the_context(config: ModelConfig, n: int, d: int, q: int, seed: int) -> None:
    weights = attention_weights(make(config), rows(n, d, seed), rows(q, d, seed + 1))
    assert weights.shape == (q, n)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("config", [PAPER_LIKE, FULL])
def test_weights_are_the_softmax_by_hand_of_the_last_layer_averaged_over_heads(config: ModelConfig) -> None:
    model, context, queries = make(config), rows(30, 3), rows(7, 3, seed=1)
    seen, asked = model.describe(torch.from_numpy(context)[None], torch.from_numpy(queries)[None])
    z, of_queries = model.embed(seen.raw), model.embed(asked.raw)
    layers: Any = model.layers
    first, last = layers
    of_queries = first.queries(of_queries, first.cross.encode(z))
    z = first.context(z)
    expected = np.zeros((7, 30))
    cross = last.cross
    for head in (slice(0, 8), slice(8, 16)):
        key, query = cross.key(z)[0][:, head], cross.query(of_queries)[0][:, head]
        likeness = np.exp((query @ key.T).numpy() / np.sqrt(8))
        expected += likeness / likeness.sum(1, keepdims=True) / 2
    np.testing.assert_allclose(attention_weights(model, context, queries), expected, atol=1e-6)


def test_detector_names_rows_of_its_training_data(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save_model(make(PAPER_LIKE), path)
    train, queries = rows(80, 4), rows(3, 4, seed=1)
    detector = ZeroShotDetector(model=str(path), context_size=50, random_state=0, n_members=2).fit(train)
    found = detector.attended_context(queries, top=4)
    kept = detector.members_[0].kept
    expected = attended_context(load_torch_model(path), train[kept], queries, top=4)
    np.testing.assert_array_equal(found.indices, kept[expected.indices])
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_what_cannot_be_asked_is_refused_with_the_names_of_models_that_have_attention_weights() -> None:
    with pytest.raises(ConfigError, match=r"streams@.* has no transformer.*models that have them: fomo, paper-100$"):
        ZeroShotDetector(model="streams").fit(rows(20, 2)).attended_context(rows(2, 2))
    with pytest.raises(SchemaError, match="3 features"):
        attended_context(make(PAPER_LIKE), rows(20, 3), rows(2, 2))
    with pytest.raises(ConfigError, match="at least 1"):
        most_attended(np.ones((1, 4)), top=0)


def test_kernel_attention_weighs_near_rows_more() -> None:
    """In one layer and one space: all heads weigh by the same distances."""
    model = make(replace(KERNEL, layers=1, spaces="z"))
    context, queries = rows(60, 2), rows(9, 2, seed=1)
    weights = attention_weights(model, context, queries)
    z = np.concatenate([context, queries])
    z = (z - context.mean(0)) / context.std(0)
    distances = ((z[60:, None] - z[None, :60]) ** 2).sum(-1)
    for of_query, by_distance in zip(weights, distances.argsort(1), strict=True):
        assert (np.diff(of_query[by_distance]) <= 1e-7).all()


def test_command_draws_a_mixture_as_in_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plot.png"
    assert main(["attend", "--out", str(target), "--device", "cpu"]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "100 queries, 50 context rows" in capsys.readouterr().out


def test_command_draws_rows_of_a_table_without_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, target = tmp_path / "table.npz", tmp_path / "plot.png"
    np.savez(table, X=rows(41, 3), y=np.r_[np.zeros(40), 1])
    assert main(["attend", str(table), "--query", "3,40", "--top", "39", "--out", str(target), "--device", "cpu"]) == 0
    named = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("row 3:"))
    attended = {int(part.split(" (")[0]) for part in named.removeprefix("row 3: ").split(", ")}
    assert attended == set(range(40)) - {3}


def test_plots_refuse_more_panels_than_fit_and_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="draw them together"):
        plot_attended(tmp_path / "plot.png", rows(30, 2), rows(9, 2), np.full((9, 30), 1 / 30))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="pip install"):
        plot_attended(tmp_path / "plot.png", rows(9, 2), rows(1, 2), np.full((1, 9), 1 / 9))
