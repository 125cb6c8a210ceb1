"""Short runs of two benchmarks of faults: brokers and instances, and the Helm chart on a real API server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from brokers import kafka_home

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import chart_bench
import fault_bench

pytestmark = pytest.mark.slow


@pytest.mark.skipif(kafka_home() is None, reason="needs an Apache Kafka to kill (KAFKA_HOME)")
def test_under_faults_each_record_is_scored_once_in_order_with_the_same_result(tmp_path: Path) -> None:
    home = kafka_home()
    assert home is not None
    result = fault_bench.run(home, tmp_path, count=2000, seconds=70, n_nodes=3, session_s=6, seed=0, at_least=4)
    assert result["faults"] >= 4
    for what in fault_bench.MUST_BE_0:
        assert result[what] == 0, result
    assert result["offsets_complete"], result


def test_in_a_cluster_each_record_is_scored_once_whatever_happens_to_the_pods(tmp_path: Path) -> None:
    kafka, kube = kafka_home(), chart_bench.kube_home()
    if kafka is None or kube is None or os.geteuid() != 0:
        pytest.skip("needs KAFKA_HOME, KUBE_HOME (an API server, and a node whose pods are processes) and root")
    result = chart_bench.run(kafka, kube, tmp_path)
    print(result)
    assert result["records"] > 1000
    for what in chart_bench.MUST_BE_0:
        assert result[what] == 0, result
