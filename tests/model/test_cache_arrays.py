"""An encoded context outlives being made arrays of, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.model.cache_arrays import flatten, unflatten
from fomo_stream.model.checkpoint import shared_model, shipped_models
from fomo_stream.model.scoring import context_type, encode_rows, logits_of
from fomo_stream.model.zero_shot import ContextCache


@pytest.mark.parametrize(
    ("name", "kernel"), [*((name, "auto") for name in shipped_models()), ("fusion-router", "torch")]
)
@settings(max_examples=5)
@given(n=st.integers(4, 60), d=st.integers(1, 12), seed=st.integers(0, 2**16))
def test_what_is_restored_scores_the_same(name: str, kernel: str, n: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, model = rng.normal(size=(n, d)), shared_model(name, kernel=kernel)
    rows[rng.random(size=rows.shape) < 0.05] = np.nan
    cache = encode_rows(model, rows)
    arrays = flatten(cache, "cache")
    again = unflatten(context_type(model), arrays, "cache", torch.device("cpu"))
    queries = rng.normal(size=(7, d)) * 3
    np.testing.assert_array_equal(logits_of(model, again, queries), logits_of(model, cache, queries))
    restored = flatten(again, "cache")
    assert restored.keys() == arrays.keys()
    for path, array in arrays.items():
        assert restored[path].dtype == array.dtype
        np.testing.assert_array_equal(restored[path], array)


def test_keys_without_values_and_values_without_keys_are_refused() -> None:
    whole = flatten(encode_rows(shared_model("paper-100"), np.random.default_rng(0).normal(size=(9, 2))), "cache")
    for path in ("cache.layers.1.keys", "cache.layers.1.values"):
        arrays = {key: array for key, array in whole.items() if key != path}
        with pytest.raises(KeyError, match=path.replace(".", r"\.")):
            unflatten(ContextCache, arrays, "cache", torch.device("cpu"))


def test_what_is_missing_is_named() -> None:
    arrays = flatten(
        encode_rows(shared_model("fusion", kernel="torch"), np.random.default_rng(0).normal(size=(9, 2))), "cache"
    )
    del arrays["cache.knots.scale"]
    with pytest.raises(KeyError, match=r"cache\.knots\.scale"):
        unflatten(ContextCache, arrays, "cache", torch.device("cpu"))
