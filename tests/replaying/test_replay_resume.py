"""A replay that was interrupted and goes on gives the same bytes as one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median_low
from typing import Any

import orjson
import pytest
from memory_source import MemorySource, make_plan, quick_settings
from replays import CtrlC, cheap_checkpoint, outcomes_of, report_of

from fomo_stream.detector.changelog import Entries
from fomo_stream.errors import ConfigError, StateError
from fomo_stream.kafka.feedback.recorded_effects import LabelEffect
from fomo_stream.partition.partition import Partition
from fomo_stream.partition.position import Restored
from fomo_stream.replaying import partition
from fomo_stream.replaying.checkpoints import Checkpoint
from fomo_stream.replaying.one_partition import Detectors
from fomo_stream.replaying.plan import Plan
from fomo_stream.replaying.sinks import part_of
from fomo_stream.replaying.writing import write_whole

Whole = tuple[bytes, bytes, list[Entries]]  # the report, the scores, and the state of each partition
RECORDS, SIZE = 420, 40
EFFECTS = [LabelEffect(at, ((at - 3, True), (at - 8, False))) for at in (60, 61, 222, 300, 400, 419, 420)]


def a_plan(folder: Path, name: str, resume: bool = True, **changes: Any) -> Plan:
    """Own detector and a variant over two partitions, with labels that take effect."""
    place = folder / name
    place.mkdir(exist_ok=True)
    flags = {"grid": ("context_size=15",), "feedback": "f", "feedback_memory": 30, "lags": 1, **changes}
    settings = quick_settings(
        model=cheap_checkpoint(folder),
        scores_file=place / "scores.jsonl",
        resume=place if resume else None,
        **flags,
    )
    return make_plan(settings, MemorySource(RECORDS, (0, 1)), {0: EFFECTS, 1: EFFECTS[::2]})


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "BLOCK", SIZE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replays")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Iterator[Whole]:
    """Report, scores and states of a replay without checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "BLOCK", SIZE)
        yield result(a_plan(folder, "whole", resume=False))


def result(plan: Plan) -> Whole:
    outcomes = outcomes_of(plan)
    report = report_of(plan, outcomes)
    assert report["source"]["is_complete"]
    assert plan.settings.scores_file is not None
    scores = plan.settings.scores_file.read_bytes()
    return orjson.dumps(report), scores, [state_of(plan, one.entries) for one in outcomes]


def state_of(plan: Plan, entries: dict[str, bytes]) -> Entries:
    """The state of a partition, by a task that has recovered it: the entries may also hold generations of before."""
    task = Partition(0, plan.settings)
    task.restore(Restored(RECORDS, entries, learned_until=RECORDS))
    task.begin(Detectors(plan).first, plan.schema)
    detector = task.detector
    assert detector is not None
    others = {key: value for key, value in entries.items() if not key.startswith("detector/")}
    return {**detector.copy().changes(), **others}


def test_the_report_counts_the_incidents_of_the_scored_records(whole: Whole) -> None:
    results = [orjson.loads(line)["fomo"] for line in whole[1].splitlines()]
    alerts = Counter(result["incident"] for result in results if result["outlier"])
    found = orjson.loads(whole[0])["incidents"]
    assert (found["count"], found["most_records"]) == (len(alerts), max(alerts.values()))
    assert found["median_records"] == median_low(alerts.values())
    assert len(alerts) > 5


@pytest.mark.parametrize("blocks", [(1,), (5, 1, 4), (9,), (16,)])
def test_a_stopped_replay_goes_on(folder: Path, whole: Whole, blocks: tuple[int, ...]) -> None:
    plan = a_plan(folder, f"stopped-{blocks}")
    for n in blocks:
        so_far = report_of(plan, outcomes_of(plan, CtrlC(n)))
        assert not so_far["source"]["is_complete"]
        assert so_far["source"]["records"] > 0
    assert result(plan) == whole
    assert not list((folder / f"stopped-{blocks}").glob("scores.jsonl.part-*"))
    assert result(plan) == whole  # once more, when nothing is left


def test_the_scores_of_a_complete_replay_are_written_once(folder: Path, whole: Whole) -> None:
    plan = a_plan(folder, "complete")
    scores = plan.settings.scores_file
    assert scores is not None
    outcomes = outcomes_of(plan)
    with pytest.MonkeyPatch.context() as patch:  # the process ends before the parts are deleted
        patch.setattr("fomo_stream.replaying.plan.delete_parts", lambda *_: None)
        plan.join_sinks(is_complete=True)
    part_of(scores, 0).unlink()
    plan.join_sinks(is_complete=all(one.is_complete for one in outcomes_of(plan)))
    assert scores.read_bytes() == whole[1]
    assert not part_of(scores, 1).exists()
    assert [one.position for one in outcomes] == [RECORDS, RECORDS]
    scores.unlink()
    with pytest.raises(ConfigError, match=r"scores.jsonl is gone, .*; use another folder"):
        outcomes_of(plan)


def test_checkpoints_change_nothing(folder: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "is_due", True)
    assert result(a_plan(folder, "saved often")) == whole


KILLED = """
import os, signal, sys
from pathlib import Path
from replays import CtrlC, outcomes_of
from test_replay_resume import SIZE, a_plan
from fomo_stream.replaying import checkpoints, partition
partition.BLOCK = SIZE
looks = iter(range(10**6))
checkpoints.Checkpoint.is_due = property(lambda self: next(looks) % 3 == 2)
outcomes_of(a_plan(Path(sys.argv[1]), "killed"), CtrlC(6, lambda: os.kill(os.getpid(), signal.SIGKILL)))
"""


def test_a_killed_replay_goes_on_from_its_last_checkpoint(folder: Path, whole: Whole) -> None:
    path = json.dumps(sys.path)
    program = f"import sys; sys.path[:] = {path}\n{KILLED}"
    killed = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    plan = a_plan(folder, "killed")
    saved = Checkpoint(folder / "killed", 0).load()
    assert saved is not None
    assert saved.place["records"] < saved.place["position"] <= 6 * SIZE * 2
    assert result(plan) == whole


def test_a_damaged_checkpoint_is_refused(folder: Path) -> None:
    plan = a_plan(folder, "damaged")
    outcomes_of(plan, CtrlC(3))
    path = folder / "damaged" / "partition-0.state"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    write_whole(path, bytes(data))
    with pytest.raises(StateError, match="damaged"):
        outcomes_of(plan)


def test_checkpoints_hold_no_pickles(folder: Path) -> None:
    """Arrays of objects would be pickled: `load` refuses them, so every array must be plain."""
    plan = a_plan(folder, "plain")
    outcomes_of(plan, CtrlC(3))
    saved = Checkpoint(folder / "plain", 0).load()
    assert saved is not None
    assert saved.entries
    assert all(array.dtype != object for array in saved.tally.values())
