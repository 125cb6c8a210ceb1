"""The kernels compiled by numba against the model in torch: two implementations of the same scores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtri
from test_model import make

from fomo_stream.errors import SchemaError
from fomo_stream.model import compiled
from fomo_stream.model.architecture import CHANNELS, PRESETS, SPACES, CompiledModel, Model, ModelConfig, channels_in
from fomo_stream.model.checkpoint import shared_model, shipped_models
from fomo_stream.model.evidence import evidence_channels, fit_evidence
from fomo_stream.model.evidence import whitening as library_whitening
from fomo_stream.model.kernels import (
    arithmetic,
    compiling,
    neighbours,
    network,
    router_attention,
    statistics,
    view_scores,
)
from fomo_stream.model.kernels.statistics import NEIGHBOURS
from fomo_stream.model.preprocessing import fit_imputation, impute
from fomo_stream.model.scoring import (
    encode_rows,
    logits_of,
    own_logits,
)
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]
PACKAGE = Path(network.__file__).parents[2]
BACKENDS = ("two-spaces", "tiny", "kernel", "kernel-no-routers", "kernel-one-layer")
SIZES = {"n": st.integers(2, 300), "d": st.integers(1, 12), "seed": st.integers(0, 2**16)}


def data(n: int, d: int, seed: int, ties: bool = True) -> Float:
    """Rows with the columns that tables have: skewed, constant, rounded, binary; a few values are missing.

    ties: with rounded and binary columns, which make several neighbours equally near.
    """
    rng = np.random.default_rng(seed)
    kinds = np.random.default_rng(d).integers(0, 5 if ties else 3, d)
    rows = rng.normal(size=(n, d)) * 3 + rng.normal(size=(n, 1))
    for j, kind in enumerate(kinds):
        if kind:
            changed = (np.exp(rows[:, j]), np.full(n, 7.0), rows[:, j].round(1), (rows[:, j] > 0).astype(float))
            rows[:, j] = changed[kind - 1]
    rows[rng.random(rows.shape) < 0.02] = np.nan
    return rows


@settings(derandomize=True)  # float32 may take another of two neighbours that are all but equally far
@given(**SIZES)
def test_statistics_are_those_of_torch(n: int, d: int, seed: int) -> None:
    context, queries = data(n, d, seed, ties=False), data(20, d, seed + 1, ties=False)
    model = ZeroShotModel(PRESETS["fusion"])
    fitted = compiled.encode_context(model, context)
    given_ = torch.from_numpy(context)[None]
    imputation = fit_imputation(given_)
    torchs, _ = fit_evidence(impute(given_, imputation), torch.tensor([d]))
    expected = evidence_channels(impute(torch.from_numpy(queries)[None], imputation), torchs)[0, :, ::2]
    found = compiled.channels(fitted, queries)[:, ::2]
    # where the context's own statistics are all but equal, their spread is of the size of float32's last digits
    seen = torchs.spread[0, 0].numpy() > 1e-2
    # whitening of as many columns as rows loses digits in float32
    np.testing.assert_allclose(found[:, seen], expected[:, seen], atol=5e-3, rtol=5e-3)


@settings(max_examples=8)
@given(**SIZES, spaces=st.sets(st.sampled_from(SPACES), min_size=1))
def test_fewer_spaces_have_the_channels_that_they_have_among_all(n: int, d: int, seed: int, spaces: set[str]) -> None:
    """The same bits by the kernels; by torch, whose sums depend on what else is computed, the same numbers."""
    used = tuple(space for space in SPACES if space in spaces)
    at = [CHANNELS.index(channel) for channel in channels_in(used)]
    context, queries = data(n, d, seed), data(9, d, seed + 1)
    models = [ZeroShotModel(ModelConfig(spaces=",".join(names))) for names in (SPACES, used)]
    every, some = (compiled.channels(compiled.encode_context(model, context), queries) for model in models)
    np.testing.assert_array_equal(some, every[:, at])
    rows = [torch.from_numpy(data(m, d, seed, ties=False))[None].nan_to_num() for m in (n, 9)]
    every_, some_ = (model.describe(*rows)[1].channels for model in models)
    assert every_ is not None
    assert some_ is not None
    torch.testing.assert_close(some_, every_[..., at])


def pair(name: str) -> list[Model]:
    """A shipped model, or one of `make`, for the kernels and for torch."""
    if name in shipped_models():
        return [shared_model(name, "cpu", kernel) for kernel in ("numba", "torch")]
    made = make(name)
    return [CompiledModel(name, made.config, made.arrays()), made]


@given(
    name=st.sampled_from(["fomo", "streams", *BACKENDS]),
    n=st.integers(32, 400),
    d=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_logits_are_those_of_torch(name: str, n: int, d: int, seed: int) -> None:
    context, queries = data(n, d, seed, ties=False), data(50, d, seed + 1, ties=False)
    logits: list[Float] = []
    own: list[Any] = []
    for model in pair(name):
        encoded = encode_rows(model, context)
        logits.append(logits_of(model, encoded, queries))
        own.append(own_logits(encoded))
    # a last digit may change a rank in the context, by one step of -log10 p
    assert np.median(np.abs(own[0] - own[1])) < 0.005
    if name in shipped_models():  # far from all rows it decides which of them is read: much, for weights at random
        assert np.median(np.abs(logits[0] - logits[1])) < 0.005
        np.testing.assert_allclose(logits[0], logits[1], atol=0.1)


@given(**SIZES, name=st.sampled_from(["fomo", "streams"]), position=st.integers(0, 20))
def test_a_row_alone_has_the_bits_that_it_has_among_others(name: str, n: int, d: int, seed: int, position: int) -> None:
    model = shared_model(name, "cpu", "numba")
    encoded, queries = encode_rows(model, data(n, d, seed)), data(21, d, seed + 1)
    queries[-1] = 1e300
    together = logits_of(model, encoded, queries)
    assert np.isfinite(together).all()
    assert together[position] == logits_of(model, encoded, queries[position : position + 1])[0]
    np.testing.assert_array_equal(logits_of(model, encoded, queries[::-1]), together[::-1])


@given(n=st.integers(2, 200), seed=st.integers(0, 2**16))
def test_the_order_of_the_context_changes_no_bit(n: int, seed: int) -> None:
    model, context, queries = shared_model("fomo", "cpu", "numba"), data(n, 4, seed), data(9, 4, seed + 1)
    order = np.random.default_rng(seed).permutation(n)
    encoded, shuffled = encode_rows(model, context), encode_rows(model, context[order])
    np.testing.assert_array_equal(logits_of(model, shuffled, queries), logits_of(model, encoded, queries))
    if len(np.unique(np.nan_to_num(context, nan=1e9), axis=0)) == n:  # equal rows may change places
        own: Any = own_logits(encoded)
        np.testing.assert_array_equal(own_logits(shuffled), own[order])


@pytest.mark.parametrize(("n", "d"), [(2, 500), (5000, 1)])
def test_the_widest_and_the_longest_context_are_scored(n: int, d: int) -> None:
    model, rng = shared_model("fomo", "cpu", "numba"), np.random.default_rng(0)
    context = encode_rows(model, rng.normal(size=(n, d)))
    near, far = logits_of(model, context, np.stack([np.zeros(d), np.full(d, 1e4)]))
    assert np.isfinite([near, far]).all()
    assert near < far


@given(n=st.integers(2, 100), d=st.integers(1, 64), rank=st.integers(1, 64), seed=st.integers(0, 2**16))
def test_whitening_is_that_of_a_library(n: int, d: int, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, min(rank, d))) @ rng.normal(size=(min(rank, d), d))
    rows[:, : d // 4] = 3.0  # constant
    mean, deviation = statistics.moments(rows)
    np.testing.assert_allclose([mean, deviation], [rows.mean(0), rows.std(0)], atol=1e-12)
    z = (rows - mean) / np.where(deviation > 1e-9, deviation, 1.0)
    expected = library_whitening(torch.from_numpy(z)[None], torch.tensor([d]))[0]
    np.testing.assert_allclose(
        statistics.whitening_matrix(z), expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max())
    )


def test_every_kernel_is_compiled_once() -> None:
    """Arrays that are read-only or not contiguous are other types to numba: compiling again would take seconds."""
    model = shared_model("fomo", "cpu", "numba")
    context = encode_rows(model, data(50, 4, 0))
    fixed = data(9, 4, 1)
    fixed.flags.writeable = False
    expected = logits_of(model, context, fixed)
    np.testing.assert_array_equal(logits_of(model, context, np.asfortranarray(fixed)), expected)
    np.testing.assert_array_equal(logits_of(model, context, np.hstack([fixed, fixed])[:, :4]), expected)
    encode_rows(model, fixed)
    assert len(view_scores.score_views.signatures) == 1
    assert len(router_attention.own_densities.signatures) == 1
    assert len(network.linear.signatures) <= 1  # none where its callers were compiled before, and kept


ONE_KERNEL = """
import numpy as np
from fomo_stream.model.kernels import compiling, network
x = np.ones(1, np.float32)
network.gelu_all(x)
print(x[0], compiling.prepare(compiling.DEFAULT))
"""


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A copy of the package, with the modules of the kernels alone."""
    package = tmp_path / "fomo_stream"
    for folder in compiling.FOLDERS:
        shutil.copytree(PACKAGE / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
        (package / folder).with_name("__init__.py").touch()  # without it Python prefers the package installed
    (package / "__init__.py").touch()
    return package


def test_compiled_code_is_not_used_after_a_change_in_any_file(alone: Path) -> None:
    """Code of one is in that of others."""
    before = compiling.version_of(alone)
    assert before == compiling.version_of(PACKAGE)
    with (alone / compiling.FOLDERS[-1] / "__init__.py").open("a") as file:
        file.write("# other\n")
    assert compiling.version_of(alone) != before


@pytest.mark.slow
def test_where_another_process_cannot_compile_this_one_does(alone: Path) -> None:
    """It fails, because the modules that tell it what to compile are missing, or no folder can be written."""
    folder = alone.parent
    caches = dict.fromkeys(("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"), str(folder / "cache"))
    environment = {**os.environ, **caches, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    for reason in ("another process that compiled them failed: ModuleNotFoundError", "no folder of the cache can be"):
        script = [sys.executable, "-c", ONE_KERNEL]
        output = subprocess.run(script, env=environment, cwd=folder, check=True, capture_output=True, text=True).stdout
        value, _, why = output.partition(" ")
        assert float(value) == pytest.approx(0.8413, abs=1e-4)
        assert why.startswith(reason)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        (folder / "cache").touch()  # a file in the way


def test_rows_that_do_not_fit_are_refused() -> None:
    model = shared_model("fomo", "cpu", "numba")
    with pytest.raises(SchemaError, match="a context has 2 to 5000 rows, this one has 1"):
        encode_rows(model, np.zeros((1, 3)))
    with pytest.raises(SchemaError, match="the context has 3 features, the query rows have 2"):
        logits_of(model, encode_rows(model, data(9, 3, 0)), np.zeros((4, 2)))


@given(st.floats(1e-300, 1 - 1e-16))
def test_normal_quantiles(p: float) -> None:
    assert arithmetic.normal_quantile(p) == pytest.approx(ndtri(p), rel=1e-13, abs=1e-15)


@given(st.integers(2, 700), st.integers(0, 2**16), st.sampled_from(["any", "ties", "ascending"]))
def test_the_nearest_are_those_of_a_sort(n: int, seed: int, kind: str) -> None:
    """Ascending: every group of rows has one of the nearest, so that none may be overlooked."""
    rng = np.random.default_rng(seed)
    padded = np.full(-(-n // 16) * 16, 1e36, np.float32)
    padded[:n] = rng.integers(0, 5, n) if kind == "ties" else rng.exponential(size=n)
    if kind == "ascending":
        padded[:n].sort()
    k = min(NEIGHBOURS, n)
    near, where = np.empty(k, np.float32), np.empty(k, np.int32)
    neighbours.nearest(padded, n, near, where, neighbours.new_scratch(len(padded)))
    expected = np.argsort(padded[:n], kind="stable")[:k]
    np.testing.assert_array_equal(near, padded[expected])
    np.testing.assert_array_equal(where, expected)


def test_numba_is_loaded_only_when_a_row_is_scored() -> None:
    script = "import sys; from fomo_stream import load_model; load_model(); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
