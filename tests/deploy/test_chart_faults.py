"""A short run of the benchmark of the Helm chart on a real API server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from brokers import kafka_home
from documents import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import chart_bench


@pytest.mark.slow
def test_in_a_cluster_each_record_is_scored_once_whatever_happens_to_the_pods(tmp_path: Path) -> None:
    kafka, kube = kafka_home(), chart_bench.kube_home()
    if kafka is None or kube is None or os.geteuid() != 0:
        pytest.skip("needs KAFKA_HOME, KUBE_HOME (an API server, and a node whose pods are processes) and root")
    result = chart_bench.run(kafka, kube, tmp_path, records_per_s=60)
    print(result)
    assert result["records"] > 1000
    for what in chart_bench.MUST_BE_0:
        assert result[what] == 0, result
