from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import Operations
from torch import Tensor, nn

from fomo_stream.errors import CheckpointError, SchemaError
from fomo_stream.model.architecture import CHANNELS, PRESETS, ModelConfig
from fomo_stream.model.checkpoint import load_torch_model, shared_model
from fomo_stream.model.scoring import cross_scores, encode_rows, logits_of
from fomo_stream.model.zero_shot import GPU_TILE, TILE, Features, ZeroShotModel

SMALL = {
    "fusion": ModelConfig(),
    "whitened": ModelConfig(spaces="whitened"),
    "two-spaces": replace(PRESETS["tiny"], spaces="z,whitened"),
    "tiny": PRESETS["tiny"],
    "kernel": replace(PRESETS["fomo"], width=16, feed_forward=32, routers=5, layers=3),
    "kernel-no-routers": replace(PRESETS["fomo"], width=16, feed_forward=32, routers=0, spaces="whitened"),
    "kernel-one-layer": replace(PRESETS["fomo"], width=16, feed_forward=32, layers=1),
    "raw": ModelConfig(
        raw_features=8, evidence=False, fusion=False, layers=3, width=16, heads=2, feed_forward=32, routers=6
    ),
    "raw-full-attention": ModelConfig(
        raw_features=8, evidence=False, fusion=False, layers=2, width=16, heads=2, feed_forward=32, routers=0
    ),
}


def make(name: str) -> ZeroShotModel:
    """A model whose every part matters: nothing left at its neutral start."""
    torch.manual_seed(0)
    model = ZeroShotModel(SMALL[name]).eval().requires_grad_(False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("preset", "millions"), [("paper-100", 4.89), ("paper-20", 4.87)])
def test_paper_presets_have_the_published_number_of_parameters(preset: str, millions: float) -> None:
    count = sum(p.numel() for p in ZeroShotModel(PRESETS[preset]).parameters())
    assert count == pytest.approx(millions * 1e6, rel=0.02)


@given(
    name=st.sampled_from(sorted(SMALL)),
    n=st.integers(2, 120),
    d=st.integers(1, 8),
    q=st.integers(1, 80),
    seed=st.integers(0, 999),
)
def test_cached_scoring_equals_a_full_forward_pass(name: str, n: int, d: int, q: int, seed: int) -> None:
    model = make(name)
    context, queries = rows(n, d, seed), rows(q, d, seed + 1)
    cached = model.score_queries(model.encode_context(context), queries)
    torch.testing.assert_close(cached, model(context[None], queries[None])[0], atol=1e-4, rtol=1e-4)


@given(
    name=st.sampled_from(sorted(SMALL)),
    n=st.integers(2, 120),
    d=st.integers(1, 8),
    tile=st.sampled_from([TILE, GPU_TILE]),
    data=st.data(),
)
def test_score_depends_on_query_and_context_to_the_last_bit(
    name: str, n: int, d: int, tile: int, data: st.DataObject
) -> None:
    model = make(name)
    cache = model.encode_context(rows(n, d))
    queries = rows(2 * TILE + 7, d, 1)
    model.tile = tile
    together = model.score_queries(cache, queries)
    order = torch.tensor(data.draw(st.permutations(range(len(queries)))))
    assert torch.equal(model.score_queries(cache, queries[order]), together[order])
    one = data.draw(st.integers(0, len(queries) - 1))
    assert torch.equal(model.score_queries(cache, queries[one : one + 1]), together[one : one + 1])
    strange = torch.cat([queries[one : one + 1], torch.full((5, d), 1e9, dtype=torch.float64)])
    assert torch.equal(model.score_queries(cache, strange)[:1], together[one : one + 1])


@pytest.mark.parametrize("model", ["streams", "fomo"])
def test_a_tile_of_a_gpu_gives_the_same_logits_with_an_eighth_of_the_operations(model: str) -> None:
    torchs = load_torch_model(model, "cpu")
    cache, queries, found, operations = torchs.encode_context(rows(200, 5)), rows(1000, 5, 1), [], []
    for tile in (TILE, GPU_TILE):
        torchs.tile = tile
        with torch.inference_mode(), Operations() as counted:
            found.append(torchs.score_queries(cache, queries))
        operations.append(counted.number)
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)
    assert 7 * operations[1] < operations[0]


