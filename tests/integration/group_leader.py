"""The leader of a consumer group, of which the test decides whom it gives which partitions, and when it says nothing.

A group's leader is its first member. It hears of all members and assigns the partitions; the broker passes its word on.
This one speaks Kafka's protocol by itself (JoinGroup 5, SyncGroup 3, Heartbeat 3), as no client lets one stop between
joining and assigning.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Mapping
from types import TracebackType

JOIN, HEARTBEAT, SYNC = (11, 5), (12, 3), (14, 3)
REBALANCE_IN_PROGRESS = 27


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def data(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


class Answer:
    """Reads the fields of a response."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f">{kind}", self._content, self._at)
        self._at += struct.calcsize(kind)
        return int(value)

    def bytes(self, kind: str) -> bytes:
        size = max(0, self.number(kind))
        self._at += size
        return self._content[self._at - size : self._at]

    def text(self) -> str:
        return self.bytes("h").decode()


class Leader:
    """Joins first, so that it leads; in a thread of its own.

    wanted: by instance id, the partitions of `topic` to give to it from the next rebalance on.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, session_s: float) -> None:
        self.wanted: Mapping[str, list[int]] = {}
        self.is_silent = threading.Event()  # from now on it joins, but assigns nothing and sends no heartbeat
        self.has_joined_silently = threading.Event()
        self.members: set[str] = set()  # instance ids of the last assignment
        self.leads = threading.Event()
        self._group, self._topic, self._session_ms = group, topic, int(1000 * session_s)
        self._rejoin = threading.Event()
        self._stopping = threading.Event()
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Leader:
        self._thread.start()
        assert self.leads.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def give(self, wanted: Mapping[str, list[int]]) -> None:
        """Begin a rebalance that assigns these."""
        self.wanted = wanted
        self._rejoin.set()

    def _run(self) -> None:
        try:
            member = ""
            while not self._stopping.is_set():
                self._rejoin.clear()
                generation, member, members = self._join(member)
                if self.is_silent.is_set():
                    self.has_joined_silently.set()
                    return
                self._assign(generation, member, members)
                self.leads.set()
                while not self._rejoin.wait(0.1) and self._heartbeat(generation, member) == 0:
                    pass
        except OSError:
            assert self._stopping.is_set()

    def _join(self, member: str) -> tuple[int, str, dict[str, str]]:
        """Returns the generation, its own member id, and the others' by instance id."""
        metadata = struct.pack(">hi", 0, 1) + text(self._topic) + data(b"")
        protocol = struct.pack(">i", 1) + text("cooperative-sticky") + data(metadata)
        request = text(self._group) + struct.pack(">ii", self._session_ms, 300_000) + text(member) + text("leader")
        answer = self._ask(JOIN, request + text("consumer") + protocol)
        answer.number("i")
        error, generation = answer.number("h"), answer.number("i")
        assert error == 0, f"JoinGroup is answered with error {error}"
        answer.text()
        leader, member = answer.text(), answer.text()
        assert leader == member
        members = {}
        for _ in range(answer.number("i")):
            member_id, instance = answer.text(), answer.text()
            answer.bytes("i")
            members[instance] = member_id
        return generation, member, members

    def _assign(self, generation: int, member: str, members: Mapping[str, str]) -> None:
        request = text(self._group) + struct.pack(">i", generation) + text(member) + text("leader")
        request += struct.pack(">i", len(members))
        for instance, member_id in members.items():
            numbers = self.wanted.get(instance, [])
            assigned = (
                struct.pack(">hi", 0, 1) + text(self._topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
            )
            request += text(member_id) + data(assigned + data(b""))
        answer = self._ask(SYNC, request)
        answer.number("i")
        error = answer.number("h")
        assert error in (0, REBALANCE_IN_PROGRESS), error
        self.members = set(members) - {"leader"}

    def _heartbeat(self, generation: int, member: str) -> int:
        request = text(self._group) + struct.pack(">i", generation) + text(member) + text("leader")
        answer = self._ask(HEARTBEAT, request)
        answer.number("i")
        return answer.number("h")

    def _ask(self, api: tuple[int, int], request: bytes) -> Answer:
        self._socket.sendall(data(struct.pack(">hhi", *api, 0) + text("leader") + request))
        size = struct.unpack(">i", self._receive(4))[0]
        answer = Answer(self._receive(size))
        answer.number("i")  # correlation
        return answer

    def _receive(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            more = self._socket.recv(size - len(content))
            if not more:
                raise ConnectionError
            content += more
        return content
