"""The state of the version before is read: a partition goes on from it as that version would have."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_state import Written, instance, read, results_of_next
from pipelines import Instance, detector_of, restored

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
    for each in (one, again):
        for found, wanted in zip(results_of_next(each), before.results, strict=True):
            known = {name: value for name, value in wanted.items() if value is not None}
            assert {name for name, value in found.items() if value is not None} == set(known)
            for name, value in known.items():
                assert found[name] == (value if isinstance(value, str) else pytest.approx(value, rel=0, abs=1e-6))