@settings(max_examples=15)
@given(name=st.sampled_from(sorted(SMALL)), n=st.integers(2, 120), seed=st.integers(0, 999))
def test_order_of_the_context_does_not_matter(name: str, n: int, seed: int) -> None:
    model = make(name)
    context, queries = rows(n, 4, seed), rows(20, 4, seed + 1)
    shuffled = context[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    scores = model.score_queries(model.encode_context(context), queries)
    again = model.score_queries(model.encode_context(shuffled), queries)
    torch.testing.assert_close(scores, again, atol=1e-3, rtol=1e-3)
    exact = logits_of(model, encode_rows(model, context.numpy()), queries.numpy())
    assert (exact == logits_of(model, encode_rows(model, shuffled.numpy()), queries.numpy())).all()


@pytest.mark.parametrize(("n", "d"), [(2, 1), (2, 500), pytest.param(5000, 500, marks=pytest.mark.slow)])
def test_any_size_from_the_smallest_to_the_largest(n: int, d: int) -> None:
    model = make("tiny")
    scores = model.score_queries(model.encode_context(rows(n, d)), rows(3, d, 1))
    assert scores.shape == (3,)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", SMALL)
def test_contexts_in_a_batch_score_as_they_do_alone(name: str) -> None:
    model = make(name)
    widths = [3, 8, 5]
    contexts = [rows(60, d, d) for d in widths]
    queries = [rows(40, d, 10 + d) for d in widths]

    def pad(parts: list[Tensor]) -> Tensor:
        return torch.stack([nn.functional.pad(p, (0, 8 - p.shape[1])) for p in parts])

    cache = model.encode_context(pad(contexts), torch.tensor(widths))
    batched = model.score_queries(cache, pad(queries))
    for i in range(len(widths)):
        alone = model.score_queries(model.encode_context(contexts[i]), queries[i])
        torch.testing.assert_close(batched[i], alone, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("n", "d"), [(20, 1), (200, 4)])
def test_kernel_attention_starts_as_kernel_densities(n: int, d: int) -> None:
    """By hand, in z-scores alone: the ranks of a query among the context's rows by each of four densities."""
    torch.manual_seed(0)
    model = ZeroShotModel(replace(PRESETS["fomo"], spaces="z", layers=1)).eval()
    context, queries = rows(n, d), rows(30, d, 1) * 2
    logits = model.score_queries(model.encode_context(context), queries).detach()
    z = (torch.cat([context, queries]) - context.mean(0)) / context.std(0, correction=0)
    distances = torch.cdist(z, z[:n])
    distances[:n].fill_diagonal_(torch.inf)
    unit = distances[:n].sort(1).values[:, :5].mean(1).median()
    expected = torch.full((30,), -1.0, dtype=torch.float64)
    for bandwidth in (0.25, 0.5, 1.0, 2.0):
        kernels = -((distances / unit) ** 2) / (2 * bandwidth**2)
        odd = -kernels.logsumexp(1) + torch.tensor([n - 1.0] * n + [n] * 30).log()
        own, found = odd[:n], odd[n:]
        spread = 1.4826 * (own - own.median()).abs().median() + 0.05 * own.std(correction=0) + 1e-3
        far = ((found - own.median()) / spread).asinh()
        rare = -((((own[None] >= found[:, None]).sum(1) + 1) / (n + 1)).log10())
        expected += (far + rare) * 1.5 / 8
    torch.testing.assert_close(logits.double(), expected, atol=1e-3, rtol=1e-3)


def test_more_evidence_never_lowers_the_fused_logit() -> None:
    model = make("fusion")
    channels = torch.randn(1, 10, len(CHANNELS))
    none = Features(channels[:, :0], None)
    more = Features(channels + torch.rand_like(channels), None)
    assert (model.forward_features(none, more) >= model.forward_features(none, Features(channels, None))).all()


@given(value=st.sampled_from([-9999.0, 1e6, 1e30, -3.4e38]), column=st.integers(0, 4), n_far=st.integers(1, 10))
@settings(max_examples=3)
def test_far_values_in_a_context_hide_no_outliers_from_raw_inputs(value: float, column: int, n_far: int) -> None:
    model = shared_model("paper-100")
    context, queries = rows(200, 5).numpy(), rows(200, 5, 1).numpy()
    queries[:20] *= 4
    polluted = context.copy()
    polluted[:n_far, column] = value
    usual, found = (logits_of(model, encode_rows(model, part), queries) for part in (context, polluted))
    auroc = [float((scores[:20, None] > scores[20:]).mean()) for scores in (usual, found)]
    assert auroc[1] > auroc[0] - 0.05 > 0.85


def test_cross_scores_use_the_other_half() -> None:
    model = make("fusion")
    context = rows(40, 3).numpy()
    crossed = cross_scores(model, context)
    np.testing.assert_array_equal(crossed[:20], logits_of(model, encode_rows(model, context[20:]), context[:20]))


@pytest.mark.parametrize(
    ("n", "d", "says"), [(1, 3, "2 to 5000 rows"), (5001, 3, "2 to 5000 rows"), (10, 9, "up to 8")]
)
def test_impossible_contexts_are_refused_with_a_reason(n: int, d: int, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        make("raw").encode_context(rows(n, d))


def test_configurations_without_a_scorer_are_refused() -> None:
    for fusion, layers in ((False, 0), (True, 2), (False, 2)):
        with pytest.raises(CheckpointError, match="a model is a fusion without layers, or"):
            ModelConfig(fusion=fusion, layers=layers)
