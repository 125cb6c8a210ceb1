"""The same bits on processors of different ages, so that a partition may move between them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# digests of results, and of the state, which holds the encoded contexts
SCRIPT = """
import hashlib
import numpy as np
from fomo_stream import Detector, DetectorConfig, load_model
rng = np.random.default_rng(0)
rows = rng.normal(size=(2000, {d})) ** 3 + rng.normal(size=(2000, 1))
rows[rng.random(rows.shape) < 0.01] = np.nan
config = DetectorConfig(context_size=300, min_context=100, explain="alerts")
detector = Detector(load_model("default", "cpu", "numba"), {d}, config)
scored = detector.process(rows)
reasons = np.array([reason[2:] for some in scored.reasons for reason in some or ()])
parts = [reasons, scored.logit, scored.score, scored.p_value, scored.confidence]
parts += [np.frombuffer(value, np.uint8) for value in detector.changes().values()]
print(len(parts), *(hashlib.blake2b(np.ascontiguousarray(part).tobytes(), digest_size=8).hexdigest() for part in parts))
"""
# what NumPy, PyTorch and its library MKL do on a processor without AVX-512
OLDER = {
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Nehalem",
}


def digests(d: int, **changes: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **changes}
    run = [sys.executable, "-W", "ignore", "-c", SCRIPT.format(d=d)]
    return subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 20])
def test_an_older_processor_gives_the_same_bits(d: int) -> None:
    newest = digests(d)
    assert len(newest.split()) > 10
    assert digests(d, **OLDER) == newest
