from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.demo.sensors import PUMP, sensor_stream
from fomo_stream.records.inference import infer_schema

ALL_FAULTS = {"spike", "stuck", "drift", "broken correlation", "vibration burst"}


def test_the_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    first, again, other = (list(islice(sensor_stream(seed), 600)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@given(st.integers(0, 2**32))
def test_every_record_has_all_sensors_and_no_trace_of_the_truth(seed: int) -> None:
    names = {sensor.name for sensor in PUMP}
    for number, (record, _) in enumerate(islice(sensor_stream(seed, fault_every=5, first_fault=0), 100)):
        assert set(record) == names | {"pump", "reading"}
        assert record["reading"] == number
        assert all(record[name] is None or np.isfinite(record[name]) for name in names)


def test_every_kind_of_fault_happens_and_none_before_its_time() -> None:
    faults = [fault for _, fault in islice(sensor_stream(0, fault_every=50, first_fault=300), 10_000)]
    assert set(faults) == {None, *ALL_FAULTS}
    assert set(faults[:300]) == {None}


def test_the_service_would_infer_exactly_the_sensors() -> None:
    schema, left_out = infer_schema([record for record, _ in islice(sensor_stream(0), 200)])
    assert schema.features == tuple(sorted(sensor.name for sensor in PUMP))
    assert left_out == {"pump": "text", "reading": "monotone counter"}
