"""The state of the version before is read: a partition goes on from it as that version would have."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_state import Written, instance, read, results_of_next
from pipelines import Instance, detector_of, restored

# Of rows that are equally near, format 12 took some by chance to complete a record with missing values
CLOSE = 0.02
WRITTEN = [
    pytest.param(one, id=f"{path.stem}-{one.kind}")
    for path in sorted(Path(__file__).parent.glob("state_*.xz"))
    for one in read(path)
]


def restore(before: Written) -> Instance:
    one = instance(before.kind)
    one.restore(restored(before.entries, before.committed))
    return one


@pytest.mark.parametrize("before", WRITTEN)
def test_a_partition_goes_on_from_the_state_of_the_version_before(before: Written) -> None:
    """Also after its first commit has written what is written in another way now."""
    one, entries = restore(before), dict(before.entries)
    assert detector_of(one.pipeline).summary.own_contexts == (2 if before.kind == "plain" else 0)
    committed = before.committed | one.commit(entries)
    again = restore(Written(before.kind, entries, committed, before.results))
    assert again.commit({}) == {}
    assert {result["outlier"] for result in before.results} == {True, False}
    results = results_of_next(one)
    assert results_of_next(again) == results
    same = 0
    for found, wanted in zip(results, before.results, strict=True):
        known = {name: value for name, value in wanted.items() if value is not None}
        assert {name for name, value in found.items() if value is not None} == set(known)
        for name, value in known.items():
            assert found[name] == (pytest.approx(value, rel=0, abs=CLOSE) if isinstance(value, float) else value)
        same += found["logit"] == pytest.approx(wanted["logit"], rel=0, abs=1e-6)
    assert same >= len(results) / 2
