"""The benchmark suite.

    python -m benchmarks [--only scoring,build] [--quick] [--out run.json] [--docs]
    python -m benchmarks --compare old.json new.json

Everything runs on one thread, except that the service and its broker share the cores that there are. To measure the
service, set KAFKA_HOME or TEST_BOOTSTRAP (see tests/brokers.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # libraries read them when they are first imported

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("benchmarks", "tests", "tests/integration")]

from suite.command import main

if __name__ == "__main__":
    sys.exit(main())
