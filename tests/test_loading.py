"""A model that is ready to score: its kernels are there, and give the same bits on processors of different ages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fomo_stream import Detector, DetectorConfig, loading
from fomo_stream.kafka.service import Service
from fomo_stream.model.checkpoint import load_model
from fomo_stream.settings.service_settings import ServiceSettings

# --- loading

FROM_AN_EMPTY_CACHE = """
import sys
import numpy as np
from fomo_stream import Detector, DetectorConfig, load_model
from fomo_stream.loading import load_ready
from fomo_stream.logs import configure_logging

configure_logging("warning")
model = load_ready(backend="numba") if sys.argv[1] == "program" else load_model(backend="numba")
detector = Detector(model, 8, DetectorConfig(min_context=100, context_size=1000))
rng = np.random.default_rng(0)
print(np.concatenate([detector.process(rng.normal(size=(50, 8))).logit for _ in range(20)]).tobytes().hex())
folders = "fomo_stream.model.kernels.", "fomo_stream.detector.step."
modules = [module for name, module in sys.modules.items() if name.startswith(folders)]
kernels = {id(f): f for module in modules for f in vars(module).values() if hasattr(f, "signatures")}.values()
print(sum(sum(f.stats.cache_misses.values()) for f in kernels))
"""


@pytest.mark.slow
def test_a_process_that_finds_no_kernels_scores_as_later_ones_do(tmp_path: Path) -> None:
    """Bit for bit. A program and a library that find the cache empty at the same time, then one that finds it.

    Compiled for the first processors of this architecture, with vectors of 16 bytes, as on arm64, and other sums: up to
    rounding the scores are those of this process.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_CPU_NAME": "generic"}

    def start(kind: str) -> subprocess.Popen[str]:
        script = [sys.executable, "-c", FROM_AN_EMPTY_CACHE, kind]
        pipe = subprocess.PIPE
        return subprocess.Popen(script, env=environment, stdout=pipe, stderr=pipe, text=True)

    first = [start("program"), start("library")]
    outputs = [process.communicate() for process in first]
    outputs.append(start("program").communicate())
    logged = [log.count("compiling_kernels") for _, log in outputs]
    assert logged == [1, 0, 0], "a program logs a warning, which every command shows; a library logs nothing"
    assert "reason=" not in outputs[0][1]
    assert len([*tmp_path.glob("fomo-stream-*")]) == 1
    (expected, _), *others = [out.splitlines() for out, _ in outputs]
    assert [out.splitlines()[1] for out, _ in outputs] == ["0"] * 3, "kernels that the process compiled itself"
    assert [scores for scores, _ in others] == [expected] * 2
    detector, rng = Detector(load_model(backend="numba"), 8, DetectorConfig(min_context=100)), np.random.default_rng(0)
    usual = np.concatenate([detector.process(rng.normal(size=(50, 8))).logit for _ in range(20)])
    np.testing.assert_allclose(np.frombuffer(bytes.fromhex(expected)), usual, rtol=0, atol=1e-3)
    assert not np.array_equal(np.frombuffer(bytes.fromhex(expected)), usual, equal_nan=True)


def test_a_service_that_is_stopped_while_it_loads_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(ServiceSettings(topic="t", bootstrap="localhost:1"))  # no broker is there: a start raises

    def load(*_: object) -> Any:
        service.stop()
        return load_model()

    monkeypatch.setattr(loading, "load_ready", load)
    service.run()
    assert service.not_ready() == ["the service is stopped"]


COMPILED_LATER = """
import sys
import numpy as np
from fomo_stream import Detector, DetectorConfig, FoMoDetector, ZeroShotDetector
from fomo_stream.cli.main import main
from fomo_stream.loading import load_ready

model = load_ready(backend="numba")
folders = "fomo_stream.model.kernels.", "fomo_stream.detector.step."
modules = [module for name, module in sys.modules.items() if name.startswith(folders)]
kernels = {id(f): f for module in modules for f in vars(module).values() if hasattr(f, "signatures")}.values()
before = {f.__name__: len(f.signatures) for f in kernels}
detector = Detector(model, 3, DetectorConfig(min_context=40, context_size=200, lag=40))
rng = np.random.default_rng(0)
for first in range(0, 1000, 50):
    rows = rng.normal(size=(50, 3))
    rows[3] *= -1e30 if first == 0 else 1
    detector.process(rows)
detector.feedback(np.arange(950, 1000), np.ones(50, dtype=bool))
twin = Detector(model, 3, DetectorConfig(min_context=40, context_size=200, lag=40))
twin.recover(detector.copy().changes())
for one in (detector, twin, Detector(model, 5, DetectorConfig(min_context=40, context_size=200))):
    one.process(rng.normal(size=(200, one.n_features)))
assert detector.generation > 3
print({f.__name__: len(f.signatures) for f in kernels if len(f.signatures) != before[f.__name__]})
print(sum(before.values()))
rows, odd = rng.normal(size=(300, 3)), {0: 9.0, 1: 0.0, 2: 0.0}
river = FoMoDetector(min_context=50, device="cpu")
river.learn_many([dict(enumerate(row)) for row in rows.tolist()])
of_table = ZeroShotDetector(device="cpu").fit(rows).score_samples([list(odd.values())])[0]
np.savetxt("rows.csv", rows, delimiter=",", header="a,b,c", comments="")
assert main(["score", "rows.csv", "-o", "scored.csv", "--device", "cpu", "--min-context", "50"]) == 0
print(river.score_one(odd) > 0.9, -of_table > 0.9, len(open("scored.csv").readlines()))
print([f.__name__ for f in kernels if f.stats.cache_misses], "torch" in sys.modules)
"""


def test_nothing_is_compiled_after_loading_and_scoring_on_a_cpu_does_not_load_torch(tmp_path: Path) -> None:
    """A stream must not wait for the compiler, whatever happens to it: generations, labels, a restored state.

    Then with River, with scikit-learn, whose model loads kernels of its own, and with the command.
    """
    script = [sys.executable, "-c", COMPILED_LATER]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    later, count, scored, compiled = done.stdout.splitlines()
    assert (later, scored, compiled) == ("{}", "True True 301", "[] False")
    assert int(count) >= 8


# --- processors

# digests of results, and of the state, which holds the encoded contexts
SCRIPT = """
import hashlib
import numpy as np
from fomo_stream import Detector, DetectorConfig, load_model
for d in (3, 20):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, d)) ** 3 + rng.normal(size=(2000, 1))
    rows[rng.random(rows.shape) < 0.01] = np.nan
    config = DetectorConfig(context_size=300, min_context=100, explain="alerts")
    detector = Detector(load_model("default", "cpu", "numba"), d, config)
    scored = detector.process(rows)
    reasons = np.array([reason[2:] for some in scored.reasons for reason in some or ()])
    parts = [reasons, scored.logit, scored.score, scored.p_value, scored.confidence]
    parts += [np.frombuffer(value, np.uint8) for value in detector.changes().values()]
    print(*(hashlib.blake2b(np.ascontiguousarray(part).tobytes(), digest_size=8).hexdigest() for part in parts))
"""
# what NumPy, PyTorch and its library MKL do on a processor without AVX-512
OLDER = {
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Nehalem",
}


def digests(**changes: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **changes}
    run = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    return subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_an_older_processor_gives_the_same_bits() -> None:
    newest = digests()
    assert len(newest.split()) > 20
    assert digests(**OLDER) == newest
