"""A consumer group in memory: its members, as librdkafka behaves when calls and rebalances cross.

A client calls back only while it is polled. As long as a callback waits, its member keeps the group from completing the
next rebalance, and the client postpones `subscribe` and `unsubscribe` until then: of both, only the last call counts.
`test_broker_contract` compares this with a real client.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from confluent_kafka import TopicPartition
from memory_broker import Member, MemoryBroker, MemoryConsumer


class Group:
    """The group's coordinator and its leader, which gives partitions cooperatively and keeps what members have."""

    def __init__(self, broker: MemoryBroker, topic: str, count: int) -> None:
        self.broker, self.topic, self.count = broker, topic, count
        self.members: dict[str, GroupClient] = {}
        self.generation = self._joined = 0
        self._is_changed = False

    def join(self, client: GroupClient) -> str:
        """A new member; returns its id."""
        self._joined += 1
        name = f"{client.name}-{self._joined}"
        self.members[name] = client
        self._is_changed = True
        return name

    def remove(self, name: str | None) -> None:
        """A member leaves, or its session is over."""
        if name is not None and self.members.pop(name, None) is not None:
            self.broker.generations[name] = -1
            self._is_changed = True

    def complete(self) -> None:
        """Complete the rebalance that is wanted, if every member has joined."""
        if not self._is_changed or any(one.is_frozen or one.waits for one in self.members.values()):
            return
        self._is_changed = False
        self.generation += 1
        claims: dict[int, str] = {}
        for name, client in self.members.items():
            self.broker.generations[name] = self.generation
            for number in client.owned:
                claims.setdefault(number, name)
        most = -(-self.count // max(1, len(self.members)))
        given = {name: [n for n in sorted(claims) if claims[n] == name][:most] for name in self.members}
        for number in sorted(set(range(self.count)) - set(claims)):
            if given:
                min(given.values(), key=len).append(number)
        for name, client in self.members.items():
            client.give(set(given[name]))
            # What it gives up, or had though another member has it, is dealt out in the next rebalance.
            self._is_changed |= bool(client.owned - set(given[name]))


class GroupClient(MemoryConsumer):
    """As a confluent_kafka.Consumer with cooperative rebalances, whose callbacks wait for `serve`."""

    def __init__(self, group: Group, name: str) -> None:
        super().__init__(group.broker, name)
        self._group = group
        self._id: str | None = None
        self._callbacks: dict[str, Any] = {}
        self._waiting: deque[tuple[str, set[int]]] = deque()
        self._postponed = ""
        self.is_frozen = False

    @property
    def owned(self) -> set[int]:
        """The partitions of the topic that the client has."""
        return {found.partition for found in self.assignment() if found.topic == self._group.topic}

    @property
    def waits(self) -> bool:
        """Whether a callback waits to be served."""
        return bool(self._waiting)

    def memberid(self) -> str:
        return self._id or ""

    def consumer_group_metadata(self) -> Member:
        return Member(self.memberid(), self.generation)

    def subscribe(self, _topics: list[str], **callbacks: Any) -> None:
        self._callbacks = callbacks
        self._call("subscribe")

    def unsubscribe(self) -> None:
        self._call("unsubscribe")

    def _call(self, what: str) -> None:
        self._postponed = what
        if self._waiting:
            return
        self._postponed = ""
        if what == "unsubscribe":
            self._group.remove(self._id)
            self._id = None
            if self.owned:
                self._waiting.append(("revoke", self.owned))
        elif what == "subscribe" and self._id is None:
            self._id = self._group.join(self)

    def give(self, numbers: set[int]) -> None:
        """The group has given these partitions to it."""
        self.generation = self._group.generation
        if self.owned - numbers:
            self._waiting.append(("revoke", self.owned - numbers))
        self._waiting.append(("assign", numbers - self.owned))

    def serve(self) -> None:
        """What `poll` does besides taking records."""
        while self._waiting:
            kind, numbers = self._waiting.popleft()
            partitions = [TopicPartition(self._group.topic, number) for number in sorted(numbers)]
            self._callbacks[f"on_{kind}"](self, partitions)
            if kind == "lost":
                self._postponed = self._postponed or "subscribe"
        self._call(self._postponed)

    def wake(self, is_noticed: bool) -> None:
        """Go on after it was suspended. If the group removed it meanwhile, the client tells so, unless a callback waits
        already, or it joins again under another id with what it had.
        """
        self.is_frozen = False
        if self._id is None or self._id in self._group.members:
            return
        if is_noticed and not self._waiting:
            self._id = None
            self._waiting.append(("lost", self.owned))
        else:
            self._id = self._group.join(self)
