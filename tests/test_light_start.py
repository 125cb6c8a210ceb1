"""With the compiled kernels nothing loads torch, and notify nothing that computes: that takes much time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROWS = "import numpy as np; rows = np.random.default_rng(0).normal(size=(300, 3))"
RIVER = """
from fomo_stream import FoMoDetector
detector = FoMoDetector(min_context=50, device="cpu")
detector.learn_many([dict(enumerate(row)) for row in rows.tolist()])
score = detector.score_one({0: 9.0, 1: 0.0, 2: 0.0})
"""
SCIKIT = """
from fomo_stream import ZeroShotDetector
score = -ZeroShotDetector(device="cpu").fit(rows).score_samples([[9.0, 0.0, 0.0]])[0]
"""
COMMAND = """
from fomo_stream.cli.main import main
np.savetxt("rows.csv", rows, delimiter=",", header="a,b,c", comments="")
assert main(["score", "rows.csv", "-o", "scored.csv", "--device", "cpu", "--min-context", "50"]) == 0
score = len(open("scored.csv").readlines()) / 301
"""


def test_scoring_on_a_cpu_does_not_load_torch(tmp_path: Path) -> None:
    """With River, scikit-learn and the command, one after the other."""
    code = f"import sys\n{ROWS}\n"
    for use in (RIVER, SCIKIT, COMMAND):
        code += f"{use}\nprint(score > 0.9, 'torch' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["True False"] * 3, done.stderr


def test_notify_loads_no_library_for_numbers_and_none_for_people_that_nobody_named() -> None:
    code = """
import sys
import fomo_stream.cli.main, fomo_stream.notify.service
large = ("numpy", "torch", "numba", "sklearn", "scipy", "pandas", "river", "apprise", "requests", "httpx2", "fastavro")
print([name for name in large if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
