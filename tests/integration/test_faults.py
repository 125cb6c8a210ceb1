"""A short run of the benchmark of faults: of brokers and of instances."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from brokers import kafka_home

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import fault_bench


@pytest.mark.slow
@pytest.mark.skipif(kafka_home() is None, reason="needs an Apache Kafka to kill (KAFKA_HOME)")
def test_under_faults_each_record_is_scored_once_in_order_with_the_same_result(tmp_path: Path) -> None:
    home = kafka_home()
    assert home is not None
    result = fault_bench.run(home, tmp_path, count=1500, seconds=45, n_nodes=3, session_s=6, seed=0, at_least=3)
    assert result["faults"] >= 3
    for what in fault_bench.MUST_BE_0:
        assert result[what] == 0, result
    assert result["offsets_complete"], result
