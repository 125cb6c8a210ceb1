"""Simulates a fleet: rebalance and restore times, size of the state topic, load of the brokers.

    KAFKA_HOME=... python tests/benchmarks/fleet.py [--cycles 3] [--records 1000] [--members 100]

The model is in `fleet_model.py`. Its constants are measured on one broker with 16 partitions: first one instance, then
two, of which one leaves and comes back several times. What it predicts is then compared with three instances and 48
partitions, and, for rebalances alone, with 100 members that do not score. Last comes the simulation of 100 instances
with 1,000 partitions. Default settings, 10 features. The state of an established stream is taken from a detector
without Kafka.

A rebalance waits for heartbeats, so instances leave and join at times that are spread evenly between two of them. All
processes share the cores of this machine. Prints tables, and one JSON line last. Exits with 1 if a prediction about
rebalances, restores or the size of the state is off by more than 30 %.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "integration", "benchmarks")]

from brokers import Broker, kafka_home, wait_for  # noqa: E402
from fleet_members import Members  # noqa: E402
from fleet_model import (  # noqa: E402
    HEARTBEAT_S,
    Constants,
    Fleet,
    fit_line,
    join_s,
    leave_s,
    load,
    restore_s,
    simulate,
    touched,
)
from fleet_run import STEADY_RATE, Instance, Monitor, Run, Takeover  # noqa: E402
from suite.contenders import sensor_rows  # noqa: E402
from suite.load import FEATURES  # noqa: E402

from fomo_stream.detector.detector import Detector  # noqa: E402
from fomo_stream.model.checkpoint import shared_model  # noqa: E402
from fomo_stream.settings.service import ServiceSettings  # noqa: E402

WARM_UP = 300  # records of a partition before the first restore is measured
TOLERANCE = 0.3
RATES = (20.0, 1000.0)  # simulated: records a second of a partition
AGE = 100_000  # records of each partition before the simulation
ENTRY_BYTES = 25  # of an entry in the state topic, besides its name and value


@dataclass
class Measured:
    """All of a run of one size."""

    fleet: Fleet
    leaves: list[Takeover]
    joins: list[Takeover]
    live_bytes: float
    steady: dict[str, float]


def cycles(run: Run, count: int) -> tuple[list[Takeover], list[Takeover]]:
    """The last instance leaves and comes back, at times spread evenly between two heartbeats."""
    leaves, joins = [], []
    for n in range(count):
        phase = HEARTBEAT_S * (n + 0.5) / count
        leaves.append(run.leave(phase))
        joins.append(run.join(run.instances[-1], phase))
    return leaves, joins


def measure_small(run: Run, folder: Path, records: int, count: int) -> tuple[list[Takeover], list[Measured]]:
    """Restarts of one instance with two sizes of the state; then one instance, and two, with 16 partitions."""
    (first,) = run.instances
    first.start()
    restarts = []
    for more in (WARM_UP, records - WARM_UP):
        run.score(more)
        restarts.append(run.restart())
    alone = Measured(Fleet(1, run.partitions, STEADY_RATE), [], [], run.live_bytes(first), run.steady())
    second = Instance(run.settings, folder, f"{run.topic}-1")
    run.instances.append(second)
    run.join(second)
    steady = run.steady()
    both = Measured(Fleet(2, run.partitions, STEADY_RATE), *cycles(run, count), run.live_bytes(second), steady)
    return restarts, [alone, both]


def measure_large(run: Run, records: int, count: int) -> Measured:
    """Three instances, 48 partitions."""
    for instance in run.instances:
        instance.start()
    share = run.partitions // len(run.instances)
    wait_for(lambda: all(len(one.partitions()) == share for one in run.instances), "all to have partitions", 120)
    run.score(records)
    steady = run.steady()
    found = cycles(run, count)
    return Measured(Fleet(3, run.partitions, STEADY_RATE), *found, run.live_bytes(run.instances[-1]), steady)


@dataclass
class Established:
    """State of a partition of an established stream, in bytes."""

    in_use: float
    generations: float  # written for each record, times the age: a view is renewed when a tenth of its rows has changed
    other: dict[int, float]  # written for each record apart from generations, by records of a partition in a commit

    def written(self, per_commit: int, age: int) -> float:
        """Bytes written for each record after `age` records."""
        return self.other[per_commit] + self.generations / age


def established(per_commits: Iterable[int]) -> Established:
    """Measures a detector: generations from 10,000 to 20,000 records, then 1,000 records for each size of a commit."""
    detector = Detector(shared_model(), FEATURES, ServiceSettings(topic="t").detector_config())
    rows = sensor_rows(40_000, FEATURES, seed=0)
    entries: dict[str, bytes] = {}
    done = 0

    def written(records: int, per_commit: int, generations: bool) -> int:
        """Bytes of the state that these records write."""
        nonlocal done
        size, last = 0, done + records
        while done < last:
            count = min(per_commit, last - done)
            detector.process(rows[done : done + count])
            done += count
            for name, value in detector.changes().items():
                entries[name] = value or b""
                if name.startswith("generation/") == generations:
                    size += len(name) + len(value or b"") + ENTRY_BYTES
        return size

    written(10_000, 64, True)
    generations = written(10_000, 64, True) / math.log(2)  # the integral of 1 / age
    other = {count: written(1000, count, False) / 1000 for count in sorted(set(per_commits))}
    return Established(float(sum(map(len, entries.values()))), generations, other)


def fit(restarts: list[Takeover], small: list[Measured]) -> Constants:
    """The constants of the model, from the small runs."""
    _, both = small
    rounds = [one.rebalance_s - HEARTBEAT_S / 2 for one in both.leaves]
    rounds += [(one.rebalance_s - 1.5 * HEARTBEAT_S) / 2 for one in both.joins]
    takeovers = [*restarts, *both.leaves, *both.joins]
    restore = fit_line([(one.bytes_on_disk, one.restore_s / one.partitions) for one in takeovers])
    encodes = [one.encode_s / one.partitions for one in (*restarts[1:], *both.leaves) if one.encode_s is not None]
    commit_s = statistics.fmean(run.fleet.instances / run.steady["transactions"] for run in small)
    requests = fit_line(
        [
            (run.fleet.share * touched(STEADY_RATE, commit_s), run.steady["requests"] / run.steady["transactions"])
            for run in small
        ]
    )
    records = STEADY_RATE * both.fleet.partitions
    return Constants(
        max(0.0, statistics.fmean(rounds)),
        *restore,
        statistics.median(encodes),
        statistics.fmean(run.live_bytes for run in small),
        statistics.fmean(run.steady["state"] / records for run in small),
        statistics.fmean(run.steady["output"] / records for run in small),
        commit_s,
        *requests,
    )


def compare(model: Constants, large: Measured, many: dict[str, float]) -> list[tuple[str, float, float, bool]]:
    """What was predicted and measured: name, both values, whether they have to agree."""
    leaves, joins = large.leaves, large.joins
    expected = load(model, large.fleet)

    def restore(found: list[Takeover]) -> tuple[float, float]:
        predicted = [restore_s(model, one.partitions, one.bytes_on_disk) for one in found]
        return statistics.median(predicted), statistics.median(one.restore_s for one in found)

    written = large.steady["state"] + large.steady["output"]
    encodes = [(one.partitions * model.encode_s, one.encode_s or 0.0) for one in leaves]
    rows = [
        ("rebalance after a leave, s", leave_s(model), statistics.fmean(one.rebalance_s for one in leaves), True),
        ("rebalance of a join, s", join_s(model), statistics.fmean(one.rebalance_s for one in joins), True),
        (f"restore of {leaves[0].partitions} after a leave, s", *restore(leaves), True),
        (f"restore of {joins[0].partitions} after a join, s", *restore(joins), True),
        ("first scores after a leave, s", *(statistics.median(of) for of in zip(*encodes, strict=True)), False),
        ("state in use, MB", model.live_bytes * 48 / 1e6, large.live_bytes * 48 / 1e6, True),
        ("transactions/s", expected["transactions"], large.steady["transactions"], False),
        ("requests/s", expected["requests"], large.steady["requests"], False),
        ("state and outputs, MB/s", expected["bytes"] / 1e6, written / 1e6, False),
    ]
    if many:
        rows += [
            (f"rebalance after a leave, {int(many['members'])} members, s", leave_s(model), many["leave_s"], False),
            (f"rebalance of a join, {int(many['members'])} members, s", join_s(model), many["join_s"], False),
        ]
    return rows


def measure_members(broker: Broker, members: int, count: int) -> dict[str, float]:
    """Rebalances of a group of many members with 10 partitions each."""
    if members < 2:
        return {}
    group = Members(broker, members, 10 * members)
    try:
        phases = [HEARTBEAT_S * (n + 0.5) / count for n in range(count)]
        pairs = [(group.leave(phase), group.join(phase)) for phase in phases]
    finally:
        group.close()
    leave, join = (statistics.fmean(found) for found in zip(*pairs, strict=True))
    return {"members": members, "leave_s": leave, "join_s": join}


def show(title: str, rows: Iterable[tuple[Any, ...]]) -> None:
    print(f"\n{title}")
    for name, *values in rows:
        cells = (f"{value:14,.3f}" if isinstance(value, float) else f"{value:>14}" for value in values)
        print(f"  {name:<46}", *cells)


def measure_all(options: argparse.Namespace) -> tuple[Constants, list[tuple[str, float, float, bool]], dict[str, Any]]:
    """The constants, what was predicted and measured, and all raw measurements."""
    monitor = Monitor()
    with tempfile.TemporaryDirectory() as name, monitor.broker() as broker:
        folder = Path(name)
        with closing(Run(broker, monitor, folder, 1, 16)) as run:
            restarts, small = measure_small(run, folder, options.records, options.cycles)
        model = fit(restarts, small)
        show("constants", asdict(model).items())
        with closing(Run(broker, monitor, folder, 3, 48)) as run:
            large = measure_large(run, options.records, options.cycles)
        many = measure_members(broker, options.members, options.cycles)
    raw = {"restarts": restarts, "small": small, "large": large, "many": many}
    return model, compare(model, large, many), raw


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=3, help="times that an instance leaves and comes back")
    parser.add_argument("--records", type=int, default=1000, help="of each partition, before instances move")
    parser.add_argument("--members", type=int, default=100, help="of the group that does not score; 0: leave it out")
    options = parser.parse_args()
    if kafka_home() is None:
        parser.error("this needs a Kafka of its own: set KAFKA_HOME, and not TEST_BOOTSTRAP")
    model, compared, raw = measure_all(options)
    rows = [(name, wanted, found, wanted / found - 1) for name, wanted, found, _ in compared]
    show("predicted, measured, difference", rows)
    many = raw["many"]
    if many:  # a round of so many members takes longer
        rounds = many["leave_s"] - HEARTBEAT_S / 2, (many["join_s"] - 1.5 * HEARTBEAT_S) / 2
        model = replace(model, round_s=max(0.0, statistics.fmean(rounds)))
    simulated = {}
    per_commit = {rate: max(1, round(rate * model.commit_s)) for rate in RATES}
    grown = established(per_commit.values())
    for rate, count in per_commit.items():
        written = grown.written(count, AGE)
        grown_up = replace(model, live_bytes=grown.in_use, written_bytes=written)
        found = {**simulate(grown_up, Fleet(100, 1000, rate)), "state bytes a record": written}
        show(f"100 instances, 1,000 partitions, {rate:g} records/s in each, {AGE:,} records before", found.items())
        simulated[f"{rate:g} records/s"] = found
    raw["established"] = grown
    result = {"benchmark": "fleet", "constants": asdict(model), "compared": compared, "simulated": simulated}
    print(json.dumps({**result, "raw": raw}, default=lambda value: asdict(value)))
    return int(any(must and abs(wanted / found - 1) > TOLERANCE for _, wanted, found, must in compared))


if __name__ == "__main__":
    sys.exit(main())
