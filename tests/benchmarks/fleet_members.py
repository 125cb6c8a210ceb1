"""Members of a group that only join: part of `fleet.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from brokers import Broker
from confluent_kafka import Consumer
from fleet_model import HEARTBEAT_S
from fleet_run import MARGIN_S
from services import unique


class Members:
    """Members of a group that do nothing but join: for rebalances of many."""

    def __init__(self, broker: Broker, members: int, partitions: int) -> None:
        self.group = unique("members")
        self._broker, self._partitions = broker, partitions
        broker.create_topic(self.group, partitions)
        self._owned: dict[int, set[int]] = {}
        self._members: dict[int, Any] = {}
        self._settled = 0.0
        for number in range(members):
            self._add(number)
        self._spin(self._is_balanced)

    def close(self) -> None:
        for member in self._members.values():
            member.close()

    def leave(self, phase: float) -> float:
        """Seconds until others have the partitions of one that leaves, so long after a heartbeat of the others."""
        self._wait_for_phase(phase)
        number, member = self._members.popitem()
        del self._owned[number]
        member.close()
        began = time.time()
        self._spin(lambda: sum(map(len, self._owned.values())) == self._partitions)
        return self._settled - began

    def join(self, phase: float) -> float:
        """Seconds until one that joins has its share."""
        self._wait_for_phase(phase)
        began = time.time()
        self._add(len(self._members))
        self._spin(self._is_balanced)
        return self._settled - began

    def _add(self, number: int) -> None:
        mine = self._owned[number] = set()
        group = {"group.id": self.group, "partition.assignment.strategy": "cooperative-sticky"}
        group |= {"heartbeat.interval.ms": str(round(1000 * HEARTBEAT_S))}
        member = Consumer({**self._broker.config, **group, "enable.auto.commit": False})

        def assigned(_consumer: Any, places: list[Any]) -> None:
            mine.update(place.partition for place in places)
            self._settled = time.time()

        def revoked(_consumer: Any, places: list[Any]) -> None:
            mine.difference_update(place.partition for place in places)

        member.subscribe([self.group], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        self._members[number] = member

    def _is_balanced(self) -> bool:
        shares = [len(owned) for owned in self._owned.values()]
        return sum(shares) == self._partitions and max(shares) - min(shares) <= 1

    def _wait_for_phase(self, phase: float) -> None:
        due = time.time() + (self._settled + phase - time.time() - MARGIN_S) % HEARTBEAT_S + MARGIN_S
        self._spin(lambda: time.time() >= due)

    def _spin(self, done: Callable[[], bool]) -> None:
        """Let all members work until it is done."""
        deadline = time.monotonic() + 120
        while not done():
            assert time.monotonic() < deadline, "the members do not come to an end"
            for member in list(self._members.values()):
                member.poll(0)
            time.sleep(0.005)
