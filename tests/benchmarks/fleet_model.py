"""A model of a fleet: how long rebalances and restores take, how large the state is, what the brokers have to do. Pure.

Assumptions, from Kafka's protocol of consumer groups, with cooperative rebalancing:

- Members learn of a rebalance by the answer to their next heartbeat. All send their heartbeats at about the same time,
  because the last rebalance ended for all at the same time. So a round waits half an interval on average, one at most,
  however many members there are.
- When a member leaves, one round gives its partitions to others. When one joins, a first round takes partitions away,
  and a second one gives them to it: it waits for the newcomer's next heartbeat, one interval later.
- A member that dies is noticed after a session timeout.
- An instance restores its partitions one after the other, and encodes their contexts one after the other.
- The cleaner compacts a segment of the state topic when it is closed: after `SEGMENT_S`, or `SEGMENT_BYTES`. Up to one
  such segment is written, and up to one waits for the cleaner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HEARTBEAT_S = 1.0  # of the service
SESSION_S = 45.0  # the client's default
SEGMENT_S, SEGMENT_BYTES = 60.0, 16 << 20  # as the service creates the state topic


@dataclass(frozen=True)
class Constants:
    """What is measured."""

    round_s: float  # of a rebalance, beyond the wait for heartbeats
    restore_s: float  # of a partition
    restore_s_per_byte: float  # that its state takes on disk
    encode_s: float  # until the first record of a restored partition is scored
    live_bytes: float  # state in use of a partition
    written_bytes: float  # of state, for each record
    output_bytes: float  # of scores, for each record
    commit_s: float  # from one commit of an instance to the next while records come
    requests: float  # of a transaction, without those that depend on its partitions
    requests_per_partition: float  # of a transaction


@dataclass(frozen=True)
class Fleet:
    """Instances of one group, and the partitions of its input, with the same rate of records in each."""

    instances: int
    partitions: int
    rate: float  # records a second of a partition

    @property
    def share(self) -> int:
        """The most partitions that an instance has."""
        return math.ceil(self.partitions / self.instances)


def leave_s(model: Constants) -> float:
    """Mean time of a rebalance after a member has left."""
    return HEARTBEAT_S / 2 + model.round_s


def join_s(model: Constants) -> float:
    """Mean time of a rebalance in which a member joins."""
    return HEARTBEAT_S / 2 + HEARTBEAT_S + 2 * model.round_s


def disk_bytes(model: Constants, fleet: Fleet) -> float:
    """State of a partition on disk, at most."""
    return model.live_bytes + 2 * min(SEGMENT_BYTES, fleet.rate * model.written_bytes * SEGMENT_S)


def restore_s(model: Constants, partitions: int, bytes_on_disk: float) -> float:
    """Time in which one instance restores so many partitions."""
    return partitions * (model.restore_s + model.restore_s_per_byte * bytes_on_disk)


def touched(rate: float, seconds: float) -> float:
    """Probability that a partition has a record in an interval."""
    return 1 - math.exp(-rate * seconds)


def load(model: Constants, fleet: Fleet) -> dict[str, float]:
    """What the brokers have to do in a second, replication not counted."""
    in_use = fleet.partitions * touched(fleet.rate, model.commit_s) / model.commit_s  # partitions of all transactions
    transactions = fleet.instances / model.commit_s * touched(fleet.rate * fleet.share, model.commit_s)
    return {
        "transactions": transactions,
        "requests": transactions * model.requests + in_use * model.requests_per_partition,
        "markers": transactions + 2 * in_use,  # in offsets; in outputs and state
        "bytes": fleet.partitions * fleet.rate * (model.written_bytes + model.output_bytes),
    }


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of the least squares line through points (x, y); neither is below 0."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    if slope <= 0:
        return mean_y, 0.0
    if mean_y < slope * mean_x:
        return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return mean_y - slope * mean_x, slope


def simulate(model: Constants, fleet: Fleet) -> dict[str, float]:
    """Times in seconds, sizes in bytes, loads a second, of a fleet in its steady state."""
    disk = disk_bytes(model, fleet)
    one = restore_s(model, 1, disk)
    share, encode = fleet.share, model.encode_s
    return {
        "all start": HEARTBEAT_S + share * (one + encode),
        "one leaves": leave_s(model) + one + encode,  # each of the others gets one of its partitions at most
        "one dies": SESSION_S + leave_s(model) + one + encode,
        "one joins": join_s(model) + share * (one + encode),
        "an instance takes over 100": leave_s(model) + 100 * (one + encode),
        "restore one": one,
        "state in use": fleet.partitions * model.live_bytes,
        "state on disk": fleet.partitions * disk,
        **load(model, fleet),
    }
